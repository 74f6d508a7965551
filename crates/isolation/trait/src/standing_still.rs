//! Instances that stand still: frozen in memory, hibernated on disk.

use std::fs::File;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;

#[cfg(doc)]
use crate::Lifecycle;
use crate::{HibernatedMemory, IsolationError, Plan, Woken};
/// Instances that stand still. See the crate for the contract.
#[async_trait]
pub trait StandingStill: Send + Sync + std::fmt::Debug {
    /// Stops every process where it is; returns when all of them stand still. Idempotent.
    ///
    /// # Errors
    /// [`IsolationError::Gone`], [`IsolationError::CannotPause`] or [`IsolationError::Kernel`]; then it runs.
    async fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError>;

    /// Lets every process go on. Idempotent, and cheap: clients' calls wait for it.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] or [`IsolationError::Kernel`].
    async fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError>;

    /// Takes from a frozen instance memory that it can do without; gives how many bytes those were. May take as long as
    /// writing that much to disk.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] or [`IsolationError::Kernel`].
    async fn reclaim(&self, id: &SandboxId) -> Result<u64, IsolationError>;

    /// Whether an instance can be put to disk with its memory ([`PauseMode::Memory`]).
    ///
    /// # Errors
    /// [`IsolationError::CannotPause`]: what is in the way.
    fn memory_pause(&self) -> Result<(), IsolationError>;

    /// Ends an instance and keeps what [`Self::wake`] needs to start it again: with [`PauseMode::Memory`] its
    /// processes too, with [`PauseMode::Filesystem`] its disk only. Everything else of it is gone when this returns.
    /// Idempotent, from any half-made state of itself or of [`Self::wake`], of which it is the undo.
    ///
    /// # Errors
    /// [`IsolationError::CannotPause`]: nothing was done. [`IsolationError::Gone`] when there is no disk.
    /// [`IsolationError::Kernel`] when the kernel refuses a step; calling again continues.
    async fn hibernate(&self, id: &SandboxId, mode: PauseMode) -> Result<(), IsolationError>;

    /// The disk of an instance that is hibernated, for reading: a sparse file, in which nothing changes before
    /// [`Self::wake`].
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when it is not hibernated, or there is no disk; [`IsolationError::Kernel`].
    async fn hibernated_disk(&self, id: &SandboxId) -> Result<File, IsolationError>;

    /// The memory of an instance that is hibernated with it, which would be woken by this plan: of the same moment as
    /// [`Self::hibernated_disk`], and unchanged as long as that. `None` when no memory was kept.
    ///
    /// # Errors
    /// [`IsolationError::BadArtifact`] when no host could use it, not even this one; [`IsolationError::Gone`] when the
    /// instance is not hibernated; [`IsolationError::Kernel`].
    async fn hibernated_memory(&self, plan: &Plan) -> Result<Option<HibernatedMemory>, IsolationError> {
        let _ = plan;
        Ok(None)
    }

    /// Starts a hibernated instance again, as [`Lifecycle::create`] does, from its disk and, if it was kept and can be
    /// used here, its memory. Says which of both it was.
    ///
    /// # Errors
    /// As [`Lifecycle::create`]; [`IsolationError::Gone`] when nothing was kept. After an error call
    /// [`Self::hibernate`].
    async fn wake(&self, plan: &Plan) -> Result<Woken, IsolationError>;
}
