//! What sandboxes reach: policy, the explicit proxy, live updates, restarts, accounting.

use crate::common::outside::{OTHER, Outside, WEB, allow, policy, sandbox};
use atoll_api::UpdateSandbox;
use atoll_blackbox::{Server, wait_until};
use atoll_core::network::{NetworkView, Stage};
use atoll_core::policy::EgressPolicy;
use serde_json::json;

/// A request with its status in the last line.
const CURL: &str = "curl -sS --max-time 20 -w '%{http_code}\\n'";

async fn update(server: &Server, id: &str, egress: EgressPolicy) {
    let update = UpdateSandbox { egress: Some(egress), ..UpdateSandbox::default() };
    server.client.update_sandbox(id, &update).await.unwrap();
}

async fn network(server: &Server, id: &str) -> NetworkView {
    server.client.sandbox_network(id).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reached_unless_somebody_says_so() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let id = server.sandbox().await.id;
    let by_address = server.sh(&id, &format!("{CURL} http://{WEB}/")).await;
    assert!(by_address.stdout.ends_with("403\n"), "{by_address:?}");
    assert!(by_address.stdout.contains("internet: off"), "the reason can be read: {by_address:?}");
    let command = format!("(now: atoll net allow SANDBOX {WEB}:80)\n");
    assert!(by_address.stdout.contains(&command), "and what would allow it: {by_address:?}");
    assert_ne!(server.sh(&id, "getent hosts web.test").await.code, Some(0));
    assert_ne!(server.sh(&id, &format!("{CURL} http://web.test/")).await.code, Some(0));
    assert_eq!((outside.dials(), outside.questions()), (vec![], vec![]));
    let denials = network(&server, &id).await.denials;
    let saw = |stage, what: &str| denials.iter().any(|d| d.stage == stage && d.what.contains(what));
    assert!(saw(Stage::Dns, "web.test") && saw(Stage::Request, WEB), "{denials:?}");
    let table = server.cli(&["net", "denied", &id]).ok().stdout;
    assert!(table.contains("web.test") && table.contains("internet: off"), "{table}");
    // Who only sees the command fail is told why; another command's failure has another reason.
    let failed = server.cli(&["exec", &id, "--", "getent", "hosts", "other.test"]);
    let allow = format!(
        "other.test: this sandbox has no internet (internet: off); 'atoll net allow {id} other.test'"
    );
    assert!(failed.code != Some(0) && failed.stderr.contains(&allow), "{failed:?}");
    assert_eq!(server.cli(&["exec", &id, "--", "false"]).stderr, "");
    let gone = server.cli(&["run", "--", "getent", "hosts", "web.test"]);
    assert!(gone.stderr.contains("'atoll run --allow web.test' would allow it"), "{gone:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_come_and_go_by_the_command_line_and_nothing_else_changes() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let rules = json!({"internet": "rules", "rules": [{"action": "allow", "domain": "other.test"}],
        "inject": [{"name": "team", "hosts": ["other.test"], "headers": {"x-team": "blue"}}]});
    let id = sandbox(&server, policy(rules)).await.id;
    let web = format!("{CURL} http://web.test/ -o /dev/null");
    assert_ne!(server.sh(&id, &web).await.stdout, "200\n");
    let said = server.cli(&["net", "allow", &id, "web.test:80", "@pypi"]).ok().stdout;
    assert!(
        said.contains("+ rule: allow web.test:80") && said.contains("+ rule: \"@pypi\": allow pypi.org:443"),
        "{said}"
    );
    assert!(!said.contains("\n-"), "{said}");
    assert_eq!(server.sh(&id, &web).await.stdout, "200\n");
    let shown = server.cli(&["net", "show", &id]).ok().stdout;
    assert!(
        shown.contains("allow other.test") && shown.contains("inject team: other.test → header x-team: blue"),
        "{shown}"
    );
    let said = server.cli(&["net", "deny", &id, "web.test"]).ok().stdout;
    assert_eq!(said.trim(), "+ rule: deny web.test");
    assert_ne!(server.sh(&id, &web).await.stdout, "200\n");
    server.cli(&["net", "deny", "--remove", &id, "web.test"]).ok();
    server.cli(&["net", "allow", "--remove", &id, "@pypi"]).ok();
    assert_eq!(server.sh(&id, &web).await.stdout, "200\n");
    let wrong = server.cli(&["net", "allow", "--remove", &id, "nothing.test"]);
    assert!(wrong.code != Some(0) && wrong.stderr.contains("no rule"), "{wrong:?}");
    // The rules that a whole new policy takes away are told.
    let said = server.cli(&["update", &id, "--allow-cidr", "10.1.2.3"]).ok().stderr;
    assert!(said.contains("- inject: team") && said.contains("- rule: allow other.test"), "{said}");
    let presets = server.cli(&["--json", "net", "presets"]).ok().json();
    assert!(presets["npm"][0].as_str().unwrap().contains("npmjs"), "{presets}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_by_name_port_method_and_path() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    let server = outside.server();
    let rules = json!({"internet": "rules", "rules": [
        {"action": "deny", "domain": "web.test", "path": "/secret*", "name": "no secrets"},
        {"action": "allow", "domain": "web.test", "ports": [80], "methods": ["GET", "HEAD"]},
    ]});
    let id = sandbox(&server, policy(rules)).await.id;
    let ok = server.sh(&id, &format!("{CURL} http://web.test/a?b=c")).await;
    assert_eq!(ok.stdout, format!("hello from {WEB}:80\n200\n"), "{ok:?}");
    let head = seen.lock().unwrap()[0].clone();
    assert!(
        head.starts_with("GET /a?b=c HTTP/1.1") && head.to_lowercase().contains("host: web.test"),
        "{head}"
    );
    for (arguments, why) in [
        ("-X POST http://web.test/", "no rule allows it"),
        ("http://web.test/secret/x", "no secrets"),
        ("--path-as-is http://web.test/a/../secret", "no secrets"),
        (&format!("http://{OTHER}/"), "no rule allows it"),
    ] {
        let refused = server.sh(&id, &format!("{CURL} {arguments}")).await;
        assert!(
            refused.stdout.ends_with("403\n") && refused.stdout.contains(why),
            "{arguments}: {refused:?}"
        );
    }
    // One connection, several requests: each is decided upon by itself.
    let kept =
        server.sh(&id, &format!("{CURL} http://web.test/1 http://web.test/secret http://web.test/2")).await;
    assert_eq!(kept.stdout.matches("hello").count(), 2, "{kept:?}");
    // A name that no rule allows is not even looked up.
    assert_ne!(server.sh(&id, "getent hosts other.test").await.code, Some(0));
    assert!(outside.questions().iter().all(|question| question.starts_with("web.test ")));
    assert!(outside.dials().iter().all(|address| *address == format!("{WEB}:80")), "{:?}", outside.dials());
    let view = network(&server, &id).await;
    assert_eq!(view.totals[0].destination, "web.test:80");
    assert!(view.totals[0].received_bytes > 0 && view.transferred.sent_bytes > 0);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_passes_by_its_server_name_and_stays_end_to_end() {
    let outside = Outside::new();
    let dir = tempfile::Builder::new().prefix("atoll-egress-tls-").tempdir_in("/var/tmp").unwrap();
    let origin = TlsOrigin::start(dir.path());
    outside.put(&format!("{WEB}:443"), origin.address);
    let server = outside.server();
    let id = sandbox(&server, allow(&["tls.test:443"])).await.id;
    let ok = server.sh(&id, &format!("{CURL} -k https://tls.test/ -o /dev/null")).await;
    assert_eq!(ok.stdout, "200\n", "{ok:?}");
    let issuer =
        "openssl s_client -connect tls.test:443 -servername tls.test </dev/null 2>/dev/null | grep issuer";
    assert!(server.sh(&id, issuer).await.stdout.contains("atoll-test-origin"), "nobody opened it");
    // The same address under a name that no rule allows, or none.
    for name in ["-servername web.test", "-noservername"] {
        let refused =
            server.sh(&id, &format!("openssl s_client -connect {WEB}:443 {name} </dev/null 2>&1")).await;
        assert!(refused.stdout.contains("alert"), "{name}: {refused:?}");
    }
    server.finish().await;
}

/// `openssl s_server` with a certificate of its own.
struct TlsOrigin {
    child: std::process::Child,
    address: std::net::SocketAddr,
}

impl TlsOrigin {
    fn start(dir: &std::path::Path) -> Self {
        let (key, cert) = (dir.join("key.pem"), dir.join("cert.pem"));
        atoll_testing::run(
            std::process::Command::new("openssl")
                .args([
                    "req",
                    "-x509",
                    "-newkey",
                    "rsa:2048",
                    "-nodes",
                    "-days",
                    "2",
                    "-subj",
                    "/CN=atoll-test-origin",
                ])
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&cert),
        );
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = std::process::Command::new("openssl")
            .args(["s_server", "-quiet", "-www", "-accept", &address.to_string()])
            .arg("-key")
            .arg(&key)
            .arg("-cert")
            .arg(&cert)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(std::time::Instant::now() < deadline, "the origin does not start");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { child, address }
    }
}

