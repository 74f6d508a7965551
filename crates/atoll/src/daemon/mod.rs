//! The server's wiring: from a data directory to an engine behind a listener.
//!
//! ```text
//! DATA_DIR/
//!   lock           held while a server runs: one at a time
//!   installation   eight hexadecimal digits in the name of everything this server makes on the host
//!   atoll.db       SQLite, unless --database names another
//!   vault.key      seals registry passwords
//!   images/        layers       containers/   sandboxes' records      logs/   execs' output
//!   machines/      sandboxes' records, of virtual machines
//!   gvisor/        sandboxes' records, of gVisor
//!   microvm/       the virtual machines' kernel, images and saved machines, unless --microvm-dir names another place
//!   storage/       sandboxes' disks and snapshots
//!   trace/         the flight recorder's journals, one directory for each sandbox
//!   trace-fetched/ some of other nodes' sandboxes that are gone; trace-aside/   what other nodes went on with
//!   node, lease    this node's id in its cluster, and until when its sandboxes may run: with PostgreSQL
//!   .restoring/    a backup that was not restored to its end: no server starts
//!   reserve        room that is given up when the host's disk is full, so that things can still be removed
//! ```

mod data_dir;
mod embedded;
mod journals;
mod kernel;
mod lease;
mod left_behind;
mod machines;
mod node;
mod open;
mod otlp;
mod sentries;
mod spans;
mod telemetry;

use std::sync::Arc;

use atoll_core::sharing::Visibility;
use atoll_core::spec::{Caps, Defaults};
use atoll_core::trace::TraceMode;
use atoll_engine::{EgressConfig, Engine, KeyScope, NewKey, People, PoolConfig, SecretDoor, TraceConfig};
use atoll_image::Reach;
use atoll_isolation::HostDisk as _;
use atoll_isolation_storage::{PoolSize, Reserve};
use atoll_objects::Objects;
use atoll_recorder::Retention;
use atoll_server::SpanCounts;
use atoll_tls::{Authority, NodeTls};

use crate::config::VaultKey;
use crate::failure::{Failure, Result};

pub(crate) use data_dir::{Claim, DataDir};
pub(crate) use embedded::{HOSTS, embedded};
use journals::Journals;
pub(crate) use kernel::{leave_kernel, left_in_kernel, try_witness};
pub(crate) use lease::watch_lease;
pub(crate) use left_behind::end_left_behind;
pub(crate) use machines::Machines;
pub(crate) use node::NodeSettings;
pub(crate) use open::{Levels, open_containers, open_levels, open_slots, open_storage, open_store};
use open::{Opened, guard, interception, server_authority};
pub(crate) use otlp::{Collector, follow_metrics};
pub(crate) use sentries::Sentries;
pub(crate) use spans::Spans;
pub(crate) use telemetry::Telemetry;

/// Network namespaces, disks and user namespaces that are kept ready.
const READY_COUNT: usize = 8;
/// Available memory of the host below which frozen sandboxes give theirs back, bytes.
const RECLAIM_BELOW_BYTES: u64 = 1 << 30;

/// Output, and images that other nodes have, take at most this part of the data directory's file system, when nothing is said.
const PART_OF_THE_DISK: u64 = 10;

/// How much a server keeps ready and allows, and what it lets sandboxes reach.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) egress: EgressConfig,
    /// Properties of a sandbox whose request does not set them.
    pub(crate) defaults: Defaults,
    pub(crate) sandboxes_max: usize,
    pub(crate) ready: usize,
    /// Frozen sandboxes give memory back when less is available on the host, bytes.
    pub(crate) reclaim_below_bytes: u64,
    /// Output that is kept altogether, bytes; a tenth of the data directory's file system when nothing is said.
    pub(crate) logs_max_bytes: Option<u64>,
    /// Images that every node can have and nothing here stands on, bytes; the same part when nothing is said.
    pub(crate) images_max_bytes: Option<u64>,
    /// Where disks and snapshots lie.
    pub(crate) storage: PoolSize,
    /// Warm pools; as many are made at a time as there are processors.
    pub(crate) pools: PoolConfig,
    /// Where snapshots can be sent to and fetched from.
    pub(crate) objects: Option<Objects>,
    /// The vault's key, if it is not in the data directory.
    pub(crate) vault_key: Option<VaultKey>,
    /// Authorities for servers outside, besides the host's, PEM.
    pub(crate) upstream_ca: String,
    /// Where pulls may lead.
    pub(crate) registries: Reach,
    pub(crate) visibility: Visibility,
    /// Who may log in.
    pub(crate) people: People,
    /// How sandboxes are recorded.
    pub(crate) trace: TraceMode,
    /// How long that is kept.
    pub(crate) trace_keep: Retention,
    /// Virtual machines, if they are to be had once they are set up.
    pub(crate) machines: Option<Machines>,
    /// Sandboxes in gVisor, if they are to be had where it is installed.
    pub(crate) sentries: Option<Sentries>,
    /// DNS names that certificates of the server's own authority are for, if it is to have one.
    pub(crate) own_names: Option<Vec<String>>,
    /// This server's settings as a node of a cluster, where it may share its database with other servers.
    pub(crate) node: Option<NodeSettings>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            egress: EgressConfig::default(),
            defaults: Defaults::default(),
            sandboxes_max: 2000,
            ready: READY_COUNT,
            reclaim_below_bytes: RECLAIM_BELOW_BYTES,
            logs_max_bytes: None,
            images_max_bytes: None,
            storage: PoolSize::Host,
            pools: PoolConfig::default(),
            objects: None,
            vault_key: None,
            upstream_ca: String::new(),
            // Without a configured server there is one user, and only that user gives references.
            registries: Reach::everything(),
            visibility: Visibility::default(),
            people: People::default(),
            // Without a configured server there is one user, and no one else who would read a journal.
            trace: TraceMode::Off,
            trace_keep: Retention::default(),
            machines: None,
            sentries: None,
            own_names: None,
            node: None,
        }
    }
}

