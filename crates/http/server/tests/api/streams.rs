//! Output as server-sent events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use futures::StreamExt as _;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use atoll_core::key::Scope;

use crate::attach::attach;
use crate::support::{DEADLINE, Harness, eventually, path_of};

#[derive(Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) data: Value,
}

/// Reads events until the stream ends, or `enough` says so.
pub(crate) async fn events(request: RequestBuilder, mut enough: impl FnMut(&Event) -> bool) -> Vec<Event> {
    let response = request.send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.bytes_stream();
    let (mut buffer, mut events) = (String::new(), Vec::new());
    while let Some(piece) = tokio::time::timeout(DEADLINE, body.next()).await.unwrap() {
        buffer.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        while let Some(end) = buffer.find("\n\n") {
            let block: String = buffer.drain(..end + 2).collect();
            let field = |name: &str| {
                let line = block.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim().to_owned()
            };
            if block.starts_with(':') {
                continue;
            }
            let data = serde_json::from_str(&field("data:")).unwrap();
            let event = Event { name: field("event:"), id: field("id:"), data };
            let done = enough(&event);
            events.push(event);
            if done {
                return events;
            }
        }
    }
    events
}

fn output(events: &[Event]) -> String {
    events
        .iter()
        .filter(|event| event.name == "output")
        .map(|event| event.data["data"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_client_that_comes_back_goes_on_where_it_stopped() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "seq 60000", json!({})).await.exec;
    let path = format!("{}/events", path_of(&exec));
    let want: String = (1..=60_000).map(|number| format!("{number}\n")).collect();

    let first = events(harness.request(Method::GET, &path), |event| event.name == "output").await;
    let id = &first.last().unwrap().id;
    // The header wins over the query, as browsers send both.
    let again = harness.request(Method::GET, &format!("{path}?offset=0")).header("last-event-id", id);
    let rest = events(again, |_| false).await;
    assert!(output(&first) + &output(&rest) == want);
    let exit = rest.last().unwrap();
    assert_eq!((exit.name.as_str(), exit.id.clone()), ("exit", want.len().to_string()));
    assert_eq!(exit.data["exit"]["code"], json!(0));

    let odd = harness.request(Method::GET, &path).header("last-event-id", "x");
    assert_eq!(harness.send(odd).await.code(), "invalid_argument");
}

#[tokio::test]
async fn only_who_may_kill_kills_by_leaving() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let start = json!({ "stdin": true, "kill_on_disconnect": true });
    let exec = harness.exec(&sandbox, "cat", start).await.exec;
    let path = path_of(&exec);
    harness.send(harness.request(Method::POST, &format!("{path}/stdin")).body("x")).await;

    let reader = harness.bare(Method::GET, &format!("{path}/events"));
    let reader = reader.bearer_auth(harness.key(Scope::Read));
    events(reader, |event| event.name == "output").await;
    // The reader has gone. If that killed the exec it would end within this wait.
    let still = harness.get(&format!("{path}?wait_ms=300")).await;
    assert_eq!(still.body["state"], json!("running"));

    events(harness.request(Method::GET, &format!("{path}/events")), |event| event.name == "output").await;
    let ended = tokio::time::timeout(Duration::from_secs(60), harness.ended(&exec)).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, atoll_core::exec::ExitReason::Disconnected);
}

#[tokio::test]
async fn when_many_streams_have_ended_memory_is_given_back() {
    static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
    let harness = Harness::start_with(|config| {
        config.give_memory_back = || {
            GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
        };
    })
    .await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "sleep 1000", json!({})).await.exec;
    let path = format!("{}/events", path_of(&exec));
    let mut open = Vec::new();
    for _ in 0..100 {
        let answer = harness.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        open.push(answer);
    }
    assert_eq!(GIVEN_BACK.load(Ordering::Relaxed), 0, "they go on");
    drop(open);
    eventually("memory is given back", async || (GIVEN_BACK.load(Ordering::Relaxed) > 0).then_some(())).await;
}

