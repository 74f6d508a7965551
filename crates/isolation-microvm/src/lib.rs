//! The isolation level `microvm`: every sandbox has a kernel of its own, in a virtual machine of QEMU's type
//! `microvm`, run by the processor (KVM) or by software (TCG) on the same code path.
//!
//! # How a sandbox comes to be
//!
//! Machines are restored, not booted. For each image, memory size and kernel one machine is booted once, up to
//! the point where its agent waits for a host (see the guest's `machine` module), and saved: its memory as a
//! file, its devices' state beside it. A sandbox is a VMM that maps this file copy-on-write and goes on from
//! there, with a writable disk of its own. The first connection gives it its identity, clock and randomness.
//!
//! # Where things are
//!
//! [`kernel`] prepares the guest's kernel, `initramfs` what it starts with, `files` its disks, `vmm` speaks to
//! QEMU, [`launch`] jails it, `template` makes saved machines, `stream` connects to guests, `record` is what is
//! written down.

mod files;
mod initramfs;
pub mod kernel;
pub mod launch;
mod qmp;
mod record;
mod step;
mod stream;
mod template;
mod vmm;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::spec::{IsolationLevel, Resources};
use atoll_isolation::{
    Check, Death, GuestStream, Isolation, IsolationError, Plan, Resource, RootFs, Status, Usage,
};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use kernel::Kernel;
use record::{Process, Record, is_dead};
use step::Step;
use vmm::{Place, Start};
pub use vmm::Accelerator;

/// First user id of VMMs; each sandbox has one of its own. Below what the container level uses.
const FIRST_UID: u32 = 0x6fff_0000;
/// User ids of one installation.
const UIDS: u32 = 0xffff;
/// What a machine has on top of its sandbox's memory, for its kernel and the agent, bytes.
const KERNEL_BYTES: u64 = 96 << 20;
const MIB: u64 = 1 << 20;
/// How long a killed VMM may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// What a driver is made of.
#[derive(Debug, Clone)]
pub struct MicrovmConfig {
    /// Where it keeps its sandboxes. Only root may enter it; one driver at a time.
    pub dir: PathBuf,
    /// Where it keeps what can be made again: the kernel, images, saved machines. Several drivers may share it.
    pub cache: PathBuf,
    /// The guest agent's program, statically linked.
    pub agent: &'static [u8],
    /// A program with its first arguments that calls [`launch::launch`] with its last one.
    pub launcher: Vec<PathBuf>,
    /// QEMU.
    pub qemu: PathBuf,
    /// How instructions are executed.
    pub accelerator: Accelerator,
}

/// The driver. Dropping it leaves machines running.
#[derive(Debug, Clone)]
pub struct MicrovmIsolation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: MicrovmConfig,
    kernel: Kernel,
    initrd: PathBuf,
    qemu_version: String,
    tsc_khz: u64,
    live: Mutex<BTreeMap<SandboxId, Arc<OwnedFd>>>,
    uids: Mutex<BTreeSet<u32>>,
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

impl MicrovmIsolation {
    /// Opens the driver on a directory. Machines that run are left alone: see [`Isolation::adopt`].
    ///
    /// # Errors
    /// [`IsolationError::Unavailable`] when no kernel is set up or QEMU is missing, [`IsolationError::Kernel`].
    pub fn open(config: MicrovmConfig) -> Result<Self, IsolationError> {
        if !rustix::process::geteuid().is_root() {
            return Err(IsolationError::Unavailable("machines need a server that runs as root".to_owned()));
        }
        let config = MicrovmConfig { dir: private(&config.dir)?, cache: private(&config.cache)?, ..config };
        private(&config.dir.join("sandboxes"))?;
        private(&config.dir.join("scratch"))?;
        for name in ["images", "disks", "templates", "initrds"] {
            private(&config.cache.join(name))?;
        }
        let kernel = Kernel::open(&config.cache.join("kernel"))
            .map_err(|error| IsolationError::Unavailable(chain(&error)))?;
        let bytes = initramfs::build(config.agent, &kernel.modules);
        let initrd = config.cache.join("initrds").join(&blake3::hash(&bytes).to_hex()[..32]);
        if !initrd.exists() {
            let new = initrd.with_extension(std::process::id().to_string());
            std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, &initrd)).step("write the initramfs")?;
        }
        let inner = Inner {
            qemu_version: qemu_version(&config.qemu)?,
            tsc_khz: tsc_khz(),
            live: Mutex::default(),
            uids: Mutex::default(),
            initrd,
            kernel,
            config,
        };
        let taken = inner.sandboxes()?.iter().filter_map(|id| inner.record(id).uid()).collect();
        *inner.uids() = taken;
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// A directory that only root may enter.
fn private(dir: &Path) -> Result<PathBuf, IsolationError> {
    DirBuilder::new().mode(0o700).recursive(true).create(dir).step("make the data directory")?;
    dir.canonicalize().step("find the data directory")
}

