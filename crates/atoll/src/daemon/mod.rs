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
mod otlp;
mod sentries;
mod spans;
mod telemetry;

use std::sync::Arc;

use atoll_core::sharing::Visibility;
use atoll_core::spec::{Caps, Defaults};
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error};
use atoll_egress::intercept::TlsInterceptor;
use atoll_engine::{
    Clock, EgressConfig, Engine, KeyScope, NewKey, People, PoolConfig, SecretDoor, TraceConfig, Trust,
};
use atoll_image::{Images, Reach, Settings};
use atoll_isolation::volumes::Volumes;
use atoll_isolation::{Check, HostDisk as _, Isolation};
use atoll_isolation_container::{ContainerConfig, ContainerIsolation, PoolSizes};
use atoll_isolation_host::Halt;
use atoll_isolation_storage::{Guard, PoolSize, Reserve, Storage, StorageConfig};
use atoll_network::SlotPool;
use atoll_objects::Objects;
use atoll_recorder::{Recorder, Retention};
use atoll_server::SpanCounts;
use atoll_store::{Store, StoreUrl};
use atoll_tls::{Authority, NodeTls};
use atoll_vault::Vault;
use atoll_witness::Witness;

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
pub(crate) use otlp::{Collector, follow_metrics};
pub(crate) use sentries::Sentries;
pub(crate) use spans::Spans;
pub(crate) use telemetry::Telemetry;

/// Network namespaces, disks and user namespaces that are kept ready.
const READY_COUNT: usize = 8;
/// Name under which the database keeps the authority of the server's own port.
const SERVER_CA: &str = "server_ca";
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

/// Opens the place of disks and snapshots of a data directory.
pub(crate) fn open_storage(dir: &DataDir, pool: PoolSize) -> Result<Arc<Storage>> {
    let config =
        StorageConfig { dir: dir.path().join("storage"), instance: dir.installation().to_owned(), pool };
    Storage::open(&config).map(Arc::new).map_err(|error| {
        let why = crate::failure::chain(&error);
        Failure::Plain(
            Error::new(Code::IsolationUnavailable, format!("the storage of disks cannot be opened: {why}"))
                .hint("run as root; 'atoll doctor' says what is missing"),
        )
    })
}

/// Starts keeping network namespaces ready.
pub(crate) fn open_slots(ready: usize) -> Result<Arc<SlotPool>> {
    let slots = SlotPool::start(ready);
    slots.map(Arc::new).map_err(|error| Failure::io("cannot prepare network namespaces", error.source))
}

/// Opens the container driver of a data directory.
pub(crate) fn open_containers(
    dir: &DataDir,
    ready: usize,
    storage: Arc<Storage>,
    slots: Arc<SlotPool>,
    witness: std::result::Result<Arc<Witness>, String>,
) -> Result<ContainerIsolation> {
    ContainerIsolation::open(ContainerConfig {
        dir: dir.path().join("containers"),
        instance: dir.installation().to_owned(),
        agent: atoll_guest_binary::GUEST,
        run: atoll_guest_binary::RUN,
        storage,
        slots,
        pools: PoolSizes { disks: ready, user_namespaces: ready },
        witness,
    })
    .map_err(|error| {
        Failure::Plain(
            Error::new(
                Code::IsolationUnavailable,
                format!("this host cannot run container sandboxes: {}", crate::failure::chain(&error)),
            )
            .hint("run as root; 'atoll doctor' says what is missing"),
        )
    })
}

/// The isolation levels of a data directory.
pub(crate) struct Levels {
    pub(crate) storage: Arc<Storage>,
    pub(crate) volumes: Arc<dyn Volumes>,
    pub(crate) drivers: Vec<Arc<dyn Isolation>>,
    /// What the others lack here.
    pub(crate) missing: Vec<Check>,
}

