//! Dialects: which requests they get, how they know the caller, and in which form they render errors.

use std::io;

use atoll_core::key::{KeyFormat, Scope};
use atoll_core::secret::Secret;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{Caller, Grant, Target};
use atoll_server::dialect::{Arrival, Asked, Dialect, Host, Mount, credentials};
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpStream;

use crate::support::{Harness, eventually};

const SERVICE: &str = "test.v1.Echo";

/// Everything that a dialect can claim.
const TEST: Dialect = Dialect {
    name: "test",
    mounts: &[
        Mount::Prefix("/test"),
        Mount::Host(|named| named.label == "api" || named.label.starts_with("49983-")),
        Mount::Header("x-test-sandbox"),
        Mount::Service(SERVICE),
    ],
    router,
    credential,
    refuse,
};

fn credential(headers: &HeaderMap) -> Option<Secret> {
    credentials::header(headers, "x-test-key")
        .or_else(|| credentials::pair(headers, "x-test-id", "x-test-secret"))
}

/// Calls of a service are refused as gRPC does it.
fn refuse(error: &Error, asked: &Asked) -> Response {
    if asked.uri.path().starts_with("/test.v1") {
        return ([("grpc-status", "7"), ("content-type", "application/grpc")], ()).into_response();
    }
    (StatusCode::IM_A_TEAPOT, format!("test: {}", error.code.as_str())).into_response()
}

fn router(host: Host) -> Router {
    Router::new()
        .route("/panic", any(async || -> StatusCode { panic!("a test") }))
        .route("/who", get(who))
        .route("/long", get(long))
        .route("/signed/{object}", get(signed))
        .route("/test.v1.Echo/Say", any(say))
        .fallback(seen)
        .with_state(host)
}

async fn seen(uri: Uri, Extension(arrival): Extension<Arrival>) -> String {
    format!("{} {} {:?}", uri.path(), arrival.prefix, arrival.label)
}

async fn who(State(host): State<Host>, headers: HeaderMap) -> Result<String, StatusCode> {
    let key = host.verify(&headers).map_err(|_refused| StatusCode::UNAUTHORIZED)?;
    Ok(key.scope.as_str().to_owned())
}

async fn right(host: &Host, headers: &HeaderMap) -> Result<Grant, StatusCode> {
    let key = host.verify(headers).map_err(|_refused| StatusCode::UNAUTHORIZED)?;
    let grant = host.engine().authorize(&Caller::of(&key), Needs::READ, Target::Installation).await;
    grant.map_err(|_weak| StatusCode::FORBIDDEN)
}

/// A body that begins, and does not end.
fn endless() -> Body {
    let begins = stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"x"))]);
    Body::from_stream(begins.chain(stream::pending()))
}

async fn long(State(host): State<Host>, headers: HeaderMap, request: Extensions) -> Result<Body, StatusCode> {
    let grant = right(&host, &headers).await?;
    host.fill(&request, grant).map_err(|_full| StatusCode::TOO_MANY_REQUESTS)?;
    Ok(endless())
}

/// The key stands for its signature in the address of an object.
async fn signed(
    State(host): State<Host>,
    Path(object): Path<String>,
    headers: HeaderMap,
    request: Extensions,
) -> Result<Body, StatusCode> {
    let grant = right(&host, &headers).await?;
    let filled = host.fill_signed_object(&request, grant, &object);
    filled.map_err(|_full| StatusCode::TOO_MANY_REQUESTS)?;
    Ok(endless())
}

/// Echoes the message; ends with trailers.
async fn say(body: Bytes) -> Response {
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
    let body = http_body_util::Full::new(body).with_trailers(async move { Some(Ok(trailers)) });
    ([("content-type", "application/grpc")], Body::new(body)).into_response()
}

async fn harness() -> Harness {
    Harness::start_dialects(|config| config.hosts.push("atoll.example.com".to_owned()), &[TEST]).await
}

