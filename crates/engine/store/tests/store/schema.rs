//! Both databases have the schema that `schema.txt` says: a migration that means two things fails here.
//!
//! When a migration is added on purpose, take the new text from the failure's message.

#[cfg(test)]
mod tests {
    use atoll_store::{Store, StoreError, StoreUrl};
    use sqlx::{Connection as _, PgConnection, SqliteConnection};

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
        let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
        let lines = sqlx::query_scalar(
            "SELECT t.name || '.' || c.name || ' ' || c.type || CASE WHEN c.\"notnull\" THEN ' not null' ELSE '' END \
             FROM sqlite_master t JOIN pragma_table_info(t.name) c \
             WHERE t.type = 'table' AND t.name NOT LIKE '\\_sqlx%' ESCAPE '\\' \
             UNION ALL SELECT 'index ' || i.name || ' on ' || i.tbl_name FROM sqlite_master i \
             WHERE i.type = 'index' AND i.sql IS NOT NULL",
        );
        assert_eq!(text(lines.fetch_all(&mut conn).await.unwrap()), EXPECTED);
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

    #[tokio::test]
    async fn a_newer_schema_is_refused() {
        let dir = tempfile::Builder::new().prefix("atoll-store").tempdir().unwrap();
        let path = dir.path().join("a.db");
        let url = StoreUrl::SqliteFile(path.clone());
        Store::open(&url).await.unwrap().close().await;
        let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
        sqlx::query(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             VALUES (999, 'later', 1, X'00', 0)",
        )
        .execute(&mut conn)
        .await
        .unwrap();
        conn.close().await.unwrap();
        assert!(matches!(Store::open(&url).await, Err(StoreError::Schema { .. })));
    }
}
