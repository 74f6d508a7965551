//! A file whose blocks can be given up: when nothing else fits on the host's disk, a task that removes something can
//! still write that down.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, StatVfs};

/// Part of the file system that is kept in reserve, and bounds, bytes.
const PART: u64 = 32;
const MIN_BYTES: u64 = 16 << 20;
const MAX_BYTES: u64 = 256 << 20;
/// The type of a file system in memory, from `linux/magic.h`. The reserve takes memory there, from the sandboxes, too:
/// the least is kept.
const TMPFS: u64 = 0x0102_1994;
/// Bytes that are given up at once.
const SLICE_BYTES: u64 = 8 << 20;
/// With less free than this there is no room at all, bytes.
const TIGHT_BYTES: u64 = 8 << 20;

/// The reserve of a data directory.
#[derive(Debug)]
pub struct Reserve {
    dir: PathBuf,
    turn: Mutex<()>,
}

impl Reserve {
    /// That of the data directory `dir`. Touches nothing.
    #[must_use]
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), turn: Mutex::default() }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("reserve")
    }

    fn host(&self) -> std::io::Result<StatVfs> {
        Ok(rustix::fs::statvfs(&self.dir)?)
    }

    /// What it should have, bytes.
    fn wanted_bytes(&self) -> std::io::Result<u64> {
        let host = self.host()?;
        let part = (host.f_blocks * host.f_frsize / PART).clamp(MIN_BYTES, MAX_BYTES);
        let kind = rustix::fs::statfs(&self.dir)?.f_type;
        Ok(if u64::try_from(kind).is_ok_and(|kind| kind == TMPFS) { MIN_BYTES } else { part })
    }

    /// Gives up a slice if there is no room at all. Says whether it did.
    pub fn give_up_if_tight(&self) -> bool {
        match self.host() {
            Ok(host) if host.f_bavail * host.f_frsize < TIGHT_BYTES => self.give_up(SLICE_BYTES),
            _ => false,
        }
    }

    /// Gives up this much, as far as there is something left. Says whether there was.
    pub(crate) fn give_up(&self, bytes: u64) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shrunk = (|| {
            let file = File::options().write(true).open(self.path())?;
            let has = file.metadata()?.len();
            file.set_len(has.saturating_sub(bytes))?;
            Ok(has.min(bytes))
        })();
        match shrunk {
            Ok(0) => false,
            Ok(bytes) => {
                tracing::warn!(bytes, "the host's disk is full: a part of the reserve was given up");
                true
            }
            Err(error) if std::io::Error::kind(&error) == ErrorKind::NotFound => false,
            Err(error) => {
                tracing::error!(%error, "the reserve cannot be given up");
                false
            }
        }
    }

    /// Makes the file whole. Its blocks are allocated in the file system, so that no other file gets them.
    pub(crate) fn fill(&self) -> std::io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.wanted_bytes()?;
        let file = File::options().write(true).create(true).truncate(false).open(self.path())?;
        if file.metadata()?.len() < wanted {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, wanted)?;
        }
        Ok(())
    }
}
