//! Artifacts: the files of a snapshot, in a directory for each.
//!
//! The caller writes down the snapshot's id before it calls a function here, and removes everything that exists for
//! that id when a call fails: the one undo is [`Storage::remove_artifact`].

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use atoll_core::id::SnapshotId;
use atoll_isolation::{ArtifactUsage, IsolationError};

use crate::step::Step;
use crate::{DISK_FILE, Storage, filesystem};

/// The artifacts that are being sealed: each by one at a time, and none waits for another's disk.
#[derive(Debug, Default)]
pub(crate) struct Sealing {
    ids: Mutex<BTreeSet<SnapshotId>>,
    ended: Condvar,
}

struct Turn<'a>(&'a Sealing, SnapshotId);

impl Sealing {
    fn take(&self, id: &SnapshotId) -> Turn<'_> {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ids =
            self.ended.wait_while(ids, |ids| ids.contains(id)).unwrap_or_else(PoisonError::into_inner);
        ids.insert(id.clone());
        Turn(self, id.clone())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.ids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
        self.0.ended.notify_all();
    }
}

impl Storage {
    /// Makes the directory of a new artifact.
    ///
    /// # Errors
    /// When it is there already, or cannot be made.
    pub fn make_artifact(&self, id: &SnapshotId) -> Result<PathBuf, IsolationError> {
        let dir = self.artifact_dir(id);
        DirBuilder::new().mode(0o700).create(&dir).step("make the directory of a snapshot")?;
        Ok(dir)
    }

    /// The disk of an artifact.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`].
    pub fn artifact_disk(&self, id: &SnapshotId) -> Result<PathBuf, IsolationError> {
        let path = self.artifact_dir(id).join(DISK_FILE);
        if path.try_exists().step("look for a snapshot")? {
            Ok(path)
        } else {
            Err(IsolationError::NoArtifact)
        }
    }

    /// Moves the disk of an artifact to `to`, and opens it. The artifact has none afterwards.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Kernel`]; then nothing is at `to`.
    pub fn move_artifact_disk(&self, id: &SnapshotId, to: &Path) -> Result<File, IsolationError> {
        let from = self.artifact_disk(id)?;
        // First moved, then opened: a task that seals the artifact may put another file in the place of its disk in
        // between, and the sandbox would write to one that has no name any more.
        fs::rename(&from, to).step("move the disk of a snapshot")?;
        let opened = File::options().read(true).write(true).open(to);
        if opened.is_err() {
            drop(fs::remove_file(to));
        }
        opened.step("open the disk of a snapshot")
    }

    /// The directory of an artifact that exists.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`].
    pub fn artifact(&self, id: &SnapshotId) -> Result<PathBuf, IsolationError> {
        let path = self.artifact_dir(id);
        if path.try_exists().step("look for a snapshot")? {
            Ok(path)
        } else {
            Err(IsolationError::NoArtifact)
        }
    }

    /// Makes a new artifact with an empty disk of `bytes`, to be written by the caller.
    ///
    /// # Errors
    /// As [`Self::make_artifact`].
    pub fn make_artifact_disk(&self, id: &SnapshotId, bytes: u64) -> Result<File, IsolationError> {
        let path = self.make_artifact(id)?.join(DISK_FILE);
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.step("make the disk of a snapshot")?;
        file.set_len(bytes).step("size the disk of a snapshot")?;
        Ok(file)
    }

    /// Sizes of an artifact.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`].
    pub fn artifact_usage(&self, id: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let meta = fs::metadata(self.artifact_disk(id)?).step("measure a snapshot")?;
        let mut stored_bytes = 0;
        for entry in fs::read_dir(self.artifact_dir(id)).step("measure a snapshot")? {
            let entry = entry.step("measure a snapshot")?;
            stored_bytes += entry.metadata().step("measure a snapshot")?.blocks() * 512;
        }
        Ok(ArtifactUsage { disk_bytes: meta.len(), stored_bytes })
    }

    /// Removes what exists for an id, from any half-made state. Atomic: it is moved away, then removed.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn remove_artifact(&self, id: &SnapshotId) -> Result<(), IsolationError> {
        let away = self.trash().join(id.as_str());
        match fs::rename(self.artifact_dir(id), &away) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other.step("move a snapshot away")?,
        }
        match fs::remove_dir_all(&away) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.step("remove a snapshot"),
        }
    }

    /// Every artifact there is.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn artifacts(&self) -> Result<Vec<SnapshotId>, IsolationError> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.root_of_artifacts()).step("list the snapshots")? {
            let name = entry.step("list the snapshots")?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<SnapshotId>().ok()));
        }
        Ok(ids)
    }

    /// Puts a snapshot on the host's disk for good: what was written for it survives a power cut. Gives its sizes.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn settle_artifact(&self, id: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        let sync = |path: &Path| File::open(path)?.sync_all();
        sync(&self.artifact_disk(id)?).step("write out a snapshot")?;
        sync(&self.artifact_dir(id)).step("write out a snapshot")?;
        sync(&self.root_of_artifacts()).step("write out a snapshot")?;
        self.artifact_usage(id)
    }

    /// Makes a fresh artifact final. Its disk is tidied on a clone that then takes its place: a task that makes an
    /// instance from it meanwhile gets the one or the other.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Kernel`].
    pub fn seal_artifact(&self, artifact: &SnapshotId) -> Result<ArtifactUsage, IsolationError> {
        // A task that exports an artifact seals it too, and does not know whether another task does so in the
        // background.
        let _turn = self.sealing.take(artifact);
        let disk = self.artifact_disk(artifact)?;
        let new = disk.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other.step("remove what an earlier process left")?,
        }
        self.duplicate(&disk, &new)?;
        let tidied = filesystem::tidy(&new)
            .and_then(|()| fs::rename(&new, &disk).step("put the disk of a snapshot in place"));
        if tidied.is_err() {
            drop(fs::remove_file(&new));
        }
        tidied?;
        self.settle_artifact(artifact)
    }

    fn root_of_artifacts(&self) -> PathBuf {
        self.root.join("artifacts")
    }
}
