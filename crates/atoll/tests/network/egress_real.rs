//! Real servers outside and real clients inside: nginx, HTTP/2, WebSocket, events, large bodies, in clear,
//! with TLS that passes, and with TLS that is looked into; through both kinds of upstream proxies.

use crate::common::outside::{LOGIN, OTHER, Outside, WEB, allow, policy, sandbox};
use crate::common::real::Real;
use atoll_api::{CreateSandbox, PauseSandbox, PutSecret, UpdateSandbox};
use atoll_blackbox::{Output, Server, wait_until};
use atoll_core::policy::EgressPolicy;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use serde_json::{Value, json};

const SECRET: &str = "a-value-that-stays-outside";
const CURL: &str = "curl -sS --max-time 60";

/// nginx as `api.example.com`, on ports 80 and 443.
fn outside(real: &Real) -> Outside {
    let outside = Outside::new();
    outside.name("api.example.com", WEB);
    outside.name("other.example.com", OTHER);
    outside.put(&format!("{WEB}:80"), real.plain);
    outside.put(&format!("{WEB}:443"), real.tls);
    outside
}

async fn ok(server: &Server, id: &str, line: &str) -> String {
    let Output { code, stdout, stderr } = server.sh(id, line).await;
    assert_eq!(code, Some(0), "{line}: {stdout}{stderr}\n{}", server.log());
    stdout
}

/// Runs Python inside, whose text may hold anything.
async fn python(server: &Server, id: &str, code: &str) -> String {
    let create = crate::common::argv(&["/usr/bin/python3", "-c", code]);
    let done = server.run(id, create).await;
    let (out, err) = crate::common::outputs(server, id, &done.exec.id).await;
    assert!(err.is_empty(), "{}", String::from_utf8_lossy(&err));
    String::from_utf8_lossy(&out).into_owned()
}

/// Sends messages over a WebSocket and gets them back: one that is short, and one of 3 MB. `tls` is an
/// expression for the client's TLS.
fn web_socket(url: &str, tls: &str) -> String {
    format!(
        "import asyncio, ssl, websockets\n\
         async def main():\n  \
           async with websockets.connect('{url}', ssl={tls}, max_size=None) as s:\n    \
             for m in ('hello', 'x' * 3000000):\n      \
               await s.send(m)\n      \
               print(await s.recv() == m)\n\
         asyncio.run(main())"
    )
}

/// Reads events; asks for the second when the first is there.
fn events(base: &str, verify: &str) -> String {
    format!(
        "import requests, urllib3; urllib3.disable_warnings()\n\
         with requests.get('{base}/events', stream=True, timeout=60, verify={verify}) as r:\n  \
           for line in r.iter_lines():\n    \
             if line: print(line.decode())\n    \
             if b'first' in line: requests.get('{base}/events/next', timeout=60, verify={verify})"
    )
}

