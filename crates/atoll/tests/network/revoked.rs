//! Connections end with the right by which they were opened: streams through ports, tunnels, attached execs.

use std::process::Stdio;
use std::time::Duration;

use atoll_api::{CreateAccess, CreateExec, CreateKey, CreateSandbox, KeyFormat};
use atoll_blackbox::{Server, wait_until};
use atoll_core::key::Scope;
use atoll_core::sharing::{Role, Visibility};
use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// Long enough for a slow machine; a connection is cut in milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

/// Streams without an end, takes bodies without an end, and echoes the bytes that come after an upgrade.
const SERVER: &str = r#"
import base64, hashlib, http.server, socketserver, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        self.close_connection = True
        if self.path == "/hang": time.sleep(600)
        if self.path == "/ws":
            key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101); self.send_header("upgrade", "websocket"); self.send_header("connection", "Upgrade")
            self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()); self.end_headers()
            self.wfile.write(b"\x81\x05hello"); time.sleep(600)
        self.send_response(200); self.send_header("content-type", "text/event-stream"); self.end_headers()
        quiet = self.path == "/quiet"
        while True:
            self.wfile.write(b"data: x\n\n"); self.wfile.flush(); time.sleep(600 if quiet else 0.02)
    def do_POST(self):
        while self.rfile.read(1): pass
class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True; request_queue_size = 64
Threads(("127.0.0.1", 3000), Handler).serve_forever()
"#;

struct Setup {
    server: Server,
    sandbox: String,
    /// The id of an exec that writes output every now and then.
    exec: String,
}

impl Setup {
    async fn start() -> Self {
        let server = Server::start();
        let create = CreateSandbox { name: Some("web".to_owned()), ..CreateSandbox::default() };
        let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
        let argv = ["python3", "-c", SERVER].map(str::to_owned).to_vec();
        let create = CreateExec { argv: Some(argv), ..CreateExec::default() };
        server.client.create_exec(&sandbox, &create).await.unwrap();
        wait_until("a server inside", async || {
            let list = server.client.sandbox_ports(&sandbox).await.unwrap();
            list.items.iter().any(|item| item.port == 3000).then_some(())
        })
        .await;
        let exec = server.shell(&sandbox, "echo first; exec sleep 600").await;
        Self { server, sandbox, exec }
    }

    async fn key(&self, ttl_ms: Option<u64>) -> (String, String) {
        let create = CreateKey {
            name: "k".to_owned(),
            scope: Scope::Exec,
            ttl_ms,
            format: KeyFormat::Atoll,
            project: None,
        };
        let made = self.server.client.create_key(&create).await.unwrap();
        (made.key.id, made.secret.reveal().to_owned())
    }

    fn get(&self, credential: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.server.url);
        reqwest::Client::new().get(url).header("x-atoll-token", credential)
    }

    fn port(&self, credential: &str, path: &str) -> reqwest::RequestBuilder {
        self.get(credential, &format!("/v1/sandboxes/{}/ports/3000{path}", self.sandbox))
    }

    fn api(&self, key: &str, path: &str) -> reqwest::RequestBuilder {
        reqwest::Client::new()
            .get(format!("{}/v1/sandboxes/{}{path}", self.server.url, self.sandbox))
            .bearer_auth(key)
    }

    async fn websocket(&self, key: &str, path: &str) -> JoinHandle<()> {
        let url = format!("{}/v1/sandboxes/{}{path}", self.server.url.replace("http", "ws"), self.sandbox);
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        let first = socket.next().await.unwrap().unwrap();
        assert!(matches!(first, Message::Text(_)), "{first:?}");
        tokio::spawn(async move {
            while let Some(Ok(message)) = socket.next().await {
                if let Message::Close(_) = message {
                    drop(socket.close(None).await);
                }
            }
        })
    }

    /// Everything that a key can keep open, begun.
    async fn open(&self, key: &str) -> Vec<(&'static str, JoinHandle<()>)> {
        let exec = &self.exec;
        let mut open = vec![
            ("a busy stream of a port", streaming(self.port(key, "/events")).await),
            ("a quiet stream of a port", streaming(self.port(key, "/quiet")).await),
            ("an unanswered request", waiting(self.port(key, "/hang"))),
            ("an upload to a port", uploading(self.port(key, "/up"))),
            ("a WebSocket of a port", self.websocket(key, "/ports/3000/ws").await),
            ("an attached exec", self.websocket(key, &format!("/execs/{exec}/attach")).await),
            ("events of an exec", streaming(self.api(key, &format!("/execs/{exec}/events"))).await),
            ("a watched directory", streaming(self.api(key, "/watch?path=/tmp")).await),
            ("a long poll", waiting(self.api(key, &format!("/execs/{exec}/output?offset=6&wait_ms=60000")))),
        ];
        open.push(("a tunnel", self.tunnel(key).await));
        open
    }

    /// A connection through the real program.
    async fn tunnel(&self, key: &str) -> JoinHandle<()> {
        let mut command = self.server.cli_command();
        command.env("ATOLL_API_KEY", key).args(["--json", "tunnel", "web", "0:3000"]);
        let mut command = tokio::process::Command::from(command);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let mut line = String::new();
        let mut out = tokio::io::BufReader::new(child.stdout.take().unwrap());
        tokio::io::AsyncBufReadExt::read_line(&mut out, &mut line).await.unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut stream = tokio::net::TcpStream::connect(event["local"].as_str().unwrap()).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.0\r\n\r\n").await.unwrap();
        stream.read_exact(&mut [0; 64]).await.unwrap();
        tokio::spawn(async move {
            let _child = child;
            let mut bytes = [0; 4096];
            while stream.read(&mut bytes).await.is_ok_and(|len| len > 0) {}
        })
    }
}

