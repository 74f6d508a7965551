//! Sandboxes of nodes that are kept in the object store: where they go, with which memory, and as of which moment.

#[cfg(test)]
mod tests {
    use atoll_core::exec::ExecState;
    use atoll_core::node::NodeFacts;
    use atoll_core::sandbox::{PauseMode, SandboxState};
    use atoll_core::spec::IsolationLevel;
    use atoll_store::{
        Arrival, CopyRecord, Restored, SandboxRecord, Store, StoreError, Whereabouts, conformance,
    };

    use crate::support::{Postgres, draft, enter, once, record_of, sandbox};

    /// A sandbox that is put to disk and copied to the object store.
    async fn kept(store: &Store, number: u64) -> SandboxRecord {
        kept_at(store, number, IsolationLevel::Container).await
    }

    async fn kept_at(store: &Store, number: u64, level: IsolationLevel) -> SandboxRecord {
        let mut record = sandbox(number, SandboxState::Paused, Some(PauseMode::Filesystem));
        record.spec.isolation = level;
        store.insert_sandbox(&record).await.unwrap();
        store.begin_upload(&record.id, "u").await.unwrap();
        let copy = CopyRecord { upload: "u".to_owned(), digest: "d".to_owned(), bytes: 1, copied_ms: 5 };
        store.finish_upload(&record, &copy).await.unwrap();
        record
    }

