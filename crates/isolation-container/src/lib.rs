//! The isolation level `container`: Linux namespaces, an overlay on idmapped layers, cgroups of either
//! version, seccomp, and a user namespace of its own for every sandbox.
//!
//! # Where things are
//!
//! [`create`](crate) makes an instance step by step, `child` is what its first process does before it becomes
//! the guest agent, `destroy` removes and scans, `record` is what is written down, `cgroup`/`layout`,
//! `disk`, `userns` and `skeleton` are the parts it is made of, `probe` is what `atoll doctor` tries.
//!
//! # What outlives the server, and what does not
//!
//! A sandbox's processes hold everything they need: namespaces, mounts and through them the loop device. The
//! server holds only a pidfd and what is in [`record`](crate). Things that wait in pools are anonymous kernel
//! objects and vanish with the server; unused disk images are removed at the next start.

mod cgroup;
mod child;
mod create;
mod destroy;
mod disk;
mod hibernate;
mod layout;
mod live;
mod probe;
mod record;
mod seccomp;
mod skeleton;
mod spawn;
mod step;
mod sys;
mod trash;
mod userns;

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::{IsolationLevel, Resources};
use atoll_isolation::{Check, Death, GuestStream, Isolation, IsolationError, Plan, Resource, Usage};
use atoll_network::SlotPool;
use atoll_ready::Pool;
use tokio::net::UnixStream;

use cgroup::Cgroups;
use disk::{Disk, Disks};
use live::{Instance, Live};
use record::Records;
use skeleton::Skeleton;
use step::Step;
use trash::Trash;
use userns::{Ranges, UserNamespace};

/// Characters of [`ContainerConfig::instance`].
pub const INSTANCE_LEN: usize = 8;

/// Places where a test can stop or kill the driver, in the order they are passed. Compiled in with the
/// feature `failpoints`.
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
    /// Network namespaces for sandboxes.
    pub slots: Arc<SlotPool>,
    /// How many things to keep ready.
    pub pools: PoolSizes,
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
    scratch: CString,
    cgroups: Cgroups,
    ranges: Arc<Ranges>,
    userns: Pool<UserNamespace, IsolationError>,
    disks: Arc<Disks>,
    ready_disks: Pool<Disk, IsolationError>,
    pooled_disk_bytes: u64,
    slots: Arc<SlotPool>,
    seccomp: Arc<[libc::sock_filter]>,
    agent: Arc<OwnedFd>,
    live: Live,
    trash: Trash,
}

impl ContainerIsolation {
    /// Opens the driver on a directory: finds the host's cgroups, prepares what sandboxes share, starts the
    /// pools, and clears away what an earlier process left unused. Blocks for some tens of
    /// milliseconds the first time. Sandboxes that run are left alone: see [`Isolation::adopt`].
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
        record::private_dir(&config.dir).step("make the data directory")?;
        let dir = config.dir.canonicalize().step("find the data directory")?;
        let records = Records::open(dir.join("sandboxes"))?;
        let scratch = dir.join("scratch");
        record::private_dir(&scratch).step("make the scratch directory")?;
        let sandboxes = records.list()?;
        let skeleton = Skeleton::open(&dir.join("skeleton"), sandboxes.is_empty())?;
        let taken = sandboxes.iter().filter_map(|id| records.of(id).first_id());
        let ranges = Arc::new(Ranges::new(&config.instance, taken));
        let pooled_disk_bytes = Resources::default().disk_bytes;
        let disks = Arc::new(Disks::open(dir.join("disks"), pooled_disk_bytes)?);
        let trash = Trash::open(dir.join("trash"), Arc::clone(&disks))?;
        let inner = Inner {
            records,
            skeleton,
            scratch: create::scratch_path(&scratch)?,
            cgroups: Cgroups::open(&config.instance)?,
            userns: start_pool("atoll-userns", config.pools.user_namespaces, {
                let ranges = Arc::clone(&ranges);
                move || userns::make(&ranges)
            })?,
            ranges,
            ready_disks: start_pool("atoll-disks", config.pools.disks, {
                let disks = Arc::clone(&disks);
                move || disks.make(pooled_disk_bytes)
            })?,
            disks,
            pooled_disk_bytes,
            slots: config.slots,
            seccomp: seccomp::compile()?.into(),
            agent: Arc::new(spawn::agent_file(config.agent)?),
            live: Live::default(),
            trash,
        };
        Ok(Self { inner: Arc::new(inner) })
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
        self.live.insert(id, instance);
        Ok(())
    }

    fn living(&self, id: &SandboxId) -> Result<Arc<Instance>, IsolationError> {
        self.live.get(id).filter(|instance| !instance.is_dead()).ok_or(IsolationError::Gone)
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

#[async_trait]
impl Isolation for ContainerIsolation {
    fn level(&self) -> IsolationLevel {
        IsolationLevel::Container
    }

    async fn doctor(&self) -> Vec<Check> {
        self.blocking(|inner| Ok(probe::checks(inner))).await.unwrap_or_default()
    }

    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let plan = plan.clone();
        self.blocking(move |inner| inner.create(&plan)).await
    }

    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.adopt(&id)).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        self.inner.living(id)?;
        // The descriptor names the socket itself: whatever happens to its path, nothing else is reached.
        let socket = self.inner.records.of(id).socket()?;
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        match UnixStream::connect(path).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Err(IsolationError::Gone),
            Err(error) => Err(error).step("connect to the guest agent"),
        }
    }

    async fn died(&self, id: &SandboxId) -> Death {
        let Some(instance) = self.inner.live.get(id) else { return Death::Exited };
        if let Err(error) = instance.ended().await {
            tracing::error!(%id, %error, "cannot watch a sandbox's process; taking it for dead");
        }
        self.inner.death(id, &instance)
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            let record = inner.records.of(&id);
            let disk_bytes = record.disk_bytes();
            match inner.living(&id) {
                Ok(_) => Ok(Usage { disk_bytes, ..inner.cgroups.usage(&id)? }),
                Err(_) if record.is_hibernated() => Ok(Usage { disk_bytes, ..Usage::default() }),
                Err(gone) => Err(gone),
            }
        })
        .await
    }

    async fn oom_kills(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        // One small read of a file in memory: not worth another thread.
        self.inner.cgroups.oom_kills(id)
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            inner.living(&id)?;
            inner.cgroups.freeze(&id)
        })
        .await
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        // One small write to a file in memory, for which nothing waits: not worth another thread.
        self.inner.living(id)?;
        self.inner.cgroups.thaw(id)
    }

    async fn reclaim(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| {
            inner.living(&id)?;
            inner.cgroups.reclaim(&id)
        })
        .await
    }

    async fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.hibernate(&id, mode)).await
    }

    async fn wake(&self, plan: &Plan) -> Result<(), IsolationError> {
        let plan = plan.clone();
        self.blocking(move |inner| inner.wake(&plan)).await
    }

    async fn memory_available(&self) -> Option<u64> {
        hibernate::memory_available()
    }

    async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        let (id, resources) = (id.clone(), *resources);
        self.blocking(move |inner| {
            inner.living(&id)?;
            inner.cgroups.limit(&id, &resources)
        })
        .await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let id = id.clone();
        self.blocking(move |inner| inner.destroy(&id)).await
    }

    async fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        self.blocking(Inner::scan).await
    }
}
