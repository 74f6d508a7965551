//! A server with everything below it, and objects to ask about.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{KeyId, SandboxId, SnapshotId};
use atoll_core::key::{KeyFormat, Scope};
use atoll_core::project::{ProjectDefaults, Quota};
use atoll_core::sharing::{Role, Visibility};
use atoll_core::spec::{Caps, Command, Defaults, ExecDraft, SandboxDraft};
use atoll_dialect_kit::uuid;
use atoll_engine::{Caller, Clock, Config, EgressConfig, Engine, PoolConfig, SnapshotOrder, Trust};
use atoll_image::{ImageError, Images};
use atoll_isolation::fake::FakeHost;
use atoll_manual_clock::ManualClock;
use atoll_server::dialect::Dialect;
use atoll_server::{Server, ServerConfig};
use atoll_store::{Store, StoreUrl};
use atoll_vault::Vault;
use axum::Router;
use reqwest::{Client, Response};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Answer, Call, Protocol, Route};

/// Nothing here takes this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A server.
#[derive(Debug)]
pub struct World {
    /// Its engine.
    pub engine: Engine,
    /// Its database.
    pub store: Store,
    /// The machine below it.
    pub host: FakeHost,
    /// Where it listens.
    pub address: String,
    pub(crate) router: Router,
    client: Client,
    dialects: Vec<Dialect>,
    clock: Clock,
    /// The server stops when this goes.
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
    dir: TempDir,
}

/// A key.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its holder, for the engine.
    pub caller: Caller,
    /// Its id.
    pub id: KeyId,
    /// Itself.
    pub secret: String,
}

/// A private sandbox with a snapshot, both of this name.
#[derive(Debug, Clone)]
pub struct Objects {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The name of both.
    pub name: String,
}

impl Objects {
    /// Objects that are not there.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            sandbox: SandboxId::from_parts(1, 1),
            snapshot: SnapshotId::from_parts(1, 1),
            name: "nobody".into(),
        }
    }
}

