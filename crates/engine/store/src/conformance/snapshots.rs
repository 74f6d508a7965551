//! What must hold for snapshots.

use atoll_core::id::SnapshotId;
use atoll_core::sandbox::SandboxState;
use atoll_core::snapshot::{CopyMethod, FORMAT, Manifest, Purpose, Reference, SnapshotKind, SnapshotState};
use atoll_core::spec::{IsolationLevel, Resources};

use super::sandbox;
use crate::{SandboxRecord, SnapshotFilter, SnapshotOutcome, SnapshotRecord, Store, StoreError};

/// A snapshot that is being made at `n`, of the sandbox that [`sandbox`] makes at 1.
#[must_use]
pub fn snapshot(n: u64, purpose: Purpose) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId::from_parts(n, n),
        state: SnapshotState::Creating,
        sandbox: Some(sandbox(1, 1).id),
        purpose,
        comment: Some("ü".to_owned()),
        manifest: Manifest {
            format: FORMAT,
            kind: SnapshotKind::Disk,
            image: "host".to_owned(),
            image_digest: None,
            isolation: IsolationLevel::Container,
            resources: Resources::default(),
            env: [("A".to_owned(), "b".to_owned())].into(),
            user: "root".to_owned(),
            workdir: None,
            layers: [].into(),
        },
        digest: None,
        stored_bytes: 0,
        paused_us: None,
        method: None,
        created_ms: n,
        created_by: None,
        project: None,
        private: false,
        tags: Vec::new(),
    }
}

fn outcome(tags: &[&str]) -> SnapshotOutcome {
    SnapshotOutcome {
        stored_bytes: 7,
        paused_us: Some(8),
        method: CopyMethod::Clone,
        digest: None,
        tags: tags.iter().map(|tag| tag.parse().unwrap()).collect(),
    }
}

pub(super) async fn tags_move(store: &Store) {
    let reference: Reference = "web:v1".parse().unwrap();
    let (first, second) = (snapshot(1, Purpose::Snapshot), snapshot(2, Purpose::Snapshot));
    store.insert_snapshot(&first).await.unwrap();
    assert!(matches!(store.insert_snapshot(&first).await, Err(StoreError::AlreadyExists)));
    assert_eq!(store.snapshot(&first.id).await.unwrap(), Some(first.clone()));
    assert!(matches!(store.tag_snapshot(&reference, &first.id).await, Err(StoreError::NotFound)));
    store.finish_snapshot(&first.id, &outcome(&["web:v1", "web"])).await.unwrap();
    assert!(matches!(store.finish_snapshot(&first.id, &outcome(&[])).await, Err(StoreError::Conflict)));
    let made = store.tagged_snapshot(None, &reference).await.unwrap().unwrap();
    let expected = SnapshotRecord {
        state: SnapshotState::Ready,
        stored_bytes: 7,
        paused_us: Some(8),
        method: Some(CopyMethod::Clone),
        tags: vec!["web:latest".parse().unwrap(), reference.clone()],
        ..first.clone()
    };
    assert_eq!(made, expected);
    store.insert_snapshot(&second).await.unwrap();
    store.finish_snapshot(&second.id, &outcome(&["web:v1"])).await.unwrap();
    assert_eq!(store.tagged_snapshot(None, &reference).await.unwrap().unwrap().id, second.id);
    assert_eq!(store.snapshot(&first.id).await.unwrap().unwrap().tags.len(), 1);
    store.tag_snapshot(&reference, &first.id).await.unwrap();
    assert_eq!(store.snapshot(&first.id).await.unwrap().unwrap().tags.len(), 2);
    assert!(!store.untag_snapshot(&reference, &second.id).await.unwrap(), "it points to another");
    assert!(store.untag_snapshot(&reference, &first.id).await.unwrap());
    assert!(!store.untag_snapshot(&reference, &first.id).await.unwrap());
    assert_eq!(store.tagged_snapshot(None, &reference).await.unwrap(), None);
    store.set_snapshot_digest(&second.id, "blake3:00", 9).await.unwrap();
    let found = store.snapshot(&second.id).await.unwrap().unwrap();
    assert_eq!((found.digest.as_deref(), found.stored_bytes), (Some("blake3:00"), 9));
    // A snapshot that is being removed has no names any more.
    assert!(store.mark_snapshot_deleting(&first.id).await.unwrap());
    let marked = store.snapshot(&first.id).await.unwrap().unwrap();
    assert_eq!((marked.state, marked.tags), (SnapshotState::Deleting, Vec::new()));
    assert!(store.delete_snapshot(&first.id).await.unwrap());
    assert!(!store.delete_snapshot(&first.id).await.unwrap());
    assert!(!store.mark_snapshot_deleting(&first.id).await.unwrap());
    assert_eq!(store.count_snapshots().await.unwrap(), 1);
}