/// Everything that a web server and its clients do, at `base`. `k` makes curl believe any certificate.
async fn exercise(server: &Server, id: &str, real: &Real, base: &str, k: &str) {
    let text = "line of text\n".repeat(10_000);
    assert_eq!(ok(server, id, &format!("{CURL} {k} {base}/text")).await, text);
    let packed = format!("{CURL} {k} -H 'Accept-Encoding: gzip' -i {base}/text | grep -ai content-encoding");
    assert!(ok(server, id, &packed).await.contains("gzip"));
    assert_eq!(ok(server, id, &format!("{CURL} {k} --compressed {base}/text")).await, text);
    assert_eq!(ok(server, id, &format!("{CURL} {k} -r 13-24 {base}/text")).await, "line of text");
    let twice = format!(
        "{CURL} {k} -I {base}/text -o /dev/null -w '%{{http_code}} %{{num_connects}}\\n' \
         --next {CURL} {k} {base}/none -o /dev/null -w '%{{http_code}} %{{num_connects}}\\n'"
    )
    .replace(&format!("--next {CURL}"), "--next -sS");
    assert_eq!(ok(server, id, &twice).await, "200 1\n404 0\n", "one connection");
    // 40 MB up and down again, with `Expect: 100-continue`, of known and of unknown length.
    let up = format!(
        "head -c 40000000 /dev/urandom > /tmp/up && {CURL} {k} -T /tmp/up {base}/one -o /dev/null && \
         {CURL} {k} -T - {base}/two -o /dev/null < /tmp/up && \
         {CURL} {k} {base}/two | cmp - /tmp/up && sha256sum < /tmp/up"
    );
    let sum = ok(server, id, &up).await;
    for name in ["one", "two"] {
        use sha2::Digest as _;
        let sent = hex::encode(sha2::Sha256::digest(real.uploaded(name)));
        assert!(sum.starts_with(&sent), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_in_clear_and_with_tls_that_passes() {
    let real = Real::start();
    let outside = outside(&real);
    let server = outside.server();
    let id = sandbox(&server, allow(&["api.example.com:80", "api.example.com:443"])).await.id;
    exercise(&server, &id, &real, "http://api.example.com", "").await;
    exercise(&server, &id, &real, "https://api.example.com", "-k").await;
    let version = format!("{CURL} -k -o /dev/null -w '%{{http_version}}' https://api.example.com/text");
    assert_eq!(ok(&server, &id, &version).await, "2", "TLS passes as it is, and with it HTTP/2");
    assert_eq!(
        python(&server, &id, &events("http://api.example.com", "True")).await,
        "data: first\ndata: second\n"
    );
    let web = web_socket("ws://api.example.com/socket", "None");
    assert_eq!(python(&server, &id, &web).await, "True\nTrue\n");
    let web = web_socket("wss://api.example.com/socket", "ssl._create_unverified_context()");
    assert_eq!(python(&server, &id, &web).await, "True\nTrue\n");
    // The bytes that were carried are counted by destination.
    let view = server.client.sandbox_network(&id).await.unwrap();
    for port in [80, 443] {
        let total = view.totals.iter().find(|t| t.destination == format!("api.example.com:{port}")).unwrap();
        assert!(total.sent_bytes > 80_000_000 && total.received_bytes > 40_000_000, "{total:?}");
        assert!(total.sent_bytes < 100_000_000, "counted once: {total:?}");
    }
    let sum = |pick: fn(&atoll_core::network::TotalView) -> u64| view.totals.iter().map(pick).sum::<u64>();
    assert_eq!(view.transferred.sent_bytes, sum(|total| total.sent_bytes));
    assert_eq!(view.transferred.received_bytes, sum(|total| total.received_bytes));
    server.finish().await;
}

/// A rule that puts the secret into requests to `api.example.com`.
fn rule(more: Value) -> Value {
    let mut rule = json!({"name": "r", "hosts": ["api.example.com"], "bearer": "{secret:KEY}",
        "placeholders": [{"secret": "KEY", "env": "KEY", "body": true}]});
    rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rule
}

async fn intercepting(server: &Server, rules: Vec<Value>) -> String {
    let scope = serde_json::from_value(json!({"hosts": ["*.example.com"]})).unwrap();
    let put = PutSecret { value: Some(Secret::new(SECRET)), scope: Some(scope), note: None };
    server.client.put_secret(None, "KEY", &put).await.unwrap();
    sandbox(server, policy(json!({"internet": "on", "inject": rules}))).await.id
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_with_tls_that_is_looked_into() {
    let real = Real::start();
    let outside = outside(&real);
    let ca = real.ca().display().to_string();
    let server = outside.server_with(&["--upstream-ca", &ca]);
    let id = intercepting(&server, vec![rule(json!({}))]).await;
    exercise(&server, &id, &real, "https://api.example.com", "").await;
    // Client and server both speak HTTP/2, or neither does.
    for (flag, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let get =
            format!("{CURL} {flag} -o /dev/null -w '%{{http_version}}' https://api.example.com/v{version}");
        assert_eq!(ok(&server, &id, &get).await, version);
        let seen = format!("HTTP/{version}.0 GET api.example.com /v{version} 404 \"Bearer {SECRET}\"");
        assert!(real.log().contains(&seen.replace("1.1.0", "1.1")), "{}", real.log());
    }
    // Many requests at once on one connection.
    let many = "import asyncio, httpx\n\
        async def main():\n  \
          async with httpx.AsyncClient(http2=True, timeout=60) as c:\n    \
            a = await asyncio.gather(*(c.get('https://api.example.com/text') for _ in range(100)))\n    \
            print({(r.http_version, r.status_code, len(r.content)) for r in a})\n\
        asyncio.run(main())";
    assert_eq!(python(&server, &id, many).await, "{('HTTP/2', 200, 130000)}\n");
    assert_eq!(
        python(&server, &id, &events("https://api.example.com", "True")).await,
        "data: first\ndata: second\n"
    );
    let web = web_socket("wss://api.example.com/socket", "True");
    assert_eq!(python(&server, &id, &web).await, "True\nTrue\n");
    let node = "node -e \"fetch('https://api.example.com/text').then(r => r.text()).then(t => console.log(t.length))\"";
    assert_eq!(ok(&server, &id, node).await, "130000\n");
    // A placeholder in a body, of HTTP/1 and of HTTP/2, whole and in many pieces.
    for (flag, pad) in [("--http1.1", 10), ("--http2", 10), ("--http1.1", 3_000_000), ("--http2", 3_000_000)]
    {
        let put = format!(
            "(head -c {pad} /dev/zero; printf %s \"$KEY\"; head -c {pad} /dev/zero) > /tmp/body && \
             {CURL} {flag} -T /tmp/body https://api.example.com/body -o /dev/null"
        );
        ok(&server, &id, &put).await;
        let sent = real.uploaded("body");
        assert_eq!(sent.len(), 2 * pad + SECRET.len(), "{flag} {pad}");
        assert_eq!(&sent[pad..pad + SECRET.len()], SECRET.as_bytes());
    }
    server.finish().await;
}

/// Requests of HTTP/2 that a client of good faith does not make, each on a stream of its own; prints what came back.
const HTTP2_TRICKS: &str = r#"
import socket, ssl
import h2.config, h2.connection, h2.events, h2.exceptions
def ask(headers, body=None):
    ctx = ssl.create_default_context(); ctx.set_alpn_protocols(["h2"])
    s = ctx.wrap_socket(socket.create_connection(("api.example.com", 443), 20), server_hostname="api.example.com")
    assert s.selected_alpn_protocol() == "h2"
    c = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False))
    c.initiate_connection(); c.send_headers(1, headers, end_stream=body is None)
    if body is not None: c.send_data(1, body, end_stream=True)
    s.sendall(c.data_to_send()); s.settimeout(20)
    try:
        while data := s.recv(65536):
            for event in c.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived): return dict(event.headers)[b":status"].decode()
                if isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)): return "cut"
            s.sendall(c.data_to_send())
    except (OSError, h2.exceptions.ProtocolError) as e: return "cut"
    return "cut"
