//! What must hold for builds and their cache.

use atoll_core::build::{BuildFailure, BuildSpec, BuildState};
use atoll_core::id::{BuildId, SnapshotId, TemplateId};
use atoll_core::limits::TAG_ASSIGNMENTS_MAX_COUNT;
use atoll_core::spec::TemplateSpec;
use atoll_core::{Code, Error};

use crate::{BuildRecord, CacheRecord, Store, StoreError, TemplateRecord};

pub(super) fn build(n: u64) -> BuildRecord {
    let spec = r#"{"name":"a","dockerfile":"FROM host","steps":null,"ignore":null,"args":{"A":"b"},"target":null,
        "no_cache":false,"start":"image","ready":{"port":80},"isolation":null,"resources":{"cpu_millis":null,
        "memory_bytes":null,"pids":null,"disk_bytes":null},"labels":{},"egress":null,"template_egress":null,
        "ttl_ms":null,"idle_timeout_ms":null,"timeout_ms":5}"#;
    BuildRecord {
        id: BuildId::from_parts(n, n),
        state: BuildState::Queued,
        spec: serde_json::from_str::<BuildSpec>(spec).unwrap(),
        template_version: None,
        failure: None,
        created_ms: n,
        started_ms: None,
        ended_ms: None,
        created_by: None,
    }
}

pub(super) async fn life(store: &Store) {
    let first = build(1);
    store.insert_build(&first).await.unwrap();
    assert_eq!(store.build(&first.id).await.unwrap().as_ref(), Some(&first));
    let running = BuildRecord { state: BuildState::Running, started_ms: Some(2), ..first.clone() };
    assert!(store.update_build(&running, &[BuildState::Waiting, BuildState::Queued]).await.unwrap());
    assert!(!store.update_build(&running, &[BuildState::Queued]).await.unwrap());
    let failure = BuildFailure::from(Error::new(Code::BuildStepFailed, "a\0b").hint("h"));
    let failed = BuildRecord {
        state: BuildState::Failed,
        failure: Some(failure),
        ended_ms: Some(3),
        ..running.clone()
    };
    assert!(store.update_build(&failed, &[BuildState::Running]).await.unwrap());
    let read = store.build(&first.id).await.unwrap().unwrap();
    assert_eq!(read.failure.unwrap().message, "a\u{fffd}b");
    let template = |n: u64| TemplateRecord {
        id: TemplateId::from_parts(n, n),
        name: "a".to_owned(),
        version: 0,
        spec: TemplateSpec::new("host"),
        created_ms: n,
        created_by: None,
    };
    // A build that does not run makes no template.
    assert_eq!(store.complete_build(&first.id, &template(1), &[], 9).await.unwrap(), None);
    assert_eq!(store.template("a", None).await.unwrap(), None);
    let second = BuildRecord { state: BuildState::Running, ..build(20) };
    store.insert_build(&second).await.unwrap();
    assert_eq!(store.complete_build(&second.id, &template(2), &["v1".to_owned()], 9).await.unwrap(), Some(1));
    let read = store.build(&second.id).await.unwrap().unwrap();
    assert_eq!((read.state, read.template_version, read.ended_ms), (BuildState::Succeeded, Some(1), Some(9)));
    for n in 2..=5 {
        store.insert_build(&BuildRecord { state: BuildState::Succeeded, ..build(n) }).await.unwrap();
    }
    let page = store.list_builds(&[], None, None, 3).await.unwrap();
    assert_eq!(page.items.iter().map(|build| build.created_ms).collect::<Vec<_>>(), [20, 5, 4]);
    let rest = store.list_builds(&[BuildState::Failed], None, page.next.as_ref(), 3).await.unwrap();
    assert_eq!((rest.items.len(), rest.next), (1, None));
    store.insert_build(&build(6)).await.unwrap();
    assert_eq!(store.prune_builds(2).await.unwrap().len(), 4);
    assert_eq!(store.list_builds(&[], None, None, 9).await.unwrap().items.len(), 3);
}

