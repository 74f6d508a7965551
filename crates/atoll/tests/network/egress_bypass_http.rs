//! Ways around the policy that lie in requests and in what carries them, each of which must lead nowhere.

use crate::common::outside::{Outside, SHARED, WEB, allow, policy, sandbox};
use crate::egress_bypass::python;
use atoll_blackbox::Server;
use serde_json::json;

const CURL: &str = "curl -sS --max-time 20 -w '%{http_code}\\n'";

/// Sends bytes to an address from inside and gives what comes back.
async fn raw(server: &Server, id: &str, to: (&str, u16), bytes: &str) -> String {
    let (host, port) = to;
    let code = format!(
        "import socket\ns = socket.create_connection(('{host}', {port}), 20)\ns.settimeout(20)\n\
         s.sendall(b'{bytes}')\nd = b''\n\
         try:\n  while True:\n    c = s.recv(65536)\n    if not c: break\n    d += c\n\
         except Exception as e: print('error', e)\nprint(d)"
    );
    python(server, id, &code).await
}

#[tokio::test(flavor = "multi_thread")]
async fn domain_fronting_over_http() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{SHARED}:80"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["a.cdn.test"])).await.id;
    let fronted = server.sh(&id, &format!("{CURL} -H 'Host: b.cdn.test' http://a.cdn.test/x")).await;
    assert!(fronted.stdout.ends_with("403\n"), "{fronted:?}");
    // In the second request of a connection, by an absolute URI, by two headers, in another spelling.
    for (request, status) in [
        (
            "GET /1 HTTP/1.1\\r\\nHost: a.cdn.test\\r\\n\\r\\nGET /2 HTTP/1.1\\r\\nHost: b.cdn.test\\r\\nConnection: close\\r\\n\\r\\n",
            "403",
        ),
        ("GET http://b.cdn.test/ HTTP/1.1\\r\\nHost: a.cdn.test\\r\\nConnection: close\\r\\n\\r\\n", "400"),
        ("GET http://b.cdn.test/ HTTP/1.1\\r\\nHost: b.cdn.test\\r\\nConnection: close\\r\\n\\r\\n", "403"),
        (
            "GET / HTTP/1.1\\r\\nHost: a.cdn.test\\r\\nHost: b.cdn.test\\r\\nConnection: close\\r\\n\\r\\n",
            "400",
        ),
        ("GET / HTTP/1.1\\r\\nHost: a.cdn.test@b.cdn.test\\r\\nConnection: close\\r\\n\\r\\n", "400"),
        ("GET / HTTP/1.0\\r\\n\\r\\n", "403"),
        ("get\\t/ http/1.1\\r\\nhost: b.cdn.test\\r\\n\\r\\n", "400"),
        ("\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: b.cdn.test\\r\\nConnection: close\\r\\n\\r\\n", "403"),
        ("PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", "error"),
    ] {
        let answer = raw(&server, &id, ("a.cdn.test", 80), request).await;
        assert!(answer.contains(status), "{request}: {answer}");
    }
    // With a silence first, so that the gateway may think that the server speaks first.
    let silent = "import socket, time\ns = socket.create_connection(('a.cdn.test', 80), 20); time.sleep(1)\n\
         s.sendall(b'GET / HTTP/1.1\\r\\nHost: b.cdn.test\\r\\nConnection: close\\r\\n\\r\\n')\nprint(s.recv(9999))";
    assert!(python(&server, &id, silent).await.contains("403"));
    let hosts = seen.lock().unwrap().join("\n").to_lowercase();
    assert!(hosts.contains("host: a.cdn.test") && !hosts.contains("b.cdn.test"), "{hosts}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_hidden_in_another() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let rules = json!({"internet": "rules", "rules": [
        {"action": "allow", "domain": "web.test", "ports": [80], "path": "/open*"}]});
    let id = sandbox(&server, policy(rules)).await.id;
    let hidden = "GET /hidden HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n";
    let requests = [
        // A length and chunks.
        format!(
            "POST /open HTTP/1.1\\r\\nHost: web.test\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"
        ),
        format!(
            "POST /open HTTP/1.1\\r\\nHost: web.test\\r\\nTransfer-Encoding: chunked\\r\\nContent-Length: 5\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"
        ),
        // Two lengths.
        format!(
            "POST /open HTTP/1.1\\r\\nHost: web.test\\r\\nContent-Length: 0\\r\\nContent-Length: 52\\r\\n\\r\\n{hidden}"
        ),
        // Encodings that only one side knows.
        format!(
            "POST /open HTTP/1.1\\r\\nHost: web.test\\r\\nTransfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"
        ),
        format!(
            "POST /open HTTP/1.1\\r\\nHost: web.test\\r\\nTransfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"
        ),
        format!("POST /open HTTP/1.1\\r\\nHost: web.test\\r\\nContent-Length: +0\\r\\n\\r\\n{hidden}"),
        // Line ends that only one side takes for one.
        "GET /open HTTP/1.1\\r\\nHost: web.test\\r\\nX: y\\rGET /hidden HTTP/1.1\\r\\n\\r\\n".to_owned(),
        format!(
            "GET /open HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: content-length\\r\\nContent-Length: 52\\r\\n\\r\\n{hidden}"
        ),
        "GET /open/../hidden HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n".to_owned(),
        "GET /open%2f..%2fhidden HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n".to_owned(),
    ];
    // At once: each waits whether something comes after its answer.
    let listed = requests.map(|request| format!("b'{request}'")).join(", ");
    let code = format!(
        "import socket, threading\n\
         def send(request):\n  \
           s = socket.create_connection(('web.test', 80), 20); s.settimeout(2)\n  \
           s.sendall(request)\n  \
           try:\n    \
             while s.recv(65536): pass\n  \
           except OSError: pass\n\
         t = [threading.Thread(target=send, args=(r,)) for r in [{listed}]]\n\
         [x.start() for x in t]; [x.join() for x in t]"
    );
    let said = python(&server, &id, &code).await;
    assert_eq!(said, "", "every request was sent");
    let lines: Vec<String> =
        seen.lock().unwrap().iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect();
    assert!(lines.iter().any(|line| line.contains(" /open ")), "some requests are passed on: {lines:?}");
    assert!(!lines.iter().any(|line| line.contains("hidden")), "{lines:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tricks_with_the_explicit_proxy() {
    let outside = Outside::new();
    let cdn = outside.web(&format!("{SHARED}:80"));
    outside.banner(&format!("{SHARED}:443"));
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["a.cdn.test"])).await.id;
    let proxy = ("10.0.2.2", 3128);
    for (request, status) in [
        ("CONNECT other.test:443 HTTP/1.1\\r\\nHost: a.cdn.test:443\\r\\n\\r\\n", "403"),
        ("CONNECT 93.184.215.14:80 HTTP/1.1\\r\\n\\r\\n", "403"),
        ("CONNECT 169.254.169.254:80 HTTP/1.1\\r\\n\\r\\n", "403"),
        ("CONNECT 127.0.0.1:22 HTTP/1.1\\r\\n\\r\\n", "403"),
        ("CONNECT [::ffff:127.0.0.1]:22 HTTP/1.1\\r\\n\\r\\n", "403"),
        ("CONNECT localhost:22 HTTP/1.1\\r\\n\\r\\n", "403"),
        ("CONNECT 2130706433:22 HTTP/1.1\\r\\n\\r\\n", "40"),
        ("CONNECT 0x7f.1:22 HTTP/1.1\\r\\n\\r\\n", "400"),
        ("CONNECT a.cdn.test HTTP/1.1\\r\\n\\r\\n", "400"),
        ("GET http://other.test/ HTTP/1.1\\r\\nHost: a.cdn.test\\r\\n\\r\\n", "400"),
        ("GET http://a.cdn.test@other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n", "400"),
        ("GET / HTTP/1.1\\r\\nHost: a.cdn.test\\r\\n\\r\\n", "400"),
        ("GET ftp://a.cdn.test/ HTTP/1.1\\r\\nHost: a.cdn.test\\r\\n\\r\\n", "400"),
    ] {
        let request = request.replacen("\\r\\n\\r\\n", "\\r\\nConnection: close\\r\\n\\r\\n", 1);
        let answer = raw(&server, &id, proxy, &request).await;
        assert!(answer.contains(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
    }
    assert_eq!(outside.dials(), Vec::<String>::new());
    // Requests inside a tunnel are held to the policy as well.
    let host = server
        .sh(&id, &format!("{CURL} -p -x http://10.0.2.2:3128 -H 'Host: b.cdn.test' http://a.cdn.test/"))
        .await;
    assert!(host.stdout.ends_with("403\n"), "{host:?}");
    let name = "openssl s_client -proxy 10.0.2.2:3128 -connect a.cdn.test:443 -servername b.cdn.test </dev/null 2>&1";
    assert!(server.sh(&id, name).await.stdout.contains("alert"));
    assert_eq!((cdn.lock().unwrap().len(), outside.dials()), (0, vec![]));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_carry_no_second_protocol() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    let h2c = "GET / HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: Upgrade, HTTP2-Settings, close\\r\\nUpgrade: h2c\\r\\nHTTP2-Settings: AAMAAABkAARAAAAA\\r\\n\\r\\n";
    raw(&server, &id, ("web.test", 80), h2c).await;
    let heads = seen.lock().unwrap().join("\n").to_lowercase();
    assert!(
        heads.contains("host: web.test") && !heads.contains("h2c") && !heads.contains("http2-settings"),
        "{heads}"
    );
    server.finish().await;
}
