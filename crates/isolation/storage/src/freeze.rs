//! Writes a file system out to its image, and holds it still while the image is cloned.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_isolation::IsolationError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::step::Step;
use crate::sys;

/// After a round of writing out that was shorter than this, little is left to write.
const LITTLE_LEFT: Duration = Duration::from_millis(10);
/// Rounds, at most: a sandbox may write as fast as the host's disk takes it.
const ROUNDS_MAX: usize = 4;

/// A mounted disk, to be written out.
#[derive(Debug)]
pub struct MountedDisk(OwnedFd);

impl MountedDisk {
    /// Takes a mount.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn open(mount: BorrowedFd<'_>) -> Result<Self, IsolationError> {
        root(mount).map(Self)
    }

    /// Writes to the image what was written to the disk until now.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn write_out(&self) -> Result<(), IsolationError> {
        rustix::fs::syncfs(&self.0).step("write out a disk")
    }

    /// Puts what is only in the disk's journal in its place in the image, and empties the journal. There is nothing to do
    /// without one: small disks have none, nor have disks that earlier versions made.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub(crate) fn empty_journal(&self) -> Result<(), IsolationError> {
        match sys::empty_journal(self.0.as_fd()) {
            Err(Errno::NODEV) => Ok(()),
            emptied => emptied.step("empty the journal of a disk"),
        }
    }

    /// The same as [`Self::write_out`], again and again while sandboxes go on writing, so that the next time is a short one.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn write_out_until_little_is_left(&self) -> Result<(), IsolationError> {
        for _round in 0..ROUNDS_MAX {
            let since = Instant::now();
            self.write_out()?;
            if since.elapsed() < LITTLE_LEFT {
                break;
            }
        }
        Ok(())
    }
}

/// A file system in which nothing changes: everything written is in its image, and a process that writes waits. The
/// file system goes on when this is dropped.
///
/// The kernel keeps a file system frozen when the process that froze it dies. So the caller writes down that it freezes
/// before it does, and a later process calls [`Frozen::thaw_left_over`].
#[derive(Debug)]
pub struct Frozen {
    mount: Option<OwnedFd>,
    since: Instant,
}

impl Frozen {
    /// Freezes the file system of a mount. Before that it writes out unwritten data, while processes still work: only
    /// the data that they write in between is left for the time of standing still.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn freeze(mount: BorrowedFd<'_>) -> Result<Self, IsolationError> {
        let mount = root(mount)?;
        rustix::fs::syncfs(&mount).step("write out a disk")?;
        let since = Instant::now();
        sys::freeze(mount.as_fd()).step("freeze a disk")?;
        Ok(Self { mount: Some(mount), since })
    }

    /// Lets it go on; gives how long it stood still.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn thaw(mut self) -> Result<Duration, IsolationError> {
        if let Some(mount) = self.mount.take() {
            sys::thaw(mount.as_fd()).step("let a disk go on")?;
        }
        Ok(self.since.elapsed())
    }

    /// Lets a file system go on that was frozen by a process that has ended. No error when it is not frozen.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn thaw_left_over(mount: BorrowedFd<'_>) -> Result<(), IsolationError> {
        match sys::thaw(root(mount)?.as_fd()) {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error).step("let a disk go on"),
        }
    }
}

/// The root directory of a mount. The descriptor of a mount itself is only good for paths.
pub(crate) fn root(mount: BorrowedFd<'_>) -> Result<OwnedFd, IsolationError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(mount, c".", flags, Mode::empty()).step("open the root of a disk")
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(mount) = &self.mount
            && let Err(error) = sys::thaw(mount.as_fd())
        {
            tracing::error!(%error, "a disk stays frozen");
        }
    }
}
