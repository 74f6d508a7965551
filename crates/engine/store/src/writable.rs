//! Whether the database can be written, as those know who write.
//!
//! A database whose disk is full, or that has become read-only, still answers whoever reads. So what writes meet is
//! remembered ([`Writes`]): one that fails for a reason that the next would meet, too, makes the database suspect. Whether
//! it can be written then says a small change of the store's own, and nothing else. One client's change may fail where
//! others do not (it is large, or of a damaged row), and one that succeeds may have changed nothing.
//!
//! That change is tried when somebody asks, which needs no key: one at a time, at most once in [`TRY_EVERY`], in a task of
//! its own that notes what it found, also when nobody waits for it any more.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;
use tokio::sync::OwnedMutexGuard;

use crate::error::StoreError;

/// How long what an attempt found counts without another one. Sessions are given up no more often than that, either.
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
    /// Whose turn it is to try.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Met {
    /// Why the last write failed, if no attempt has reached the disk since.
    failing: Option<Unwritable>,
    /// The last attempt: when it ended, and how.
    tried: Option<(Instant, Result<(), Unwritable>)>,
    /// When the database was found to be read-only for the last time.
    read_only: Option<Instant>,
}

impl Writes {
    /// Of a database that nothing speaks against.
    pub(crate) fn new(place: String) -> Self {
        Self { place, met: Mutex::default(), turn: Arc::default() }
    }

    fn met(&self) -> MutexGuard<'_, Met> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed. Says so in the log when that is new.
    pub(crate) fn failed(&self, error: &StoreError, now: Instant) {
        let Some(why) = error.unwritable() else { return };
        let before = {
            let mut met = self.met();
            // Not at each failure: every one would have all sessions opened anew.
            let is_due = |found| now.saturating_duration_since(found) >= TRY_EVERY;
            if why == Unwritable::ReadOnly && met.read_only.is_none_or(is_due) {
                met.read_only = Some(now);
            }
            met.failing.replace(why)
        };
        if before != Some(why) {
            tracing::error!(database = self.place, "nothing can be stored: {why}");
        }
    }

    /// Why the last write failed, if no attempt has reached the disk since.
    pub(crate) fn failing(&self) -> Option<Unwritable> {
        self.met().failing
    }

    /// Waits until nobody else tries. Whoever has the turn asks [`Self::found`] first.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// What the last attempt found, if that was a moment ago.
    pub(crate) fn found(&self, now: Instant) -> Option<Result<(), Unwritable>> {
        let (at, found) = self.met().tried?;
        (now.saturating_duration_since(at) < TRY_EVERY).then_some(found)
    }

    /// Notes what an attempt found.
    pub(crate) fn tried(&self, found: Result<(), Unwritable>, now: Instant) {
        let before = {
            let mut met = self.met();
            met.tried = Some((now, found));
            std::mem::replace(&mut met.failing, found.err())
        };
        match found {
            Ok(()) if before.is_some() => {
                tracing::info!(database = self.place, "the database can be written");
            }
            Err(why) if before != Some(why) => {
                tracing::error!(database = self.place, "nothing can be stored: {why}");
            }
            _ => {}
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
    fn what_an_attempt_found_counts_for_a_while_whatever_clients_meet() {
        let (writes, start) = (writes(), Instant::now());
        writes.failed(&StoreError::Conflict, start);
        assert_eq!(writes.failing(), None, "the database is not to blame");
        writes.failed(&sqlite(ffi::SQLITE_FULL), start);
        assert_eq!(writes.failing(), Some(Unwritable::DiskFull));
        assert_eq!(writes.found(start), None, "nothing was tried");
        writes.tried(Err(Unwritable::DiskError), start);
        assert_eq!(writes.failing(), Some(Unwritable::DiskError));
        // Failures put the next attempt off no further.
        let soon = start + TRY_EVERY / 2;
        writes.failed(&sqlite(ffi::SQLITE_FULL), soon);
        assert_eq!(writes.found(soon), Some(Err(Unwritable::DiskError)));
        let later = start + TRY_EVERY;
        assert_eq!(writes.found(later), None);
        writes.tried(Ok(()), later);
        assert_eq!((writes.failing(), writes.found(later)), (None, Some(Ok(()))));
        // Nor do they outweigh it: one client's change fails where a small one does not.
        writes.failed(&sqlite(ffi::SQLITE_FULL), later);
        assert_eq!((writes.failing(), writes.found(later)), (Some(Unwritable::DiskFull), Some(Ok(()))));
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
        writes.tried(Ok(()), now);
        assert!(writes.is_stale(TRY_EVERY * 2, now), "over another session");
        assert!(!writes.is_stale(TRY_EVERY / 2, now), "it was opened since");
        // Clients that write on have no session opened more often than that.
        let soon = start + TRY_EVERY / 2;
        writes.failed(&sqlite(ffi::SQLITE_READONLY), soon);
        assert!(!writes.is_stale(TRY_EVERY * 3 / 4, now));
        writes.failed(&sqlite(ffi::SQLITE_READONLY), now);
        assert!(writes.is_stale(TRY_EVERY / 2, now));
    }
}
