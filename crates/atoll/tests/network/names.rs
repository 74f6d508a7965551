//! Names: those that the operator's list of hosts has (`--hosts-file`, else `/etc/hosts`), and the sandboxes' resolver.

use crate::common::outside::{OTHER, Outside, WEB, allow, sandbox};
use atoll_blackbox::Server;

const CURL: &str = "curl -sS --max-time 20 -w '%{http_code}\\n'";
/// Where nothing but a rule about addresses leads.
const PRIVATE: &str = "10.7.7.7";

#[tokio::test(flavor = "multi_thread")]
async fn names_of_the_hosts_file_are_found_and_open_nothing_by_themselves() {
    let outside = Outside::new();
    for address in [WEB, OTHER, PRIVATE] {
        outside.web(&format!("{address}:80"));
    }
    let dir = tempfile::Builder::new().prefix("atoll-names-").tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("hosts");
    // `web.test` is in the resolver's zone, too, and blocked here; this computer's own name means nothing inside.
    let list =
        format!("127.0.0.1 here.corp\n{WEB} wiki.corp wiki # public\n{PRIVATE} db.corp\n0.0.0.0 web.test\n");
    std::fs::write(&file, list).unwrap();
    let server = outside.server_with(&["--hosts-file", file.to_str().unwrap()]);
    let id = sandbox(&server, allow(&["*.corp", "web.test", "other.test"])).await.id;

    let found = server.sh(&id, &format!("{CURL} http://wiki.corp/")).await;
    assert_eq!(found.stdout, format!("hello from {WEB}:80\n200\n"), "{found:?}");
    let other = server.sh(&id, &format!("{CURL} http://other.test/")).await;
    assert_eq!(other.stdout, format!("hello from {OTHER}:80\n200\n"), "the resolver has the rest: {other:?}");
    for name in ["here.corp", "web.test"] {
        assert_ne!(server.sh(&id, &format!("getent ahostsv4 {name}")).await.code, Some(0), "{name}");
    }
    // No rule allows the short name: what is in the list may be looked up no more than other names.
    assert_ne!(server.sh(&id, "getent ahostsv4 wiki").await.code, Some(0));
    assert!(outside.questions().iter().all(|asked| !asked.starts_with("wiki") && !asked.starts_with("db.")));

    let refused = server.sh(&id, &format!("{CURL} http://db.corp/")).await;
    assert!(refused.stdout.ends_with("403\n") && refused.stdout.contains("private"), "{refused:?}");
    server.cli(&["net", "allow", &id, PRIVATE]).ok();
    let found = server.sh(&id, &format!("{CURL} http://db.corp/")).await;
    assert_eq!(found.stdout, format!("hello from {PRIVATE}:80\n200\n"), "{found:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_nobody_answers_for_can_be_found() {
    // No resolver listens there: the port was free a moment ago.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let server = Server::with(&["--resolver", &nobody]);
    let id = sandbox(&server, allow(&["web.test"])).await.id;
    assert_ne!(server.sh(&id, "getent hosts web.test").await.code, Some(0));
    let table = server.cli(&["net", "denied", &id]).ok().stdout;
    assert!(table.contains("web.test") && table.contains("gave an answer"), "{table}");
    server.finish().await;
}

/// Asks 60,000 questions without waiting, and then one more: how many were answered, in how many milliseconds, and the last.
const FLOOD: &str = r"
import socket, struct, time
at = next(l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver'))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setblocking(False)
begun = last = time.monotonic(); sent = answers = 0
while time.monotonic() - last < 1:
    try:
        if sent < 60000:
            s.sendto(struct.pack('>6H', sent & 65535, 256, 1, 0, 0, 0) + b'\1q\7example\0\0\1\0\1', (at, 53))
            sent += 1; last = time.monotonic()
        while True:
            s.recv(2048); answers += 1; last = time.monotonic()
    except BlockingIOError: pass
print(answers, int((time.monotonic() - begun) * 1000), socket.gethostbyname('web.test'))
";

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_questions_is_thrown_away() {
    let outside = Outside::new();
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    let create = crate::common::argv(&["/usr/bin/python3", "-c", FLOOD]);
    let done = server.run(&id, create).await;
    let (out, err) = crate::common::outputs(&server, &id, &done.exec.id).await;
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    let mut words = out.split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
    let (answers, took_ms) = (number(), number());
    assert!((1..=4100 + took_ms).contains(&answers), "{out}{err}");
    assert_eq!(words.next(), Some(WEB), "{out}{err}");
    server.finish().await;
}
