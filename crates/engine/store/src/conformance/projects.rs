//! Projects: names and lists apart, and quotas that hold.

use atoll_core::Code;
use atoll_core::id::{KeyId, ProjectId, SandboxId, SnapshotId, VolumeId};
use atoll_core::project::{ProjectDefaults, Quota};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::sharing::{Role, Visibility};
use atoll_core::snapshot::{Purpose, Reference, SnapshotState};
use atoll_core::volume::VolumeState;
use futures::future::join_all;

use super::sandbox;
use super::snapshots::snapshot;
use crate::{
    Belongings, KeyKind, KeyRecord, ProjectRecord, SandboxFilter, SandboxRecord, SnapshotFilter,
    SnapshotRecord, Store, StoreError, VisibleTo, VolumeRecord,
};

pub(super) fn project(n: u64, quota: Quota) -> ProjectRecord {
    ProjectRecord {
        id: ProjectId::from_parts(n, n),
        name: format!("project-{n}"),
        quota,
        defaults: ProjectDefaults { ttl_ms: Some(n), ..ProjectDefaults::default() },
        created_ms: n,
    }
}

fn of(project: &ProjectRecord, n: u64, name: Option<&str>) -> SandboxRecord {
    let name = name.map(str::to_owned);
    SandboxRecord { project: Some(project.id.clone()), name, ..sandbox(n, n) }
}

pub(super) fn key(n: u8, project: Option<&ProjectRecord>) -> KeyRecord {
    KeyRecord {
        id: KeyId::from_parts(n.into(), n.into()),
        name: format!("key-{n}"),
        hash: vec![n; 32],
        scopes: vec!["manage".to_owned()],
        project: project.map(|project| project.id.clone()),
        created_ms: n.into(),
        expires_ms: None,
        last_used_ms: None,
        kind: KeyKind::Key,
    }
}

pub(super) async fn life(store: &Store) {
    let (one, mut two) = (project(1, Quota::default()), project(2, Quota::default()));
    store.insert_project(&one, 2).await.unwrap();
    let taken = ProjectRecord { name: one.name.clone(), ..two.clone() };
    assert!(matches!(store.insert_project(&taken, 2).await, Err(StoreError::NameTaken)));
    store.insert_project(&two, 2).await.unwrap();
    let third = project(3, Quota::default());
    assert!(matches!(store.insert_project(&third, 2).await, Err(StoreError::Conflict)));
    assert!(matches!(store.update_project(&taken).await, Err(StoreError::NameTaken)));
    assert!(matches!(store.update_project(&third).await, Err(StoreError::NotFound)));
    two.quota.running = Some(3);
    store.update_project(&two).await.unwrap();
    assert_eq!(store.list_projects().await.unwrap(), [one.clone(), two.clone()]);

    // A project stays as long as anything belongs to it, and nothing can be added to one that is gone.
    store.insert_key(&key(1, Some(&one))).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap(), [key(1, Some(&one))]);
    store.insert_sandbox(&of(&one, 5, None)).await.unwrap();
    let has = Belongings { keys: 1, sandboxes: 1, ..Belongings::default() };
    assert_eq!(store.delete_project(&one.id).await.unwrap(), has);
    assert_eq!(store.belongings(&one.id).await.unwrap(), has);
    assert!(store.delete_key(&key(1, None).id).await.unwrap());
    assert!(store.delete_sandbox(&of(&one, 5, None).id).await.unwrap());
    assert!(store.delete_project(&one.id).await.unwrap().is_empty());
    assert!(matches!(store.delete_project(&one.id).await, Err(StoreError::NotFound)));
    assert!(matches!(store.insert_key(&key(2, Some(&one))).await, Err(StoreError::NotFound)));
    assert!(matches!(store.insert_sandbox(&of(&one, 6, None)).await, Err(StoreError::NotFound)));
    assert_eq!(store.list_projects().await.unwrap(), [two]);
}

