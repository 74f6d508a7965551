//! The isolation level `container`: Linux namespaces, an overlay on idmapped layers, cgroups of either
//! version, seccomp, and a user namespace of its own for every sandbox.
//!
//! # Where things are
//!
//! [`create`](crate) makes an instance step by step, `child` runs in its first process before that becomes the guest
//! agent, in a copy of the mount namespace of `base`, with the mounts of `memory` and `masks`; `destroy` removes and
//! scans, `record` reads and writes the files about each sandbox, `disk`, `userns` and `skeleton` make the parts of an
//! instance (`atoll-isolation-host` has its cgroups), `probe` has the checks of `atoll doctor`.
//!
//! # What outlives the server, and what does not
//!
//! A sandbox's processes hold everything they need: namespaces, mounts and through them the loop device. The server
//! holds only a pidfd and the files of [`record`](crate). Things that wait in pools are anonymous kernel objects and
//! vanish with the server; unused disk images are removed at the next start.

mod base;
mod child;
mod create;
mod destroy;
mod disk;
mod doors;
mod driver;
mod gate;
mod hibernate;
mod host_files;
mod layers;
mod live;
mod lock;
mod masks;
mod memory;
mod modules;
mod probe;
mod record;
mod rlimits;
mod seccomp;
mod skeleton;
mod snapshot;
mod spawn;
mod sys;
mod totals;
mod trash;
mod userns;
mod watch;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
pub(crate) use atoll_isolation::step;
use atoll_isolation::{Death, IsolationError};
use atoll_isolation_host::{Cgroups, Live, check_hostname, private_dir};
use atoll_isolation_storage::{Storage, StoredArtifacts, StoredVolumes};
use atoll_network::SlotPool;
use atoll_ready::Pool;
use atoll_witness::Witness;
use rustix::io::Errno;
use rustix::thread::ThreadNameSpaceType;

use disk::{Disks, ReadyDisks};
use doors::Doors;
use live::Instance;
use record::Records;
use skeleton::Skeleton;
use step::Step;
use trash::Trash;
use userns::{Ranges, UserNamespace};

/// Characters of [`ContainerConfig::instance`].
pub const INSTANCE_LEN: usize = 8;

/// Places where a test can stop or kill the driver, in the order they are passed. In builds with
/// debug assertions.
pub const FAILPOINTS: [&str; 19] = [
    "container::create::start",
    "container::create::directory",
    "container::create::ids",
    "container::create::disk",
    "container::create::cgroups",
    "container::create::socket",
    "container::create::process",
    "container::create::record",
    "container::hibernate::start",
    "container::hibernate::processes",
    "container::hibernate::cgroups",
    "container::hibernate::disk",
    "container::wake::start",
    "container::wake::disk",
    "container::wake::process",
    "container::destroy::start",
    "container::destroy::processes",
    "container::destroy::cgroups",
    "container::destroy::directory",
];

/// The same, for snapshots and for replacing a disk.
pub const SNAPSHOT_FAILPOINTS: [&str; 5] = [
    "container::snapshot::artifact",
    "container::snapshot::frozen",
    "container::snapshot::cloned",
    "container::replace::disk",
    "container::replace::destroyed",
];

/// How many things are kept ready. More makes bursts faster and costs memory: a disk 160 KiB on the
/// host's disk and a mounted file system, the others next to nothing.
#[derive(Debug, Clone, Copy)]
pub struct PoolSizes {
    /// Writable disks of the default size.
    pub disks: usize,
    /// User namespaces.
    pub user_namespaces: usize,
}

impl Default for PoolSizes {
    fn default() -> Self {
        Self { disks: 8, user_namespaces: 8 }
    }
}

