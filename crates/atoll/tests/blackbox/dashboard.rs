//! The dashboard, as a browser sees it, and as a hostile page that misuses the browser does.

use std::time::Duration;

use atoll_api::{CreateKey, CreateSandbox, KeyFormat};
use atoll_blackbox::{Answer, Server};
use atoll_client::Client;
use atoll_core::key::Scope;
use futures::StreamExt as _;
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::common::{argv, shell};

/// Longest that anything here may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A browser, as far as the headers go that it sends by itself.
struct Browser<'a> {
    server: &'a Server,
    http: reqwest::Client,
    cookie: Option<String>,
    csrf: String,
}

impl<'a> Browser<'a> {
    fn new(server: &'a Server) -> Self {
        let http = reqwest::Client::builder().redirect(Policy::none()).timeout(DEADLINE).build().unwrap();
        Self { server, http, cookie: None, csrf: String::new() }
    }

    /// One that opened a link of this key.
    async fn signed_in(server: &'a Server, key: &Client) -> Self {
        let mut browser = Self::new(server);
        let link = key.create_dashboard_link().await.unwrap().link;
        let answer = browser.open(link.reveal()).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        let set = answer.headers["set-cookie"].to_str().unwrap().to_owned();
        browser.cookie = Some(set.split(';').next().unwrap().to_owned());
        let session = browser.send(browser.get("/session")).await;
        assert_eq!((session.status, header(&session, "cache-control")), (200, "no-store"));
        browser.csrf = session.json()["csrf"].as_str().unwrap().to_owned();
        browser
    }

    fn port(&self) -> &str {
        self.server.url.rsplit(':').next().unwrap()
    }

    fn host(&self) -> String {
        format!("console.localhost:{}", self.port())
    }

    fn origin(&self) -> String {
        format!("http://{}", self.host())
    }

    /// Any request that a page could cause, under any host, with the cookie.
    fn raw(&self, method: &str, host: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.http.request(method, format!("{}{path}", self.server.url)).header("host", host);
        match &self.cookie {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        }
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.raw("GET", &self.host(), path).header("sec-fetch-site", "same-origin")
    }

    /// A request of the dashboard's own page.
    fn own(&self, method: &str, path: &str) -> RequestBuilder {
        let request = self.raw(method, &self.host(), path).header("sec-fetch-site", "same-origin");
        request.header("origin", self.origin()).header("x-atoll-csrf", &self.csrf)
    }

    async fn send(&self, request: RequestBuilder) -> Answer {
        self.server.send(request).await
    }

    /// Opens a link that the user typed.
    async fn open(&self, link: &str) -> Answer {
        let path = link.strip_prefix(&self.origin()).unwrap_or_else(|| panic!("{link} is elsewhere"));
        self.send(self.raw("GET", &self.host(), path).header("sec-fetch-site", "none")).await
    }

    /// A WebSocket that a page of this origin opens. The address is the server's, the name is the dashboard's.
    async fn websocket(
        &self,
        path: &str,
        origin: Option<&str>,
    ) -> Result<impl futures::Stream<Item = Result<Message, WsError>> + Unpin + use<>, WsError> {
        let mut request = format!("ws://{}{path}", self.host()).into_client_request().unwrap();
        let head = request.headers_mut();
        if let Some(origin) = origin {
            head.insert("origin", origin.parse().unwrap());
        }
        if let Some(cookie) = &self.cookie {
            head.insert("cookie", cookie.parse().unwrap());
        }
        let address = self.server.url.strip_prefix("http://").unwrap();
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        tokio_tungstenite::client_async(request, stream).await.map(|(socket, _)| socket)
    }
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).map_or("", |value| value.to_str().unwrap())
}

