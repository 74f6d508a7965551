//! Servers that hang in the middle of a transaction, and removals that meet a creation on another node there.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use atoll_core::sandbox::{PauseMode, SandboxState};
    use atoll_core::snapshot::{Purpose, Reference, SnapshotState};
    use atoll_store::{SandboxRecord, SharedImage, SnapshotRecord, Store, StoreError, StoreUrl, conformance};

    use crate::support::{Postgres, draft, once, once_available, registry};
    use crate::wire::Wire;

    async fn enter(url: &StoreUrl, number: u64) -> Store {
        let store = Store::open(url).await.unwrap();
        store.enter(&draft(number), Arc::new(|_| {})).await.unwrap();
        store
    }

    /// Two nodes; what the first says to the database can be held back.
    async fn two_nodes() -> (Postgres, Wire, Store, Store) {
        let postgres = Postgres::own().await;
        let url = postgres.fresh().await;
        let wire = Wire::to(&postgres).await;
        let (one, two) = (enter(&wire.url(&url), 1).await, enter(&url, 2).await);
        (postgres, wire, one, two)
    }

    async fn until_somebody_waits(postgres: &Postgres) {
        once("a session waits", async || postgres.has_waiters().await.then_some(())).await;
    }

    async fn take_over(store: &Store, number: u64) {
        once("it is taken over", async || {
            let nodes = store.nodes().await.unwrap();
            let dead = nodes.into_iter().find(|node| node.id == draft(number).id).unwrap();
            store.take_over(&dead, &[], "why", 9).await.unwrap()
        })
        .await;
    }

    #[tokio::test]
    async fn a_server_that_hangs_in_a_transaction_holds_no_row_for_ever() {
        let (_postgres, wire, one, two) = two_nodes().await;
        one.insert_sandbox(&conformance::sandbox(1, 1)).await.unwrap();
        let record = two.sandbox(&conformance::sandbox(1, 1).id).await.unwrap().unwrap();
        wire.hold_next_commit();
        let (hangs, changed) = (one.clone(), record.clone());
        let hangs = tokio::spawn(async move { hangs.update_sandbox(&changed).await });
        wire.holds().await;
        // It waits for the row until the database ends the session that hangs, which undoes what that had changed.
        assert_eq!(two.update_sandbox(&record).await.unwrap(), record.generation + 1);
        let told = hangs.await.unwrap();
        assert!(matches!(told, Err(StoreError::Unavailable { .. })), "{told:?}");
        // Its other sessions went on: it is a node as before, and writes again.
        assert!(one.lease().unwrap().holds());
        once_available(async || one.put_registry(&registry("b")).await).await;
        assert!(matches!(one.update_sandbox(&record).await, Err(StoreError::Conflict)));
        one.close().await;
        two.close().await;
    }

    #[tokio::test]
    async fn a_node_that_stands_still_in_a_transaction_is_taken_over_all_the_same() {
        let (_postgres, wire, one, two) = two_nodes().await;
        let record = SandboxRecord { state: SandboxState::Running, ..conformance::sandbox(1, 1) };
        one.insert_sandbox(&record).await.unwrap();
        wire.hold_next_commit();
        let (hangs, id) = (one.clone(), record.id.clone());
        let hangs = tokio::spawn(async move { hangs.delete_sandbox(&id).await });
        wire.holds().await;
        wire.stand_still(true);
        take_over(&two, 1).await;
        let told = hangs.await.unwrap();
        assert!(matches!(told, Err(StoreError::Unavailable { .. })), "{told:?}");
        let there = two.sandbox(&record.id).await.unwrap().unwrap();
        assert_eq!(there.state, SandboxState::Failed, "what it had not committed did not happen");
        // When it goes on, it is told.
        wire.let_go();
        wire.stand_still(false);
        once("it is told", async || {
            let written = one.put_registry(&registry("b")).await;
            matches!(written, Err(StoreError::Claimed)).then_some(())
        })
        .await;
        assert_eq!(two.registry("a").await.unwrap(), None);
        one.close().await;
        two.close().await;
    }

    #[tokio::test]
    async fn an_image_is_not_removed_while_another_node_makes_a_sandbox_of_it() {
        const DIGEST: &str = "sha256:aa1";
        let (postgres, wire, one, two) = two_nodes().await;
        let names = BTreeMap::from([("app:1".to_owned(), 1)]);
        let image = SharedImage { digest: DIGEST.to_owned(), document: "{}".to_owned(), names };
        two.put_shared_image(&image, &BTreeSet::new(), 1).await.unwrap();
        let record = SandboxRecord { image_digest: Some(DIGEST.to_owned()), ..conformance::sandbox(1, 1) };
        wire.hold_next_commit();
        let (makes, made) = (one.clone(), record.clone());
        let making = tokio::spawn(async move { makes.insert_sandbox(&made).await });
        wire.holds().await;
        let removes = two.clone();
        let removing = tokio::spawn(async move { removes.remove_shared_image(DIGEST, 2).await });
        until_somebody_waits(&postgres).await;
        wire.let_go();
        making.await.unwrap().unwrap();
        let removed = removing.await.unwrap();
        assert!(matches!(removed, Err(StoreError::Conflict)), "{removed:?}");
        assert_eq!(two.shared_index().await.unwrap().names["app:1"], DIGEST, "it keeps its name");
        assert!(one.delete_sandbox(&record.id).await.unwrap());
        assert!(two.remove_shared_image(DIGEST, 3).await.unwrap());
        one.close().await;
        two.close().await;
    }

    #[tokio::test]
    async fn a_snapshot_that_is_being_removed_gets_no_name() {
        let (postgres, wire, one, two) = two_nodes().await;
        let snapshot =
            SnapshotRecord { state: SnapshotState::Ready, ..conformance::snapshot(1, Purpose::Snapshot) };
        one.insert_snapshot(&snapshot).await.unwrap();
        let reference = Reference { name: "base".to_owned(), tag: "latest".to_owned() };
        wire.hold_next_commit();
        let (names, of, id) = (one.clone(), reference.clone(), snapshot.id.clone());
        let naming = tokio::spawn(async move { names.tag_snapshot(&of, &id).await });
        wire.holds().await;
        let (removes, id) = (two.clone(), snapshot.id.clone());
        let removing = tokio::spawn(async move { removes.mark_snapshot_deleting(&id).await });
        until_somebody_waits(&postgres).await;
        wire.let_go();
        naming.await.unwrap().unwrap();
        assert!(removing.await.unwrap().unwrap());
        assert_eq!(two.tagged_snapshot(None, &reference).await.unwrap(), None);
        let late = one.tag_snapshot(&reference, &snapshot.id).await;
        assert!(matches!(late, Err(StoreError::NotFound)), "{late:?}");
        one.close().await;
        two.close().await;
    }

    #[tokio::test]
    async fn a_node_that_comes_back_is_not_forgotten() {
        let (postgres, wire, one, two) = two_nodes().await;
        let record = conformance::sandbox(1, 1);
        let hibernated =
            SandboxRecord { state: SandboxState::Paused, paused: Some(PauseMode::Filesystem), ..record };
        one.insert_sandbox(&hibernated).await.unwrap();
        one.close().await;
        take_over(&two, 1).await;
        // It enters again, and is not there yet when it is to be forgotten.
        let url = postgres.last();
        let back = Store::open(&wire.url(&url)).await.unwrap();
        wire.hold_next_commit();
        let enters = back.clone();
        let entering = tokio::spawn(async move { enters.enter(&draft(1), Arc::new(|_| {})).await });
        wire.holds().await;
        let forgets = two.clone();
        let forgetting = tokio::spawn(async move { forgets.remove_node(&draft(1).id).await });
        until_somebody_waits(&postgres).await;
        wire.let_go();
        entering.await.unwrap().unwrap();
        let forgotten = forgetting.await.unwrap();
        assert!(matches!(forgotten, Err(StoreError::Conflict)), "{forgotten:?}");
        assert_eq!(back.own_sandbox_ids().await.unwrap(), std::slice::from_ref(&hibernated.id));
        back.insert_sandbox(&conformance::sandbox(2, 2)).await.unwrap();
        back.close().await;
        two.close().await;
    }

    #[tokio::test]
    async fn a_sandbox_is_removed_by_its_own_node_only() {
        let (_postgres, _wire, one, two) = two_nodes().await;
        let record = conformance::sandbox(1, 1);
        one.insert_sandbox(&record).await.unwrap();
        assert!(!two.delete_sandbox(&record.id).await.unwrap());
        assert!(one.sandbox(&record.id).await.unwrap().is_some());
        assert!(one.delete_sandbox(&record.id).await.unwrap());
        one.close().await;
        two.close().await;
    }
}
