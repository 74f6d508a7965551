//! The example over a real socket, with the engine on a fake isolation level.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "an integration test"
)]

use std::sync::Arc;

use atoll_core::key::Scope;
use atoll_core::sharing::Visibility;
use atoll_core::spec::{Caps, Defaults};
use atoll_engine::{Clock, Config, EgressConfig, Engine, PoolConfig, Trust};
use atoll_example_dialect::DIALECT;
use atoll_image::Images;
use atoll_isolation::fake::FakeHost;
use atoll_server::{Server, ServerConfig};
use atoll_store::{Store, StoreUrl};
use atoll_vault::Vault;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

struct Acme {
    client: Client,
    address: String,
    key: String,
    _host: FakeHost,
    _dir: TempDir,
}

impl Acme {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = FakeHost::new();
        let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("atoll.db"))).await.unwrap();
        let vault = Vault::open(&dir.path().join("vault.key")).unwrap();
        let images = Images::open(&dir.path().join("images")).unwrap();
        let config = Config {
            clock: Clock::default(),
            objects: None,
            disk: None,
            logs_max_bytes: u64::MAX,
            images_max_bytes: u64::MAX,
            missing: Vec::new(),
            data_dir: dir.path().to_owned(),
            caps: Caps::default(),
            defaults: Defaults::default(),
            sandboxes_max: 4,
            visibility: Visibility::default(),
            volumes: None,
            creates_max: 4,
            trust: Trust::default(),
            reclaim_below_bytes: 0,
            pools: PoolConfig { memory_bytes: 1 << 30, fillers: 1, ..PoolConfig::default() },
            egress: EgressConfig::default(),
            people: atoll_engine::People::default(),
            trace: atoll_engine::TraceConfig::default(),
        };
        let engine =
            Engine::start(config, store, vault, images, vec![Arc::new(host.driver())]).await.unwrap();
        let key = engine.create_key("acme", Scope::Manage, None).await.unwrap().secret.reveal().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server::new(engine, ServerConfig::new("test"), &[DIALECT]);
        drop(tokio::spawn(server.serve(listener, std::future::pending())));
        Self { client: Client::new(), address, key, _host: host, _dir: dir }
    }

    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("http://{}/acme{path}", self.address))
            .header("x-acme-key", &self.key)
    }
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn a_computer_is_rented_used_and_given_back() {
    let acme = Acme::start().await;
    let (status, computer) =
        answer(acme.call(Method::POST, "/computers").json(&json!({"label": "blue"}))).await;
    assert_eq!(
        (status, &computer["label"], &computer["on"]),
        (200, &json!("blue"), &json!(true)),
        "{computer}"
    );
    let id = computer["id"].as_str().unwrap();
    assert_eq!(id.len(), 36);
    for (label, count) in [("blue", 1), ("red", 0)] {
        let (_, list) = answer(acme.call(Method::GET, &format!("/computers?label={label}"))).await;
        assert_eq!(list.as_array().unwrap().len(), count, "{list}");
    }
    let run = || acme.call(Method::POST, &format!("/computers/{id}/commands"));
    for _ in 0..2 {
        let command = json!({"id": "c1", "words": ["echo", "hi"]});
        let (status, done) = answer(run().json(&command)).await;
        assert_eq!((status, &done["exit"]), (200, &json!(0)), "{done}");
        assert_eq!(done["output"].as_str().unwrap().trim(), "hi");
    }
    let (status, problem) = answer(run().body("{")).await;
    assert!(status == 400 && problem["problem"].as_str().unwrap().starts_with("body: "), "{problem}");
    let path = format!("/computers/{id}");
    assert_eq!(answer(acme.call(Method::DELETE, &path)).await.0, 204);
    assert_eq!(answer(acme.call(Method::DELETE, &path)).await.0, 404);
}

#[tokio::test]
async fn everything_is_refused_in_acmes_words() {
    let acme = Acme::start().await;
    let url = |path: &str| format!("http://{}{path}", acme.address);
    let of_host = acme.client.get(url("/computers")).header("host", "acme.localhost");
    for (request, status) in [
        (acme.client.get(url("/acme/computers")), 401),
        (acme.client.get(url("/acme/computers")).bearer_auth(&acme.key), 401),
        (of_host, 401),
        (acme.call(Method::GET, "/nothing"), 404),
        (acme.call(Method::POST, "/computers").header("origin", "http://evil.example"), 403),
    ] {
        let (given, body) = answer(request).await;
        assert!(given == status && body["problem"].is_string(), "{status}: {given} {body}");
    }
}