#[tokio::test]
async fn a_key_has_only_so_many_streams_open_and_others_have_theirs() {
    let harness = Harness::start_with(|config| config.streams_of_key_max = 2).await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "sleep 1000", json!({})).await.exec;
    let path = format!("{}/events", path_of(&exec));
    let open = async || harness.request(Method::GET, &path).send().await.unwrap();
    let (first, _second) = (open().await, open().await);
    let refused = open().await;
    assert_eq!(refused.status().as_u16(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(crate::support::answer(refused).await.code(), "limit_exceeded");
    assert_eq!(harness.get(&path_of(&exec)).await.status, 200, "short answers are not counted");
    let other = harness.bare(Method::GET, &path).bearer_auth(harness.key(Scope::Read));
    assert_eq!(other.send().await.unwrap().status().as_u16(), 200, "another key");
    drop(first);
    eventually("a place to be free", async || {
        let again = open().await;
        (again.status().as_u16() == 200).then_some(again)
    })
    .await;
}

/// A client that opens no window leaves what it asked for in the server's memory, hundreds of answers on a connection.
#[tokio::test]
async fn short_answers_that_nobody_takes_have_places_on_http2() {
    let harness = Harness::start_with(|config| config.streams_of_key_max = 2).await;
    let tcp = tokio::net::TcpStream::connect(harness.address.as_str()).await.unwrap();
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(tcp).await.unwrap();
    let connection = tokio::spawn(connection);
    let ask = async || {
        let request = http::Request::get(format!("http://{}/v1/sandboxes", harness.address))
            .header("authorization", format!("Bearer {}", harness.key(Scope::Admin)))
            .body(())
            .unwrap();
        let mut client = client.clone().ready().await.unwrap();
        let (answer, _sent) = client.send_request(request, true).unwrap();
        answer.await.unwrap()
    };
    let (first, second) = (ask().await, ask().await);
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    assert_eq!(ask().await.status().as_u16(), 429);
    // It resets the stream.
    drop(first);
    eventually("a place to be free", async || (ask().await.status().as_u16() == 200).then_some(())).await;
    drop(second);
    assert_eq!(harness.get("/v1/sandboxes").await.status, 200, "HTTP/1 has one answer at a time");
    connection.abort();
}

#[tokio::test]
async fn sockets_have_places_and_a_change_without_one_does_nothing() {
    let harness = Harness::start_with(|config| config.streams_of_key_max = 2).await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "sleep 1000", json!({})).await.exec;
    let first = attach(&harness, &exec, 0, Scope::Admin).await;
    let _second = attach(&harness, &exec, 0, Scope::Admin).await;
    let events = harness.get(&format!("{}/events", path_of(&exec))).await;
    assert_eq!((events.status, events.code()), (429, "limit_exceeded"), "{events:?}");
    let url = format!("ws://{}{}/attach", harness.address, path_of(&exec));
    let mut third = url.into_client_request().unwrap();
    let key = format!("Bearer {}", harness.key(Scope::Admin));
    third.headers_mut().insert("authorization", key.parse().unwrap());
    match tokio_tungstenite::connect_async(third).await {
        Err(tungstenite::Error::Http(refused)) => assert_eq!(refused.status().as_u16(), 429),
        other => panic!("a third socket: {other:?}"),
    }
    let execs = format!("/v1/sandboxes/{sandbox}/execs");
    let refused = harness.post(&execs, json!({ "argv": ["sleep", "1000"] })).await;
    assert_eq!((refused.status, refused.code()), (429, "limit_exceeded"), "{refused:?}");
    let list = harness.get(&execs).await;
    assert_eq!(list.body["items"].as_array().unwrap().len(), 1, "it has not begun: {list:?}");
    drop(first);
    eventually("a place to be free", async || {
        let begun = harness.post(&execs, json!({ "argv": ["sleep", "1000"] })).await;
        (begun.status == 201).then_some(())
    })
    .await;
    // What is short gives its place back.
    for _ in 0..4 {
        let begun = harness.post(&execs, json!({ "argv": ["sleep", "1000"] })).await;
        assert_eq!(begun.status, 201, "{begun:?}");
    }
}

