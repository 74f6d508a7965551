//! A world that outlives servers: a fake host, a data directory with a database, images.
//!
//! Each [`Server`] has a runtime of its own. [`Server::kill`] drops that with everything on it, which
//! is as near to `kill -9` as one process comes; instances run on the world's runtime and live on.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_core::Result;
use atoll_core::exec::{ExecState, Exit, OutputStream};
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Visibility;
use atoll_core::spec::{
    Base, Caps, Command, Defaults, ExecDraft, ExecSpec, IdempotencyKey, ImageDefaults, IsolationLevel,
    Resources, SandboxDraft, SandboxSpec,
};
use atoll_engine::{
    Caller, Clock, Config, EgressConfig, Engine, ExecView, OutputEvent, Piece, PoolConfig, Trust,
};
use atoll_image::Images;
use atoll_isolation::fake::FakeHost;
use atoll_isolation::{DiskSource, Isolation as _, Plan, RootFs};
use atoll_manual_clock::ManualClock;
use atoll_store::{ExecRecord, SandboxRecord, Store, StoreUrl};
use atoll_vault::Vault;
use tokio::runtime::{Builder, Runtime};

/// The longest time that a test waits for anything before it fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(5);
/// A noon, in milliseconds since the epoch: an hour begins with it.
pub(crate) const NOON_MS: u64 = 1_800_014_400_000;

/// For clocks.
pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) host: FakeHost,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) images: Images,
    pub(crate) sandboxes_max: usize,
    pub(crate) reclaim_below_bytes: u64,
    pub(crate) pools: PoolConfig,
    pub(crate) visibility: Visibility,
    runtime: Runtime,
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let dir = tempfile::Builder::new().prefix("atoll-engine").tempdir().unwrap();
        Self {
            clock: Clock::default(),
            host: FakeHost::on(runtime.handle().clone()),
            images: Images::open(&dir.path().join("images")).unwrap(),
            dir,
            sandboxes_max: 100,
            reclaim_below_bytes: 0,
            pools: PoolConfig::default(),
            visibility: Visibility::default(),
            runtime,
        }
    }

    /// A world whose clock stands still, on all servers, until the test advances it.
    pub(crate) fn by_hand() -> (Self, ManualClock) {
        let clock = ManualClock::at(NOON_MS);
        (Self { clock: clock.clock(), ..Self::new() }, clock)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.dir.path().join("atoll.db")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.path().join("logs")
    }

    /// Waits until nothing of an earlier server has the database open: its last statement may still be
    /// carried out on a thread of its own, which a process that was killed would not have.
    fn until_closed(&self) {
        let database = self.database();
        let is_open = || {
            let files = std::fs::read_dir("/proc/self/fd").unwrap();
            files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == database))
        };
        until("the database is closed", || !is_open());
    }

    /// Starts a server on what the ones before it left.
    pub(crate) fn start(&self) -> Server {
        self.until_closed();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let config = Config {
            clock: self.clock.clone(),
            objects: None,
            data_dir: self.dir.path().to_owned(),
            caps: Caps::default(),
            defaults: Defaults::default(),
            sandboxes_max: self.sandboxes_max,
            visibility: self.visibility,
            volumes: None,
            disk: None,
            logs_max_bytes: u64::MAX,
            images_max_bytes: u64::MAX,
            missing: Vec::new(),
            creates_max: 4,
            trust: Trust::default(),
            reclaim_below_bytes: self.reclaim_below_bytes,
            pools: self.pools.clone(),
            egress: EgressConfig::default(),
            trace: atoll_engine::TraceConfig::default(),
            people: atoll_engine::People::default(),
        };
        let (engine, store) = runtime.block_on(async {
            let store = Store::open(&StoreUrl::SqliteFile(self.database())).await.unwrap();
            let vault = Vault::open(&self.dir.path().join("vault.key")).unwrap();
            let driver = std::sync::Arc::new(self.host.driver());
            let engine =
                Engine::start(config, store.clone(), vault, self.images.clone(), vec![driver]).await.unwrap();
            (engine, store)
        });
        Server { engine, store, runtime: Some(runtime) }
    }

    /// Runs something outside of any server.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Works on the database while no server runs.
    pub(crate) fn edit<T>(&self, work: impl AsyncFnOnce(&Store) -> T) -> T {
        self.until_closed();
        self.run(async {
            let store = Store::open(&StoreUrl::SqliteFile(self.database())).await.unwrap();
            let done = work(&store).await;
            store.close().await;
            done
        })
    }

    /// Sandboxes that have something on the host.
    pub(crate) fn on_host(&self) -> BTreeSet<SandboxId> {
        let found = self.run(async { self.host.driver().scan().await.unwrap() });
        found.into_iter().map(|resource| resource.sandbox).collect()
    }

    /// Sandboxes that have output logs.
    pub(crate) fn with_logs(&self) -> BTreeSet<SandboxId> {
        let Ok(entries) = std::fs::read_dir(self.logs()) else { return BTreeSet::new() };
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    /// Nothing is left of any sandbox: no row, nothing on the host, no logs.
    pub(crate) fn assert_empty(&self, server: &Server) {
        assert_eq!(server.run(server.store.sandbox_ids()).unwrap(), []);
        assert_eq!(self.on_host(), BTreeSet::new());
        assert_eq!(self.with_logs(), BTreeSet::new());
        assert_eq!(server.engine.stats().sandboxes.values().sum::<u64>(), 0);
    }
}

pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.as_ref().unwrap().spawn(future)
    }

    /// Ends it as `kill -9` would: every task stops where it is.
    pub(crate) fn kill(mut self) {
        // Work on blocking threads is finished, as a system call under way is.
        self.runtime.take().unwrap().shutdown_timeout(DEADLINE);
    }

    /// Ends it in good order.
    pub(crate) fn stop(self) {
        self.stop_engine();
    }

    /// Stops the engine, keeping what runs beside it.
    pub(crate) fn stop_engine(&self) {
        let stopped = self.run(async { tokio::time::timeout(DEADLINE, self.engine.shutdown()).await });
        stopped.expect("the server stops");
    }

    /// Lets time pass on the server.
    pub(crate) fn pass(&self, time: Duration) {
        self.run(async { tokio::time::sleep(time).await });
    }

    pub(crate) fn create(&self, draft: SandboxDraft) -> Result<SandboxRecord> {
        self.run(self.engine.create_sandbox(draft, &Caller::system()))
    }

    /// A running sandbox.
    pub(crate) fn sandbox(&self) -> SandboxRecord {
        self.create(SandboxDraft::default()).unwrap()
    }

    pub(crate) fn delete(&self, sandbox: &SandboxId) {
        self.run(self.engine.delete_sandbox(sandbox)).unwrap();
    }

    pub(crate) fn exec(&self, sandbox: &SandboxId, draft: ExecDraft) -> Result<ExecView> {
        self.run(self.engine.create_exec(sandbox, draft, &Caller::system()))
    }

    /// Waits for the end of an exec.
    pub(crate) fn wait(&self, exec: &ExecView) -> ExecView {
        let (sandbox, id) = (&exec.record.sandbox, exec.record.id.as_str());
        let view = self.run(self.engine.wait_exec(sandbox, id, DEADLINE)).unwrap();
        assert!(view.record.state.is_final(), "the exec ends: {view:?}");
        view
    }

    /// Waits until no exec runs any more: from then on a sandbox is idle.
    pub(crate) fn until_at_rest(&self) {
        until("nothing runs", || self.engine.stats().execs_running == 0);
    }

    /// The state of an exec as it is.
    pub(crate) fn exec_state(&self, exec: &ExecView) -> ExecState {
        let (sandbox, id) = (&exec.record.sandbox, exec.record.id.as_str());
        self.run(self.engine.exec(sandbox, id)).unwrap().record.state
    }

    pub(crate) fn kill_exec(&self, exec: &ExecView) -> ExecView {
        self.run(self.engine.kill_exec(&exec.record.sandbox, exec.record.id.as_str())).unwrap()
    }

    pub(crate) fn output(&self, exec: &ExecView) -> Output {
        self.run(read(&self.engine, &exec.record.sandbox, &exec.record.id, 0)).unwrap()
    }

    /// The id of the sandbox with this id or name; an id that no sandbox has when there is none.
    pub(crate) fn id(&self, name: &str) -> SandboxId {
        self.engine.resolve_sandbox(name).unwrap_or_else(|| SandboxId::from_parts(1, 1))
    }

    pub(crate) fn state(&self, sandbox: &SandboxId) -> Option<SandboxState> {
        self.state_of(sandbox.as_str())
    }

    pub(crate) fn state_of(&self, name: &str) -> Option<SandboxState> {
        self.engine.sandbox(&self.id(name)).ok().map(|record| record.state)
    }

    /// Polls until a sandbox is in a state, or gone.
    pub(crate) fn until_state(&self, sandbox: &SandboxId, state: Option<SandboxState>) {
        until(&format!("{sandbox} is {state:?}"), || self.state(sandbox) == state);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(DEADLINE);
        }
    }
}

