//! The life of an instance: made, taken up, measured, changed, ended.

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;

use crate::{Death, DiskIo, IsolationError, Plan, Usage};
#[cfg(doc)]
use crate::{DiskSource, StandingStill};
/// The life of an instance. See the crate for the contract.
#[async_trait]
pub trait Lifecycle: Send + Sync + std::fmt::Debug {
    /// Makes an instance and starts its guest agent. When this returns the guest accepts connections
    /// or is about to. On error everything made so far may still be there: call [`Self::destroy`].
    ///
    /// # Errors
    /// Any [`IsolationError`] but [`IsolationError::Gone`]; with [`DiskSource::WithMemory`]
    /// [`IsolationError::BadArtifact`] when the artifact has no memory, or none that can be used here.
    async fn create(&self, plan: &Plan) -> Result<(), IsolationError>;

    /// Takes up a live instance that an earlier driver made.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when its first process is not alive.
    async fn adopt(&self, id: &SandboxId) -> Result<(), IsolationError>;

    /// Waits until the instance dies. Returns at once when it is dead or unknown.
    async fn died(&self, id: &SandboxId) -> Death;

    /// Measures it. Of a hibernated one there is only the disk.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] or [`IsolationError::Kernel`].
    async fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError>;

    /// Only [`Usage::oom_kills`], for callers that ask often. Drivers override it where that is cheaper.
    ///
    /// # Errors
    /// As [`Self::usage`].
    async fn oom_kills(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        self.usage(id).await.map(|usage| usage.oom_kills)
    }

    /// What it has read and written. `None` at a level that does not count it, and while an instance is copied or
    /// stands still.
    async fn disk_io(&self, id: &SandboxId) -> Option<DiskIo> {
        let _ = id;
        None
    }

    /// Changes the limits of a live instance, but for the disk's size. It must not stand still: at some levels the
    /// driver tells the guest agent a part of the limits.
    ///
    /// # Errors
    /// [`IsolationError::Gone`], [`IsolationError::Unenforceable`] or [`IsolationError::Kernel`].
    async fn update(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError>;

    /// Whether a new instance has its host name, to the kernel and in its files, before its guest runs: then the caller
    /// need not tell the guest.
    fn names_new_ones(&self) -> bool {
        false
    }

    /// Gives a live instance another host name: the one that the kernel reports inside. The guest agent changes the
    /// files that name it (`configure`).
    ///
    /// # Errors
    /// [`IsolationError::Gone`], [`IsolationError::Unavailable`] for a name that cannot be one, or
    /// [`IsolationError::Kernel`].
    async fn rename(&self, id: &SandboxId, hostname: &str) -> Result<(), IsolationError>;

    /// Kills and removes everything that exists for this id. Succeeds when there is nothing.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`] when the kernel refuses a step; calling again continues.
    async fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError>;

    /// Makes an instance anew, with another disk: the processes in it end. Succeeds also when there is no instance of
    /// this id any more. Calls `committed` once the disk is made and before anything else: when this fails without
    /// having called it the instance is as it was, after it the instance is dead.
    ///
    /// # Errors
    /// As [`Self::create`], and [`IsolationError::NoArtifact`].
    async fn replace(&self, plan: &Plan, committed: Box<dyn FnOnce() + Send>) -> Result<(), IsolationError>;
}
