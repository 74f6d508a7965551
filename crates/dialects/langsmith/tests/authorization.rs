//! Every route of the protocol on real objects, with every kind of key: the same table as the native API's.

#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::key::Scope;
use atoll_core::sharing::{Role, Visibility};
use atoll_core::spec::{Caps, Command, Defaults, ExecDraft, SandboxDraft};
use atoll_engine::{Caller, Config, EgressConfig, Engine, PoolConfig, SnapshotOrder, Trust};
use atoll_image::Images;
use atoll_isolation::fake::FakeHost;
use atoll_server::{Server, ServerConfig};
use atoll_store::{Store, StoreUrl};
use atoll_vault::Vault;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The table: method, route, and what it needs. `None`: a token of the sandbox's own instead of a key.
const ROUTES: [(&str, &str, Option<Scope>); 38] = [
    ("POST", "/boxes", Some(Scope::Manage)),
    ("GET", "/boxes", Some(Scope::Read)),
    ("GET", "/boxes/{name}", Some(Scope::Read)),
    ("PATCH", "/boxes/{name}", Some(Scope::Manage)),
    ("DELETE", "/boxes/{name}", Some(Scope::Manage)),
    ("GET", "/boxes/{name}/status", Some(Scope::Read)),
    ("POST", "/boxes/{name}/start", Some(Scope::Exec)),
    ("POST", "/boxes/{name}/stop", Some(Scope::Manage)),
    ("POST", "/boxes/{name}/snapshot", Some(Scope::Manage)),
    ("POST", "/boxes/{name}/service-url", Some(Scope::Exec)),
    ("GET", "/boxes/{name}/service-urls", Some(Scope::Read)),
    ("DELETE", "/boxes/{name}/service-urls", Some(Scope::Exec)),
    ("POST", "/boxes/{name}/download-url", Some(Scope::Exec)),
    ("POST", "/snapshots", Some(Scope::Manage)),
    ("GET", "/snapshots", Some(Scope::Read)),
    ("GET", "/snapshots/{name}", Some(Scope::Read)),
    ("DELETE", "/snapshots/{name}", Some(Scope::Manage)),
    ("GET", "/snapshots-by-name/{name}", Some(Scope::Read)),
    ("POST", "/registries", Some(Scope::Admin)),
    ("GET", "/registries", Some(Scope::Admin)),
    ("GET", "/registries/{name}", Some(Scope::Admin)),
    ("PATCH", "/registries/{name}", Some(Scope::Admin)),
    ("DELETE", "/registries/{name}", Some(Scope::Admin)),
    ("GET", "/{id}/execute/ws", Some(Scope::Exec)),
    ("POST", "/{id}/execute", Some(Scope::Exec)),
    ("POST", "/{id}/execute/stream/start", Some(Scope::Exec)),
    ("POST", "/{id}/execute/stream/resume", Some(Scope::Exec)),
    ("POST", "/{id}/upload", Some(Scope::Exec)),
    ("GET", "/{id}/download", Some(Scope::Read)),
    ("POST", "/{id}/glob", Some(Scope::Read)),
    ("POST", "/{id}/grep", Some(Scope::Read)),
    ("GET", "/{id}/tunnel", Some(Scope::Exec)),
    ("GET", "/{id}/services/{port}", None),
    ("GET", "/{id}/services/{port}/", None),
    ("GET", "/{id}/services/{port}/{*path}", None),
    ("POST", "/{id}/services/{port}", None),
    ("POST", "/{id}/services/{port}/", None),
    ("POST", "/{id}/services/{port}/{*path}", None),
];

/// What is there, as a path names it.
struct Objects {
    sandbox: String,
    snapshot: String,
    name: String,
}

struct World {
    engine: Engine,
    address: String,
    client: Client,
    _dir: tempfile::TempDir,
}