fn qemu_version(qemu: &Path) -> Result<String, IsolationError> {
    let output = std::process::Command::new(qemu).arg("--version").env_clear().output();
    let said = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let said = said.ok_or_else(|| {
        IsolationError::Unavailable(format!("{} is missing or does not start: install qemu-system-x86", qemu.display()))
    })?;
    Ok(String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned())
}

/// The frequency of the host's time stamp counter, as the kernel tells it.
fn tsc_khz() -> u64 {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mhz = info.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split(':').nth(1)?.trim().parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few millions")]
    mhz.map_or(2_000_000, |mhz| (mhz * 1000.0) as u64)
}

impl Inner {
    fn live(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<OwnedFd>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uids(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, id: &SandboxId) -> Record {
        Record::of(&self.config.dir.join("sandboxes"), id)
    }

    fn sandboxes(&self) -> Result<Vec<SandboxId>, IsolationError> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(self.config.dir.join("sandboxes")).step("list the sandboxes")? {
            let name = entry.step("list the sandboxes")?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<SandboxId>().ok()));
        }
        Ok(ids)
    }

    fn claim_uid(&self) -> Result<u32, IsolationError> {
        let mut taken = self.uids();
        let uid = (FIRST_UID..FIRST_UID + UIDS).find(|uid| !taken.contains(uid));
        let uid = uid.ok_or_else(|| IsolationError::Unavailable("all user ids of machines are taken".to_owned()))?;
        taken.insert(uid);
        Ok(uid)
    }

    fn living(&self, id: &SandboxId) -> Result<Arc<OwnedFd>, IsolationError> {
        self.live().get(id).filter(|pidfd| !is_dead(pidfd)).cloned().ok_or(IsolationError::Gone)
    }

    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        let RootFs::Layers(layers) = &plan.root else {
            return Err(IsolationError::BadRoot(
                "the image 'host' is a view of the host's files, which a machine has none of: use an OCI image".to_owned(),
            ));
        };
        let (model, saved) = self.template(layers, &plan.resources).await?;
        let record = self.record(&plan.id);
        let uid = self.claim_uid()?;
        if let Err(error) = record.create(uid) {
            self.uids().remove(&uid);
            return Err(error);
        }
        files::disk(&self.config.cache.join("disks"), plan.resources.disk_bytes, &record.disk())?;
        std::os::unix::fs::chown(record.disk(), Some(uid), Some(uid)).step("give a disk to a VMM")?;
        let place = Place {
            disk: record.disk(),
            saved,
            run: record.run(),
            scratch: self.config.dir.join("scratch"),
            pid_file: record.pid_file(),
            log: record.log(),
            uid,
            cgroups: Vec::new(),
            netns: None,
        };
        let pid = vmm::start(&self.config.launcher, &model, &place, Start::Restore).await?;
        let process = Process::read(pid).step("read the start time of a VMM")?;
        let pidfd = process.open().ok_or(IsolationError::Gone)?;
        self.live().insert(plan.id.clone(), Arc::new(pidfd));
        let mut qmp = vmm::monitor(&place).await?;
        vmm::restore(&mut qmp).await?;
        record.write_process(process)
    }

    fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        if self.living(id).is_ok() {
            return Ok(());
        }
        let process = self.record(id).read_process().ok_or(IsolationError::Gone)?;
        let pidfd = process.open().ok_or(IsolationError::Gone)?;
        self.live().insert(id.clone(), Arc::new(pidfd));
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let record = self.record(id);
        let known = self.live().remove(id);
        let cut_off = || {
            let process = record.vmm().and_then(|pid| Process::read(pid).ok())?;
            let ours = std::fs::metadata(format!("/proc/{}", process.pid)).ok()?;
            // A process of that number which runs as the sandbox's user is its VMM.
            (Some(std::os::unix::fs::MetadataExt::uid(&ours)) == record.uid()).then(|| process.open()).flatten().map(Arc::new)
        };
        if let Some(pidfd) = known.or_else(cut_off) {
            // Dead already is fine.
            let _ = pidfd_send_signal(pidfd.as_fd(), Signal::KILL);
            tokio::time::timeout(END_TIMEOUT, ended(&pidfd))
                .await
                .map_err(|_late| std::io::Error::from(std::io::ErrorKind::TimedOut))
                .step("see a killed VMM end")??;
        }
        let uid = record.uid();
        match std::fs::remove_dir_all(&record.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).step("remove a sandbox's directory"),
            _ => {}
        }
        if let Some(uid) = uid {
            self.uids().remove(&uid);
        }
        Ok(())
    }

    fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        drop(self.living(id)?);
        Ok(Usage { disk_bytes: self.record(id).disk_bytes(), ..Usage::default() })
    }

    fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        let mut found = Vec::new();
        for sandbox in self.sandboxes()? {
            let record = self.record(&sandbox);
            if let Some(pid) = record.vmm().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
                found.push(Resource { sandbox: sandbox.clone(), kind: "process", name: pid.to_string() });
            }
            found.push(Resource { sandbox, kind: "directory", name: record.dir.display().to_string() });
        }
        found.sort();
        Ok(found)
    }
}

