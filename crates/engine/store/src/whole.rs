//! The whole of a PostgreSQL database as files, one for each table, and back: for backups of a cluster.
//!
//! ```text
//! DIR/version        the newest migration
//! DIR/TABLE          its rows, as COPY writes them
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use futures::StreamExt as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use crate::StoreUrl;
use crate::error::StoreError;
use crate::migrations::{self, MIGRATIONS};

/// Name of the file that says which migration was the newest.
const VERSION: &str = "version";
/// Our tables with their columns, quoted, without the table in which sqlx notes the migrations.
const TABLES: &str = "SELECT table_name::text AS name, quote_ident(table_name) AS quoted, \
     string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position) AS columns \
     FROM information_schema.columns WHERE table_schema = current_schema() AND table_name <> '_sqlx_migrations' \
     GROUP BY table_name ORDER BY table_name";
/// Which table refers to which other.
const REFERENCES: &str = "SELECT a.relname::text AS one, b.relname::text AS other FROM pg_constraint c \
     JOIN pg_class a ON a.oid = c.conrelid JOIN pg_class b ON b.oid = c.confrelid \
     WHERE c.contype = 'f' AND a.oid <> b.oid AND c.connamespace = current_schema()::regnamespace";

/// The restored nodes keep what they had, but no server may contact them: they may still run, on the original
/// database. So their addresses lead nowhere and their epochs are raised. When they have been silent for their lease,
/// another node takes them over, as it does with nodes that died.
const LEAVE: &str = "UPDATE nodes SET address = '127.0.0.1:9', epoch = epoch + 1";

/// Why a database cannot be written to files, or read from them.
#[derive(Debug, thiserror::Error)]
pub enum WholeError {
    /// It is none that servers share.
    #[error("this is no PostgreSQL database")]
    NotShared,
    /// It belongs to another version of the program.
    #[error("the schema is of version {found}, and this program's of version {own}")]
    Version {
        /// What it has.
        found: i64,
        /// What this program knows.
        own: i64,
    },
    /// Something is in it already.
    #[error("the database is not empty: there is something in the table {table}")]
    NotEmpty {
        /// Where.
        table: String,
    },
    /// A file cannot be written or read.
    #[error("the file of the table {table} cannot be written or read")]
    File {
        /// Which.
        table: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The database does not answer, or refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for WholeError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(StoreError::unavailable(error))
    }
}

struct Table {
    name: String,
    quoted: String,
    columns: String,
}

async fn connect(url: &StoreUrl) -> Result<PgConnection, WholeError> {
    let StoreUrl::Postgres(url) = url else { return Err(WholeError::NotShared) };
    let options = url.reveal().parse::<PgConnectOptions>()?.application_name("atoll");
    Ok(PgConnection::connect_with(&options).await?)
}

fn same_version(found: i64) -> Result<(), WholeError> {
    let own = migrations::newest();
    if found == own { Ok(()) } else { Err(WholeError::Version { found, own }) }
}

async fn tables(conn: &mut PgConnection) -> Result<Vec<Table>, WholeError> {
    let rows = sqlx::query(TABLES).fetch_all(conn).await?;
    let one = |row: &sqlx::postgres::PgRow| {
        Ok(Table {
            name: row.try_get("name")?,
            quoted: row.try_get("quoted")?,
            columns: row.try_get("columns")?,
        })
    };
    rows.iter().map(one).collect::<Result<_, sqlx::Error>>().map_err(WholeError::from)
}

