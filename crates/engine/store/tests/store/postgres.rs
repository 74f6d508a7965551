//! The suite on a real PostgreSQL, and what only a server can show: it goes away and comes back.

#[cfg(test)]
mod tests {
    use atoll_store::{Store, StoreError, StoreUrl, Unwritable, conformance};
    use sqlx::{Connection as _, PgConnection};

    use crate::support::{Postgres, once, once_available, registry};

    #[tokio::test]
    async fn conforms() {
        let postgres = Postgres::start().await;
        Box::pin(conformance::run(async || postgres.store().await)).await;
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
    async fn one_that_was_read_only_is_written_again_over_new_sessions() {
        const READ_ONLY: &str = "ALTER ROLE CURRENT_USER SET default_transaction_read_only = on";
        const AGAIN: &str = "ALTER ROLE CURRENT_USER RESET default_transaction_read_only";
        const END_OTHERS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let postgres = Postgres::own().await;
        let url = postgres.fresh().await;
        let store = Store::open(&url).await.unwrap();
        let StoreUrl::Postgres(address) = &url else { panic!("a database of PostgreSQL") };
        let mut admin = PgConnection::connect(address.reveal()).await.unwrap();
        // Sessions that are opened after this are as those with a replica; that of the administrator stays as it is.
        sqlx::query(READ_ONLY).execute(&mut admin).await.unwrap();
        sqlx::query(END_OTHERS).execute(&mut admin).await.unwrap();
        let refused = async || store.put_registry(&registry("b")).await.err()?.unwritable();
        assert_eq!(once("a write is refused", refused).await, Unwritable::ReadOnly);
        assert_eq!(store.unwritable().await, Some(Unwritable::ReadOnly));
        assert_eq!(store.registry("a").await.unwrap(), None, "it is read all the same");
        sqlx::query(AGAIN).execute(&mut admin).await.unwrap();
        // Nobody ends the store's sessions, which stay read-only.
        once("it is written", async || store.unwritable().await.is_none().then_some(())).await;
        once("clients write", async || store.put_registry(&registry("b")).await.ok()).await;
        assert_eq!(store.registry("a").await.unwrap(), Some(registry("b")));
        admin.close().await.unwrap();
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
    async fn a_write_runs_to_its_end_when_its_caller_goes_away() {
        let postgres = Postgres::start().await;
        let store = postgres.store().await;
        let record = conformance::sandbox(1, 1);
        for polls in 1.. {
            let _ = store.delete_sandbox(&record.id).await.unwrap();
            let answered = {
                let mut insert = std::pin::pin!(store.insert_sandbox(&record));
                let mut left = polls;
                std::future::poll_fn(|cx| {
                    if left == 0 {
                        return std::task::Poll::Ready(false);
                    }
                    left -= 1;
                    insert.as_mut().poll(cx).map(|done| done.is_ok())
                })
                .await
            };
            once("it is stored", async || store.sandbox(&record.id).await.unwrap()).await;
            if answered {
                break;
            }
        }
        store.close().await;
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
