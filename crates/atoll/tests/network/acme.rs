//! A certificate from a real server of ACME: got, kept, renewed, and the messages when it cannot be had.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use atoll_blackbox::{Output, Server, command, wait_until};
use atoll_testing::run;

use crate::common::acme::{BLOCKED, DOMAIN, Pebble, Wanted};

/// A further name of the server, not of its domain.
const OTHER: &str = "other.test";

fn as_refs(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// A server that proves its names by records.
fn with_dns(pebble: &Pebble, more: &[&str]) -> Server {
    let mut args = pebble.args(DOMAIN);
    args.extend(pebble.dns_args());
    let mut args = as_refs(&args);
    args.extend(more);
    Server::with(&args)
}

fn port(server: &Server) -> &str {
    server.url.rsplit(':').next().unwrap()
}

/// curl, to names that all lead to this host, trusting nothing else.
fn curl(root: &Path, url: &str, more: &[&str]) -> Output {
    let mut curl = command(Path::new("curl"));
    curl.args([
        "--silent",
        "--show-error",
        "--connect-to",
        "::127.0.0.1:",
        "--capath",
        "/nonexistent",
        "--cacert",
    ]);
    let out = curl.arg(root).args(more).arg(url).output().unwrap();
    Output {
        code: out.status.code(),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// The check of the certificate by `atoll doctor`: its status, and all of it as a text.
fn check(server: &Server) -> (String, String) {
    let report = server.cli(&["--json", "doctor"]).ok().json();
    let all = report["checks"].as_array().unwrap();
    let one = all.iter().find(|check| check["name"] == "certificate").unwrap();
    (one["status"].as_str().unwrap().to_owned(), one.to_string())
}

async fn until_certified(server: &Server) {
    wait_until("a certificate", || async { (check(server).0 == "ok").then_some(()) }).await;
}

/// Waits until the report says this of the certificate.
async fn until_said(server: &Server, what: &str) {
    wait_until(what, || async { check(server).1.contains(what).then_some(()) }).await;
}

/// The number of the certificate that a client is shown.
fn serial(server: &Server) -> String {
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{} -servername {DOMAIN} </dev/null 2>/dev/null | openssl x509 -noout -serial",
        port(server)
    );
    String::from_utf8(run(Command::new("sh").args(["-c", &script]))).unwrap()
}

fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_certificate_for_all_names_by_records_of_the_domain() {
    let mut pebble = Pebble::start(Wanted::default());
    let mut server = with_dns(&pebble, &[]);
    until_certified(&server).await;
    let (root, port) = (pebble.root(), port(&server).to_owned());
    for name in [DOMAIN, "api.boxes.test", "console.boxes.test"] {
        let answer = curl(&root, &format!("https://{name}:{port}/healthz"), &[]);
        assert_eq!(answer.code, Some(0), "{name}: {answer:?}");
    }
    // A port of a sandbox, by its name, with a client that trusts the server of ACME alone.
    server.cli(&["create", "--name", "web"]).ok();
    server
        .cli(&["exec", "-d", "web", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
        .ok();
    let link = server.cli(&["port", "url", "web", "8000"]).ok().stdout;
    assert!(link.starts_with(&format!("https://8000-web.{DOMAIN}:{port}/?")), "{link}");
    let served =
        curl(&root, link.trim(), &["--retry", "20", "--retry-all-errors", "--retry-delay", "1"]).ok();
    assert!(served.stdout.contains("Directory listing"), "{served:?}");
    // Other names have a certificate of the server's own authority, as before.
    assert_eq!(curl(&root, &format!("https://localhost:{port}/healthz"), &[]).code, Some(60));
    std::fs::write(pebble.path("own.pem"), server.cli(&["ca"]).ok().stdout).unwrap();
    curl(&pebble.path("own.pem"), &format!("https://localhost:{port}/healthz"), &[]).ok();

    // As for lego: both records have one name, and both are gone.
    let hooks = pebble.hooks();
    let said = |verb: &str| {
        let start = format!("{verb} _acme-challenge.{DOMAIN}. ");
        hooks.iter().filter_map(|line| line.strip_prefix(&start).map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!((hooks.len(), said("present").len()), (4, 2), "{hooks:?}");
    assert_eq!(said("present"), said("cleanup"));
    let metrics = server.send(server.request("GET", "/metrics")).await.text();
    assert!(metric(&metrics, "atoll_certificate_end_seconds") > 1_700_000_000, "{metrics}");
    assert_eq!(metric(&metrics, "atoll_certificate_order_failed"), 0);
    assert!(!server.log().contains("PRIVATE KEY"));

    // A restart orders no new certificate.
    let before = serial(&server);
    pebble.end();
    server.stop();
    server.restart();
    assert_eq!(serial(&server), before);
    assert_eq!(server.log().matches("ordering a certificate").count(), 1, "{}", server.log());
    server.finish().await;
}

#[tokio::test]
async fn it_is_renewed_while_connections_go_on() {
    let pebble = Pebble::start(Wanted { life_s: 30, ..Wanted::default() });
    let server = with_dns(&pebble, &[]);
    until_certified(&server).await;
    let first = serial(&server);
    // A client that holds its connection, and asks again when it is told to.
    const CLIENT: &str = r"
import http.client, ssl, sys
client = http.client.HTTPSConnection('127.0.0.1', int(sys.argv[1]), context=ssl._create_unverified_context())
for line in sys.stdin:
    client.request('GET', '/healthz')
    print(client.getresponse().read().decode(), client.sock.getsockname()[1], flush=True)
";
    let mut client = Command::new("python3")
        .args(["-c", CLIENT, port(&server)])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ask = client.stdin.take().unwrap();
    ask.write_all(b"\n").unwrap();
    let mut answers = std::io::BufReader::new(client.stdout.take().unwrap());
    let mut before = String::new();
    std::io::BufRead::read_line(&mut answers, &mut before).unwrap();
    wait_until("another certificate", || async { (serial(&server) != first).then_some(()) }).await;
    ask.write_all(b"\n").unwrap();
    drop(ask);
    let mut after = String::new();
    answers.read_to_string(&mut after).unwrap();
    assert!(before.contains("ok"), "{before}");
    assert_eq!(before, after, "over the same connection");
    client.wait().unwrap();
    server.finish().await;
}

#[tokio::test]
async fn what_goes_wrong_is_said_and_tried_again() {
    let mut pebble = Pebble::prepare(Wanted::default());
    let mut server = with_dns(&pebble, &[]);
    // It serves meanwhile, and nothing in clear.
    until_said(&server, "the last order failed: ").await;
    let (status, text) = check(&server);
    assert_eq!(status, "missing", "{text}");
    assert!(text.contains("clients are shown one of this server's own authority"), "{text}");
    std::fs::write(pebble.path("own.pem"), server.cli(&["ca"]).ok().stdout).unwrap();
    curl(&pebble.path("own.pem"), &format!("https://{DOMAIN}:{}/healthz", port(&server)), &[]).ok();
    let metrics = server.send(server.request("GET", "/metrics")).await.text();
    assert_eq!(metric(&metrics, "atoll_certificate_end_seconds"), 0);
    assert_eq!(metric(&metrics, "atoll_certificate_order_failed"), 1);

    // By itself, soon after the first failure.
    std::fs::write(pebble.path("broken"), "no such zone\n").unwrap();
    pebble.begin();
    until_said(&server, "hook present failed, exit status: 1: no such zone").await;
    let hooks = pebble.hooks();
    let verbs: Vec<_> = hooks.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(verbs, ["present", "cleanup", "cleanup"], "both are cleaned up");
    // An operator who has mended the hook need not wait: a restart tries at once.
    std::fs::remove_file(pebble.path("broken")).unwrap();
    server.stop();
    server.restart();
    until_certified(&server).await;
    server.finish().await;
}

#[tokio::test]
async fn a_server_that_is_killed_in_between_orders_anew_and_leaves_no_record() {
    let mut pebble = Pebble::prepare(Wanted::default());
    let mut server = with_dns(&pebble, &[]);
    until_said(&server, "the last order failed: ").await;
    server.stop();
    pebble.begin();
    for point in ["acme.published", "acme.issued"] {
        server.restart_with(&format!("{point}=kill"));
        assert!(!server.wait_end().success(), "it was to die at {point}");
    }
    server.restart();
    until_certified(&server).await;
    let hooks = pebble.hooks();
    let of = |verb: &str| {
        let mut all: Vec<_> = hooks.iter().filter_map(|line| line.strip_prefix(verb)).collect();
        all.sort_unstable();
        all
    };
    // The first two orders had no valid authorization to use again.
    let made = pebble.authorizations();
    assert!((4..=6).contains(&made) && of("present").len() == made, "{made} {hooks:?}");
    assert_eq!(of("present"), of("cleanup"), "also those of the one that was killed");
    // Four orders in an hour: the server makes no fifth.
    let log = server.log();
    assert_eq!(log.matches("ordering a certificate").count(), 4, "{log}");
    server.finish().await;
}

#[tokio::test]
async fn names_that_are_refused_are_said() {
    let pebble = Pebble::start(Wanted { external: true, ..Wanted::default() });
    let mut args = pebble.args(BLOCKED);
    args.extend(pebble.dns_args());
    let mut server = Server::with(&as_refs(&args));
    until_said(&server, "externalAccountRequired").await;
    server.stop();
    let key = pebble.path("eab.key");
    server.add_args(&["--acme-eab-kid", "kid-1", "--acme-eab-key-file", key.to_str().unwrap()]);
    server.restart();
    until_said(&server, "rejectedIdentifier").await;
    assert!(pebble.hooks().is_empty(), "nothing was proved");
    server.finish().await;
}

/// The answer of the port for challenges to this request.
fn plain(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // It may have answered and closed before everything is written.
    let _written = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _read = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn without_records_names_that_are_known_are_proved_over_http() {
    let pebble = Pebble::start(Wanted::default());
    let mut args = pebble.args(DOMAIN);
    args.extend(["--acme-http-listen".to_owned(), format!("127.0.0.1:{}", pebble.http)]);
    args.extend(["--host", OTHER, "--host", "192.0.2.7"].map(str::to_owned));
    let server = Server::with(&as_refs(&args));
    until_certified(&server).await;
    let log = server.log();
    assert!(log.contains("names of ports of sandboxes have no certificate"), "{log}");
    let of_hosts = log.lines().find(|line| line.contains("names of --host have no certificate")).unwrap();
    assert!(of_hosts.contains("192.0.2.7") && !of_hosts.contains(OTHER), "{of_hosts}");
    let (root, port) = (pebble.root(), port(&server).to_owned());
    for name in [DOMAIN, "api.boxes.test", "console.boxes.test", OTHER] {
        let answer = curl(&root, &format!("https://{name}:{port}/healthz"), &[]);
        assert_eq!(answer.code, Some(0), "{name}: {answer:?}");
    }
    let of_port = curl(&root, &format!("https://8000-web.{DOMAIN}:{port}/"), &[]);
    assert_eq!(of_port.code, Some(60), "{of_port:?}");

    // The port for challenges, which every client can reach.
    let get =
        |path: &str, host: &str| plain(pebble.http, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let moved = get("/v1/info?a=b", "8000-web.Boxes.test:80");
    assert!(moved.starts_with("HTTP/1.1 301"), "{moved}");
    let to = format!("location: https://8000-web.boxes.test:{port}/v1/info?a=b\r\n");
    assert!(moved.to_ascii_lowercase().contains(&to), "{moved}");
    let of_other = get("/", OTHER).to_ascii_lowercase();
    assert!(of_other.contains(&format!("location: https://{OTHER}:{port}/\r\n")), "{of_other}");
    for host in [
        "evil.example",
        "below.other.test",
        "192.0.2.7",
        "boxes.test.evil.example",
        "xboxes.test",
        "evil.example/.boxes.test",
        "evil.example?.boxes.test",
        "evil.example\\.boxes.test",
        "x@evil.example#.boxes.test",
        "",
        "[::1]:80",
    ] {
        assert!(get("/", host).starts_with("HTTP/1.1 404"), "{host}");
    }
    let long = "a".repeat(300);
    let unknown = "LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0";
    for token in
        ["", "x", "../../../etc/passwd-is-a-long-name", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", &long, unknown]
    {
        let answer = get(&format!("/.well-known/acme-challenge/{token}"), DOMAIN);
        assert!(answer.starts_with("HTTP/1.1 404"), "{token}: {answer}");
    }
    let posted =
        plain(pebble.http, "POST /v1/sandboxes HTTP/1.1\r\nHost: boxes.test\r\nContent-Length: 2\r\n\r\n{}");
    assert!(posted.starts_with("HTTP/1.1 426"), "{posted}");
    let large = get("/", &"a".repeat(20_000));
    assert!(large.starts_with("HTTP/1.1 4"), "{large}");
    for garbage in ["\u{16}\u{3}\u{1}\0\u{5}hello\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let answer = plain(pebble.http, garbage);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    server.finish().await;
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let serve = |args: &[&str]| {
        let mut serve = command(atoll_blackbox::program());
        let out = serve
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir", &data])
            .args(args)
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for (args, why) in [
        (&["--acme", "--domain", "a.test"][..], "--acme-agree-tos"),
        (&["--acme", "--acme-agree-tos"], "give the name that the certificate is for"),
        (&["--acme", "--acme-agree-tos", "--tls"], "cannot be used with"),
        (&["--acme-email", "a@b.test"], "--acme"),
        (
            &["--acme", "--acme-agree-tos", "--domain", "a.test", "--acme-directory", "http://a.test"],
            "begins with https://",
        ),
        (&["--acme", "--acme-agree-tos", "--domain", "a.test", "--acme-email", "nobody"], "NAME@HOST"),
    ] {
        let (code, text) = serve(args);
        assert!(code != Some(0) && text.contains(why), "{args:?}: {code:?} {text}");
    }
    assert!(!Path::new(&data).try_exists().unwrap(), "nothing was made");
}
