//! Stopping: streams end, requests under way finish, sandboxes stay.

use atoll_api::AttachServerMessage;
use atoll_core::key::Scope;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::attach::{Got, attach, next};
use crate::streams::events;
use crate::support::{DEADLINE, Harness, path_of};

#[tokio::test]
async fn streams_end_with_a_word_and_polls_with_what_they_have() {
    let mut harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let path = path_of(&exec);
    harness.send(harness.request(Method::POST, &format!("{path}/stdin")).body("x")).await;
    let mut socket = attach(&harness, &exec, 0, Scope::Exec).await;
    assert!(matches!(next(&mut socket).await, Got::Output { offset: 0, .. }));

    let sse = tokio::spawn(events(harness.request(Method::GET, &format!("{path}/events")), |_| false));
    let poll = harness.request(Method::GET, &format!("{path}/output?offset=1&wait_ms=60000"));
    let poll =
        tokio::spawn(async move { poll.send().await.unwrap().json::<serde_json::Value>().await.unwrap() });
    // Under way for certain when the server counts them.
    crate::support::eventually("the streams", async || {
        let text = harness.get("/metrics").await.body;
        let text = text.as_str().unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("atoll_http_connections "));
        line.and_then(|count| count.parse::<u32>().ok()).filter(|count| *count >= 4)
    })
    .await;
    harness.begin_stop();

    match next(&mut socket).await {
        Got::Said(AttachServerMessage::Error { error }) => assert_eq!(error.code.as_str(), "shutting_down"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(next(&mut socket).await, Got::Closed(Some(CloseCode::Away))));
    let events = sse.await.unwrap();
    assert_eq!(events.last().unwrap().data["code"], json!("shutting_down"));
    let page = poll.await.unwrap();
    assert_eq!((&page["chunks"], &page["next_offset"]), (&json!([]), &json!(1)));

    let engine = harness.engine.clone();
    tokio::time::timeout(DEADLINE, harness.stop()).await.unwrap().unwrap();
    assert_eq!(engine.stats().execs_running, 1, "the exec goes on");
}

#[tokio::test]
async fn a_request_under_way_finishes_and_no_other_begins() {
    let mut harness = Harness::start().await;
    // A request whose body is still to come when the server stops.
    let mut slow = TcpStream::connect(&harness.address).await.unwrap();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n",
        harness.key(Scope::Admin)
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body: the handler runs.
    let mut answer = vec![0; 25];
    slow.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 100 "));
    harness.begin_stop();
    crate::support::eventually("no new connections", async || {
        TcpStream::connect(&harness.address).await.is_err().then_some(())
    })
    .await;
    slow.write_all(b"{}").await.unwrap();
    let mut rest = String::new();
    slow.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 201 "), "{rest}");
    assert!(rest.to_lowercase().contains("connection: close"), "{rest}");
    tokio::time::timeout(DEADLINE, harness.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_can_store_nothing_is_not_ready() {
    let harness = Harness::start().await;
    let status = async |path: &str| {
        let answer = harness.bare(Method::GET, path).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<serde_json::Value>().await.unwrap()["status"].as_str().unwrap().to_owned())
    };
    assert_eq!(status("/readyz").await, (200, "ok".to_owned()));
    // As when the thread that writes has ended.
    harness.store.close().await;
    assert_eq!(status("/readyz").await, (503, "store_unavailable".to_owned()));
    assert_eq!(status("/healthz").await, (200, "ok".to_owned()), "the process lives");
}
