//! The suite on a real PostgreSQL, and what only a server can show: it goes away and comes back.

#[cfg(test)]
mod tests {
    use atoll_store::{Store, StoreError, StoreUrl, conformance};

    use crate::support::{Postgres, once_available, registry};

    #[tokio::test]
    async fn conforms() {
        let postgres = Postgres::start().await;
        conformance::run(async || postgres.store().await).await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn a_server_that_goes_away_is_unavailable_until_it_is_back() {
        let mut postgres = Postgres::own().await;
        let url = postgres.fresh().await;
        let store = Store::open(&url).await.unwrap();
        store.put_registry(&registry("b")).await.unwrap();
        postgres.stop();
        assert!(matches!(store.registry("a").await, Err(StoreError::Unavailable { .. })));
        assert!(matches!(store.put_registry(&registry("c")).await, Err(StoreError::Unavailable { .. })));
        assert!(matches!(Store::open(&url).await, Err(StoreError::Unavailable { .. })));
        postgres.restart().await;
        assert_eq!(once_available(async || store.registry("a").await).await, Some(registry("b")));
        once_available(async || store.put_registry(&registry("c")).await).await;
    }

    #[tokio::test]
    async fn two_servers_share_a_database() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        // Both bring the schema up at once.
        let (one, two) = futures::future::join(Store::open(&url), Store::open(&url)).await;
        let (one, two) = (one.unwrap(), two.unwrap());
        let record = conformance::sandbox(1, 1);
        one.insert_sandbox(&record).await.unwrap();
        let mut moved = two.sandbox(&record.id).await.unwrap().unwrap();
        moved.generation = two.update_sandbox(&moved).await.unwrap();
        assert!(matches!(one.update_sandbox(&record).await, Err(StoreError::Conflict)));
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn a_refused_password_is_not_repeated() {
        let url: StoreUrl = "postgres://atoll:hunter2@127.0.0.1:1/none".parse().unwrap();
        let error = Store::open(&url).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }));
        assert!(!format!("{error:?} {error} {url} {url:?}").contains("hunter2"));
    }
}