pub(super) async fn checkpoints_are_numbered(store: &Store) {
    let parent = sandbox(1, 1);
    let checkpoint = |n| snapshot(n, Purpose::Checkpoint(0));
    assert!(matches!(store.insert_snapshot(&checkpoint(1)).await, Err(StoreError::NotFound)));
    store.insert_sandbox(&parent).await.unwrap();
    for n in 1..4_u32 {
        let stored = store.insert_snapshot(&checkpoint(n.into())).await.unwrap();
        assert_eq!(stored, Purpose::Checkpoint(n));
    }
    store.delete_snapshot(&checkpoint(3).id).await.unwrap();
    assert_eq!(store.insert_snapshot(&checkpoint(4)).await.unwrap(), Purpose::Checkpoint(4));
    store.insert_snapshot(&snapshot(5, Purpose::Held("a build".into()))).await.unwrap();
    store.insert_snapshot(&snapshot(6, Purpose::Snapshot)).await.unwrap();
    let list = async |filter: SnapshotFilter| {
        let page = store.list_snapshots(&filter, None, 100).await.unwrap();
        page.items.into_iter().map(|snapshot| snapshot.created_ms).collect::<Vec<_>>()
    };
    let none = SnapshotFilter::default();
    assert_eq!(list(none.clone()).await, [6, 4, 2, 1]);
    assert_eq!(list(SnapshotFilter { held: true, ..none.clone() }).await, [6, 5, 4, 2, 1]);
    assert_eq!(list(SnapshotFilter { checkpoints: Some(true), ..none.clone() }).await, [4, 2, 1]);
    assert_eq!(list(SnapshotFilter { checkpoints: Some(false), ..none.clone() }).await, [6]);
    assert_eq!(
        store.insert_snapshot(&snapshot(7, Purpose::AutoCheckpoint(0))).await.unwrap(),
        Purpose::AutoCheckpoint(5)
    );
    let found = store.snapshot(&snapshot(7, Purpose::Snapshot).id).await.unwrap().unwrap();
    assert_eq!(found.purpose, Purpose::AutoCheckpoint(5));
    assert_eq!(list(SnapshotFilter { checkpoints: Some(true), ..none.clone() }).await, [7, 4, 2, 1]);
    assert_eq!(list(SnapshotFilter { name: Some("x".into()), ..none.clone() }).await, [0; 0]);
    let other = Some(sandbox(2, 2).id);
    assert_eq!(list(SnapshotFilter { sandbox: other, ..none }).await, [0; 0]);
}

pub(super) async fn rollbacks_are_remembered(store: &Store) {
    let (parent, to) = (sandbox(1, 1), SnapshotId::from_parts(1, 1));
    store.insert_sandbox(&parent).await.unwrap();
    store.begin_rollback(&parent.id, &to).await.unwrap();
    assert!(matches!(store.begin_rollback(&parent.id, &to).await, Err(StoreError::AlreadyExists)));
    assert_eq!(store.rollbacks().await.unwrap(), [(parent.id.clone(), to.clone())].into());
    store.end_rollback(&parent.id).await.unwrap();
    assert!(store.rollbacks().await.unwrap().is_empty());
    // The end of the rollback is stored in one commit with the new boot: both or neither.
    store.begin_rollback(&parent.id, &to).await.unwrap();
    let next = SandboxRecord { boot_id: "next".to_owned(), ..parent.clone() };
    let refused = store.finish_rollback(&next, &[SandboxState::Deleting]).await;
    assert!(matches!(refused, Err(StoreError::Conflict)));
    assert!(!store.rollbacks().await.unwrap().is_empty());
    store.finish_rollback(&next, &[parent.state]).await.unwrap();
    assert!(store.rollbacks().await.unwrap().is_empty());
    assert_eq!(store.sandbox(&parent.id).await.unwrap().unwrap().boot_id, "next");
    store.begin_rollback(&parent.id, &to).await.unwrap();
    store.delete_sandbox(&parent.id).await.unwrap();
    assert!(store.rollbacks().await.unwrap().is_empty());
}
