//! A request to a port of a sandbox that sleeps wakes it: the server holds the request until the sandbox is awake.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use crate::common::ssh::{Setup, ok};
use atoll_api::{CreateService, PauseSandbox};
use atoll_blackbox::Server;
use atoll_core::sandbox::{PauseMode, SandboxState};
use futures::future::join_all;
use reqwest::header::HOST;

/// Answers a request for `/hostname` with `/etc/hostname`.
const START: &str = "python3 -m http.server 3000 --bind 127.0.0.1 --directory /etc";

async fn asleep(server: &Server, mode: PauseMode) {
    server.client.pause_sandbox("web", &PauseSandbox { mode: Some(mode) }).await.unwrap();
    let paused = server.client.get_sandbox("web").await.unwrap();
    assert_eq!((paused.state, paused.paused), (SandboxState::Paused, Some(mode)));
}

/// A sandbox `web` whose server is started with it.
fn with_web_server(server: &Server) {
    let args = ["template", "create", "web", "--image", "host", "--start-cmd", START, "--ready-port", "3000"];
    server.cli(&args).ok();
    server.cli(&["create", "--template", "web", "--name", "web"]).ok();
}

/// Asks the port by host name. Every call is a connection of its own.
async fn ask(server: &Server) -> (u16, String) {
    let port = server.url.rsplit_once(':').unwrap().1;
    let request = reqwest::Client::new()
        .get(format!("{}/hostname", server.url))
        .header(HOST, format!("3000-web.localhost:{port}"))
        .header("x-atoll-token", &server.key);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_port_wakes_and_is_answered() {
    let server = Server::start();
    with_web_server(&server);
    let expected = ask(&server).await;
    assert_eq!((expected.0, expected.1.trim().is_empty()), (200, false), "{expected:?}");
    for mode in [PauseMode::Frozen, PauseMode::Filesystem] {
        asleep(&server, mode).await;
        // All at once: one wakes it, none is turned away.
        for answer in join_all((0..8).map(|_| ask(&server))).await {
            assert_eq!(answer, expected, "{mode:?}");
        }
        assert_eq!(server.client.get_sandbox("web").await.unwrap().state, SandboxState::Running);
    }
    server.finish().await;
}

async fn service(server: &Server, name: &str, line: &str) {
    let (name, shell) = (name.to_owned(), Some(line.to_owned()));
    let create = CreateService { name, shell, ..CreateService::default() };
    server.client.create_service("web", &create).await.unwrap();
}

/// A service that does not say when it is ready has some time to come up.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_wake_a_port_waits_for_services() {
    let server = Server::start();
    server.cli(&["create", "--name", "web"]).ok();
    service(&server, "late", &format!("sleep 1; exec {START}")).await;
    asleep(&server, PauseMode::Filesystem).await;
    assert_eq!(ask(&server).await.0, 200);
    server.finish().await;
}

/// Without services nothing begins by itself: the port is closed, and not when a command has begun a server later.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_wake_a_port_without_a_service_is_closed() {
    let server = Server::start();
    server.cli(&["create", "--name", "web"]).ok();
    // Nor is a service that was stopped waited for.
    service(&server, "stopped", "exec sleep 1000").await;
    server.client.stop_service("web", "stopped").await.unwrap();
    asleep(&server, PauseMode::Filesystem).await;
    let begin = async {
        // The answer is long there before all of these have run.
        for _ in 0..50 {
            server.sh("web", "true").await;
        }
        server.shell("web", START).await;
    };
    let (answer, ()) = tokio::join!(ask(&server), begin);
    assert_eq!(answer.0, 502, "{answer:?}");
    assert!(answer.1.contains("port_closed"), "{answer:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_through_a_tunnel_wakes() {
    let server = Server::start();
    with_web_server(&server);
    let mut tunnel = server.cli_command();
    tunnel.args(["--json", "tunnel", "web", "0:3000"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut tunnel = tunnel.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(tunnel.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = event["local"].as_str().unwrap().to_owned();
    for mode in [PauseMode::Frozen, PauseMode::Filesystem] {
        // A tunnel by itself lets it sleep.
        asleep(&server, mode).await;
        let asked: Vec<_> = (0..8)
            .map(|_| {
                let address = address.clone();
                std::thread::spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").unwrap();
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).unwrap();
                    answer
                })
            })
            .collect();
        for answer in asked {
            let answer = answer.join().unwrap();
            assert!(answer.starts_with("HTTP/1.0 200"), "{mode:?}: {answer}");
        }
        assert_eq!(server.client.get_sandbox("web").await.unwrap().state, SandboxState::Running);
    }
    tunnel.kill().unwrap();
    tunnel.wait().unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_wakes() {
    let setup = Setup::start().await;
    ok(setup.ssh(&["echo kept > /root/file"]));
    std::fs::write(setup.path("file"), "new").unwrap();
    for mode in [PauseMode::Frozen, PauseMode::Filesystem] {
        asleep(&setup.server, mode).await;
        assert_eq!(ok(setup.ssh(&["cat /root/file"])), "kept\n", "{mode:?}");
        // Files alone, too.
        asleep(&setup.server, mode).await;
        let copied = setup.command("scp").arg(setup.path("file")).arg("web@127.0.0.1:/root/new").output();
        ok(copied.unwrap());
        assert_eq!(ok(setup.ssh(&["cat /root/new"])), "new", "{mode:?}");
    }
    setup.server.finish().await;
}
