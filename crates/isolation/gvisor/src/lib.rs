//! The isolation level `gvisor`: between every sandbox and the host is a kernel in user space, gVisor's *sentry*. The
//! sentry answers the system calls of programs inside; the host sees only the few calls of the sentry itself, which a
//! filter allows.
//!
//! # How a sandbox comes to be
//!
//! The server has the launcher ([`launch`]) build a jail: a PID namespace whose first process is a copy of the launcher
//! that does nothing but wait, with a root that holds the sandbox's files and nothing else of the host. In it `runsc`,
//! as installed, starts the sentry with the same guest agent as everywhere as its first process. `runsc` itself ends
//! then. Killing the jail's first process ends everything, so a sandbox has one process that is watched, and one that
//! is killed.
//!
//! # The channel
//!
//! The agent listens on a socket in a directory that it shares with the server, a small file system in memory that only
//! the jail has mounted: the server reaches it through the jail's first process. The way from the server to a program
//! inside is one socket of the host, 45 microseconds there and back on a small machine.
//!
//! # What enforces what
//!
//! | | |
//! |---|---|
//! | disk | the ext4 image of every level, under an overlay that the host's kernel makes: snapshots and sizes are the container's |
//! | processor | the jail's cgroup |
//! | memory | the agent, process by process; the jail's cgroup, [`OVERHEAD_MAX_BYTES`] above it, for the whole sandbox |
//! | processes | `RLIMIT_NPROC` and the sentry's own `pids` cgroup, both by the agent; the jail's cgroup, far above it |
//! | network | the same slot as a container's: sockets inside are the host's, in a namespace that leads only to the gateway |
//! | freezing | the jail's cgroup |
//!
//! Memory cannot be written to disk: `runsc checkpoint` refuses it where sockets are the host's, and gVisor's own network
//! stack would need an interface in the slot. So [`Isolation::memory_pause`] says no.
//!
//! # Where things are
//!
//! `runsc` has the options and the configuration of the program, `create` and `disk` are the life of a sandbox, `live`
//! is a live one, `record` reads and writes the files about each sandbox, `probe` tries platforms and has the checks of
//! `atoll doctor`.

mod create;
mod disk;
mod driver;
mod filter;
pub mod launch;
mod live;
mod probe;
mod record;
mod runsc;
mod sys;

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
pub(crate) use atoll_isolation::step;
use atoll_isolation::{IsolationError, Resource};
use atoll_isolation_host::resources::{self, sandboxes_in};
use atoll_isolation_host::{Cgroups, Live, private_dir};
use atoll_isolation_storage::filesystem::Templates;
use atoll_isolation_storage::{Storage, StoredArtifacts, StoredVolumes};
use atoll_network::SlotPool;

use record::Record;
pub use runsc::{Platform, Runsc};
use step::Step;

/// Places where a test can kill the driver, in the order they are passed by a life of creation, hibernation, waking and
/// removal. In builds with debug assertions.
pub const FAILPOINTS: [&str; 18] = [
    "gvisor::create::disk",
    "gvisor::create::directory",
    "gvisor::create::ids",
    "gvisor::create::moved",
    "gvisor::start::cgroups",
    "gvisor::start::jail",
    "gvisor::start::told",
    "gvisor::start::written",
    "gvisor::hibernate::start",
    "gvisor::hibernate::ended",
    "gvisor::hibernate::cgroups",
    "gvisor::hibernate::disk",
    "gvisor::wake::start",
    "gvisor::wake::ids",
    "gvisor::destroy::start",
    "gvisor::destroy::ended",
    "gvisor::destroy::cgroups",
    "gvisor::destroy::disk",
];

/// The same while a snapshot is taken.
pub const SNAPSHOT_FAILPOINTS: [&str; 2] = ["gvisor::snapshot::frozen", "gvisor::snapshot::cloned"];

