//! Lists of rows, of which some may be unreadable: written by a newer program, or damaged.
//!
//! One such row must not hide the others, nor keep the server from starting. So every list leaves it out, says so in the
//! log once, and the store remembers it ([`Store::unreadable`]). What a row said does not follow from its absence, and
//! these rules hold for all who read lists:
//!
//! - Looking one record up by its id or name is an error ([`StoreError::Corrupt`]), not an absence.
//! - What opens something (keys, roles, accesses) is missing: nobody gets in. What closes something (visibility, leases,
//!   a secret that comes before another) closes it as far as it could have.
//! - Before a caller removes what no row names, it asks [`Store::unreadable_of`]: the unreadable row may name it.
//! - The ids of all rows, by which what lies on the host is told from leftovers, are read whole or not at all.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::SqlSafeStr;

use crate::Store;
use crate::db::{BadColumn, Row, Value};
use crate::error::StoreError;

/// Unreadable rows that the store remembers; the log names no more than these either.
const REMEMBERED_MAX_COUNT: usize = 1000;

/// A row that this program cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRow {
    /// Its table.
    pub table: &'static str,
    /// Which row; `?` when that cannot be read either.
    pub id: String,
    /// The first column that makes no sense.
    pub column: &'static str,
    /// The name in it, as the database keeps it: with the project's id and a slash in front, if there is a project.
    pub name: Option<String>,
    /// To whom it belongs: a project, or, for a secret, its owner.
    pub of: Option<String>,
}

impl From<UnreadableRow> for StoreError {
    fn from(row: UnreadableRow) -> Self {
        Self::Corrupt { table: row.table, id: row.id, column: row.column }
    }
}

/// How the rows of a table are told apart when they cannot be read.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The column that says which row it is.
    pub(crate) key: &'static str,
    /// The column with the name that people gave.
    pub(crate) named: Option<&'static str>,
    /// The column that says to whom it belongs.
    pub(crate) of: Option<&'static str>,
}

impl Table {
    pub(crate) const fn new(name: &'static str, key: &'static str) -> Self {
        Self { name, key, named: None, of: None }
    }

    pub(crate) const fn named(self, column: &'static str) -> Self {
        Self { named: Some(column), ..self }
    }

    pub(crate) const fn of(self, column: &'static str) -> Self {
        Self { of: Some(column), ..self }
    }

    fn unreadable(&self, row: &Row, column: BadColumn) -> UnreadableRow {
        let text = |of: Option<&'static str>| row.text_opt(of?).ok().flatten();
        UnreadableRow {
            table: self.name,
            id: row.text(self.key).unwrap_or_else(|_| "?".to_owned()),
            column,
            name: text(self.named),
            of: text(self.of),
        }
    }
}

/// Which rows of a table a list is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All: what was unreadable before and is not now has been mended or removed.
    All,
    /// Some.
    Some,
}

/// The unreadable rows that were met, by table and id.
#[derive(Debug, Default, Clone)]
pub(crate) struct Met {
    rows: Arc<Mutex<BTreeMap<(&'static str, String), UnreadableRow>>>,
}

impl Met {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), UnreadableRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row was written anew, or is gone.
    pub(crate) fn mended(&self, table: &Table, id: &str) {
        self.lock().retain(|(of, row), _| *of != table.name || row != id);
    }

    /// As if nothing had been met.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn note(&self, table: &'static str, which: Which, found: Vec<UnreadableRow>) {
        let mut rows = self.lock();
        if which == Which::All {
            rows.retain(|(of, id), _| *of != table || found.iter().any(|row| row.id == *id));
        }
        for row in found {
            let key = (table, row.id.clone());
            if rows.contains_key(&key) || rows.len() >= REMEMBERED_MAX_COUNT {
                continue;
            }
            tracing::error!(table, id = row.id, column = row.column, "a row cannot be read and is left out");
            rows.insert(key, row);
        }
    }
}

impl Store {
    /// Reads rows as a list. Those that cannot be read are left out and remembered.
    pub(crate) async fn list<T>(
        &self,
        table: &'static Table,
        which: Which,
        sql: impl SqlSafeStr + Send + 'static,
        values: Vec<Value>,
        read: impl Fn(&Row) -> Result<T, BadColumn>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.read(move |mut conn| Box::pin(async move { conn.rows(sql, values).await })).await?;
        Ok(self.readable(table, which, &rows, read))
    }

    /// The rows that can be read; the others are remembered.
    pub(crate) fn readable<T>(
        &self,
        table: &'static Table,
        which: Which,
        rows: &[Row],
        read: impl Fn(&Row) -> Result<T, BadColumn>,
    ) -> Vec<T> {
        let (mut items, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            match read(row) {
                Ok(item) => items.push(item),
                Err(column) => unreadable.push(table.unreadable(row, column)),
            }
        }
        self.met.note(table.name, which, unreadable);
        items
    }

    /// The ids of rows, also of unreadable ones. Those without a readable time are in no page of a listing: they are
    /// remembered here.
    pub(crate) async fn ids<T: FromStr>(
        &self,
        table: &'static Table,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.read(move |mut conn| Box::pin(async move { conn.rows(sql, values).await })).await?;
        self.readable(table, Which::Some, &rows, |row| row.uint("created_ms"));
        rows.iter().map(|row| row.decode(table.name, table.key, |row| row.parse(table.key))).collect()
    }

    /// The unreadable rows that were met since the database was opened, at most 1000. A row goes from here when its table
    /// was read as a whole and the row was mended or gone. Sandboxes, commands, builds and snapshots are read in pages:
    /// their rows stay here until the database is opened again.
    #[must_use]
    pub fn unreadable(&self) -> Vec<UnreadableRow> {
        self.met.lock().values().cloned().collect()
    }

    /// Those of one table.
    #[must_use]
    pub fn unreadable_of(&self, table: &str) -> Vec<UnreadableRow> {
        self.met.lock().values().filter(|row| row.table == table).cloned().collect()
    }

    /// The unreadable row of a table that has this id, or this name in the form that the database keeps.
    #[must_use]
    pub fn unreadable_named(&self, table: &str, id_or_name: &str) -> Option<UnreadableRow> {
        let rows = self.met.lock();
        let meant = |row: &&UnreadableRow| {
            row.table == table && (row.id == id_or_name || row.name.as_deref() == Some(id_or_name))
        };
        rows.values().find(meant).cloned()
    }
}
