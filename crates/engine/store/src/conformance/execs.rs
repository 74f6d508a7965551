//! What must hold for execs.

use std::collections::BTreeMap;

use atoll_core::Code;
use atoll_core::exec::{ExecState, Exit, ExitReason};
use atoll_core::id::{ExecId, KeyId};
use atoll_core::spec::IdempotencyKey;
use futures::future::join_all;

use super::{exec, sandbox};
use crate::{ExecRecord, Insertion, SandboxRecord, Store, StoreError};

const EXITED: Exit = Exit { reason: ExitReason::Exited, code: Some(0), signal: None, error: None };

async fn stored_sandbox(store: &Store) -> SandboxRecord {
    let record = sandbox(1, 1);
    store.insert_sandbox(&record).await.unwrap();
    record
}

fn keyed(sandbox: &SandboxRecord, n: u64, key: &str) -> ExecRecord {
    ExecRecord {
        idempotency_key: Some(IdempotencyKey::client(key).unwrap()),
        request_digest: format!("digest {n}"),
        ..exec(sandbox, n, n)
    }
}

pub(super) async fn round_trip(store: &Store) {
    let parent = stored_sandbox(store).await;
    let mut full = ExecRecord {
        state: ExecState::Exited,
        pid: Some(u32::MAX),
        exit: Some(Exit::not_started(Code::CommandNotFound)),
        output_bytes: 1 << 40,
        started_by: Some(KeyId::from_parts(1, 1)),
        ended_ms: Some(9),
        ..keyed(&parent, 1, "k")
    };
    full.spec.env = BTreeMap::from([("A".to_owned(), "\u{1f30a} '\"\\ \u{1}".to_owned())]);
    let bare = exec(&parent, 2, 2);
    for record in [&full, &bare] {
        assert_eq!(store.insert_exec(record).await.unwrap(), Insertion::Inserted);
        assert_eq!(store.exec(&record.id).await.unwrap().as_ref(), Some(record));
    }
    assert!(store.delete_exec(&bare.id).await.unwrap());
    assert!(!store.delete_exec(&bare.id).await.unwrap());
    // A sandbox takes its execs with it; none can be added to one that is gone.
    store.delete_sandbox(&parent.id).await.unwrap();
    assert_eq!(store.exec(&full.id).await.unwrap(), None);
    assert!(matches!(store.insert_exec(&bare).await, Err(StoreError::NotFound)));
    // Both or none.
    store.insert_sandbox_with(&parent, None, Some(&full), &[]).await.unwrap();
    assert_eq!(store.exec(&full.id).await.unwrap().as_ref(), Some(&full));
    let late = sandbox(2, 2);
    let taken = ExecRecord { sandbox: late.id.clone(), ..full.clone() };
    assert!(matches!(
        store.insert_sandbox_with(&late, None, Some(&taken), &[]).await,
        Err(StoreError::AlreadyExists)
    ));
    assert_eq!(store.sandbox(&late.id).await.unwrap(), None);
}

pub(super) async fn idempotency(store: &Store) {
    let parent = stored_sandbox(store).await;
    let other = sandbox(2, 2);
    store.insert_sandbox(&other).await.unwrap();
    let first = keyed(&parent, 1, "k");
    assert_eq!(store.insert_exec(&first).await.unwrap(), Insertion::Inserted);
    let again = store.insert_exec(&keyed(&parent, 2, "k")).await.unwrap();
    assert_eq!(again, Insertion::Existing(Box::new(first.clone())));
    assert_eq!(store.insert_exec(&keyed(&other, 3, "k")).await.unwrap(), Insertion::Inserted);
    assert_eq!(store.insert_exec(&keyed(&parent, 4, "l")).await.unwrap(), Insertion::Inserted);
    for n in 5..7 {
        assert_eq!(store.insert_exec(&exec(&parent, n, n)).await.unwrap(), Insertion::Inserted);
    }
    assert!(matches!(store.insert_exec(&exec(&parent, 5, 5)).await, Err(StoreError::AlreadyExists)));
    // A name of the server's and a client's key of the same letters are two.
    let named = ExecRecord { idempotency_key: Some(IdempotencyKey::server("k")), ..exec(&parent, 9, 9) };
    assert_eq!(store.exec_by_key(&parent.id, &IdempotencyKey::server("k")).await.unwrap(), None);
    assert_eq!(store.insert_exec(&named).await.unwrap(), Insertion::Inserted);
    for record in [&first, &named] {
        let key = record.idempotency_key.as_ref().unwrap();
        assert_eq!(store.exec_by_key(&parent.id, key).await.unwrap().as_ref(), Some(record));
    }
    // A key can be used again when its exec was removed.
    store.delete_exec(&first.id).await.unwrap();
    assert_eq!(store.insert_exec(&keyed(&parent, 8, "k")).await.unwrap(), Insertion::Inserted);
}

