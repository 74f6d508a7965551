//! [`Engine`]: what everything hangs on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{ExecId, SandboxId};
use atoll_core::opaque::Opaque;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{Accelerator, IsolationLevel};
use atoll_core::usage::Usage;
use atoll_core::{Code, Error, Result};
use atoll_egress::Gateway;
use atoll_image::Images;
use atoll_isolation::{Check, DiskSpace, Isolation, Resource};
use atoll_store::Store;
use atoll_vault::Vault;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::Agents;
use crate::boxed;
use crate::build::{BuildStats, Builds};
use crate::clock::{self, Clock};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::disk::{self, DiskState};
use crate::errors::{isolation_error, store_error};
use crate::images::{self, Shared};
use crate::ingress::ShareLinks;
use crate::keys::KeyCache;
use crate::live::Live;
use crate::log::Logs;
use crate::memory::{self, Memories};
use crate::pool::{self, Pools};
use crate::projects::Projects;
use crate::sandbox::Downloads;
use crate::secrets::Secrets;
use crate::sharing::AclTable;
use crate::snapshot::Snapshots;
use crate::table::Table;
use crate::tokens::TokenKey;
use crate::trace::{Fetching, Moving};
use crate::transfers::Transfers;
use crate::travel::Travel;
use crate::usage;
use crate::volumes::VolumeTable;

/// Networks of sandboxes that are taken up at the same time: each takes a thread for as long as it is opened.
const NETWORKS_AT_ONCE: usize = 8;

/// Counts, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sandboxes by state.
    pub sandboxes: BTreeMap<SandboxState, u64>,
    /// Execs that run now.
    pub execs_running: u64,
    /// What was used and recorded since the start of the server.
    pub used: Usage,
    /// Builds of templates.
    pub builds: BuildStats,
    /// Space on the host's disk.
    pub disk: Vec<DiskSpace>,
    /// Whether every sandbox stands still because it is full.
    pub disk_full: bool,
    /// Output of execs that is kept, bytes.
    pub logs_bytes: u64,
    /// Rows of the database that cannot be read and were left out of lists, by table.
    pub unreadable_rows: BTreeMap<&'static str, u64>,
    /// What is free.
    pub capacity: Capacity,
}

/// What there is room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Most sandboxes at once.
    pub sandboxes_max: u64,
    /// Creations under way that a caller waits for.
    pub creations: u64,
    /// Those that go on at once; more wait.
    pub creations_max: u64,
    /// Memory that this node can still give, bytes; 0 where there are no nodes.
    pub memory_available_bytes: u64,
    /// Memory that it has.
    pub memory_total_bytes: u64,
    /// It takes no new sandboxes.
    pub is_draining: bool,
}

/// The engine. Clones share it.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) inner: Opaque<Arc<Inner>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) vault: Vault,
    pub(crate) images: Images,
    pub(crate) drivers: BTreeMap<IsolationLevel, Arc<dyn Isolation>>,
    pub(crate) keys: KeyCache,
    pub(crate) projects: Projects,
    pub(crate) secrets: Secrets,
    pub(crate) gateway: Gateway,
    pub(crate) share_links: ShareLinks,
    /// Journals of other nodes that come from the object store.
    pub(crate) fetching: Fetching,
    /// Journals that come to this node with their sandboxes.
    pub(crate) moving: Moving,
    pub(crate) creates: Semaphore,
    pub(crate) transfers: Transfers,
    pub(crate) downloads: Arc<Downloads>,
    pub(crate) builds: Builds,
    pub(crate) agents: Agents,
    /// Says that there is another schedule.
    pub(crate) scheduled: tokio::sync::Notify,
    pub(crate) pools: Pools,
    pub(crate) memories: Memories,
    pub(crate) live: Live,
    pub(crate) acl: AclTable,
    pub(crate) volumes: VolumeTable,
    pub(crate) tokens: TokenKey,
    pub(crate) disk: DiskState,
    pub(crate) logs: Arc<Logs>,
    pub(crate) snapshots: Snapshots,
    /// This node among others; none where the database belongs to one server.
    pub(crate) cluster: Option<Cluster>,
    /// How sandboxes come from other nodes and go there; none without nodes, or without an object store.
    pub(crate) travel: Option<Arc<Travel>>,
    /// Images that every node can have; none without nodes, or without an object store.
    pub(crate) shared_images: Option<Arc<Shared>>,
    pub(crate) tracker: TaskTracker,
    pub(crate) shutdown: CancellationToken,
    /// Cancelled when the server begins to let go of its clients.
    pub(crate) draining: CancellationToken,
    pub(crate) table: Mutex<Table>,
    /// Turns at opening the networks of sandboxes that are taken up. None before the engine has started: until then the
    /// processors find what there is, and a caller waits only for the sandbox that it uses.
    pub(crate) network_turns: Semaphore,
    /// How many sandboxes were taken up: see [`Engine::taken_up`].
    pub(crate) taken_up: watch::Sender<u64>,
    used: Mutex<Usage>,
}