    #[tokio::test]
    async fn what_is_kept_goes_to_one_other_node() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let (record, to) = (kept(&one, 1).await, draft(2).id);
        let at = Whereabouts::Sandbox(record.id.to_string());
        let local = sandbox(2, SandboxState::Paused, Some(PauseMode::Filesystem));
        one.insert_sandbox(&local).await.unwrap();
        assert!(!one.hand_over(&local.id, 1, &to, true).await.unwrap(), "its disk is nowhere else");
        assert!(!one.hand_over(&record.id, 1, &draft(3).id, true).await.unwrap(), "there is no such node");
        assert!(!two.hand_over(&record.id, 1, &to, true).await.unwrap(), "it is not that one's to give");
        let before = two.changes().await.unwrap().get("arrivals").copied().unwrap_or(0);
        // After `hold`, a handover that was begun before fails.
        assert_eq!(one.hold(&record.id, 1).await.unwrap(), Some(2));
        assert!(!one.hand_over(&record.id, 1, &to, true).await.unwrap());
        one.expect_wake(&record.id).await.unwrap();
        assert!(one.hand_over(&record.id, 2, &to, false).await.unwrap());
        // The node that gave the sandbox away can change nothing about it any more.
        one.arrived(&record.id).await.unwrap();
        assert!(matches!(one.expect_wake(&record.id).await, Err(StoreError::NotFound)));
        assert!(!one.hand_over(&record.id, 3, &to, true).await.unwrap(), "it has gone");
        assert_eq!(one.hold(&record.id, 2).await.unwrap(), None);
        assert!(two.changes().await.unwrap()["arrivals"] > before, "the other is told");
        assert_eq!(two.whereabouts(&at).await.unwrap(), Some(to.clone()));
        assert_eq!(one.arrivals(None).await.unwrap(), []);
        let arrival = Arrival { sandbox: record.id.clone(), wake: true };
        assert_eq!(two.arrivals(None).await.unwrap(), std::slice::from_ref(&arrival));
        // The node that gave the sandbox away can begin no upload of it any more.
        assert!(matches!(one.begin_upload(&record.id, "v").await, Err(StoreError::NotFound)));
        two.arrived(&record.id).await.unwrap();
        assert_eq!(two.arrivals(None).await.unwrap(), []);
        assert_eq!(two.left_on(&to).await.unwrap().sandboxes, 1);
        one.set_stays(&local.id, Some("it has a volume")).await.unwrap();
        let left = two.left_on(&draft(1).id).await.unwrap();
        assert_eq!((left.sandboxes, left.staying), (1, 1));
        assert_eq!(left.items[0].reason, "it has a volume");
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    #[tokio::test]
    async fn what_a_dead_node_kept_is_anothers_and_what_only_it_has_waits() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _), (three, _)) =
            (enter(&url, 1).await, enter(&url, 2).await, enter(&url, 3).await);
        let record = kept(&one, 1).await;
        let moving = kept(&two, 2).await;
        assert!(two.hand_over(&moving.id, 1, &draft(1).id, true).await.unwrap());
        let local = sandbox(3, SandboxState::Paused, Some(PauseMode::Filesystem));
        one.insert_sandbox(&local).await.unwrap();
        let levels = [IsolationLevel::Container];
        assert_eq!(two.take_kept(&levels, &[], "used").await.unwrap(), 0, "it lives");
        once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &[IsolationLevel::Container], "why", 9).await.unwrap()
        })
        .await;
        assert_eq!(
            two.take_kept(&[IsolationLevel::Microvm], &[], "used").await.unwrap(),
            0,
            "it cannot run here"
        );
        // Both nodes at once: each gets some of the sandboxes, or one gets all, and no sandbox goes to both.
        let (a, b) = tokio::join!(two.take_kept(&levels, &[], "used"), three.take_kept(&levels, &[], "used"));
        assert_eq!(a.unwrap() + b.unwrap(), 2);
        let mut arrived = two.arrivals(None).await.unwrap();
        arrived.extend(three.arrivals(None).await.unwrap());
        arrived.sort_by_key(|arrival| arrival.sandbox.clone());
        let wanted = [
            Arrival { sandbox: record.id.clone(), wake: false },
            // It was on its way to the node that died.
            Arrival { sandbox: moving.id.clone(), wake: true },
        ];
        assert_eq!(arrived, wanted);
        assert!(matches!(one.hand_over(&record.id, 1, &draft(2).id, true).await, Err(StoreError::Claimed)));
        assert!(matches!(one.begin_upload(&record.id, "v").await, Err(StoreError::Claimed)));
        let at = Whereabouts::Sandbox(local.id.to_string());
        assert_eq!(two.whereabouts(&at).await.unwrap(), Some(draft(1).id));
        one.close().await;
        // When the node is back, it has the sandbox that waited for it and no other.
        let (one, _) = enter(&url, 1).await;
        assert_eq!(one.own_sandbox_ids().await.unwrap(), [local.id]);
        for store in [one, two, three] {
            store.close().await;
        }
        postgres.clean().await;
    }

    /// Nodes that run machines as the dead one did can use the memory that is on disk.
    #[tokio::test]
    async fn what_has_its_memory_on_disk_goes_where_that_can_be_used() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let facts = NodeFacts { machines: Some(7), ..record_of(&two, 1).await.facts };
        one.set_facts(&facts).await.unwrap();
        asleep_with_memory(&one, 1).await;
        let without = kept(&one, 2).await;
        let levels = [IsolationLevel::Container];
        once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &levels, "why", 9).await.unwrap()
        })
        .await;
        assert_eq!(two.take_kept(&levels, &[7], "used").await.unwrap(), 1, "the other is for others");
        let arrival = Arrival { sandbox: without.id.clone(), wake: false };
        assert_eq!(two.arrivals(None).await.unwrap(), [arrival]);
        assert_eq!(two.take_kept(&levels, &[8], "used").await.unwrap(), 1, "no other can use its memory");
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    async fn asleep_with_memory(store: &Store, number: u64) -> SandboxRecord {
        let record = sandbox(number, SandboxState::Paused, Some(PauseMode::Memory));
        store.insert_sandbox(&record).await.unwrap();
        store.begin_upload(&record.id, "u").await.unwrap();
        let copy = CopyRecord { upload: "u".to_owned(), digest: "d".to_owned(), bytes: 1, copied_ms: 5 };
        store.finish_upload(&record, &copy).await.unwrap();
        record
    }

    /// Between the moment in which it may go on and the one in which that is recorded, its node gives it to nobody, and who takes
    /// it from the dead node has its disk.
    #[tokio::test]
    async fn memory_that_may_have_gone_on_is_used_by_no_other_node() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let facts = NodeFacts { machines: Some(7), ..record_of(&two, 1).await.facts };
        one.set_facts(&facts).await.unwrap();
        let (waking, asleep) = (asleep_with_memory(&one, 1).await, asleep_with_memory(&one, 2).await);
        assert!(matches!(two.mark_memory_used(&waking.id).await, Err(StoreError::Conflict)), "not its own");
        one.mark_memory_used(&waking.id).await.unwrap();
        assert!(!one.hand_over(&waking.id, 1, &draft(2).id, true).await.unwrap());
        let levels = [IsolationLevel::Container];
        once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &levels, "why", 9).await.unwrap()
        })
        .await;
        assert!(
            matches!(one.mark_memory_used(&asleep.id).await, Err(StoreError::Claimed)),
            "it goes on no more"
        );
        // Nodes that could use memory of the dead one have no better claim to it: there is only a disk.
        assert_eq!(two.take_kept(&levels, &[7], "used").await.unwrap(), 1);
        let taken = two.sandbox(&waking.id).await.unwrap().unwrap();
        assert_eq!((taken.state, taken.paused), (SandboxState::Paused, Some(PauseMode::Filesystem)));
        assert_eq!(
            (taken.reason.as_deref(), taken.kept_ms, taken.memory_used),
            (Some("used"), Some(5), false)
        );
        assert_eq!(two.take_kept(&levels, &[], "used").await.unwrap(), 1);
        let taken = two.sandbox(&asleep.id).await.unwrap().unwrap();
        assert_eq!((taken.paused, taken.reason, taken.kept_ms), (Some(PauseMode::Memory), None, Some(5)));
        // It is the new node's, to go on with or to give away.
        two.mark_memory_used(&asleep.id).await.unwrap();
        two.mark_memory_unused(&asleep.id).await.unwrap();
        let generation = taken.generation;
        let three = enter(&url, 3).await.0;
        assert!(two.hand_over(&asleep.id, generation, &draft(3).id, false).await.unwrap());
        for store in [one, two, three] {
            store.close().await;
        }
        postgres.clean().await;
    }

    #[tokio::test]
    async fn what_has_a_copy_is_brought_back_as_of_that_moment() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        let record = sandbox(1, SandboxState::Running, None);
        one.insert_sandbox(&record).await.unwrap();
        one.begin_upload(&record.id, "u").await.unwrap();
        let copy = CopyRecord { upload: "u".to_owned(), digest: "d".to_owned(), bytes: 1, copied_ms: 60 };
        let other = one.finish_checkpoint(&record.id, &copy, 50, "another boot").await;
        assert!(matches!(other, Err(StoreError::Conflict)));
        one.finish_checkpoint(&record.id, &copy, 50, &record.boot_id).await.unwrap();
        let (before, after) = (conformance::exec(&record, 40, 1), conformance::exec(&record, 50, 2));
        for exec in [&before, &after] {
            one.insert_exec(exec).await.unwrap();
            let exit = atoll_core::exec::Exit::sandbox_paused();
            one.finish_exec(&exec.id, &exit, None, 0, 0, 55).await.unwrap();
        }
        // It dies while it makes the next copy.
        one.begin_upload(&record.id, "v").await.unwrap();
        two.give_uploads_up().await.unwrap();
        assert_eq!(two.kept(&record.id).await.unwrap().upload.as_deref(), Some("v"), "of another node");
        let moved = once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &[IsolationLevel::Container], "why", 99).await.unwrap()
        });
        assert_eq!(moved.await, [], "nothing has failed");
        let back = two.sandbox(&record.id).await.unwrap().unwrap();
        assert_eq!((back.state, back.paused), (SandboxState::Paused, Some(PauseMode::Filesystem)));
        let left = two.kept(&record.id).await.unwrap();
        assert_eq!((left.upload, left.copy), (None, Some(copy)), "what its node sent belongs to nothing");
        assert_eq!((back.reason.as_deref(), back.kept_ms), (Some("why"), Some(99)));
        assert_eq!(back.restored, Some(Restored { checkpoint_ms: 50, at_ms: 99 }));
        assert_eq!(two.exec(&before.id).await.unwrap().unwrap().state, ExecState::Exited);
        assert_eq!(two.exec(&after.id).await.unwrap().unwrap().state, ExecState::Lost);
        assert_eq!(two.arrivals(None).await.unwrap(), [Arrival { sandbox: record.id.clone(), wake: true }]);
        one.close().await;
        two.close().await;
        postgres.clean().await;
    }

    /// More of them than a node takes at once.
    #[tokio::test]
    async fn sandboxes_that_cannot_run_here_hide_no_others() {
        let postgres = Postgres::start().await;
        let url = postgres.fresh().await;
        let ((one, _), (two, _)) = (enter(&url, 1).await, enter(&url, 2).await);
        for number in 1..=200 {
            kept_at(&one, number, IsolationLevel::Microvm).await;
        }
        let record = kept(&one, 201).await;
        once("it is taken over", async || {
            two.take_over(&record_of(&two, 1).await, &[IsolationLevel::Container], "why", 9).await.unwrap()
        })
        .await;
        assert_eq!(two.take_kept(&[IsolationLevel::Container], &[], "used").await.unwrap(), 1);
        let arrival = Arrival { sandbox: record.id.clone(), wake: false };
        assert_eq!(two.arrivals(None).await.unwrap(), [arrival]);
        assert_eq!(two.arrivals(Some(&record.id)).await.unwrap(), []);
        // All others come at once where they can run: in batches, each behind the last.
        let levels = [IsolationLevel::Microvm];
        assert_eq!(two.take_kept(&levels, &[], "used").await.unwrap(), 200);
        let first = two.arrivals(None).await.unwrap();
        let rest = two.arrivals(first.last().map(|arrival| &arrival.sandbox)).await.unwrap();
        assert_eq!((first.len(), rest.len()), (200, 1));
    }
}
