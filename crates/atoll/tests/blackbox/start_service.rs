//! The start command of a template is a service of its sandboxes like any, begun in each boot.

use crate::common::code;
use atoll_api::{CreateSandbox, CreateService, CreateTemplate, ForkSandbox, PauseSandbox, Sandbox, Service};
use atoll_blackbox::{Server, wait_until};
use atoll_client::{ListExecs, ListSandboxes, OutputQuery};
use atoll_core::Code;
use atoll_core::sandbox::PauseMode;
use atoll_core::service::{Restart, ServiceState};
use serde_json::{Value, json};

const FILESYSTEM: PauseSandbox = PauseSandbox { mode: Some(PauseMode::Filesystem) };

fn recipe(start: &str, more: Value) -> CreateTemplate {
    let mut recipe = json!({"name": "app", "image": "host", "start": start});
    recipe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(recipe).unwrap()
}

fn of_app() -> CreateSandbox {
    CreateSandbox { template: Some("app".to_owned()), ..CreateSandbox::default() }
}

async fn made(server: &Server, start: &str, more: Value) -> Sandbox {
    server.client.create_template(&recipe(start, more)).await.unwrap();
    server.client.create_sandbox(&of_app()).await.unwrap()
}

async fn get(server: &Server, sandbox: &str) -> Service {
    server.client.get_service(sandbox, "start", 0).await.unwrap()
}

async fn until(server: &Server, sandbox: &str, state: ServiceState, run: u64) -> Service {
    wait_until(&format!("start to be {state:?} in run {run}"), async || {
        Some(get(server, sandbox).await).filter(|is| is.state == state && is.run >= run)
    })
    .await
}

async fn wake_anew(server: &Server, sandbox: &str) {
    server.client.pause_sandbox(sandbox, &FILESYSTEM).await.unwrap();
    server.client.resume_sandbox(sandbox).await.unwrap();
}

async fn kill(server: &Server, sandbox: &str) {
    let exec = get(server, sandbox).await.exec.unwrap();
    server.client.kill_exec(sandbox, &exec).await.unwrap();
}

async fn said(server: &Server, sandbox: &str) -> String {
    let page = server.client.service_log(sandbox, "start", OutputQuery::default()).await.unwrap();
    page.chunks.iter().map(|chunk| String::from_utf8(chunk.bytes().unwrap()).unwrap()).collect()
}

const READY: &str = "test -e /tmp/up";

