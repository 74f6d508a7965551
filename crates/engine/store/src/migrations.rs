//! The schema, as migrations: `migrations/NUMBER_NAME.sql`. sqlx runs them, notes in the database which ones have run,
//! and refuses a database in which unknown ones have run.

use std::sync::LazyLock;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Names and texts, made by the build script.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    Migrator::with_migrations(FILES.iter().filter_map(|(name, sql)| step(name, sql)).collect())
});

/// The newest.
pub(crate) fn newest() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
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
