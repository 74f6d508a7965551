//! What every level does with artifacts in the same way, for the tasks of the engine: each call blocks a thread that is
//! meant for it, and none of the runtime's.

use std::fs::File;
use std::sync::Arc;

use atoll_core::id::SnapshotId;
use atoll_isolation::{ArtifactUsage, IsolationError};

use crate::step::Step;
use crate::{Storage, filesystem};

/// The artifacts in a [`Storage`]. Its calls are those of [`atoll_isolation::Artifacts`].
#[derive(Debug, Clone)]
pub struct StoredArtifacts(Arc<Storage>);

impl StoredArtifacts {
    /// The artifacts that lie in `storage`.
    #[must_use]
    pub const fn new(storage: Arc<Storage>) -> Self {
        Self(storage)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Storage) -> Result<T, IsolationError> + Send + 'static,
    ) -> Result<T, IsolationError> {
        let storage = Arc::clone(&self.0);
        let joined = tokio::task::spawn_blocking(move || work(&storage)).await;
        joined.map_err(std::io::Error::other).step("run a task")?
    }

    /// Every artifact there is.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub async fn list(&self) -> Result<Vec<SnapshotId>, IsolationError> {
        self.blocking(Storage::artifacts).await
    }

    /// As [`Storage::settle_artifact`].
    ///
    /// # Errors
    /// The same.
    pub async fn settle(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |storage| storage.settle_artifact(&artifact)).await
    }

    /// As [`Storage::seal_artifact`].
    ///
    /// # Errors
    /// The same.
    pub async fn seal(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |storage| storage.seal_artifact(&artifact)).await
    }

    /// Opens the disk of an artifact for reading.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Kernel`].
    pub async fn read(&self, artifact: &SnapshotId) -> Result<File, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |storage| {
            File::open(storage.artifact_disk(&artifact)?).step("open the disk of a snapshot")
        })
        .await
    }

    /// Makes a new artifact with an empty disk of `bytes`, for the caller to fill, if the host has room.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    pub async fn write(&self, artifact: &SnapshotId, bytes: u64) -> Result<File, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |storage| {
            storage.check_room()?;
            storage.make_artifact_disk(&artifact, bytes)
        })
        .await
    }

    /// Checks a disk that came from elsewhere, and puts it on the host's disk for good.
    ///
    /// # Errors
    /// [`IsolationError::BadArtifact`], [`IsolationError::NoArtifact`], [`IsolationError::Kernel`].
    pub async fn check(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |storage| {
            filesystem::check(&storage.artifact_disk(&artifact)?)?;
            storage.settle_artifact(&artifact)
        })
        .await
    }

    /// As [`Storage::remove_artifact`].
    ///
    /// # Errors
    /// The same.
    pub async fn remove(&self, artifact: &SnapshotId) -> Result<(), IsolationError> {
        let artifact = artifact.clone();
        self.blocking(move |storage| storage.remove_artifact(&artifact)).await
    }
}