#[tokio::test(flavor = "multi_thread")]
async fn the_start_command_is_a_service_that_begins_in_each_boot() {
    let mut server = Server::start();
    let start = "echo up; sleep 0.2; touch /tmp/up; exec sleep 1000";
    let sandbox = made(&server, start, json!({"ready": {"command": READY}})).await.id;
    let service = get(&server, &sandbox).await;
    assert_eq!((service.state, service.run, service.restart), (ServiceState::Running, 1, Restart::Never));
    assert_eq!(said(&server, &sandbox).await, "up\n");
    let listed = server.cli(&["service", "ls", &sandbox]).ok().stdout;
    assert!(listed.contains("start") && listed.contains("running"), "{listed}");
    server.kill();
    server.restart();
    let same = until(&server, &sandbox, ServiceState::Running, 1).await;
    assert_eq!((same.run, &same.exec), (1, &service.exec), "the same process goes on");

    // When it is killed it stays ended until there is another boot, and so does a service that ends by itself.
    kill(&server, &sandbox).await;
    let failed = until(&server, &sandbox, ServiceState::Failed, 1).await;
    assert_eq!(failed.run, 1);
    server.kill();
    server.restart();
    assert_eq!(until(&server, &sandbox, ServiceState::Failed, 1).await.run, 1);
    wake_anew(&server, &sandbox).await;
    assert_eq!(until(&server, &sandbox, ServiceState::Running, 2).await.run, 2);
    wake_anew(&server, &sandbox).await;
    assert_eq!(until(&server, &sandbox, ServiceState::Running, 3).await.run, 3);
    assert_eq!(said(&server, &sandbox).await, "up\nup\nup\n", "one log over all runs");
    // A service that the user stopped stays so, until the user restarts it.
    server.client.stop_service(&sandbox, "start").await.unwrap();
    wake_anew(&server, &sandbox).await;
    assert_eq!(get(&server, &sandbox).await.state, ServiceState::Stopped);
    server.client.restart_service(&sandbox, "start").await.unwrap();
    until(&server, &sandbox, ServiceState::Running, 4).await;
    // It is there as long as the sandbox.
    assert_eq!(code(server.client.delete_service(&sandbox, "start").await), Code::InvalidArgument);
    assert_eq!(get(&server, &sandbox).await.run, 4, "nothing was ended for that");

    // A fork has its own service; so has a sandbox that goes back to an earlier point.
    let fork = ForkSandbox { count: 1, ..ForkSandbox::default() };
    let child = server.client.fork_sandbox(&sandbox, &fork).await.unwrap().results.remove(0);
    assert_eq!(get(&server, &child.sandbox.unwrap().id).await.run, 1);
    let point = server.client.create_checkpoint(&sandbox, &atoll_api::CreateCheckpoint::default()).await;
    let to = point.unwrap().id;
    kill(&server, &sandbox).await;
    until(&server, &sandbox, ServiceState::Failed, 4).await;
    server.client.rollback_sandbox(&sandbox, Some(&to)).await.unwrap();
    assert_eq!(until(&server, &sandbox, ServiceState::Running, 5).await.run, 5);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_starts_it_again_in_the_same_boot() {
    let server = Server::start();
    let start = "touch /tmp/up; exec sleep 1000";
    let more = json!({"ready": {"command": READY}, "restart": "on_failure"});
    let sandbox = made(&server, start, more).await.id;
    kill(&server, &sandbox).await;
    assert_eq!(until(&server, &sandbox, ServiceState::Running, 2).await.run, 2);
    // A service that ends well stays ended, and begins with the next boot.
    let sandbox = made(&server, "touch /tmp/up; exit 0", json!({"restart": "on_failure"})).await.id;
    assert_eq!(until(&server, &sandbox, ServiceState::Exited, 1).await.run, 1);
    wake_anew(&server, &sandbox).await;
    assert_eq!(until(&server, &sandbox, ServiceState::Exited, 2).await.run, 2);
    // A service that never becomes ready is tried as the policy says, and its sandbox is not made.
    let more = json!({"ready": {"command": READY, "timeout_ms": 1000}, "restart": "always"});
    server.client.create_template(&recipe("echo no port left; exit 3", more)).await.unwrap();
    let before = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.len();
    let refused = server.cli(&["create", "--template", "app"]);
    assert!(refused.stderr.contains("ended with code 3"), "{refused:?}");
    assert!(refused.stderr.contains("no port left"), "{refused:?}");
    let after = server.client.list_sandboxes(&ListSandboxes::default()).await.unwrap().items.len();
    assert_eq!(after, before);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_puts_into_the_background_is_waited_for() {
    let server = Server::start();
    let start = "(sleep 0.5; touch /tmp/up; exec sleep 1000) > /dev/null 2>&1 & echo begun";
    let web =
        json!({"name": "web", "argv": ["sh", "-c", "cat /tmp/up; echo $? > /tmp/web; exec sleep 1000"]});
    let sandbox = made(&server, start, json!({"ready": {"command": READY}, "services": [web]})).await.id;
    let service = get(&server, &sandbox).await;
    assert_eq!((service.state, service.run), (ServiceState::Exited, 1));
    // The other services came after it.
    wait_until("web", async || {
        let seen = server.sh(&sandbox, "cat /tmp/web").await.stdout;
        (seen == "0\n").then_some(())
    })
    .await;
    wake_anew(&server, &sandbox).await;
    until(&server, &sandbox, ServiceState::Exited, 2).await;
    server.sh(&sandbox, READY).await;
    // It is not there in time.
    let more = json!({"ready": {"command": READY, "timeout_ms": 500}});
    server.client.create_template(&recipe("sleep 1000 > /dev/null 2>&1 &", more)).await.unwrap();
    let refused = server.client.create_sandbox(&of_app()).await;
    assert_eq!(code(refused), Code::StartFailed);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_pool_brings_it() {
    let mut server = Server::with(&["--pool-memory", "1GiB"]);
    let start = "echo up; touch /tmp/up; exec sleep 1000";
    let more = json!({"ready": {"command": READY}, "restart": "always", "pool": {"min": 1, "max": 1}});
    server.client.create_template(&recipe(start, more)).await.unwrap();
    wait_until("a member", async || {
        let pools = server.client.list_pools().await.unwrap().items;
        pools.iter().any(|pool| pool.ready == 1).then_some(())
    })
    .await;
    let sandbox = server.client.create_sandbox(&of_app()).await.unwrap().id;
    let service = get(&server, &sandbox).await;
    assert_eq!((service.state, service.run), (ServiceState::Running, 1));
    let execs = async |server: &Server| {
        let execs = server.client.list_execs(&sandbox, &ListExecs::default()).await.unwrap().items;
        execs.into_iter().map(|exec| exec.id).collect::<Vec<_>>()
    };
    assert_eq!(execs(&server).await, [service.exec.clone().unwrap()], "what ran before is the run");
    assert_eq!(said(&server, &sandbox).await, "up\n");
    server.kill();
    server.restart();
    let same = until(&server, &sandbox, ServiceState::Running, 1).await;
    assert_eq!((same.run, &same.exec), (1, &service.exec));
    assert_eq!(execs(&server).await.len(), 1);
    kill(&server, &sandbox).await;
    until(&server, &sandbox, ServiceState::Running, 2).await;
    assert_eq!(said(&server, &sandbox).await, "up\nup\n");
    server.client.delete_template("app", None).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_together_is_refused() {
    let server = Server::start();
    let own =
        CreateService { name: "start".to_owned(), shell: Some("x".to_owned()), ..CreateService::default() };
    let bad = CreateTemplate { services: vec![own.clone()], ..recipe("exec sleep 1000", json!({})) };
    assert_eq!(code(server.client.create_template(&bad).await), Code::InvalidArgument);
    let bad = CreateTemplate { start: None, ..recipe("x", json!({"restart": "always"})) };
    assert_eq!(code(server.client.create_template(&bad).await), Code::InvalidArgument);
    server.client.create_template(&recipe("exec sleep 1000", json!({}))).await.unwrap();
    let create = CreateSandbox { services: vec![own.clone()], ..of_app() };
    assert_eq!(code(server.client.create_sandbox(&create).await), Code::InvalidArgument);
    let sandbox = server.client.create_sandbox(&of_app()).await.unwrap().id;
    assert_eq!(code(server.client.create_service(&sandbox, &own).await), Code::NameTaken);
    // Where nothing is started the name is free.
    let plain = server.sandbox().await.id;
    server.client.create_service(&plain, &own).await.unwrap();
    server.client.delete_service(&plain, "start").await.unwrap();
    server.finish().await;
}

/// Changes a database to the form of an earlier version: the start command is an exec with a key of its boot, and no
/// service.
const AS_BEFORE: &str = "
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
service, = database.execute('SELECT id FROM services').fetchone()
boot, = database.execute('SELECT boot_id FROM sandboxes').fetchone()
changed = database.execute('UPDATE execs SET idempotency_key = ? WHERE idempotency_key = ?',
                           ('atoll-start-' + boot, f'server atoll-service-{service}-1'))
assert changed.rowcount == 1
database.execute('DELETE FROM services')
database.commit()
";

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_an_earlier_version_keep_what_runs() {
    let mut server = Server::start();
    let start = "echo up; touch /tmp/up; exec sleep 1000";
    let sandbox = made(&server, start, json!({"ready": {"command": READY}})).await.id;
    let exec = get(&server, &sandbox).await.exec;
    for _ in 0..2 {
        server.kill();
        let database = server.data().join("atoll.db");
        let done =
            std::process::Command::new("python3").args(["-c", AS_BEFORE]).arg(&database).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        server.restart();
        let same = until(&server, &sandbox, ServiceState::Running, 1).await;
        assert_eq!((same.run, &same.exec), (1, &exec), "the process that runs is its run");
        assert_eq!(said(&server, &sandbox).await, "up\n");
    }
    wake_anew(&server, &sandbox).await;
    until(&server, &sandbox, ServiceState::Running, 2).await;
    server.finish().await;
}