struct Key {
    caller: Caller,
    id: String,
    secret: String,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-langsmith-test").tempdir().unwrap();
        let host = FakeHost::new();
        let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("atoll.db"))).await.unwrap();
        let vault = Vault::open(&dir.path().join("vault.key")).unwrap();
        let images = Images::open(&dir.path().join("images")).unwrap();
        let config = Config {
            objects: None,
            disk: None,
            logs_max_bytes: u64::MAX,
            trace: atoll_engine::TraceConfig::default(),
            data_dir: dir.path().to_owned(),
            caps: Caps::default(),
            defaults: Defaults::default(),
            sandboxes_max: 100,
            visibility: Visibility::default(),
            volumes: None,
            creates_max: 4,
            trust: Trust::default(),
            reclaim_below_bytes: 0,
            pools: PoolConfig { memory_bytes: 1 << 30, fillers: 1, images: Vec::new() },
            egress: EgressConfig::default(),
        };
        let engine =
            Engine::start(config, store, vault, images, vec![Arc::new(host.driver())]).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let dialects = [atoll_dialect_langsmith::DIALECT];
        let server = Server::new(engine.clone(), ServerConfig::new("test"), &dialects);
        tokio::spawn(server.serve(listener, std::future::pending()));
        let client = Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        Self { engine, address, client, _dir: dir }
    }

    async fn key(&self, scope: Scope) -> Key {
        let made = self.engine.create_key(scope.as_str(), scope, None).await.unwrap();
        let secret = made.secret.reveal().to_owned();
        let caller = Caller::of(&self.engine.verify_key(&secret).unwrap());
        Key { caller, id: made.record.id.into(), secret }
    }

    /// A private sandbox with a snapshot, both by names.
    async fn objects(&self, owner: &Key, name: &str) -> Objects {
        let draft = SandboxDraft {
            name: Some(name.to_owned()),
            visibility: Some(Visibility::Private),
            ..SandboxDraft::default()
        };
        let sandbox = self.engine.create_sandbox(draft, &owner.caller).await.unwrap();
        let echo = ExecDraft::new(Command::Argv(vec!["echo".to_owned(), "x".to_owned()]));
        self.engine.create_exec(&sandbox.id, echo, &owner.caller).await.unwrap();
        let order = SnapshotOrder { tags: vec![name.parse().unwrap()], ..SnapshotOrder::unnamed() };
        let snapshot = self.engine.create_snapshot(&sandbox.id, order, &owner.caller).await.unwrap();
        Objects { sandbox: sandbox.id.into(), snapshot: snapshot.id.into(), name: name.to_owned() }
    }

    /// The status, and the body without what says which request and which object it was.
    async fn call(&self, route: (&str, &str), on: &Objects, key: Option<&str>) -> (u16, String) {
        let (method, path) = route;
        let named = if path.starts_with("/snapshots/{name}") { &on.snapshot } else { &on.name };
        let path = path.replace("{name}", named).replace("{id}", &on.sandbox);
        let path = path.replace("{port}", "80").replace("{*path}", "x");
        let url = format!("http://{}/langsmith/v2/sandboxes{path}", self.address);
        let mut request = self.client.request(method.parse::<Method>().unwrap(), url);
        if method != "GET" {
            request =
                request.json(&json!({"name": "taken", "command": "true", "command_id": "c", "port": 80}));
        }
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        if status < 400 {
            return (status, String::new());
        }
        let text = response.text().await.unwrap();
        let text =
            [&on.sandbox, &on.snapshot, &on.name].iter().fold(text, |text, id| text.replace(*id, "ID"));
        (status, serde_json::from_str::<Value>(&text).map_or(text, |body| body["detail"].to_string()))
    }
}

const SCOPES: [Scope; 3] = [Scope::Read, Scope::Exec, Scope::Manage];

#[test]
fn the_table_has_every_route() {
    let source = include_str!("../src/lib.rs");
    let routes: BTreeSet<&str> = source
        .split(".route(")
        .skip(1)
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
        .collect();
    let known: BTreeSet<&str> = ROUTES.iter().map(|(_, path, _)| *path).collect();
    assert_eq!(routes, known);
}

#[tokio::test]
async fn what_is_private_exists_for_its_own_only() {
    let world = World::new().await;
    let owner = world.key(Scope::Manage).await;
    let on = world.objects(&owner, "hidden").await;
    let nothing = Objects {
        sandbox: "sb00000000000000000000".into(),
        snapshot: "sn00000000000000000000".into(),
        name: "nobody".into(),
    };
    let strangers =
        [world.key(Scope::Read).await, world.key(Scope::Exec).await, world.key(Scope::Manage).await];
    for (method, path, needs) in ROUTES {
        let route = (method, path);
        for key in [None, Some("atoll_wrong")] {
            assert_eq!(world.call(route, &on, key).await.0, 401, "{method} {path}");
        }
        let Some(needs) = needs else { continue };
        for (stranger, scope) in strangers.iter().zip(SCOPES) {
            let answered = world.call(route, &on, Some(&stranger.secret)).await;
            if scope < needs {
                assert_eq!(answered.0, 403, "{method} {path} with {scope:?}: {answered:?}");
            } else if path.contains('{') {
                assert!(answered.0 >= 400, "{method} {path} with {scope:?}: {answered:?}");
                let missing = world.call(route, &nothing, Some(&stranger.secret)).await;
                assert_eq!(answered, missing, "{method} {path} with {scope:?} tells");
            }
        }
    }
    let listed = world.client.get(format!("http://{}/langsmith/v2/sandboxes/snapshots", world.address));
    let listed = listed.header("x-api-key", &strangers[2].secret).send().await.unwrap().text().await.unwrap();
    assert!(!listed.contains("hidden"), "{listed}");
}

#[tokio::test]
async fn roles_and_leases_count_as_in_the_native_api() {
    let world = World::new().await;
    let (owner, friend) = (world.key(Scope::Manage).await, world.key(Scope::Manage).await);
    let on = world.objects(&owner, "shown").await;
    let id = on.sandbox.parse().unwrap();
    for role in [Role::Read, Role::Exec] {
        world.engine.grant(&id, &friend.id, role).await.unwrap();
        let has = if role == Role::Read { Scope::Read } else { Scope::Exec };
        for (method, path, needs) in ROUTES {
            let on_object =
                path.contains("/boxes/{name}") || path.starts_with("/{id}") || path == "/snapshots/{name}";
            if needs.is_some_and(|needs| on_object && needs > has) {
                let answered = world.call((method, path), &on, Some(&friend.secret)).await;
                assert_eq!(answered.0, 403, "{method} {path} as {role:?}: {answered:?}");
            }
        }
    }
    world.engine.grant(&id, &friend.id, Role::Manage).await.unwrap();
    world.engine.take_lease(&id, &owner.caller, 600_000).await.unwrap();
    for (method, path, needs) in ROUTES {
        let on_sandbox = path.contains("/boxes/{name}") || path.starts_with("/{id}");
        if needs.is_some_and(|needs| on_sandbox && needs > Scope::Read) {
            let answered = world.call((method, path), &on, Some(&friend.secret)).await;
            assert!(answered.1.contains("for itself"), "{method} {path}: {answered:?}");
        }
    }
}
