//! Lists of rows, of which some may be unreadable: written by a newer program, or damaged.
//!
//! One such row must not hide the others, nor keep the server from starting. So every list leaves it out, says so in the
//! log once, and the store remembers it ([`Store::unreadable`]). What a row said does not follow from its absence, and
//! these rules hold for all who read lists:
//!
//! - Looking one record up by its id or name is an error ([`StoreError::Corrupt`]), not an absence.
//! - What opens something (keys, roles, accesses) is missing: nobody gets in. What closes something (visibility, leases,
//!   a secret that comes before another) closes it as far as it could have.
//! - Before a caller removes what no row names, it asks [`Store::unreadable_of`]: the unreadable row may name it. The store
//!   remembers only so many rows of each table; beyond these it goes on to say that there are some.
//! - The ids of all rows, by which what lies on the host is told from leftovers, are read whole or not at all.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::SqlSafeStr;

use crate::Store;
use crate::db::{BadColumn, Row, Value};
use crate::error::StoreError;

/// Unreadable rows of one table that the store remembers; the log names no more than these either. That there are more
/// is remembered, too.
const REMEMBERED_MAX_COUNT: usize = 1000;
/// Stands for what cannot be read.
const UNKNOWN: &str = "?";

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

/// The unreadable rows that were met, of one table or of all: those that the store remembers, and whether these are all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    remembered: Vec<UnreadableRow>,
    overflowed: bool,
}

impl Unreadable {
    /// Whether none was met.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remembered.is_empty() && !self.overflowed
    }

    /// All of them; `None` when not each one is known by its id: there were more than the store remembers, or an id
    /// cannot be read.
    #[must_use]
    pub fn all(&self) -> Option<&[UnreadableRow]> {
        let known = !self.overflowed && self.remembered.iter().all(|row| row.id != UNKNOWN);
        known.then_some(self.remembered.as_slice())
    }

    /// Those that the store remembers, to show or count them. Nothing follows for the others.
    #[must_use]
    pub fn remembered(&self) -> &[UnreadableRow] {
        &self.remembered
    }

    /// Whether there were more than the store remembers.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }
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
            id: row.text(self.key).unwrap_or_else(|_| UNKNOWN.to_owned()),
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

/// The unreadable rows of one table that were met.
#[derive(Debug, Default)]
struct OfTable {
    /// By id.
    rows: BTreeMap<String, UnreadableRow>,
    /// There were more than are remembered. Holds until the database is opened again: which ones is not known, so
    /// nothing tells that they have been mended.
    overflowed: bool,
}

impl OfTable {
    /// What is remembered, as an answer.
    fn told(&self) -> Unreadable {
        Unreadable { remembered: self.rows.values().cloned().collect(), overflowed: self.overflowed }
    }
}

/// The unreadable rows that were met. Each table has a bound of its own: the rows of one take no place from another's.
#[derive(Debug, Default, Clone)]
pub(crate) struct Met {
    tables: Arc<Mutex<BTreeMap<&'static str, OfTable>>>,
}

impl Met {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, OfTable>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row was written anew, or is gone.
    pub(crate) fn mended(&self, table: &Table, id: &str) {
        if let Some(of) = self.lock().get_mut(table.name) {
            of.rows.remove(id);
        }
    }