impl Drop for TlsOrigin {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_explicit_proxy_is_held_to_the_same_policy_and_says_why() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{WEB}:8080"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    let proxied = format!("{CURL} -x http://10.0.2.2:3128");
    let plain = server.sh(&id, &format!("{proxied} http://web.test/")).await;
    assert_eq!(plain.stdout, format!("hello from {WEB}:80\n200\n"), "{plain:?}");
    let tunnel = server.sh(&id, &format!("{proxied} -p http://web.test/")).await;
    assert!(tunnel.stdout.contains("hello"), "{tunnel:?}");
    let by_variable = server
        .sh(
            &id,
            "http_proxy=http://10.0.2.2:3128 python3 -c \"\
        import urllib.request; print(urllib.request.urlopen('http://web.test/').read())\"",
        )
        .await;
    assert!(by_variable.stdout.contains("hello"), "{by_variable:?}");
    for to in ["http://other.test/", "http://web.test:8080/", &format!("http://{WEB}/")] {
        let refused = server.sh(&id, &format!("{proxied} {to}")).await;
        assert!(refused.stdout.ends_with("403\n") && refused.stdout.contains("no rule"), "{to}: {refused:?}");
    }
    // Many clients do not show the refusal; it can be read at the gateway, which shows a sandbox only its own.
    server.sh(&id, "getent hosts nothere.test").await;
    let read = server.sh(&id, &format!("{CURL} http://10.0.2.2:3128/")).await.stdout;
    assert!(read.ends_with("200\n") && read.contains("what: nothere.test\n"), "{read}");
    assert!(read.contains("allow it with --allow nothere.test"), "{read}");
    let neighbour = sandbox(&server, allow(&["web.test:80"])).await.id;
    let none = server.sh(&neighbour, &format!("{CURL} http://10.0.2.2:3128/")).await.stdout;
    assert_eq!(none, "Atoll has refused nothing in this sandbox.\n200\n");
    let listed = server.cli(&["net", "denied", &id]).ok().stdout;
    assert!(listed.contains(&format!("atoll net allow {id} nothere.test")), "{listed}");
    let refused = server.sh(&id, &format!("{proxied} -v https://other.test/ 2>&1")).await;
    assert!(
        refused.stdout.contains("403") && refused.stdout.to_lowercase().contains("x-atoll-refused"),
        "{refused:?}"
    );
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_policy_counts_at_once_also_for_what_is_open() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.banner(&format!("{WEB}:2525"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test"])).await.id;
    let streaming = server.shell(&id, "curl -sSN http://web.test/stream; echo ended $?").await;
    let relayed = server
        .shell(
            &id,
            "python3 -c \"\
        import socket; s = socket.create_connection(('web.test', 2525)); print(s.recv(100), flush=True); \
        s.recv(1)\"; echo ended",
        )
        .await;
    crate::common::follow(&server, &id, &streaming, 5).await;
    crate::common::follow(&server, &id, &relayed, 5).await;
    assert_eq!(network(&server, &id).await.connections.len(), 2);
    // An update that goes on allowing them leaves them alone.
    update(&server, &id, allow(&["*.test", "other.test"])).await;
    assert_eq!(network(&server, &id).await.connections.len(), 2, "still allowed");
    update(&server, &id, allow(&["other.test"])).await;
    for exec in [&streaming, &relayed] {
        let (out, _) = crate::common::outputs(&server, &id, exec).await;
        assert!(String::from_utf8_lossy(&out).contains("ended"), "it was cut");
    }
    assert_eq!(server.sh(&id, &format!("{CURL} http://{WEB}/ -o /dev/null")).await.stdout, "403\n");
    let opened = server.cli(&["update", &id, "--internet", "on"]).ok();
    assert!(!opened.stdout.is_empty());
    assert_eq!(server.sh(&id, &format!("{CURL} http://{WEB}/ -o /dev/null")).await.stdout, "200\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_there_is_no_traffic_and_the_next_one_takes_it_up() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let mut server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    let probe = server
        .shell(
            &id,
            &format!(
                "for i in $(seq 1 600); do curl -s --max-time 2 -o /dev/null -w '%{{http_code}} ' \
            http://web.test/ --resolve web.test:80:{WEB} || echo -n 'refused '; sleep 0.05; done"
            ),
        )
        .await;
    assert_eq!(server.sh(&id, &format!("{CURL} http://web.test/")).await.code, Some(0));
    server.kill();
    let dials = outside.dials().len();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(outside.dials().len() <= dials + 1, "somebody goes on dialling");
    server.restart();
    let back = wait_until("the network is taken up", async || {
        let tried = server.sh(&id, &format!("{CURL} http://web.test/")).await;
        tried.stdout.ends_with("200\n").then_some(())
    });
    back.await;
    assert_eq!(server.sh(&id, &format!("{CURL} http://{OTHER}/ -o /dev/null")).await.stdout, "403\n");
    server.client.kill_exec(&id, &probe).await.unwrap();
    let (out, _) = crate::common::outputs(&server, &id, &probe).await;
    let out = String::from_utf8_lossy(&out);
    assert!(out.contains("refused"), "while no server ran connections were refused at once: {out}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_speak_first_and_opaque_protocols() {
    let outside = Outside::new();
    let seen = outside.banner(&format!("{WEB}:2525"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test:2525"])).await.id;
    let talk = |host: &str| {
        format!(
            "python3 -c \"import socket; s = socket.create_connection(('{host}', 2525), 20); \
             print(s.recv(99)); s.sendall(b'EHLO me\\r\\n'); print(s.recv(99))\""
        )
    };
    let talked = server.sh(&id, &talk("web.test")).await;
    assert!(talked.stdout.contains("220 welcome") && talked.stdout.contains("EHLO me"), "{talked:?}");
    assert_eq!(*seen.lock().unwrap(), ["EHLO me\r\n"]);
    // A port that no rule allows is reset once it is clear that nothing else can allow it.
    let refused = server
        .sh(
            &id,
            "python3 -c \"import socket; s = socket.create_connection(('web.test', 2526), 20); \
            s.sendall(b'EHLO me\\r\\n'); print(s.recv(99))\"",
        )
        .await;
    assert!(refused.stderr.contains("ConnectionResetError"), "{refused:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_is_inside_and_everything_but_tcp_is_refused_at_once() {
    let outside = Outside::new();
    let server = outside.server();
    let id = sandbox(&server, EgressPolicy::open()).await.id;
    server.shell(&id, "cd /tmp && echo inside > f && exec python3 -m http.server --bind 0.0.0.0 8000").await;
    for host in ["127.0.0.1", "localhost", "10.0.2.15"] {
        let get = format!(
            "curl -sS --retry 50 --retry-connrefused --retry-delay 0 --retry-max-time 30 http://{host}:8000/f"
        );
        assert_eq!(server.sh(&id, &get).await.stdout, "inside\n", "{host}");
    }
    let udp = "python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
        s.settimeout(5); s.connect(('1.1.1.1', 443)); s.send(b'x'); s.recv(1)\"";
    let refused = server.sh(&id, udp).await;
    assert!(refused.stderr.contains("ConnectionRefusedError"), "{refused:?}");
    let ipv6 = "python3 -c \"import socket; socket.create_connection(('2606:4700::1111', 443), 5)\"";
    assert!(server.sh(&id, ipv6).await.stderr.contains("unreachable"));
    assert_eq!(outside.dials(), Vec::<String>::new());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_policy_hold_and_much_is_carried() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    outside.banner(&format!("{WEB}:2525"));
    let server = outside.server();
    let limited = json!({"internet": "on", "limits": {"connections": 2}});
    let id = sandbox(&server, policy(limited)).await.id;
    let three = format!(
        "python3 -c \"import socket\nc = [socket.create_connection(('{WEB}', 2525), 20) for _ in range(2)]\n\
         print([len(s.recv(99)) for s in c])\ntry: print(socket.create_connection(('{WEB}', 2525), 20).recv(1))\nexcept OSError as e: print('refused', e)\""
    );
    let tried = server.sh(&id, &three).await;
    assert!(tried.stdout.contains("[13, 13]") && tried.stdout.contains("refused"), "{tried:?}");
    assert!(network(&server, &id).await.denials.iter().any(|denial| denial.stage == Stage::Limit));
    let big = "curl -sS http://web.test/big | wc -c";
    assert_eq!(server.sh(&id, big).await.stdout.trim(), (8 << 20).to_string());
    // Enough in one connection for the kernel to carry it, both ways at once.
    let echo = format!(
        "python3 -c \"import socket, threading\ns = socket.create_connection(('{WEB}', 2525), 20); s.recv(13)\n\
         t = threading.Thread(target=lambda: (s.sendall(b'y' * (8 << 20)), s.shutdown(1))); t.start()\nn = 0\n\
         while c := s.recv(1 << 16): n += len(c)\nprint(n)\""
    );
    assert_eq!(server.sh(&id, &echo).await.stdout.trim(), (8 << 20).to_string());
    assert!(network(&server, &id).await.transferred.received_bytes >= 16 << 20);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_go_take_their_connections_along() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let limited = json!({"internet": "on", "limits": {"connections": 1}});
    let id = sandbox(&server, policy(limited)).await.id;
    // A server that has nothing to say would not make the gateway notice.
    for number in 1..=3 {
        let left = "curl -sS --max-time 1 -o /dev/null http://web.test/silent";
        assert_eq!(server.sh(&id, left).await.code, Some(28), "curl gives up");
        assert_eq!(seen.lock().unwrap().len(), number, "it had reached the server");
        wait_until("the connection is gone", async || {
            network(&server, &id).await.connections.is_empty().then_some(())
        })
        .await;
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_default_counts_where_nobody_says() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server_with(&["--default-egress", "on"]);
    let id = server.sandbox().await.id;
    assert_eq!(server.sh(&id, &format!("{CURL} http://web.test/ -o /dev/null")).await.stdout, "200\n");
    let off = server.cli(&["create", "--internet", "off"]).ok().stdout;
    assert_eq!(server.sh(off.trim(), &format!("{CURL} http://{WEB}/ -o /dev/null")).await.stdout, "403\n");
    let shown = server.cli(&["net", "show", &id]).ok().stdout;
    assert!(shown.contains("internet: on") && shown.contains("web.test:80"), "{shown}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_and_python_fetches_through_it() {
    let outside = Outside::new();
    let dir = tempfile::Builder::new().prefix("atoll-egress-git-").tempdir_in("/var/tmp").unwrap();
    let make = "git init -q -b main w && cd w && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m first && \
        cd .. && git clone -q --bare w repo.git && git -C repo.git update-server-info";
    atoll_testing::run(std::process::Command::new("sh").args(["-c", make]).current_dir(dir.path()));
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut origin = std::process::Command::new("python3")
        .args(["-m", "http.server", "--bind", "127.0.0.1", &address.port().to_string()])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    outside.put(&format!("{WEB}:80"), address);
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    let git = "cd /tmp && for i in 1 2 3 4 5; do GIT_TERMINAL_PROMPT=0 git clone -q http://web.test/repo.git c && break; sleep 1; done; \
        git -C c log --format=%s";
    let cloned = server.sh(&id, git).await;
    assert_eq!(cloned.stdout, "first\n", "{cloned:?}");
    let fetched = server
        .sh(
            &id,
            "python3 -c \"import urllib.request as u; \
        print(u.urlopen('http://web.test/repo.git/HEAD').read())\"",
        )
        .await;
    assert!(fetched.stdout.contains("refs/heads/main"), "{fetched:?}");
    origin.kill().unwrap();
    origin.wait().unwrap();
    server.finish().await;
}