pub(super) async fn names_and_lists_are_apart(store: &Store) {
    let (one, two) = (project(1, Quota::default()), project(2, Quota::default()));
    for project in [&one, &two] {
        store.insert_project(project, 9).await.unwrap();
    }
    let web = [
        of(&one, 1, Some("web")),
        of(&two, 2, Some("web")),
        SandboxRecord { name: Some("web".into()), ..sandbox(3, 3) },
    ];
    for record in &web {
        store.insert_sandbox(record).await.unwrap();
        assert_eq!(store.sandbox(&record.id).await.unwrap().as_ref(), Some(record));
    }
    assert!(matches!(store.insert_sandbox(&of(&one, 4, Some("web"))).await, Err(StoreError::NameTaken)));
    let named = store.sandboxes_named("web").await.unwrap();
    let expected: Vec<_> = web.iter().map(|record| (record.project.clone(), record.id.clone())).collect();
    assert_eq!(named, expected);

    let list = async |filter: SandboxFilter| {
        let page = store.list_sandboxes(&filter, None, 10).await.unwrap();
        page.items.into_iter().map(|record| record.created_ms).collect::<Vec<_>>()
    };
    let prefix = SandboxFilter { name_prefix: Some("we".into()), ..SandboxFilter::default() };
    assert_eq!(list(prefix).await, [3, 2, 1]);
    let hostile = SandboxFilter { name_prefix: Some(one.id.to_string()), ..SandboxFilter::default() };
    assert!(list(hostile).await.is_empty(), "how a name is kept is no part of it");
    let project = SandboxFilter { project: Some(two.id.clone()), ..SandboxFilter::default() };
    assert_eq!(list(project).await, [2]);
    let seen_by = |of: Option<&ProjectRecord>| VisibleTo {
        key: key(7, None).id,
        project: of.map(|project| project.id.clone()),
        default: Visibility::Shared,
    };
    store.insert_key(&key(7, Some(&one))).await.unwrap();
    let seen = async |of: Option<&ProjectRecord>| {
        list(SandboxFilter { visible_to: Some(seen_by(of)), ..SandboxFilter::default() }).await
    };
    assert_eq!((seen(Some(&one)).await, seen(None).await), (vec![1], vec![3]));
    store.put_grant(&web[1].id, &key(7, None).id, Role::Read).await.unwrap();
    assert_eq!(seen(Some(&one)).await, [2, 1]);

    // Snapshots, and what they are called.
    let gone = |n| SnapshotRecord {
        state: SnapshotState::Ready,
        sandbox: Some(SandboxId::from_parts(99, n)),
        ..snapshot(n, Purpose::Snapshot)
    };
    let shots = [
        SnapshotRecord { project: Some(one.id.clone()), sandbox: Some(web[0].id.clone()), ..gone(1) },
        SnapshotRecord { project: Some(two.id.clone()), ..gone(2) },
        gone(3),
    ];
    let reference: Reference = "base:v1".parse().unwrap();
    for record in &shots {
        store.insert_snapshot(record).await.unwrap();
        store.tag_snapshot(&reference, &record.id).await.unwrap();
        let found = store.tagged_snapshot(record.project.as_ref(), &reference).await.unwrap().unwrap();
        assert_eq!((found.id, found.tags), (record.id.clone(), vec![reference.clone()]));
    }
    assert_eq!(store.snapshots_tagged(&reference).await.unwrap().len(), 2, "those of projects");
    let list = async |of: Option<&ProjectRecord>| {
        let filter = SnapshotFilter {
            name: Some("base".into()),
            visible_to: Some(seen_by(of)),
            ..SnapshotFilter::default()
        };
        let page = store.list_snapshots(&filter, None, 10).await.unwrap();
        page.items.into_iter().map(|record| record.id).collect::<Vec<SnapshotId>>()
    };
    assert_eq!(list(Some(&one)).await, [shots[0].id.clone()]);
    assert_eq!(list(Some(&two)).await, [shots[1].id.clone()]);
    assert_eq!(list(None).await, [shots[2].id.clone()]);
    assert!(store.untag_snapshot(&reference, &shots[0].id).await.unwrap());
    assert_eq!(store.tagged_snapshot(Some(&one.id), &reference).await.unwrap(), None);
    assert!(store.tagged_snapshot(None, &reference).await.unwrap().is_some());

    let volume = |n: u64, project: Option<&ProjectRecord>| VolumeRecord {
        id: VolumeId::from_parts(n, n),
        name: "data".to_owned(),
        project: project.map(|project| project.id.clone()),
        state: VolumeState::Ready,
        size_bytes: 1,
        source: None,
        read_only: false,
        owner: None,
        created_ms: n,
    };
    for one in [volume(1, Some(&one)), volume(2, Some(&two)), volume(3, None)] {
        store.insert_volume(&one).await.unwrap();
        assert!(store.list_volumes().await.unwrap().contains(&one));
    }
    assert!(matches!(store.insert_volume(&volume(4, Some(&one))).await, Err(StoreError::NameTaken)));
}

