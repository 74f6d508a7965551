//! Why the store could not do it.

use std::error::Error;
use std::sync::Arc;

use rusqlite::ffi;

use crate::writable::Unwritable;

/// A reason, and what is known about it. None carries a secret: the database's own messages name
/// columns and constraints, and the URL's password is in none of them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// There is no such record, or not the one that this one refers to.
    #[error("no such record")]
    NotFound,
    /// Another record of this kind has this name.
    #[error("the name is taken")]
    NameTaken,
    /// A record with this id or key is there already.
    #[error("the record exists already")]
    AlreadyExists,
    /// The record changed since it was read, or is not in a state that was expected.
    #[error("the record was changed by somebody else")]
    Conflict,
    /// A project may not have, or run, more. Nothing was changed.
    #[error("{error}")]
    Quota {
        /// Of what, and what to do.
        error: Box<atoll_core::Error>,
    },
    /// This node is there already, or another node has taken it over. Nothing was changed.
    #[error("another server has taken this node's place")]
    Claimed,
    /// A text holds a NUL byte, which PostgreSQL cannot store.
    #[error("a text contains a NUL byte")]
    Nul,
    /// The database does not answer, its disk is full, or it refuses. Nothing was changed, or it is
    /// not known whether it was.
    #[error("the database is unavailable")]
    Unavailable {
        /// What the database or its driver said.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// A row holds what this program cannot read: it was written by a newer program or damaged.
    #[error("the row {id} of {table} is unreadable in column {column}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// Which row.
        id: String,
        /// The first column that makes no sense.
        column: &'static str,
    },
    /// The schema could not be brought to this program's version, or is newer than it.
    #[error("the database schema does not fit this program")]
    Schema {
        /// Which migration, and why.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
}

impl StoreError {
    pub(crate) fn unavailable(source: impl Error + Send + Sync + 'static) -> Self {
        Self::Unavailable { source: Arc::new(source) }
    }

    /// Why the database cannot be written, if it is unavailable for a reason that the next write would meet, too.
    #[must_use]
    pub fn unwritable(&self) -> Option<Unwritable> {
        let Self::Unavailable { source } = self else { return None };
        if let Some(error) = source.downcast_ref::<rusqlite::Error>() {
            return Unwritable::of_sqlite(error.sqlite_error_code()?);
        }
        let error = source.downcast_ref::<sqlx::Error>()?.as_database_error()?;
        Unwritable::of_postgres(&error.code()?)
    }

    /// Whether it is unavailable because the database's disk is full. Nothing was changed then.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        self.unwritable() == Some(Unwritable::DiskFull)
    }
}

/// What PostgreSQL says.
impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error() {
            Some(db) if db.is_unique_violation() => Self::AlreadyExists,
            Some(db) if db.is_foreign_key_violation() => Self::NotFound,
            _ => Self::unavailable(error),
        }
    }
}

/// What SQLite says.
impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error().map(|error| error.extended_code) {
            Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY) => Self::AlreadyExists,
            Some(ffi::SQLITE_CONSTRAINT_FOREIGNKEY) => Self::NotFound,
            _ => Self::unavailable(error),
        }
    }
}
