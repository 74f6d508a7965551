//! Attaching over a WebSocket.

use std::time::Duration;

use atoll_api::{AttachServerMessage, Exec, OutputFrame};
use atoll_core::key::Scope;
use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support::{DEADLINE, Harness, path_of};

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

pub(crate) async fn attach(harness: &Harness, exec: &Exec, offset: u64, scope: Scope) -> Socket {
    attach_as(harness, exec, offset, harness.key(scope)).await
}

async fn attach_as(harness: &Harness, exec: &Exec, offset: u64, key: &str) -> Socket {
    let url = format!("ws://{}{}/attach?offset={offset}", harness.address, path_of(exec));
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    match next(&mut socket).await {
        Got::Said(AttachServerMessage::Attached { exec: seen, offset: from }) => {
            assert_eq!((seen.id.as_str(), from), (exec.id.as_str(), offset));
        }
        other => panic!("not attached: {other:?}"),
    }
    socket
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few are made, and none is kept")]
pub(crate) enum Got {
    Said(AttachServerMessage),
    Output { offset: u64, bytes: Vec<u8> },
    Closed(Option<CloseCode>),
}

pub(crate) async fn next(socket: &mut Socket) -> Got {
    loop {
        match tokio::time::timeout(DEADLINE, socket.next()).await.unwrap() {
            Some(Ok(Message::Text(text))) => return Got::Said(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Binary(message))) => {
                let (frame, bytes) = OutputFrame::decode(&message).unwrap();
                return Got::Output { offset: frame.offset, bytes: bytes.to_vec() };
            }
            Some(Ok(Message::Close(frame))) => return Got::Closed(frame.map(|frame| frame.code)),
            Some(Ok(_)) => {}
            None => return Got::Closed(None),
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

/// Everything from `offset` to the end.
async fn all(mut socket: Socket, offset: u64) -> Vec<u8> {
    let mut got: Vec<u8> = Vec::new();
    loop {
        match next(&mut socket).await {
            Got::Output { offset: at, bytes } => {
                assert_eq!(at, offset + got.len() as u64);
                got.extend(bytes);
            }
            Got::Said(AttachServerMessage::Exit { offset: end, .. }) => {
                assert_eq!(end, offset + got.len() as u64);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(next(&mut socket).await, Got::Closed(Some(CloseCode::Normal))));
    got
}

#[tokio::test]
async fn several_clients_read_from_their_own_offsets() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "seq 200000", json!({})).await.exec;
    let want: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let early = attach(&harness, &exec, 0, Scope::Exec).await;
    let second = attach(&harness, &exec, 0, Scope::Read).await;
    let (a, b) = tokio::join!(all(early, 0), all(second, 0));
    assert!(a == want.as_bytes() && b == want.as_bytes());
    harness.ended(&exec).await;
    let late = all(attach(&harness, &exec, 1_000_000, Scope::Read).await, 1_000_000).await;
    assert!(late == want.as_bytes()[1_000_000..]);
}

#[tokio::test]
async fn input_goes_in_and_mistakes_are_told() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let mut socket = attach(&harness, &exec, 0, Scope::Exec).await;
    let big = vec![b'x'; 1 << 20];
    for bytes in [b"hello ".to_vec(), big.clone()] {
        socket.send(Message::Binary(bytes.into())).await.unwrap();
    }
    for (text, code) in [
        ("{\"type\": \"resize\", \"cols\": 80, \"rows\": 24}", "not_a_terminal"),
        ("{\"type\": \"dance\"}", "invalid_argument"),
        ("not json", "invalid_json"),
        ("{\"type\": \"signal\", \"signal\": \"WHAT\"}", "invalid_argument"),
    ] {
        socket.send(Message::text(text)).await.unwrap();
        let error = loop {
            match next(&mut socket).await {
                Got::Said(AttachServerMessage::Error { error }) => break error,
                Got::Output { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(error.code.as_str(), code, "{text}");
        assert!(error.request_id.is_some());
    }
    socket.send(Message::text("{\"type\": \"close_stdin\"}")).await.unwrap();
    let got = all(attach(&harness, &exec, 0, Scope::Read).await, 0).await;
    assert!(got == [b"hello ".to_vec(), big].concat());
}

#[tokio::test]
async fn readers_may_not_send() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let mut socket = attach(&harness, &exec, 0, Scope::Read).await;
    for message in [
        Message::binary(&b"x"[..]),
        Message::text("{\"type\": \"close_stdin\"}"),
        Message::text("{\"type\": \"signal\", \"signal\": \"KILL\"}"),
    ] {
        socket.send(message).await.unwrap();
        match next(&mut socket).await {
            Got::Said(AttachServerMessage::Error { error }) => assert_eq!(error.code.as_str(), "forbidden"),
            other => panic!("{other:?}"),
        }
    }
    let now = harness.get(&path_of(&exec)).await;
    assert_eq!((&now.body["state"], &now.body["output_bytes"]), (&json!("running"), &json!(0)));
}

#[tokio::test]
async fn a_web_page_of_another_site_cannot_attach() {
    let harness = Harness::start().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "cat", json!({ "stdin": true })).await.exec;
    let url = format!("ws://{}{}/attach", harness.address, path_of(&exec));
    let mut request = url.into_client_request().unwrap();
    let key = format!("Bearer {}", harness.key(Scope::Admin));
    request.headers_mut().insert("authorization", key.parse().unwrap());
    request.headers_mut().insert("origin", "http://evil.example".parse().unwrap());
    match tokio_tungstenite::connect_async(request).await {
        Err(Error::Http(response)) => assert_eq!(response.status().as_u16(), 403),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

/// An open connection ends at the moment when its key expires, and not before.
#[tokio::test]
async fn a_connection_ends_with_the_time_of_its_key() {
    const TTL_MS: u64 = 24 * 3_600_000;
    let (harness, clock) = Harness::start_by_hand().await;
    let sandbox = harness.sandbox(json!({})).await.id;
    let exec = harness.exec(&sandbox, "sleep 1000", json!({})).await.exec;
    let brief = harness.engine.create_key("brief", Scope::Manage, Some(TTL_MS)).await.unwrap();
    let mut socket = attach_as(&harness, &exec, 0, brief.secret.reveal()).await;
    clock.advance(Duration::from_millis(TTL_MS - 1));
    let looks = harness.bare(Method::GET, &path_of(&exec)).bearer_auth(brief.secret.reveal());
    assert_eq!(harness.send(looks).await.status, 200);
    assert!(socket.next().now_or_never().is_none(), "it is open");
    clock.advance(Duration::from_millis(1));
    assert!(matches!(next(&mut socket).await, Got::Said(AttachServerMessage::Error { .. })));
    assert!(matches!(next(&mut socket).await, Got::Closed(_)));
}
