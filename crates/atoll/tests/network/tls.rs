//! TLS on the server's port: its own authority, certificates from files, and the answer to clients without TLS.

use std::path::Path;
use std::process::Command;

use atoll_blackbox::{Output, Server, command, host, program};

fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap();
    Output {
        code: out.status.code(),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

fn port(server: &Server) -> &str {
    server.url.rsplit(':').next().unwrap()
}

/// curl, to names that all lead to this host.
fn curl(ca: &Path, url: &str, more: &[&str]) -> Output {
    let mut curl = command(Path::new("curl"));
    curl.args(["--silent", "--show-error", "--connect-to", "::127.0.0.1:", "--cacert"]).arg(ca);
    run(curl.args(more).arg(url))
}

/// The answer to a client that speaks HTTP/2 and offered no protocol in the handshake, as some gRPC clients: the
/// protocol that was agreed on, and the type of the server's first frame.
fn http2_without_alpn(port: &str) -> String {
    const CLIENT: &str = r"
import socket, ssl, sys
context = ssl._create_unverified_context()
stream = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10), server_hostname='localhost')
stream.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\x04\0\0\0\0\0')
print(stream.selected_alpn_protocol(), stream.recv(9)[3])
";
    run(Command::new("python3").args(["-c", CLIENT, port])).ok().stdout
}

#[tokio::test]
async fn names_of_the_domain_are_served_with_its_own_authority() {
    let mut server = Server::with(&["--tls", "--domain", "boxes.test"]);
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, server.cli(&["ca"]).ok().stdout).unwrap();
    let port = port(&server).to_owned();
    for name in ["boxes.test", "localhost"] {
        let url = format!("https://{name}:{port}/healthz");
        for version in ["--http1.1", "--http2"] {
            assert!(curl(&ca, &url, &[version]).ok().stdout.contains("ok"), "{name} {version}");
        }
    }
    let by_address = curl(&ca, &format!("https://127.0.0.1:{port}/healthz"), &[]).ok();
    assert!(by_address.stdout.contains("ok"));
    let strange = curl(&ca, &format!("https://boxes.example:{port}/healthz"), &[]);
    assert_eq!(strange.code, Some(60), "the certificate is not for that name: {strange:?}");
    // A dialect's own host name.
    let e2b = curl(&ca, &format!("https://api.boxes.test:{port}/sandboxes"), &[]).ok();
    assert!(e2b.stdout.contains("\"code\":401"), "{e2b:?}");
    let config = curl(&ca, &format!("https://localhost:{port}/daytona/api/config"), &[]);
    assert!(config.stdout.contains("401") || config.stdout.contains("Unauthorized"), "{config:?}");
    let key = format!("authorization: Bearer {}", server.key);
    let config =
        curl(&ca, &format!("https://localhost:{port}/daytona/api/config"), &["--header", &key]).ok().json();
    assert_eq!(config["proxyToolboxUrl"], format!("https://localhost:{port}/daytona/toolbox"), "{config}");
    assert_eq!(http2_without_alpn(&port), "None 4\n", "a frame of settings");
    // In clear for this host.
    assert!(curl(&ca, &format!("{}/healthz", server.url), &[]).ok().stdout.contains("ok"));

    let made = server.cli(&["--json", "create", "--name", "web"]).ok().json();
    let id = made["id"].as_str().unwrap().to_owned();
    // The program itself, over TLS: a call, and a WebSocket.
    let mut over_tls = command(program());
    over_tls.args(["exec", "web", "--", "echo", "over TLS"]).env("SSL_CERT_FILE", &ca);
    over_tls.env("ATOLL_URL", format!("https://localhost:{port}")).env("ATOLL_API_KEY", &server.key);
    assert_eq!(run(&mut over_tls).ok().stdout, "over TLS\n");

    server
        .cli(&["exec", "-d", "web", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
        .ok();
    let link = server.cli(&["port", "url", "web", "8000"]).ok().stdout;
    assert!(link.starts_with(&format!("https://8000-web.boxes.test:{port}/?")), "{link}");
    let served = curl(&ca, link.trim(), &["--retry", "20", "--retry-all-errors", "--retry-delay", "1"]).ok();
    assert!(served.stdout.contains("Directory listing"), "{served:?}");
    let private = curl(&ca, &format!("https://8000-{id}.boxes.test:{port}/"), &["--http2"]).ok();
    assert!(private.stdout.contains("unauthorized"), "{private:?}");

    // The authority is the installation's: clients need not trust another one after a restart.
    server.stop();
    server.restart();
    assert_eq!(server.cli(&["ca"]).ok().stdout, std::fs::read_to_string(&ca).unwrap());
    server.finish().await;
}

#[tokio::test]
async fn certificates_come_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]);
    openssl.args(["-subj", "/CN=boxes.test", "-addext", "subjectAltName=DNS:boxes.test,DNS:*.boxes.test"]);
    run(openssl.arg("-keyout").arg(&key).arg("-out").arg(&cert)).ok();
    let (cert_path, key_path) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let server = Server::with(&["--domain", "boxes.test", "--tls-cert", cert_path, "--tls-key", key_path]);
    let port = port(&server).to_owned();
    assert!(curl(&cert, &format!("https://boxes.test:{port}/healthz"), &[]).ok().stdout.contains("ok"));
    let none = server.cli(&["ca"]);
    assert_eq!(none.code, Some(125));
    assert!(none.stderr.contains("no authority of its own"), "{none:?}");
    server.finish().await;

    let mut wrong = command(program());
    wrong
        .args(["serve", "--tls-cert", key_path, "--tls-key", key_path, "--data-dir"])
        .arg(dir.path().join("data"));
    let wrong = run(wrong.args(["--listen", "127.0.0.1:0"]));
    assert!(wrong.code != Some(0) && wrong.stderr.contains("holds no PEM"), "{wrong:?}");
    // A server that cannot serve leaves nothing on the host.
    let data = dir.path().join("data");
    let installation = std::fs::read_to_string(data.join("installation")).unwrap();
    let mut left = host::remains(installation.trim(), &data);
    left.extend(host::left_in_kernel(installation.trim()));
    assert!(left.is_empty(), "{left:#?}");
}

