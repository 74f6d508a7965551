//! The journal's events about people at terminals and about files.

use atoll_api::{CreateExec, CreateSandbox};
use atoll_blackbox::{Server, wait_until};
use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::spec::TtySize;
use serde_json::{Value, json};

use crate::common::code;

/// All events of a kind.
pub(crate) fn events(server: &Server, sandbox: &str, kind: &str) -> Vec<Value> {
    let told = server.cli(&["trace", sandbox, "--json", "--kind", kind]).ok().stdout;
    told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_says_who_typed_and_not_what() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let shell = CreateExec {
        argv: Some(vec!["cat".to_owned()]),
        tty: Some(TtySize { cols: 80, rows: 24 }),
        ..CreateExec::default()
    };
    let exec = server.client.create_exec(&sandbox, &shell).await.unwrap().exec.id;
    for piece in ["secret-word", "\n", "\u{4}"] {
        let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/stdin");
        let answer = server.send(server.request("POST", &path).body(piece.to_owned())).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    wait_until("the shell has ended", async || {
        let exec = server.client.get_exec(&sandbox, &exec, 30_000).await.unwrap();
        (exec.state == ExecState::Exited).then_some(())
    })
    .await;
    let bytes = |typed: &[Value]| typed.iter().map(|event| event["bytes"].as_u64().unwrap()).sum::<u64>();
    // The last is told beside the shell's end.
    let typed = wait_until("what was typed is told of", async || {
        let typed = events(&server, &sandbox, "terminal_input");
        (bytes(&typed) >= 13).then_some(typed)
    })
    .await;
    assert_eq!(bytes(&typed), 13, "{typed:?}");
    assert!(typed.iter().all(|event| event["by"].is_string() && event["exec"] == exec.as_str()), "{typed:?}");
    assert!(!server.cli(&["trace", &sandbox, "--json"]).ok().stdout.contains("secret-word"));
    server.finish().await;
}

fn watched(paths: &[&str]) -> CreateSandbox {
    serde_json::from_value(json!({"trace_files": {"paths": paths, "digests": true}})).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_files_are_told_where_that_was_asked_for() {
    let mut server = Server::start();
    let sandbox = server.client.create_sandbox(&watched(&["/work", "/srv"])).await.unwrap().id;
    let begun = async |count: usize| {
        wait_until("files are watched", async || {
            let all = events(&server, &sandbox, "recorder");
            let begun = all.iter().filter(|event| event["recorder"] == "watches_files");
            (begun.count() == count).then_some(())
        })
        .await;
    };
    begun(1).await;
    // A directory that is not there yet is watched when it comes.
    server.sh(&sandbox, "mkdir /work").await;
    begun(2).await;
    let work =
        "cd /work; printf one > a; mkdir -p d/e; printf two > d/e/b; mv a c; rm c; printf x > /tmp/other";
    server.sh(&sandbox, work).await;
    let told = wait_until("all is told", async || {
        let told = events(&server, &sandbox, "file");
        told.iter().any(|event| event["path"] == "/work/d/e/b" && event["digest"].is_string()).then_some(told)
    })
    .await;
    assert!(told.iter().all(|event| event["witness"] == "guest"), "{told:#?}");
    let has = |action: &str, path: &str| {
        told.iter().find(|event| event["action"] == action && event["path"] == path)
    };
    assert_eq!(has("renamed", "/work/a").unwrap()["to"], "/work/c", "{told:#?}");
    for (action, path) in [("created", "/work/a"), ("deleted", "/work/c"), ("created", "/work/d/e/b")] {
        assert!(has(action, path).is_some(), "{action} {path}: {told:#?}");
    }
    let written = has("written", "/work/d/e/b").unwrap();
    assert_eq!(written["digest"], format!("blake3:{}", blake3::hash(b"two").to_hex()));
    assert!(!told.iter().any(|event| event["path"].as_str().unwrap().starts_with("/tmp")), "{told:#?}");
    // A file that was written before its directory was moved here is told all the same.
    server.sh(&sandbox, "mkdir -p /tmp/x/y; printf three > /tmp/x/y/f; mv /tmp/x /work/x").await;
    wait_until("what comes with its directory is told", async || {
        let told = events(&server, &sandbox, "file");
        let written = |event: &Value| event["path"] == "/work/x/y/f" && event["digest"].is_string();
        told.iter().any(written).then_some(())
    })
    .await;
    // The next server says from when on it tells.
    server.kill();
    server.restart();
    wait_until("files are watched again", async || {
        let all = events(&server, &sandbox, "recorder");
        (all.iter().filter(|event| event["recorder"] == "watches_files").count() == 4).then_some(())
    })
    .await;
    server.sh(&sandbox, "printf three > /srv/f").await;
    wait_until("it goes on", async || {
        events(&server, &sandbox, "file").iter().any(|event| event["path"] == "/srv/f").then_some(())
    })
    .await;
    assert_eq!(code(server.client.create_sandbox(&watched(&["work"])).await), Code::PathInvalid);
    assert_eq!(code(server.client.create_sandbox(&watched(&[])).await), Code::InvalidArgument);
    server.client.delete_sandbox(&sandbox).await.unwrap();
    server.finish().await;
    let server = Server::with(&["--trace", "off"]);
    assert_eq!(code(server.client.create_sandbox(&watched(&["/work"])).await), Code::Unenforceable);
    server.finish().await;
}
