//! Clients whose connection breaks: in the middle of the request, while the server works on it, in the middle of the
//! answer. Whatever the place, the API, the database and the host say the same afterwards, nothing is left half done, and
//! a request with an idempotency key that is sent again is done once.

use std::collections::BTreeSet;

use atoll_api::CreateService;
use atoll_blackbox::{Server, wait_until};
use atoll_core::service::ServiceReady;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Makes every creation last until the server has noticed that its client is gone.
const SLOW: (&str, &str) = ("ATOLL_FAILPOINTS", "engine.create.connected=sleep(150)");
/// Bytes of a message of gRPC before its content.
const GRPC_EMPTY: &[u8] = b"\0\0\0\0\0";
/// The server says so when it undoes what it made for a client that left.
const UNDONE: &str = "what was made for it is undone";
const INTERPRETER: &str = include_str!("../common/interpreter.py");

/// A request over HTTP/1.1, as bytes.
struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    fn new(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (name, value) in headers.iter().chain(&[("content-length", body.len().to_string().as_str())]) {
            head.extend([*name, ": ", *value, "\r\n"]);
        }
        head.push_str("\r\n");
        Self { head, body }
    }

    /// One of the native API.
    fn native(server: &Server, method: &str, path: &str, key: Option<&str>, body: &Value) -> Self {
        let bearer = format!("Bearer {}", server.key);
        let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        Self::new(method, &format!("/v1{path}"), &headers, body)
    }

    fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }
}

/// Where a connection breaks.
#[derive(Debug, Clone, Copy)]
enum Break {
    /// So many bytes of the request were sent, and the connection is reset.
    Sent(usize),
    /// All of it was sent, and the client ends the connection in order.
    Closed,
    /// All of it was sent, so many bytes of the answer came, and the connection is reset.
    Told(usize),
}

/// The places at which a connection breaks: around each part of request and answer.
fn breaks(request: &Request, answer_bytes: usize) -> Vec<Break> {
    let (head, all) = (request.head.len(), request.bytes().len());
    let sent = BTreeSet::from([1, head / 2, head - 1, head, (head + all) / 2, all - 1, all]);
    let told = BTreeSet::from([1, 15, answer_bytes / 2, answer_bytes - 1]);
    let sent = sent.into_iter().map(Break::Sent);
    sent.chain([Break::Closed]).chain(told.into_iter().map(Break::Told)).collect()
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap()
}

async fn broken(server: &Server, request: &Request, at: Break) {
    let (mut stream, bytes) = (connect(server).await, request.bytes());
    let sent = if let Break::Sent(count) = at { count } else { bytes.len() };
    stream.write_all(&bytes[..sent]).await.unwrap();
    match at {
        Break::Sent(_) => {}
        Break::Closed => return stream.shutdown().await.unwrap(),
        // The answer may be shorter than the first one was.
        Break::Told(count) => drop(stream.read_exact(&mut vec![0; count]).await),
    }
    stream.set_zero_linger().unwrap();
}

/// Sends a request, and ends the connection when the server has begun to make a sandbox for it; says whether the client
/// was told by then.
async fn closed_while_it_is_made(server: &Server, request: &Request, before: &BTreeSet<String>) -> bool {
    let mut stream = connect(server).await;
    stream.write_all(&request.bytes()).await.unwrap();
    wait_until("it is being made", async || (sandboxes(server).await.len() > before.len()).then_some(()))
        .await;
    let told = stream.try_read(&mut [0]).is_ok();
    stream.shutdown().await.unwrap();
    told
}

