//! The seam between the engine and the kernel: what every isolation level does.
//!
//! A driver makes, finds, measures and destroys instances; the engine does what happens *inside* an instance over the
//! guest protocol, on the stream that [`Gates::connect`] gives.
//!
//! The engine calls the driver of a level through one trait for each concern: [`Lifecycle`], [`StandingStill`],
//! [`Artifacts`], [`Gates`]. [`Isolation`] is all of them, and adds what concerns the host.
//!
//! # Contract (kept by the conformance suite)
//!
//! 1. **An instance outlives its driver.** Dropping the driver, or `kill -9` of the process, leaves
//!    running instances running; [`Lifecycle::adopt`] of a new driver on the same directory finds them.
//! 2. **Everything carries the sandbox id.** [`Lifecycle::destroy`] removes everything that exists for an id, from any
//!    half-made state, any number of times. It is the undo of every step of `create`.
//! 3. **Nothing else is touched.** [`Isolation::scan`] lists only what this installation made.
//! 4. **Standing still loses nothing.** A frozen instance goes on after the thaw as if no time had passed. A hibernated
//!    one keeps its disk, byte for byte, and nothing else: no process, no cgroup, no mount, no memory.
//! 5. **Limits are enforced or refused**, never ignored: [`IsolationError::Unenforceable`].

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use atoll_core::id::{ExecId, SandboxId, SnapshotId};
use atoll_core::machine::{MemoryNeeds, Platform};
use atoll_core::snapshot::CopyMethod;
use atoll_core::spec::{Accelerator, IsolationLevel, Resources};
use tokio::io::{AsyncRead, AsyncWrite};

mod artifacts;
#[cfg(feature = "conformance")]
pub mod conformance;
mod doctor;
mod execution;
#[cfg(feature = "fake")]
pub mod fake;
mod gate;
mod host_disk;
pub mod layers;
mod lifecycle;
pub mod sparse;
mod standing_still;
pub mod step;
pub mod volumes;

pub use artifacts::Artifacts;
pub use doctor::{Check, Status};
pub use execution::{Execution, no_execution_policy};
pub use gate::{Attribution, Gate, Gates, Keeper, Original};
pub use host_disk::{DiskSpace, HostDisk};
pub use layers::PlannedLayer;
pub use lifecycle::Lifecycle;
pub use standing_still::StandingStill;
pub use volumes::PlannedVolume;

/// A byte stream to a guest agent.
pub trait GuestStream: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug> GuestStream for T {}

/// What the root file system is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootFs {
    /// The host's `/usr`, read-only, with synthesised system files: the image `host`.
    Host,
    /// Prepared layer directories of an image, lowest first. Owned by real root, ids as in the image.
    Layers(Vec<PathBuf>),
}

/// What the writable disk begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DiskSource {
    /// Nothing.
    #[default]
    Empty,
    /// The disk of an artifact: the instance's disk is a clone of it, grown to the size that was asked for. The root
    /// must be the one that the artifact was taken from.
    Artifact(SnapshotId),
    /// The disk of an artifact itself, grown in the same way. The artifact has none afterwards, whether the instance can be
    /// made or not: for an artifact from which nothing else is going to be made.
    Moved(SnapshotId),
    /// As with [`Self::Artifact`], and the instance goes on from the artifact's memory: the processes that ran when it was taken, in an
    /// instance that has another name, other random numbers and the right time. Limits are those of then, or less;
    /// the disk has the same size. The guest knows none of these processes as an exec, but for the one exec that may be
    /// taken over.
    WithMemory(SnapshotId, Option<CarriedExec>),
    /// The disk and the memory of this same instance, which another host hibernated: an artifact from
    /// [`Artifacts::write_artifact`] and [`Artifacts::write_artifact_memory`]. It goes on as after
    /// [`StandingStill::wake`]: nothing inside is told that it is another.
    Asleep(SnapshotId),
}

/// What an instance goes on from that was woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Woken {
    /// Its memory and its disk: its processes go on.
    Memory,
    /// Its disk. There was no memory of it.
    Disk,
    /// Its disk, although there was memory of it: that could not be used, for this reason, and is gone.
    DiskInstead(String),
}

/// The memory of a hibernated instance.
#[derive(Debug)]
pub struct HibernatedMemory {
    /// It, for reading: a sparse file.
    pub file: File,
    /// What a host must have to use it.
    pub needs: MemoryNeeds,
}

/// An exec in an artifact's memory that goes on as one of the instance. The instance has the output that was not
/// acknowledged when the artifact was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedExec {
    /// Its id in the artifact.
    pub was: ExecId,
    /// Its id in the instance.
    pub is: ExecId,
}

