//! Copies of disks that are mounted.
//!
//! The image of a mounted disk is whole when its journal has just been emptied and no process changes anything in it. Its
//! superblock still says that the journal has to be read, as it does all the time in which the disk is mounted, and a
//! disk that says so is mounted by nobody here. So a copy that was made in another way than this is of no use.

use std::fs::File;
use std::path::Path;

use atoll_isolation::IsolationError;

use crate::{MountedDisk, Storage, superblock};

/// The copy of a disk that was mounted, which cannot be used before it is finished.
#[derive(Debug)]
#[must_use = "it cannot be mounted before it is finished"]
pub struct LiveCopy(File);

impl Storage {
    /// Makes `to` a copy of the image `from` of a mounted disk; see [`Self::duplicate`]. No process may change anything
    /// in the disk meanwhile. What was written before is in the copy. On error nothing is left at `to`.
    ///
    /// # Errors
    /// [`IsolationError::HostFull`], [`IsolationError::Kernel`].
    pub fn copy_mounted(
        &self,
        disk: &MountedDisk,
        from: &Path,
        to: &Path,
    ) -> Result<LiveCopy, IsolationError> {
        disk.write_out()?;
        disk.empty_journal()?;
        self.duplicate(from, to).map(LiveCopy)
    }
}

impl LiveCopy {
    /// Makes the copy a disk like one that was unmounted. Processes may change the original again by then.
    ///
    /// # Errors
    /// [`IsolationError::BadArtifact`] when something is in the journal nevertheless, [`IsolationError::Kernel`].
    pub fn finish(self) -> Result<(), IsolationError> {
        superblock::take_mark_off(&self.0)
    }
}
