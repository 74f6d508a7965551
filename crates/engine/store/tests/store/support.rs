//! A PostgreSQL for tests: the one that `ATOLL_TEST_POSTGRES` names, or Debian's, started here.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_core::id::NodeId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::secret::Secret;
use atoll_store::{
    NodeDraft, NodeRecord, RegistryRecord, SandboxRecord, Store, StoreError, StoreUrl, conformance,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// A server has so much at most: its first thousand files, and the databases of one test.
const ROOM_BYTES: u64 = 512 << 20;

/// Where a server's files lie: in memory, where there is room. It makes a thousand of them before it answers, and some file
/// systems take long for each when as many have just been removed (ext4 without a journal).
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |space| space.f_bavail * space.f_frsize);
    if room >= ROOM_BYTES { memory.to_owned() } else { tempfile::env::temp_dir() }
}

/// A server; one that was started here ends when this is dropped.
pub(crate) struct Postgres {
    server: Option<Server>,
    /// URL of each database, with `{}` for its name.
    template: String,
    made: std::sync::Mutex<Vec<String>>,
}

struct Server {
    process: Child,
    user: Option<(u32, u32)>,
    dir: tempfile::TempDir,
}

impl Postgres {
    /// Never skips: without a server there is no answer, so the test fails.
    pub(crate) async fn start() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test's configuration")]
        if let Ok(url) = std::env::var("ATOLL_TEST_POSTGRES") {
            let (start, _) = url.rsplit_once('/').expect("postgres://user@host/database");
            return Self { server: None, template: format!("{start}/{{}}"), made: Vec::new().into() };
        }
        Self::own().await
    }

    /// A server of our own, also when another one is configured: it can be stopped.
    pub(crate) async fn own() -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-postgres").tempdir_in(place()).unwrap();
        let user = unprivileged();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).unwrap();
        }
        let data = dir.path().join("data");
        let done = command("initdb", user, dir.path())
            .args(["-U", "atoll", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        let socket = dir.path().display().to_string().replace('/', "%2F");
        let process = serve(user, dir.path());
        let postgres = Self {
            server: Some(Server { process, user, dir }),
            template: format!("postgres:///{{}}?host={socket}&user=atoll"),
            made: Vec::new().into(),
        };
        drop(postgres.admin().await.close().await);
        postgres
    }

    pub(crate) fn url(&self, database: &str) -> String {
        self.template.replace("{}", database)
    }

    /// Makes an empty database and gives its URL.
    pub(crate) async fn fresh(&self) -> StoreUrl {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("atoll_test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.made.lock().unwrap().push(name.clone());
        let mut admin = self.admin().await;
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
        admin.close().await.unwrap();
        StoreUrl::Postgres(Secret::new(self.url(&name)))
    }

    /// The database that was made last.
    pub(crate) fn last(&self) -> StoreUrl {
        let name = self.made.lock().unwrap().last().expect("a database was made").clone();
        StoreUrl::Postgres(Secret::new(self.url(&name)))
    }

    pub(crate) async fn store(&self) -> Store {
        Store::open(&self.fresh().await).await.unwrap()
    }

    /// Removes the databases made here from a server that stays.
    pub(crate) async fn clean(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        let mut admin = self.admin().await;
        for name in made {
            let sql = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
            sqlx::query(sql).execute(&mut admin).await.unwrap();
        }
        admin.close().await.unwrap();
    }

    /// Where a server of our own takes connections.
    pub(crate) fn socket(&self) -> PathBuf {
        self.server.as_ref().expect("a server of our own").dir.path().join(".s.PGSQL.5432")
    }

    /// Whether a session waits for a lock. Of a server of our own, which no other test uses.
    pub(crate) async fn has_waiters(&self) -> bool {
        let mut admin = self.admin().await;
        let sql = "SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1";
        let found = sqlx::query(sql).fetch_optional(&mut admin).await.unwrap();
        admin.close().await.unwrap();
        found.is_some()
    }

    /// Ends every session that holds an advisory lock, as a broken network does.
    pub(crate) async fn end_sessions_with_locks(&self) {
        let mut admin = self.admin().await;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";
        sqlx::query(sql).execute(&mut admin).await.unwrap();
        admin.close().await.unwrap();
    }

    /// Changes something in a database behind the stores' backs.
    pub(crate) async fn change(&self, url: &StoreUrl, sql: &'static str) {
        let StoreUrl::Postgres(url) = url else { panic!("a database of PostgreSQL") };
        let mut conn = PgConnection::connect(url.reveal()).await.unwrap();
        sqlx::query(sql).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }

    /// Stops the server at once, ending its sessions.
    pub(crate) fn stop(&mut self) {
        self.server.as_mut().unwrap().stop();
    }

    /// Starts it again.
    pub(crate) async fn restart(&mut self) {
        let server = self.server.as_mut().unwrap();
        server.process = serve(server.user, server.dir.path());
        drop(self.admin().await.close().await);
    }

    async fn admin(&self) -> PgConnection {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match PgConnection::connect(&self.url("postgres")).await {
                Ok(conn) => return conn,
                Err(error) => assert!(Instant::now() < deadline, "PostgreSQL does not answer: {error}"),
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }
}

impl Server {
    fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // Fast shutdown. Fails when it has ended already, which is as good.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

/// A node that enters, by number.
pub(crate) fn draft(number: u64) -> NodeDraft {
    NodeDraft {
        id: NodeId::from_parts(number, number),
        name: format!("n{number}"),
        address: "127.0.0.1:1".to_owned(),
        version: "1".to_owned(),
        facts: r#"{"levels":["container"],"sandboxes_max":5,"labels":{}}"#.to_owned(),
        lease_ms: 3000,
        now_ms: 1,
    }
}

/// Opens a node's store; gives with it until when the node's lease holds, as it is told.
pub(crate) async fn enter(url: &StoreUrl, number: u64) -> (Store, Arc<AtomicU64>) {
    let store = Store::open(url).await.unwrap();
    let until = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&until);
    store.enter(&draft(number), Arc::new(move |ns| told.store(ns, Ordering::SeqCst))).await.unwrap();
    (store, until)
}

/// What a store reads of a node, by number.
pub(crate) async fn record_of(store: &Store, number: u64) -> NodeRecord {
    let name = format!("n{number}");
    store.nodes().await.unwrap().into_iter().find(|node| node.name == name).unwrap()
}

/// A sandbox in a state, by number.
pub(crate) fn sandbox(number: u64, state: SandboxState, paused: Option<PauseMode>) -> SandboxRecord {
    SandboxRecord { state, paused, ..conformance::sandbox(number, number) }
}

/// Something to store, for tests that care about the database and not about what is in it.
pub(crate) fn registry(username: &str) -> RegistryRecord {
    RegistryRecord {
        host: "a".to_owned(),
        name: None,
        username: username.to_owned(),
        sealed: vec![1],
        updated_ms: 1,
    }
}

/// Polls until there is something.
pub(crate) async fn once<T>(what: &str, attempt: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

/// Polls until `operation` gives something else than "unavailable".
pub(crate) async fn once_available<T>(operation: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match operation().await {
            Err(StoreError::Unavailable { .. }) if Instant::now() < deadline => {}
            other => return other.unwrap(),
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

fn serve(user: Option<(u32, u32)>, dir: &Path) -> Child {
    command("postgres", user, dir)
        .args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"])
        .arg(dir)
        .arg("-D")
        .arg(dir.join("data"))
        .spawn()
        .unwrap()
}

fn command(program: &str, user: Option<(u32, u32)>, dir: &Path) -> Command {
    let mut command = Command::new(installed(program));
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command
}

/// The newest version that Debian's package has installed.
fn installed(program: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("install the package postgresql");
    let mut versions: Vec<u32> =
        versions.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable();
    let newest = versions.last().expect("install the package postgresql");
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin/{program}"))
}

/// PostgreSQL refuses to run as root: then it runs as the user that its package made.
fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line =
        users.lines().find(|line| line.starts_with("postgres:")).expect("install the package postgresql");
    let mut ids = line.split(':').skip(2).map(|id| id.parse().unwrap());
    Some((ids.next().unwrap(), ids.next().unwrap()))
}