/// Sizes of an artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArtifactUsage {
    /// The disk as a sandbox sees it, bytes.
    pub disk_bytes: u64,
    /// What it takes on the host, bytes. Clones share it with what they come from and count it in full.
    pub stored_bytes: u64,
}

/// The result of taking a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its sizes.
    pub usage: ArtifactUsage,
    /// How long the instance could not write.
    pub paused: Duration,
    /// How its disk came about.
    pub method: CopyMethod,
}

/// Everything a driver needs to make one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The sandbox; part of the name of everything that is made.
    pub id: SandboxId,
    /// The root file system.
    pub root: RootFs,
    /// Limits.
    pub resources: Resources,
    /// Host name inside.
    pub hostname: String,
    /// What its disk begins with.
    pub disk: DiskSource,
    /// Volumes to mount in it.
    pub volumes: Vec<PlannedVolume>,
    /// Which programs may run in it.
    pub execution: Execution,
    /// Agent layers to mount in it.
    pub layers: Vec<PlannedLayer>,
}

/// Why an instance ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Death {
    /// Its first process (or its virtual machine) is gone.
    Exited,
    /// The kernel killed its first process because memory ran out.
    OutOfMemory,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exited => "its guest agent ended",
            Self::OutOfMemory => "its guest agent was killed because the sandbox was out of memory",
        })
    }
}

/// What an instance uses, seen from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since it was made, microseconds.
    pub cpu_us: u64,
    /// Memory now, bytes.
    pub memory_bytes: u64,
    /// Highest memory so far, bytes.
    pub memory_peak_bytes: u64,
    /// Processes and threads now.
    pub pids: u32,
    /// Times the kernel killed something in it because memory ran out.
    pub oom_kills: u64,
    /// Space its writable disk takes on the host, bytes.
    pub disk_bytes: u64,
}

/// What an instance has read from its disks and written to them since it was last started: a wake begins at zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskIo {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Something on the host that carries a sandbox id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What it is: `process`, `cgroup`, `directory`, `mount`, …
    pub kind: &'static str,
    /// Its name on the host: a path, a pid.
    pub name: String,
}

/// Why a driver could not.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// There is no live instance of this id.
    #[error("there is no live instance")]
    Gone,
    /// There is no artifact of this id.
    #[error("there is no such artifact")]
    NoArtifact,
    /// What an artifact holds cannot be used; the text says why.
    #[error("{0}")]
    BadArtifact(String),
    /// This host cannot run this level at all.
    #[error("{0}")]
    Unavailable(String),
    /// A limit that was asked for cannot be enforced on this host.
    #[error("{0}")]
    Unenforceable(String),
    /// A policy that was asked for cannot be enforced at this level or on this host.
    #[error("{0}")]
    UnenforceablePolicy(String),
    /// A policy names what this sandbox's image does not have, or contradicts itself there; the text names the field.
    #[error("{0}")]
    BadPolicy(String),
    /// This level, or this host, cannot pause like that; says what is in the way.
    #[error("{0}")]
    CannotPause(String),
    /// The host's disk, or another host-wide resource, is exhausted.
    #[error("{what}")]
    HostFull {
        /// Which one.
        what: String,
        /// The kernel's word.
        #[source]
        source: std::io::Error,
    },
    /// The image's root cannot be used: a mount point is missing or something stands in its way.
    #[error("the image cannot be used as a root: {0}")]
    BadRoot(String),
    /// A call to the kernel failed; `step` says which.
    #[error("failed to {step}")]
    Kernel {
        /// What was being done.
        step: String,
        /// The kernel's word.
        #[source]
        source: std::io::Error,
    },
}

/// The error of a level that cannot go on from an artifact's memory, nor put memory into one.
#[must_use]
pub fn no_memory(level: IsolationLevel) -> IsolationError {
    let why = format!(
        "sandboxes of the isolation level '{level}' cannot be copied with their memory, only with their disk"
    );
    IsolationError::Unavailable(why)
}

/// Refuses limits of disk I/O, for a level whose disks are file systems of the host's kernel. A cgroup's limit would
/// hold only for reads, and for writes past the cache: the kernel itself writes out cached data, as fast as it can.
///
/// # Errors
/// [`IsolationError::Unenforceable`] when such a limit is among these.
pub fn no_io_limits(resources: &Resources, level: IsolationLevel) -> Result<(), IsolationError> {
    if !resources.limits_io() {
        return Ok(());
    }
    Err(IsolationError::Unenforceable(format!(
        "disk I/O has no limit at the isolation level '{level}': what is written through the host's cache would get past it"
    )))
}