/// Sends a request and reads the whole answer: its status and length.
async fn whole(server: &Server, request: &Request) -> (u16, usize) {
    let mut stream = connect(server).await;
    stream.write_all(&request.bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    assert!(status < 500, "{}{text}", request.head);
    (status, answer.len())
}

async fn list(server: &Server, what: &str) -> Vec<Value> {
    let answer = server.send(server.request("GET", &format!("/v1/{what}"))).await;
    let body = answer.json();
    let items = body["items"].as_array().or(body["pools"].as_array());
    items.unwrap_or_else(|| panic!("{what}: {}", answer.text())).clone()
}

fn ids(items: &[Value]) -> BTreeSet<String> {
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

async fn sandboxes(server: &Server) -> BTreeSet<String> {
    ids(&list(server, "sandboxes?limit=1000").await)
}

fn named(dir: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Whether lists (of the database), single objects (in memory) and the host agree, and all is at rest.
async fn agrees(server: &Server) -> Option<()> {
    let sandboxes = list(server, "sandboxes?limit=1000").await;
    for listed in &sandboxes {
        let path = format!("/v1/sandboxes/{}", listed["id"].as_str()?);
        let seen = server.send(server.request("GET", &path)).await;
        let same = ["state", "name", "labels"]
            .iter()
            .all(|field| seen.status == 200 && seen.json()[field] == listed[field]);
        if !same || !["running", "paused"].contains(&listed["state"].as_str()?) {
            return None;
        }
    }
    let builds = list(server, "builds").await;
    let at_rest = builds.iter().all(|build| {
        ["succeeded", "failed", "cancelled"].contains(&build["state"].as_str().unwrap_or_default())
    });
    let on_host = named(&server.data().join("containers/sandboxes"));
    let leaks = server.client.list_leaks().await.unwrap().items;
    // Members of pools are on the host, and in no list.
    let pooled: u64 = list(server, "pools").await.iter().filter_map(|pool| pool["ready"].as_u64()).sum();
    let running = sandboxes.iter().filter(|one| one["state"] == "running").cloned().collect::<Vec<_>>();
    let there =
        on_host.is_superset(&ids(&running)) && on_host.len() as u64 <= sandboxes.len() as u64 + pooled;
    (at_rest && there && leaks.is_empty()).then_some(())
}

/// What stays of a request after a break, when it is not sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stays {
    /// What it does, or nothing of it.
    AllOrNothing,
    /// No sandbox, unless the client was told of it: no retry would find it.
    Nothing,
    /// One sandbox however often it is sent.
    Once,
}

/// Breaks the connection of a request at every place; `prepare` makes the state before it, and the request.
async fn break_everywhere(
    server: &Server,
    what: &str,
    stays: Stays,
    mut prepare: impl AsyncFnMut(&Server, usize) -> Request,
) {
    let first = prepare(server, 0).await;
    let before = sandboxes(server).await;
    let (status, answer_bytes) = whole(server, &first).await;
    let made = sandboxes(server).await.difference(&before).count();
    assert!(
        status < 300 && (stays == Stays::AllOrNothing || made == 1),
        "{what}: {status}, {made} sandboxes"
    );
    clear(server).await;
    for (number, at) in breaks(&first, answer_bytes).into_iter().enumerate() {
        let request = prepare(server, number + 1).await;
        let before = sandboxes(server).await;
        let undone = server.log().matches(UNDONE).count();
        let made_first = matches!(at, Break::Closed) && stays == Stays::Nothing;
        let told = if made_first {
            closed_while_it_is_made(server, &request, &before).await
        } else {
            broken(server, &request, at).await;
            matches!(at, Break::Told(_))
        };
        wait_until(&format!("{what}, broken at {at:?}: all agree"), async || {
            agrees(server).await?;
            let made = sandboxes(server).await.difference(&before).count();
            // Whether the server has read the request of a connection that was reset is not certain.
            let waits = made_first && server.log().matches(UNDONE).count() == undone;
            (stays != Stays::Nothing || told || made == 0 && !waits).then_some(())
        })
        .await;
        if stays != Stays::Nothing {
            whole(server, &request).await;
            wait_until(&format!("{what}, broken at {at:?}, sent again: all agree"), || agrees(server)).await;
            let made = sandboxes(server).await.difference(&before).count();
            assert!(stays != Stays::Once || made == 1, "{what}, broken at {at:?}: {made} sandboxes");
        }
        clear(server).await;
    }
}

/// Deletes all sandboxes.
async fn clear(server: &Server) {
    for id in sandboxes(server).await {
        let deleted = server.send(server.request("DELETE", &format!("/v1/sandboxes/{id}"))).await;
        assert!([204, 404].contains(&deleted.status), "{}", deleted.text());
    }
}

/// The next server finds in the database what this one had in memory.
async fn is_stored(mut server: Server) {
    let kinds = ["sandboxes", "volumes", "snapshots", "builds", "templates"];
    // A snapshot is made before its digest is known.
    wait_until("digests of all snapshots", async || {
        let snapshots = list(&server, "snapshots").await;
        snapshots.iter().all(|snapshot| !snapshot["digest"].is_null()).then_some(())
    })
    .await;
    let mut before = Vec::new();
    for kind in kinds {
        before.push(list(&server, kind).await);
    }
    server.stop();
    server.restart();
    for (kind, before) in kinds.into_iter().zip(before) {
        assert_eq!(list(&server, kind).await, before, "{kind}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_whose_client_breaks_off() {
    let server = Server::with(&["--pool-demand", "0"]);
    break_everywhere(&server, "a creation", Stays::Once, async |server, number| {
        Request::native(server, "POST", "/sandboxes", Some(&format!("made-{number}")), &json!({}))
    })
    .await;
    break_everywhere(&server, "a change", Stays::AllOrNothing, async |server, number| {
        let body = json!({ "name": format!("named-{number}"), "labels": { "a": "b" } });
        Request::native(server, "PATCH", &format!("/sandboxes/{}", server.sandbox().await.id), None, &body)
    })
    .await;
    break_everywhere(&server, "a pause", Stays::AllOrNothing, async |server, _| {
        let path = format!("/sandboxes/{}/pause", server.sandbox().await.id);
        Request::native(server, "POST", &path, None, &json!({ "mode": "filesystem" }))
    })
    .await;
    break_everywhere(&server, "a fork", Stays::Once, async |server, number| {
        let path = format!("/sandboxes/{}/fork", server.sandbox().await.id);
        Request::native(server, "POST", &path, Some(&format!("fork-{number}")), &json!({ "count": 1 }))
    })
    .await;
    break_everywhere(&server, "a deletion", Stays::AllOrNothing, async |server, _| {
        let path = format!("/sandboxes/{}", server.sandbox().await.id);
        Request::native(server, "DELETE", &path, None, &Value::Null)
    })
    .await;
    is_stored(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_files_whose_client_breaks_off() {
    let server = Server::with(&["--pool-demand", "0"]);
    let made = server.sandbox().await.id;
    // A command with a key runs once.
    let exec = json!({ "shell": "echo x >> /ran", "wait_ms": 60_000, "idempotency_key": "first" });
    let request = Request::native(&server, "POST", &format!("/sandboxes/{made}/execs"), None, &exec);
    let (_, answer_bytes) = whole(&server, &request).await;
    for at in breaks(&request, answer_bytes) {
        broken(&server, &request, at).await;
        whole(&server, &request).await;
        assert_eq!(server.sh(&made, "cat /ran").await.stdout, "x\n", "{at:?}");
    }
    // A file is there whole, or not at all, and nothing beside it.
    let content = "0123456789".repeat(20_000);
    let bearer = format!("Bearer {}", server.key);
    let put = |number: usize| {
        let path = format!("/v1/sandboxes/{made}/files?path=/files/{number:02}&parents=true");
        Request::new("PUT", &path, &[("authorization", &bearer)], content.as_bytes())
    };
    let (_, answer_bytes) = whole(&server, &put(0)).await;
    let all = breaks(&put(0), answer_bytes);
    for (number, at) in (1..).zip(&all) {
        broken(&server, &put(number), *at).await;
        let bytes = server.sh(&made, &format!("cat /files/{number:02} 2>/dev/null | wc -c")).await.stdout;
        let bytes: usize = bytes.trim().parse().unwrap();
        assert!(bytes == 0 || bytes == content.len(), "{at:?}: {bytes}");
        assert_eq!(whole(&server, &put(number)).await.0, 200, "{at:?}");
    }
    let wanted: String = (0..=all.len()).map(|number| format!("{number:02}\n")).collect();
    wait_until("nothing is beside the files", async || {
        (server.sh(&made, "ls -A /files").await.stdout == wanted).then_some(())
    })
    .await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_pools_volumes_and_snapshots_whose_client_breaks_off() {
    let server = Server::with(&["--pool-demand", "0"]);
    break_everywhere(&server, "a build", Stays::AllOrNothing, async |server, number| {
        let body = json!({ "name": format!("built-{number}"), "dockerfile": "FROM host\nRUN echo x >/x\n" });
        Request::native(server, "POST", "/builds", Some(&format!("build-{number}")), &body)
    })
    .await;
    break_everywhere(&server, "a pool", Stays::AllOrNothing, async |server, number| {
        let size = number % 2 + 1;
        let body = json!({ "image": "host", "min": size, "max": size });
        Request::native(server, "PUT", "/pools", None, &body)
    })
    .await;
    break_everywhere(&server, "the end of a pool", Stays::AllOrNothing, async |server, _| {
        let body = json!({ "image": "host", "min": 1, "max": 1 });
        let put = Request::native(server, "PUT", "/pools", None, &body);
        assert_eq!(whole(server, &put).await.0, 200);
        Request::native(server, "DELETE", "/pools?image=host", None, &Value::Null)
    })
    .await;
    break_everywhere(&server, "a volume", Stays::AllOrNothing, async |server, number| {
        let body = json!({ "name": format!("volume-{number}"), "size_bytes": 64 << 20 });
        Request::native(server, "POST", "/volumes", Some(&format!("volume-{number}")), &body)
    })
    .await;
    let volumes = list(&server, "volumes").await;
    break_everywhere(&server, "the end of a volume", Stays::AllOrNothing, async |server, number| {
        let id = volumes[number]["id"].as_str().unwrap();
        Request::native(server, "DELETE", &format!("/volumes/{id}"), None, &Value::Null)
    })
    .await;
    break_everywhere(&server, "a snapshot", Stays::AllOrNothing, async |server, number| {
        let path = format!("/sandboxes/{}/snapshots", server.sandbox().await.id);
        Request::native(server, "POST", &path, Some(&format!("snapshot-{number}")), &json!({}))
    })
    .await;
    is_stored(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_whose_client_breaks_off() {
    let server = Server::with(&["--pool-demand", "0"]);
    let made = server.sandbox().await.id;
    let service = CreateService {
        name: "interpreter".to_owned(),
        argv: Some(["python3", "-u", "-c", INTERPRETER].map(str::to_owned).to_vec()),
        ready: Some(ServiceReady {
            command: None,
            port: Some(49_999),
            path: None,
            interval_ms: None,
            timeout_ms: None,
        }),
        ..CreateService::default()
    };
    server.client.create_service(&made, &service).await.unwrap();
    wait_until("the interpreter", async || {
        let service = server.client.get_service(&made, "interpreter", 30_000).await.unwrap();
        (service.state.as_str() == "running").then_some(())
    })
    .await;
    let path = format!("/sandboxes/{made}/contexts");
    let make = |number: usize| {
        let body = json!({ "name": format!("context-{number}") });
        Request::native(&server, "POST", &path, Some(&format!("context-{number}")), &body)
    };
    let (_, answer_bytes) = whole(&server, &make(0)).await;
    for (number, at) in (1..).zip(breaks(&make(0), answer_bytes)) {
        broken(&server, &make(number), at).await;
        whole(&server, &make(number)).await;
        let listed = list(&server, &path[1..]).await;
        assert_eq!(listed.len(), number + 1, "{at:?}: {listed:?}");
    }
    let mut left = ids(&list(&server, &path[1..]).await);
    let remove = |id: &str| Request::native(&server, "DELETE", &format!("{path}/{id}"), None, &Value::Null);
    let (_, answer_bytes) = whole(&server, &remove(&left.pop_first().unwrap())).await;
    for at in breaks(&remove("x"), answer_bytes) {
        let Some(id) = left.pop_first() else { break };
        broken(&server, &remove(&id), at).await;
        assert!([204, 404].contains(&whole(&server, &remove(&id)).await.0), "{at:?}");
        assert_eq!(ids(&list(&server, &path[1..]).await), left, "{at:?}");
    }
    server.finish().await;
}

/// Of the native API and every dialect the creation of a sandbox. Those whose clients send a key with each try keep it for
/// the next try; of all others no client could find it again.
#[tokio::test(flavor = "multi_thread")]
async fn creations_of_every_dialect_whose_client_breaks_off() {
    let server = Server::with_env(&["--pool-demand", "0"], &[SLOW]);
    let key = server.key.clone();
    let bearer = format!("Bearer {key}");
    let json = ("content-type", "application/json");
    let modal = [
        ("content-type", "application/grpc+proto"),
        ("x-modal-token-id", key.as_str()),
        ("x-modal-token-secret", key.as_str()),
    ];
    let grpc = "/modal.client.ModalClient/SandboxCreateV2";
    type Told<'h> =
        (&'static str, &'static str, Vec<(&'h str, &'h str)>, &'static [u8], Option<&'static str>);
    let all: [Told<'_>; 6] = [
        ("Atoll", "/v1/sandboxes", vec![json, ("authorization", &bearer)], b"{}", Some("idempotency-key")),
        (
            "E2B",
            "/e2b/v2/sandboxes",
            vec![json, ("x-api-key", &key)],
            br#"{"templateID":"base"}"#,
            Some("idempotency-key"),
        ),
        (
            "Runloop",
            "/runloop/v1/devboxes",
            vec![json, ("authorization", &bearer)],
            b"{}",
            Some("x-request-id"),
        ),
        ("Modal", grpc, modal.to_vec(), GRPC_EMPTY, Some("x-idempotency-key")),
        ("Daytona", "/daytona/api/sandbox", vec![json, ("authorization", &bearer)], b"{}", None),
        ("LangSmith", "/langsmith/v2/sandboxes/boxes", vec![json, ("x-api-key", &key)], b"{}", None),
    ];
    for (vendor, path, headers, body, by_key) in all {
        break_everywhere(&server, &format!("{vendor}'s creation"), Stays::Nothing, async |_, _| {
            Request::new("POST", path, &headers, body)
        })
        .await;
        let Some(name) = by_key else { continue };
        break_everywhere(
            &server,
            &format!("{vendor}'s creation with a key"),
            Stays::Once,
            async |_, number| {
                let once = format!("once-{number}");
                let headers: Vec<_> = headers.iter().copied().chain([(name, once.as_str())]).collect();
                Request::new("POST", path, &headers, body)
            },
        )
        .await;
    }
    break_everywhere(&server, "a fork whose children have no name", Stays::Nothing, async |server, _| {
        let path = format!("/sandboxes/{}/fork", server.sandbox().await.id);
        Request::native(server, "POST", &path, None, &json!({ "count": 1 }))
    })
    .await;
    is_stored(server).await;
}
