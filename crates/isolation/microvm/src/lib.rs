//! The isolation level `microvm`: every sandbox has a kernel of its own, in a virtual machine of QEMU's type
//! `microvm`, run by the processor (KVM) or by software (TCG) on the same code path.
//!
//! # How a sandbox comes to be
//!
//! Machines are restored, not booted. For each size (memory, processors) one machine is booted once, up to the
//! point where its agent waits for a host (see the guest's `machine` module), and saved: its memory as a file, its
//! devices' state beside it. A sandbox is a VMM that maps this file copy-on-write and goes on from there, with an image
//! and a disk of its own behind devices that the saved machine has not used yet. Then the driver tells the machine
//! which sandbox it is.
//!
//! # Where things are
//!
//! [`kernel`] prepares the guest's kernel, `initramfs` the archive that it starts with, `files` the images, `vmm`
//! speaks to QEMU over `qmp`, [`launch`] jails it, `template` makes saved machines, `prepared` those of an image,
//! `create`, `freeze`, `hibernate` and `snapshot` are the life of a sandbox, `machine` is a live one, `memory` copies
//! it with its memory, `order` puts the disk of one that was cut off in order, `travel` takes it to another host, `mapped` finds that memory in a file, `throttle` limits how fast its disks are, `control` asks
//! it, `stream` connects to its agent, `record` reads and writes the files about each sandbox, `probe` has the checks
//! of `atoll doctor`.
//!
//! # What holds what
//!
//! The VMM process holds everything: memory, network slot, disk. The server has a pidfd, and finds the rest by the
//! sandbox's directory and cgroups.

mod clock;
mod control;
mod create;
mod driver;
mod files;
mod filter;
mod freeze;
mod hibernate;
mod initramfs;
pub mod kernel;
pub mod launch;
mod machine;
mod mapped;
mod memory;
mod order;
mod prepared;
mod probe;
mod qmp;
mod record;
mod snapshot;
mod stream;
mod template;
mod throttle;
mod travel;
mod vmm;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_core::id::SandboxId;
use atoll_core::spec::Accelerator;
pub(crate) use atoll_isolation::step;
use atoll_isolation::{IsolationError, Resource};
use atoll_isolation_host::resources::{self, sandboxes_in};
use atoll_isolation_host::{Cgroups, Live, private_dir};
use atoll_isolation_storage::filesystem::Templates;
use atoll_isolation_storage::{Storage, StoredArtifacts};
use atoll_network::SlotPool;

use kernel::Kernel;
use probe::Choice;
use record::Record;
use step::{Step, chain};

/// First user id of VMMs; each sandbox has one of its own. Below what the container level uses.
const FIRST_UID: u32 = 0x6fff_0000;
/// User ids of one installation.
const UIDS: u32 = 0xffff;
/// Apparent size of the disks that machines are saved with: larger than any that a sandbox gets, bytes.
const PLACEHOLDER_BYTES: u64 = 1 << 40;

/// Places where a test can kill the driver, in the order they are passed by a life of creation, standing still and a
/// snapshot of that, a copy with memory, pause with memory, waking and removal. In builds with debug assertions.
pub const FAILPOINTS: [&str; 26] = [
    "microvm::create::disk",
    "microvm::create::directory",
    "microvm::create::user",
    "microvm::launch::cgroups",
    "microvm::launch::vmm",
    "microvm::create::restored",
    "microvm::create::told",
    "microvm::create::throttled",
    "microvm::create::written",
    "microvm::snapshot::awake",
    "microvm::snapshot::lifted",
    "microvm::snapshot::still",
    "microvm::snapshot::halted",
    "microvm::snapshot::stopped",
    "microvm::snapshot::copied",
    "microvm::hibernate::still",
    "microvm::hibernate::stopped",
    "microvm::hibernate::saved",
    "microvm::hibernate::ended",
    "microvm::wake::start",
    "microvm::wake::read",
    "microvm::wake::forgotten",
    "microvm::wake::goes_on",
    "microvm::destroy::start",
    "microvm::destroy::ended",
    "microvm::destroy::disk",
];

/// What a machine takes on top of its sandbox's memory limit at most: its kernel, the agent, and the VMM itself.
/// Its cgroup ends there.
pub const OVERHEAD_MAX_BYTES: u64 = template::KERNEL_BYTES + template::STEP_BYTES + template::VMM_BYTES;