/// Opens the images once the last task of an earlier server has let go of them.
async fn images(dir: &Path) -> Images {
    let opened = async {
        loop {
            match Images::open(dir) {
                Err(ImageError::Locked(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => return opened.expect("images"),
            }
        }
    };
    tokio::time::timeout(DEADLINE, opened).await.expect("the images are let go of")
}

fn config(dir: &Path, clock: Clock) -> Config {
    Config {
        clock,
        objects: None,
        disk: None,
        logs_max_bytes: u64::MAX,
        images_max_bytes: u64::MAX,
        missing: Vec::new(),
        data_dir: dir.to_owned(),
        caps: Caps::default(),
        defaults: Defaults::default(),
        sandboxes_max: 10_000,
        visibility: Visibility::default(),
        volumes: None,
        trace: atoll_engine::TraceConfig::default(),
        people: atoll_engine::People::default(),
        creates_max: 4,
        trust: Trust::default(),
        reclaim_below_bytes: 0,
        pools: PoolConfig { memory_bytes: 1 << 30, fillers: 1, ..PoolConfig::default() },
        egress: EgressConfig::default(),
    }
}

impl World {
    /// A server with these dialects.
    pub async fn new(dialects: &[Dialect]) -> Self {
        Self::at(dialects, Clock::default()).await
    }

    /// One whose time stands still until it is moved.
    pub async fn by_hand(dialects: &[Dialect]) -> (Self, ManualClock) {
        let clock = ManualClock::at(1_800_000_000_000);
        (Self::at(dialects, clock.clock()).await, clock)
    }

    async fn at(dialects: &[Dialect], clock: Clock) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-walk").tempdir().expect("a directory");
        Self::on(dir, FakeHost::new(), dialects.to_vec(), clock).await
    }

    /// The next server on the same machine and data, once this one has stopped.
    pub async fn restarted(self) -> Self {
        let Self { engine, store, host, client, router, dialects, clock, stop, served, dir, .. } = self;
        drop((stop, client, router, store));
        served.await.expect("a server that stops");
        engine.shutdown().await;
        drop(engine);
        Self::on(dir, host, dialects, clock).await
    }

    async fn on(dir: TempDir, host: FakeHost, dialects: Vec<Dialect>, clock: Clock) -> Self {
        let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("atoll.db"))).await.expect("a store");
        let vault = Vault::open(&dir.path().join("vault.key")).expect("a vault");
        let images = images(&dir.path().join("images")).await;
        let config = config(dir.path(), clock.clone());
        let engine = Engine::start(config, store.clone(), vault, images, vec![Arc::new(host.driver())]).await;
        let engine = engine.expect("an engine");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = Server::new(engine.clone(), ServerConfig::new("test"), &dialects);
        let router = server.router();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
        let client = Client::builder().timeout(DEADLINE).build().expect("a client");
        Self { engine, store, host, address, router, client, dialects, clock, stop, served, dir }
    }

    /// A directory that goes with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A new key.
    pub async fn key(&self, scope: Scope) -> Key {
        self.key_of(scope, None).await
    }

    /// A new project; its id.
    pub async fn project(&self, name: &str) -> String {
        let made = self.engine.create_project(name, Quota::default(), ProjectDefaults::default()).await;
        made.expect("a project").id.to_string()
    }

    /// A new key of a project, or of none.
    pub async fn key_of(&self, scope: Scope, project: Option<&str>) -> Key {
        let format = KeyFormat::default();
        let made =
            self.engine.create_key_as(format, scope.as_str(), scope, None, project).await.expect("a key");
        let secret = made.secret.reveal().to_owned();
        let caller = Caller::of(&self.engine.verify_key(&secret).expect("it is good"));
        Key { caller, id: made.record.id, secret }
    }

    /// A private sandbox with a snapshot.
    pub async fn objects(&self, owner: &Key, name: &str) -> Objects {
        self.objects_seen(owner, name, Visibility::Private).await
    }

    /// A shared one.
    pub async fn shared_objects(&self, owner: &Key, name: &str) -> Objects {
        self.objects_seen(owner, name, Visibility::Shared).await
    }

    async fn objects_seen(&self, owner: &Key, name: &str, visibility: Visibility) -> Objects {
        let draft = SandboxDraft {
            name: Some(name.to_owned()),
            visibility: Some(visibility),
            ..SandboxDraft::default()
        };
        let sandbox = self.engine.create_sandbox(draft, &owner.caller).await.expect("a sandbox").id;
        let sleep = ExecDraft::new(Command::Argv(vec!["sleep".to_owned(), "1000".to_owned()]));
        self.engine.create_exec(&sandbox, sleep, &owner.caller).await.expect("a command");
        let order = SnapshotOrder { tags: vec![name.parse().expect("a tag")], ..SnapshotOrder::unnamed() };
        let snapshot = self.engine.create_snapshot(&sandbox, order, &owner.caller).await.expect("a snapshot");
        Objects { sandbox, snapshot: snapshot.id, name: name.to_owned() }
    }

    /// Gives a key a role on the sandbox.
    pub async fn grant(&self, on: &Objects, key: &Key, role: Role) {
        self.engine.grant(&on.sandbox, key.id.as_str(), role).await.expect("a role");
    }

    /// Removes the objects that are left.
    pub async fn remove(&self, on: &Objects) {
        // They may be gone already: the call may have been their deletion.
        drop(self.engine.delete_sandbox(&on.sandbox).await);
        drop(self.engine.delete_snapshot(&on.snapshot, None, &Caller::system()).await);
    }

    /// Sends a request; status and body of the answer.
    pub async fn send(&self, call: Call) -> (u16, Vec<u8>) {
        let response = self.sent(call).await;
        (response.status().as_u16(), response.bytes().await.expect("an answer").to_vec())
    }

    async fn sent(&self, call: Call) -> Response {
        let Call { method, path, headers, body } = call;
        let parsed = method.parse::<reqwest::Method>().expect("a method");
        let mut request = self.client.request(parsed, format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if !body.is_empty() {
            request = request.body(body);
        }
        request.send().await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Calls a route.
    pub async fn ask<P: Protocol>(
        &self,
        protocol: &P,
        route: &Route,
        on: &Objects,
        shown: Option<&str>,
    ) -> Answer {
        let response = self.sent(protocol.call(route, on, shown)).await;
        let status = response.status().as_u16();
        let of_grpc = said_in_head(response.headers());
        // Some that are let in never end.
        let text = if status < 400 { of_grpc } else { response.text().await.expect("an answer") };
        Answer { status, text: anonymous(protocol.steady(&text), on) }
    }
}

/// The text of a refusal of gRPC, which has no body: from its head.
fn said_in_head(headers: &reqwest::header::HeaderMap) -> String {
    let line = |name: &str| Some(format!("{name}: {}\r\n", headers.get(name)?.to_str().ok()?));
    ["grpc-status", "grpc-message"].into_iter().filter_map(line).collect()
}

/// The text without the ids and names of the objects that it is about.
pub(crate) fn anonymous(text: String, on: &Objects) -> String {
    let (sandbox, snapshot) = (on.sandbox.as_str(), on.snapshot.as_str());
    // Dialects write ids with other beginnings.
    let parts = [SandboxId::PREFIX, SnapshotId::PREFIX];
    let parts = [sandbox.trim_start_matches(parts[0]), snapshot.trim_start_matches(parts[1])];
    // Or as UUIDs.
    let uuids = [uuid::of_sandbox(&on.sandbox), uuid::of_snapshot(&on.snapshot)];
    let names = [sandbox, snapshot, parts[0], parts[1], &uuids[0], &uuids[1], &on.name];
    names.iter().fold(text, |text, name| text.replace(name, "ID"))
}