/// In a network namespace of its own, where an address that is not loopback's is this host's, too.
#[test]
fn keys_do_not_travel_in_clear() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
        ip link set lo up; ip address add 192.0.2.1/32 dev lo
        "$1" serve --listen 0.0.0.0:4600 --tls --ready-json --data-dir "$2/data" >"$2/ready" 2>"$2/log" &
        until [ -s "$2/ready" ]; do kill -0 $! || { cat "$2/log"; exit 9; }; sleep 0.1; done
        curl -s -o "$2/answer" -w '%{http_code}\n' -H 'Authorization: Bearer k' http://192.0.2.1:4600/v1/info
        curl -s --http2-prior-knowledge -o "$2/none" -w '%{http_code}\n' http://192.0.2.1:4600/healthz
        curl -s -o "$2/ok" -w '%{http_code}\n' http://127.0.0.1:4600/healthz
        curl -s http://127.0.0.1:4600/v1/ca >"$2/ca"
        curl -s -o "$2/ok" -w '%{http_code}\n' --cacert "$2/ca" https://192.0.2.1:4600/healthz
        cat "$2/answer"
        kill $!; wait $!
    "#;
    let mut shell = command(Path::new("unshare"));
    shell.args(["--net", "bash", "-c", script, "bash"]).arg(program()).arg(dir.path());
    let out = run(&mut shell).stdout;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines[0], lines[2], lines[3]), ("426", "200", "200"), "{out}");
    assert_ne!(lines[1], "200", "{out}");
    let told: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!(told["hint"], "use https:// instead of http://");
}