/// Writes all rows as they are at one moment, while servers go on, to files in an empty directory. Gives the copies of
/// sandboxes that the rows refer to: sandbox and upload.
///
/// # Errors
/// [`WholeError`].
pub async fn dump(url: &StoreUrl, dir: &Path) -> Result<Vec<(String, String)>, WholeError> {
    const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    const KEPT: &str = "SELECT sandbox_id, copy FROM kept WHERE copy IS NOT NULL";
    let mut conn = connect(url).await?;
    sqlx::query(BEGIN).execute(&mut conn).await?;
    let found: Option<i64> =
        sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(&mut conn).await?;
    same_version(found.unwrap_or_default())?;
    let failed = |table: &str, source| WholeError::File { table: table.to_owned(), source };
    let version = tokio::fs::write(dir.join(VERSION), migrations::newest().to_string()).await;
    version.map_err(|error| failed(VERSION, error))?;
    for table in tables(&mut conn).await? {
        let Table { name, quoted, columns } = table;
        let mut file = File::create_new(dir.join(&name)).await.map_err(|error| failed(&name, error))?;
        let mut rows = conn.copy_out_raw(&format!("COPY {quoted} ({columns}) TO STDOUT")).await?;
        while let Some(piece) = rows.next().await {
            file.write_all(&piece?).await.map_err(|error| failed(&name, error))?;
        }
        file.flush().await.map_err(|error| failed(&name, error))?;
    }
    let copies = sqlx::query(KEPT).fetch_all(&mut conn).await?;
    let one = |row: &sqlx::postgres::PgRow| Ok((row.try_get("sandbox_id")?, row.try_get("copy")?));
    let copies = copies.iter().map(one).collect::<Result<_, sqlx::Error>>()?;
    conn.close().await?;
    Ok(copies)
}

/// Refuses a database in which there is anything.
///
/// # Errors
/// [`WholeError::NotEmpty`].
pub async fn check_empty(url: &StoreUrl) -> Result<(), WholeError> {
    let mut conn = connect(url).await?;
    for table in tables(&mut conn).await? {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {})", table.quoted);
        if sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut conn).await? {
            return Err(WholeError::NotEmpty { table: table.name });
        }
    }
    Ok(conn.close().await?)
}

/// Makes the schema in an empty database and puts in what [`dump`] wrote: all of it, or nothing.
///
/// # Errors
/// [`WholeError`].
pub async fn load(url: &StoreUrl, dir: &Path) -> Result<(), WholeError> {
    let failed = |table: &str, source| WholeError::File { table: table.to_owned(), source };
    let text = tokio::fs::read_to_string(dir.join(VERSION)).await.map_err(|error| failed(VERSION, error))?;
    same_version(text.trim().parse().unwrap_or_default())?;
    check_empty(url).await?;
    let mut conn = connect(url).await?;
    let migrated = MIGRATIONS.run(&mut conn).await;
    migrated.map_err(|error| StoreError::Schema { source: std::sync::Arc::new(error) })?;
    let tables = tables(&mut conn).await?;
    let references = sqlx::query(REFERENCES).fetch_all(&mut conn).await?;
    let one = |row: &sqlx::postgres::PgRow| Ok((row.try_get("one")?, row.try_get("other")?));
    let references: Vec<(String, String)> = references.iter().map(one).collect::<Result<_, sqlx::Error>>()?;
    sqlx::query("BEGIN").execute(&mut conn).await?;
    for table in in_order(tables, &references) {
        let Table { name, quoted, columns } = table;
        let file = File::open(dir.join(&name)).await.map_err(|error| failed(&name, error))?;
        let mut into = conn.copy_in_raw(&format!("COPY {quoted} ({columns}) FROM STDIN")).await?;
        into.read_from(file).await?;
        into.finish().await?;
    }
    sqlx::query(LEAVE).execute(&mut conn).await?;
    sqlx::query("COMMIT").execute(&mut conn).await?;
    Ok(conn.close().await?)
}

/// Orders tables so that each comes after those that it refers to.
fn in_order(tables: Vec<Table>, references: &[(String, String)]) -> Vec<Table> {
    let mut left: BTreeMap<String, Table> =
        tables.into_iter().map(|table| (table.name.clone(), table)).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let waits =
            |name: &String| references.iter().any(|(one, other)| one == name && left.contains_key(other));
        let next = left.keys().find(|name| !waits(name)).or_else(|| left.keys().next()).cloned();
        order.extend(next.and_then(|name| left.remove(&name)));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_referred_to_comes_first() {
        let table =
            |name: &str| Table { name: name.to_owned(), quoted: String::new(), columns: String::new() };
        let pairs = [("a", "b"), ("b", "c"), ("a", "c")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let order = in_order(vec![table("a"), table("b"), table("c"), table("d")], &pairs);
        let names: Vec<_> = order.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(names, ["c", "b", "a", "d"]);
    }
}
