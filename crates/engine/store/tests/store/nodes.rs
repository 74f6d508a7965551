//! Nodes: which servers are nodes, which of them may write, and what happens to the sandboxes of a dead one.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use atoll_core::exec::ExecState;
    use atoll_core::id::{KeyId, ProjectId};
    use atoll_core::node::NodeFacts;
    use atoll_core::project::{ProjectDefaults, Quota};
    use atoll_core::sandbox::{PauseMode, SandboxState};
    use atoll_core::spec::IsolationLevel;
    use atoll_store::{
        KeyRecord, NodeDraft, NodeRecord, ProjectRecord, SandboxRecord, Store, StoreError, Whereabouts,
        boot_ns, conformance,
    };

    use crate::support::{Postgres, draft, enter, once, record_of, sandbox};

    #[tokio::test]
    async fn a_node_is_there_once_and_its_name_is_its_own() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let (one, _) = enter(&url, 1).await;
        let two = Store::open(&url).await.unwrap();
        let nobody = || Arc::new(|_| {});
        assert!(matches!(two.enter(&draft(1), nobody()).await, Err(StoreError::Claimed)));
        let namesake = NodeDraft { name: "n1".to_owned(), ..draft(2) };
        assert!(matches!(two.enter(&namesake, nobody()).await, Err(StoreError::NameTaken)));
        // A store that only reads need not be a node.
        assert_eq!(two.sandbox_ids().await.unwrap(), []);
        one.close().await;
        two.enter(&draft(1), nobody()).await.unwrap();
        assert_eq!(record_of(&two, 1).await.epoch, 2, "it started anew");
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn a_node_whose_row_cannot_be_read_hides_no_other() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        postgres.change(&url, "UPDATE nodes SET facts = '{' WHERE name = 'n2'").await;
        let names: Vec<_> = one.nodes().await.unwrap().into_iter().map(|node| node.name).collect();
        assert_eq!(names, ["n1"]);
        let both = [draft(1).id, draft(2).id];
        assert_eq!(one.some_nodes(&both).await.unwrap().len(), 1);
        let row = one.unreadable_named("nodes", "n2").unwrap();
        assert_eq!((row.id.as_str(), row.column), (draft(2).id.as_str(), "facts"));
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn a_lease_is_renewed_also_when_its_session_breaks() {
        let postgres = Postgres::start().await;
        let (store, until) = enter(&postgres.fresh().await, 1).await;
        let first = until.load(Ordering::SeqCst);
        assert!(first > boot_ns() && store.lease().unwrap().holds());
        postgres.end_sessions_with_locks().await;
        let later = async || Some(until.load(Ordering::SeqCst)).filter(|now| *now > first + 1_000_000_000);
        once("it is renewed", later).await;
        store.insert_sandbox(&conformance::sandbox(1, 1)).await.unwrap();
        store.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn who_is_taken_over_writes_nothing_more_and_what_ran_there_has_failed() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let (running, frozen) = (
            sandbox(1, SandboxState::Running, None),
            sandbox(2, SandboxState::Paused, Some(PauseMode::Frozen)),
        );
        let (asleep, making) = (
            sandbox(3, SandboxState::Paused, Some(PauseMode::Filesystem)),
            sandbox(4, SandboxState::Creating, None),
        );
        for record in [&running, &frozen, &asleep, &making] {
            one.insert_sandbox(record).await.unwrap();
        }
        let own = sandbox(5, SandboxState::Running, None);
        two.insert_sandbox(&own).await.unwrap();
        let exec = conformance::exec(&running, 1, 1);
        one.insert_exec(&exec).await.unwrap();
        let at = |record: &SandboxRecord| Whereabouts::Sandbox(record.id.to_string());
        assert_eq!(two.whereabouts(&at(&running)).await.unwrap(), Some(draft(1).id));
        assert_eq!(one.own_sandbox_ids().await.unwrap().len(), 4);

        let dead = record_of(&two, 1).await;
        let stale = NodeRecord { beats: dead.beats - 1, ..dead.clone() };
        assert_eq!(
            two.take_over(&stale, &[], "why", 9).await.unwrap(),
            None,
            "it has given a sign of life since"
        );
        // The node may beat at any time: the node that takes over must have seen the last beat.
        let moved = once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &[IsolationLevel::Container], "why", 9).await.unwrap()
        });
        assert_eq!(moved.await.len(), 3);
        for (record, state) in [
            (&running, SandboxState::Failed),
            (&frozen, SandboxState::Failed),
            (&making, SandboxState::Deleting),
        ] {
            assert_eq!(two.sandbox(&record.id).await.unwrap().unwrap().state, state);
            assert_eq!(two.whereabouts(&at(record)).await.unwrap(), Some(draft(2).id));
        }
        let failed = two.sandbox(&running.id).await.unwrap().unwrap();
        assert_eq!((failed.reason.as_deref(), failed.paused), (Some("why"), None));
        assert_eq!(two.exec(&exec.id).await.unwrap().unwrap().state, ExecState::Lost);
        assert_eq!(two.whereabouts(&at(&asleep)).await.unwrap(), Some(draft(1).id), "its disk is there");
        assert_eq!(two.sandbox(&own.id).await.unwrap().unwrap().state, SandboxState::Running);

        assert!(matches!(one.delete_sandbox(&running.id).await, Err(StoreError::Claimed)));
        assert!(one.lease().unwrap().is_lost() && !one.lease().unwrap().holds());
        assert!(!record_of(&two, 1).await.is_alive);
        assert!(matches!(two.remove_node(&draft(2).id).await, Err(StoreError::Conflict)));
        assert!(two.remove_node(&draft(1).id).await.unwrap());
        assert_eq!(two.sandbox(&asleep.id).await.unwrap(), None);
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn a_node_says_anew_what_it_is_as_long_as_it_is_its_own() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let before = record_of(&two, 1).await;
        // Facts that an older program wrote have neither.
        assert_eq!((before.facts.creates_max, before.facts.images.len()), (0, 0));
        let facts = NodeFacts { creates_max: 4, images: vec![1, u64::MAX], ..before.facts };
        one.set_facts(&facts).await.unwrap();
        assert_eq!(record_of(&two, 1).await.facts, facts);
        assert_eq!(record_of(&two, 2).await.facts.images, [0; 0]);

        let some = two.some_nodes(&[draft(1).id, draft(3).id]).await.unwrap();
        assert_eq!(some.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["n1"]);
        assert_eq!(two.some_nodes(&[]).await.unwrap(), []);

        let (own, database) = one.schema().await.unwrap();
        assert!(own == database && own > 0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        assert!(u128::from(one.clock_ms().await.unwrap()).abs_diff(now) < 60_000, "it is this host's");
        once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &[], "why", 9).await.unwrap()
        })
        .await;
        assert!(matches!(one.set_facts(&facts).await, Err(StoreError::Claimed)));
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn a_quota_holds_whichever_node_is_asked() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let quota = Quota { sandboxes: Some(10), ..Quota::default() };
        let project = ProjectRecord {
            id: ProjectId::from_parts(1, 1),
            name: "team".to_owned(),
            quota,
            defaults: ProjectDefaults::default(),
            created_ms: 1,
        };
        one.insert_project(&project, 9).await.unwrap();
        let inserts = (1..=50).map(|n| {
            let store = if n % 2 == 0 { one.clone() } else { two.clone() };
            let record = SandboxRecord { project: Some(project.id.clone()), ..conformance::sandbox(n, n) };
            async move { store.insert_sandbox(&record).await }
        });
        let outcomes = futures::future::join_all(inserts).await;
        let refused = |outcome: &&Result<(), StoreError>| matches!(outcome, Err(StoreError::Quota { .. }));
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 10);
        assert_eq!(outcomes.iter().filter(refused).count(), 40);
        assert_eq!(two.changes().await.unwrap().get("projects"), Some(&1), "the other node hears of it");
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn changes_of_what_servers_keep_in_memory_are_counted() {
        let postgres = Postgres::start().await;
        let (store, _) = enter(&postgres.fresh().await, 1).await;
        let count = async || store.changes().await.unwrap().get("keys").copied().unwrap_or(0);
        let before = count().await;
        let key = KeyRecord {
            id: KeyId::from_parts(1, 1),
            name: "k".to_owned(),
            hash: vec![1; 32],
            scopes: vec!["admin".to_owned()],
            project: None,
            created_ms: 1,
            expires_ms: None,
            last_used_ms: None,
            kind: atoll_store::KeyKind::Key,
        };
        store.insert_key(&key).await.unwrap();
        assert_eq!(count().await, before + 1);
        store.touch_key(&key.id, 5).await.unwrap();
        assert_eq!(count().await, before + 1, "that it was used concerns nobody");
        store.delete_key(&key.id).await.unwrap();
        assert_eq!(count().await, before + 2);
        store.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn what_a_server_without_nodes_left_is_the_first_nodes() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let before = Store::open(&url).await.unwrap();
        before.insert_sandbox(&conformance::sandbox(1, 1)).await.unwrap();
        before.close().await;
        let (one, _) = enter(&url, 1).await;
        let (two, _) = enter(&url, 2).await;
        assert_eq!(
            (one.own_sandbox_ids().await.unwrap().len(), two.own_sandbox_ids().await.unwrap().len()),
            (1, 0)
        );
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }
}
