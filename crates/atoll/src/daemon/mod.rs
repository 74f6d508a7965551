//! The server's wiring: from a data directory to an engine behind a listener.
//!
//! ```text
//! DATA_DIR/
//!   lock           held while a server runs: one at a time
//!   installation   eight hexadecimal digits in the name of everything this server makes on the host
//!   atoll.db       SQLite, unless --database names another
//!   vault.key      seals registry passwords
//!   images/        layers       containers/   sandboxes' records      logs/   execs' output
//!   storage/       sandboxes' disks and snapshots
//! ```

mod data_dir;
mod embedded;
mod telemetry;

use std::sync::Arc;

use atoll_core::pool::PoolSpec;
use atoll_core::spec::{Caps, IsolationLevel};
use atoll_core::{Code, Error};
use atoll_engine::{EgressConfig, Engine, KeyScope, NewKey, PoolConfig};
use atoll_image::Images;
use atoll_isolation::Isolation;
use atoll_isolation_container::{ContainerConfig, ContainerIsolation, PoolSizes};
use atoll_isolation_storage::{PoolSize, Storage, StorageConfig};
use atoll_network::SlotPool;
use atoll_store::{Store, StoreUrl};
use atoll_vault::Vault;

use crate::failure::{Failure, Result};

pub(crate) use data_dir::DataDir;
pub(crate) use embedded::embedded;
pub(crate) use telemetry::Telemetry;

/// Network namespaces, disks and user namespaces that are kept ready.
const READY_COUNT: usize = 8;

/// How much a server keeps ready and allows, and what it lets sandboxes reach.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) egress: EgressConfig,
    pub(crate) sandboxes_max: usize,
    pub(crate) ready: usize,
    /// Size of the storage pool, where one is needed.
    pub(crate) storage: PoolSize,
    pub(crate) pools: Vec<(String, PoolSpec)>,
    /// Memory that pools may take, bytes; none without.
    pub(crate) pool_memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sandboxes_max: 2000,
            ready: READY_COUNT,
            storage: PoolSize::Host,
            pools: Vec::new(),
            pool_memory: 0,
            egress: EgressConfig::default(),
        }
    }
}

/// An engine with what keeps its data directory for itself.
pub(crate) struct Daemon {
    pub(crate) engine: Engine,
    pub(crate) installation: String,
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

/// Opens the container driver of a data directory.
pub(crate) fn open_containers(
    dir: &DataDir,
    ready: usize,
    storage: Arc<Storage>,
) -> Result<ContainerIsolation> {
    let slots = SlotPool::start(ready)
        .map_err(|error| Failure::io("cannot prepare network namespaces", error.source))?;
    ContainerIsolation::open(ContainerConfig {
        dir: dir.path().join("containers"),
        instance: dir.installation().to_owned(),
        agent: atoll_guest_binary::GUEST,
        storage,
        slots: Arc::new(slots),
        pools: PoolSizes { disks: ready, user_namespaces: ready },
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

impl Daemon {
    /// Opens everything and takes up what an earlier server left.
    pub(crate) async fn start(dir: DataDir, database: Option<&str>, limits: &Limits) -> Result<Self> {
        let store = open_store(&dir, database).await?;
        let vault = Vault::open(&dir.path().join("vault.key")).map_err(|error| {
            Failure::plain(Code::Internal, format!("vault.key: {}", crate::failure::chain(&error)))
        })?;
        let images =
            Images::open(&dir.path().join("images")).map_err(|error| Failure::Plain(error.to_core()))?;
        let driver = open_containers(&dir, limits.ready, open_storage(&dir, limits.storage)?)?;
        let drivers: Vec<Arc<dyn Isolation>> = vec![Arc::new(driver)];
        debug_assert_eq!(drivers[0].level(), IsolationLevel::Container);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let config = atoll_engine::Config {
            data_dir: dir.path().to_owned(),
            caps: Caps::default(),
            sandboxes_max: limits.sandboxes_max,
            creates_max: 2 * cores,
            egress: limits.egress.clone(),
            pools: PoolConfig {
                memory_bytes: limits.pool_memory,
                fillers: cores,
                images: limits.pools.clone(),
            },
        };
        let engine = Engine::start(config, store, vault, images, drivers).await.map_err(Failure::Plain)?;
        let installation = dir.installation().to_owned();
        Ok(Self { engine, installation, _dir: dir })
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
