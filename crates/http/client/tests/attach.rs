//! Attachments over connections that break anywhere: every byte once, in order.

#![expect(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "integration test"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_api::{AttachClientMessage, AttachServerMessage, ErrorBody};
use atoll_client::{AttachEvent, ClientError, ResumePolicy};
use atoll_core::exec::{ExecState, OutputStream};
use atoll_core::spec::TtySize;
use atoll_core::{Code, Error};
use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use serde::Deserialize;
use support::{DEADLINE, Log, Random, breaking_wire, client, exec, exit, frame, policy, serve};
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATH: &str = "/v1/sandboxes/{sandbox}/execs/{exec}/attach";

#[derive(Deserialize)]
struct At {
    offset: u64,
}

fn text(message: &AttachServerMessage) -> Message {
    Message::text(serde_json::to_string(message).unwrap())
}

fn attached(offset: u64) -> Message {
    text(&AttachServerMessage::Attached { exec: exec(), offset })
}

fn exited(offset: usize) -> Message {
    text(&AttachServerMessage::Exit { state: ExecState::Exited, exit: exit(), offset: offset as u64 })
}

/// Replays a log. Every other connection begins a little before what was asked for.
async fn replay(mut socket: WebSocket, log: Arc<Log>, asked: usize, connection: usize) {
    let begin = if connection % 2 == 1 { asked.saturating_sub(100) } else { asked };
    let mut send = async |message| socket.send(message).await.is_ok();
    if !send(attached(begin as u64)).await {
        return;
    }
    for (offset, stream, bytes) in log.from(begin) {
        if !send(Message::Binary(frame(offset, stream, bytes).into())).await {
            return;
        }
    }
    let _sent = send(exited(log.bytes.len())).await;
}

fn replaying(log: Arc<Log>) -> Router {
    let connections = Arc::new(AtomicUsize::new(0));
    Router::new().route(
        PATH,
        get(move |Query(at): Query<At>, upgrade: WebSocketUpgrade| async move {
            let connection = connections.fetch_add(1, Ordering::Relaxed);
            let asked = usize::try_from(at.offset).unwrap();
            upgrade.on_upgrade(move |socket| replay(socket, log, asked, connection))
        }),
    )
}

async fn collect(
    events: &mut atoll_client::AttachEvents,
) -> (Vec<u8>, Vec<u8>, Option<AttachEvent>, Vec<AttachEvent>) {
    let (mut stdout, mut stderr, mut other) = (Vec::new(), Vec::new(), Vec::new());
    let mut due = None;
    while let Some(event) = timeout(DEADLINE, events.next()).await.unwrap() {
        match event.unwrap() {
            AttachEvent::Output { stream, offset, data } => {
                assert_eq!(*due.get_or_insert(offset), offset, "offsets join");
                due = Some(offset + data.len() as u64);
                match stream {
                    OutputStream::Stdout => stdout.extend_from_slice(&data),
                    OutputStream::Stderr => stderr.extend_from_slice(&data),
                }
            }
            end @ AttachEvent::Exit { .. } => {
                assert!(timeout(DEADLINE, events.next()).await.unwrap().is_none(), "the exit is the last");
                return (stdout, stderr, Some(end), other);
            }
            event => other.push(event),
        }
    }
    (stdout, stderr, None, other)
}

