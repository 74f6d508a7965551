//! Why a backup or a restoration failed.

use std::io;

use crate::format::FORMAT;

/// Shorthand.
pub type Result<T, E = BackupError> = std::result::Result<T, E>;

/// Why there is no backup, or nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A system call of the host failed.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The data directory holds something that cannot be in a backup, or changed while it was read. Or the directory to
    /// restore into is not empty.
    #[error("{0}")]
    Unfit(String),
    /// The file is damaged, or is no backup of Atoll.
    #[error("this is not a whole backup: {0}")]
    Invalid(String),
    /// A newer program made it.
    #[error("the backup has format {format}, of Atoll {program}; this program reads up to format {FORMAT}")]
    Newer {
        /// The format.
        format: u32,
        /// Version of the program that made it.
        program: String,
    },
    /// It does not fit.
    #[error("the backup holds {needed_bytes} bytes, and {free_bytes} are free")]
    NoRoom {
        /// What it takes, bytes.
        needed_bytes: u64,
        /// What is free, bytes.
        free_bytes: u64,
    },
    /// The caller stopped the work, see [`crate::Watch::stop`].
    #[error("stopped")]
    Stopped,
}

impl BackupError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// Something about one member of a backup.
    pub(crate) fn member(path: &[u8], why: impl std::fmt::Display) -> Self {
        Self::Invalid(format!("'{}' {why}", shown(path)))
    }

    /// A failure while a backup is read: of the host when the kernel says so, else of the file.
    pub(crate) fn unreadable(error: io::Error) -> Self {
        if error.raw_os_error().is_some() {
            return Self::io("read the backup", error);
        }
        Self::Invalid(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ends in the middle".to_owned(),
            _ => format!("it is damaged ({error})"),
        })
    }
}

/// A path to show: bytes that are no plain text are escaped, and the end of a long path is left out.
pub(crate) fn shown(path: &[u8]) -> String {
    const CHARS: usize = 200;
    let text = path.escape_ascii().to_string();
    if text.len() <= CHARS { text } else { format!("{}…", &text[..CHARS]) }
}