/// First host id of sandboxes: above the container level's 3,072 ranges.
const FIRST_ID: u32 = 0x7c00_0000;
/// Ranges of ids that sandboxes can have: up to systemd's range for foreign images, below 2^31 as kernels before 6.18 read
/// the ids in mount options as signed numbers. Sandboxes that an earlier version made keep the higher ids that
/// they have.
const RANGES: u32 = 0x3fe;
const _: () = assert!(FIRST_ID + RANGES * launch::IDS <= 0x7ffe_0000, "ids are below 2^31");
/// What the sentry, the gofer and the jail may take on top of a sandbox's memory limit, and what a process may take
/// before the agent notices. The cgroup ends there, and with it the sandbox.
pub const OVERHEAD_MAX_BYTES: u64 = 256 << 20;
/// Host processes and threads for each of the sandbox's; and for the sentry, and for what gets past the sandbox's limit
/// before the agent notices. A sentry that comes to the end of them is over, and with it the sandbox.
const HOST_PIDS_EACH: u32 = 4;
const HOST_PIDS_MORE: u32 = 4096;

/// The host's part of a sandbox's limits.
fn host_limits(resources: &Resources) -> Resources {
    Resources {
        memory_bytes: resources.memory_bytes + OVERHEAD_MAX_BYTES,
        pids: resources.pids.saturating_mul(HOST_PIDS_EACH).saturating_add(HOST_PIDS_MORE),
        ..*resources
    }
}

/// What a driver is made of.
#[derive(Debug, Clone)]
pub struct GvisorConfig {
    /// Where it keeps its data. Only root may enter it; one driver at a time.
    pub dir: PathBuf,
    /// Names this installation among others on the host.
    pub instance: String,
    /// The guest agent's program, statically linked.
    pub agent: &'static [u8],
    /// A program with its first arguments that calls [`launch::launch`] with its last one.
    pub launcher: Vec<PathBuf>,
    /// gVisor's program.
    pub runsc: Runsc,
    /// Where disks and snapshots lie.
    pub storage: Arc<Storage>,
    /// The volumes that sandboxes can have.
    pub volumes: StoredVolumes,
    /// Network namespaces for sandboxes.
    pub slots: Arc<SlotPool>,
}

/// The driver. Dropping it leaves sandboxes running.
#[derive(Debug, Clone)]
pub struct GvisorIsolation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: GvisorConfig,
    platform: tokio::sync::OnceCell<Platform>,
    /// The directory with the agent's program.
    agent: PathBuf,
    cgroups: Cgroups,
    disks: Templates,
    live: Live<live::Sentry>,
    /// First ids of the ranges that are taken.
    ranges: Mutex<BTreeSet<u32>>,
    /// Sandboxes that are made only to see whether they can be.
    probing: Mutex<BTreeSet<SandboxId>>,
}

fn is_there(path: &Path) -> bool {
    path.try_exists().is_ok_and(|there| there)
}

/// Makes a directory that only root may enter; gives its path without links.
fn private(dir: &Path) -> Result<PathBuf, IsolationError> {
    private_dir(dir).step("make the data directory")?;
    dir.canonicalize().step("find the data directory")
}

/// Puts the agent's program where jails can show it. Each version has a directory of its own, which stays as long as a
/// sandbox may run on it; gives that directory.
fn agent_dir(dir: &Path, program: &[u8], alone: bool) -> Result<PathBuf, IsolationError> {
    let step = || "put the guest agent in its place";
    let parent = private(&dir.join("agents"))?;
    let own = parent.join(&blake3::hash(program).to_hex()[..32]);
    for entry in std::fs::read_dir(&parent).step(step())? {
        let path = entry.step(step())?.path();
        if path.extension().is_some() || (alone && path != own) {
            std::fs::remove_dir_all(path).step("remove an old guest agent")?;
        }
    }
    if !is_there(&own) {
        let new = own.with_extension("new");
        DirBuilder::new().mode(0o755).create(&new).step(step())?;
        let file = new.join(runsc::AGENT_FILE);
        std::fs::write(&file, program).step(step())?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o555)).step(step())?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).step(step())?;
        std::fs::rename(&new, &own).step(step())?;
    }
    Ok(own)
}

