//! Execs over plain requests.

use atoll_api::{ExecWithOutput, OutputPage};
use atoll_core::exec::{ExecState, ExitReason, OutputStream};
use reqwest::Method;
use serde_json::json;

use crate::support::{Harness, path_of, read};

fn text(done: &ExecWithOutput) -> String {
    let chunks = done.output.as_deref().unwrap_or_default();
    chunks.iter().map(|chunk| String::from_utf8(chunk.bytes().unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn one_call_runs_a_command_and_brings_its_output() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let done = harness.exec(&sandbox, "echo hello", json!({ "wait_ms": 60_000 })).await;
    assert_eq!((text(&done).as_str(), done.exec.exit.as_ref().unwrap().code), ("hello\n", Some(0)));
    let done = harness.exec(&sandbox, "err oops", json!({ "wait_ms": 60_000 })).await;
    assert_eq!(done.output.unwrap()[0].stream, OutputStream::Stderr);
    let done = harness.exec(&sandbox, "nonsense", json!({ "wait_ms": 60_000 })).await;
    assert_eq!(done.exec.exit.unwrap().code, Some(127));
    let running = harness.exec(&sandbox, "sleep 1000", json!({ "wait_ms": 1 })).await;
    assert_eq!((running.exec.state, running.output), (ExecState::Running, None));
    // More than is sent along: it is there to be read.
    let large = harness.exec(&sandbox, "seq 300000", json!({ "wait_ms": 60_000 })).await;
    assert!(large.exec.state.is_final() && large.output.is_none());
    assert!(large.exec.output_bytes > 1 << 20);
}

#[tokio::test]
async fn a_repeated_request_does_not_run_twice() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let key = json!({ "idempotency_key": "k" });
    let first = harness.exec(&sandbox, "echo once", key.clone()).await;
    let again = harness.exec(&sandbox, "echo once", key).await;
    assert_eq!(first.exec.id, again.exec.id);
    let other = json!({ "argv": ["echo", "twice"], "idempotency_key": "k" });
    let answer = harness.post(&format!("/v1/sandboxes/{sandbox}/execs"), other).await;
    assert_eq!((answer.status, answer.code()), (409, "idempotency_mismatch"));
}

#[tokio::test]
async fn long_polls_wait_for_output_and_then_for_the_end() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let path = path_of(&exec);
    let none: OutputPage = read(harness.get(&format!("{path}/output")).await.body);
    assert_eq!((none.chunks.len(), none.next_offset, none.exit), (0, 0, None));

    let poll = format!("{path}/output?wait_ms=60000");
    let (page, written) = tokio::join!(
        harness.get(&poll),
        harness.send(harness.request(Method::POST, &format!("{path}/stdin")).body("abc")),
    );
    assert_eq!((written.status, &written.body["bytes"]), (200, &json!(3)));
    let page: OutputPage = read(page.body);
    assert_eq!((page.chunks[0].data.as_str(), page.next_offset), ("abc", 3));

    let poll = format!("{path}/output?wait_ms=60000&offset=3");
    let (page, closed) = tokio::join!(
        harness.get(&poll),
        harness.send(harness.request(Method::POST, &format!("{path}/stdin?close=true"))),
    );
    assert_eq!(closed.status, 200);
    let page: OutputPage = read(page.body);
    assert_eq!((page.chunks.len(), page.state, page.exit.unwrap().code), (0, ExecState::Exited, Some(0)));
    let beyond = harness.get(&format!("{path}/output?offset=4")).await;
    assert_eq!((beyond.status, beyond.code()), (416, "offset_out_of_range"));
    let late = harness.send(harness.request(Method::POST, &format!("{path}/stdin")).body("x")).await;
    assert_eq!((late.status, late.code()), (409, "exec_ended"));
}

#[tokio::test]
async fn small_pages_add_up() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "seq 20000", json!({ "wait_ms": 60_000 })).await.exec;
    let want: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    let (mut offset, mut got) = (0, Vec::new());
    loop {
        let poll = format!("{}/output?max_bytes=5000&offset={offset}", path_of(&exec));
        let page: OutputPage = read(harness.get(&poll).await.body);
        for chunk in &page.chunks {
            assert_eq!(chunk.offset, got.len() as u64);
            got.extend(chunk.bytes().unwrap());
        }
        assert!(got.len() as u64 - offset <= 5000);
        if page.chunks.is_empty() {
            assert!(page.exit.is_some());
            break;
        }
        offset = page.next_offset;
    }
    assert!(got == want.as_bytes());
}

#[tokio::test]
async fn signals_kills_and_sizes() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "sleep 1000", json!({})).await.exec;
    let path = path_of(&exec);
    let odd = harness.post(&format!("{path}/signal"), json!({ "signal": "WHAT" })).await;
    assert_eq!((odd.status, odd.code()), (400, "invalid_argument"));
    let resize = harness.post(&format!("{path}/resize"), json!({ "cols": 80, "rows": 24 })).await;
    assert_eq!((resize.status, resize.code()), (409, "not_a_terminal"));
    let stdin = harness.send(harness.request(Method::POST, &format!("{path}/stdin")).body("x")).await;
    assert_eq!((stdin.status, stdin.code()), (409, "stdin_closed"));
    assert_eq!(harness.post(&format!("{path}/signal"), json!({ "signal": "TERM" })).await.status, 204);
    assert_eq!(harness.ended(&exec).await.exit.unwrap().signal, Some(15));
    assert_eq!(
        harness.post(&format!("{path}/signal"), json!({ "signal": "TERM" })).await.code(),
        "exec_ended"
    );

    let exec = harness.exec(&sandbox, "sleep 1000", json!({ "tty": { "cols": 80, "rows": 24 } })).await.exec;
    let path = path_of(&exec);
    assert_eq!(harness.post(&format!("{path}/resize"), json!({ "cols": 99, "rows": 9 })).await.status, 204);
    assert_eq!(harness.delete(&path).await.status, 204);
    assert_eq!(harness.ended(&exec).await.exit.unwrap().reason, ExitReason::Killed);
    assert_eq!(harness.delete(&path).await.status, 204, "killing is repeatable");

    let list = harness.get(&format!("/v1/sandboxes/{sandbox}/execs?state=exited&limit=1")).await;
    assert_eq!(list.body["items"][0]["id"], json!(exec.id), "newest first");
    assert!(list.body["next_cursor"].is_string());
}
