//! Services with the real program on the real kernel.

use std::time::Duration;

use crate::common::code;
use atoll_api::{CreateSandbox, CreateService, PauseSandbox, Service, UpdateSandbox};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::OutputQuery;
use atoll_core::Code;
use atoll_core::build::CommandText;
use atoll_core::idle::OnIdle;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::service::{Restart, ServiceHealth, ServiceReady, ServiceState};
use serde_json::json;

const FILESYSTEM: PauseSandbox = PauseSandbox { mode: Some(PauseMode::Filesystem) };
const FROZEN: PauseSandbox = PauseSandbox { mode: Some(PauseMode::Frozen) };

/// Writes how often it was started; the line that follows decides what it does.
const COUNTED: &str = "n=$(cat /root/n 2>/dev/null); n=$((n+1)); echo $n > /root/n; echo \"run $n\"; ";

fn service(name: &str, line: &str) -> CreateService {
    CreateService {
        name: name.to_owned(),
        shell: Some(line.to_owned()),
        backoff_ms: Some(10),
        backoff_max_ms: Some(20),
        ..CreateService::default()
    }
}

async fn add(server: &Server, sandbox: &str, create: CreateService) -> Service {
    server.client.create_service(sandbox, &create).await.unwrap()
}

async fn get(server: &Server, sandbox: &str, name: &str) -> Service {
    server.client.get_service(sandbox, name, 0).await.unwrap()
}

/// Waits until a service is so in at least its `run`th run.
async fn until(server: &Server, sandbox: &str, name: &str, state: ServiceState, run: u64) -> Service {
    wait_until(&format!("{name} to be {state:?} in run {run}"), async || {
        Some(get(server, sandbox, name).await).filter(|is| is.state == state && is.run >= run)
    })
    .await
}

/// The log from an offset on, once it has so many bytes; each run is told with its text.
async fn log(server: &Server, sandbox: &str, name: &str, mut offset: u64, end: u64) -> Vec<(u64, String)> {
    let mut runs: Vec<(u64, String)> = Vec::new();
    while offset < end {
        let query = OutputQuery { offset, wait_ms: 30_000, max_bytes: Some(7), ..OutputQuery::default() };
        let page = server.client.service_log(sandbox, name, query).await.unwrap();
        assert_eq!(page.gap_until, None);
        for chunk in page.chunks {
            assert_eq!(chunk.offset, offset, "chunks are contiguous");
            let text = String::from_utf8(chunk.bytes().unwrap()).unwrap();
            offset += text.len() as u64;
            match runs.last_mut().filter(|(run, _)| *run == chunk.run) {
                Some((_, all)) => all.push_str(&text),
                None => runs.push((chunk.run, text)),
            }
        }
        assert_eq!(page.next_offset, offset);
    }
    runs
}