/// Waits for a process's end, and takes its exit status if it was our child.
async fn ended(pidfd: &OwnedFd) -> Result<(), IsolationError> {
    let watched = watch(pidfd).step("watch a VMM")?;
    watched.readable().await.map(drop).step("watch a VMM")?;
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    Ok(())
}

#[expect(unsafe_code, reason = "registers a descriptor with the runtime")]
fn watch(pidfd: &OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    let pidfd = pidfd.try_clone()?;
    // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
    unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.map_err(Into::into)
}

#[async_trait]
impl Isolation for MicrovmIsolation {
    fn level(&self) -> IsolationLevel {
        IsolationLevel::Microvm
    }

    async fn doctor(&self) -> Vec<Check> {
        vec![Check {
            name: "microvm".to_owned(),
            status: Status::Ok,
            detail: format!(
                "{}, kernel {}, {}",
                self.inner.qemu_version,
                self.inner.kernel.release,
                self.inner.config.accelerator.as_str()
            ),
            hint: None,
        }]
    }

    async fn create(&self, plan: &Plan) -> Result<(), IsolationError> {
        self.inner.create(plan).await
    }

    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError> {
        self.inner.adopt(id)
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError> {
        drop(self.inner.living(id)?);
        let socket = self.inner.record(id).run().join(vmm::GUEST_SOCKET);
        let port = UnixStream::connect(socket).await.step("connect to a machine's port")?;
        Ok(Box::new(stream::open(port, id).await.step("connect to the guest agent")?))
    }

    async fn died(&self, id: &SandboxId) -> Death {
        let Some(pidfd) = self.inner.live().get(id).cloned() else { return Death::Exited };
        if let Err(error) = ended(&pidfd).await {
            tracing::error!(%id, error = chain(&error), "cannot watch a VMM; taking it for dead");
        }
        Death::Exited
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        self.inner.usage(id)
    }

    async fn update(&self, id: &SandboxId, _resources: &Resources) -> Result<(), IsolationError> {
        drop(self.inner.living(id)?);
        Err(IsolationError::Unenforceable("the limits of a machine cannot change while it runs".to_owned()))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        self.inner.destroy(id).await
    }

    async fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        self.inner.scan()
    }
}
