//! What is kept of instances' disks, and of their memory: the bytes of snapshots.

use std::fs::File;

use async_trait::async_trait;
use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::machine::MemoryNeeds;
use atoll_core::snapshot::Comparison;

#[cfg(doc)]
use crate::DiskSource;
use crate::{ArtifactUsage, IsolationError, Plan, RootFs, Taken};

/// Why a level without memory on disk refuses it.
const NO_MEMORY: &str = "sandboxes of this isolation level are put to disk without their memory";

/// What is kept of instances: the bytes of snapshots. See the crate for the contract.
#[async_trait]
pub trait Artifacts: Send + Sync + std::fmt::Debug {
    /// Takes a snapshot of a live instance's disk, which goes on: a new artifact. How long the instance cannot
    /// write does not depend on how much is on its disk, where the host can clone files. On error a part of the
    /// artifact may be there: call [`Self::remove_artifact`].
    ///
    /// # Errors
    /// [`IsolationError::Gone`], [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    async fn snapshot(&self, id: &SandboxId, artifact: &SnapshotId) -> Result<Taken, IsolationError>;

    /// Whether [`Self::snapshot_with_memory`] can be done at this level.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// The same, of its memory and its processes too: for [`DiskSource::WithMemory`]. The instance stands still for
    /// longer, by as long as writing its memory takes. The artifact's memory can only be used by a driver on the same
    /// host, with the same programs; its disk by any.
    ///
    /// # Errors
    /// As [`Self::snapshot`]; [`IsolationError::Unavailable`] at a level that does not keep memory in artifacts.
    async fn snapshot_with_memory(
        &self,
        id: &SandboxId,
        artifact: &SnapshotId,
    ) -> Result<Taken, IsolationError>;

    /// Every artifact that is on the host.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    async fn artifacts(&self) -> Result<Vec<SnapshotId>, IsolationError>;

    /// Puts an artifact on the host's disk for good, as it is: the snapshot survives a power cut.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    async fn settle_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError>;

    /// Makes the disk of a fresh artifact final, so that it never changes again: files that were open when it was taken
    /// are closed in it, and it is on the host's disk for good. Instances can be made from it meanwhile.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Kernel`].
    async fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError>;

    /// What differs between two artifacts that stand on this root; without `from`, between the bare root and one.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Unavailable`], [`IsolationError::Kernel`].
    async fn compare(
        &self,
        root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError>;

    /// The disk of an artifact, for reading: a sparse file.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Kernel`].
    async fn read_artifact(&self, artifact: &SnapshotId) -> Result<File, IsolationError>;

    /// Makes a new artifact with an empty disk of `bytes`, which the caller fills.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    async fn write_artifact(&self, artifact: &SnapshotId, bytes: u64) -> Result<File, IsolationError>;

    /// Checks the disk of an artifact that came from elsewhere, so that it can do no harm to this host, and puts
    /// it on the host's disk for good, unchanged.
    ///
    /// # Errors
    /// [`IsolationError::BadArtifact`], [`IsolationError::NoArtifact`], [`IsolationError::Kernel`].
    async fn check_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError>;

    /// Makes a file of `bytes` beside the disk of an artifact from [`Self::write_artifact`], for the memory of the instance
    /// of this plan, which another host hibernated. The caller fills it and calls [`Self::check_artifact_memory`]. What a
    /// host does not have is found before anything is fetched.
    ///
    /// # Errors
    /// [`IsolationError::BadArtifact`] when this host does not have what the memory needs; the text says what.
    /// [`IsolationError::NoArtifact`], [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    async fn write_artifact_memory(
        &self,
        artifact: &SnapshotId,
        plan: &Plan,
        needs: &MemoryNeeds,
        bytes: u64,
    ) -> Result<File, IsolationError> {
        let _ = (artifact, plan, needs, bytes);
        Err(IsolationError::BadArtifact(NO_MEMORY.to_owned()))
    }

    /// Checks memory that was written, so that an instance can go on from the artifact ([`DiskSource::Asleep`]).
    ///
    /// # Errors
    /// [`IsolationError::BadArtifact`] when it is not the memory of such a machine; [`IsolationError::NoArtifact`],
    /// [`IsolationError::Kernel`].
    async fn check_artifact_memory(
        &self,
        artifact: &SnapshotId,
        needs: &MemoryNeeds,
    ) -> Result<(), IsolationError> {
        let _ = (artifact, needs);
        Err(IsolationError::BadArtifact(NO_MEMORY.to_owned()))
    }

    /// Removes everything that exists of an artifact. Succeeds when there is nothing. Instances made from it have their
    /// own disk.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    async fn remove_artifact(&self, artifact: &SnapshotId) -> Result<(), IsolationError>;
}