/// Tags of templates move, and what they meant is known until they are removed or its version is.
pub(super) async fn template_tags(store: &Store) {
    for n in 1..=2 {
        let record = TemplateRecord {
            id: TemplateId::from_parts(n, n),
            name: "a".to_owned(),
            version: 0,
            spec: TemplateSpec::new("host"),
            created_ms: n,
            created_by: None,
        };
        store.insert_template(&record).await.unwrap();
    }
    let (x, both) = (["x".to_owned()], ["x".to_owned(), "y".to_owned()]);
    store.tag_template("a", 1, &x, 10).await.unwrap();
    store.tag_template("a", 2, &both, 20).await.unwrap();
    assert!(matches!(store.tag_template("a", 3, &both, 30).await, Err(StoreError::NotFound)));
    let meant = async || -> Vec<(String, u32, u64)> {
        let all = store.template_tag_assignments("a").await.unwrap();
        all.into_iter().map(|one| (one.tag, one.version, one.set_ms)).collect()
    };
    let of = |tag: &str, version, set_ms| (tag.to_owned(), version, set_ms);
    assert_eq!(meant().await, [of("x", 2, 20), of("x", 1, 10), of("y", 2, 20)]);
    let now = store.template_tags("a").await.unwrap();
    assert_eq!(now.iter().map(|tag| (tag.version, tag.set_ms)).collect::<Vec<_>>(), [(2, 20), (2, 20)]);
    // The oldest go.
    let most = TAG_ASSIGNMENTS_MAX_COUNT as u64;
    for n in 1..most {
        store.tag_template("a", 2, &x, 20 + n).await.unwrap();
    }
    let all = meant().await;
    assert_eq!(all.iter().filter(|one| one.0 == "x").count(), TAG_ASSIGNMENTS_MAX_COUNT);
    assert!(all.iter().all(|one| one.1 == 2), "the only one of version 1 was the oldest");
    store.untag_template("a", &x).await.unwrap();
    assert_eq!(meant().await, [of("y", 2, 20)]);
    store.tag_template("a", 1, &both, 200).await.unwrap();
    assert_eq!(meant().await, [of("x", 1, 200), of("y", 1, 200), of("y", 2, 20)]);
    // A tag goes with its version; a tag that means another version by now forgets it.
    store.tag_template("a", 2, &["y".to_owned()], 300).await.unwrap();
    store.delete_template("a", Some(1)).await.unwrap();
    assert_eq!(meant().await, [of("y", 2, 300), of("y", 2, 20)]);
}

pub(super) async fn cache(store: &Store) {
    let step = |n: u64| CacheRecord {
        key: format!("key {n}"),
        snapshot: SnapshotId::from_parts(n, n),
        step: "RUN x".to_owned(),
        stored_bytes: n,
        made_in_ms: n,
        created_ms: n,
        used_ms: n,
    };
    for n in 1..=3 {
        store.put_cached_step(&step(n)).await.unwrap();
    }
    store.touch_cached_steps(&["key 1".to_owned(), "nothing".to_owned()], 9).await.unwrap();
    store.touch_cached_steps(&[], 9).await.unwrap();
    let keys = async || -> Vec<String> {
        store.cached_steps().await.unwrap().into_iter().map(|step| step.key).collect()
    };
    assert_eq!(keys().await, ["key 2", "key 3", "key 1"]);
    let other = CacheRecord { snapshot: SnapshotId::from_parts(9, 9), ..step(2) };
    store.put_cached_step(&other).await.unwrap();
    // The key leads to another snapshot by now, so it stays.
    store.delete_cached_step("key 2", &step(2).snapshot).await.unwrap();
    assert_eq!(keys().await.len(), 3);
    store.delete_cached_step("key 2", &other.snapshot).await.unwrap();
    assert_eq!(keys().await, ["key 3", "key 1"]);
}