async fn key(server: &Server, name: &str, scope: Scope) -> (String, Client) {
    let create =
        CreateKey { name: name.into(), scope, ttl_ms: None, format: KeyFormat::Atoll, project: None };
    let made = server.client.create_key(&create).await.unwrap();
    (made.key.id, Client::new(&server.url, &made.secret).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_signs_in_once() {
    let server = Server::with(&[]);
    let browser = Browser::new(&server);
    let link = server.cli(&["dashboard"]).ok().stdout.trim().to_owned();
    assert!(link.starts_with(&format!("{}/login?token=", browser.origin())), "{link}");
    let path = link.strip_prefix(&browser.origin()).unwrap();

    // The link stays good after requests of a page, a preview or a prefetch.
    let at = |method| browser.raw(method, &browser.host(), path);
    let cross = browser.send(at("GET").header("sec-fetch-site", "cross-site")).await;
    let sibling = browser.send(at("GET").header("sec-fetch-site", "same-site")).await;
    let fetched = browser.send(at("GET").header("sec-purpose", "prefetch;prerender")).await;
    assert_eq!((cross.status, sibling.status, fetched.status), (403, 403, 403));
    assert_eq!((browser.send(at("HEAD")).await.status, browser.send(at("POST")).await.status), (405, 405));
    let elsewhere = browser.send(browser.raw("GET", &format!("127.0.0.1:{}", browser.port()), path)).await;
    assert_eq!(elsewhere.status, 404);

    let opened = browser.open(&link).await;
    assert_eq!((opened.status, header(&opened, "location")), (303, "/"));
    assert_eq!(
        (header(&opened, "cache-control"), header(&opened, "referrer-policy")),
        ("no-store", "no-referrer")
    );
    let (name, rest) = header(&opened, "set-cookie").split_once('=').unwrap();
    assert_eq!(name, "atoll_console");
    assert!(rest.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "no Domain: {rest}");

    let again = browser.open(&link).await;
    assert_eq!((again.status, header(&again, "set-cookie")), (401, ""));
    assert!(again.text().contains("works once"), "{}", again.text());
    for wrong in ["/login", "/login?token=", "/login?token=0", &path.replace("token=", "token=0")] {
        assert_eq!(browser.open(&format!("{}{wrong}", browser.origin())).await.status, 401, "{wrong}");
    }
    let nobody = browser.send(browser.get("/session")).await;
    assert_eq!((nobody.status, nobody.json()["code"].as_str()), (401, Some("unauthorized")));
    assert_eq!(browser.send(browser.get("/v1/sandboxes")).await.status, 401);
    assert!(!server.log().contains(path.split_once('=').unwrap().1), "a token is in the log");

    // Without a key there is no link, and a session makes none.
    assert_eq!(server.send(server.bare("POST", "/v1/dashboard/links")).await.status, 401);
    let browser = Browser::signed_in(&server, &server.client).await;
    assert_eq!(browser.send(browser.own("POST", "/v1/dashboard/links")).await.status, 403);

    // Signed out, the cookie opens nothing any more.
    assert_eq!(browser.send(browser.get("/v1/sandboxes")).await.status, 200);
    let out = browser.send(browser.own("DELETE", "/session")).await;
    assert_eq!(out.status, 204);
    assert!(header(&out, "set-cookie").contains("=; Path=/; Max-Age=0;"), "{out:?}");
    assert_eq!(browser.send(browser.get("/session")).await.status, 401);
    assert_eq!(browser.send(browser.get("/v1/sandboxes")).await.status, 401);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_its_key_and_ends_with_it() {
    let server = Server::with(&["--visibility", "private"]);
    let (owner_id, owner) = key(&server, "owner", Scope::Manage).await;
    let (_, other) = key(&server, "other", Scope::Manage).await;
    let (_, reader) = key(&server, "reader", Scope::Read).await;
    let browser = Browser::signed_in(&server, &owner).await;
    let made = browser.send(browser.own("POST", "/v1/sandboxes").json(&json!({}))).await;
    assert_eq!(
        (made.status, made.json()["owner"].as_str()),
        (201, Some(owner_id.as_str())),
        "{}",
        made.text()
    );
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sandboxes/{id}");

    let stranger = Browser::signed_in(&server, &other).await;
    assert_eq!(stranger.send(stranger.get(&path)).await.status, 404);
    let listed = stranger.send(stranger.get("/v1/sandboxes")).await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 0, "{listed}");
    assert_eq!(stranger.send(stranger.own("DELETE", &path)).await.status, 404);
    assert_eq!(stranger.send(stranger.get("/v1/keys")).await.status, 403);
    let looker = Browser::signed_in(&server, &reader).await;
    assert_eq!(looker.send(looker.own("POST", "/v1/sandboxes").json(&json!({}))).await.status, 403);
    // A key that is shown counts, and the cookie does not.
    let shown = browser.get(&path).header("x-api-key", "atoll_wrong");
    assert_eq!(browser.send(shown).await.status, 401);

    // An open stream delivers events as they come, and ends when the key is deleted, without a word from the browser.
    let exec = owner.create_exec(&id, &shell("echo first; exec sleep 1000")).await.unwrap().exec.id;
    let events = browser.get(&format!("{path}/execs/{exec}/events")).send().await.unwrap();
    let mut events = events.bytes_stream();
    let mut seen = String::new();
    while !seen.contains("event: output") {
        let piece =
            timeout(DEADLINE, events.next()).await.expect("events wait for the end").unwrap().unwrap();
        seen.push_str(&String::from_utf8_lossy(&piece));
    }
    let attach = format!("{path}/execs/{exec}/attach");
    let mut socket = browser.websocket(&attach, Some(&browser.origin())).await.unwrap();
    let hello = timeout(DEADLINE, socket.next()).await.unwrap().unwrap().unwrap();
    assert!(hello.to_text().unwrap().contains("attached"), "{hello:?}");
    server.client.delete_key(&owner_id).await.unwrap();
    let ended = async {
        while let Some(Ok(_)) = events.next().await {}
        while let Some(Ok(message)) = socket.next().await {
            if message.is_close() {
                break;
            }
        }
    };
    timeout(DEADLINE, ended).await.expect("streams outlive their key");
    assert_eq!(browser.send(browser.get(&path)).await.status, 401);
    assert_eq!(browser.send(browser.get("/session")).await.status, 401);
    assert_eq!(stranger.send(stranger.get("/session")).await.status, 200);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_own_page_uses_a_session() {
    let server = Server::with(&[]);
    let browser = Browser::signed_in(&server, &server.client).await;
    let sandbox = server.client.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    let exec = server.client.create_exec(&sandbox, &argv(&["sleep", "1000"])).await.unwrap().exec.id;
    let path = format!("/v1/sandboxes/{sandbox}");
    let attach = format!("{path}/execs/{exec}/attach");

    let own = || browser.raw("DELETE", &browser.host(), &path).header("origin", browser.origin());
    let refused = async |request: RequestBuilder, why: &str| {
        let answer = browser.send(request).await;
        let (status, code) = (answer.status, answer.json()["code"].as_str().map(str::to_owned));
        assert_eq!((status, code.as_deref()), (403, Some("forbidden")), "{why}: {}", answer.text());
    };
    refused(own(), "no token").await;
    refused(own().header("x-atoll-csrf", "0"), "a wrong token").await;
    let second = Browser::signed_in(&server, &server.client).await;
    refused(own().header("x-atoll-csrf", &second.csrf), "the token of another session").await;
    refused(browser.raw("DELETE", &browser.host(), &path).header("x-atoll-csrf", &browser.csrf), "no origin")
        .await;
    let port = browser.port();
    let foreign = [
        "null".to_owned(),
        "http://evil.example".to_owned(),
        format!("http://3000-web.localhost:{port}"),
        format!("http://localhost:{port}"),
        format!("http://127.0.0.1:{port}"),
        "http://console.localhost".to_owned(),
        format!("https://console.localhost:{port}"),
    ];
    for origin in &foreign {
        let with = |method| browser.raw(method, &browser.host(), &path).header("origin", origin);
        refused(with("DELETE").header("x-atoll-csrf", &browser.csrf), origin).await;
        refused(with("GET"), origin).await;
        let session = browser.raw("GET", &browser.host(), "/session").header("origin", origin);
        refused(session, origin).await;
        let socket = browser.websocket(&attach, Some(origin)).await.map(drop);
        assert!(matches!(socket, Err(WsError::Http(ref answer)) if answer.status() == 403), "{origin}");
    }
    assert!(browser.websocket(&attach, None).await.is_err(), "a WebSocket says where it comes from");
    for site in ["same-site", "cross-site"] {
        let look =
            browser.raw("GET", &browser.host(), &format!("{path}/ports")).header("sec-fetch-site", site);
        refused(look, site).await;
    }
    // A cookie that another page set changes nothing; the cookie of a second session beside it is one too many.
    let beside = |other: &str| {
        let both = format!("{other}; {}", browser.cookie.as_ref().unwrap());
        Browser { server: &server, http: browser.http.clone(), cookie: Some(both), csrf: String::new() }
    };
    for (other, status) in [("atoll_console=x", 200), (second.cookie.as_deref().unwrap(), 401)] {
        let tossed = beside(other);
        assert_eq!(tossed.send(tossed.get("/session")).await.status, status, "{other}");
    }
    // A session at console.localhost is for a browser on this machine: requests that a proxy passes on are refused.
    for proxy in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let passed_on = browser.send(browser.get("/session").header(proxy, "192.0.2.1")).await;
        assert_eq!(passed_on.status, 403, "{proxy}: {}", passed_on.text());
    }

    // The dashboard's own page may, and its open streams end when it signs out.
    let mut socket = browser.websocket(&attach, Some(&browser.origin())).await.unwrap();
    timeout(DEADLINE, socket.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(browser.send(browser.own("DELETE", "/session")).await.status, 204);
    let ended = async {
        while let Some(Ok(message)) = socket.next().await
            && !message.is_close()
        {}
    };
    timeout(DEADLINE, ended).await.expect("a terminal outlives its session");
    assert_eq!(second.send(second.own("DELETE", &path)).await.status, 204);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_name_serves_it_and_it_serves_nothing_else() {
    let server = Server::with(&["--host", "atoll.example.com"]);
    let browser = Browser::signed_in(&server, &server.client).await;
    let create = CreateSandbox { name: Some("web".into()), ..CreateSandbox::default() };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let port = browser.port();
    let html = |host: &str| browser.raw("GET", host, "/").header("accept", "text/html,*/*;q=0.8");

    let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")];
    for host in &own {
        let led = browser.send(html(host)).await;
        assert_eq!((led.status, header(&led, "location")), (303, format!("{}/", browser.origin()).as_str()));
        assert_eq!(
            browser.send(browser.raw("GET", host, "/")).await.status,
            404,
            "programs are not led anywhere"
        );
    }
    let others = [
        "evil.example".to_owned(),
        "console.evil.example".to_owned(),
        "atoll.example.com".to_owned(),
        format!("console.localhost.:{port}"),
        format!("a.console.localhost:{port}"),
        format!("console.web.localhost:{port}"),
    ];
    for host in own.iter().chain(&others) {
        for path in ["/session", "/v1/sandboxes", "/login?token=0"] {
            let answer = browser.send(browser.raw("GET", host, path)).await;
            assert!(matches!(answer.status, 401 | 404), "{host}{path}: {}", answer.status);
            assert!(
                !answer.text().contains("csrf") && header(&answer, "set-cookie").is_empty(),
                "{host}{path}"
            );
        }
    }
    for host in &others {
        let answer = browser.send(html(host)).await;
        assert!(answer.status == 404 && header(&answer, "location").is_empty(), "{host}: {}", answer.status);
    }
    // A name of other machines, which would come in clear.
    let clear = browser.send(browser.raw("GET", "console.atoll.example.com", "/session")).await;
    assert!(clear.status == 403 && clear.text().contains("HTTPS"), "{}", clear.text());
    // A port of a sandbox is no way to the API, with the cookie or without.
    for path in ["/", "/session", "/v1/sandboxes", "/login?token=0"] {
        let answer = browser.send(browser.raw("GET", &format!("3000-web.localhost:{port}"), path)).await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.text());
    }

    // Under its name there are no ports, no dialects, no downloads by link.
    for path in [format!("/v1/sandboxes/{sandbox}/ports/3000/"), "/v1/sandboxes/web/ports/3000/x".to_owned()]
    {
        assert_eq!(browser.send(browser.get(&path)).await.status, 404, "{path}");
    }
    let named = browser.get("/v1/info").header("x-atoll-sandbox", "web").header("x-atoll-port", "3000");
    assert!(browser.send(named).await.json()["installation"].is_string());
    let claimed = browser.get("/").header("e2b-sandbox-id", sandbox.as_str()).header("accept", "text/html");
    assert!(browser.send(claimed).await.text().contains("<div id=\"app\">"));
    assert_eq!(browser.send(browser.own("POST", "/e2b/sandboxes").json(&json!({}))).await.status, 405);
    assert_eq!(browser.send(browser.get("/v1/download/x.html?atoll_token=0")).await.status, 404);
    let file = format!("/v1/sandboxes/{sandbox}/files?path=/root/page.html");
    assert!(server.send(server.request("PUT", &file).body("<h1>x</h1>")).await.status < 300);
    let read = browser.send(browser.get(&file)).await;
    assert_eq!((read.status, header(&read, "x-content-type-options")), (200, "nosniff"));
    assert!(header(&read, "content-security-policy").ends_with("sandbox"), "{read:?}");
    assert_eq!(
        (header(&read, "content-type"), header(&read, "cache-control")),
        ("application/octet-stream", "no-store")
    );
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_files_are_small_and_locked_down() {
    let server = Server::with(&[]);
    let browser = Browser::new(&server);
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
        base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let index = browser.send(browser.get("/")).await;
    let html = index.text();
    assert_eq!((index.status, header(&index, "content-security-policy")), (200, policy));
    assert_eq!(
        (header(&index, "cache-control"), header(&index, "content-type")),
        ("no-store", "text/html; charset=utf-8")
    );
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(header(&index, name), value);
    }
    assert_eq!(browser.send(browser.get("/sandboxes/web/terminal")).await.text(), html);

    let mut bytes = 0;
    let links = html.split('"').filter(|text| text.starts_with("/assets/"));
    for path in links.chain(["/"]) {
        let gzip = browser.send(browser.get(path).header("accept-encoding", "gzip, deflate")).await;
        let brotli = browser.send(browser.get(path).header("accept-encoding", "gzip, br, zstd")).await;
        assert_eq!((gzip.status, header(&gzip, "content-encoding")), (200, "gzip"), "{path}");
        assert_eq!((brotli.status, header(&brotli, "content-encoding")), (200, "br"), "{path}");
        assert_eq!(header(&gzip, "vary"), "accept-encoding");
        assert_ne!(header(&gzip, "etag"), header(&brotli, "etag"));
        bytes += gzip.bytes.len();
        if path != "/" {
            assert_eq!(header(&gzip, "cache-control"), "public, max-age=31536000, immutable");
            let known = browser
                .get(path)
                .header("accept-encoding", "gzip")
                .header("if-none-match", header(&gzip, "etag"));
            let known = browser.send(known).await;
            assert_eq!((known.status, known.bytes.len()), (304, 0));
        }
    }
    assert!((10_000..250 << 10).contains(&bytes), "the first load is {bytes} bytes");
    for missing in ["/assets/none.js", "/none.txt", "/..%2fCargo.toml", "/assets/..%2f..%2fetc/passwd.x"] {
        let answer = browser.send(browser.get(missing)).await;
        assert_eq!((answer.status, header(&answer, "content-security-policy")), (404, policy), "{missing}");
    }
    assert_eq!(browser.send(browser.own("POST", "/")).await.status, 405);
    let licenses = browser.send(browser.get("/licenses.txt")).await.text();
    assert!(licenses.contains("preact") && licenses.contains("xterm"), "{licenses}");
    server.finish().await;

    let without = Server::with(&["--no-dashboard"]);
    let browser = Browser::new(&without);
    assert_eq!(browser.send(browser.get("/")).await.status, 404);
    let refused = without.cli(&["dashboard"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("--no-dashboard"), "{refused:?}");
    without.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_is_not_in_the_journal_and_wakes_nothing() {
    let server = Server::with(&[]);
    let browser = Browser::signed_in(&server, &server.client).await;
    let sandbox = server.client.create_sandbox(&CreateSandbox::default()).await.unwrap().id;
    let path = format!("/v1/sandboxes/{sandbox}");
    for what in ["", "/metrics", "/execs", "/network", "/ports", "/checkpoints"] {
        assert_eq!(browser.send(browser.get(&format!("{path}{what}"))).await.status, 200, "{what}");
    }
    let list = browser.send(browser.get(&format!("{path}/files/list?path=/root"))).await;
    assert_eq!(list.status, 200, "{}", list.text());
    let calls = server.send(server.request("GET", &format!("{path}/events?kind=call"))).await.json();
    let paths: Vec<_> =
        calls["items"].as_array().unwrap().iter().map(|call| call["path"].as_str().unwrap()).collect();
    assert!(paths.iter().any(|path| path.ends_with("/files/list")), "what is read is recorded: {calls}");
    assert!(!paths.iter().any(|path| path.ends_with("/metrics") || path.ends_with("/ports")), "{calls}");

    let pause = browser.send(browser.own("POST", &format!("{path}/pause")).json(&json!({}))).await;
    assert_eq!(pause.status, 200, "{}", pause.text());
    for what in ["", "/metrics", "/execs", "/network", "/checkpoints"] {
        assert_eq!(browser.send(browser.get(&format!("{path}{what}"))).await.status, 200, "{what}");
    }
    assert_eq!(browser.send(browser.get(&path)).await.json()["state"], "paused");
    server.finish().await;
}
