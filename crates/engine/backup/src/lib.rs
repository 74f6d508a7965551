//! An installation as one file, and back.
//!
//! ```text
//! zstd ( tar (
//!   atoll-backup/header.json      format, program, time, and how much follows
//!   data/…                        the data directory: what is in a directory comes before the directory itself
//!   atoll-backup/manifest.jsonl   one line for each member before: what it is, and the digest of its content
//! ) )
//! ```
//!
//! Both ways are streams: nothing is held in memory but one member's description. Other programs can read it, too
//! (`tar --zstd`): long names and attributes are PAX records, files with holes are PAX 1.0 sparse files.
//!
//! [`pack`] writes a data directory, which no process may change meanwhile. [`Backup`] reads a backup that may be
//! hostile: it takes only what [`pack`] writes, in the order in which it writes it, and nothing more than the header
//! announces. [`Backup::unpack`] makes files, directories and their content below a directory that no other process
//! uses. Its caller moves them to their place only when all was right ([`Restoration`]).

mod error;
mod format;
mod manifest;
mod member;
mod output;
mod pack;
mod pax;
mod place;
mod read;
mod restoration;
mod sparse;
#[cfg(test)]
mod tests;
mod walk;

pub use error::{BackupError, Result};
pub use format::{FORMAT, Header, STAGING, Subject};
pub use output::NewFile;
pub use pack::pack;
pub use read::Backup;
pub use restoration::Restoration;

use std::sync::atomic::{AtomicBool, Ordering};

/// Lets the caller of long work watch its progress and stop it.
#[derive(Debug, Clone, Copy)]
pub struct Watch<'a, F> {
    /// Called with the number of bytes that were just done.
    pub progress: F,
    /// Ends the work when it is set.
    pub stop: &'a AtomicBool,
}

impl<F: Fn(u64)> Watch<'_, F> {
    /// Reports that some bytes more are done.
    ///
    /// # Errors
    /// [`BackupError::Stopped`].
    fn done(&self, bytes: u64) -> Result<()> {
        (self.progress)(bytes);
        if self.stop.load(Ordering::Relaxed) { Err(BackupError::Stopped) } else { Ok(()) }
    }
}
