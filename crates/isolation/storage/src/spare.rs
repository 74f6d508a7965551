//! Disks that no sandbox has yet.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_isolation::{DiskSource, IsolationError};

use crate::Storage;
use crate::filesystem::{self, Templates};
use crate::step::Step;

/// A disk image that waits for its sandbox. Removed when this is dropped before a sandbox takes it.
#[derive(Debug)]
pub struct Spare(Option<PathBuf>);

impl Storage {
    /// Makes a disk of `bytes` with the content that a plan asks for. On error nothing is left of it.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::NoArtifact`], [`IsolationError::Unenforceable`] when the artifact's
    /// disk is larger than that, [`IsolationError::Unavailable`] for memory, [`IsolationError::Kernel`].
    pub fn make_spare(
        &self,
        templates: &Templates,
        source: &DiskSource,
        bytes: u64,
    ) -> Result<Spare, IsolationError> {
        self.check_room()?;
        let path = self.new_path();
        let image = match source {
            DiskSource::Artifact(artifact) => self.duplicate(&self.artifact_disk(artifact)?, &path)?,
            DiskSource::Moved(artifact) => self.move_artifact_disk(artifact, &path)?,
            DiskSource::WithMemory(..) | DiskSource::Asleep(_) => {
                let why = "here a sandbox begins with the disk of a snapshot, and not with its memory";
                return Err(IsolationError::Unavailable(why.to_owned()));
            }
            DiskSource::Empty => {
                let image = File::options().read(true).write(true).create_new(true).open(&path);
                let image = image.step("make a disk image")?;
                let spare = Spare(Some(path));
                image.set_len(bytes).step("size a disk image")?;
                templates.get(self, bytes)?.fill(self, &image).step("write a disk image")?;
                return Ok(spare);
            }
        };
        let spare = Spare(Some(path.clone()));
        let has = image.metadata().step("measure a disk image")?.len();
        if has > bytes {
            let why = format!("the snapshot's disk has {has} bytes and cannot become {bytes}");
            return Err(IsolationError::Unenforceable(why));
        }
        if has < bytes {
            image.set_len(bytes).step("size a disk image")?;
            filesystem::grow(&path)?;
        }
        Ok(spare)
    }

    /// Makes a disk that is an exact copy of another. On error nothing is left of it.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    pub fn clone_spare(&self, from: &Path) -> Result<Spare, IsolationError> {
        self.check_room()?;
        let path = self.new_path();
        self.duplicate(from, &path)?;
        Ok(Spare(Some(path)))
    }

    fn new_path(&self) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Tests open one directory from several processes.
        self.disks().join(format!("spare-{}-{count}.img", std::process::id()))
    }
}

impl Spare {
    /// Moves it to its place. From then on the caller has to remove it.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn move_to(mut self, place: PathBuf) -> Result<PathBuf, IsolationError> {
        if let Some(path) = &self.0 {
            fs::rename(path, &place).step("move a disk image to its sandbox")?;
            self.0 = None;
        }
        Ok(place)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(image = %path.display(), %error, "cannot remove an unused disk image");
        }
    }
}
