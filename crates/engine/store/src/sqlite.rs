//! SQLite: connections, and statements that run in place, on the thread that calls.
//!
//! In go SQL and the values of `$1`, `$2` …; out come rows that hold their values, so that they may be read on another
//! thread, or the number of rows that were changed. Statements stay prepared for as long as the connection lives.
//!
//! Nothing here waits but for the disk and for locks of other processes. So it belongs on a thread that may: the
//! writer's ([`crate::writer`]), or one of the readers' ([`crate::readers`]).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, OpenFlags, Statement, ToSql};

use crate::db::{BadColumn, Value};

/// How long SQLite waits for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Statements that a connection keeps prepared: as many as this crate has, and some of those that are put together.
const PREPARED_MAX_COUNT: usize = 256;

/// Opens a database in memory, which only this connection can see.
pub(crate) fn open_in_memory() -> rusqlite::Result<Connection> {
    prepare(Connection::open_in_memory()?, "PRAGMA foreign_keys = ON")
}

/// Opens the file, which must be there, to read and write.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    prepare(file(path)?, "PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL")
}

/// Opens the file to read.
pub(crate) fn open_to_read(path: &Path) -> rusqlite::Result<Connection> {
    prepare(file(path)?, "PRAGMA foreign_keys = ON; PRAGMA query_only = 1")
}

fn file(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

fn prepare(conn: Connection, pragmas: &str) -> rusqlite::Result<Connection> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(PREPARED_MAX_COUNT);
    conn.execute_batch(pragmas)?;
    Ok(conn)
}

/// Runs a statement to its end, also one that gives rows; says how many rows it changed.
pub(crate) fn execute(conn: &Connection, sql: &str, values: &[Value]) -> rusqlite::Result<u64> {
    let mut statement = conn.prepare_cached(sql)?;
    bind(&mut statement, values)?;
    let mut rows = statement.raw_query();
    while rows.next()?.is_some() {}
    Ok(conn.changes())
}

/// Runs a query; gives every row.
pub(crate) fn rows(conn: &Connection, sql: &str, values: &[Value]) -> rusqlite::Result<Vec<Row>> {
    let mut statement = conn.prepare_cached(sql)?;
    bind(&mut statement, values)?;
    let mut found = Vec::new();
    let mut columns = None;
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        // Not before the first row: until then the statement may still be of an older schema.
        let columns = columns.get_or_insert_with(|| names(row.as_ref()));
        let cells = (0..columns.len()).map(|index| row.get_ref(index).map(Cell::of));
        found.push(Row { cells: cells.collect::<Result<_, _>>()?, columns: Arc::clone(columns) });
    }
    Ok(found)
}

fn names(statement: &Statement<'_>) -> Arc<[Box<str>]> {
    statement.column_names().into_iter().map(Box::from).collect()
}

/// Binds values to `$1`, `$2` …, which are names to SQLite: it numbers them as they occur.
fn bind(statement: &mut Statement<'_>, values: &[Value]) -> rusqlite::Result<()> {
    for index in 1..=statement.parameter_count() {
        let name = statement.parameter_name(index).unwrap_or_default();
        let Some(number) = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok()) else {
            return Err(Error::InvalidParameterName(name.to_owned()));
        };
        let Some(value) = number.checked_sub(1).and_then(|at| values.get(at)) else {
            return Err(Error::InvalidParameterCount(values.len(), number));
        };
        statement.raw_bind_parameter(index, value)?;
    }
    Ok(())
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Self::Int(Some(number)) => ValueRef::Integer(*number),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
            Self::Text(None) | Self::Int(None) | Self::NoBytes => ValueRef::Null,
        }))
    }
}

/// A row, as it was when the query ran.
#[derive(Debug)]
pub(crate) struct Row {
    columns: Arc<[Box<str>]>,
    cells: Box<[Cell]>,
}

/// A value. A text that is none in UTF-8 is bytes.
#[derive(Debug)]
enum Cell {
    Null,
    Int(i64),
    Real,
    Text(String),
    Bytes(Vec<u8>),
}

