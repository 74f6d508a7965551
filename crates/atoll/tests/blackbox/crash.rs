//! `kill -9` of the server at every fail point of engine and driver.
//!
//! At every moment: after the next start everything that was acknowledged is there, everything else is undone, nothing
//! is left on the host, and a new sandbox can be made.

use atoll_api::{CreateCheckpoint, CreateExec, CreateSandbox, CreateSnapshot, ForkSandbox, PutPool};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::{ListSandboxes, ListSnapshots};
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::sandbox::SandboxState;
use serde_json::{Value, json};

const CREATE: &[&str] = &[
    "engine.create.before",
    "engine.create.journalled",
    "container::create::start",
    "container::create::directory",
    "container::create::ids",
    "container::create::disk",
    "container::create::cgroups",
    "container::create::socket",
    "container::create::process",
    "container::create::record",
    "engine.create.isolated",
    "engine.create.networked",
    "engine.create.connected",
    "engine.create.configured",
    "engine.create.committed",
];

const DELETE: &[&str] = &[
    "engine.delete.marked",
    "container::destroy::start",
    "container::destroy::processes",
    "container::destroy::cgroups",
    "container::destroy::directory",
    "engine.delete.destroyed",
    "engine.delete.checkpoints_removed",
    "engine.delete.logs_removed",
    "engine.delete.unrecorded",
];

/// The fail points that a claim of a member of a warm pool passes.
const CLAIM: &[&str] = &["engine.claim.taken", "engine.claim.identified", "engine.claim.committed"];

/// The fail points that a filler of a pool passes whose template has a start command.
const FILL: &[&str] = &["engine.pool.isolated", "container::create::process", "engine.pool.started"];

/// Sandboxes that the server knows, once none of them is on its way in or out.
async fn settled(server: &Server) -> Vec<(String, SandboxState)> {
    wait_until("sandboxes to settle", async || {
        let page = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
        let passing = [SandboxState::Creating, SandboxState::Deleting];
        let settled = page.items.iter().all(|sandbox| !passing.contains(&sandbox.state));
        settled.then(|| page.items.into_iter().map(|sandbox| (sandbox.id, sandbox.state)).collect())
    })
    .await
}

/// Everything on the host that belongs to sandboxes other than `keep`.
fn strangers(server: &Server, keep: &str) -> Vec<String> {
    let remains = host::remains(&server.installation(), server.data());
    let known = |line: &String| {
        line.contains(keep)
            || line.contains(" serve --ready-json")
            || line.contains("/disks/")
            || line.contains("/storage/pool.img")
    };
    let agents: Vec<String> = host::processes(keep).iter().map(|pid| format!("process {pid}:")).collect();
    remains
        .into_iter()
        .filter(|line| !known(line) && !agents.iter().any(|agent| line.starts_with(agent)))
        .collect()
}