/// Opens all of them that this host was set up for.
pub(crate) async fn open_levels(
    dir: &DataDir,
    ready: usize,
    pool: PoolSize,
    machines: Option<&Machines>,
    sentries: Option<&Sentries>,
    witness: std::result::Result<Arc<Witness>, String>,
) -> Result<Levels> {
    let (storage, slots) = (open_storage(dir, pool)?, open_slots(ready)?);
    let containers = open_containers(dir, ready, Arc::clone(&storage), Arc::clone(&slots), witness)?;
    let volumes = containers.volumes();
    let mut drivers: Vec<Arc<dyn Isolation>> = vec![Arc::new(containers)];
    let mut missing = Vec::new();
    if let Some(machines) = machines {
        match machines.open(dir, Arc::clone(&storage), Arc::clone(&slots)).await? {
            Some(driver) => {
                tracing::info!(accelerator = ?driver.accelerator(), "virtual machines are available");
                drivers.push(Arc::new(driver));
            }
            None => missing.push(Machines::missing()),
        }
    }
    if let Some(sentries) = sentries {
        match sentries.open(dir, Arc::clone(&storage), volumes.clone(), slots).await? {
            Ok(driver) => drivers.push(Arc::new(driver)),
            Err(check) => missing.push(check),
        }
    }
    Ok(Levels { storage, volumes: Arc::new(volumes), drivers, missing })
}

/// Refuses a data directory whose original, or another copy of it, is in use on this host.
fn refuse_copy(dir: &DataDir) -> Result<()> {
    match atoll_isolation_host::in_use_elsewhere(dir.installation(), dir.path()) {
        Ok(None) => Ok(()),
        Ok(Some(other)) => Err(Failure::Plain(
            Error::new(
                Code::InvalidState,
                format!(
                    "{} is the same installation as {}, which is in use",
                    dir.path().display(),
                    other.display()
                ),
            )
            .hint("stop that one and end what it runs with 'atoll purge --keep-data', or use this one on another host"),
        )),
        Err(error) => {
            tracing::warn!(%error, "what else runs on this host is not known");
            Ok(())
        }
    }
}

/// Opens the database of a data directory.
pub(crate) async fn open_store(dir: &DataDir, database: Option<&str>) -> Result<Store> {
    let url = match database {
        None => StoreUrl::SqliteFile(dir.path().join("atoll.db")),
        Some(text) => text.parse::<StoreUrl>().map_err(|error| {
            Failure::Plain(
                Error::new(Code::InvalidArgument, format!("--database: {error}"))
                    .hint("write sqlite:///path/file.db or postgres://user:password@host/database"),
            )
        })?,
    };
    Store::open(&url).await.map_err(|error| {
        Failure::plain(
            Code::StoreUnavailable,
            format!("the database cannot be opened: {}", crate::failure::chain(&error)),
        )
    })
}

/// Starts keeping watch over the host's disk.
fn guard(dir: &DataDir, storage: Arc<Storage>) -> Result<Guard> {
    let guard = Halt::open(dir.installation()).and_then(|halt| Guard::start(storage, dir.path(), halt));
    guard.map_err(|error| {
        let why = crate::failure::chain(&error);
        Failure::plain(Code::IsolationUnavailable, format!("the host's disk cannot be watched: {why}"))
    })
}

fn open_vault(dir: &DataDir, key: Option<&VaultKey>) -> Result<Vault> {
    let (what, opened) = match key {
        None => ("vault.key", Vault::open(&dir.path().join("vault.key"))),
        Some(key) => ("the vault's key", Vault::with_key(&key.current, key.previous.as_ref())),
    };
    opened
        .map_err(|error| Failure::plain(Code::Internal, format!("{what}: {}", crate::failure::chain(&error))))
}

/// Opens the flight recorder. It is there with `--trace off`, too, for sandboxes that ask for it.
async fn open_recorder(
    dir: &DataDir,
    store: &Store,
    vault: &Vault,
    limits: &Limits,
    clock: &Clock,
) -> Result<Recorder> {
    let key = atoll_engine::open_trace_key(store, vault, clock).await.map_err(Failure::Plain)?;
    let keep = limits.trace_keep;
    Recorder::open(atoll_recorder::Config { dir: dir.path().join("trace"), key, keep })
        .map_err(|error| Failure::io("the recorder cannot write below the data directory", error))
}

