//! Usage, and budgets.

use crate::common::{code, shell};
use atoll_api::{CreateSandbox, UpdateSandbox, Usage, UsageGroup};
use atoll_blackbox::{Server, wait_until};
use atoll_client::GetUsage;
use atoll_core::Code;
use atoll_core::exec::ExitReason;
use atoll_core::sandbox::SandboxState;
use atoll_core::usage::{Budget, OnExhausted};

async fn used(server: &Server, sandbox: &str) -> Usage {
    let get = GetUsage { sandbox: Some(sandbox.to_owned()), ..GetUsage::default() };
    let list = server.client.usage(&get).await.unwrap();
    assert_eq!(list.items.len(), 1, "{list:?}");
    assert_eq!(list.items[0].sandbox.as_deref(), Some(sandbox));
    list.items[0].used
}

const BUSY: &str = "timeout 1 sh -c 'while :; do :; done'";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_used_is_known_and_outlives_everything() {
    let mut server = Server::start();
    let id = server.sandbox().await.id;
    let exec = server.shell(&id, BUSY).await;
    let ended = server.client.get_exec(&id, &exec, 60_000).await.unwrap();
    assert!(ended.cpu_us > 0, "{ended:?}");
    let first = used(&server, &id).await;
    assert!(first.cpu_us >= ended.cpu_us / 2 && first.exec_cpu_us == ended.cpu_us, "{first:?} {ended:?}");
    assert!(first.memory_byte_seconds > 0 && first.running_ms > 0 && first.requests > 0, "{first:?}");
    assert_eq!(first.execs, 1);
    // Usage since the last record is not lost with the server.
    server.shell(&id, BUSY).await;
    server.kill();
    server.restart();
    server.sh(&id, BUSY).await;
    server.client.delete_sandbox(&id).await.unwrap();
    let last = used(&server, &id).await;
    assert!(last.cpu_us > first.cpu_us && last.running_ms > first.running_ms, "{first:?} {last:?}");
    assert_eq!(last.execs, 3);
    let total = GetUsage { group: UsageGroup::Total, ..GetUsage::default() };
    assert_eq!(server.client.usage(&total).await.unwrap().items[0].used, last);
    let keys = GetUsage { group: UsageGroup::Key, ..GetUsage::default() };
    let keys = server.client.usage(&keys).await.unwrap();
    assert!(keys.items.len() == 1 && keys.items[0].key.is_some(), "{keys:?}");
    let later = GetUsage { from_ms: Some(u64::MAX / 4), ..GetUsage::default() };
    assert!(server.client.usage(&later).await.unwrap().items.is_empty());
    let table = server.cli(&["usage"]).ok().stdout;
    assert!(table.contains(&id) && table.contains("GiBh"), "{table}");
    let json = server.cli(&["usage", "--by", "total", "--json"]).ok().json();
    assert_eq!(json["items"][0]["cpu_us"], last.cpu_us);
    let text = server.send(server.request("GET", "/metrics")).await.text();
    assert!(text.contains("atoll_used_cpu_seconds_total"), "{text}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_stops_a_runaway_in_the_middle() {
    let server = Server::start();
    let budget = Budget { cpu_ms: Some(700), ..Budget::default() };
    let create = CreateSandbox { budget: Some(budget), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    let exec = server.shell(&id, "echo begun; while :; do :; done").await;
    let ended = server.client.get_exec(&id, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, ExitReason::BudgetExhausted);
    assert_eq!(crate::common::outputs(&server, &id, &exec).await.0, b"begun\n");
    let sandbox = wait_until("it to be paused", async || {
        let now = server.client.get_sandbox(&id).await.unwrap();
        (now.state == SandboxState::Paused).then_some(now)
    })
    .await;
    assert!(sandbox.reason.as_ref().unwrap().contains("budget.cpu_ms"), "{sandbox:?}");
    assert_eq!(code(server.client.create_exec(&id, &shell("true")).await), Code::BudgetExhausted);
    assert_eq!(code(server.client.resume_sandbox(&id).await), Code::BudgetExhausted);
    let text = server.cli(&["exec", &id, "--", "true"]);
    assert!(text.stderr.contains("raise the budget"), "{text:?}");
    let raised = UpdateSandbox {
        budget: Some(Budget { cpu_ms: Some(3_600_000), ..budget }),
        ..UpdateSandbox::default()
    };
    server.client.update_sandbox(&id, &raised).await.unwrap();
    assert_eq!(server.sh(&id, "echo on").await.stdout, "on\n");
    assert_eq!(server.client.get_sandbox(&id).await.unwrap().reason, None);
    // Time, by the command line, and deletion.
    let create = ["create", "--budget-running", "1s", "--budget-delete"];
    let short = server.cli(&create).ok().stdout.trim().to_owned();
    wait_until("it to be deleted", async || server.client.get_sandbox(&short).await.is_err().then_some(()))
        .await;
    let used = used(&server, &short).await;
    assert!(used.running_ms >= 1000, "{used:?}");
    let nothing = Budget { cpu_ms: Some(0), on_exhausted: OnExhausted::Pause, ..Budget::default() };
    let create = CreateSandbox { budget: Some(nothing), ..CreateSandbox::default() };
    assert_eq!(code(server.client.create_sandbox(&create).await), Code::InvalidArgument);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_what_all_use_by_one_request() {
    let server = Server::start();
    let label = |value: &str| [("kind".to_owned(), value.to_owned())].into_iter().collect();
    let make = async |name: &str, labels| {
        let create = CreateSandbox { name: Some(name.to_owned()), labels, ..CreateSandbox::default() };
        server.client.create_sandbox(&create).await.unwrap().id
    };
    let (busy, idle) = (make("busy", label("a")).await, make("idle", label("b")).await);
    server.shell(&busy, "while :; do :; done").await;
    let looked = server.cli(&["top", "--once", "--json"]).ok().json();
    let items = looked["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{looked}");
    // The busiest first.
    assert_eq!((&items[0]["id"], &items[1]["id"]), (&busy.as_str().into(), &idle.as_str().into()));
    assert!(items[0]["cpu_percent"].as_f64().unwrap() > 0.0 && items[0]["execs"] == 1, "{looked}");
    assert!(items[1]["memory_bytes"].as_u64().unwrap() > 0 && items[1]["execs"] == 0, "{looked}");
    let table = server.cli(&["top", "--once", "--sort", "name"]).ok().stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("SANDBOX") && lines[1].starts_with("busy") && lines[2].starts_with("idle"),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no colours where there is no terminal: {table:?}");
    let one = server.cli(&["top", "--once", "--json", "--label", "kind=b"]).ok().json();
    assert_eq!(one["items"].as_array().unwrap().len(), 1, "{one}");
    // Looking wakes nothing, and one that sleeps on disk is there, too.
    let frozen = atoll_api::PauseSandbox { mode: Some(atoll_core::sandbox::PauseMode::Frozen) };
    server.client.pause_sandbox(&idle, &frozen).await.unwrap();
    let paused = server.cli(&["top", "--once"]).ok().stdout;
    assert!(paused.contains("paused") || paused.contains("frozen"), "{paused}");
    // A sandbox that another key may not see is not shown to it here either.
    let private =
        CreateSandbox { visibility: Some(atoll_api::Visibility::Private), ..CreateSandbox::default() };
    let private = server.client.create_sandbox(&private).await.unwrap().id;
    let other = atoll_api::CreateKey {
        name: "other".to_owned(),
        scope: atoll_api::Scope::Read,
        ttl_ms: None,
        format: atoll_api::KeyFormat::Atoll,
        project: None,
    };
    let key = server.client.create_key(&other).await.unwrap().secret;
    let answer =
        server.bare("GET", "/v1/live").bearer_auth(key.reveal()).send().await.unwrap().text().await.unwrap();
    assert!(answer.contains(&busy) && !answer.contains(&private), "{answer}");
    server.finish().await;
}
