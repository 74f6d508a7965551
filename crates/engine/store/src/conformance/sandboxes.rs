//! What must hold for sandboxes.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::sandbox::SandboxState;
use futures::future::join_all;

use super::sandbox;
use crate::{SandboxFilter, SandboxRecord, Store, StoreError};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) async fn round_trip(store: &Store) {
    let full = SandboxRecord {
        name: Some("one".into()),
        state: SandboxState::Failed,
        reason: Some("out of memory: 'x' \"y\" \u{1f30a}".into()),
        labels: labels(&[("a", "1"), ("b", "")]),
        image_digest: Some("sha256:00".into()),
        owner: Some(KeyId::from_parts(1, 1)),
        expires_ms: Some(u64::MAX >> 1),
        last_active_ms: 7,
        ..sandbox(5, 1)
    };
    let bare = sandbox(6, 2);
    store.insert_sandbox(&full).await.unwrap();
    store.insert_sandbox(&bare).await.unwrap();
    assert_eq!(store.sandbox(&full.id).await.unwrap().as_ref(), Some(&full));
    assert_eq!(store.sandbox(&bare.id).await.unwrap().as_ref(), Some(&bare));
    let mut ids = store.sandbox_ids().await.unwrap();
    ids.sort();
    assert_eq!(ids, [full.id.clone(), bare.id.clone()]);
    assert!(store.delete_sandbox(&full.id).await.unwrap());
    assert!(!store.delete_sandbox(&full.id).await.unwrap());
    assert_eq!(store.sandbox(&full.id).await.unwrap(), None);
}

pub(super) async fn names_are_unique(store: &Store) {
    let named = |n: u64, name: &str| SandboxRecord { name: Some(name.into()), ..sandbox(n, n) };
    let (first, mut second) = (named(1, "a"), named(2, "b"));
    store.insert_sandbox(&first).await.unwrap();
    store.insert_sandbox(&second).await.unwrap();
    assert!(matches!(store.insert_sandbox(&named(3, "a")).await, Err(StoreError::NameTaken)));
    assert!(matches!(store.insert_sandbox(&named(1, "c")).await, Err(StoreError::AlreadyExists)));
    assert_eq!(store.sandbox(&SandboxId::from_parts(3, 3)).await.unwrap(), None);
    second.name = Some("a".into());
    assert!(matches!(store.update_sandbox(&second).await, Err(StoreError::NameTaken)));
    // A name is free again when its sandbox is gone.
    store.delete_sandbox(&first.id).await.unwrap();
    assert_eq!(store.update_sandbox(&second).await.unwrap(), 2);
}

pub(super) async fn changes_need_the_generation(store: &Store) {
    let mut record = SandboxRecord { labels: labels(&[("a", "1")]), ..sandbox(1, 1) };
    store.insert_sandbox(&record).await.unwrap();
    let stale = record.clone();
    record.labels = labels(&[("b", "2")]);
    record.expires_ms = Some(9);
    record.last_active_ms = 8;
    record.image_digest = Some("sha256:11".into());
    record.state = SandboxState::Running;
    record.generation = store.update_sandbox(&record).await.unwrap();
    assert_eq!(record.generation, 2);
    assert_eq!(store.sandbox(&record.id).await.unwrap(), Some(record.clone()));
    assert!(matches!(store.update_sandbox(&stale).await, Err(StoreError::Conflict)));
    assert!(matches!(store.update_sandbox(&sandbox(9, 9)).await, Err(StoreError::NotFound)));
    // The labels to filter by went with the change.
    let by = |pairs| SandboxFilter { labels: labels(pairs), ..SandboxFilter::default() };
    assert_eq!(store.list_sandboxes(&by(&[("a", "1")]), None, 10).await.unwrap().items, []);
    assert_eq!(store.list_sandboxes(&by(&[("b", "2")]), None, 10).await.unwrap().items, [record]);
}

pub(super) async fn states_change_only_from_expected_ones(store: &Store) {
    use SandboxState::{Creating, Deleting, Failed, Running};
    let record = sandbox(1, 1);
    store.insert_sandbox(&record).await.unwrap();
    assert_eq!(store.begin_sandbox(&record.id, Some(77)).await.unwrap(), 2);
    assert_eq!(store.sandbox(&record.id).await.unwrap().unwrap().expires_ms, Some(77));
    assert!(matches!(store.begin_sandbox(&record.id, None).await, Err(StoreError::Conflict)));
    let refused = store.set_sandbox_state(&record.id, &[Creating, Deleting], Failed, None).await;
    assert!(matches!(refused, Err(StoreError::Conflict)));
    let refused = store.set_sandbox_state(&record.id, &[], Failed, None).await;
    assert!(matches!(refused, Err(StoreError::Conflict)));
    let generation = store.set_sandbox_state(&record.id, &[Creating, Running], Failed, Some("died")).await;
    assert_eq!(generation.unwrap(), 3);
    let stored = store.sandbox(&record.id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.reason.as_deref()), (Failed, Some("died")));
    let missing = store.set_sandbox_state(&SandboxId::from_parts(9, 9), &[Failed], Deleting, None).await;
    assert!(matches!(missing, Err(StoreError::NotFound)));
}