/// Opens the authority of the server's own port, making it first when there is none.
async fn server_authority(
    store: &Store,
    vault: &Vault,
    installation: &str,
    names: Vec<String>,
    clock: &Clock,
) -> Result<Authority> {
    let make = || Authority::generate(installation).map(|made| (made.certificate_pem, made.key_pem));
    let (certificate, key) =
        atoll_engine::kept_authority(store, vault, SERVER_CA, clock, make).await.map_err(Failure::Plain)?;
    Authority::open(&certificate, &key, names)
        .map_err(|error| Failure::plain(Code::Internal, crate::failure::chain(&error)))
}

impl Daemon {
    /// Opens everything and takes up what an earlier server left.
    pub(crate) async fn start(dir: DataDir, database: Option<&str>, limits: &Limits) -> Result<Self> {
        if Reserve::of(dir.path()).give_up_if_tight() {
            tracing::error!(
                "the host's disk is full: the server starts with what was kept in reserve for that"
            );
        }
        refuse_copy(&dir)?;
        let store = open_store(&dir, database).await?;
        let vault = open_vault(&dir, limits.vault_key.as_ref())?;
        let clock = Clock::default();
        let keep_packed = limits.objects.is_some() && limits.node.is_some() && store.is_shared();
        let settings = Settings { reach: limits.registries.clone(), keep_packed, ..Settings::default() };
        let images = Images::open_with(&dir.path().join("images"), settings)
            .map_err(|error| Failure::Plain(error.to_core()))?;
        let recorder = open_recorder(&dir, &store, &vault, limits, &clock).await?;
        let witness = kernel::open_witness(&dir, &recorder, limits.trace).await;
        let Levels { storage, volumes, drivers, missing } = {
            let (machines, sentries) = (limits.machines.as_ref(), limits.sentries.as_ref());
            open_levels(&dir, limits.ready, limits.storage, machines, sentries, witness).await?
        };
        let opened = drivers.clone();
        let started = async {
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
            let space = guard.space();
            let host = space.iter().find(|space| space.place == "host");
            let part = host.map_or(u64::MAX, |host| host.total_bytes / PART_OF_THE_DISK);
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let door = SecretDoor::default();
            let authority = atoll_engine::open_authority(&store, &vault, dir.installation(), &clock)
                .await
                .map_err(Failure::Plain)?;
            let own = match &limits.own_names {
                Some(names) => {
                    Some(server_authority(&store, &vault, dir.installation(), names.clone(), &clock).await?)
                }
                None => None,
            };
            let (secrets, meter) = (Arc::new(door.clone()), Arc::new(door.clone()));
            let interceptor = TlsInterceptor::new(authority, secrets, Some(meter), &limits.upstream_ca)
                .map_err(|error| {
                    Failure::plain(
                        Code::InvalidArgument,
                        format!("--upstream-ca: {}", crate::failure::chain(&error)),
                    )
                })?;
            let trust = Trust {
                ca_pem: interceptor.certificate_pem().to_owned(),
                roots_pem: interceptor.roots_pem().to_owned(),
                upstream_pem: limits.upstream_ca.clone(),
            };
            let mut egress = limits.egress.clone();
            egress.gateway.interceptor = Some(Arc::new(interceptor));
            egress.gateway.recorder = Some(recorder.clone());
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
            let engine =
                Engine::start(config, store, vault, images, drivers).await.map_err(Failure::Plain)?;
            door.open_to(&engine);
            let installation = dir.installation().to_owned();
            let keep = |objects| Journals::keep(dir.path().join("trace"), objects);
            let journals = limits.objects.clone().map(keep);
            Ok(Self {
                engine,
                installation,
                authority: own,
                nodes,
                spans: None,
                _journals: journals,
                _dir: dir,
            })
        };
        let started = started.await;
        if started.is_err() {
            // A server that cannot be started leaves nothing in the kernel.
            for driver in &opened {
                driver.close().await;
            }
        }
        started
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