/// What a driver is made of.
#[derive(Debug, Clone)]
pub struct MicrovmConfig {
    /// Where it keeps its sandboxes. Only root may enter it; one driver at a time.
    pub dir: PathBuf,
    /// Where the driver keeps files that it can make again: the kernel, images, saved machines. Several drivers may
    /// share it.
    pub cache: PathBuf,
    /// Names this installation among others on the host.
    pub instance: String,
    /// The guest agent's program, statically linked.
    pub agent: &'static [u8],
    /// A program with its first arguments that calls [`launch::launch`] with its last one.
    pub launcher: Vec<PathBuf>,
    /// QEMU.
    pub qemu: PathBuf,
    /// How instructions are executed; `None`: the driver finds out by trying.
    pub accelerator: Option<Accelerator>,
    /// Where disks and snapshots lie.
    pub storage: Arc<Storage>,
    /// Network namespaces for sandboxes.
    pub slots: Arc<SlotPool>,
    /// Whether the driver makes machines ahead for images that are in use, in the background. The caller must close a
    /// driver that does.
    pub prepares: bool,
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
    placeholder: PathBuf,
    qemu_version: String,
    choice: OnceLock<Choice>,
    tsc_khz: u64,
    processor: String,
    cgroups: Cgroups,
    disks: Templates,
    live: Live<machine::Machine>,
    prepared: Mutex<prepared::Prepared>,
    uids: Mutex<BTreeSet<u32>>,
    /// Machines that are booted to be saved: no sandboxes.
    booting: Mutex<BTreeSet<SandboxId>>,
}

impl MicrovmIsolation {
    /// Opens the driver on a directory. Machines that run are left alone: see [`atoll_isolation::Lifecycle::adopt`]. Where the
    /// processor can virtualize it boots a machine to see whether that works, which takes up to twenty seconds the
    /// first time.
    ///
    /// # Errors
    /// [`IsolationError::Unavailable`] when no kernel is set up or QEMU is missing, [`IsolationError::Kernel`].
    pub async fn open(config: MicrovmConfig) -> Result<Self, IsolationError> {
        let opened = tokio::task::spawn_blocking(move || Inner::open(config)).await;
        let inner = Arc::new(opened.map_err(std::io::Error::other).step("run a task")??);
        let choice = match inner.config.accelerator {
            Some(accelerator) => Choice { accelerator, emulated: None, expected: false },
            None => inner.choose().await,
        };
        // No other task has the driver yet, so this is the first choice that is set.
        drop(inner.choice.set(choice));
        Ok(Self { inner })
    }

    /// Runs something that blocks on a thread meant for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        self.inner.blocking(work).await
    }
}

/// Whether a file is there and can be reached.
pub(crate) fn is_there(path: &Path) -> bool {
    path.try_exists().is_ok_and(|there| there)
}

/// What this host's processor is and can do, in the kernel's words: the lines of its first processor that do not change
/// with the load.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lasting = ["vendor_id", "cpu family", "model", "model name", "stepping", "flags"];
    let first = text.lines().take_while(|line| !line.is_empty());
    let name = |line: &str| line.split(':').next().unwrap_or_default().trim().to_owned();
    first.filter(|line| lasting.contains(&name(line).as_str())).collect::<Vec<_>>().join("\n")
}

/// Makes a directory that only root may enter; gives its path without links.
fn private(dir: &Path) -> Result<PathBuf, IsolationError> {
    private_dir(dir).step("make the data directory")?;
    dir.canonicalize().step("find the data directory")
}

/// The first line of what QEMU says about itself.
fn qemu_version(qemu: &Path) -> Result<String, IsolationError> {
    let output = std::process::Command::new(qemu).arg("--version").env_clear().output();
    let said = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let said = said.ok_or_else(|| {
        IsolationError::Unavailable(format!(
            "{} is missing or does not start: install qemu-system-x86",
            qemu.display()
        ))
    })?;
    let version = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned();
    probe::check_version(&version)?;
    Ok(version)
}

