//! Calls and streams: what is sent, how refusals come back, and that bad servers are bounded.

#![expect(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "integration test"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_api::{CreateExec, ErrorBody, ImageProgress, OutputPage, PullImage, WatchChange};
use atoll_client::{AttachEvent, ClientError, ExecEvent, ListSandboxes, OutputQuery, WatchEvent, WriteFile};
use atoll_core::exec::{ExecState, OutputStream};
use atoll_core::{Code, Error};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt as _;
use serde::Deserialize;
use support::{DEADLINE, Log, Random, breaking_wire, chunk, client, exit, policy, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Answers everything with the request: method, path, authorization, body.
async fn mirror(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let key = parts.headers.get(header::AUTHORIZATION).map(|v| v.to_str().unwrap().to_owned());
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let message = format!("{} {} {key:?} {}", parts.method, parts.uri, String::from_utf8_lossy(&body));
    let body = ErrorBody { request_id: Some("req_9".into()), ..Error::new(Code::Internal, message).into() };
    (StatusCode::INTERNAL_SERVER_ERROR, serde_json::to_string(&body).unwrap()).into_response()
}

fn said(result: Result<(), ClientError>) -> String {
    match result.unwrap_err() {
        ClientError::Api { error, request_id } => {
            assert_eq!(request_id.as_deref(), Some("req_9"));
            error.message
        }
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn requests_are_what_the_api_says() {
    let client = client(serve(Router::new().fallback(mirror)).await);
    let list = ListSandboxes {
        labels: [("a".to_owned(), "1&2".to_owned()), ("b".to_owned(), String::new())].into(),
        limit: Some(5),
        ..ListSandboxes::default()
    };
    let key = "Some(\"Bearer test-key\")";
    let write = WriteFile { mode: Some("0600".into()), user: None, parents: true };
    let content = futures::stream::iter([Ok(Bytes::from_static(b"con")), Ok(Bytes::from_static(b"tent"))]);
    let create = CreateExec { argv: Some(vec!["ls".into()]), ..CreateExec::default() };
    let cases = [
        (
            said(client.list_sandboxes(&list).await.map(drop)),
            format!("GET /v1/sandboxes?limit=5&label=a%3D1%262&label=b%3D {key} "),
        ),
        (
            said(client.create_exec("my box", &create).await.map(drop)),
            format!(
                "POST /v1/sandboxes/my%20box/execs {key} {{\"argv\":[\"ls\"],\"stdin\":false,\"kill_on_disconnect\":false}}"
            ),
        ),
        (
            said(client.write_file("b", "/a b", &write, content).await.map(drop)),
            format!("PUT /v1/sandboxes/b/files?path=%2Fa+b&mode=0600&parents=true {key} content"),
        ),
        (
            said(client.remove_image("docker.io/library/x:1").await.map(drop)),
            format!("DELETE /v1/images/docker.io/library/x:1 {key} "),
        ),
        (said(client.delete_registry("h:5000").await), format!("DELETE /v1/registries/h:5000 {key} ")),
        (said(client.list_nodes().await.map(drop)), format!("GET /v1/nodes {key} ")),
        (said(client.delete_node("a").await.map(drop)), format!("DELETE /v1/nodes/a {key} ")),
        (
            said(client.write_stdin("b", "e", Bytes::from_static(b"in"), true).await.map(drop)),
            format!("POST /v1/sandboxes/b/execs/e/stdin?close=true {key} in"),
        ),
        (
            said(client.delete_template("t", Some(3)).await),
            format!("DELETE /v1/templates/t?version=3 {key} "),
        ),
    ];
    for (got, want) in cases {
        assert_eq!(got, want);
    }
}

#[tokio::test]
async fn bad_answers_are_protocol_errors() {
    let answers: Vec<(StatusCode, &str)> = vec![
        (StatusCode::OK, "not json"),
        (StatusCode::OK, "{}"),
        (StatusCode::BAD_GATEWAY, "<html>nginx</html>"),
        (StatusCode::FOUND, ""),
    ];
    for (status, body) in answers {
        let router = Router::new().fallback(move || async move { (status, body) });
        let error = client(serve(router).await).server_info().await.unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{status} {body}: {error:?}");
    }
}

#[tokio::test]
async fn nobody_there_is_no_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = client(address).server_info().await.unwrap_err();
    assert!(matches!(&error, ClientError::Connect { url, .. } if url.contains(&address.to_string())));
}

fn endless(piece: &'static [u8]) -> Router {
    Router::new().fallback(move || async move {
        Body::from_stream(futures::stream::repeat_with(move || {
            Ok::<_, std::io::Error>(Bytes::from_static(piece))
        }))
    })
}

#[tokio::test]
async fn endless_answers_are_cut_off() {
    let noise: &[u8] = &[b'x'; 64 << 10];
    let client = client(serve(endless(noise)).await);
    let limit = async {
        assert!(matches!(client.server_info().await, Err(ClientError::Protocol(_))));
        let pull = PullImage {
            reference: "x".into(),
            credentials: None,
            platform: None,
            insecure_http: false,
            ca_pem: None,
        };
        let mut lines = client.pull_image(&pull).await.unwrap();
        assert!(matches!(lines.next().await, Some(Err(ClientError::Protocol(_)))));
        assert!(lines.next().await.is_none());
        let mut events = client.exec_events("b", "e", 0).await.unwrap();
        assert!(matches!(events.next().await, Some(Err(ClientError::Protocol(_)))));
    };
    timeout(DEADLINE, limit).await.unwrap();
}

#[tokio::test]
async fn progress_ends_with_done_or_an_error() {
    let layer = r#"{"type":"layer","digest":"sha256:1","phase":"download","done_bytes":1,"total_bytes":2}"#;
    let error = r#"{"type":"error","error":{"code":"registry_denied","message":"no","retryable":false}}"#;
    let answer = format!("{layer}\n\n{error}\n{layer}\n");
    let cut = format!("{layer}\n");
    let router = Router::new()
        .route("/v1/images/pull", axum::routing::post(move || async move { answer }))
        .route("/v1/images/load", axum::routing::post(move || async move { cut }));
    let client = client(serve(router).await);
    let pull = PullImage {
        reference: "x".into(),
        credentials: None,
        platform: None,
        insecure_http: false,
        ca_pem: None,
    };
    let seen: Vec<_> = client.pull_image(&pull).await.unwrap().collect().await;
    assert!(
        matches!(seen[..], [Ok(ImageProgress::Layer { .. }), Ok(ImageProgress::Error { .. })]),
        "{seen:?}"
    );
    let seen: Vec<_> = client.load_image(futures::stream::empty()).await.unwrap().collect().await;
    assert!(matches!(seen[..], [Ok(ImageProgress::Layer { .. }), Err(ClientError::Protocol(_))]), "{seen:?}");
}

#[tokio::test]
async fn events_are_typed() {
    let events = "event: output\nid: 2\ndata: {\"offset\":0,\"stream\":\"stdout\",\"data\":\"hi\",\"encoding\":\"utf-8\"}\n\n\
                  : still here\n\n\
                  event: gap\ndata: {\"from\":2,\"to\":5}\n\n\
                  event: exit\ndata: {\"type\":\"exit\",\"state\":\"exited\",\"exit\":{\"reason\":\"exited\",\"code\":7,\"signal\":null},\"offset\":5}\n\n";
    let watch = "event: ready\ndata: {}\n\nevent: change\ndata: {\"change\":\"created\",\"path\":\"/a\"}\n\n";
    let router = Router::new()
        .route("/v1/sandboxes/b/execs/e/events", get(move || async move { events }))
        .route("/v1/sandboxes/b/watch", get(move || async move { watch }));
    let client = client(serve(router).await);
    let seen: Vec<_> = client.exec_events("b", "e", 0).await.unwrap().map(Result::unwrap).collect().await;
    let want = [
        ExecEvent::Output(chunk(0, OutputStream::Stdout, b"hi")),
        ExecEvent::Gap { from: 2, to: 5 },
        ExecEvent::Exit { state: ExecState::Exited, exit: exit(), offset: 5 },
    ];
    assert_eq!(seen, want);
    let seen: Vec<_> = client.watch_files("b", "/", true).await.unwrap().map(Result::unwrap).collect().await;
    assert!(matches!(&seen[..], [WatchEvent::Ready, WatchEvent::Changed(change)]
        if change.change == WatchChange::Created && change.path == "/a"));
}

#[derive(Deserialize)]
struct PageQuery {
    offset: usize,
}

#[tokio::test]
async fn following_is_exact_over_a_breaking_wire() {
    let mut random = Random(42);
    let log = Arc::new(Log::random(&mut random, 60_000));
    let served = Arc::clone(&log);
    let router = Router::new().route(
        "/v1/sandboxes/b/execs/e/output",
        get(move |Query(query): Query<PageQuery>| async move {
            let chunks: Vec<_> = served
                .from(query.offset)
                .into_iter()
                .take(3)
                .map(|(at, stream, data)| chunk(at, stream, data))
                .collect();
            let next_offset = chunks
                .last()
                .map_or(query.offset as u64, |last| last.offset + last.bytes().unwrap().len() as u64);
            let page = OutputPage {
                chunks,
                gap_until: None,
                next_offset,
                state: ExecState::Exited,
                exit: Some(exit()),
            };
            serde_json::to_string(&page).unwrap()
        }),
    );
    let wire = breaking_wire(serve(router).await, random, 30, 8_000).await;
    let mut output = client(wire).follow_output("b", "e", 0, true, policy());
    let (mut bytes, mut ended) = (Vec::new(), false);
    while let Some(event) = timeout(DEADLINE, output.next()).await.unwrap().unwrap() {
        match event {
            AttachEvent::Output { data, offset, .. } => {
                assert_eq!(offset, bytes.len() as u64);
                bytes.extend_from_slice(&data);
            }
            AttachEvent::Exit { .. } => ended = true,
            event => panic!("{event:?}"),
        }
    }
    assert!(ended && bytes == log.bytes);
}

#[tokio::test]
async fn offsets_that_do_not_add_up_are_refused() {
    let calls = Arc::new(AtomicUsize::new(0));
    let router = Router::new().fallback(move || async move {
        calls.fetch_add(1, Ordering::Relaxed);
        let chunks = vec![chunk(5, OutputStream::Stdout, b"x")];
        let page =
            OutputPage { chunks, gap_until: None, next_offset: 6, state: ExecState::Running, exit: None };
        serde_json::to_string(&page).unwrap()
    });
    let client = client(serve(router).await);
    let page = client.exec_output("b", "e", OutputQuery::default()).await.unwrap();
    assert_eq!(page.next_offset, 6);
    let error = client.follow_output("b", "e", 0, true, policy()).next().await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)));
}

#[tokio::test]
async fn a_download_that_breaks_off_is_an_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.unwrap());
        }
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nhalf";
        socket.write_all(head).await.unwrap();
        // Closed when the test says so, not before the head was read.
        socket
    });
    let mut download = client(address).read_file("b", "/f", None).await.unwrap();
    drop(server.await.unwrap());
    assert_eq!(download.length, Some(100_000));
    let mut pieces = Vec::new();
    while let Some(piece) = timeout(DEADLINE, download.next()).await.unwrap() {
        let last = piece.is_err();
        pieces.push(piece);
        if last {
            break;
        }
    }
    assert!(matches!(pieces.last(), Some(Err(ClientError::Connect { .. }))), "{pieces:?}");
}