impl Engine {
    /// Starts the engine: takes up what an earlier process left, then is ready for calls.
    ///
    /// # Errors
    /// When the store or a driver cannot be read; [`Code::IsolationUnavailable`] when there is no driver for what
    /// sandboxes get by default.
    #[boxed]
    pub async fn start(
        config: Config,
        store: Store,
        vault: Vault,
        images: Images,
        drivers: Vec<Arc<dyn Isolation>>,
    ) -> Result<Self> {
        let cluster = Cluster::of(&store);
        let keys = KeyCache::load(&store).await?;
        let projects = Projects::load(&store).await?;
        let tokens = TokenKey::open(&store, &vault, &config.clock).await?;
        let secrets = Secrets::load(&store).await?;
        let acl = AclTable::load(&store, config.visibility).await?;
        let share_links = ShareLinks::load(&store).await?;
        let travel = Travel::open(&config, &store).await?.map(Arc::new);
        let shared_images = Shared::open(&config, &store, &images).await?.map(Arc::new);
        let engine = Self::of(&Arc::new(Inner {
            clock: config.clock.clone(),
            creates: Semaphore::new(config.creates_max),
            transfers: Transfers::default(),
            downloads: Arc::default(),
            gateway: Gateway::new(config.egress.gateway.clone()),
            builds: Builds::default(),
            agents: Agents::default(),
            scheduled: tokio::sync::Notify::new(),
            pools: Pools::new(config.pools.clone()),
            memories: Memories::default(),
            live: Live::default(),
            acl,
            volumes: VolumeTable::default(),
            tokens,
            disk: DiskState::of(config.disk.as_ref(), cluster.as_ref().map(Cluster::lease)),
            logs: Logs::new(config.data_dir.join("logs"), config.logs_max_bytes),
            snapshots: Snapshots::default(),
            cluster,
            travel,
            shared_images,
            config,
            store,
            vault,
            images,
            drivers: drivers.into_iter().map(|driver| (driver.level(), driver)).collect(),
            keys,
            projects,
            secrets,
            share_links,
            fetching: Fetching::default(),
            moving: Moving::default(),
            tracker: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            draining: CancellationToken::new(),
            table: Mutex::default(),
            network_turns: Semaphore::new(0),
            taken_up: watch::Sender::default(),
            used: Mutex::default(),
        }));
        engine.inner.driver(engine.inner.config.defaults.isolation)?;
        engine.inner.continue_rotation().await?;
        engine.start_recorder();
        engine.start_strict();
        disk::start(&engine.inner);
        engine.recover_all().await?;
        // A sandbox whose row cannot be read was not begun, and may live: while there is one, no journal is removed.
        if let Some(recorder) = &engine.inner.config.trace.recorder
            && engine.inner.store.unreadable_of("sandboxes").is_empty()
        {
            recorder.has_begun_all();
        }
        usage::start(&engine.inner);
        pool::start(&engine);
        memory::start(&engine);
        engine.start_cluster();
        engine.start_travel();
        images::start(&engine);
        engine.inner.network_turns.add_permits(NETWORKS_AT_ONCE);
        Ok(engine)
    }

    /// Takes up everything that an earlier process left, each after what it needs.
    #[boxed]
    async fn recover_all(&self) -> Result<()> {
        self.measure_logs().await;
        self.thaw_volumes().await;
        self.recover().await?;
        self.recover_services().await?;
        self.recover_agents().await?;
        self.recover_schedules().await?;
        self.recover_memories().await?;
        self.recover_volumes().await
    }

