//! Warm pools with the real program: claims, leftovers, `kill -9`.

use std::collections::BTreeSet;

use atoll_api::{CreateSandbox, CreateTemplate, Pool, PutPool};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::ListExecs;
use atoll_core::Code;
use atoll_core::pool::PoolSpec;
use atoll_core::spec::ResourcesDraft;

use crate::common::code;

/// Waits until the only pool has `count` ready and rests.
async fn until_ready(server: &Server, count: u32) -> Pool {
    wait_until(&format!("{count} members"), async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.into_iter().find(|pool| pool.ready == count && pool.making == 0)
    })
    .await
}

/// Ids of the sandboxes that have a directory on the host.
fn on_host(server: &Server) -> BTreeSet<String> {
    let lines = host::remains(&server.installation(), server.data());
    let id = |line: &String| line.strip_prefix("directory containers/sandboxes/").map(str::to_owned);
    lines.iter().filter_map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_member_is_a_sandbox_like_any_other() {
    let server = Server::with(&["--pool", "host=2"]);
    until_ready(&server, 2).await;
    let members = on_host(&server);
    assert_eq!(members.len(), 2);
    let create = CreateSandbox {
        name: Some("mine".into()),
        env: [("COLOUR".into(), "blue".into())].into(),
        labels: [("team".into(), "a".into())].into(),
        resources: ResourcesDraft {
            memory_bytes: Some(64 << 20),
            pids: Some(24),
            ..ResourcesDraft::default()
        },
        workdir: Some("/srv/work".into()),
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    assert!(members.contains(&sandbox.id), "it was waiting");
    let seen =
        server.sh("mine", "uname -n; cat /etc/hostname; grep -c mine /etc/hosts; pwd; echo $COLOUR").await;
    assert_eq!(seen.stdout, "mine\nmine\n1\n/srv/work\nblue\n");
    // The limits are those that were asked for, in the kernel.
    let crowd = server.sh("mine", "i=0; while [ $i -lt 64 ]; do sleep 100 & i=$((i+1)); done").await;
    assert_ne!(crowd.code, Some(0), "more processes than allowed: {crowd:?}");
    let other = server.client.create_sandbox(&CreateSandbox::default()).await.unwrap();
    let name = server.sh(&other.id, "uname -n").await;
    assert_eq!(name.stdout, format!("{}\n", other.id));
    assert_eq!(server.client.list_pools().await.unwrap().items[0].hits, 2);

    let listed = server.cli(&["ls", "--json"]).ok().json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 2, "members are not listed");
    let table = server.cli(&["pool", "ls"]).ok().stdout;
    assert!(table.contains("image host") && table.contains("100% of 2"), "{table}");
    let metrics = server.send(server.request("GET", "/metrics")).await.text();
    assert!(metrics.contains("atoll_pool_claims_total{pool=\"image:host\",outcome=\"hit\"} 2"), "{metrics}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_go_with_an_orderly_stop_and_after_a_kill() {
    let mut server = Server::with(&["--pool", "host=3"]);
    until_ready(&server, 3).await;
    let sandbox = server.sandbox().await.id;
    until_ready(&server, 3).await;
    let before = on_host(&server);
    server.kill();
    assert_eq!(on_host(&server), before);
    server.restart();
    until_ready(&server, 3).await;
    let both: Vec<_> = on_host(&server).intersection(&before).cloned().collect();
    assert_eq!(both, std::slice::from_ref(&sandbox), "members were removed, the sandbox was not");
    assert_eq!(server.sh(&sandbox, "echo on").await.stdout, "on\n");
    assert!(server.stop().success());
    assert_eq!(on_host(&server), BTreeSet::from([sandbox]));
    server.restart();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_set_and_removed_by_template_and_by_command() {
    let server = Server::with(&["--pool-memory", "1GiB"]);
    let template: CreateTemplate = serde_json::from_value(serde_json::json!({
        "name": "tool",
        "image": "host",
        "resources": { "disk_bytes": 64 << 20 },
        "env": { "V": "1" },
        "pool": PoolSpec::fixed(1),
    }))
    .unwrap();
    server.client.create_template(&template).await.unwrap();
    until_ready(&server, 1).await;
    let waiting = on_host(&server);
    let create = CreateSandbox { template: Some("tool".into()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    assert!(waiting.contains(&sandbox.id));
    assert_eq!(server.sh(&sandbox.id, "echo $V").await.stdout, "1\n");

    let shown = server.cli(&["pool", "set", "--template", "tool", "2", "4"]).ok().stdout;
    assert!(shown.contains("template tool:1: 2 to 4"), "{shown}");
    until_ready(&server, 2).await;
    let put = |max| PutPool { template: Some("tool".into()), min: 1, max, ..PutPool::default() };
    assert_eq!(code(server.client.put_pool(&put(500)).await), Code::PoolTooLarge);
    assert_eq!(code(server.client.put_pool(&PutPool::default()).await), Code::InvalidArgument);
    let refused = server.cli(&["pool", "set", "--image", "host", "500"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("do not fit"), "{refused:?}");
    server.cli(&["pool", "rm", "--template", "tool"]).ok();
    until_ready(&server, 1).await;
    assert_eq!(code(server.client.delete_pool(Some("tool"), None).await), Code::PoolNotFound);
    server.client.delete_template("tool", None).await.unwrap();
    wait_until("no pool", async || {
        (server.client.list_pools().await.unwrap().items.is_empty() && on_host(&server).len() == 1)
            .then_some(())
    })
    .await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_deeper_than_the_pool_succeeds() {
    let server = Server::with(&["--pool", "host=5"]);
    until_ready(&server, 5).await;
    let creates =
        (0..20).map(|_| async { server.client.create_sandbox(&CreateSandbox::default()).await.unwrap().id });
    let ids: BTreeSet<String> = futures::future::join_all(creates).await.into_iter().collect();
    assert_eq!(ids.len(), 20);
    let runs = ids.iter().map(|id| server.sh(id, "echo $HOSTNAME$(uname -n)"));
    for (done, id) in futures::future::join_all(runs).await.iter().zip(&ids) {
        assert!(done.stdout.contains(id.as_str()), "{done:?}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_hands_over_what_runs_and_is_ready() {
    let mut server = Server::with(&["--pool-memory", "1GiB"]);
    // Ready after a while, and it says since when.
    let serve = "import http.server, os, time\n\
                 print('up', os.environ['V'], flush=True)\n\
                 time.sleep(0.5)\n\
                 http.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')";
    let template = |version: &str| -> CreateTemplate {
        serde_json::from_value(serde_json::json!({
            "name": "web",
            "image": "host",
            "env": { "V": version },
            "start": ["python3", "-c", serve],
            "ready": { "port": 8000 },
            "pool": PoolSpec::fixed(1),
        }))
        .unwrap()
    };
    server.client.create_template(&template("one")).await.unwrap();
    until_ready(&server, 1).await;
    let waiting = on_host(&server);
    let create =
        CreateSandbox { template: Some("web".into()), name: Some("mine".into()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap();
    assert!(waiting.contains(&sandbox.id), "it was waiting");
    let ask = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8000/\").status)'";
    assert_eq!(server.sh("mine", ask).await.stdout, "200\n");
    let execs = server.client.list_execs("mine", &ListExecs::default()).await.unwrap().items;
    let start = execs.iter().find(|exec| exec.argv[0] == "python3").unwrap().id.clone();
    assert!(crate::common::follow(&server, "mine", &start, 7).await.0.starts_with(b"up one\n"));
    // It belongs to the sandbox from now on, and outlives the server.
    server.kill();
    server.restart();
    assert_eq!(server.sh("mine", ask).await.stdout, "200\n");
    let again = server.client.list_execs("mine", &ListExecs::default()).await.unwrap().items;
    assert_eq!(again.iter().filter(|exec| exec.argv[0] == "python3").count(), 1, "{again:?}");
    server.client.kill_exec("mine", &start).await.unwrap();

    // Another version: the members of the one before go.
    until_ready(&server, 1).await;
    let old = on_host(&server);
    server.client.create_template(&template("two")).await.unwrap();
    wait_until("another member", async || {
        let pool = server.client.list_pools().await.unwrap().items.remove(0);
        (pool.ready == 1 && pool.version == Some(2)).then_some(())
    })
    .await;
    let create = CreateSandbox { template: Some("web".into()), ..CreateSandbox::default() };
    let second = server.client.create_sandbox(&create).await.unwrap();
    assert!(!old.contains(&second.id));
    assert_eq!(server.sh(&second.id, "echo $V").await.stdout, "two\n");
    server.client.delete_template("web", None).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_slow_to_be_ready_keeps_no_other_pool_waiting() {
    let server = Server::with(&["--pool-memory", "1GiB"]);
    let template: CreateTemplate = serde_json::from_value(serde_json::json!({
        "name": "never",
        "image": "host",
        "start": "sleep infinity",
        "ready": { "command": "false", "timeout_ms": 600_000 },
        "pool": PoolSpec::fixed(4),
    }))
    .unwrap();
    server.client.create_template(&template).await.unwrap();
    wait_until("all to be waited for", async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.iter().any(|pool| pool.making == 4).then_some(())
    })
    .await;
    let put = PutPool { image: Some("host".into()), min: 1, max: 1, ..PutPool::default() };
    server.client.put_pool(&put).await.unwrap();
    wait_until("the other pool", async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.iter().any(|pool| pool.ready == 1).then_some(())
    })
    .await;
    server.finish().await;
}