/// What a driver is made of.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// Where it keeps its data. Only root may enter it; one driver at a time.
    pub dir: PathBuf,
    /// Names this installation among others on the host: eight lower-case hexadecimal digits.
    pub instance: String,
    /// The guest agent's program, statically linked.
    pub agent: &'static [u8],
    /// The program `atoll-run`, which needs nothing of the sandbox that it is shown to.
    pub run: &'static [u8],
    /// Where disks and snapshots lie.
    pub storage: Arc<Storage>,
    /// Network namespaces for sandboxes.
    pub slots: Arc<SlotPool>,
    /// How many things to keep ready.
    pub pools: PoolSizes,
    /// Tells the recorder what the host's kernel sees of sandboxes; or the reason why it cannot.
    pub witness: Result<Arc<Witness>, String>,
}

/// The driver. Dropping it leaves sandboxes running.
#[derive(Debug, Clone)]
pub struct ContainerIsolation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    records: Records,
    skeleton: Skeleton,
    doors: Doors,
    base: Arc<OwnedFd>,
    cgroups: Cgroups,
    storage: Arc<Storage>,
    volumes: StoredVolumes,
    ranges: Arc<Ranges>,
    userns: Pool<UserNamespace, IsolationError>,
    disks: Arc<Disks>,
    ready_disks: Arc<ReadyDisks>,
    pooled_disk_bytes: u64,
    slots: Arc<SlotPool>,
    seccomp: Arc<[libc::sock_filter]>,
    agent: Arc<OwnedFd>,
    live: Live<Instance>,
    trash: Trash,
    witness: Result<Arc<Witness>, String>,
    digests: lock::Digests,
}

impl ContainerIsolation {
    /// Opens the driver on a directory: finds the host's cgroups, prepares the files that sandboxes share, starts the
    /// pools, and removes files that an earlier process left unused. Blocks for some tens of milliseconds the first
    /// time. Sandboxes that run are left alone: see [`atoll_isolation::Lifecycle::adopt`].
    ///
    /// # Errors
    /// [`IsolationError::Unavailable`] when the host lacks something essential, [`IsolationError::Kernel`].
    pub fn open(config: ContainerConfig) -> Result<Self, IsolationError> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if config.instance.len() != INSTANCE_LEN || !config.instance.bytes().all(hex) {
            return Err(IsolationError::Unavailable(format!(
                "'{}' is no name of an installation: it has {INSTANCE_LEN} hexadecimal digits",
                config.instance
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(IsolationError::Unavailable("containers need a server that runs as root".to_owned()));
        }
        private_dir(&config.dir).step("make the data directory")?;
        let dir = config.dir.canonicalize().step("find the data directory")?;
        let records = Records::open(dir.join("sandboxes"))?;
        let scratch = dir.join("scratch");
        private_dir(&scratch).step("make the scratch directory")?;
        let sandboxes = records.list()?;
        let skeleton = Skeleton::open(&dir.join("skeleton"), sandboxes.is_empty())?;
        let doors = Doors::open(dir.join("doors"), config.run, sandboxes.is_empty())?;
        let taken = sandboxes.iter().filter_map(|id| records.of(id).first_id());
        let ranges = Arc::new(Ranges::new(&config.instance, taken));
        let pooled_disk_bytes = Resources::default().disk_bytes;
        let storage = config.storage;
        let disks = Disks::open(Arc::clone(&storage), dir.join("templates"), pooled_disk_bytes)?;
        let disks = Arc::new(disks);
        let ready_disks = Arc::new(disks.start_ready(config.pools.disks)?);
        let trash = Trash::open(
            dir.join("trash"),
            Arc::clone(&disks),
            Arc::clone(&ready_disks),
            Arc::clone(&storage),
        )?;
        let inner = Inner {
            records,
            skeleton,
            doors,
            base: Arc::new(base::make(path_text(&scratch)?)?),
            cgroups: Cgroups::open(&format!("atoll-{}", config.instance))?,
            userns: start_pool("atoll-userns", config.pools.user_namespaces, {
                let ranges = Arc::clone(&ranges);
                move || userns::make(&ranges)
            })?,
            ranges,
            ready_disks,
            disks,
            volumes: StoredVolumes::new(Arc::clone(&storage)),
            storage,
            pooled_disk_bytes,
            slots: config.slots,
            seccomp: seccomp::compile()?.into(),
            agent: Arc::new(spawn::agent_file(config.agent)?),
            live: Live::default(),
            trash,
            witness: config.witness,
            digests: lock::Digests::default(),
        };
        inner.hook();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The volumes that its sandboxes can have.
    #[must_use]
    pub fn volumes(&self) -> StoredVolumes {
        self.inner.volumes.clone()
    }

    /// Runs something that blocks on a thread meant for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        let inner = Arc::clone(&self.inner);
        let joined = tokio::task::spawn_blocking(move || work(&inner)).await;
        joined.map_err(std::io::Error::other).step("run a task")?
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.cgroups.close();
    }
}

/// A path as the kernel wants it.
fn path_text(path: &Path) -> Result<CString, IsolationError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(std::io::Error::other)
        .step("use the directory of sandboxes")
}

fn start_pool<T: Send + 'static>(
    name: &'static str,
    min: usize,
    make: impl Fn() -> Result<T, IsolationError> + Send + Sync + 'static,
) -> Result<Pool<T, IsolationError>, IsolationError> {
    Pool::start(name, min, make).step(format!("start the thread {name}"))
}