    /// As if nothing had been met.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn note(&self, table: &'static str, which: Which, found: Vec<UnreadableRow>) {
        let mut tables = self.lock();
        if found.is_empty() && !tables.contains_key(table) {
            return;
        }
        let of = tables.entry(table).or_default();
        if which == Which::All {
            of.rows.retain(|id, _| found.iter().any(|row| row.id == *id));
        }
        for row in found {
            if of.rows.contains_key(&row.id) {
                continue;
            }
            if of.rows.len() >= REMEMBERED_MAX_COUNT {
                if !of.overflowed {
                    tracing::error!(table, "more rows cannot be read than are named here");
                }
                of.overflowed = true;
                break;
            }
            tracing::error!(table, id = row.id, column = row.column, "a row cannot be read and is left out");
            of.rows.insert(row.id.clone(), row);
        }
    }

    fn all(&self) -> Unreadable {
        let tables = self.lock();
        Unreadable {
            remembered: tables.values().flat_map(|of| of.rows.values().cloned()).collect(),
            overflowed: tables.values().any(|of| of.overflowed),
        }
    }

    fn of(&self, table: &str) -> Unreadable {
        self.lock().get(table).map_or(Unreadable { remembered: Vec::new(), overflowed: false }, OfTable::told)
    }

    fn named(&self, table: &str, id_or_name: &str) -> Option<UnreadableRow> {
        let tables = self.lock();
        let (&table, of) = tables.get_key_value(table)?;
        let meant = |row: &&UnreadableRow| row.id == id_or_name || row.name.as_deref() == Some(id_or_name);
        if let Some(row) = of.rows.values().find(meant) {
            return Some(row.clone());
        }
        // It may be one of those that are not remembered.
        of.overflowed.then(|| UnreadableRow {
            table,
            id: id_or_name.to_owned(),
            column: UNKNOWN,
            name: None,
            of: None,
        })
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

    /// The unreadable rows that were met since the database was opened: of each table at most 1000, and whether there were
    /// more. A row goes from here when its table was read as a whole and the row was mended or gone. Sandboxes, commands,
    /// builds and snapshots are read in pages: their rows stay here until the database is opened again, as does the word
    /// that there were more.
    #[must_use]
    pub fn unreadable(&self) -> Unreadable {
        self.met.all()
    }

    /// Those of one table.
    #[must_use]
    pub fn unreadable_of(&self, table: &str) -> Unreadable {
        self.met.of(table)
    }

    /// The unreadable row of a table that has this id, or this name in the form that the database keeps. When there were
    /// more than the store remembers it may be one of the others: then there is always one.
    #[must_use]
    pub fn unreadable_named(&self, table: &str, id_or_name: &str) -> Option<UnreadableRow> {
        self.met.named(table, id_or_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(table: &'static str, id: &str) -> UnreadableRow {
        UnreadableRow { table, id: id.to_owned(), column: "spec", name: None, of: None }
    }

    #[test]
    fn a_table_full_of_unreadable_rows_hides_none_of_another() {
        let met = Met::default();
        let many = |range: std::ops::Range<usize>| -> Vec<_> {
            range.map(|n| row("execs", &format!("x{n}"))).collect()
        };
        met.note("execs", Which::Some, many(0..REMEMBERED_MAX_COUNT));
        assert!(!met.of("execs").overflowed() && met.of("templates").is_empty());
        met.note("templates", Which::All, vec![row("templates", "t1")]);
        assert_eq!(met.of("templates").all(), Some(&[row("templates", "t1")][..]));
        assert!(met.named("templates", "t1").is_some() && met.named("templates", "t2").is_none());
        // The room for one table is bounded, and what does not fit is known to be there.
        met.note("execs", Which::Some, many(REMEMBERED_MAX_COUNT..REMEMBERED_MAX_COUNT + 5));
        let execs = met.of("execs");
        assert_eq!((execs.remembered().len(), execs.all()), (REMEMBERED_MAX_COUNT, None));
        assert!(met.named("execs", "any").is_some_and(|row| row.table == "execs" && row.id == "any"));
        assert!(met.all().overflowed() && met.of("templates").all().is_some());
    }

    #[test]
    fn that_there_were_more_is_not_forgotten() {
        let met = Met::default();
        let many = (0..=REMEMBERED_MAX_COUNT).map(|n| row("templates", &format!("t{n}"))).collect();
        met.note("templates", Which::All, many);
        let table = Table::new("templates", "id");
        for n in 0..REMEMBERED_MAX_COUNT {
            met.mended(&table, &format!("t{n}"));
        }
        met.note("templates", Which::All, Vec::new());
        let left = met.of("templates");
        assert!(left.remembered().is_empty() && !left.is_empty() && left.all().is_none());
    }

    #[test]
    fn a_row_without_a_readable_id_may_be_any() {
        let met = Met::default();
        met.note("snapshots", Which::Some, vec![row("snapshots", "s1")]);
        assert!(met.of("snapshots").all().is_some());
        met.note("snapshots", Which::Some, vec![row("snapshots", UNKNOWN)]);
        assert!(met.of("snapshots").all().is_none() && !met.of("snapshots").overflowed());
    }
}
