//! The seam between the two databases: one connection type, one value type, one row type.
//!
//! On PostgreSQL a statement is awaited; on SQLite it runs in place ([`crate::sqlite`]), and its future is ready at once.
//!
//! Everything above this module is written once. The SQL keeps to what both databases understand
//! (TEXT, BIGINT, BYTEA, `$1`, `ON CONFLICT`, `RETURNING`), and values are only ever bound, never
//! written into the text.

use atoll_core::exec::ExecState;
use atoll_core::sandbox::SandboxState;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _, SqlSafeStr};

use crate::error::StoreError;
use crate::sqlite;

/// A value to bind.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(Option<String>),
    Int(Option<i64>),
    Bytes(Vec<u8>),
    NoBytes,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(Some(number))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(Some(number.into()))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(Some(saturate(number)))
    }
}

impl From<Option<u64>> for Value {
    fn from(number: Option<u64>) -> Self {
        Self::Int(number.map(saturate))
    }
}

impl From<Option<u32>> for Value {
    fn from(number: Option<u32>) -> Self {
        Self::Int(number.map(i64::from))
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

/// Times and byte counts above `i64::MAX` mean "never ends" or "more than there is": the largest
/// number that both databases hold says the same.
fn saturate(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The JSON form of a spec, exit, or list.
pub(crate) fn json(value: &impl Serialize) -> Result<Value, StoreError> {
    serde_json::to_string(value).map(Value::from).map_err(StoreError::unavailable)
}

/// Builds an argument list: `args![id.as_str(), 5_u64]`.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::db::Value::from($value)),*] };
}
pub(crate) use args;

/// A connection to either database, for the length of one operation.
#[derive(Debug)]
pub(crate) enum Conn<'c> {
    Sqlite(&'c mut rusqlite::Connection),
    Postgres(&'c mut PgConnection),
}

impl Conn<'_> {
    /// The same connection, for a part of the operation.
    pub(crate) fn again(&mut self) -> Conn<'_> {
        match self {
            Self::Sqlite(conn) => Conn::Sqlite(conn),
            Self::Postgres(conn) => Conn::Postgres(conn),
        }
    }

    /// Runs a statement; says how many rows it changed.
    pub(crate) async fn execute(
        &mut self,
        sql: impl SqlSafeStr,
        values: Vec<Value>,
    ) -> Result<u64, StoreError> {
        check(&values)?;
        Ok(match self {
            Self::Sqlite(conn) => sqlite::execute(conn, sql.into_sql_str().as_str(), &values)?,
            Self::Postgres(conn) => bind_postgres(sql, values).execute(&mut **conn).await?.rows_affected(),
        })
    }

    /// Runs a query; gives every row.
    pub(crate) async fn rows(
        &mut self,
        sql: impl SqlSafeStr,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, StoreError> {
        check(&values)?;
        Ok(match self {
            Self::Sqlite(conn) => {
                let rows = sqlite::rows(conn, sql.into_sql_str().as_str(), &values)?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
            Self::Postgres(conn) => {
                let rows = bind_postgres(sql, values).fetch_all(&mut **conn).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
        })
    }

    /// Runs a query that gives at most one row.
    pub(crate) async fn row(
        &mut self,
        sql: impl SqlSafeStr,
        values: Vec<Value>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }
}

/// PostgreSQL refuses NUL in a text; so do we, before either database sees it.
fn check(values: &[Value]) -> Result<(), StoreError> {
    let has_nul = |value: &Value| matches!(value, Value::Text(Some(text)) if text.contains('\0'));
    if values.iter().any(has_nul) { Err(StoreError::Nul) } else { Ok(()) }
}

fn bind_postgres<'q>(sql: impl SqlSafeStr, values: Vec<Value>) -> Query<'q, Postgres, PgArguments> {
    values.into_iter().fold(sqlx::query(sql), |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Int(number) => query.bind(number),
        Value::Bytes(bytes) => query.bind(bytes),
        Value::NoBytes => query.bind(None::<Vec<u8>>),
    })
}

/// The column that could not be read.
pub(crate) type BadColumn = &'static str;

/// A row of either database. Reading a column gives the column's name when it makes no sense.
pub(crate) enum Row {
    Sqlite(sqlite::Row),
    Postgres(PgRow),
}

macro_rules! column_reader {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&self, column: &'static str) -> Result<$type, BadColumn> {
            match self {
                Self::Sqlite(row) => row.$name(column),
                Self::Postgres(row) => row.try_get(column).or(Err(column)),
            }
        }
    };
}

impl Row {
    column_reader!(str, &str);
    column_reader!(str_opt, Option<&str>);
    column_reader!(int, i64);
    column_reader!(int_opt, Option<i64>);
    column_reader!(slice, &[u8]);

    pub(crate) fn text(&self, column: &'static str) -> Result<String, BadColumn> {
        self.str(column).map(str::to_owned)
    }

    pub(crate) fn text_opt(&self, column: &'static str) -> Result<Option<String>, BadColumn> {
        self.str_opt(column).map(|text| text.map(str::to_owned))
    }

    pub(crate) fn bytes(&self, column: &'static str) -> Result<Vec<u8>, BadColumn> {
        self.slice(column).map(<[u8]>::to_vec)
    }

    pub(crate) fn uint(&self, column: &'static str) -> Result<u64, BadColumn> {
        u64::try_from(self.int(column)?).or(Err(column))
    }

    pub(crate) fn uint_opt(&self, column: &'static str) -> Result<Option<u64>, BadColumn> {
        self.int_opt(column)?.map(u64::try_from).transpose().or(Err(column))
    }

    pub(crate) fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, BadColumn> {
        serde_json::from_str(self.str(column)?).or(Err(column))
    }

    pub(crate) fn parse<T: std::str::FromStr>(&self, column: &'static str) -> Result<T, BadColumn> {
        self.str(column)?.parse().or(Err(column))
    }

    pub(crate) fn parse_opt<T: std::str::FromStr>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, BadColumn> {
        self.str_opt(column)?.map(str::parse).transpose().or(Err(column))
    }

    pub(crate) fn sandbox_state(&self) -> Result<SandboxState, BadColumn> {
        SandboxState::parse(self.str("state")?).ok_or("state")
    }

    pub(crate) fn exec_state(&self) -> Result<ExecState, BadColumn> {
        ExecState::parse(self.str("state")?).ok_or("state")
    }

    /// Reads a spec whose form must be of `version`.
    pub(crate) fn spec<T: DeserializeOwned>(&self, version: i64) -> Result<T, BadColumn> {
        if self.int("spec_version")? != version {
            return Err("spec_version");
        }
        self.json("spec")
    }

    /// Reads the whole row with `read`; what fails becomes [`StoreError::Corrupt`] with the text of
    /// the column `key`.
    pub(crate) fn decode<T>(
        &self,
        table: &'static str,
        key: &'static str,
        read: impl FnOnce(&Self) -> Result<T, BadColumn>,
    ) -> Result<T, StoreError> {
        read(self).map_err(|column| StoreError::Corrupt {
            table,
            id: self.text(key).unwrap_or_else(|_| "?".to_owned()),
            column,
        })
    }
}
