//! Whether the database can be written, as those know who write.
//!
//! A database whose disk is full, or that has become read-only, still answers whoever reads. So what writes meet is
//! remembered ([`Writes`]): when one fails for a reason that the next would meet, too, the database counts as unwritable.
//! It does so until a small change has reached the disk. That is tried when somebody asks, at most once in
//! [`TRY_EVERY`]; that a client's change succeeds is no proof, as it may have changed nothing.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;

use crate::error::StoreError;

/// How long a failure counts without anything being tried.
pub(crate) const TRY_EVERY: Duration = Duration::from_secs(1);

/// Why nothing can be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwritable {
    /// This process has no connection to the database and can open none, or has closed it.
    Disconnected,
    /// The disk of the database is full.
    DiskFull,
    /// The database, or its file, is read-only: a replica of PostgreSQL, for example.
    ReadOnly,
    /// The disk of the database fails, or is not there any more.
    DiskError,
    /// The database is damaged, or its file is none any more.
    Damaged,
}

impl Unwritable {
    pub(crate) fn of_sqlite(code: ErrorCode) -> Option<Self> {
        match code {
            ErrorCode::DiskFull => Some(Self::DiskFull),
            ErrorCode::ReadOnly => Some(Self::ReadOnly),
            ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => Some(Self::DiskError),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Some(Self::Damaged),
            _ => None,
        }
    }

    /// By the codes of the appendix "PostgreSQL Error Codes".
    pub(crate) fn of_postgres(code: &str) -> Option<Self> {
        match code {
            // disk_full
            "53100" => Some(Self::DiskFull),
            // read_only_sql_transaction
            "25006" => Some(Self::ReadOnly),
            // io_error
            "58030" => Some(Self::DiskError),
            // data_corrupted, index_corrupted
            "XX001" | "XX002" => Some(Self::Damaged),
            _ => None,
        }
    }
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disconnected => "there is no connection to the database",
            Self::DiskFull => "the disk of the database is full",
            Self::ReadOnly => "the database is read-only",
            Self::DiskError => "the disk of the database fails",
            Self::Damaged => "the database is damaged",
        })
    }
}

/// What the writes to one database met.
#[derive(Debug)]
pub(crate) struct Writes {
    /// Where the database is, without a password: for the log.
    place: String,
    met: Mutex<Met>,
}

#[derive(Debug)]
struct Met {
    failing: Option<Failing>,
    /// When the database was found to be read-only for the last time.
    read_only: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Failing {
    why: Unwritable,
    /// When a write failed for the last time, or was tried.
    tried: Instant,
}

/// What is known without a new attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing speaks against it.
    Writable,
    /// A write failed a moment ago, or is just being tried by somebody else.
    Unwritable(Unwritable),
    /// A write failed some time ago. Whoever is told this must try one now.
    Failed(Unwritable),
}

impl Writes {
    /// Of a database that nothing speaks against.
    pub(crate) const fn new(place: String) -> Self {
        Self { place, met: Mutex::new(Met { failing: None, read_only: None }) }
    }

    fn met(&self) -> MutexGuard<'_, Met> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed. Says so in the log when that is new.
    pub(crate) fn failed(&self, error: &StoreError, now: Instant) {
        let Some(why) = error.unwritable() else { return };
        let before = {
            let mut met = self.met();
            if why == Unwritable::ReadOnly {
                met.read_only = Some(now);
            }
            met.failing.replace(Failing { why, tried: now })
        };
        if before.is_none_or(|before| before.why != why) {
            tracing::error!(database = self.place, "nothing can be stored: {why}");
        }
    }

    /// A change has reached the disk.
    pub(crate) fn arrived(&self) {
        if self.met().failing.take().is_some() {
            tracing::info!(database = self.place, "the database can be written again");
        }
    }

    pub(crate) fn known(&self, now: Instant) -> Known {
        match &mut self.met().failing {
            None => Known::Writable,
            Some(failing) if now.saturating_duration_since(failing.tried) < TRY_EVERY => {
                Known::Unwritable(failing.why)
            }
            Some(failing) => {
                failing.tried = now;
                Known::Failed(failing.why)
            }
        }
    }