/// Resolves when an answer that has begun breaks off.
async fn streaming(request: reqwest::RequestBuilder) -> JoinHandle<()> {
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut pieces = response.bytes_stream();
    assert!(pieces.next().await.unwrap().is_ok());
    tokio::spawn(async move { while let Some(Ok(_)) = pieces.next().await {} })
}

/// Resolves when a request is refused that was not answered for long.
fn waiting(request: reqwest::RequestBuilder) -> JoinHandle<()> {
    tokio::spawn(async move {
        let status = request.send().await.unwrap().status();
        assert_eq!(status, 401);
    })
}

/// The same, with a body under way.
fn uploading(request: reqwest::RequestBuilder) -> JoinHandle<()> {
    let (client, request) = request.build_split();
    let mut request = request.unwrap();
    *request.method_mut() = reqwest::Method::POST;
    let endless = futures::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, std::io::Error>("x"), ()))
    });
    *request.body_mut() = Some(reqwest::Body::wrap_stream(endless));
    tokio::spawn(async move {
        // The refusal arrives, or the connection is cut under the body.
        if let Ok(response) = client.execute(request).await {
            assert_eq!(response.status(), 401);
        }
    })
}

async fn all_end(open: Vec<(&'static str, JoinHandle<()>)>) {
    let ended = open.into_iter().map(|(what, task)| async move {
        tokio::time::timeout(DEADLINE, task).await.unwrap_or_else(|_| panic!("{what} goes on")).unwrap();
    });
    futures::future::join_all(ended).await;
}

fn none_ended(open: &[(&'static str, JoinHandle<()>)]) {
    let ended: Vec<_> = open.iter().filter(|(_, task)| task.is_finished()).map(|(what, _)| what).collect();
    assert!(ended.is_empty(), "{ended:?} ended by themselves");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_key_has_open_ends_with_its_role_and_with_the_key() {
    let setup = Setup::start().await;
    let (id, key) = setup.key(None).await;
    let (_, other) = setup.key(None).await;
    let client = &setup.server.client;
    client.grant("web", &id, Role::Exec).await.unwrap();

    // A change that takes nothing away cuts nothing.
    let open = setup.open(&key).await;
    client.set_visibility("web", Some(Visibility::Private)).await.unwrap();
    let still = setup.port(&key, "/events").send().await.unwrap();
    assert_eq!(still.status(), 200);
    none_ended(&open);
    client.revoke("web", &id).await.unwrap();
    all_end(open).await;
    assert_eq!(setup.port(&key, "/events").send().await.unwrap().status(), 404);

    client.set_visibility("web", Some(Visibility::Shared)).await.unwrap();
    let open = setup.open(&key).await;
    let others = vec![("what another key opened", streaming(setup.port(&other, "/events")).await)];
    none_ended(&open);
    client.delete_key(&id).await.unwrap();
    all_end(open).await;
    none_ended(&others);
    setup.server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_out_takes_along_what_it_opened() {
    let setup = Setup::start().await;
    let (_, key) = setup.key(Some(4000)).await;
    let create = CreateAccess { port: Some(3000), ttl_ms: Some(4000), ..CreateAccess::default() };
    let token = setup.server.client.create_access("web", &create).await.unwrap().token.unwrap();
    let token = token.reveal();
    let mut open = vec![
        ("a stream by a key", streaming(setup.port(&key, "/events")).await),
        ("a stream by a token", streaming(setup.port(token, "/quiet")).await),
        ("an attached exec", setup.websocket(&key, &format!("/execs/{}/attach", setup.exec)).await),
    ];
    let create = CreateAccess { port: Some(3000), ..CreateAccess::default() };
    let made = setup.server.client.create_access("web", &create).await.unwrap();
    let lasting = made.token.unwrap();
    open.push((
        "a stream by a token that was taken back",
        streaming(setup.port(lasting.reveal(), "/quiet")).await,
    ));
    setup.server.client.revoke_access("web", &made.access.id).await.unwrap();
    all_end(open).await;
    setup.server.finish().await;
}