    /// The same engine, for code that has only its `Inner`.
    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        Self { inner: Opaque::new(Arc::clone(inner)) }
    }

    /// Says that clients will be let go of because the server stops: an exec that wants to be killed when its
    /// last client goes away goes on.
    pub fn drain(&self) {
        self.inner.draining.cancel();
    }

    /// Stops without touching the sandboxes: they go on and are taken up at the next start. Members of warm pools have
    /// no owner and are removed.
    #[boxed]
    pub async fn shutdown(&self) {
        self.drain();
        self.inner.shutdown.cancel();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
        for driver in self.inner.drivers.values() {
            driver.close().await;
        }
        if let Some(recorder) = &self.inner.config.trace.recorder {
            recorder.close().await;
        }
        self.inner.store.close().await;
    }

    /// Counts the sandboxes that this server took up: those that an earlier process left, and those that came from other
    /// nodes. A dialect that does work of its own for sandboxes begins that work again when the count has changed.
    #[must_use]
    pub fn taken_up(&self) -> watch::Receiver<u64> {
        self.inner.taken_up.subscribe()
    }

    /// Milliseconds since the epoch, by the engine's clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }

    /// The image store.
    #[must_use]
    pub fn images(&self) -> &Images {
        &self.inner.images
    }

    /// Isolation levels that this server can give.
    #[must_use]
    pub fn isolation_levels(&self) -> Vec<IsolationLevel> {
        self.inner.drivers.keys().copied().collect()
    }

    /// The isolation level of a sandbox for which the caller names none.
    #[must_use]
    pub fn default_isolation(&self) -> IsolationLevel {
        self.inner.config.defaults.isolation
    }

    /// The image of a sandbox for which the caller names none.
    #[must_use]
    pub fn default_image(&self) -> String {
        self.inner.config.defaults.image.clone()
    }

    /// Where adapters of other APIs may keep files for a while: nothing here is needed to go on after a crash.
    #[must_use]
    pub fn spool_dir(&self) -> PathBuf {
        self.inner.config.data_dir.join("spool")
    }

    /// What executes machines, where there is a level that has them.
    #[must_use]
    pub fn accelerator(&self) -> Option<Accelerator> {
        self.inner.drivers.values().find_map(|driver| driver.accelerator())
    }

    /// Most sandboxes at once.
    #[must_use]
    pub fn sandboxes_max(&self) -> usize {
        self.inner.config.sandboxes_max
    }

    /// Counts of what there is.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let builds = self.inner.builds.stats();
        let (used, disk) = (*self.inner.used(), self.disk_space());
        let mut stats = Stats { used, builds, disk, disk_full: self.is_disk_full(), ..Stats::default() };
        stats.logs_bytes = self.inner.logs.bytes();
        for row in self.inner.store.unreadable().remembered() {
            *stats.unreadable_rows.entry(row.table).or_default() += 1;
        }
        stats.capacity = self.capacity();
        for sandbox in self.inner.all_sandboxes() {
            *stats.sandboxes.entry(sandbox.record().state).or_default() += 1;
            stats.execs_running += sandbox.live_execs().len() as u64;
        }
        stats
    }

    /// What this host enforces, by every driver.
    #[boxed]
    pub async fn doctor(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        // The trials of the drivers would stand still with the sandboxes, and the caller would wait for them.
        if !self.is_disk_full() {
            for driver in self.inner.drivers.values() {
                checks.extend(driver.doctor().await);
            }
        }
        checks.extend(self.inner.config.missing.iter().cloned());
        checks.extend(self.check_disk());
        checks.push(self.check_logs());
        checks.push(self.check_database().await);
        checks
    }

    /// Things on the host that carry the id of no known sandbox.
    ///
    /// # Errors
    /// When a driver cannot look, or the store does not answer.
    #[boxed]
    pub async fn leaks(&self) -> Result<Vec<Resource>> {
        let mut leaks = Vec::new();
        // What is removed between the look at the host and the look at what is known is no leak either.
        let before = self.inner.known_ids();
        for driver in self.inner.drivers.values() {
            let found = driver.scan().await.map_err(|error| isolation_error(&error))?;
            leaks.extend(found.into_iter().filter(|resource| self.inner.find(&resource.sandbox).is_none()));
        }
        leaks.retain(|leak| !before.contains(&leak.sandbox) && !self.inner.pools.holds(&leak.sandbox));
        // One that could not be recovered is not in the table, but has its row: it is no leak.
        let rows = self.inner.store.sandbox_ids().await.map_err(store_error)?;
        let rows: BTreeSet<SandboxId> = rows.into_iter().collect();
        leaks.retain(|leak| !rows.contains(&leak.sandbox));
        Ok(leaks)
    }

    /// Removes what [`Self::leaks`] finds; gives what it found.
    ///
    /// # Errors
    /// When something resists.
    #[boxed]
    pub async fn remove_leaks(&self) -> Result<Vec<Resource>> {
        self.inner.make_room();
        let leaks = self.leaks().await?;
        let ids: BTreeSet<&SandboxId> = leaks.iter().map(|leak| &leak.sandbox).collect();
        for id in ids {
            for driver in self.inner.drivers.values() {
                driver.destroy(id).await.map_err(|error| isolation_error(&error))?;
            }
        }
        Ok(leaks)
    }
}

impl Inner {
    fn used(&self) -> std::sync::MutexGuard<'_, Usage> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_usage(&self, used: &Usage) {
        self.used().add(used);
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(crate) fn driver(&self, level: IsolationLevel) -> Result<&Arc<dyn Isolation>> {
        self.drivers.get(&level).ok_or_else(|| {
            Error::new(Code::IsolationUnavailable, format!("this server has no isolation level '{level}'"))
                .hint(match level {
                    IsolationLevel::Microvm => {
                        "set it up with 'atoll setup microvm' and start the server again"
                    }
                    IsolationLevel::Gvisor => {
                        "install gVisor's runsc, see what 'atoll doctor' says, and start the server again"
                    }
                    IsolationLevel::Container => "'atoll doctor' says what this host can do",
                })
        })
    }

    /// Where the output of a sandbox's execs is kept.
    pub(crate) fn logs_dir(&self, sandbox: &SandboxId) -> PathBuf {
        self.config.data_dir.join("logs").join(sandbox.as_str())
    }

    /// Where the output of one exec is kept.
    pub(crate) fn log_dir(&self, sandbox: &SandboxId, exec: &ExecId) -> PathBuf {
        self.logs_dir(sandbox).join(exec.as_str())
    }

    pub(crate) fn new_sandbox_id(now_ms: u64) -> Result<SandboxId> {
        Ok(SandboxId::from_parts(now_ms, clock::random()?))
    }

    pub(crate) fn new_exec_id(now_ms: u64) -> Result<ExecId> {
        Ok(ExecId::from_parts(now_ms, clock::random()?))
    }
}