pub(super) async fn racing_inserts_yield_one_row(store: &Store) {
    const KEYS: u64 = 8;
    let parent = stored_sandbox(store).await;
    let records: Vec<_> = (0..200).map(|n| keyed(&parent, n, &format!("k{}", n % KEYS))).collect();
    let results = join_all(records.iter().map(|record| store.insert_exec(record))).await;
    let mut winners = BTreeMap::<u64, ExecId>::new();
    for (n, result) in (0..).zip(&results) {
        if matches!(result.as_ref().unwrap(), Insertion::Inserted) {
            assert!(winners.insert(n % KEYS, records[usize::try_from(n).unwrap()].id.clone()).is_none());
        }
    }
    for (n, result) in (0..).zip(&results) {
        if let Insertion::Existing(existing) = result.as_ref().unwrap() {
            assert_eq!(existing.id, winners[&(n % KEYS)], "everybody sees the one that won");
        }
    }
    assert_eq!(store.list_execs(&parent.id, &[], None, 1000).await.unwrap().items.len(), winners.len());
    assert_eq!(winners.len(), 8);
}

pub(super) async fn life(store: &Store) {
    let parent = stored_sandbox(store).await;
    let record = exec(&parent, 1, 1);
    store.insert_exec(&record).await.unwrap();
    assert!(store.finish_exec(&record.id, &EXITED, Some(42), 100, 0, 7).await.unwrap());
    // The first end stands.
    assert!(!store.finish_exec(&record.id, &Exit::sandbox_died(), None, 200, 0, 8).await.unwrap());
    let expected = ExecRecord {
        state: ExecState::Exited,
        pid: Some(42),
        exit: Some(EXITED),
        output_bytes: 100,
        ended_ms: Some(7),
        ..record
    };
    assert_eq!(store.exec(&expected.id).await.unwrap(), Some(expected));
    let missing = ExecId::from_parts(9, 9);
    assert!(matches!(store.finish_exec(&missing, &EXITED, None, 0, 0, 0).await, Err(StoreError::NotFound)));
}

pub(super) async fn loss(store: &Store) {
    let parent = stored_sandbox(store).await;
    let other = sandbox(2, 2);
    store.insert_sandbox(&other).await.unwrap();
    let records: Vec<_> = (0..4).map(|n| exec(if n < 3 { &parent } else { &other }, n, n)).collect();
    for record in &records {
        store.insert_exec(record).await.unwrap();
    }
    store.finish_exec(&records[2].id, &EXITED, None, 1, 0, 2).await.unwrap();
    let open = async |sandbox: &SandboxRecord| -> Vec<ExecId> {
        store.open_execs(&sandbox.id).await.unwrap().into_iter().map(|exec| exec.id).collect()
    };
    assert_eq!(open(&parent).await, [&records[0].id, &records[1].id].map(Clone::clone));
    let mut lost = store.lose_execs(&parent.id, 9).await.unwrap();
    lost.sort();
    assert_eq!(lost, [records[0].id.clone(), records[1].id.clone()]);
    assert_eq!(store.lose_execs(&parent.id, 10).await.unwrap(), []);
    let stored = store.exec(&records[1].id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.ended_ms), (ExecState::Lost, Some(9)));
    assert_eq!(stored.exit, Some(Exit::sandbox_died()));
    assert_eq!(open(&parent).await, []);
    assert_eq!(open(&other).await, [records[3].id.clone()]);
    store.finish_exec(&records[3].id, &Exit::sandbox_died(), None, 3, 0, 11).await.unwrap();
    let stored = store.exec(&records[3].id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.output_bytes), (ExecState::Lost, 3));
}

pub(super) async fn lists_and_pruning(store: &Store) {
    let parent = stored_sandbox(store).await;
    let records: Vec<_> = (0..10).map(|n| exec(&parent, n / 2, n)).collect();
    for (n, record) in records.iter().enumerate() {
        store.insert_exec(record).await.unwrap();
        if n > 1 {
            store.finish_exec(&record.id, &EXITED, None, 0, 0, 100).await.unwrap();
        }
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_execs(&parent.id, &[ExecState::Exited], after.as_ref(), 3).await.unwrap();
        seen.extend(page.items.into_iter().map(|exec| exec.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let newest_first: Vec<_> = records[2..].iter().rev().map(|record| record.id.clone()).collect();
    assert_eq!(seen, newest_first);
    // The open ones stay however old they are; of the ended ones the newest do.
    let mut pruned = store.prune_execs(&parent.id, 5, None).await.unwrap();
    pruned.sort();
    assert_eq!(pruned, records[2..5].iter().map(|record| record.id.clone()).collect::<Vec<_>>());
    assert_eq!(store.prune_execs(&parent.id, 5, None).await.unwrap(), []);
    assert_eq!(store.list_execs(&parent.id, &[], None, 100).await.unwrap().items.len(), 7);
}

pub(super) async fn one_failure_does_not_touch_the_others(store: &Store) {
    let parent = stored_sandbox(store).await;
    let missing = sandbox(2, 2);
    let records: Vec<_> = (0..100).map(|n| exec(if n % 3 == 0 { &missing } else { &parent }, n, n)).collect();
    let results = join_all(records.iter().map(|record| store.insert_exec(record))).await;
    for (record, result) in records.iter().zip(results) {
        let there = store.exec(&record.id).await.unwrap().is_some();
        if record.sandbox == missing.id {
            assert!(matches!(result, Err(StoreError::NotFound)));
            assert!(!there);
        } else {
            assert_eq!(result.unwrap(), Insertion::Inserted);
            assert!(there);
        }
    }
}