impl Inner {
    fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        if self.live.get(id).is_some_and(|instance| !instance.is_dead()) {
            return Ok(());
        }
        let process = self.records.of(id).read_process().ok_or(IsolationError::Gone)?;
        let instance = Instance::find(process)?.ok_or(IsolationError::Gone)?;
        if !self.cgroups.contains(id, process.pid) {
            return Err(IsolationError::Gone);
        }
        self.watch_again(id);
        self.thaw_left_over(id)?;
        self.live.insert(id, Arc::new(instance));
        Ok(())
    }

    /// Whether its disk is all there is of it.
    fn is_hibernated(&self, id: &SandboxId) -> bool {
        self.records.of(id).is_cleared()
            && self.storage.sandbox_disk(id).try_exists().is_ok_and(|there| there)
    }

    /// Bytes that a sandbox's disk takes on the host.
    fn disk_bytes(&self, id: &SandboxId) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.storage.sandbox_disk(id)).map_or(0, |meta| meta.blocks() * 512)
    }

    /// The artifacts, as all levels keep them.
    fn stored(&self) -> StoredArtifacts {
        StoredArtifacts::new(Arc::clone(&self.storage))
    }

    fn living(&self, id: &SandboxId) -> Result<Arc<Instance>, IsolationError> {
        self.live.get(id).filter(|instance| !instance.is_dead()).ok_or(IsolationError::Gone)
    }

    /// Sets the host name from a thread that ends with it: a thread of the runtime must not be left in a
    /// sandbox's namespace.
    fn rename(&self, id: &SandboxId, hostname: String) -> Result<(), IsolationError> {
        check_hostname(&hostname)?;
        let instance = self.living(id)?;
        let visit = move || {
            let uts = ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
            rustix::thread::move_into_thread_name_spaces(instance.pidfd(), uts)?;
            rustix::system::sethostname(hostname.as_bytes())
        };
        let visitor = std::thread::Builder::new().name("atoll-rename".to_owned()).spawn(visit);
        let ended = visitor.step("start the thread atoll-rename")?.join();
        match ended.unwrap_or(Err(Errno::IO)) {
            Err(Errno::SRCH) => Err(IsolationError::Gone),
            named => named.step("set the host name"),
        }
    }

    fn death(&self, id: &SandboxId, instance: &Instance) -> Death {
        let killed = match instance.reap() {
            Some(exit) => exit.signal == Some(libc::SIGKILL),
            // Another server's child: the kernel tells the status only to the parent.
            None => true,
        };
        let starved = killed && self.cgroups.oom_kills(id).is_ok_and(|kills| kills > 0);
        if starved { Death::OutOfMemory } else { Death::Exited }
    }
}