impl Inner {
    fn open(config: MicrovmConfig) -> Result<Self, IsolationError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(IsolationError::Unavailable("machines need an x86-64 host".to_owned()));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(IsolationError::Unavailable("machines need a server that runs as root".to_owned()));
        }
        let config = MicrovmConfig { dir: private(&config.dir)?, cache: private(&config.cache)?, ..config };
        private(&config.dir.join("sandboxes"))?;
        private(&config.dir.join("scratch"))?;
        let kernel =
            Kernel::open(&config.cache).map_err(|error| IsolationError::Unavailable(chain(&error)))?;
        for name in ["images", "templates", "initrds"] {
            private(&config.cache.join(name))?;
        }
        let bytes = initramfs::build(config.agent, &kernel.modules);
        let initrd = config.cache.join("initrds").join(&blake3::hash(&bytes).to_hex()[..32]);
        if !initrd.try_exists().step("look for the initramfs")? {
            // Other servers may be writing the same file: the last one to rename puts the same bytes there.
            let new = initrd.with_extension(format!("{:016x}", stream::random().step("choose a name")?));
            std::fs::write(&new, bytes)
                .and_then(|()| std::fs::rename(&new, &initrd))
                .step("write the initramfs")?;
        }
        let placeholder = config.cache.join("placeholder");
        let empty = File::options().create(true).truncate(false).write(true).open(&placeholder);
        empty.and_then(|file| file.set_len(PLACEHOLDER_BYTES)).step("make a placeholder for disks")?;
        template::sweep(&config.cache.join("templates")).step("look for machines that nobody finished")?;
        files::sweep(&config.cache.join("images")).step("look for images that are not needed")?;
        let inner = Self {
            qemu_version: qemu_version(&config.qemu)?,
            choice: OnceLock::new(),
            processor: processor(),
            tsc_khz: clock::tsc_khz(&config.cache.join("tsc_khz")).step("measure the clock")?,
            cgroups: Cgroups::open(&format!("atoll-{}-vm", config.instance))?,
            disks: Templates::open(config.dir.join("disks"))?,
            live: Live::default(),
            prepared: Mutex::default(),
            uids: Mutex::default(),
            booting: Mutex::default(),
            placeholder,
            initrd,
            kernel,
            config,
        };
        let sandboxes = sandboxes_in(&inner.records(), "").step("list the sandboxes")?;
        let taken = sandboxes.iter().filter_map(|id| inner.record(id).uid()).collect();
        *inner.uids() = taken;
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

    fn uids(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How machines are run: emulated until the driver has chosen.
    fn accelerator(&self) -> Accelerator {
        self.choice.get().map_or(Accelerator::Emulated, |choice| choice.accelerator)
    }

    /// Why machines are emulated, when they are although the configuration did not ask for it.
    fn emulated(&self) -> Option<&str> {
        self.choice.get()?.emulated.as_deref()
    }

    /// Whether this host's processor can run machines.
    fn expects_kvm(&self) -> bool {
        self.choice.get().is_some_and(|choice| choice.expected)
    }

    fn booting(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.booting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the directories of sandboxes are.
    fn records(&self) -> PathBuf {
        self.config.dir.join("sandboxes")
    }

    fn record(&self, id: &SandboxId) -> Record {
        Record::of(&self.records(), id)
    }

    /// Claims a user id for a sandbox's VMM, and writes it down.
    fn claim_uid(&self, record: &Record) -> Result<u32, IsolationError> {
        let mut taken = self.uids();
        let uid = (FIRST_UID..FIRST_UID + UIDS).find(|uid| !taken.contains(uid));
        let uid =
            uid.ok_or_else(|| IsolationError::Unavailable("all user ids of machines are taken".to_owned()))?;
        record.claim_uid(uid)?;
        taken.insert(uid);
        Ok(uid)
    }

    /// Everything that carries a sandbox's id.
    fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        resources::with_processes(&self.cgroups, self.parts()?)
    }

    /// The same, but for processes, which are in cgroups that are found.
    fn parts(&self) -> Result<Vec<Resource>, IsolationError> {
        let mut found = resources::parts(&self.cgroups, &self.records())?;
        found.extend(self.config.storage.machine_disks()?);
        let booting = self.booting().clone();
        found.retain(|resource| !booting.contains(&resource.sandbox));
        Ok(found)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.cgroups.close();
    }
}