impl GvisorIsolation {
    /// Opens the driver on a directory. Sandboxes that run are left alone: see [`atoll_isolation::Lifecycle::adopt`]. Whether the host can
    /// run gVisor is tried with the first sandbox.
    ///
    /// # Errors
    /// [`IsolationError::Unavailable`] when `runsc` is missing or too old, [`IsolationError::Kernel`].
    pub async fn open(config: GvisorConfig) -> Result<Self, IsolationError> {
        let opened = tokio::task::spawn_blocking(move || Inner::open(config)).await;
        let inner = Arc::new(opened.map_err(std::io::Error::other).step("run a task")??);
        Ok(Self { inner })
    }

    /// Whether programs inside can have set-user-id bits that work: not in every version.
    #[must_use]
    pub fn set_user_id(&self) -> bool {
        self.inner.config.runsc.set_user_id
    }

    /// Runs something that blocks on a thread meant for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        self.inner.blocking(work).await
    }
}

impl Inner {
    fn open(config: GvisorConfig) -> Result<Self, IsolationError> {
        if !rustix::process::geteuid().is_root() {
            return Err(IsolationError::Unavailable(
                "sandboxes in gVisor need a server that runs as root".to_owned(),
            ));
        }
        let config = GvisorConfig { dir: private(&config.dir)?, ..config };
        private(&config.dir.join("sandboxes"))?;
        private(&config.dir.join("scratch"))?;
        let sandboxes = sandboxes_in(&config.dir.join("sandboxes"), "").step("list the sandboxes")?;
        let inner = Self {
            platform: tokio::sync::OnceCell::new(),
            agent: agent_dir(&config.dir, config.agent, sandboxes.is_empty())?,
            cgroups: Cgroups::open(&format!("atoll-{}-gv", config.instance))?,
            disks: Templates::open(config.dir.join("disks"))?,
            live: Live::default(),
            ranges: Mutex::default(),
            probing: Mutex::default(),
            config,
        };
        let taken = sandboxes.iter().filter_map(|id| inner.record(id).first_id()).collect();
        *inner.ranges() = taken;
        Ok(inner)
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        let inner = Arc::clone(self);
        let joined = tokio::task::spawn_blocking(move || work(&inner)).await;
        joined.map_err(std::io::Error::other).step("run a task")?
    }

    /// The artifacts, as all levels keep them.
    fn stored(&self) -> StoredArtifacts {
        StoredArtifacts::new(Arc::clone(&self.config.storage))
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn probing(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.probing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, id: &SandboxId) -> Record {
        Record::of(&self.config.dir.join("sandboxes"), id)
    }

    /// Claims a range of host ids for a sandbox, and writes it down. The search starts at a place of the installation's,
    /// so that two on one host rarely use the same.
    fn claim_ids(&self, record: &Record) -> Result<(), IsolationError> {
        let mut taken = self.ranges();
        let start = u32::from_str_radix(&self.config.instance, 16).unwrap_or(0) % RANGES;
        let first = (0..RANGES)
            .map(|step| FIRST_ID + (start + step) % RANGES * launch::IDS)
            .find(|first| !taken.contains(first));
        let first =
            first.ok_or_else(|| IsolationError::Unavailable("all ids of sandboxes are taken".to_owned()))?;
        record.claim_ids(first)?;
        taken.insert(first);
        Ok(())
    }

    /// Everything that carries a sandbox's id.
    fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        resources::with_processes(&self.cgroups, self.parts()?)
    }

    /// The same, but for processes, which are in cgroups that are found.
    fn parts(&self) -> Result<Vec<Resource>, IsolationError> {
        let mut found = resources::parts(&self.cgroups, &self.config.dir.join("sandboxes"))?;
        found.extend(self.config.storage.sentry_disks()?);
        let probing = self.probing().clone();
        found.retain(|resource| !probing.contains(&resource.sandbox));
        Ok(found)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.cgroups.close();
    }
}
