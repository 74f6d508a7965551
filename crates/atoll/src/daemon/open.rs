//! Opens what a data directory holds, one part after the other.

use std::sync::Arc;

use atoll_core::{Code, Error};
use atoll_egress::intercept::TlsInterceptor;
use atoll_engine::{Clock, SecretDoor, Trust};
use atoll_image::{Images, Settings};
use atoll_isolation::volumes::Volumes;
use atoll_isolation::{Check, Isolation};
use atoll_isolation_container::{ContainerConfig, ContainerIsolation, PoolSizes};
use atoll_isolation_host::Halt;
use atoll_isolation_storage::{Guard, PoolSize, Storage, StorageConfig};
use atoll_network::SlotPool;
use atoll_recorder::Recorder;
use atoll_store::{Store, StoreUrl};
use atoll_tls::Authority;
use atoll_vault::Vault;
use atoll_witness::Witness;

use super::{DataDir, Limits, Machines, Sentries};
use crate::config::VaultKey;
use crate::failure::{Failure, Result};

/// Name under which the database keeps the authority of the server's own port.
const SERVER_CA: &str = "server_ca";

/// What a server keeps on its own disk and in its database, opened.
pub(super) struct Opened {
    pub(super) store: Store,
    pub(super) vault: Vault,
    pub(super) clock: Clock,
    pub(super) images: Images,
    pub(super) recorder: Recorder,
}

impl Opened {
    pub(super) async fn open(dir: &DataDir, database: Option<&str>, limits: &Limits) -> Result<Self> {
        refuse_copy(dir)?;
        dir.close_output()?;
        let store = open_store(dir, database).await?;
        let vault = open_vault(dir, limits.vault_key.as_ref())?;
        let clock = Clock::default();
        let keep_packed = limits.objects.is_some() && limits.node.is_some() && store.is_shared();
        let settings = Settings { reach: limits.registries.clone(), keep_packed, ..Settings::default() };
        let images = Images::open_with(&dir.path().join("images"), settings)
            .map_err(|error| Failure::Plain(error.to_core()))?;
        let recorder = open_recorder(dir, &store, &vault, limits, &clock).await?;
        Ok(Self { store, vault, clock, images, recorder })
    }
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

/// Opens all of them that this host was set up for. `witness` is the host's kernel as a witness, being opened.
pub(crate) async fn open_levels(
    dir: &DataDir,
    ready: usize,
    pool: PoolSize,
    machines: Option<&Machines>,
    sentries: Option<&Sentries>,
    witness: impl Future<Output = std::result::Result<Arc<Witness>, String>>,
) -> Result<Levels> {
    let (storage, slots) = (open_storage(dir, pool)?, open_slots(ready)?);
    // Both take longer than all the rest: side by side.
    let find = async {
        match sentries {
            Some(sentries) => Some((sentries, sentries.find().await)),
            None => None,
        }
    };
    let (witness, sentries) = tokio::join!(witness, find);
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
    if let Some((sentries, found)) = sentries {
        match sentries.open(found, dir, Arc::clone(&storage), volumes.clone(), slots).await? {
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
pub(super) fn guard(dir: &DataDir, storage: Arc<Storage>) -> Result<Guard> {
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
pub(super) async fn server_authority(
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

/// What looks into sandboxes' TLS, and the certificates that sandboxes trust because of it.
pub(super) async fn interception(
    dir: &DataDir,
    store: &Store,
    vault: &Vault,
    clock: &Clock,
    limits: &Limits,
    door: &SecretDoor,
) -> Result<(TlsInterceptor, Trust)> {
    let authority = atoll_engine::open_authority(store, vault, dir.installation(), clock)
        .await
        .map_err(Failure::Plain)?;
    let (secrets, meter) = (Arc::new(door.clone()), Arc::new(door.clone()));
    let interceptor =
        TlsInterceptor::new(authority, secrets, Some(meter), &limits.upstream_ca).map_err(|error| {
            let why = crate::failure::chain(&error);
            Failure::plain(Code::InvalidArgument, format!("--upstream-ca: {why}"))
        })?;
    let trust = Trust {
        ca_pem: interceptor.certificate_pem().to_owned(),
        roots_pem: interceptor.roots_pem().to_owned(),
        upstream_pem: limits.upstream_ca.clone(),
    };
    Ok((interceptor, trust))
}
