//! A server on a loopback port, with everything below it.

use std::sync::Arc;
use std::time::Duration;

use atoll_api::{Exec, ExecWithOutput, Sandbox};
use atoll_core::key::Scope;
use atoll_core::sharing::Visibility;
use atoll_core::spec::{Caps, Defaults};
use atoll_engine::{Clock, Config, EgressConfig, Engine, People, PoolConfig, Trust};
use atoll_image::Images;
use atoll_isolation::fake::{FakeHost, FakeVolumes};
use atoll_manual_clock::ManualClock;
use atoll_server::dialect::Dialect;
use atoll_server::{Server, ServerConfig};
use atoll_store::{Store, StoreUrl};
use atoll_vault::Vault;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Nothing here takes this long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
pub(crate) const SANDBOXES_MAX: usize = 12;

pub(crate) struct Harness {
    pub(crate) host: FakeHost,
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    pub(crate) volumes: Arc<FakeVolumes>,
    pub(crate) router: axum::Router,
    pub(crate) address: String,
    client: Client,
    keys: [String; 4],
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
    _dir: TempDir,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("(no code)")
    }
}

impl Harness {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::start_dialects(change, &[]).await
    }

    pub(crate) async fn start_dialects(change: impl FnOnce(&mut ServerConfig), dialects: &[Dialect]) -> Self {
        Self::start_all(Clock::default(), People::default(), 0, change, dialects).await
    }

    /// One whose time stands still until it is moved.
    pub(crate) async fn start_by_hand() -> (Self, ManualClock) {
        let clock = ManualClock::at(1_800_000_000_000);
        (Self::start_all(clock.clock(), People::default(), 0, |_| {}, &[]).await, clock)
    }

    /// With people who may log in.
    pub(crate) async fn start_for(
        people: People,
        clock: Clock,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        Self::start_all(clock, people, 0, change, &[]).await
    }

    /// A server that keeps sandboxes ready of a kind that is asked for again.
    pub(crate) async fn start_with_pools_by_demand() -> Self {
        Self::start_all(Clock::default(), People::default(), 2, |_| {}, &[]).await
    }

    async fn start_all(
        clock: Clock,
        people: People,
        by_demand_max: u32,
        change: impl FnOnce(&mut ServerConfig),
        dialects: &[Dialect],
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-server-test").tempdir().unwrap();
        let host = FakeHost::new();
        let store = Store::open(&StoreUrl::SqliteFile(dir.path().join("atoll.db"))).await.unwrap();
        let vault = Vault::open(&dir.path().join("vault.key")).unwrap();
        let images = Images::open(&dir.path().join("images")).unwrap();
        let volumes = Arc::new(FakeVolumes::new().unwrap());
        let config = Config {
            clock,
            objects: None,
            data_dir: dir.path().to_owned(),
            caps: Caps::default(),
            defaults: Defaults::default(),
            sandboxes_max: SANDBOXES_MAX,
            visibility: Visibility::default(),
            volumes: Some(Arc::<FakeVolumes>::clone(&volumes)),
            disk: None,
            logs_max_bytes: u64::MAX,
            images_max_bytes: u64::MAX,
            missing: Vec::new(),
            creates_max: 4,
            trust: Trust::default(),
            reclaim_below_bytes: 0,
            pools: PoolConfig { memory_bytes: 1 << 30, fillers: 1, by_demand_max, ..PoolConfig::default() },
            egress: EgressConfig::default(),
            trace: atoll_engine::TraceConfig::default(),
            people,
        };
        let engine =
            Engine::start(config, store.clone(), vault, images, vec![Arc::new(host.driver())]).await.unwrap();
        let mut keys = Vec::new();
        for scope in [Scope::Read, Scope::Exec, Scope::Manage, Scope::Admin] {
            let new = engine.create_key(scope.as_str(), scope, None).await.unwrap();
            keys.push(new.secret.reveal().to_owned());
        }
        let mut config = ServerConfig::new("test");
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::new(engine.clone(), config, dialects);
        let router = server.router();
        let served = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
        Self {
            host,
            engine,
            store,
            volumes,
            router,
            address,
            client: Client::builder().timeout(DEADLINE).build().unwrap(),
            keys: keys.try_into().unwrap(),
            stop: Some(stop),
            served,
            _dir: dir,
        }
    }

    pub(crate) fn key(&self, scope: Scope) -> &str {
        let at = match scope {
            Scope::Read => 0,
            Scope::Exec => 1,
            Scope::Manage => 2,
            Scope::Admin => 3,
        };
        &self.keys[at]
    }

    /// A request without a key.
    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// A request with a key for everything.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(self.key(Scope::Admin))
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Answer {
        answer(request.send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    pub(crate) async fn sandbox(&self, body: Value) -> Sandbox {
        let answer = self.post("/v1/sandboxes", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        read(answer.body)
    }

    /// Starts a command of the fake and waits for its end if `wait_ms` is not 0.
    pub(crate) async fn exec(&self, sandbox: &str, words: &str, more: Value) -> ExecWithOutput {
        let mut body = json!({ "argv": words.split(' ').collect::<Vec<_>>() });
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        let answer = self.post(&format!("/v1/sandboxes/{sandbox}/execs"), body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        read(answer.body)
    }

    /// Waits until an exec has ended.
    pub(crate) async fn ended(&self, exec: &Exec) -> Exec {
        let answer = self.get(&format!("{}?wait_ms=60000", path_of(exec))).await;
        let exec: Exec = read(answer.body);
        assert!(exec.state.is_final(), "{exec:?}");
        exec
    }

    /// Begins the stop; the handle resolves when the server is down.
    pub(crate) fn stop(mut self) -> JoinHandle<()> {
        drop(self.stop.take());
        self.served
    }

    /// Begins the stop and leaves the rest usable.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }
}

pub(crate) fn path_of(exec: &Exec) -> String {
    format!("/v1/sandboxes/{}/execs/{}", exec.sandbox, exec.id)
}

pub(crate) async fn answer(response: Response) -> Answer {
    let status = response.status();
    let text = response.text().await.unwrap();
    let body = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    };
    if status.is_client_error() || status.is_server_error() {
        for field in ["code", "message", "request_id"] {
            assert!(body[field].is_string(), "an error without '{field}': {status} {body}");
        }
    }
    assert!(status != StatusCode::INTERNAL_SERVER_ERROR, "{body}");
    Answer { status: status.as_u16(), body }
}

pub(crate) fn read<T: DeserializeOwned>(body: Value) -> T {
    serde_json::from_value(body.clone()).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Waits for something that is about to be, with a deadline.
pub(crate) async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let until = tokio::time::Instant::now() + DEADLINE;
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < until, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
