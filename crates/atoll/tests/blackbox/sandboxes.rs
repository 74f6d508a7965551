//! Sandboxes and templates: making, finding, changing, ending, limits.

use std::time::Duration;

use crate::common::{code, shell};
use atoll_api::{BatchCreate, CreateExec, CreateSandbox, CreateTemplate, UpdateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_client::{ClientError, ListSandboxes, WriteFile};
use atoll_core::Code;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::ResourcesDraft;

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), ..CreateSandbox::default() }
}

async fn is_gone(server: &Server, sandbox: &str) -> bool {
    match server.client.get_sandbox(sandbox).await {
        Ok(_) => false,
        Err(error) => error.code() == Some(Code::SandboxNotFound),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_for_is_what_there_is() {
    let server = Server::start();
    let create = CreateSandbox {
        name: Some("mine".into()),
        env: [("GREETING".into(), "hello".into())].into(),
        labels: [("team".into(), "a".into())].into(),
        user: Some("user".into()),
        workdir: Some("/home/user/work".into()),
        ttl_ms: Some(3_600_000),
        ..CreateSandbox::default()
    };
    let made = server.client.create_sandbox(&create).await.unwrap();
    assert_eq!(
        (made.state, made.image.as_str(), made.user.as_str()),
        (SandboxState::Running, "host", "user")
    );
    let seen = server.sh("mine", "echo $GREETING; pwd; id -un; hostname; stat -c %U .").await;
    assert_eq!(seen.stdout, "hello\n/home/user/work\nuser\nmine\nuser\n");
    let own = CreateExec {
        user: Some("root".into()),
        cwd: Some("/".into()),
        env: [("GREETING".into(), "bye".into())].into(),
        ..shell("echo $GREETING $(id -u) $(pwd)")
    };
    let done = server.run("mine", own).await;
    assert_eq!(done.output.unwrap()[0].data, "bye 0 /\n");
    assert_eq!(server.client.get_sandbox("mine").await.unwrap().id, made.id);
    // A name is free again once its sandbox is gone.
    assert_eq!(code(server.client.create_sandbox(&named("mine")).await), Code::NameTaken);
    server.client.delete_sandbox("mine").await.unwrap();
    let next = server.client.create_sandbox(&named("mine")).await.unwrap();
    assert_ne!(next.id, made.id);
    // Nothing of the first is in the second.
    assert_eq!(server.sh("mine", "ls -d /home/user/work").await.stdout, "");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_in_pages() {
    let server = Server::start();
    let batch: Vec<CreateSandbox> = (0..20)
        .map(|number| CreateSandbox {
            labels: [("half".into(), (number % 2).to_string()), ("all".into(), "x".into())].into(),
            ..named(&format!("box-{number}"))
        })
        .chain([named("box-0"), CreateSandbox { image: Some("none".into()), ..CreateSandbox::default() }])
        .collect();
    let results = server.client.create_sandboxes(&BatchCreate { sandboxes: batch }).await.unwrap().results;
    assert_eq!(results.len(), 22);
    assert!(
        results[..20].iter().all(|result| result.sandbox.is_some() && result.error.is_none()),
        "{results:?}"
    );
    let codes: Vec<Code> = results[20..].iter().map(|result| result.error.as_ref().unwrap().code).collect();
    assert_eq!(codes, [Code::NameTaken, Code::ImageNotFound]);
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let list = ListSandboxes { limit: Some(6), cursor, ..ListSandboxes::default() };
        let page = server.client.list_sandboxes(&list).await.unwrap();
        seen.extend(page.items.iter().map(|sandbox| sandbox.id.clone()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let made: std::collections::BTreeSet<&String> =
        results[..20].iter().map(|result| &result.sandbox.as_ref().unwrap().id).collect();
    assert_eq!(seen.len(), 20);
    assert_eq!(seen.iter().collect::<std::collections::BTreeSet<_>>(), made);
    let count = async |list: ListSandboxes| server.client.list_sandboxes(&list).await.unwrap().items.len();
    let labels = [("half".into(), "1".into()), ("all".into(), "x".into())].into();
    assert_eq!(count(ListSandboxes { labels, ..ListSandboxes::default() }).await, 10);
    assert_eq!(
        count(ListSandboxes { name_prefix: Some("box-1".into()), ..ListSandboxes::default() }).await,
        11
    );
    assert_eq!(
        count(ListSandboxes { state: Some(SandboxState::Failed), ..ListSandboxes::default() }).await,
        0
    );
    let removed = server.cli(&["rm", "-f", "--all", "-l", "half=0", "--json"]).ok().json();
    assert_eq!(removed["removed"].as_array().unwrap().len(), 10);
    assert_eq!(count(ListSandboxes::default()).await, 10);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_sandboxes_than_allowed() {
    let server = Server::with(&["--sandboxes-max", "3"]);
    let create = CreateSandbox::default();
    let all = futures::future::join_all((0..6).map(|_| server.client.create_sandbox(&create))).await;
    let (made, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (3, 3));
    for refusal in refused {
        let Err(ClientError::Api { error, .. }) = refusal else { panic!("{refusal:?}") };
        assert_eq!(error.code, Code::LimitExceeded);
        assert!(error.hint.unwrap().contains("--sandboxes-max"));
    }
    server.client.delete_sandbox(&made[0].as_ref().unwrap().id).await.unwrap();
    server.sandbox().await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_end_by_themselves() {
    let server = Server::start();
    // Long enough for one request, however busy the host is.
    let ttl = CreateSandbox { ttl_ms: Some(4_000), ..CreateSandbox::default() };
    let idle = CreateSandbox { idle_timeout_ms: Some(4_000), ..CreateSandbox::default() };
    let longer = UpdateSandbox { ttl_ms: Some(Some(3_600_000)), ..UpdateSandbox::default() };
    let extended = server.client.create_sandbox(&ttl).await.unwrap().id;
    server.client.update_sandbox(&extended, &longer).await.unwrap();
    let works = server.client.create_sandbox(&idle).await.unwrap().id;
    let exec = server.shell(&works, "sleep 10; echo worked").await;
    let idles = server.client.create_sandbox(&idle).await.unwrap().id;
    // An exec that runs when the sandbox's end comes is ended with it, and a client that waits for it is told.
    let expires = server.client.create_sandbox(&ttl).await.unwrap().id;
    let waits = server.shell(&expires, "sleep 1000").await;
    let told = server.client.get_exec(&expires, &waits, 60_000).await;
    assert!(
        told.as_ref()
            .map_or_else(|error| error.code() == Some(Code::SandboxNotFound), |exec| exec.state.is_final()),
        "{told:?}"
    );
    wait_until("the end of a life", async || is_gone(&server, &expires).await.then_some(())).await;
    wait_until("idleness to be noticed", async || is_gone_quietly(&server, &idles).await.then_some(())).await;
    // A sandbox with a running command is not idle; looking at a sandbox does not keep it.
    let done = server.client.get_exec(&works, &exec, 60_000).await.unwrap();
    assert_eq!(done.exit.unwrap().code, Some(0));
    assert!(!is_gone(&server, &extended).await);
    let none = UpdateSandbox { ttl_ms: Some(None), ..UpdateSandbox::default() };
    assert_eq!(server.client.update_sandbox(&extended, &none).await.unwrap().expires_at_ms, None);
    wait_until("idleness to be noticed", async || is_gone_quietly(&server, &works).await.then_some(())).await;
    server.finish().await;
}

/// Looks without touching the sandbox itself: a request to it might count as use.
async fn is_gone_quietly(server: &Server, sandbox: &str) -> bool {
    let page = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
    page.items.iter().all(|item| item.id != sandbox)
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_enforced() {
    let server = Server::start();
    let resources = ResourcesDraft {
        cpu_millis: Some(200),
        memory_bytes: Some(128 << 20),
        pids: Some(24),
        disk_bytes: Some(64 << 20),
        ..ResourcesDraft::default()
    };
    let create = CreateSandbox { resources, ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    // A fifth of a core, however much is asked for. Other programs on this machine can only make it less.
    let before = server.client.sandbox_metrics(&sandbox).await.unwrap();
    let started = std::time::Instant::now();
    server.sh(&sandbox, "for i in 1 2 3; do timeout 2 sh -c 'while :; do :; done' & done; wait").await;
    let after = server.client.sandbox_metrics(&sandbox).await.unwrap();
    let used_us = after.cpu_us - before.cpu_us;
    let wall_us = u64::try_from(started.elapsed().as_micros()).unwrap();
    assert!(used_us > 50_000 && used_us < wall_us * 2 / 5, "{used_us} µs of {wall_us}");
    // Processes: `fork` is refused inside, and everything outside goes on.
    let bomb = server.sh(&sandbox, "for i in $(seq 100); do sleep 5 & done; echo made").await;
    assert!(bomb.stderr.contains("fork"), "{bomb:?}");
    wait_until("the bomb to be over", async || {
        (server.client.sandbox_metrics(&sandbox).await.unwrap().pids < 6).then_some(())
    })
    .await;
    // Disk.
    let full = server.sh(&sandbox, "head -c 100M /dev/zero > /home/user/x; df -k / | tail -1").await;
    assert!(full.stderr.contains("No space left"), "{full:?}");
    let metrics = server.client.sandbox_metrics(&sandbox).await.unwrap();
    assert!(metrics.disk_total_bytes <= 64 << 20 && metrics.disk_used_bytes > 40 << 20, "{metrics:?}");
    assert_eq!(metrics.memory_limit_bytes, 128 << 20);
    server.sh(&sandbox, "rm /home/user/x").await;
    // Memory: more is refused until it is allowed.
    let eat = shell("perl -e 'my $x = q(x) x (160 << 20); print length $x'");
    let exit = server.run(&sandbox, eat.clone()).await.exec.exit.unwrap();
    assert_eq!(exit.reason, atoll_core::exec::ExitReason::OutOfMemory);
    let update = UpdateSandbox {
        resources: ResourcesDraft { memory_bytes: Some(512 << 20), ..ResourcesDraft::default() },
        ..UpdateSandbox::default()
    };
    assert_eq!(
        server.client.update_sandbox(&sandbox, &update).await.unwrap().resources.memory_bytes,
        512 << 20
    );
    assert_eq!(server.run(&sandbox, eat).await.exec.exit.unwrap().code, Some(0));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_have_versions() {
    let server = Server::start();
    let recipe = |env: &str| CreateTemplate {
        name: "web".into(),
        image: "host".into(),
        snapshot: None,
        isolation: None,
        resources: ResourcesDraft { pids: Some(77), ..ResourcesDraft::default() },
        env: [("V".into(), env.into()), ("ONLY".into(), "template".into())].into(),
        labels: [("kind".into(), "web".into())].into(),
        user: Some("user".into()),
        workdir: Some("/home/user".into()),
        ttl_ms: Some(3_600_000),
        idle_timeout_ms: None,
        pool: None,
        egress: None,
        start: None,
        ready: None,
        restart: None,
        memory: false,
        execution: None,
        profiles: None,
        services: Vec::new(),
    };
    assert_eq!(server.client.create_template(&recipe("one")).await.unwrap().version, 1);
    assert_eq!(server.client.create_template(&recipe("two")).await.unwrap().version, 2);
    for (template, want) in [("web", "two"), ("web:1", "one"), ("web:2", "two")] {
        let create = CreateSandbox { template: Some(template.into()), ..CreateSandbox::default() };
        let made = server.client.create_sandbox(&create).await.unwrap();
        assert_eq!((made.resources.pids, made.labels["kind"].as_str()), (77, "web"));
        assert!(made.expires_at_ms.is_some());
        let seen = server.sh(&made.id, "echo $V $ONLY $(id -un) $(pwd)").await;
        assert_eq!(seen.stdout, format!("{want} template user /home/user\n"));
    }
    let over = CreateSandbox {
        template: Some("web".into()),
        env: [("V".into(), "mine".into())].into(),
        ..CreateSandbox::default()
    };
    let over = server.client.create_sandbox(&over).await.unwrap().id;
    assert_eq!(server.sh(&over, "echo $V $ONLY").await.stdout, "mine template\n");
    let absent = CreateSandbox { template: Some("web:9".into()), ..CreateSandbox::default() };
    assert_eq!(code(server.client.create_sandbox(&absent).await), Code::TemplateNotFound);
    server.client.delete_template("web", Some(2)).await.unwrap();
    assert_eq!(server.client.get_template("web", None).await.unwrap().version, 1);
    server.client.delete_template("web", None).await.unwrap();
    assert_eq!(code(server.client.get_template("web", None).await), Code::TemplateNotFound);
    // The sandbox that was made from the template goes on.
    assert_eq!(server.sh(&over, "echo on").await.stdout, "on\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_kind() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let content: Vec<u8> = (0..2_000_000_u32).map(|i| (i * 13 % 253) as u8).collect();
    let path = format!(
        "/v1/sandboxes/{sandbox}/files?path=/home/user/a/b%20%C3%BC&parents=true&mode=0640&user=user"
    );
    let answer = server.send(server.request("PUT", &path).body(content.clone())).await;
    assert_eq!((answer.status, &answer.json()["bytes"]), (200, &serde_json::json!(2_000_000)));
    let get = format!("/v1/sandboxes/{sandbox}/files?path=/home/user/a/b%20%C3%BC");
    assert!(server.send(server.request("GET", &get)).await.bytes == content);
    let part = server.send(server.request("GET", &get).header("range", "bytes=1000-1999")).await;
    assert!(part.status == 206 && part.bytes == content[1000..2000]);
    let stat = server.client.stat_file(&sandbox, "/home/user/a/b ü").await.unwrap();
    assert_eq!(
        (stat.mode.as_str(), stat.size_bytes, stat.user.as_deref()),
        ("0640", 2_000_000, Some("user"))
    );
    // An upload that breaks off leaves the old file as it was.
    let broken = futures::stream::iter(vec![
        Ok(bytes::Bytes::from(vec![0; 100_000])),
        Err(std::io::Error::other("cut")),
    ]);
    assert!(
        server.client.write_file(&sandbox, "/home/user/a/b ü", &WriteFile::default(), broken).await.is_err()
    );
    assert!(server.send(server.request("GET", &get)).await.bytes == content);
    let list = server.client.list_files(&sandbox, "/home/user/a", None, None).await.unwrap();
    assert_eq!(list.items.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/home/user/a/b ü"]);
    // A watch tells what happens after it is ready.
    let mut watch = server.client.watch_files(&sandbox, "/home/user", true).await.unwrap();
    let next = async |watch: &mut (
                               dyn futures::Stream<Item = Result<atoll_client::WatchEvent, ClientError>>
                                   + Send
                                   + Unpin
                           )| {
        tokio::time::timeout(Duration::from_secs(30), futures::StreamExt::next(watch))
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    };
    assert_eq!(next(&mut watch).await, atoll_client::WatchEvent::Ready);
    server.sh(&sandbox, "mkdir -p /home/user/new/deep; echo x > /home/user/new/deep/file").await;
    loop {
        if let atoll_client::WatchEvent::Changed(change) = next(&mut watch).await
            && format!("{change:?}").contains("/home/user/new/deep/file")
        {
            break;
        }
    }
    server.client.remove_file(&sandbox, "/home/user/a", true).await.unwrap();
    assert_eq!(code(server.client.stat_file(&sandbox, "/home/user/a").await), Code::FileNotFound);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_the_document_are_served() {
    let server = Server::with(&["--metrics-public"]);
    server.sandbox().await;
    let metrics = server.send(server.bare("GET", "/metrics")).await;
    assert_eq!(metrics.status, 200);
    assert!(
        metrics.text().contains("atoll_sandboxes") && metrics.text().ends_with("# EOF\n"),
        "{}",
        metrics.text()
    );
    let document = server.send(server.bare("GET", "/openapi.json")).await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let info = server.client.server_info().await.unwrap();
    assert_eq!((info.sandboxes, info.installation), (1, server.installation()));
    server.finish().await;
}
