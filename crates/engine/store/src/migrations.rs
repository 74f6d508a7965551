//! The schema, as migrations: `migrations/NUMBER_NAME.sql`. The database notes which ones have run, and one in which
//! unknown or different ones have run is refused. On PostgreSQL sqlx does that; on SQLite [`run`] does the same, with
//! the same table, as sqlx once did there, too.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use rusqlite::{Connection, TransactionBehavior, params};
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use crate::error::StoreError;

/// The table as sqlx makes it.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
)";

/// Names and texts, made by the build script.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    Migrator::with_migrations(FILES.iter().filter_map(|(name, sql)| step(name, sql)).collect())
});

/// The newest.
pub(crate) fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// A migration that does not run.
#[derive(Debug, thiserror::Error)]
#[error("while executing migration {version}: {source}")]
struct Failed {
    version: i64,
    source: rusqlite::Error,
}

/// Brings the schema of a SQLite database up to date.
pub(crate) fn run(conn: &mut Connection) -> Result<(), StoreError> {
    const UNFINISHED: &str = "SELECT min(version) FROM _sqlx_migrations WHERE success = FALSE";
    const NOTED: &str = "SELECT version, checksum FROM _sqlx_migrations";
    conn.execute_batch(TABLE)?;
    if let Some(version) = conn.query_one(UNFINISHED, [], |row| row.get(0))? {
        return Err(schema_error(MigrateError::Dirty(version)));
    }
    let noted: BTreeMap<i64, Vec<u8>> = conn
        .prepare(NOTED)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    if let Some(unknown) = noted.keys().find(|version| !MIGRATIONS.version_exists(**version)) {
        return Err(schema_error(MigrateError::VersionMissing(*unknown)));
    }
    for migration in MIGRATIONS.iter() {
        match noted.get(&migration.version) {
            Some(checksum) if *checksum == *migration.checksum => {}
            Some(_) => return Err(schema_error(MigrateError::VersionMismatch(migration.version))),
            None => apply(conn, migration)?,
        }
    }
    Ok(())
}

fn apply(conn: &mut Connection, migration: &Migration) -> Result<(), StoreError> {
    const NOTE: &str = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (?1, ?2, TRUE, ?3, ?4)";
    let begun = Instant::now();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let ran = transaction.execute_batch(migration.sql.as_str());
    ran.map_err(|source| schema_error(Failed { version: migration.version, source }))?;
    let took_ns = i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
    let note = params![migration.version, migration.description, migration.checksum, took_ns];
    transaction.execute(NOTE, note)?;
    Ok(transaction.commit()?)
}

/// What is wrong with a database's schema. What the database itself says is no matter of the schema.
pub(crate) fn run_error(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) => StoreError::unavailable(error),
        error => schema_error(error),
    }
}

fn schema_error(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Schema { source: Arc::new(error) }
}

fn step(name: &str, sql: &'static str) -> Option<Migration> {
    let (number, rest) = name.split_once('_')?;
    let about = rest.strip_suffix(".sql")?.replace('_', " ");
    Some(Migration::new(number.parse().ok()?, about.into(), MigrationType::Simple, sql.into_sql_str(), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_step_and_none_is_left_out() {
        let versions: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions.len(), FILES.len());
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
        assert_eq!(MIGRATIONS.iter().next().map(|first| &*first.description), Some("initial"));
    }
}
