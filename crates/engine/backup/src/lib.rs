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
//! [`pack`] writes a data directory that nobody changes meanwhile. [`Backup`] reads one that may be hostile: it takes only
//! what [`pack`] writes, in the order in which it writes it, and nothing more than the header announces. Files, directories
//! and their content are made by [`Backup::unpack`] below a directory that nobody else knows; whoever calls it gives that
//! directory its name only when all was right.

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

/// Who waits for long work: told how far it is, and able to end it.
#[derive(Debug, Clone, Copy)]
pub struct Watch<'a, F> {
    /// Told of bytes that were just done.
    pub progress: F,
    /// Ends the work when it is set.
    pub stop: &'a AtomicBool,
}

impl<F: Fn(u64)> Watch<'_, F> {
    /// Some bytes more are done.
    ///
    /// # Errors
    /// [`BackupError::Stopped`].
    fn done(&self, bytes: u64) -> Result<()> {
        (self.progress)(bytes);
        if self.stop.load(Ordering::Relaxed) { Err(BackupError::Stopped) } else { Ok(()) }
    }
}