pub(super) async fn racing_changes_have_one_winner(store: &Store) {
    let record = sandbox(1, 1);
    store.insert_sandbox(&record).await.unwrap();
    let results = join_all((0..16).map(|_| store.update_sandbox(&record))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(results.iter().all(|result| matches!(result, Ok(2) | Err(StoreError::Conflict))));
}

pub(super) async fn lists_filter(store: &Store) {
    for n in 0..12_u64 {
        let record = SandboxRecord {
            name: Some(format!("{}-{n}", if n % 2 == 0 { "web" } else { "job" })),
            state: if n % 3 == 0 { SandboxState::Running } else { SandboxState::Creating },
            labels: labels(&[("team", if n < 6 { "red" } else { "blue" }), ("n", &n.to_string())]),
            ..sandbox(n, n)
        };
        store.insert_sandbox(&record).await.unwrap();
    }
    let found = async |filter: SandboxFilter| -> Vec<u64> {
        let page = store.list_sandboxes(&filter, None, 100).await.unwrap();
        page.items.iter().map(|sandbox| sandbox.created_ms).collect()
    };
    let all = SandboxFilter::default();
    assert_eq!(found(all.clone()).await, (0..12).rev().collect::<Vec<_>>());
    assert_eq!(
        found(SandboxFilter { states: vec![SandboxState::Running], ..all.clone() }).await,
        [9, 6, 3, 0]
    );
    let both = vec![SandboxState::Running, SandboxState::Creating];
    assert_eq!(found(SandboxFilter { states: both, ..all.clone() }).await.len(), 12);
    let red = SandboxFilter { labels: labels(&[("team", "red")]), ..all.clone() };
    assert_eq!(found(red.clone()).await, [5, 4, 3, 2, 1, 0]);
    let red_web = SandboxFilter { name_prefix: Some("web-".into()), ..red };
    assert_eq!(found(red_web).await, [4, 2, 0]);
    let two = SandboxFilter { labels: labels(&[("team", "red"), ("n", "3")]), ..all.clone() };
    assert_eq!(found(two).await, [3]);
    for none in ["WEB", "w%", "web_", "'"] {
        assert!(
            found(SandboxFilter { name_prefix: Some(none.into()), ..all.clone() }).await.is_empty(),
            "{none}"
        );
    }
    assert_eq!(found(SandboxFilter { name_prefix: Some(String::new()), ..all }).await.len(), 12);
}

pub(super) async fn lists_page_without_gaps(store: &Store) {
    // Several share one moment, so that a page ends in the middle of it.
    let mut expected = BTreeSet::new();
    for n in 0..25_u64 {
        let record = sandbox(n / 5, n);
        store.insert_sandbox(&record).await.unwrap();
        expected.insert(record.id);
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.list_sandboxes(&SandboxFilter::default(), after.as_ref(), 4).await.unwrap();
        assert!(page.items.len() <= 4);
        seen.extend(page.items.into_iter().map(|sandbox| sandbox.id));
        // Sandboxes that are deleted meanwhile, even the cursor's own, shift nothing.
        store.delete_sandbox(seen.last().unwrap()).await.unwrap();
        let Some(next) = page.next else { break };
        after = Some(next.to_string().parse().unwrap());
    }
    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
}

pub(super) async fn hostile_texts(store: &Store) {
    let record = SandboxRecord { reason: Some("a\0b".into()), ..sandbox(1, 1) };
    store.insert_sandbox(&record).await.unwrap();
    let stored = store.sandbox(&record.id).await.unwrap().unwrap();
    assert_eq!(stored.reason.as_deref(), Some("a\u{fffd}b"));
    let nul = SandboxRecord { name: Some("a\0".into()), ..sandbox(3, 3) };
    assert!(matches!(store.insert_sandbox(&nul).await, Err(StoreError::Nul)));
    let filter = SandboxFilter { name_prefix: Some("' OR 1=1 --".into()), ..SandboxFilter::default() };
    assert_eq!(store.list_sandboxes(&filter, None, 10).await.unwrap().items, []);
    let name = Some("'; DROP TABLE execs; --".to_owned());
    let odd = SandboxRecord { name: name.clone(), ..sandbox(2, 2) };
    store.insert_sandbox(&odd).await.unwrap();
    assert_eq!(store.sandbox(&odd.id).await.unwrap().unwrap().name, name);
}
