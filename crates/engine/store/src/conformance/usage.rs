//! What must hold for usage and pauses.

use std::collections::BTreeMap;

use atoll_core::id::KeyId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::usage::Usage;

use super::sandbox;
use crate::{SandboxRecord, Store, StoreError, UsageFilter, UsageMark};

const HOUR_MS: u64 = 3_600_000;

fn used(n: u64) -> Usage {
    Usage { cpu_us: n, memory_byte_seconds: 2 * n, requests: 1, ..Usage::default() }
}

pub(super) async fn usage_adds_up(store: &Store) {
    let (one, other) = (sandbox(1, 1), sandbox(2, 2));
    for record in [&one, &other] {
        store.insert_sandbox(record).await.unwrap();
    }
    let key = KeyId::from_parts(9, 9);
    let both = BTreeMap::from([(None, used(5)), (Some(key.clone()), used(7))]);
    let mark = UsageMark { cpu_us: 12, at_ms: 100 };
    store.add_usage(&one.id, None, &both, Some(mark), 100).await.unwrap();
    store.add_usage(&one.id, None, &both, None, 200).await.unwrap();
    store.add_usage(&one.id, None, &both, None, HOUR_MS + 1).await.unwrap();
    let nothing = BTreeMap::from([(None, Usage::default())]);
    store.add_usage(&other.id, None, &nothing, Some(mark), 100).await.unwrap();
    let (rows, next) = store.usage(&UsageFilter::default(), None).await.unwrap();
    assert_eq!(next, None);
    let seen: Vec<_> = rows.iter().map(|row| (row.hour_ms, row.key.clone(), row.used.cpu_us)).collect();
    let some = Some(key.clone());
    assert_eq!(seen, [(HOUR_MS, some.clone(), 7), (HOUR_MS, None, 5), (0, some.clone(), 14), (0, None, 10)]);
    let filters = [
        (UsageFilter { key: some, ..UsageFilter::default() }, 2),
        (UsageFilter { sandbox: Some(other.id.clone()), ..UsageFilter::default() }, 0),
        (UsageFilter { from_ms: Some(HOUR_MS), ..UsageFilter::default() }, 2),
        (UsageFilter { from_ms: Some(HOUR_MS - 1), ..UsageFilter::default() }, 4),
        (UsageFilter { to_ms: Some(HOUR_MS), ..UsageFilter::default() }, 2),
    ];
    for (filter, count) in filters {
        assert_eq!(store.usage(&filter, None).await.unwrap().0.len(), count, "{filter:?}");
    }
    assert_eq!(store.usage_mark(&one.id).await.unwrap(), Some(mark));
    // The marks go with the sandbox, what it used stays, and more may still come.
    store.delete_sandbox(&one.id).await.unwrap();
    store.add_usage(&one.id, None, &both, Some(mark), 300).await.unwrap();
    assert_eq!(store.usage_mark(&one.id).await.unwrap(), None);
    let total = store.usage_of(&one.id).await.unwrap();
    assert_eq!((total.cpu_us, total.memory_byte_seconds, total.requests), (48, 96, 8));
    assert_eq!(store.prune_usage(HOUR_MS).await.unwrap(), 2);
    assert_eq!(store.usage(&UsageFilter::default(), None).await.unwrap().0.len(), 2);
}

pub(super) async fn pauses(store: &Store) {
    let mut record = sandbox(1, 1);
    record.state = SandboxState::Running;
    store.insert_sandbox(&record).await.unwrap();
    let paused = SandboxRecord {
        state: SandboxState::Paused,
        reason: Some("why".to_owned()),
        paused: Some(PauseMode::Frozen),
        paused_ms: Some(7),
        pauses_ms: 3,
        boot_id: "b".to_owned(),
        ..record.clone()
    };
    assert_eq!(store.set_pause(&paused, &[SandboxState::Running]).await.unwrap(), 2);
    let read = store.sandbox(&record.id).await.unwrap().unwrap();
    assert_eq!(read, SandboxRecord { generation: 2, ..paused.clone() });
    let again = store.set_pause(&paused, &[SandboxState::Running]).await;
    assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
}