    /// Whether a session of this age should be given up: the database was found to be read-only after it was opened. It
    /// may be one with a replica, while the same address leads to the primary by now.
    pub(crate) fn is_stale(&self, age: Duration, now: Instant) -> bool {
        self.met().read_only.is_some_and(|found| age > now.saturating_duration_since(found))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn sqlite(code: i32) -> StoreError {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()
    }

    fn writes() -> Writes {
        Writes::new("here".to_owned())
    }

    #[test]
    fn what_the_next_write_would_meet_too_is_told_from_the_rest() {
        for (code, why) in [
            (ffi::SQLITE_FULL, Unwritable::DiskFull),
            (ffi::SQLITE_READONLY, Unwritable::ReadOnly),
            (ffi::SQLITE_READONLY_DBMOVED, Unwritable::ReadOnly),
            (ffi::SQLITE_IOERR, Unwritable::DiskError),
            (ffi::SQLITE_IOERR_WRITE, Unwritable::DiskError),
            (ffi::SQLITE_IOERR_FSYNC, Unwritable::DiskError),
            (ffi::SQLITE_CANTOPEN, Unwritable::DiskError),
            (ffi::SQLITE_CORRUPT, Unwritable::Damaged),
            (ffi::SQLITE_NOTADB, Unwritable::Damaged),
        ] {
            assert_eq!(sqlite(code).unwritable(), Some(why), "{code}");
        }
        for code in [ffi::SQLITE_BUSY, ffi::SQLITE_CONSTRAINT_UNIQUE, ffi::SQLITE_MISUSE] {
            assert_eq!(sqlite(code).unwritable(), None, "{code}");
        }
        assert_eq!(StoreError::Conflict.unwritable(), None);
        for (code, why) in [
            ("53100", Some(Unwritable::DiskFull)),
            ("25006", Some(Unwritable::ReadOnly)),
            ("58030", Some(Unwritable::DiskError)),
            ("XX001", Some(Unwritable::Damaged)),
            ("57P01", None),
        ] {
            assert_eq!(Unwritable::of_postgres(code), why, "{code}");
        }
    }

    #[test]
    fn one_attempt_is_due_a_while_after_the_last_failure() {
        let (writes, start) = (writes(), Instant::now());
        assert_eq!(writes.known(start), Known::Writable);
        writes.failed(&StoreError::Conflict, start);
        assert_eq!(writes.known(start), Known::Writable, "the database is not to blame");
        writes.failed(&sqlite(ffi::SQLITE_FULL), start);
        assert_eq!(writes.known(start + TRY_EVERY / 2), Known::Unwritable(Unwritable::DiskFull));
        let later = start + TRY_EVERY;
        assert_eq!(writes.known(later), Known::Failed(Unwritable::DiskFull));
        assert_eq!(writes.known(later), Known::Unwritable(Unwritable::DiskFull), "it is being tried");
        // Another write fails meanwhile, for another reason.
        writes.failed(&sqlite(ffi::SQLITE_IOERR_WRITE), later + TRY_EVERY / 2);
        assert_eq!(writes.known(later + TRY_EVERY), Known::Unwritable(Unwritable::DiskError));
        writes.arrived();
        assert_eq!(writes.known(later + TRY_EVERY), Known::Writable);
    }

    #[test]
    fn sessions_from_before_a_database_was_read_only_are_given_up() {
        let (writes, start) = (writes(), Instant::now());
        let now = start + TRY_EVERY;
        assert!(!writes.is_stale(TRY_EVERY * 2, now));
        writes.failed(&sqlite(ffi::SQLITE_FULL), start);
        assert!(!writes.is_stale(TRY_EVERY * 2, now), "another session would find the same disk");
        writes.failed(&sqlite(ffi::SQLITE_READONLY), start);
        assert!(writes.is_stale(TRY_EVERY * 2, now));
        writes.arrived();
        assert!(writes.is_stale(TRY_EVERY * 2, now), "over another session");
        assert!(!writes.is_stale(TRY_EVERY / 2, now), "it was opened since");
    }
}
