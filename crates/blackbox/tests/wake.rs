//! Who knocks at a port of a sandbox that sleeps is let in: the request is held until somebody is awake to take it.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

use atoll_api::PauseSandbox;
use atoll_blackbox::Server;
use atoll_core::sandbox::{PauseMode, SandboxState};
use futures::future::join_all;
use reqwest::header::HOST;

/// Shows `/etc/hostname` to who asks for `/hostname`.
const START: &str = "python3 -m http.server 3000 --bind 127.0.0.1 --directory /etc";

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
    let args = ["template", "create", "web", "--image", "host", "--start-cmd", START, "--ready-port", "3000"];
    server.cli(&args).ok();
    server.cli(&["create", "--template", "web", "--name", "web"]).ok();
    let expected = ask(&server).await;
    assert_eq!((expected.0, expected.1.trim().is_empty()), (200, false), "{expected:?}");
    for mode in [PauseMode::Frozen, PauseMode::Filesystem] {
        server.client.pause_sandbox("web", &PauseSandbox { mode: Some(mode) }).await.unwrap();
        let paused = server.client.get_sandbox("web").await.unwrap();
        assert_eq!((paused.state, paused.paused), (SandboxState::Paused, Some(mode)));
        // All at once: one wakes it, none is turned away.
        for answer in join_all((0..8).map(|_| ask(&server))).await {
            assert_eq!(answer, expected, "{mode:?}");
        }
        assert_eq!(server.client.get_sandbox("web").await.unwrap().state, SandboxState::Running);
    }
    server.finish().await;
}