async fn assert_nothing_but(server: &Server, keep: &str, point: &str) {
    let leaks = server.client.list_leaks().await.unwrap();
    assert!(leaks.items.is_empty(), "{point}: {leaks:?}");
    // The kernel frees a loop device a moment after the last process that used it.
    wait_until(&format!("{point}: {:?} to go", strangers(server, keep)), async || {
        strangers(server, keep).is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_creation() {
    let mut server = Server::with(&[]);
    let stays = server.sandbox().await.id;
    let pid_of_stays = host::processes(&stays)[0];
    for point in CREATE {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        let create = CreateSandbox { name: Some("half-made".into()), ..CreateSandbox::default() };
        let answer = server.client.create_sandbox(&create).await;
        assert!(answer.is_err(), "{point} is not passed: {answer:?}");
        assert!(!server.wait_end().success());
        server.restart();
        let mut there = settled(&server).await;
        there.retain(|(id, _)| *id != stays);
        if *point == "engine.create.committed" {
            // Recorded, so it is made; the answer was lost on the way.
            assert!(matches!(&there[..], [(_, SandboxState::Running)]), "{point}: {there:?}");
            assert_eq!(server.sh("half-made", "echo here").await.stdout, "here\n");
            server.client.delete_sandbox("half-made").await.unwrap();
        } else {
            assert!(there.is_empty(), "{point}: {there:?}");
        }
        assert_nothing_but(&server, &stays, point).await;
        // The name is free, a creation works, and the sandbox from before goes on in the same process.
        server.client.create_sandbox(&create).await.unwrap_or_else(|error| panic!("{point}: {error}"));
        server.client.delete_sandbox("half-made").await.unwrap();
        assert_eq!(server.sh(&stays, "echo on").await.stdout, "on\n", "{point}");
    }
    assert_eq!(host::processes(&stays)[0], pid_of_stays);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_deletion() {
    let mut server = Server::with(&[]);
    let stays = server.sandbox().await.id;
    for point in DELETE {
        let goes = server.sandbox().await.id;
        server.shell(&goes, "while :; do echo x; sleep 0.01; done").await;
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        assert!(server.client.delete_sandbox(&goes).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        let there = settled(&server).await;
        assert_eq!(there, [(stays.clone(), SandboxState::Running)], "{point}");
        assert_nothing_but(&server, &stays, point).await;
    }
    assert_eq!(server.sh(&stays, "echo on").await.stdout, "on\n");
    server.finish().await;
}

/// Waits until a member waits.
async fn until_warm(server: &Server) {
    wait_until("a member", async || {
        let pools = server.client.list_pools().await.unwrap();
        pools.items.iter().any(|pool| pool.ready == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_claim() {
    let mut server = Server::with(&["--pool", "host=1"]);
    let stays = server.sandbox().await.id;
    for point in CLAIM {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        until_warm(&server).await;
        let create = CreateSandbox { name: Some("half-made".into()), ..CreateSandbox::default() };
        assert!(server.client.create_sandbox(&create).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        let mut there = settled(&server).await;
        there.retain(|(id, _)| *id != stays);
        if *point == "engine.claim.committed" {
            assert!(matches!(&there[..], [(_, SandboxState::Running)]), "{point}: {there:?}");
            assert_eq!(server.sh("half-made", "uname -n").await.stdout, "half-made\n");
            server.client.delete_sandbox("half-made").await.unwrap();
        } else {
            assert!(there.is_empty(), "{point}: {there:?}");
        }
        let leaks = server.client.list_leaks().await.unwrap();
        assert!(leaks.items.is_empty(), "{point}: {leaks:?}");
        assert_eq!(server.sh(&stays, "echo on").await.stdout, "on\n", "{point}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_pool_is_filled() {
    let mut server = Server::with(&[]);
    let stays = server.sandbox().await.id;
    let template = serde_json::json!({"name": "web", "image": "host", "start": "sleep infinity"});
    server.client.create_template(&serde_json::from_value(template).unwrap()).await.unwrap();
    let put = PutPool { template: Some("web".into()), min: 1, max: 1, ..PutPool::default() };
    for point in FILL {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        // Whether the answer comes before the end is chance.
        drop(server.client.put_pool(&put).await);
        assert!(!server.wait_end().success(), "{point} is not passed");
        server.restart();
        until_warm(&server).await;
        let leaks = server.client.list_leaks().await.unwrap();
        assert!(leaks.items.is_empty(), "{point}: {leaks:?}");
        server.client.delete_pool(Some("web"), None).await.unwrap();
        assert_nothing_but(&server, &stays, point).await;
        assert_eq!(server.sh(&stays, "echo on").await.stdout, "on\n", "{point}");
    }
    server.finish().await;
}

const SNAPSHOT: &[&str] = &[
    "engine.snapshot.journalled",
    "container::snapshot::artifact",
    "container::snapshot::frozen",
    "container::snapshot::cloned",
    "engine.snapshot.taken",
    "engine.snapshot.finished",
];

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_snapshot() {
    let mut server = Server::with(&[]);
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "echo kept > /home/user/f").await;
    // A command writes all the time: a server that is killed while the disk stands still must not leave it so.
    let writer = server.shell(&sandbox, "while :; do echo x >> /home/user/log; done").await;
    let order = CreateSnapshot { tags: vec!["half-made".into()], ..CreateSnapshot::default() };
    for point in SNAPSHOT {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        assert!(server.client.create_snapshot(&sandbox, &order).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        let there = server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items;
        assert_eq!(there.len(), usize::from(*point == "engine.snapshot.finished"), "{point}: {there:?}");
        assert_nothing_but(&server, &sandbox, point).await;
        assert_eq!(
            server.sh(&sandbox, "echo more >> /home/user/f; tail -n1 /home/user/f").await.stdout,
            "more\n",
            "{point}"
        );
        for snapshot in there {
            server.client.delete_snapshot(&snapshot.id).await.unwrap();
        }
        server
            .client
            .create_snapshot(&sandbox, &order)
            .await
            .unwrap_or_else(|error| panic!("{point}: {error}"));
        server.client.delete_snapshot("half-made").await.unwrap();
    }
    assert!(!server.client.get_exec(&sandbox, &writer, 0).await.unwrap().state.is_final());
    for point in ["engine.snapshot.marked", "engine.snapshot.removed"] {
        server.client.create_snapshot(&sandbox, &order).await.unwrap();
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        assert!(server.client.delete_snapshot("half-made").await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        assert!(
            server.client.list_snapshots(&ListSnapshots::default()).await.unwrap().items.is_empty(),
            "{point}"
        );
        assert_nothing_but(&server, &sandbox, point).await;
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_fork() {
    let mut server = Server::with(&[]);
    let parent = server.sandbox().await.id;
    for point in ["engine.fork.taken", "engine.fork.made"] {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        let fork = ForkSandbox { count: 2, ..ForkSandbox::default() };
        assert!(server.client.fork_sandbox(&parent, &fork).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        // Children that were made are there, and nothing of the snapshot that they were made from.
        let made = if point == "engine.fork.made" { 2 } else { 0 };
        let there = settled(&server).await;
        assert_eq!(there.len(), 1 + made, "{point}: {there:?}");
        for (id, _) in there.iter().filter(|(id, _)| *id != parent) {
            assert_eq!(server.sh(id, "echo here").await.stdout, "here\n");
            server.client.delete_sandbox(id).await.unwrap();
        }
        assert_nothing_but(&server, &parent, point).await;
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_a_rollback() {
    let mut server = Server::with(&[]);
    let sandbox = server.sandbox().await.id;
    server.sh(&sandbox, "echo before > /home/user/f").await;
    server.client.create_checkpoint(&sandbox, &CreateCheckpoint::default()).await.unwrap();
    let points = [
        "engine.rollback.journalled",
        "container::replace::disk",
        "container::replace::destroyed",
        "engine.rollback.replaced",
        "engine.rollback.recorded",
    ];
    for point in points {
        server.sh(&sandbox, "echo after > /home/user/f").await;
        let exec = server.shell(&sandbox, "sleep 1000").await;
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        assert!(server.client.rollback_sandbox(&sandbox, Some("1")).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        // The rollback that was begun is finished.
        assert_eq!(server.sh(&sandbox, "cat /home/user/f").await.stdout, "before\n", "{point}");
        let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
        assert_eq!(ended.exit.unwrap().reason, ExitReason::RolledBack, "{point}");
        assert_nothing_but(&server, &sandbox, point).await;
    }
    server.finish().await;
}

/// A creation in E2B's dialect finds the sandbox that the server before made for the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_creation_of_e2b_is_found_again_after_a_crash() {
    let mut server = Server::with(&[]);
    let made = server.cli(&["key", "create", "e2b", "--scope", "manage", "--for", "e2b", "--json"]).ok();
    let key = made.json()["secret"].as_str().unwrap().to_owned();
    let ask = async |server: &Server, timeout: u32| {
        let request = server.bare("POST", "/e2b/sandboxes").header("x-api-key", &key);
        let request = request.header("idempotency-key", "one-of-mine");
        let answer = request.json(&json!({ "templateID": "base", "timeout": timeout })).send().await?;
        let status = answer.status().as_u16();
        reqwest::Result::Ok((status, answer.json::<Value>().await?))
    };
    server.kill();
    server.restart_with("engine.create.committed=kill");
    assert!(ask(&server, 60).await.is_err());
    assert!(!server.wait_end().success());
    server.restart();
    let (status, made) = ask(&server, 60).await.unwrap();
    assert_eq!(status, 201, "{made}");
    server.kill();
    server.restart();
    let (status, again) = ask(&server, 60).await.unwrap();
    assert_eq!((status, &again["sandboxID"]), (201, &made["sandboxID"]), "{again}");
    let all = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items;
    assert_eq!(all.len(), 1, "{all:?}");
    // The sandbox was opened to all keys once, as E2B's clients expect, by the first server that got as far.
    let accesses = server.client.list_accesses(&all[0].id).await.unwrap().items;
    assert_eq!(accesses.len(), 1, "{accesses:?}");
    server.kill();
    server.restart();
    let (status, other) = ask(&server, 61).await.unwrap();
    assert_eq!((status, &other["error_code"]), (409, &json!("idempotency_request_mismatch")), "{other}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_answer_was_lost_is_not_done_again() {
    let mut server = Server::with(&[]);
    let ask = async |server: &Server, path: &str, body: &Value| {
        let request = server
            .request("POST", path)
            .header("idempotency-key", path.replace('/', "-"))
            .json(body)
            .send()
            .await?;
        let status = request.status().as_u16();
        reqwest::Result::Ok((status, request.json::<Value>().await?))
    };
    for point in ["engine.create.journalled", "engine.create.configured", "engine.create.committed"] {
        server.kill();
        server.restart_with(&format!("{point}=kill"));
        let body = json!({ "labels": { "point": point.replace('.', "-") } });
        assert!(ask(&server, "/v1/sandboxes", &body).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        // The half-made sandbox is still being taken apart when the repetition comes.
        server.restart_with("engine.delete.marked=sleep(300)");
        let (status, made) = ask(&server, "/v1/sandboxes", &body).await.unwrap();
        assert_eq!(status, 201, "{point}: {made}");
        server.kill();
        server.restart();
        let (status, again) = ask(&server, "/v1/sandboxes", &body).await.unwrap();
        assert_eq!((status, &again["id"]), (201, &made["id"]), "{point}");
        let other = ask(&server, "/v1/sandboxes", &json!({})).await.unwrap();
        // The server that answered knows the key itself; the next one finds it with the sandbox.
        assert_eq!((other.0, &other.1["code"]), (409, &json!("idempotency_mismatch")), "{point}");
        server.kill();
        server.restart();
        let other = ask(&server, "/v1/sandboxes", &json!({})).await.unwrap();
        assert_eq!((other.0, &other.1["code"]), (409, &json!("idempotency_mismatch")), "{point}");
        assert_nothing_but(&server, made["id"].as_str().unwrap(), point).await;
        server.client.delete_sandbox(made["id"].as_str().unwrap()).await.unwrap();
    }
    // Each of a batch by itself.
    let batch = json!({ "sandboxes": [{}, { "name": "second" }] });
    let first = ask(&server, "/v1/sandboxes/batch", &batch).await.unwrap().1;
    server.kill();
    server.restart();
    let second = ask(&server, "/v1/sandboxes/batch", &batch).await.unwrap().1;
    for number in 0..2 {
        let id = |batch: &Value| batch["results"][number]["sandbox"]["id"].as_str().map(str::to_owned);
        assert!(id(&first).is_some() && id(&first) == id(&second), "{first} {second}");
    }
    server.finish().await;
}

/// Output of which every line is its number, in two pieces at least.
const COUNT: &str =
    "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; [ $i != 1000 ] || sleep 0.3; done; exit 7";

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step_of_an_exec() {
    let mut server = Server::with(&[]);
    let sandbox = server.sandbox().await.id;
    let expected: String = (1..=2000).map(|i| format!("{i}\n")).collect();
    let points = [
        "engine.exec.journalled=kill",
        "engine.exec.started=kill",
        "engine.exec.appended=kill",
        "engine.exec.appended=kill@2",
        "engine.exec.exited=kill",
        "engine.exec.finished=kill",
    ];
    for (number, point) in points.into_iter().enumerate() {
        server.kill();
        server.restart_with(point);
        let create = CreateExec {
            shell: Some(COUNT.into()),
            idempotency_key: Some(format!("once-{number}")),
            wait_ms: Some(60_000),
            ..CreateExec::default()
        };
        assert!(server.client.create_exec(&sandbox, &create).await.is_err(), "{point} is not passed");
        assert!(!server.wait_end().success());
        server.restart();
        // The client that lost the answer asks again with the same key: one run, its output whole.
        let done = server.client.create_exec(&sandbox, &create).await.unwrap();
        let exit = done.exec.exit.clone().unwrap();
        assert_eq!((exit.reason, exit.code), (ExitReason::Exited, Some(7)), "{point}");
        let output: Vec<u8> = done.output.unwrap().iter().flat_map(|chunk| chunk.bytes().unwrap()).collect();
        assert!(output == expected.as_bytes(), "{point}: {} bytes", output.len());
    }
    let execs = server.client.list_execs(&sandbox, &atoll_client::ListExecs::default()).await.unwrap();
    assert_eq!(execs.items.len(), points.len(), "a command ran twice");
    assert!(execs.items.iter().all(|exec| exec.state == ExecState::Exited));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_is_undone_and_the_server_goes_on() {
    let mut server = Server::with(&[]);
    let stays = server.sandbox().await.id;
    for point in CREATE.iter().filter(|point| point.starts_with("container::")) {
        server.kill();
        server.restart_with(&format!("{point}=1*panic"));
        assert!(server.client.create_sandbox(&CreateSandbox::default()).await.is_err(), "{point}");
        assert_eq!(settled(&server).await.len(), 1, "{point}");
        assert_nothing_but(&server, &stays, point).await;
        let next = server.sandbox().await;
        server.client.delete_sandbox(&next.id).await.unwrap();
    }
    server.tolerate_panics();
    server.finish().await;
}
