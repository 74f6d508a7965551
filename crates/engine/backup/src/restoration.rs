//! A directory into which a backup is restored.
//!
//! ```text
//! DIR/.restoring/data/…      what was unpacked so far
//! DIR/…                      once all of it is right and on disk: moved here, entry by entry
//! ```
//!
//! While `.restoring` is there, DIR is no data directory, and no server starts on it. The backup is restored at the
//! moment when `.restoring` is removed, last of all. A restoration that was killed leaves `.restoring` behind: the
//! next restoration removes everything that it finds beside it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::error::{BackupError, Result};
use crate::format::STAGING;

/// Names that may be in an empty directory: its lock, and the directory that a new file system begins with.
const NOTHING: [&str; 2] = ["lock", "lost+found"];

/// A restoration under way. If it is dropped before its end, it removes everything that it made.
#[derive(Debug)]
pub struct Restoration {
    dir: PathBuf,
    root: File,
    is_finished: bool,
}

impl Restoration {
    /// Whether a restoration may begin in a directory: it is absent or empty, or one was killed in it. Changes nothing.
    ///
    /// # Errors
    /// [`BackupError::Unfit`] when something is in it, [`BackupError::Io`].
    pub fn check(dir: &Path) -> Result<()> {
        let found = match entries(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => {
                other.map_err(|error| BackupError::io(format!("restore into {}", dir.display()), error))?
            }
        };
        if !found.iter().any(|name| name == STAGING)
            && let Some(name) = found.first()
        {
            return Err(BackupError::Unfit(format!(
                "{} is not empty: '{}' is in it",
                dir.display(),
                name.display()
            )));
        }
        Ok(())
    }

    /// Begins a restoration, in a directory that no other process works in.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn begin(dir: &Path) -> Result<Self> {
        let failed = |error| BackupError::io(format!("restore into {}", dir.display()), error);
        Self::check(dir)?;
        clear(dir).map_err(failed)?;
        let data = data(dir);
        DirBuilder::new().mode(0o700).recursive(true).create(&data).map_err(failed)?;
        let root = File::open(&data).map_err(failed)?;
        Ok(Self { dir: dir.to_owned(), root, is_finished: false })
    }

    /// Where to unpack.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A directory for files without names.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.dir.join(STAGING)
    }

    /// Moves the unpacked files to their place, for good.
    ///
    /// # Errors
    /// [`BackupError::Io`]; nothing is left then.
    pub fn finish(mut self) -> Result<()> {
        self.put_in_place()
            .map_err(|error| BackupError::io(format!("restore into {}", self.dir.display()), error))?;
        self.is_finished = true;
        Ok(())
    }

    fn put_in_place(&self) -> io::Result<()> {
        let dir = File::open(&self.dir)?;
        let data = data(&self.dir);
        rustix::fs::syncfs(&self.root)?;
        for name in entries(&data)? {
            fs::rename(data.join(&name), self.dir.join(&name))?;
            atoll_failpoint::fail_point!("backup.restore.moved");
        }
        dir.sync_all()?;
        fs::remove_dir(&data)?;
        fs::remove_dir(self.dir.join(STAGING))?;
        dir.sync_all()
    }
}

impl Drop for Restoration {
    fn drop(&mut self) {
        if !self.is_finished {
            // If this fails, the next restoration into the directory removes what is left; no server starts on it.
            drop(clear(&self.dir));
        }
    }
}

fn data(dir: &Path) -> PathBuf {
    dir.join(STAGING).join("data")
}

fn entries(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !NOTHING.iter().any(|nothing| name == *nothing) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes everything. `.restoring`, which marks the directory as not whole, goes last.
fn clear(dir: &Path) -> io::Result<()> {
    let mut names = entries(dir)?;
    names.sort_by_key(|name| name == STAGING);
    for name in names {
        let path = dir.join(&name);
        if path.symlink_metadata()?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    Ok(())
}