impl Cell {
    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Int(number),
            ValueRef::Real(_) => Self::Real,
            ValueRef::Text(text) => match str::from_utf8(text) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes(text.to_vec()),
            },
            ValueRef::Blob(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

/// SQLite lets every value into every column: what is read must be of the type that is asked for, and nothing is
/// converted.
impl Row {
    fn cell(&self, column: BadColumn) -> Result<&Cell, BadColumn> {
        // Of columns of one name the last counts, as with PostgreSQL's driver.
        let at = self.columns.iter().rposition(|name| **name == *column);
        at.and_then(|at| self.cells.get(at)).ok_or(column)
    }

    pub(crate) fn str(&self, column: &'static str) -> Result<&str, BadColumn> {
        if let Cell::Text(text) = self.cell(column)? { Ok(text) } else { Err(column) }
    }

    pub(crate) fn str_opt(&self, column: &'static str) -> Result<Option<&str>, BadColumn> {
        if let Cell::Null = self.cell(column)? { Ok(None) } else { self.str(column).map(Some) }
    }

    pub(crate) fn int(&self, column: &'static str) -> Result<i64, BadColumn> {
        if let Cell::Int(number) = self.cell(column)? { Ok(*number) } else { Err(column) }
    }

    pub(crate) fn int_opt(&self, column: &'static str) -> Result<Option<i64>, BadColumn> {
        if let Cell::Null = self.cell(column)? { Ok(None) } else { self.int(column).map(Some) }
    }

    /// Bytes, also those of a text.
    pub(crate) fn slice(&self, column: &'static str) -> Result<&[u8], BadColumn> {
        match self.cell(column)? {
            Cell::Bytes(bytes) => Ok(bytes),
            Cell::Text(text) => Ok(text.as_bytes()),
            Cell::Null | Cell::Int(_) | Cell::Real => Err(column),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::args;

    fn one(conn: &Connection, sql: &str, values: &[Value]) -> Row {
        rows(conn, sql, values).unwrap().pop().unwrap()
    }

    #[test]
    fn what_is_read_is_of_the_type_that_is_asked_for() {
        let conn = open_in_memory().unwrap();
        let row = one(
            &conn,
            "SELECT NULL AS none, 7 AS number, 7.0 AS real, '7' AS text, X'37' AS bytes, \
             CAST(X'ff' AS TEXT) AS broken",
            &[],
        );
        assert_eq!(row.str("text"), Ok("7"));
        assert_eq!(row.str_opt("text"), Ok(Some("7")));
        assert_eq!(row.int("number"), Ok(7));
        assert_eq!(row.int_opt("number"), Ok(Some(7)));
        assert_eq!(row.slice("bytes"), Ok(&b"7"[..]));
        assert_eq!(row.slice("text"), Ok(&b"7"[..]));
        assert_eq!((row.str_opt("none"), row.int_opt("none")), (Ok(None), Ok(None)));
        for column in ["none", "number", "real", "bytes", "broken", "missing"] {
            assert_eq!(row.str(column), Err(column));
        }
        for column in ["none", "real", "text", "bytes", "broken", "missing"] {
            assert_eq!(row.int(column), Err(column));
        }
        for column in ["none", "number", "real", "missing"] {
            assert_eq!(row.slice(column), Err(column));
        }
        for column in ["real", "bytes", "missing"] {
            assert_eq!((row.str_opt(column), row.int_opt(column)), (Err(column), Err(column)));
        }
        assert_eq!((row.str_opt("number"), row.int_opt("text")), (Err("number"), Err("text")));
    }

    #[test]
    fn values_go_where_their_numbers_are() {
        let conn = open_in_memory().unwrap();
        let sql = "SELECT $2 AS b, $1 AS a, $2 AS again, $12 AS l";
        let mut values = args!["one", 2_u64, None::<&str>];
        values.resize(12, Value::NoBytes);
        values[11] = Value::from("twelve");
        let row = one(&conn, sql, &values);
        assert_eq!((row.str("a"), row.int("b"), row.int("again")), (Ok("one"), Ok(2), Ok(2)));
        assert_eq!(row.str("l"), Ok("twelve"));
        // Nothing is left over from the last time.
        assert!(matches!(rows(&conn, sql, &values[..1]), Err(Error::InvalidParameterCount(1, 2))));
        assert!(matches!(rows(&conn, "SELECT :a", &values), Err(Error::InvalidParameterName(_))));
        let empty = one(&conn, "SELECT $1 AS a, $2 AS b", &[Value::Bytes(Vec::new()), Value::Int(None)]);
        assert_eq!((empty.slice("a"), empty.int_opt("b")), (Ok(&b""[..]), Ok(None)));
    }

    #[test]
    fn a_prepared_statement_sees_what_became_of_its_table() {
        let conn = open_in_memory().unwrap();
        execute(&conn, "CREATE TABLE t (a BIGINT)", &[]).unwrap();
        assert_eq!(execute(&conn, "INSERT INTO t VALUES ($1), ($1)", &[Value::from(1_u64)]).unwrap(), 2);
        let select = "SELECT * FROM t";
        assert_eq!(one(&conn, select, &[]).str("b"), Err("b"));
        execute(&conn, "ALTER TABLE t ADD COLUMN b TEXT NOT NULL DEFAULT 'new'", &[]).unwrap();
        assert_eq!(one(&conn, select, &[]).str("b"), Ok("new"));
    }
}