/// The host's memory, and how busy its processors are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostLoad {
    /// Its memory, bytes.
    pub memory_total_bytes: Option<u64>,
    /// For what part of the last ten seconds a process waited for a processor, thousandths.
    pub cpu_pressure: Option<u32>,
}

/// One isolation level on this host. See the module for the contract.
#[async_trait]
pub trait Isolation: Lifecycle + StandingStill + Artifacts + Gates {
    /// Which level this is.
    fn level(&self) -> IsolationLevel;

    /// What executes its machines; `None` at a level without machines. The same as long as the driver is open.
    fn accelerator(&self) -> Option<Accelerator> {
        None
    }

    /// What it runs machines with; `None` at a level without machines. The same as long as the driver is open.
    fn platform(&self) -> Option<Platform> {
        None
    }

    /// What this host enforces, for `atoll doctor`. Probes anew each time.
    async fn doctor(&self) -> Vec<Check>;

    /// Whether there can be instances with these limits at all. Making, waking or changing one refuses the same.
    ///
    /// # Errors
    /// [`IsolationError::Unenforceable`]: which limit, and why not.
    fn check_limits(&self, resources: &Resources) -> Result<(), IsolationError>;

    /// Whether programs can be held back and told apart here as this says; [`IsolationError::UnenforceablePolicy`] says why not.
    fn check_execution(&self, execution: &Execution) -> Result<(), IsolationError> {
        no_execution_policy(execution, self.level())
    }

    /// Sees to it that in a live instance only these programs start from now on; this replaces an earlier policy, also
    /// one that an earlier server set. Processes that run go on. Idempotent. Fails as [`Self::check_execution`], and
    /// with [`IsolationError::BadPolicy`] for programs that the image does not have.
    async fn set_execution(&self, id: &SandboxId, execution: &Execution) -> Result<(), IsolationError> {
        let _ = id;
        self.check_execution(execution)
    }

    /// Whether instances can have volumes; [`IsolationError::Unenforceable`] says why not.
    fn check_volumes(&self) -> Result<(), IsolationError> {
        Ok(())
    }

    /// Whether instances can have agent layers; [`IsolationError::UnenforceablePolicy`] says why not.
    fn check_layers(&self) -> Result<(), IsolationError> {
        Err(layers::no_layers(self.level()))
    }

    /// Sees to it that a live instance, which may be frozen, has these agent layers and no others. Its processes and
    /// files stay as they are: files that are open in a layer that goes stay open. Gives `false` where the instance
    /// gets the layers when it is next started. Idempotent. Fails as [`Self::check_layers`], with
    /// [`IsolationError::BadPolicy`] when a file inside is in the way.
    async fn set_layers(&self, id: &SandboxId, layers: &[PlannedLayer]) -> Result<bool, IsolationError> {
        let _ = id;
        if !layers.is_empty() {
            self.check_layers()?;
        }
        Ok(false)
    }

    /// Tells the driver that the exec of this name, which the guest agent starts next, begins in this profile of its
    /// instance. The caller calls this before it tells the agent, and takes it back with [`Self::exec_started`] once
    /// the agent has answered.
    ///
    /// # Errors
    /// [`IsolationError::UnenforceablePolicy`] where the host's kernel cannot tell its processes from others.
    fn exec_starts(&self, id: &SandboxId, exec: &str, profile: &str) -> Result<(), IsolationError> {
        let _ = (id, exec);
        let why = format!("nobody can tell the processes of the profile '{profile}' from others here");
        Err(IsolationError::UnenforceablePolicy(why))
    }

    /// The exec of this name has begun, or will not.
    fn exec_started(&self, id: &SandboxId, exec: &str) {
        let _ = (id, exec);
    }

    /// Memory of the host that programs can have without anything being swapped out, bytes; `None` when unknown.
    async fn memory_available(&self) -> Option<u64>;

    /// The host's memory and load, as far as they are known.
    async fn host_load(&self) -> HostLoad {
        HostLoad::default()
    }

    /// Everything this installation has on the host that carries a sandbox id.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    async fn scan(&self) -> Result<Vec<Resource>, IsolationError>;

    /// The sandboxes that have anything on the host: the ids that [`Self::scan`] lists, without a look at each process.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    async fn sandboxes(&self) -> Result<BTreeSet<SandboxId>, IsolationError> {
        Ok(self.scan().await?.into_iter().map(|resource| resource.sandbox).collect())
    }

    /// Ends the driver's background tasks. Instances go on. The caller calls nothing else afterwards.
    async fn close(&self) {}
}