base = {":method": "GET", ":scheme": "https", ":authority": "api.example.com", ":path": "/trick"}
def tried(what, change={}, more=[], body=None):
    print(what, ask(list({**base, **change}.items()) + more, body))
tried("honest", {":path": "/honest"})
tried("authority", {":authority": "other.example.com"})
tried("authority-port", {":authority": "api.example.com:8443"})
tried("authority-user", {":authority": "api.example.com@other.example.com"})
tried("host", {}, [("host", "other.example.com")])
tried("absolute", {":path": "https://other.example.com/trick"})
tried("scheme", {":scheme": "http"})
tried("path-lines", {":path": "/x HTTP/1.1\r\nhost: other.example.com\r\n\r\nGET /hidden"})
tried("value-lines", {}, [("x-a", "b\r\nhost: other.example.com")])
tried("name-lines", {}, [("x-a: b\r\nhost", "other.example.com")])
tried("chunked", {":method": "POST"}, [("transfer-encoding", "chunked")], b"0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: other.example.com\r\n\r\n")
tried("short", {":method": "POST"}, [("content-length", "3")], b"abcGET /hidden HTTP/1.1\r\nhost: other.example.com\r\n\r\n")
tried("two-lengths", {":method": "POST"}, [("content-length", "3"), ("content-length", "60")], b"abcGET /hidden HTTP/1.1\r\n\r\n")
tried("connect", {":method": "CONNECT"})
tried("trace", {":method": "TRACE"})
"#;