fn is_quota(result: Result<(), StoreError>, of: &str) {
    match result {
        Err(StoreError::Quota { error }) => {
            assert!(error.code == Code::QuotaExceeded && error.message.contains(of), "{error}");
        }
        other => panic!("{other:?} is not the quota of {of}"),
    }
}

pub(super) async fn quotas_hold(store: &Store) {
    let memory = sandbox(1, 1).spec.resources.memory_bytes;
    let quota =
        Quota { sandboxes: Some(3), running: Some(2), memory_bytes: Some(2 * memory), ..Quota::default() };
    let (one, other) = (project(1, quota), project(2, Quota::default()));
    for project in [&one, &other] {
        store.insert_project(project, 9).await.unwrap();
    }
    let mut first = of(&one, 1, None);
    store.insert_sandbox(&first).await.unwrap();
    store.insert_sandbox(&of(&one, 2, Some("b"))).await.unwrap();
    is_quota(store.insert_sandbox(&of(&one, 3, Some("c"))).await, "running sandboxes");
    assert_eq!(store.sandbox(&of(&one, 3, None).id).await.unwrap(), None, "nothing is left");
    store.insert_sandbox(&of(&one, 4, Some("c"))).await.unwrap_err();
    store.insert_sandbox(&of(&other, 5, None)).await.unwrap();

    // What is paused does not run, and does not wake where there is no room.
    let states = [SandboxState::Creating];
    store.set_sandbox_state(&first.id, &states, SandboxState::Running, None).await.unwrap();
    first.state = SandboxState::Paused;
    first.paused = Some(PauseMode::Filesystem);
    store.set_pause(&first, &[SandboxState::Running]).await.unwrap();
    store.insert_sandbox(&of(&one, 6, None)).await.unwrap();
    is_quota(store.check_wake(&first).await, "running sandboxes");
    let awake = SandboxRecord { state: SandboxState::Running, paused: None, ..first.clone() };
    is_quota(store.set_pause(&awake, &[SandboxState::Paused]).await.map(drop), "running sandboxes");
    let stored = store.sandbox(&first.id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.paused), (SandboxState::Paused, Some(PauseMode::Filesystem)));
    is_quota(store.insert_sandbox(&of(&one, 7, None)).await, "3 of 3 (sandboxes)");
    let used = store.quota_used(&one.id).await.unwrap();
    assert_eq!((used.sandboxes, used.running, used.memory_bytes), (3, 2, 2 * memory));

    // Limits count, too.
    let mut larger = store.sandbox(&of(&one, 6, None).id).await.unwrap().unwrap();
    larger.spec.resources.memory_bytes += 1;
    is_quota(store.update_sandbox(&larger).await.map(drop), "memory of running sandboxes");
    larger.spec.resources.memory_bytes = memory / 2;
    larger.generation = store.update_sandbox(&larger).await.unwrap();
    // A quota that was lowered takes nothing away, and changes that need no more of it still succeed.
    store
        .update_project(&ProjectRecord { quota: Quota { memory_bytes: Some(1), ..quota }, ..one.clone() })
        .await
        .unwrap();
    larger.labels.insert("a".to_owned(), "b".to_owned());
    store.update_sandbox(&larger).await.unwrap();
    assert!(store.delete_sandbox(&of(&one, 2, None).id).await.unwrap());
    assert_eq!(store.quota_used(&one.id).await.unwrap().memory_bytes, memory / 2);
}

pub(super) async fn racing_creations_keep_to_the_quota(store: &Store) {
    let one = project(1, Quota { sandboxes: Some(5), ..Quota::default() });
    store.insert_project(&one, 9).await.unwrap();
    let inserts = (1..=50).map(|n| {
        let store = store.clone();
        let record = of(&one, n, None);
        async move { store.insert_sandbox(&record).await }
    });
    let outcomes = join_all(inserts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 5);
    outcomes.into_iter().filter(Result::is_err).for_each(|refused| is_quota(refused, "5 of 5 (sandboxes)"));

    // The removal and a creation race: the second of them sees the first.
    for n in 100..110 {
        let gone = ProjectRecord { name: format!("gone-{n}"), ..project(n, Quota::default()) };
        store.insert_project(&gone, 99).await.unwrap();
        let record = of(&gone, n, None);
        let (made, removed) = tokio::join!(store.insert_sandbox(&record), store.delete_project(&gone.id));
        let removed = removed.unwrap();
        match made {
            Ok(()) => assert_eq!(removed.sandboxes, 1),
            Err(StoreError::NotFound) => assert!(removed.is_empty()),
            Err(other) => panic!("{other}"),
        }
    }
}