/// An engine, and the lock that keeps its data directory for this process.
pub(crate) struct Daemon {
    pub(crate) engine: Engine,
    pub(crate) installation: String,
    /// The server's own authority, if it is to have one.
    pub(crate) authority: Option<Authority>,
    /// TLS of this node's connections with other nodes, where it is one of a cluster.
    pub(crate) nodes: Option<Arc<NodeTls>>,
    /// Counts of the spans, if they are sent to a collector.
    pub(crate) spans: Option<Arc<SpanCounts>>,
    _journals: Option<Journals>,
    _dir: DataDir,
}

impl Daemon {
    /// Opens everything and takes up what an earlier server left.
    pub(crate) async fn start(dir: DataDir, database: Option<&str>, limits: &Limits) -> Result<Self> {
        if Reserve::of(dir.path()).give_up_if_tight() {
            tracing::error!(
                "the host's disk is full: the server starts with what was kept in reserve for that"
            );
        }
        let opened = Opened::open(&dir, database, limits).await?;
        let witness = kernel::open_witness(&dir, &opened.recorder, limits.trace);
        let levels = {
            let (machines, sentries) = (limits.machines.as_ref(), limits.sentries.as_ref());
            open_levels(&dir, limits.ready, limits.storage, machines, sentries, witness).await?
        };
        let drivers = levels.drivers.clone();
        let started = Self::start_on(dir, limits, opened, levels).await;
        if started.is_err() {
            // A server that cannot be started leaves nothing in the kernel.
            for driver in &drivers {
                driver.close().await;
            }
        }
        started
    }

    /// Becomes a node where there are several, and starts the engine.
    async fn start_on(dir: DataDir, limits: &Limits, opened: Opened, levels: Levels) -> Result<Self> {
        let Opened { store, vault, clock, images, recorder } = opened;
        let Levels { storage, volumes, drivers, missing } = levels;
        // Before anything goes on that the guard finds standing still.
        let nodes = match &limits.node {
            Some(settings) if store.is_shared() => {
                let max = limits.sandboxes_max;
                Some(Arc::new(node::enter(&dir, &store, &vault, settings, max, &drivers, &clock).await?))
            }
            _ => None,
        };
        let guard = guard(&dir, storage)?;
        if let Err(error) = atoll_isolation_host::mark(dir.installation(), dir.path()) {
            // Only finding it without the directory depends on that.
            tracing::warn!(%error, "the kernel does not know where the data directory is");
        }
        let authority = match &limits.own_names {
            Some(names) => {
                Some(server_authority(&store, &vault, dir.installation(), names.clone(), &clock).await?)
            }
            None => None,
        };
        let door = SecretDoor::default();
        let (interceptor, trust) = interception(&dir, &store, &vault, &clock, limits, &door).await?;
        let mut egress = limits.egress.clone();
        egress.gateway.interceptor = Some(Arc::new(interceptor));
        egress.gateway.recorder = Some(recorder.clone());
        let space = guard.space();
        let host = space.iter().find(|space| space.place == "host");
        let part = host.map_or(u64::MAX, |host| host.total_bytes / PART_OF_THE_DISK);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let config = atoll_engine::Config {
            clock,
            objects: limits.objects.clone(),
            data_dir: dir.path().to_owned(),
            caps: Caps::default(),
            defaults: limits.defaults.clone(),
            sandboxes_max: limits.sandboxes_max,
            creates_max: 2 * cores,
            visibility: limits.visibility,
            people: limits.people.clone(),
            volumes: Some(volumes),
            logs_max_bytes: limits.logs_max_bytes.unwrap_or(part),
            images_max_bytes: limits.images_max_bytes.unwrap_or(part),
            missing,
            disk: Some(Arc::new(guard)),
            reclaim_below_bytes: limits.reclaim_below_bytes,
            pools: PoolConfig { fillers: cores, ..limits.pools.clone() },
            egress,
            trace: TraceConfig { recorder: Some(recorder), mode: limits.trace },
            trust,
        };
        let lease = store.lease().cloned();
        let engine = Engine::start(config, store, vault, images, drivers).await.map_err(Failure::Plain)?;
        door.open_to(&engine);
        let keep = |objects| Journals::keep(dir.path().join("trace"), objects, lease);
        Ok(Self {
            engine,
            installation: dir.installation().to_owned(),
            authority,
            nodes,
            spans: None,
            _journals: limits.objects.clone().map(keep),
            _dir: dir,
        })
    }

    /// Makes an `admin` key if there is no key at all, or when asked to.
    pub(crate) async fn first_key(&self, always: bool) -> Result<Option<NewKey>> {
        let none = self.engine.keys().await.map_err(Failure::Plain)?.is_empty();
        if !none && !always {
            return Ok(None);
        }
        let key = self.engine.create_key("operator", KeyScope::Admin, None).await.map_err(Failure::Plain)?;
        Ok(Some(key))
    }
}