#[tokio::test(flavor = "multi_thread")]
async fn http2_has_no_way_around_either() {
    let real = Real::start();
    let outside = outside(&real);
    let ca = real.ca().display().to_string();
    let server = outside.server_with(&["--upstream-ca", &ca]);
    let id = intercepting(&server, vec![rule(json!({}))]).await;
    let said = python(&server, &id, HTTP2_TRICKS).await;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"honest 404"), "{said}");
    assert_eq!(lines.len(), 15, "{said}");
    let refused = |line: &&str| matches!(line.rsplit(' ').next(), Some("cut" | "400" | "403" | "421"));
    let passed: Vec<_> = lines[1..].iter().filter(|line| !refused(line)).collect();
    assert!(passed.is_empty(), "{passed:?}\n{}", real.log());
    let log = real.log();
    assert!(log.contains("/honest") && !log.contains("/trick") && !log.contains("/hidden"), "{log}");
    assert!(!log.contains("other.example.com"), "{log}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_explicit_proxy_puts_in_what_rules_say() {
    let real = Real::start();
    let outside = outside(&real);
    let ca = real.ca().display().to_string();
    let server = outside.server_with(&["--upstream-ca", &ca]);
    let team = json!({"name": "t", "hosts": ["api.example.com"], "headers": {"x-team": "search"}});
    let id = intercepting(&server, vec![rule(json!({})), team]).await;
    let proxied = format!("{CURL} -x http://10.0.2.2:3128 -o /dev/null -w '%{{http_code}}'");
    assert_eq!(ok(&server, &id, &format!("{proxied} https://api.example.com/by-connect")).await, "404");
    let by_connect = format!("/by-connect 404 \"Bearer {SECRET}\" \"search\"");
    assert!(real.log().contains(&by_connect), "{}", real.log());
    // Without TLS the secret is not sent, with a proxy or without; a value that is no secret is put in.
    assert_eq!(ok(&server, &id, &format!("{proxied} http://api.example.com/by-proxy")).await, "404");
    assert_eq!(ok(&server, &id, &format!("{proxied} -p http://api.example.com/by-tunnel")).await, "404");
    let direct = format!("{CURL} -o /dev/null http://api.example.com/direct");
    ok(&server, &id, &direct).await;
    for path in ["/by-proxy", "/by-tunnel", "/direct"] {
        let seen = format!("{path} 404 \"-\" \"search\"");
        assert!(real.log().contains(&seen), "{path}: {}", real.log());
    }
    let host =
        format!("{CURL} -x http://10.0.2.2:3128 -H 'Host: other.example.com' http://api.example.com/h");
    assert!(ok(&server, &id, &host).await.contains("different hosts"));
    // Unless the rule says so.
    let update = policy(json!({"internet": "on", "inject": [rule(json!({"allow_plaintext": true}))]}));
    let update = UpdateSandbox { egress: Some(update), ..UpdateSandbox::default() };
    server.client.update_sandbox(&id, &update).await.unwrap();
    for path in ["/clear-by-proxy", "/again-by-proxy"] {
        assert_eq!(ok(&server, &id, &format!("{proxied} http://api.example.com{path}")).await, "404");
        assert!(real.log().contains(&format!("{path} 404 \"Bearer {SECRET}\"")), "{}", real.log());
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_proxies_with_logins_and_without() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.name("six.test", "2606:4700::1111");
    outside.web("[2606:4700::1111]:80");
    outside.want_login();
    for (scheme, login, reached) in [
        ("socks5", LOGIN, true),
        ("http", LOGIN, true),
        ("socks5", "other:some-p@ssword", false),
        ("socks5", "", false),
        ("http", "", false),
    ] {
        let (zone, at) = (outside.zone.to_string(), outside.proxy);
        let proxy =
            if login.is_empty() { format!("{scheme}://{at}") } else { format!("{scheme}://{login}@{at}") };
        let env = [("ATOLL_EGRESS_PROXY", proxy.as_str())];
        let server = Server::with_env(&["--resolver", zone.as_str()], &env);
        let id = sandbox(&server, EgressPolicy::open()).await.id;
        let get = server.sh(&id, &format!("{CURL} http://web.test/")).await;
        if reached {
            assert_eq!(get.stdout, format!("hello from {WEB}:80\n"), "{proxy}: {get:?}");
            // There is no IPv6 inside; the explicit proxy leads to names that have nothing else.
            let six = format!("{CURL} -x http://10.0.2.2:3128 http://six.test/");
            assert_eq!(ok(&server, &id, &six).await, "hello from [2606:4700::1111]:80\n");
            assert_ne!(server.sh(&id, &format!("{CURL} http://six.test/")).await.code, Some(0));
        } else {
            assert!(get.stdout.contains("proxy") && get.stdout.contains("cannot reach"), "{proxy}: {get:?}");
            assert!(!get.stdout.contains("p@ssword"), "{get:?}");
        }
        assert!(!server.log().contains("p@ssword"));
        server.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bandwidth_is_held_to_its_limit() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.banner(&format!("{WEB}:2525"));
    let server = outside.server();
    let limits = json!({"bytes_per_s": 2 << 20});
    let id = sandbox(&server, policy(json!({"internet": "on", "limits": limits}))).await.id;
    // A quarter of a second's worth is saved up: 8 MiB take 3.75 s at least.
    let least = std::time::Duration::from_millis(3700);
    let down = std::time::Instant::now();
    assert_eq!(ok(&server, &id, "curl -sS http://web.test/big | wc -c").await.trim(), (8 << 20).to_string());
    assert!(down.elapsed() >= least, "{:?}", down.elapsed());
    // Both ways at once, each with its own limit.
    let echo = format!(
        "import socket, threading\ns = socket.create_connection(('{WEB}', 2525), 60); s.recv(13)\n\
         threading.Thread(target=lambda: (s.sendall(b'y' * (8 << 20)), s.shutdown(1))).start()\nn = 0\n\
         while c := s.recv(1 << 16): n += len(c)\nprint(n)"
    );
    let both = std::time::Instant::now();
    assert_eq!(python(&server, &id, &echo).await.trim(), (8 << 20).to_string());
    assert!(both.elapsed() >= least, "{:?}", both.elapsed());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_frozen_sandbox_wait() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    let exec = server.shell(&id, "curl -sSN http://web.test/stream").await;
    crate::common::follow(&server, &id, &exec, 10).await;
    let paused = PauseSandbox { mode: Some(PauseMode::Frozen) };
    assert_eq!(server.client.pause_sandbox(&id, &paused).await.unwrap().state, SandboxState::Paused);
    let view = server.client.sandbox_network(&id).await.unwrap();
    assert_eq!(view.connections.len(), 1, "it is kept: {view:?}");
    let dials = outside.dials();
    // A policy that changes meanwhile cuts it all the same.
    let other = sandbox(&server, allow(&["web.test:80"])).await.id;
    let cut = server.shell(&other, "curl -sSN http://web.test/stream; echo ended").await;
    crate::common::follow(&server, &other, &cut, 10).await;
    server.client.pause_sandbox(&other, &paused).await.unwrap();
    let update = UpdateSandbox { egress: Some(allow(&["other.test"])), ..UpdateSandbox::default() };
    server.client.update_sandbox(&other, &update).await.unwrap();
    wait_until("it is cut", async || {
        server.client.sandbox_network(&other).await.unwrap().connections.is_empty().then_some(())
    })
    .await;
    for sandbox in [&id, &other] {
        server.client.resume_sandbox(sandbox).await.unwrap();
    }
    let seen = server.client.get_exec(&id, &exec, 0).await.unwrap().output_bytes;
    wait_until("the stream goes on", async || {
        (server.client.get_exec(&id, &exec, 0).await.unwrap().output_bytes > seen + 50).then_some(())
    })
    .await;
    assert_eq!(outside.dials().len(), dials.len() + 1, "over the connection that was there");
    let (out, _) = crate::common::outputs(&server, &other, &cut).await;
    assert!(String::from_utf8_lossy(&out).ends_with("ended\n"));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_bpf_the_same_holds() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let (zone, proxy) = (outside.zone.to_string(), format!("socks5://{}", outside.proxy));
    let mut server = Server::with(&["--resolver", &zone, "--egress-proxy", &proxy]);
    for _ in 0..2 {
        server.kill();
        server.restart_with("network::bpf=return");
        let doctor = server.cli(&["doctor"]);
        assert!(doctor.stdout.contains("by nft"), "{doctor:?}");
        let listed = server.client.list_sandboxes(&atoll_client::ListSandboxes::default()).await.unwrap();
        let id = match listed.items.first() {
            // The second time round: its rules are there already.
            Some(sandbox) => sandbox.id.clone(),
            None => sandbox(&server, allow(&["web.test:80"])).await.id,
        };
        wait_until("the network is taken up", async || {
            let get = server.sh(&id, &format!("{CURL} http://web.test/")).await;
            (get.stdout == format!("hello from {WEB}:80\n")).then_some(())
        })
        .await;
        let proxied = format!("{CURL} -x http://10.0.2.2:3128 http://web.test/");
        assert!(ok(&server, &id, &proxied).await.contains("hello"));
        for refused in [
            format!("{CURL} http://{OTHER}/"),
            format!("{CURL} -x http://10.0.2.2:3128 http://{OTHER}/"),
            format!("{CURL} http://169.254.169.254/"),
        ] {
            assert!(ok(&server, &id, &refused).await.contains("Atoll refused"), "{refused}");
        }
        let tcp = ok(&server, &id, "dig +tcp +short web.test").await;
        assert_eq!(tcp.trim(), WEB);
        let out = "import socket\n\
            for to in (('8.8.8.8', 53), ('93.184.215.14', 443), ('10.0.2.3', 54)):\n  \
              s = socket.socket(2, 2); s.settimeout(5)\n  \
              try: s.connect(to); s.send(b'x'); s.recv(1); print('ANSWERED')\n  \
              except OSError as e: print(type(e).__name__)";
        assert_eq!(python(&server, &id, out).await, "ConnectionRefusedError\n".repeat(3));
        let own = "import socket\nl = socket.create_server(('0.0.0.0', 0)); p = l.getsockname()[1]\n\
            for h in ('127.0.0.1', '10.0.2.15'): socket.create_connection((h, p)); l.accept(); print(h)";
        assert_eq!(python(&server, &id, own).await, "127.0.0.1\n10.0.2.15\n");
    }
    assert!(outside.dials().iter().all(|address| *address == format!("{WEB}:80")), "{:?}", outside.dials());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_come_and_go_without_a_trace() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let round = async || {
        let create = CreateSandbox { egress: Some(allow(&["web.test:80"])), ..CreateSandbox::default() };
        let id = server.client.create_sandbox(&create).await.unwrap().id;
        let get = ok(&server, &id, &format!("{CURL} http://web.test/")).await;
        assert!(get.contains("hello"));
        server.client.delete_sandbox(&id).await.unwrap();
    };
    // The first fill pools and caches.
    for _ in 0..5 {
        round().await;
    }
    let before = descriptors();
    for _ in 0..30 {
        round().await;
    }
    // Pools fill up again in the background; a leak would be one descriptor for each at least.
    wait_until("descriptors are given back", async || (descriptors() < before + 25).then_some(())).await;
    server.finish().await;
}
