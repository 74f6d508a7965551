//! [`Engine`]: what everything hangs on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::id::{ExecId, KeyId, SandboxId};
use atoll_core::opaque::Opaque;
use atoll_core::project::{kept_name, plain_name};
use atoll_core::sandbox::SandboxState;
use atoll_core::sharing::Visibility;
use atoll_core::spec::{Accelerator, Caps, Defaults, IsolationLevel, RequestKey};
use atoll_core::usage::Usage;
use atoll_core::{Code, Error, Result};
use atoll_egress::Gateway;
use atoll_image::Images;
use atoll_isolation::volumes::Volumes;
use atoll_isolation::{Check, DiskSpace, HostDisk, Isolation, Resource};
use atoll_objects::Objects;
use atoll_store::{SandboxRecord, Store, Whereabouts};
use atoll_vault::Vault;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::Agents;
use crate::boxed;
use crate::build::{BuildStats, Builds};
use crate::clock::{self, Clock};
use crate::cluster::{self, Cluster};
use crate::disk::{self, DiskState};
use crate::egress::EgressConfig;
use crate::errors::{isolation_error, store_error};
use crate::images::{self, Shared};
use crate::ingress::ShareLinks;
use crate::keys::KeyCache;
use crate::live::Live;
use crate::log::Logs;
use crate::memory::{self, Memories};
use crate::people::People;
use crate::pool::{self, PoolConfig, Pools};
use crate::projects::Projects;
use crate::sandbox::SandboxShared;
use crate::secrets::Secrets;
use crate::sharing::AclTable;
use crate::snapshot::Snapshots;
use crate::tokens::TokenKey;
use crate::trace::{Fetching, TraceConfig};
use crate::travel::Travel;
use crate::usage;
use crate::volumes::VolumeTable;

/// What the engine is told at start.
#[derive(Debug, Clone)]
pub struct Config {
    /// What time it is.
    pub clock: Clock,
    /// Where output logs live: `<data_dir>/logs`.
    pub data_dir: PathBuf,
    /// Upper bounds for one sandbox.
    pub caps: Caps,
    /// What a sandbox is when nobody says.
    pub defaults: Defaults,
    /// Where snapshots can be sent to and fetched from.
    pub objects: Option<Objects>,
    /// Most sandboxes at once, in any state.
    pub sandboxes_max: usize,
    /// Sandboxes that stand still give memory back when less than so many bytes of the host's are available. 0:
    /// never.
    pub reclaim_below_bytes: u64,
    /// Most sandboxes being made at once; more wait. About twice the number of cores.
    pub creates_max: usize,
    /// Whom sandboxes must trust whose connections the gateway looks into.
    pub trust: Trust,
    /// Warm pools.
    pub pools: PoolConfig,
    /// The network of sandboxes.
    pub egress: EgressConfig,
    /// Who may log in.
    pub people: People,
    /// Whether keys see each other's sandboxes, where nothing else is said.
    pub visibility: Visibility,
    /// Where volumes lie; there are none without.
    pub volumes: Option<Arc<dyn Volumes>>,
    /// The flight recorder.
    pub trace: TraceConfig,
    /// Output of execs that is kept altogether, bytes.
    pub logs_max_bytes: u64,
    /// What stops sandboxes when the host's disk is full; nobody does without.
    pub disk: Option<Arc<dyn HostDisk>>,
}

/// Whom sandboxes must trust whose connections the gateway looks into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// The certificate of the gateway's authority, PEM; nobody when empty.
    pub ca_pem: String,
    /// Public authorities, PEM, for images that have none.
    pub roots_pem: String,
    /// Authorities of servers outside that the operator added, PEM.
    pub upstream_pem: String,
}

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
    /// What is free.
    pub capacity: Capacity,
}

/// What there is room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Most sandboxes at once.
    pub sandboxes_max: u64,
    /// Creations under way that somebody waits for.
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
    pub(crate) creates: Semaphore,
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
    table: Mutex<Table>,
    used: Mutex<Usage>,
}