/// Polls until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(POLL_EVERY);
    }
}

/// All output of an exec, to its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) gaps: Vec<(u64, u64)>,
    pub(crate) end: Option<(ExecState, Exit, u64)>,
}

/// Reads from an offset to the end; checks that pieces follow each other.
pub(crate) async fn read(engine: &Engine, sandbox: &SandboxId, exec: &ExecId, from: u64) -> Result<Output> {
    let mut reader = engine.output(sandbox, exec.as_str(), from, false).await?;
    let mut output = Output::default();
    let mut at = from;
    loop {
        let event = tokio::time::timeout(DEADLINE, reader.next(1 << 20)).await.expect("output or its end")?;
        match event {
            OutputEvent::Piece(Piece::Output { offset, stream, bytes }) => {
                assert_eq!(offset, at, "neither lost nor repeated");
                at += bytes.len() as u64;
                match stream {
                    OutputStream::Stdout => output.stdout.extend_from_slice(&bytes),
                    OutputStream::Stderr => output.stderr.extend_from_slice(&bytes),
                }
            }
            OutputEvent::Piece(Piece::Gap { from, to }) => {
                assert_eq!(from, at);
                assert!(to > from);
                at = to;
                output.gaps.push((from, to));
            }
            OutputEvent::End { state, exit, offset } => {
                assert_eq!(offset, at);
                output.end = Some((state, exit, offset));
                return Ok(output);
            }
        }
    }
}

/// Compares output without printing all of it.
#[track_caller]
pub(crate) fn assert_bytes(got: &[u8], expected: &[u8]) {
    let same = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    assert!(
        got.len() == expected.len() && same == got.len(),
        "{} bytes, {} expected, the first {same} are right",
        got.len(),
        expected.len()
    );
}

pub(crate) fn argv(words: &[&str]) -> ExecDraft {
    ExecDraft::new(Command::Argv(words.iter().map(|word| (*word).to_owned()).collect()))
}

pub(crate) fn named(name: &str) -> SandboxDraft {
    SandboxDraft { name: Some(name.to_owned()), ..SandboxDraft::default() }
}

/// What `seq N` writes.
pub(crate) fn numbers(last: u64) -> Vec<u8> {
    (1..=last).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// A row as an earlier server would have left it.
pub(crate) fn row(n: u64, state: SandboxState) -> SandboxRecord {
    let spec = SandboxSpec::resolve(
        &SandboxDraft::default(),
        None,
        Base::Image {
            name: "host",
            defaults: &ImageDefaults::default(),
            isolation: IsolationLevel::Container,
        },
        &Caps::default(),
    );
    SandboxRecord {
        project: None,
        id: SandboxId::from_parts(n, n),
        name: Some(format!("row-{n}")),
        state,
        reason: None,
        spec: spec.unwrap(),
        labels: std::collections::BTreeMap::new(),
        annotations: std::collections::BTreeMap::new(),
        image_digest: None,
        owner: None,
        request: None,
        created_ms: n,
        expires_ms: None,
        last_active_ms: n,
        paused: None,
        paused_ms: None,
        pauses_ms: 0,
        boot_id: String::new(),
        kept_ms: None,
        memory_used: false,
        restored: None,
        generation: 1,
    }
}

/// A key that a client chose.
pub(crate) fn client_key(text: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey::client(text).unwrap())
}

/// The row of an exec that has not ended.
pub(crate) fn exec_row(sandbox: &SandboxRecord, n: u64) -> ExecRecord {
    ExecRecord {
        id: ExecId::from_parts(n, n),
        sandbox: sandbox.id.clone(),
        idempotency_key: None,
        request_digest: "digest".to_owned(),
        spec: ExecSpec::resolve(argv(&["sleep", "1000"]), &sandbox.spec).unwrap(),
        state: ExecState::Starting,
        pid: None,
        exit: None,
        output_bytes: 0,
        cpu_us: 0,
        pauses_before_ms: 0,
        started_by: None,
        created_ms: n,
        ended_ms: None,
    }
}

pub(crate) fn plan(id: &SandboxId) -> Plan {
    let (resources, hostname) = (Resources::default(), id.to_string());
    Plan {
        id: id.clone(),
        root: RootFs::Host,
        resources,
        hostname,
        disk: DiskSource::Empty,
        volumes: Vec::new(),
        layers: Vec::new(),
        execution: atoll_isolation::Execution::default(),
    }
}