fn runs(texts: &[(u64, &str)]) -> Vec<(u64, String)> {
    texts.iter().map(|(run, text)| (*run, (*text).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_is_started_again_as_its_policy_says() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let flaky = format!("{COUNTED}[ $n -ge 3 ] && exec sleep 1000; exit 1");
    let made = add(&server, &sandbox, service("flaky", &flaky)).await;
    assert_eq!((made.restart, made.command), (Restart::Always, CommandText::Shell(flaky.clone())));
    let up = until(&server, &sandbox, "flaky", ServiceState::Running, 3).await;
    assert_eq!((up.run, up.last_exit.unwrap().code), (3, Some(1)));
    // One log over all runs, from any offset.
    let all = [(1, "run 1\n"), (2, "run 2\n"), (3, "run 3\n")];
    assert_eq!(log(&server, &sandbox, "flaky", 0, 18).await, runs(&all));
    assert_eq!(log(&server, &sandbox, "flaky", 9, 18).await, runs(&[(2, " 2\n"), (3, "run 3\n")]));
    let far = OutputQuery { offset: 19, ..OutputQuery::default() };
    assert_eq!(code(server.client.service_log(&sandbox, "flaky", far).await), Code::OffsetOutOfRange);

    let given_up = CreateService { give_up_after: Some(3), ..service("given-up", "echo x; exit 7") };
    add(&server, &sandbox, given_up).await;
    let failed = until(&server, &sandbox, "given-up", ServiceState::Failed, 3).await;
    assert_eq!((failed.run, failed.last_exit.unwrap().code), (3, Some(7)));
    let why = failed.reason.unwrap();
    assert!(why.contains("code 7") && why.contains("3 early ends"), "{why}");
    // A user's restart tries it anew.
    server.client.restart_service(&sandbox, "given-up").await.unwrap();
    until(&server, &sandbox, "given-up", ServiceState::Failed, 6).await;

    let once = |restart| CreateService { restart: Some(restart), ..service("once", "exit 0") };
    add(&server, &sandbox, CreateService { name: "ends".into(), ..once(Restart::OnFailure) }).await;
    let ended = until(&server, &sandbox, "ends", ServiceState::Exited, 1).await;
    assert_eq!((ended.run, ended.reason.as_deref()), (1, Some("it ended with code 0")));
    let never = CreateService { shell: Some("kill -9 $$".into()), ..once(Restart::Never) };
    add(&server, &sandbox, CreateService { name: "dies".into(), ..never }).await;
    assert_eq!(until(&server, &sandbox, "dies", ServiceState::Failed, 1).await.run, 1);
    let lost = service("lost", "x");
    let lost =
        CreateService { shell: None, argv: Some(vec!["/no/such".into()]), give_up_after: Some(2), ..lost };
    add(&server, &sandbox, lost).await;
    let lost = until(&server, &sandbox, "lost", ServiceState::Failed, 2).await;
    assert_eq!(lost.last_exit.unwrap().code, Some(127));
    let nowhere =
        CreateService { cwd: Some("/no/such".into()), give_up_after: Some(2), ..service("nowhere", "x") };
    add(&server, &sandbox, nowhere).await;
    until(&server, &sandbox, "nowhere", ServiceState::Failed, 2).await;

    let names = server.client.list_services(&sandbox).await.unwrap().items;
    let names: Vec<_> = names.into_iter().map(|service| service.name).collect();
    assert_eq!(names, ["dies", "ends", "flaky", "given-up", "lost", "nowhere"]);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_and_remove_end_what_runs() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let polite = "exec 2>/dev/null; trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    add(&server, &sandbox, service("polite", polite)).await;
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    add(&server, &sandbox, CreateService { stop_timeout_ms: Some(50), ..service("stubborn", stubborn) })
        .await;
    for name in ["polite", "stubborn"] {
        log(&server, &sandbox, name, 0, 3).await;
        let stopped = server.client.stop_service(&sandbox, name).await.unwrap();
        assert_eq!((stopped.state, stopped.run), (ServiceState::Stopped, 1), "{name}");
    }
    assert_eq!(host::processes(&sandbox).len(), 1, "the agent alone");
    assert_eq!(log(&server, &sandbox, "polite", 0, 7).await, runs(&[(1, "up\nbye\n")]));
    let again = server.client.restart_service(&sandbox, "polite").await.unwrap();
    assert!(again.state != ServiceState::Stopped, "{again:?}");
    assert_eq!(log(&server, &sandbox, "polite", 7, 10).await, runs(&[(2, "up\n")]));
    // While it runs, too.
    server.client.restart_service(&sandbox, "polite").await.unwrap();
    assert_eq!(log(&server, &sandbox, "polite", 10, 17).await, runs(&[(2, "bye\n"), (3, "up\n")]));

    let taken = service("polite", "true");
    assert_eq!(code(server.client.create_service(&sandbox, &taken).await), Code::NameTaken);
    for bad in [service("Bad", "true"), service("", "true"), CreateService { backoff_ms: Some(1), ..taken }] {
        assert_eq!(code(server.client.create_service(&sandbox, &bad).await), Code::InvalidArgument);
    }
    for name in ["polite", "stubborn"] {
        server.client.delete_service(&sandbox, name).await.unwrap();
        assert_eq!(code(server.client.get_service(&sandbox, name, 0).await), Code::ServiceNotFound);
        assert_eq!(code(server.client.delete_service(&sandbox, name).await), Code::ServiceNotFound);
    }
    assert_eq!(host::processes(&sandbox).len(), 1, "the agent alone");
    // With its sandbox everything of a service goes.
    add(&server, &sandbox, service("last", "exec sleep 1000")).await;
    until(&server, &sandbox, "last", ServiceState::Running, 1).await;
    server.client.delete_sandbox(&sandbox).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_survive_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let counted = format!("{COUNTED}exec sleep 1000");
    add(&server, &sandbox, service("web", &counted)).await;
    add(&server, &sandbox, service("off", "exec sleep 1000")).await;
    server.client.stop_service(&sandbox, "off").await.unwrap();
    let before = until(&server, &sandbox, "web", ServiceState::Running, 1).await;
    log(&server, &sandbox, "web", 0, 6).await;
    server.kill();
    server.restart();
    let after = until(&server, &sandbox, "web", ServiceState::Running, 1).await;
    assert_eq!((after.run, &after.exec), (1, &before.exec), "the same run goes on");
    assert_eq!(get(&server, &sandbox, "off").await.state, ServiceState::Stopped);
    // A service that ends while the server is away is started again, and none of its output is lost.
    server.kill();
    let is_service = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"))
    };
    let pids: Vec<i32> = host::processes(&sandbox).into_iter().filter(is_service).collect();
    assert_eq!(pids.len(), 1, "one run at a time");
    host::kill(pids[0]);
    server.restart();
    let anew = until(&server, &sandbox, "web", ServiceState::Running, 2).await;
    assert_eq!((anew.run, anew.last_exit.unwrap().code), (2, Some(137)));
    assert_eq!(log(&server, &sandbox, "web", 0, 12).await, runs(&[(1, "run 1\n"), (2, "run 2\n")]));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_boot_starts_services() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    add(&server, &sandbox, service("web", &format!("{COUNTED}exec sleep 1000"))).await;
    let once = CreateService { restart: Some(Restart::Never), ..service("once", "echo done") };
    add(&server, &sandbox, once).await;
    until(&server, &sandbox, "web", ServiceState::Running, 1).await;
    until(&server, &sandbox, "once", ServiceState::Exited, 1).await;
    log(&server, &sandbox, "web", 0, 6).await;
    // Frozen, it goes on as if nothing had been.
    server.client.pause_sandbox(&sandbox, &FROZEN).await.unwrap();
    server.client.resume_sandbox(&sandbox).await.unwrap();
    assert_eq!(get(&server, &sandbox, "web").await.run, 1);
    // On disk, it is started by the wake; also when the server was another one meanwhile.
    for run in 2..=3 {
        server.client.pause_sandbox(&sandbox, &FILESYSTEM).await.unwrap();
        if run == 3 {
            server.kill();
            server.restart();
        }
        let waits = until(&server, &sandbox, "web", ServiceState::Waiting, 1).await;
        assert_eq!(waits.run, run - 1);
        let state = server.client.get_sandbox(&sandbox).await.unwrap().state;
        assert_eq!(state, SandboxState::Paused, "a service wakes nobody");
        assert_eq!(server.sh(&sandbox, "echo awake").await.stdout, "awake\n");
        until(&server, &sandbox, "web", ServiceState::Running, run).await;
        // It runs, and may not have said so yet.
        log(&server, &sandbox, "web", 0, 6 * run).await;
    }
    let all = [(1, "run 1\n"), (2, "run 2\n"), (3, "run 3\n")];
    assert_eq!(log(&server, &sandbox, "web", 0, 18).await, runs(&all));
    assert_eq!(get(&server, &sandbox, "once").await.run, 1, "it had done its work");
    // A rollback begins it anew, too.
    server.client.create_checkpoint(&sandbox, &atoll_api::CreateCheckpoint::default()).await.unwrap();
    server.cli(&["rollback", &sandbox, "1"]).ok();
    until(&server, &sandbox, "web", ServiceState::Running, 4).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_tell_ready_and_healthy() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let ready = |command: Option<&str>, port, path: Option<&str>, timeout_ms| {
        let command = command.map(|line| CommandText::Shell(line.to_owned()));
        let path = path.map(str::to_owned);
        Some(ServiceReady { command, port, path, interval_ms: Some(10), timeout_ms })
    };
    // Ready by a port on which any process listens, and by HTTP: a service that answers 404 is not ready.
    let serve = "mkdir -p /root/www; cd /root/www; exec python3 -m http.server 3000 --bind 127.0.0.1";
    let web = CreateService { ready: ready(None, Some(3000), Some("/up"), None), ..service("web", serve) };
    add(&server, &sandbox, web).await;
    let listens =
        CreateService { ready: ready(None, Some(3000), None, None), ..service("port", "exec sleep 1000") };
    add(&server, &sandbox, listens).await;
    until(&server, &sandbox, "port", ServiceState::Running, 1).await;
    assert_eq!(get(&server, &sandbox, "web").await.state, ServiceState::Starting);
    assert_eq!(server.sh(&sandbox, "echo yes > /root/www/up").await.code, Some(0));
    let waited = server.client.get_service(&sandbox, "web", 60_000).await.unwrap();
    assert_eq!((waited.state, waited.run), (ServiceState::Running, 1));
    // By a command, as the service's own user, in its directory, with its variables.
    let looks = "test \"$(id -un) $(pwd) $A\" = 'nobody /tmp 1'";
    let command = CreateService {
        ready: ready(Some(looks), None, None, None),
        user: Some("nobody".into()),
        cwd: Some("/tmp".into()),
        env: [("A".to_owned(), "1".to_owned())].into(),
        ..service("command", "exec sleep 1000")
    };
    add(&server, &sandbox, command).await;
    until(&server, &sandbox, "command", ServiceState::Running, 1).await;
    // A service that never becomes ready has failed.
    let late = CreateService {
        ready: ready(Some("false"), None, None, Some(50)),
        restart: Some(Restart::Never),
        stop_timeout_ms: Some(50),
        ..service("late", "exec sleep 1000")
    };
    add(&server, &sandbox, late).await;
    let late = until(&server, &sandbox, "late", ServiceState::Failed, 1).await;
    assert_eq!(late.reason.as_deref(), Some("it was not ready within 50 ms"));
    // A service whose health check fails is killed and started again.
    let health = ServiceHealth {
        command: Some(CommandText::Shell("test ! -e /root/ill".into())),
        port: None,
        path: None,
        interval_ms: Some(10),
        timeout_ms: None,
        failures: Some(2),
    };
    let ill = format!("rm -f /root/ill; {COUNTED}exec sleep 1000");
    add(&server, &sandbox, CreateService { health: Some(health), ..service("ill", &ill) }).await;
    until(&server, &sandbox, "ill", ServiceState::Running, 1).await;
    log(&server, &sandbox, "ill", 0, 6).await;
    assert_eq!(server.sh(&sandbox, "touch /root/ill").await.code, Some(0));
    until(&server, &sandbox, "ill", ServiceState::Running, 2).await;
    assert_eq!(log(&server, &sandbox, "ill", 0, 12).await, runs(&[(1, "run 1\n"), (2, "run 2\n")]));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_their_probes_are_no_use_of_a_sandbox() {
    let server = Server::start();
    let create = CreateSandbox {
        idle_timeout_ms: Some(300),
        on_idle: Some(OnIdle::Freeze),
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let health = ServiceHealth {
        command: Some(CommandText::Shell("true".into())),
        port: None,
        path: None,
        interval_ms: Some(10),
        timeout_ms: Some(200),
        failures: Some(1),
    };
    let counted = format!("{COUNTED}exec sleep 1000");
    add(&server, &sandbox, CreateService { health: Some(health), ..service("web", &counted) }).await;
    let state = async || server.client.get_sandbox(&sandbox).await.unwrap().state;
    let paused = async || (state().await == SandboxState::Paused).then_some(());
    wait_until("it to fall asleep", paused).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(state().await, SandboxState::Paused, "probes wake nobody");
    let update = UpdateSandbox { idle_timeout_ms: Some(None), ..UpdateSandbox::default() };
    server.client.update_sandbox(&sandbox, &update).await.unwrap();
    server.client.resume_sandbox(&sandbox).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // To stand still is no illness.
    let web = get(&server, &sandbox, "web").await;
    assert_eq!((web.state, web.run), (ServiceState::Running, 1));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_services() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let add = ["service", "add", "--wait", "--ready-command", "test -e /root/up", "box", "web", "--"];
    let line = "echo up; touch /root/up; exec sleep 1000";
    assert_eq!(server.cli(&[&add[..], &["sh", "-c", line]].concat()).ok().stdout, "web\n");
    let listed = server.cli(&["service", "ls", "box"]).ok().stdout;
    assert!(listed.contains("web") && listed.contains("running"), "{listed}");
    assert_eq!(server.cli(&["service", "logs", "box", "web"]).ok().stdout, "up\n");
    server.cli(&["service", "restart", "box", "web"]).ok();
    until(&server, "box", "web", ServiceState::Running, 2).await;
    log(&server, "box", "web", 0, 6).await;
    assert_eq!(server.cli(&["service", "logs", "--offset", "3", "box", "web"]).ok().stdout, "up\n");
    server.cli(&["service", "stop", "box", "web"]).ok();
    assert_eq!(server.cli(&["service", "show", "box", "web"]).ok().json()["state"], json!("stopped"));
    let add = [
        "service",
        "add",
        "--wait",
        "--ready-command",
        "false",
        "--restart",
        "never",
        "box",
        "bad",
        "--",
        "sh",
        "-c",
        "exit 9",
    ];
    let failed = server.cli(&add);
    assert!(failed.code == Some(125) && failed.stderr.contains("code 9"), "{failed:?}");
    server.cli(&["service", "rm", "box", "web", "bad"]).ok();
    assert_eq!(server.cli(&["service", "ls", "--json", "box"]).ok().json()["items"], json!([]));
    server.finish().await;
}
