//! Ports of sandboxes, from outside: real servers inside, real clients.

use std::time::Duration;

use atoll_api::{CreateAccess, CreateExec, CreateSandbox, Sandbox};
use atoll_blackbox::{Server, wait_until};
use futures::{SinkExt as _, StreamExt as _};
use reqwest::header::{ACCEPT, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// A server that answers with the request that it got, and has a few odd corners.
const ECHO: &str = r#"
import base64, hashlib, http.server, json, socketserver, struct, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def body(self):
        if self.headers.get("transfer-encoding"):
            out = b""
            while True:
                size = int(self.rfile.readline(), 16)
                out += self.rfile.read(size); self.rfile.readline()
                if size == 0: return out
        return self.rfile.read(int(self.headers.get("content-length", 0)))
    def answer(self):
        path = self.path.split("?")[0]
        if path == "/ws": return self.websocket()
        if path == "/events":
            self.send_response(200); self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close"); self.end_headers()
            for n in range(3):
                self.wfile.write(b"data: %d\n\n" % n); self.wfile.flush()
                if n < 2: time.sleep(0.05)
            self.close_connection = True
            return
        if path == "/garbage":
            self.wfile.write(b"\x16\x03 no http\r\n\r\n"); self.close_connection = True; return
        if path == "/crash":
            self.close_connection = True; return
        if path == "/headers":
            self.send_response(200); self.send_header("x-long", "x" * 200000); self.end_headers(); return
        if path == "/cookies":
            self.send_response(200)
            for cookie in ["sid=1; Domain=localhost; Path=/", "atoll_port=stolen", "a=b"]:
                self.send_header("set-cookie", cookie)
            self.send_header("clear-site-data", "\"*\""); self.send_header("content-length", "0")
            self.end_headers(); return
        if path == "/moved":
            self.send_response(302); self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0"); self.end_headers(); return
        if path == "/trailers":
            self.send_response(200); self.send_header("transfer-encoding", "chunked")
            self.send_header("trailer", "x-sum"); self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n0\r\nx-sum: 5\r\n\r\n"); return
        if path == "/big":
            size = int(self.path.split("=")[1])
            self.send_response(200); self.send_header("content-length", str(size)); self.end_headers()
            block = bytes(range(256)) * 256
            while size: self.wfile.write(block[:size]); size -= len(block[:size])
            return
        data = self.body()
        text = json.dumps({"method": self.command, "path": self.path, "headers": [[k.lower(), v] for k, v in self.headers.items()],
            "length": len(data), "sha256": hashlib.sha256(data).hexdigest(), "peer": self.client_address[1]}).encode()
        self.send_response(200); self.send_header("content-length", str(len(text)))
        self.send_header("content-type", "application/json"); self.end_headers()
        if self.command != "HEAD": self.wfile.write(text)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = answer
    def websocket(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101); self.send_header("upgrade", "websocket"); self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()); self.end_headers()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2: return
            size = head[1] & 127
            if size == 126: size = struct.unpack(">H", self.rfile.read(2))[0]
            elif size == 127: size = struct.unpack(">Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4); data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            if head[0] & 15 == 8: self.close_connection = True; return
            ext = struct.pack(">B", size) if size < 126 else b"\x7e" + struct.pack(">H", size)
            self.wfile.write(bytes([head[0]]) + ext + data); self.wfile.flush()
class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True; request_queue_size = 1024
Threads(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

struct Setup {
    server: Server,
    sandbox: Sandbox,
    http: Client,
}

impl Setup {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    async fn with(args: &[&str]) -> Self {
        let server = Server::with(args);
        let sandbox = named(&server, "web").await;
        serve_echo(&server, &sandbox.id, 3000).await;
        let http = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { server, sandbox, http }
    }

    /// A request to a port by host name, without a credential.
    fn by_host(&self, method: Method, path: &str) -> RequestBuilder {
        let address = self.server.url.strip_prefix("http://").unwrap();
        let port = address.rsplit_once(':').unwrap().1;
        self.http
            .request(method, format!("{}{path}", self.server.url))
            .header(HOST, format!("3000-web.localhost:{port}"))
    }

    fn keyed(&self, method: Method, path: &str) -> RequestBuilder {
        self.by_host(method, path).header("x-atoll-token", &self.server.key)
    }

    async fn token(&self, create: CreateAccess) -> String {
        let made = self.server.client.create_access("web", &create).await.unwrap();
        made.token.unwrap().reveal().to_owned()
    }

    async fn port_token(&self) -> String {
        self.token(CreateAccess { port: Some(3000), ..CreateAccess::default() }).await
    }
}

async fn named(server: &Server, name: &str) -> Sandbox {
    let create = CreateSandbox { name: Some(name.to_owned()), ..CreateSandbox::default() };
    server.client.create_sandbox(&create).await.unwrap()
}

/// Starts the server inside and waits until it listens.
async fn serve_echo(server: &Server, sandbox: &str, port: u16) {
    let argv = ["python3", "-c", ECHO, &port.to_string()].map(str::to_owned).to_vec();
    let create = CreateExec { argv: Some(argv), ..CreateExec::default() };
    server.client.create_exec(sandbox, &create).await.unwrap();
    wait_until("a server inside", async || {
        let list = server.client.sandbox_ports(sandbox).await.unwrap();
        list.items.iter().any(|item| item.port == port).then_some(())
    })
    .await;
}

async fn json(request: RequestBuilder) -> serde_json::Value {
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{:?}", response.text().await);
    response.json().await.unwrap()
}

fn header<'a>(echo: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let pairs = echo["headers"].as_array().unwrap();
    pairs.iter().find(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap())
}

#[tokio::test]
async fn a_port_is_reached_in_three_ways() {
    let setup = Setup::start().await;
    let key = &setup.server.key;
    let echo = json(setup.keyed(Method::GET, "/a/b?c=%20d")).await;
    assert_eq!(echo["path"], "/a/b?c=%20d");
    assert!(header(&echo, "host").unwrap().starts_with("3000-web.localhost:"));
    assert_eq!(header(&echo, "x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(header(&echo, "x-forwarded-proto"), Some("http"));
    assert_eq!(header(&echo, "x-atoll-token"), None, "the key went in");

    let url = |path: &str| format!("{}{path}", setup.server.url);
    let request = setup.http.get(url("/a")).bearer_auth(key);
    let echo = json(request.header("x-atoll-sandbox", "web").header("x-atoll-port", "3000")).await;
    assert_eq!((&echo["path"], header(&echo, "host")), (&"/a".into(), Some("localhost:3000")));
    assert!(!echo.to_string().contains(key), "the key went in");

    let path = format!("/v1/sandboxes/{}/ports/3000/x/y?z", setup.sandbox.id);
    let response = setup.http.get(url(&path)).header("x-api-key", key).send().await.unwrap();
    assert!(response.headers()["content-security-policy"].to_str().unwrap().starts_with("sandbox"));
    let echo: serde_json::Value = response.json().await.unwrap();
    assert_eq!(echo["path"], "/x/y?z");
    let prefix = format!("/v1/sandboxes/{}/ports/3000", setup.sandbox.id);
    assert_eq!(header(&echo, "x-forwarded-prefix"), Some(prefix.as_str()));
    assert!(!echo.to_string().contains(key), "the key went in");
    let moved = setup.http.get(url(&format!("{prefix}/moved"))).bearer_auth(key).send().await.unwrap();
    assert_eq!(moved.headers()[LOCATION], format!("{prefix}/elsewhere"));
    setup.server.finish().await;
}

#[tokio::test]
async fn a_port_is_private_until_somebody_may() {
    let setup = Setup::start().await;
    let status = async |request: RequestBuilder| request.send().await.unwrap().status();
    let with = |token: &str| setup.by_host(Method::GET, "/").header("x-atoll-token", token);
    assert_eq!(status(setup.by_host(Method::GET, "/")).await, StatusCode::UNAUTHORIZED);
    // Whether a sandbox is there, strangers do not learn.
    let nowhere = setup.http.get(&setup.server.url).header(HOST, "3000-nowhere.localhost");
    assert_eq!(status(nowhere).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(with("atollp_nonsense")).await, StatusCode::UNAUTHORIZED);

    let token = setup.port_token().await;
    assert_eq!(status(with(&token)).await, StatusCode::OK);
    assert_eq!(status(setup.by_host(Method::GET, "/").bearer_auth(&token)).await, StatusCode::OK);
    assert_eq!(status(setup.by_host(Method::GET, &format!("/?atoll_token={token}"))).await, StatusCode::OK);
    let other = setup.token(CreateAccess { port: Some(3001), ..CreateAccess::default() }).await;
    assert_eq!(status(with(&other)).await, StatusCode::UNAUTHORIZED);
    let all = setup.token(CreateAccess { all_ports: true, ..CreateAccess::default() }).await;
    assert_eq!(status(with(&all)).await, StatusCode::OK);
    let short = CreateAccess { port: Some(3000), ttl_ms: Some(1), ..CreateAccess::default() };
    let short = setup.token(short).await;
    wait_until("an access to end", async || (status(with(&short)).await == 401).then_some(())).await;
    // A key that may only look does not get in; a token is no key.
    let read = setup.server.cli(&["key", "create", "--scope", "read", "reader"]).ok();
    assert_eq!(status(with(read.stdout.trim())).await, StatusCode::FORBIDDEN);
    let api = setup.http.get(format!("{}/v1/info", setup.server.url)).bearer_auth(&all);
    assert_eq!(status(api).await, StatusCode::UNAUTHORIZED);
    // A token of one sandbox is none of another.
    let elsewhere = named(&setup.server, "other").await;
    let path = format!("{}/v1/sandboxes/{}/ports/3000/", setup.server.url, elsewhere.id);
    assert_eq!(status(setup.http.get(path).header("x-atoll-token", &all)).await, StatusCode::UNAUTHORIZED);

    let public = CreateAccess { port: Some(3000), public: true, ..CreateAccess::default() };
    let public = setup.server.client.create_access("web", &public).await.unwrap();
    assert_eq!(status(setup.by_host(Method::GET, "/")).await, StatusCode::OK);
    let list = setup.server.client.list_accesses("web").await.unwrap();
    assert!(!serde_json::to_string(&list).unwrap().contains(&token));
    for access in &list.items {
        setup.server.client.revoke_access("web", &access.id).await.unwrap();
    }
    assert!(list.items.iter().any(|access| access.id == public.access.id));
    assert_eq!(status(setup.by_host(Method::GET, "/")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(with(&token)).await, StatusCode::UNAUTHORIZED);
    setup.server.finish().await;
}

#[tokio::test]
async fn accesses_survive_a_restart_and_lie_hashed() {
    let mut setup = Setup::start().await;
    let token = setup.port_token().await;
    setup.server.kill();
    for name in ["atoll.db", "atoll.db-wal"] {
        let bytes = std::fs::read(setup.server.data().join(name)).unwrap_or_default();
        assert!(!bytes.windows(token.len()).any(|part| part == token.as_bytes()), "{name} holds the token");
    }
    assert!(!setup.server.log().contains(&token));
    setup.server.restart();
    let answer = setup.by_host(Method::GET, "/").header("x-atoll-token", &token).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    setup.server.finish().await;
}

#[tokio::test]
async fn a_link_becomes_a_cookie_that_other_sites_cannot_use() {
    let setup = Setup::start().await;
    let token = setup.port_token().await;
    let link = setup.by_host(Method::GET, &format!("//evil.example/x?a=1&atoll_token={token}"));
    let response = link.header(ACCEPT, "text/html").send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()[LOCATION]),
        (303, &"/evil.example/x?a=1".parse().unwrap())
    );
    let cookie = response.headers()[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && !cookie.contains("Domain"),
        "{cookie}"
    );
    let pair = format!("mine=1; {}", cookie.split(';').next().unwrap());
    let visit = || setup.by_host(Method::POST, "/").header(COOKIE, &pair);
    let echo = json(visit()).await;
    assert_eq!(header(&echo, "cookie"), Some("mine=1"));
    let own = format!("http://3000-web.localhost:{}", setup.server.url.rsplit_once(':').unwrap().1);
    for (origin, status) in [
        (own.as_str(), 200),
        ("http://evil.example", 403),
        ("http://3000-other.localhost", 403),
        ("null", 403),
    ] {
        assert_eq!(visit().header(ORIGIN, origin).send().await.unwrap().status(), status, "{origin}");
    }
    let image = visit().header("sec-fetch-site", "same-site").header("sec-fetch-mode", "no-cors");
    assert_eq!(image.send().await.unwrap().status(), 403);
    setup.server.finish().await;
}

#[tokio::test]
async fn bodies_stream_both_ways_and_connections_are_used_again() {
    let setup = Setup::start().await;
    let bytes = vec![7_u8; 20 << 20];
    let sum = sha256(&bytes);
    let echo = json(setup.keyed(Method::PUT, "/up").body(bytes.clone())).await;
    assert_eq!((&echo["length"], &echo["sha256"]), (&(20 << 20).into(), &sum.as_str().into()));
    // Without a length: chunks.
    let chunks = futures::stream::iter(
        bytes.chunks(1 << 20).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect::<Vec<_>>(),
    );
    let echo = json(setup.keyed(Method::POST, "/up").body(reqwest::Body::wrap_stream(chunks))).await;
    assert_eq!((&echo["length"], &echo["sha256"]), (&(20 << 20).into(), &sum.as_str().into()));
    let down = setup.keyed(Method::GET, "/big?size=30000000").send().await.unwrap().bytes().await.unwrap();
    assert!(down.len() == 30_000_000 && down.iter().enumerate().all(|(n, b)| usize::from(*b) == n % 256));
    let first = json(setup.keyed(Method::GET, "/")).await;
    let second = json(setup.keyed(Method::GET, "/")).await;
    assert_eq!(first["peer"], second["peer"], "the connection was not used again");
    let head = setup.keyed(Method::HEAD, "/").send().await.unwrap();
    assert_eq!(head.status(), 200);
    // The server in the sandbox closed the connection meanwhile: the client does not notice.
    let crashed = setup.keyed(Method::POST, "/crash").send().await.unwrap();
    assert_eq!(crashed.status(), 502);
    assert_eq!(json(setup.keyed(Method::GET, "/")).await["method"], "GET");
    setup.server.finish().await;
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(bytes))
}

#[tokio::test]
async fn events_and_websockets_pass() {
    let setup = Setup::start().await;
    let events = setup.keyed(Method::GET, "/events").send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    assert_eq!(events.text().await.unwrap(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");

    let token = setup.port_token().await;
    let address = setup.server.url.strip_prefix("http://").unwrap().to_owned();
    let connect = async |query: &str| {
        let mut request = format!("ws://{address}/ws{query}").into_client_request().unwrap();
        let host = format!("3000-web.localhost:{}", address.rsplit_once(':').unwrap().1);
        request.headers_mut().insert("host", host.parse().unwrap());
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        tokio_tungstenite::client_async(request, stream).await
    };
    assert!(connect("").await.is_err());
    let (mut socket, _) = connect(&format!("?atoll_token={token}")).await.unwrap();
    for size in [0_usize, 5, 125, 126, 60_000] {
        socket.send(Message::Binary(vec![9; size].into())).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap().into_data().len(), size);
    }
    // Taking the access back cuts the connections that it let in.
    let list = setup.server.client.list_accesses("web").await.unwrap();
    setup.server.client.revoke_access("web", &list.items[0].id).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(20), socket.next()).await.unwrap();
    assert!(matches!(end, None | Some(Err(_))), "{end:?}");
    setup.server.finish().await;
}

#[tokio::test]
async fn failures_are_said_clearly() {
    let setup = Setup::start().await;
    let port = setup.server.url.rsplit_once(':').unwrap().1;
    let closed = |accept: &'static str| {
        let request = setup.http.get(&setup.server.url).header(HOST, format!("4000-web.localhost:{port}"));
        request.header("x-atoll-token", &setup.server.key).header(ACCEPT, accept).send()
    };
    let response = closed("application/json").await.unwrap();
    assert_eq!(response.status(), 502);
    let body: serde_json::Value = response.json().await.unwrap();
    assert_eq!(body["code"], "port_closed");
    assert!(body["hint"].as_str().unwrap().contains("3000"), "{body}");
    let response = closed("text/html,*/*").await.unwrap();
    assert!(response.headers()["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    let page = response.text().await.unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("port 4000"), "{page}");
    for path in ["/garbage", "/headers"] {
        let answer = setup.keyed(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), 502, "{path}");
        assert_eq!(answer.json::<serde_json::Value>().await.unwrap()["code"], "port_broken", "{path}");
    }
    let nowhere = setup.http.get(&setup.server.url).header(HOST, "80-gone.localhost");
    assert_eq!(nowhere.header("x-atoll-token", &setup.server.key).send().await.unwrap().status(), 404);
    setup.server.finish().await;
}

#[tokio::test]
async fn a_server_inside_cannot_reach_beyond_its_origin() {
    let setup = Setup::start().await;
    let answer = setup.keyed(Method::GET, "/cookies").send().await.unwrap();
    let cookies: Vec<_> = answer.headers().get_all(SET_COOKIE).iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(cookies, ["sid=1; Path=/", "a=b"]);
    assert!(!answer.headers().contains_key("clear-site-data"));
    setup.server.finish().await;
}

#[tokio::test]
async fn curl_speaks_both_versions_of_http() {
    let setup = Setup::start().await;
    let port = setup.server.url.rsplit_once(':').unwrap().1;
    let curl = |args: &[&str], path: &str| {
        let mut command = std::process::Command::new("curl");
        command.args([
            "-sS",
            "--max-time",
            "30",
            "--resolve",
            &format!("3000-web.localhost:{port}:127.0.0.1"),
        ]);
        command.args(["-H", &format!("X-Atoll-Token: {}", setup.server.key)]).args(args);
        let output = command.arg(format!("http://3000-web.localhost:{port}{path}")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for version in ["--http1.1", "--http2-prior-knowledge", "--http2"] {
        let out = curl(&[version, "-d", "hello", "-w", "\n%{http_version}"], "/x");
        let (echo, _spoken) = out.rsplit_once('\n').unwrap();
        let echo: serde_json::Value = serde_json::from_str(echo).unwrap();
        assert_eq!((&echo["method"], &echo["length"]), (&"POST".into(), &5.into()), "{version}");
    }
    let out = curl(&["--http2-prior-knowledge", "-w", "\n%{http_version}"], "/");
    assert!(out.ends_with("\n2"), "{out}");
    let trailers = curl(&["--http2-prior-knowledge", "-i"], "/trailers");
    assert!(trailers.contains("hello") && trailers.contains("x-sum: 5"), "{trailers}");
    setup.server.finish().await;
}

#[tokio::test]
async fn a_file_is_downloaded_by_its_link() {
    let setup = Setup::start().await;
    setup.server.sh(&setup.sandbox.id, "printf '<script>hello' > /tmp/a\\ b.html").await.ok();
    let file = |inline| {
        Some(atoll_api::AccessFile {
            path: "/tmp/a b.html".to_owned(),
            media_type: Some("text/html".to_owned()),
            inline,
        })
    };
    let made = setup
        .server
        .client
        .create_access("web", &CreateAccess { file: file(true), ..CreateAccess::default() })
        .await
        .unwrap();
    let link = made.link.reveal().to_owned();
    let answer = setup.http.get(&link).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"text/html".parse().unwrap())
    );
    assert!(answer.headers()["content-security-policy"].to_str().unwrap().starts_with("sandbox;"));
    assert_eq!(answer.headers()["content-disposition"], "inline; filename*=UTF-8''a%20b.html");
    assert_eq!(answer.text().await.unwrap(), "<script>hello");
    let part = setup.http.get(&link).header("range", "bytes=8-").send().await.unwrap();
    assert_eq!((part.status().as_u16(), part.text().await.unwrap().as_str()), (206, "hello"));
    let head = setup.http.head(&link).send().await.unwrap();
    assert_eq!((head.status().as_u16(), &head.headers()["content-length"]), (200, &"13".parse().unwrap()));
    // A token for a port is none for a file, and the other way round.
    let token = setup.port_token().await;
    let wrong = link.replace(made.token.unwrap().reveal(), &token);
    assert_eq!(setup.http.get(&wrong).send().await.unwrap().status(), 401);
    setup.server.client.revoke_access("web", &made.access.id).await.unwrap();
    assert_eq!(setup.http.get(&link).send().await.unwrap().status(), 401);
    setup.server.finish().await;
}

#[tokio::test]
async fn the_page_lists_what_listens() {
    let setup = Setup::start().await;
    let made = setup
        .server
        .client
        .create_access("web", &CreateAccess { all_ports: true, ..CreateAccess::default() })
        .await
        .unwrap();
    let host = format!("ports-{}.localhost", setup.sandbox.id);
    assert!(made.access.url.contains(&host), "{}", made.access.url);
    let host = format!("{host}:{}", setup.server.url.rsplit_once(':').unwrap().1);
    let get = || setup.http.get(&setup.server.url).header(HOST, &host).header(ACCEPT, "text/html");
    assert_eq!(get().send().await.unwrap().status(), 401);
    let page =
        get().header(COOKIE, format!("atoll_port={}", made.token.unwrap().reveal())).send().await.unwrap();
    assert_eq!(page.status(), 200);
    let text = page.text().await.unwrap();
    assert!(text.contains(">3000</span>") && text.contains("href=\"http://3000-web.localhost:"), "{text}");
    assert!(text.contains(">private</span>") && !text.contains(">public</span>"), "{text}");
    assert!(text.contains("http-equiv=\"refresh\"") && !text.contains("<script"), "{text}");
    setup.server.finish().await;
}
