//! Sessions with agents over a WebSocket.

use crate::agents::{JSONL, agent, begin, send, turn, until};
use crate::common::code;
use atoll_api::{AgentEvent, CreateKey, KeyFormat, Scope, SessionClientMessage, SessionServerMessage};
use atoll_blackbox::Server;
use atoll_client::{Client, ClientError, ResumePolicy, SessionAttachment, SessionUpdate};
use atoll_core::Code;
use atoll_core::agent::{Adapter, EventKind};
use futures::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

async fn attach(server: &Server, session: &str, after: u64) -> SessionAttachment {
    let attached =
        server.client.attach_agent_session("bob", session, after, ResumePolicy::default()).await.unwrap();
    assert_eq!(attached.session.id, session);
    attached
}

async fn said(attached: &mut SessionAttachment) -> SessionServerMessage {
    match attached.next().await.unwrap() {
        SessionUpdate::Said(said) => said,
        other => panic!("{other:?}"),
    }
}

/// Reads until an event of a kind comes; gives all events.
async fn read(attached: &mut SessionAttachment, kind: EventKind) -> Vec<AgentEvent> {
    let mut events: Vec<AgentEvent> = Vec::new();
    loop {
        if let SessionServerMessage::Event { event } = said(attached).await {
            if let Some(last) = events.last() {
                assert_eq!(event.number, last.number + 1, "none is missing, none comes twice");
            }
            let found = event.kind == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }
}

/// Sends a message; gives how it was answered, and reads past the events before that.
async fn ask(attached: &mut SessionAttachment, message: SessionClientMessage) -> Result<Option<u64>, Code> {
    let sent = attached.send(message).await.unwrap();
    loop {
        match said(attached).await {
            SessionServerMessage::Taken { id, number } if id == sent => return Ok(number),
            SessionServerMessage::Error { id, error, last } if id.as_deref() == Some(&sent) => {
                assert!(!last, "the socket goes on");
                return Err(error.code);
            }
            _ => {}
        }
    }
}

/// Reads to the end; gives why it is that.
async fn ending(attached: &mut SessionAttachment) -> ClientError {
    loop {
        if let Err(error) = attached.next().await {
            return error;
        }
    }
}

fn message(text: &str, key: Option<&str>) -> SessionClientMessage {
    SessionClientMessage::Message { id: None, text: text.into(), key: key.map(str::to_owned) }
}

fn answer(approval: &str, option: &str) -> SessionClientMessage {
    SessionClientMessage::Answer { id: None, approval: approval.into(), option: option.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_over_a_websocket() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    let mut one = attach(&server, &session, 0).await;
    // The same key is the same message, over this socket or another.
    assert_eq!(ask(&mut one, message("hello", Some("k"))).await, Ok(Some(1)));
    let mut other = attach(&server, &session, 0).await;
    assert_eq!(ask(&mut other, message("hello", Some("k"))).await, Ok(Some(1)));
    assert_eq!(ask(&mut other, message("else", Some("k"))).await, Err(Code::IdempotencyMismatch));
    until(&server, "bob", &session, 0, EventKind::Done).await;
    // Every reader has every event, from where it wants.
    let mut third = attach(&server, &session, 1).await;
    let events = read(&mut third, EventKind::Done).await;
    assert_eq!(events[0].number, 2);
    assert_eq!(events, until(&server, "bob", &session, 1, EventKind::Done).await);
    let beyond = server.client.attach_agent_session("bob", &session, 1000, ResumePolicy::never()).await;
    assert_eq!(code(beyond), Code::OffsetOutOfRange);

    // Approvals and cancellations.
    let number = ask(&mut third, message("ask", None)).await.unwrap().unwrap();
    until(&server, "bob", &session, number, EventKind::Approval).await;
    assert_eq!(ask(&mut third, answer("a", "perhaps")).await, Err(Code::InvalidArgument));
    assert_eq!(ask(&mut third, answer("a", "yes")).await, Ok(None));
    assert_eq!(ask(&mut third, answer("a", "yes")).await, Err(Code::InvalidState));
    until(&server, "bob", &session, number, EventKind::Done).await;
    let number = ask(&mut third, message("wait", None)).await.unwrap().unwrap();
    until(&server, "bob", &session, number, EventKind::Thought).await;
    assert_eq!(ask(&mut third, SessionClientMessage::Cancel { id: None }).await, Ok(None));
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    assert_eq!(events.last().unwrap().data["reason"], "cancelled");

    // A server that dies in the middle of an answer.
    let last = server.client.get_agent_session("bob", &session).await.unwrap().last_event;
    let mut live = attach(&server, &session, last).await;
    live.send(message("count", None)).await.unwrap();
    let before = read(&mut live, EventKind::Text).await;
    server.kill();
    server.restart();
    let after = read(&mut live, EventKind::Done).await;
    assert_eq!(after[0].number, before.last().unwrap().number + 1, "it goes on where it was");
    let counted = before.iter().chain(&after).filter(|event| event.kind == EventKind::Text);
    let counted: String = counted.map(|event| event.data["text"].as_str().unwrap()).collect();
    assert_eq!(counted, (0..200).map(|number| format!("{number} ")).collect::<String>());

    // A deleted session ends the connections of the clients attached to it.
    server.client.delete_agent_session("bob", &session).await.unwrap();
    assert_eq!(ending(&mut live).await.code(), Some(Code::SessionNotFound));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_attached_has_the_rights_of_the_key() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    let key = async |scope| {
        let create =
            CreateKey { name: "x".into(), scope, ttl_ms: None, format: KeyFormat::default(), project: None };
        let made = server.client.create_key(&create).await.unwrap();
        (made.key.id, Client::new(&server.url, &made.secret).unwrap())
    };
    let (id, reader) = key(Scope::Read).await;
    let mut attached =
        reader.attach_agent_session("bob", &session, 0, ResumePolicy::default()).await.unwrap();
    assert_eq!(ask(&mut attached, message("hello", None)).await, Err(Code::Forbidden));
    assert_eq!(ask(&mut attached, SessionClientMessage::Cancel { id: None }).await, Err(Code::Forbidden));
    turn(&server, "bob", &session, "hello").await;
    read(&mut attached, EventKind::Done).await;
    server.client.delete_key(&id).await.unwrap();
    let ended = ending(&mut attached).await;
    assert!(matches!(ended, ClientError::Api { .. }) && ended.code() == Some(Code::Unauthorized), "{ended}");
    // With its sandbox the session is gone, and each attached client is told at once.
    let mut last = attach(&server, &session, 0).await;
    read(&mut last, EventKind::Done).await;
    server.client.delete_sandbox(&sandbox).await.unwrap();
    let ended = ending(&mut last).await;
    assert_eq!(ended.code(), Some(Code::AgentNotFound), "{ended}");
    server.finish().await;
}

/// A socket without anything of ours around it.
async fn raw(
    server: &Server,
    session: &str,
) -> tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>> {
    let url = server.url.replace("http://", "ws://");
    let mut request =
        format!("{url}/v1/agents/bob/sessions/{session}/attach?after=0").into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", server.key).parse().unwrap());
    tokio_tungstenite::connect_async(request).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_told_and_who_does_not_read_holds_up_nobody() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    server.client.create_agent(&agent("bob", &sandbox, JSONL, Adapter::Jsonl)).await.unwrap();
    let session = begin(&server, "bob").await;
    let mut socket = raw(&server, &session).await;
    let long = format!(r#"{{"type":"cancel","id":"{}"}}"#, "x".repeat(200));
    let large = format!(r#"{{"type":"message","id":"1","text":"{}"}}"#, "x".repeat(300_000));
    for (sent, expected) in [
        (Message::text("{"), "invalid_json"),
        (Message::text("[]"), "invalid_argument"),
        (Message::text(r#"{"type":"dance"}"#), "invalid_argument"),
        (Message::text(r#"{"type":"cancel","more":1}"#), "invalid_argument"),
        (Message::binary("x"), "invalid_argument"),
        (Message::text(long), "invalid_argument"),
        (Message::text(large), "too_large"),
    ] {
        socket.send(sent).await.unwrap();
        let error = loop {
            if let Message::Text(text) = socket.next().await.unwrap().unwrap()
                && let SessionServerMessage::Error { error, .. } = serde_json::from_str(&text).unwrap()
            {
                break error;
            }
        };
        assert_eq!(error.code.as_str(), expected);
    }
    // More than any message can be ends it.
    let sent = socket.send(Message::text("x".repeat(2 << 20))).await;
    let ended = async {
        loop {
            match socket.next().await {
                None | Some(Err(_) | Ok(Message::Close(_))) => return,
                Some(Ok(_)) => {}
            }
        }
    };
    ended.await;
    drop::<Result<(), WsError>>(sent);

    // One that does not read: the agent and other readers go on, and it has everything when it reads again.
    let mut slow = raw(&server, &session).await;
    let number = send(&server, "bob", &session, "much").await;
    let events = until(&server, "bob", &session, number, EventKind::Done).await;
    let mut count = 0;
    while count < events.len() {
        if let Message::Text(text) = slow.next().await.unwrap().unwrap()
            && let SessionServerMessage::Event { event } = serde_json::from_str(&text).unwrap()
            && event.number > number
        {
            assert_eq!(event, events[count]);
            count += 1;
        }
    }
    // A request that is none for a WebSocket.
    let plain = server.request("GET", &format!("/v1/agents/bob/sessions/{session}/attach"));
    assert_eq!(server.send(plain).await.status, 400);
    server.finish().await;
}