#[tokio::test]
async fn nothing_is_lost_or_repeated_wherever_it_breaks() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let log = Arc::new(Log::random(&mut random, 200_000));
        let server = serve(replaying(Arc::clone(&log))).await;
        let wire = breaking_wire(server, random, 40, 20_000).await;
        let client = client(wire);
        // The very first connection is not tried again by itself.
        let mut attachment = loop {
            match client.attach("sb_1", "ex_1", 0, policy()).await {
                Ok(attachment) => break attachment,
                Err(ClientError::Connect { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(attachment.exec, exec());
        let (stdout, stderr, end, other) = collect(&mut attachment.events).await;
        assert!(stdout == log.of(OutputStream::Stdout), "seed {seed}");
        assert!(stderr == log.of(OutputStream::Stderr), "seed {seed}");
        let offset = log.bytes.len() as u64;
        assert_eq!(end, Some(AttachEvent::Exit { state: ExecState::Exited, exit: exit(), offset }));
        assert!(!other.is_empty(), "it did break");
        assert!(other.iter().all(|event| *event == AttachEvent::Reconnected { input_unconfirmed_bytes: 0 }));
    }
}

/// Serves scripts, one for each connection; the last one again and again.
fn scripted(scripts: Vec<Vec<Message>>) -> (Router, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let router = Router::new().route(
        PATH,
        get(move |upgrade: WebSocketUpgrade| async move {
            let connection = counter.fetch_add(1, Ordering::Relaxed).min(scripts.len() - 1);
            let script = scripts[connection].clone();
            upgrade.on_upgrade(async move |mut socket: WebSocket| {
                for message in script {
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
            })
        }),
    );
    (router, connections)
}

fn output(offset: usize, bytes: &[u8]) -> Message {
    Message::Binary(frame(offset, OutputStream::Stdout, bytes).into())
}

#[tokio::test]
async fn gaps_are_announced_once_and_holes_are_not_believed() {
    let gap = |from, to| text(&AttachServerMessage::Gap { from, to });
    let (router, connections) = scripted(vec![
        // Bytes 0..10 are gone; 15..20 are missing without a word.
        vec![attached(0), gap(0, 10), output(10, b"abcde"), output(20, b"klmno")],
        vec![attached(15), output(15, b"fghij"), output(20, b"klmno"), exited(99)],
        // The server says now that 25..30 are gone.
        vec![attached(30), gap(25, 30), output(30, b"z"), exited(31)],
    ]);
    let client = client(serve(router).await);
    let mut attachment = client.attach("sb_1", "ex_1", 0, policy()).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = timeout(DEADLINE, attachment.events.next()).await.unwrap() {
        seen.push(match event.unwrap() {
            AttachEvent::Output { data, .. } => String::from_utf8(data.to_vec()).unwrap(),
            AttachEvent::Gap { from, to } => format!("gap {from}..{to}"),
            AttachEvent::Exit { offset, .. } => format!("exit {offset}"),
            AttachEvent::Reconnected { .. } => "reconnected".to_owned(),
            AttachEvent::Refused(error) => error.message,
        });
    }
    let want =
        ["gap 0..10", "abcde", "reconnected", "fghij", "klmno", "reconnected", "gap 25..30", "z", "exit 31"];
    assert_eq!(seen, want);
    assert_eq!(connections.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_server_that_always_breaks_is_given_up() {
    let (router, connections) = scripted(vec![vec![attached(0)]]);
    let client = client(serve(router).await);
    let resume = ResumePolicy { attempts_max: 5, ..policy() };
    let mut attachment = client.attach("sb_1", "ex_1", 0, resume).await.unwrap();
    let mut last = None;
    while let Some(event) = timeout(DEADLINE, attachment.events.next()).await.unwrap() {
        last = Some(event);
    }
    assert!(matches!(last, Some(Err(ClientError::Connect { .. }))), "{last:?}");
    assert_eq!(connections.load(Ordering::Relaxed), 6);
    assert!(attachment.input.write(Bytes::from_static(b"x")).await.is_err());
}

#[tokio::test]
async fn nonsense_is_refused() {
    let cases: Vec<(&str, Vec<Message>)> = vec![
        ("not a message", vec![attached(0), Message::text("{\"type\":\"what\"}")]),
        ("no frame", vec![attached(0), Message::Binary(Bytes::from_static(b"abc"))]),
        ("unknown stream", vec![attached(0), Message::Binary(Bytes::from_static(&[9; 20]))]),
        ("an end before the end", vec![attached(0), output(0, b"abc"), exited(1)]),
        ("a gap backwards", vec![attached(0), text(&AttachServerMessage::Gap { from: 9, to: 3 })]),
        ("a huge message", vec![attached(0), Message::Binary(vec![1; 17 << 20].into())]),
    ];
    for (what, script) in cases {
        let (router, _) = scripted(vec![script]);
        let client = client(serve(router).await);
        let mut attachment = client.attach("sb_1", "ex_1", 0, policy()).await.unwrap();
        let mut last = None;
        while let Some(event) = timeout(DEADLINE, attachment.events.next()).await.unwrap() {
            last = Some(event);
        }
        assert!(matches!(last, Some(Err(ClientError::Protocol(_)))), "{what}: {last:?}");
    }
    let (router, _) = scripted(vec![vec![exited(0)]]);
    let first = client(serve(router).await).attach("sb_1", "ex_1", 0, policy()).await;
    assert!(matches!(first, Err(ClientError::Protocol(_))));
}

#[tokio::test]
async fn refusals_come_through_before_and_after() {
    let refuse = |code| ErrorBody { request_id: Some("req_1".into()), ..Error::new(code, "no").into() };
    let body = refuse(Code::ExecNotFound);
    let router = Router::new().route(
        PATH,
        get(move || async move { (StatusCode::NOT_FOUND, serde_json::to_string(&body).unwrap()) }),
    );
    let error = client(serve(router).await).attach("sb_1", "ex_1", 0, policy()).await.unwrap_err();
    assert!(matches!(&error, ClientError::Api { error, request_id: Some(id) }
        if error.code == Code::ExecNotFound && id == "req_1"));

    // The sandbox goes away between two connections.
    let connections = Arc::new(AtomicUsize::new(0));
    let body = refuse(Code::SandboxNotFound);
    let router = Router::new().route(
        PATH,
        get(move |upgrade: WebSocketUpgrade| async move {
            let response: Response = if connections.fetch_add(1, Ordering::Relaxed) == 0 {
                upgrade.on_upgrade(async |mut socket: WebSocket| drop(socket.send(attached(0)).await))
            } else {
                (StatusCode::NOT_FOUND, serde_json::to_string(&body).unwrap()).into_response()
            };
            response
        }),
    );
    let client = client(serve(router).await);
    let mut attachment = client.attach("sb_1", "ex_1", 0, policy()).await.unwrap();
    let error = timeout(DEADLINE, attachment.events.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::SandboxNotFound));
}

/// Echoes input as output until it is closed, and reports what else it is told.
async fn echo(
    State(told): State<mpsc::UnboundedSender<AttachClientMessage>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(async move |mut socket: WebSocket| {
        let mut offset = 0;
        drop(socket.send(attached(0)).await);
        while let Some(Ok(message)) = socket.recv().await {
            match message {
                Message::Binary(data) => {
                    drop(socket.send(output(offset, &data)).await);
                    offset += data.len();
                }
                Message::Text(message) => {
                    let message: AttachClientMessage = serde_json::from_str(&message).unwrap();
                    drop(told.send(message.clone()));
                    if message == (AttachClientMessage::CloseStdin {}) {
                        drop(socket.send(exited(offset)).await);
                        return;
                    }
                }
                Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {}
            }
        }
    })
}

#[tokio::test]
async fn input_goes_while_output_comes() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let client = client(serve(Router::new().route(PATH, get(echo)).with_state(tell)).await);
    let mut attachment = client.attach("sb_1", "ex_1", 0, ResumePolicy::never()).await.unwrap();
    // Far more than all queues hold: only works if both directions move at once.
    let sent: Vec<u8> = (0..16_000_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    let input = attachment.input.clone();
    let data = Bytes::from(sent.clone());
    let writer = tokio::spawn(async move {
        input.resize(TtySize { cols: 100, rows: 40 }).await.unwrap();
        input.write(data).await.unwrap();
        input.signal("TERM", true).await.unwrap();
        input.close().await.unwrap();
    });
    let (stdout, _, end, _) = collect(&mut attachment.events).await;
    writer.await.unwrap();
    assert!(stdout == sent);
    assert!(end.is_some());
    let told: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    let want = [
        AttachClientMessage::Resize { cols: 100, rows: 40 },
        AttachClientMessage::Signal { signal: "TERM".into(), tree: true },
        AttachClientMessage::CloseStdin {},
    ];
    assert_eq!(told, want);
}

#[tokio::test]
async fn a_new_connection_is_told_what_the_old_one_knew() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let router = Router::new().route(
        PATH,
        get(move |upgrade: WebSocketUpgrade| async move {
            let first = connections.fetch_add(1, Ordering::Relaxed) == 0;
            upgrade.on_upgrade(async move |mut socket: WebSocket| {
                drop(socket.send(attached(0)).await);
                while let Some(Ok(message)) = socket.recv().await {
                    let Message::Text(message) = message else {
                        continue;
                    };
                    drop(tell.send((first, message.as_str().to_owned())));
                    if message.contains("close_stdin") {
                        if !first {
                            drop(socket.send(exited(0)).await);
                        }
                        return;
                    }
                }
            })
        }),
    );
    let client = client(serve(router).await);
    let mut attachment = client.attach("sb_1", "ex_1", 0, policy()).await.unwrap();
    attachment.input.resize(TtySize { cols: 9, rows: 5 }).await.unwrap();
    attachment.input.write(Bytes::from_static(b"typed")).await.unwrap();
    attachment.input.close().await.unwrap();
    let (_, _, end, other) = collect(&mut attachment.events).await;
    assert!(end.is_some());
    assert_eq!(other, [AttachEvent::Reconnected { input_unconfirmed_bytes: 5 }]);
    let told: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
    let resize = "{\"type\":\"resize\",\"cols\":9,\"rows\":5}".to_owned();
    let close = "{\"type\":\"close_stdin\"}".to_owned();
    let want = [(true, resize.clone()), (true, close.clone()), (false, resize), (false, close)];
    assert_eq!(told, want);
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_connection() {
    let (gone, mut seen) = mpsc::unbounded_channel();
    let router = Router::new().route(
        PATH,
        get(move |upgrade: WebSocketUpgrade| async move {
            upgrade.on_upgrade(async move |mut socket: WebSocket| {
                drop(socket.send(attached(0)).await);
                while let Some(Ok(_)) = socket.recv().await {}
                gone.send(()).unwrap();
            })
        }),
    );
    let client = client(serve(router).await);
    let attachment = client.attach("sb_1", "ex_1", 0, policy()).await.unwrap();
    drop(attachment.events);
    timeout(DEADLINE, seen.recv()).await.unwrap().unwrap();
}