/// Every sandbox of this server, by id and by name. Held only for look-ups, never across an await.
#[derive(Debug, Default)]
struct Table {
    by_id: BTreeMap<SandboxId, Arc<SandboxShared>>,
    /// By the name as it is kept: with its project.
    by_name: BTreeMap<String, SandboxId>,
    /// By who asked for it, and with which key.
    by_request: BTreeMap<(KeyId, String), SandboxId>,
}

/// The name of a sandbox as it is kept.
fn kept(record: &SandboxRecord) -> Option<String> {
    record.name.as_deref().map(|name| kept_name(record.project.as_ref(), name))
}

/// Under what a request for a sandbox is found again.
fn request_of(record: &SandboxRecord) -> Option<(KeyId, String)> {
    Some((record.owner.clone()?, record.request.as_ref()?.key.clone()))
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
            tracker: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            draining: CancellationToken::new(),
            table: Mutex::default(),
            used: Mutex::default(),
        }));
        engine.inner.driver(engine.inner.config.defaults.isolation)?;
        engine.inner.continue_rotation().await?;
        engine.start_recorder();
        engine.start_strict();
        disk::start(&engine.inner);
        engine.measure_logs().await;
        engine.thaw_volumes().await;
        engine.recover().await?;
        engine.recover_services().await?;
        engine.recover_agents().await?;
        engine.recover_schedules().await?;
        engine.recover_memories().await?;
        engine.recover_volumes().await?;
        usage::start(&engine.inner);
        pool::start(&engine);
        memory::start(&engine);
        engine.start_cluster();
        engine.start_travel();
        images::start(&engine);
        Ok(engine)
    }

    /// The same engine, for what has only its inside.
    pub(crate) fn of(inner: &Arc<Inner>) -> Self {
        Self { inner: Opaque::new(Arc::clone(inner)) }
    }

    /// Says that clients will be let go of because the server stops: an exec that wants to be killed when its
    /// last client goes away goes on.
    pub fn drain(&self) {
        self.inner.draining.cancel();
    }

    /// Stops without touching the sandboxes: they go on and are taken up at the next start. Members of warm
    /// pools belong to nobody and are removed.
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

    /// The isolation level of a sandbox that nobody says anything about.
    #[must_use]
    pub fn default_isolation(&self) -> IsolationLevel {
        self.inner.config.defaults.isolation
    }

    /// The image of a sandbox that nobody says anything about.
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
        // What drivers try would stand still with the sandboxes, and whoever asks with it.
        if !self.is_disk_full() {
            for driver in self.inner.drivers.values() {
                checks.extend(driver.doctor().await);
            }
        }
        checks.extend(self.check_disk());
        checks.push(self.check_logs());
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

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        // A panic while holding it would leave two plain maps, usable as they are.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<SandboxShared>> {
        self.table().by_id.get(id).cloned()
    }

    /// The sandbox with this id.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> Result<Arc<SandboxShared>> {
        self.find(id).ok_or_else(|| {
            cluster::missing(Whereabouts::Sandbox(id.to_string()));
            SandboxId::not_found(id.as_str())
        })
    }

    /// The sandbox with this id, or this name as it is kept ([`Caller::kept`](crate::Caller)). What has the form of an id is
    /// one: no name has it.
    pub(crate) fn resolve(&self, id_or_name: &str) -> Result<Arc<SandboxShared>> {
        let table = self.table();
        let id = id_or_name.parse().ok().or_else(|| table.by_name.get(id_or_name).cloned());
        id.and_then(|id| table.by_id.get(&id).cloned()).ok_or_else(|| {
            cluster::missing(Whereabouts::Sandbox(id_or_name.to_owned()));
            SandboxId::not_found(plain_name(id_or_name))
        })
    }

    pub(crate) fn count_sandboxes(&self) -> u64 {
        self.table().by_id.len() as u64
    }

    /// The sandbox that this request of `owner` made before, if there is one.
    pub(crate) fn made_for(
        &self,
        owner: Option<&KeyId>,
        request: &RequestKey,
    ) -> Result<Option<Arc<SandboxShared>>> {
        let Some(owner) = owner else { return Ok(None) };
        let table = self.table();
        let id = table.by_request.get(&(owner.clone(), request.key.clone()));
        let Some(sandbox) = id.and_then(|id| table.by_id.get(id)) else { return Ok(None) };
        if sandbox.record().request.as_ref().is_some_and(|before| before.digest == request.digest) {
            return Ok(Some(Arc::clone(sandbox)));
        }
        Err(Error::new(Code::IdempotencyMismatch, "the idempotency key was used before with another request")
            .hint("use a new key for a new request"))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(crate) fn all_sandboxes(&self) -> Vec<Arc<SandboxShared>> {
        self.table().by_id.values().cloned().collect()
    }

    /// Every id that may have something on the host: sandboxes and members of pools.
    fn known_ids(&self) -> BTreeSet<SandboxId> {
        let mut ids = self.pools.ids();
        // In this order: a member that becomes a sandbox meanwhile is in one of the two.
        ids.extend(self.table().by_id.keys().cloned());
        ids
    }

    /// Enters a sandbox, if there is room and its name is free.
    pub(crate) fn enter(&self, sandbox: &Arc<SandboxShared>, counted: bool) -> Result<()> {
        let record = sandbox.record();
        let mut table = self.table();
        let max = self.config.sandboxes_max;
        if counted && table.by_id.len() >= max {
            return Err(Error::new(Code::LimitExceeded, format!("there are {max} sandboxes already"))
                .hint("delete some, or start the server with a larger --sandboxes-max"));
        }
        let request = request_of(&record);
        if request.as_ref().is_some_and(|request| table.by_request.contains_key(request)) {
            return Err(Error::new(
                Code::InvalidState,
                "another request with this idempotency key is under way",
            )
            .hint("ask again"));
        }
        if let Some(name) = kept(&record) {
            if table.by_name.contains_key(&name) {
                return Err(name_taken(&name));
            }
            table.by_name.insert(name, record.id.clone());
        }
        table.by_request.extend(request.map(|request| (request, record.id.clone())));
        table.by_id.insert(record.id.clone(), Arc::clone(sandbox));
        Ok(())
    }

    /// Gives a sandbox another name as well, if that is free.
    pub(crate) fn enter_name(&self, of: &SandboxRecord, name: &str) -> Result<()> {
        let name = kept_name(of.project.as_ref(), name);
        let mut table = self.table();
        match table.by_name.get(&name) {
            Some(owner) if *owner != of.id => Err(name_taken(&name)),
            _ => {
                table.by_name.insert(name, of.id.clone());
                Ok(())
            }
        }
    }

    /// Takes one name of a sandbox away.
    pub(crate) fn leave_name(&self, of: &SandboxRecord, name: &str) {
        let name = kept_name(of.project.as_ref(), name);
        let mut table = self.table();
        if table.by_name.get(&name) == Some(&of.id) {
            table.by_name.remove(&name);
        }
    }

    /// Takes a sandbox out.
    pub(crate) fn leave(&self, id: &SandboxId) {
        self.secrets.forget(id);
        self.acl.forget(id);
        self.config.trace.end(id);
        let mut table = self.table();
        if let Some(record) = table.by_id.remove(id).map(|sandbox| sandbox.record()) {
            if let Some(name) = kept(&record)
                && table.by_name.get(&name) == Some(id)
            {
                table.by_name.remove(&name);
            }
            if let Some(request) = request_of(&record)
                && table.by_request.get(&request) == Some(id)
            {
                table.by_request.remove(&request);
            }
        }
        drop(table);
        self.agents.sandbox_left(id);
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

fn name_taken(kept: &str) -> Error {
    Error::new(Code::NameTaken, format!("another sandbox is named '{}'", plain_name(kept)))
        .hint("choose another name, or delete the sandbox that has it")
}
