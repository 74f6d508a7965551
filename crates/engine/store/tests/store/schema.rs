//! Both databases have the schema that `schema.txt` says: a migration that means two things fails here.
//!
//! When a migration is added on purpose, take the new text from the failure's message.

#[cfg(test)]
mod tests {
    use atoll_store::{Store, StoreError, StoreUrl};
    use rusqlite::{Connection, OpenFlags};
    use sqlx::{Connection as _, PgConnection};

    use crate::support::Postgres;

    const EXPECTED: &str = include_str!("schema.txt");

    fn text(mut lines: Vec<String>) -> String {
        lines.sort();
        lines.into_iter().map(|line| line.to_lowercase() + "\n").collect()
    }

    #[tokio::test]
    async fn sqlite_matches_the_snapshot() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let path = dir.path().join("a.db");
        Store::open(&StoreUrl::SqliteFile(path.clone())).await.unwrap().close().await;
        let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let lines = conn.prepare(
            "SELECT t.name || '.' || c.name || ' ' || c.type || CASE WHEN c.\"notnull\" THEN ' not null' ELSE '' END \
             FROM sqlite_master t JOIN pragma_table_info(t.name) c \
             WHERE t.type = 'table' AND t.name NOT LIKE '\\_sqlx%' ESCAPE '\\' \
             UNION ALL SELECT 'index ' || i.name || ' on ' || i.tbl_name FROM sqlite_master i \
             WHERE i.type = 'index' AND i.sql IS NOT NULL",
        );
        let lines: Result<_, _> = lines.unwrap().query_map([], |row| row.get(0)).unwrap().collect();
        assert_eq!(text(lines.unwrap()), EXPECTED);
    }

    #[tokio::test]
    async fn postgres_matches_the_snapshot() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        Store::open(&url).await.unwrap().close().await;
        let StoreUrl::Postgres(url) = url else { unreachable!("a PostgreSQL gives such a URL") };
        let mut conn = PgConnection::connect(url.reveal()).await.unwrap();
        let lines = sqlx::query_scalar(
            "SELECT table_name || '.' || column_name || ' ' || data_type \
             || CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END \
             FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE '\\_sqlx%' \
             UNION ALL SELECT 'index ' || indexname || ' on ' || tablename FROM pg_indexes \
             WHERE schemaname = 'public' AND indexname NOT LIKE '%\\_pkey' AND indexname NOT LIKE '%\\_key'",
        );
        let lines = text(lines.fetch_all(&mut conn).await.unwrap());
        conn.close().await.unwrap();
        postgres.clean().await;
        assert_eq!(lines, EXPECTED);
    }

    /// sqlx made the files of earlier versions, with this table and these checksums.
    #[tokio::test]
    async fn what_has_run_is_noted_as_sqlx_does() {
        use sqlx::SqlSafeStr as _;
        use sqlx::migrate::{Migration, MigrationType};

        const INITIAL: &str = include_str!("../../migrations/0001_initial.sql");
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let path = dir.path().join("a.db");
        Store::open(&StoreUrl::SqliteFile(path.clone())).await.unwrap().close().await;
        let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let columns =
            "SELECT group_concat(name || ' ' || type, ', ') FROM pragma_table_info('_sqlx_migrations')";
        assert_eq!(
            conn.query_one(columns, [], |row| row.get::<_, String>(0)).unwrap(),
            "version BIGINT, description TEXT, installed_on TIMESTAMP, success BOOLEAN, checksum BLOB, \
             execution_time BIGINT"
        );
        let first = "SELECT version, description, success, checksum, typeof(installed_on), execution_time \
                     FROM _sqlx_migrations ORDER BY version LIMIT 1";
        let (version, description, success, checksum, installed_on, took_ns) = conn
            .query_one(first, [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get::<_, i64>(5)?))
            })
            .unwrap();
        let noted: (i64, String, bool, Vec<u8>, String) =
            (version, description, success, checksum, installed_on);
        let sql = INITIAL.into_sql_str();
        let initial = Migration::new(1, "initial".into(), MigrationType::Simple, sql, false);
        let (description, checksum) = (initial.description.into_owned(), initial.checksum.into_owned());
        assert_eq!(noted, (1, description, true, checksum, "text".to_owned()));
        assert!(took_ns > 0);
    }

    /// Opens a file whose notes of migrations were changed.
    async fn opened_after(change: &str) -> Result<Store, StoreError> {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let path = dir.path().join("a.db");
        let url = StoreUrl::SqliteFile(path.clone());
        Store::open(&url).await.unwrap().close().await;
        assert_eq!(Connection::open(&path).unwrap().execute(change, []).unwrap(), 1);
        Store::open(&url).await
    }

    #[tokio::test]
    async fn a_newer_schema_is_refused() {
        let change = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                      VALUES (999, 'later', 1, X'00', 0)";
        assert!(matches!(opened_after(change).await, Err(StoreError::Schema { .. })));
    }

    #[tokio::test]
    async fn a_migration_that_was_another_or_did_not_finish_is_refused() {
        for change in [
            "UPDATE _sqlx_migrations SET checksum = X'00' WHERE version = 2",
            "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 2",
        ] {
            assert!(matches!(opened_after(change).await, Err(StoreError::Schema { .. })), "{change}");
        }
    }

    #[tokio::test]
    async fn a_migration_that_fails_is_a_matter_of_the_schema() {
        // It has run and is not noted, so it runs again.
        let refused = opened_after("DELETE FROM _sqlx_migrations WHERE version = 1").await;
        assert!(matches!(refused, Err(StoreError::Schema { .. })));
    }
}