#[tokio::test]
async fn a_key_that_has_too_much_open_can_still_stop_it() {
    let harness = Harness::start_with(|config| config.streams_of_key_max = 16).await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "sleep 1000", json!({})).await.exec;
    let path = format!("{}/events", path_of(&exec));
    let mut open = Vec::new();
    for _ in 0..16 {
        let stream = harness.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(stream.status().as_u16(), 200);
        open.push(stream);
    }
    assert_eq!(harness.get(&path).await.status, 429);
    let stop = harness.post(&format!("{}/signal", path_of(&exec)), json!({ "signal": "TERM" })).await;
    assert_eq!(stop.status, 204, "{stop:?}");
}

#[tokio::test]
async fn the_links_of_a_sandbox_have_only_so_many_downloads_open() {
    // As many as its owner's have together; without other sandboxes it has half of them.
    let harness = Harness::start_with(|config| config.streams_of_key_max = 4).await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let file = format!("/v1/sandboxes/{sandbox}/files?path=/data");
    // More than is on its way to a client that does not read.
    let large = harness.request(Method::PUT, &file).body(vec![7; 48 << 20]);
    assert_eq!(harness.send(large).await.status, 200);
    let made = harness
        .post(&format!("/v1/sandboxes/{sandbox}/access"), json!({ "file": { "path": "/data" } }))
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    let token = made.body["token"].as_str().unwrap().to_owned();
    let open = async || {
        let link = harness.bare(Method::GET, "/v1/download/data").header("x-atoll-token", &token);
        link.send().await.unwrap()
    };
    let (first, second) = (open().await, open().await);
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    let refused = crate::support::answer(open().await).await;
    assert_eq!((refused.status, refused.code()), (429, "limit_exceeded"), "{refused:?}");
    let by_key = harness.request(Method::GET, &file).send().await.unwrap();
    assert_eq!(by_key.status().as_u16(), 200, "the key that made the link has places of its own");
    drop(first);
    eventually("a place to be free", async || {
        let again = open().await;
        (again.status().as_u16() == 200).then_some(again)
    })
    .await;
}

/// A link to a large file in a new sandbox of this key: its token.
async fn link_of(harness: &Harness, scope: Scope) -> String {
    let request = |method, path: &str| harness.bare(method, path).bearer_auth(harness.key(scope));
    let made = harness.send(request(Method::POST, "/v1/sandboxes").json(&json!({}))).await;
    assert_eq!(made.status, 201, "{made:?}");
    let sandbox = format!("/v1/sandboxes/{}", made.body["id"].as_str().unwrap());
    // More than is on its way to a client that does not read.
    let large = request(Method::PUT, &format!("{sandbox}/files?path=/data")).body(vec![7; 48 << 20]);
    assert_eq!(harness.send(large).await.status, 200);
    let wanted = json!({ "file": { "path": "/data" } });
    let link = harness.send(request(Method::POST, &format!("{sandbox}/access")).json(&wanted)).await;
    assert_eq!(link.status, 201, "{link:?}");
    link.body["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn one_owners_many_sandboxes_leave_downloads_by_link_to_others() {
    let harness = Harness::start_with(|config| config.streams_of_key_max = 2).await;
    let open = async |token: &str| {
        let link = harness.bare(Method::GET, "/v1/download/data").header("x-atoll-token", token);
        link.send().await.unwrap()
    };
    let first = link_of(&harness, Scope::Admin).await;
    let second = link_of(&harness, Scope::Admin).await;
    let of_another = link_of(&harness, Scope::Manage).await;
    // The links to each sandbox have two places; those to all of an owner's sandboxes have no more when nobody else has any.
    let (one, two) = (open(&first).await, open(&second).await);
    assert_eq!((one.status().as_u16(), two.status().as_u16()), (200, 200));
    let refused = crate::support::answer(open(&second).await).await;
    assert_eq!((refused.status, refused.code()), (429, "limit_exceeded"), "{refused:?}");
    let neighbour = open(&of_another).await;
    assert_eq!(neighbour.status().as_u16(), 200, "another owner's sandboxes have a share");
    drop((one, two, neighbour));
    eventually("the places to be free", async || {
        let again = open(&second).await;
        (again.status().as_u16() == 200).then_some(again)
    })
    .await;
}