/// What answers `path` under a host name, with one more header.
async fn get_as(harness: &Harness, path: &str, host: &str, more: Option<(&str, &str)>) -> (u16, String) {
    let mut request = harness.bare(Method::GET, path).header("host", host);
    if let Some((name, value)) = more {
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn claims_are_by_host_then_header_then_path() {
    let harness = harness().await;
    let ok = |text: &str| (200, text.to_owned());
    let at = async |path: &str, host: &str| get_as(&harness, path, host, None).await;
    assert_eq!(at("/test/a", "127.0.0.1").await, ok("/a /test None"));
    assert_eq!(at("/test", "localhost:1").await, ok("/ /test None"));
    // Under a name of its own even the paths of the native API are the dialect's.
    assert_eq!(at("/v1/info", "API.localhost:4600").await, ok("/v1/info  Some(\"api\")"));
    assert_eq!(at("/x", "49983-i0.atoll.example.com").await, ok("/x  Some(\"49983-i0\")"));
    assert_eq!(at("/test.v1.Echo/Other", "127.0.0.1").await, ok("/test.v1.Echo/Other  None"));
    let header = Some(("x-test-sandbox", "i0"));
    assert_eq!(get_as(&harness, "/v1/info", "127.0.0.1", header).await, ok("/v1/info  None"));
    assert_eq!(get_as(&harness, "/test/a", "api.localhost", header).await, ok("/test/a  Some(\"api\")"));
    // A request for a port goes to the port, whatever a page there sends.
    for path in ["/test/a", "/test.v1.Echo/Say", "/x"] {
        let (status, body) = get_as(&harness, path, "3000-web.localhost", header).await;
        assert!(status == 401 && body.contains("this port is private"), "{path}: {status} {body}");
    }
    let named =
        harness.bare(Method::GET, "/test/a").header("x-atoll-sandbox", "web").header("x-atoll-port", "80");
    assert_eq!(named.send().await.unwrap().status(), 401);
    // Other requests are not the dialect's.
    assert_eq!(at("/tests/a", "127.0.0.1").await.0, 404);
    assert_eq!(at("/v1/info", "api.elsewhere.example").await.0, 401);
}

#[tokio::test]
async fn refusals_have_the_dialects_words() {
    let harness = harness().await;
    let foreign = harness.bare(Method::POST, "/test/a").header("origin", "http://evil.example");
    let answer = foreign.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::IM_A_TEAPOT);
    assert!(answer.headers().contains_key("x-request-id"));
    assert_eq!(answer.text().await.unwrap(), "test: forbidden");
    let panics = harness.bare(Method::GET, "/test/panic").send().await.unwrap();
    assert_eq!(panics.text().await.unwrap(), "test: internal");
    let native = harness.bare(Method::POST, "/v1/sandboxes").header("origin", "http://evil.example");
    assert_eq!(harness.send(native).await.code(), "forbidden");
    let metrics = harness.get("/metrics").await;
    let text = metrics.body.as_str().unwrap();
    assert!(text.contains("route=\"test\",status=\"500\""), "{text}");
}

#[tokio::test]
async fn keys_come_in_the_shapes_of_their_vendors() {
    let harness = harness().await;
    let new = async |format: &str| {
        let made = harness.post("/v1/keys", json!({"name": format, "scope": "exec", "format": format})).await;
        assert_eq!(made.status, 201, "{made:?}");
        (
            made.body["secret"].as_str().unwrap().to_owned(),
            made.body["key"]["id"].as_str().unwrap().to_owned(),
        )
    };
    let who = async |pairs: &[(&str, &str)]| {
        let mut request = harness.bare(Method::GET, "/test/who");
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let exec = (200, "exec".to_owned());
    for format in KeyFormat::ALL {
        let (secret, id) = new(format.as_str()).await;
        assert_eq!(who(&[("x-test-key", &secret)]).await, exec, "{format:?}");
        let native = harness.bare(Method::GET, "/v1/info").bearer_auth(&secret);
        assert_eq!(harness.send(native).await.status, 200, "{format:?}");
        assert_eq!(harness.delete(&format!("/v1/keys/{id}")).await.status, 204);
        assert_eq!(who(&[("x-test-key", &secret)]).await.0, 401, "{format:?}");
    }
    let (modal, _) = new("modal").await;
    let (id, secret) = modal.split_once(':').unwrap();
    assert_eq!(who(&[("x-test-id", id), ("x-test-secret", secret)]).await, exec);
    for (id, secret) in [(secret, id), (id, id), (id, ""), ("", secret)] {
        assert_eq!(who(&[("x-test-id", id), ("x-test-secret", secret)]).await.0, 401);
    }
    // Elsewhere than where the dialect looks, and too long.
    assert_eq!(who(&[("x-api-key", harness.key(Scope::Exec))]).await.0, 401);
    assert_eq!(who(&[("x-test-key", &"x".repeat(5000))]).await.0, 401);
    let unknown = harness.post("/v1/keys", json!({"name": "x", "scope": "exec", "format": "acme"})).await;
    assert_eq!((unknown.status, unknown.code()), (400, Code::InvalidArgument.as_str()));
}

#[tokio::test]
async fn signed_addresses_of_objects_take_no_place_of_their_key_and_leave_some_to_each_other() {
    let harness = Harness::start_dialects(|config| config.streams_of_key_max = 2, &[TEST]).await;
    let open = async |path: &str| {
        let request = harness.bare(Method::GET, path).header("x-test-key", harness.key(Scope::Manage));
        request.send().await.unwrap()
    };
    let status = |answer: &reqwest::Response| answer.status().as_u16();
    let first = open("/test/signed/a").await;
    assert_eq!(status(&first), 200);
    assert_eq!(status(&open("/test/signed/a").await), 429, "one object has half of what its owner may have");
    let other = open("/test/signed/b").await;
    assert_eq!(status(&other), 200, "another object has a share");
    assert_eq!(status(&open("/test/signed/c").await), 429, "the owner has no more");
    let own = (open("/test/long").await, open("/test/long").await);
    assert_eq!((status(&own.0), status(&own.1)), (200, 200), "the key has its own");
    assert_ne!(status(&open("/test/long").await), 200, "and no more");
    drop((first, other));
    eventually("a place to be free", async || {
        let again = open("/test/signed/a").await;
        (status(&again) == 200).then_some(again)
    })
    .await;
}

#[tokio::test]
async fn grpc_is_http2_with_trailers() {
    let harness = harness().await;
    let stream = TcpStream::connect(&harness.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    drop(tokio::spawn(connection));
    let address = harness.address.clone();
    let call = |origin: Option<&'static str>| {
        let mut request = Request::post(format!("http://{address}/{SERVICE}/Say"))
            .version(Version::HTTP_2)
            .header("content-type", "application/grpc");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.body(http_body_util::Full::new(Bytes::from_static(b"\0\0\0\0\x02hi"))).unwrap()
    };
    let answer = sender.send_request(call(None)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let body = answer.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), Bytes::from_static(b"\0\0\0\0\x02hi"));
    // Refused before the handler: still an answer of gRPC.
    let refused = sender.send_request(call(Some("http://evil.example"))).await.unwrap();
    assert_eq!(
        (refused.status(), &refused.headers()["grpc-status"]),
        (StatusCode::OK, &HeaderValue::from_static("7"))
    );
}
