use atoll_core::id::{NodeId, SandboxId};
use atoll_core::sandbox::{PauseMode, SandboxState};

use super::sandbox;
use crate::{CopyRecord, SandboxRecord, Store, StoreError};

fn copy(upload: &str, copied_ms: u64) -> CopyRecord {
    CopyRecord { upload: upload.to_owned(), digest: format!("digest of {upload}"), bytes: 7, copied_ms }
}

async fn asleep(store: &Store) -> SandboxRecord {
    let paused = Some(PauseMode::Filesystem);
    let record = SandboxRecord { state: SandboxState::Paused, paused, ..sandbox(1, 1) };
    store.insert_sandbox(&record).await.unwrap();
    record
}

pub(super) async fn uploads(store: &Store) {
    assert_eq!(store.kept_place("first").await.unwrap(), "first");
    assert_eq!(store.kept_place("second").await.unwrap(), "first");
    let nobody = SandboxId::from_parts(9, 9);
    assert!(matches!(store.begin_upload(&nobody, "u").await, Err(StoreError::NotFound)));
    assert_eq!(store.kept(&nobody).await.unwrap(), Default::default());
    let record = asleep(store).await;
    assert_eq!(store.begin_upload(&record.id, "one").await.unwrap().copy, None);
    // A second upload takes its place: the first cannot be finished any more.
    assert_eq!(store.begin_upload(&record.id, "two").await.unwrap().upload.as_deref(), Some("two"));
    let late = store.finish_upload(&record, &copy("one", 3)).await;
    assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    store.finish_upload(&record, &copy("two", 4)).await.unwrap();
    let kept = store.kept(&record.id).await.unwrap();
    assert_eq!((kept.upload, kept.copy), (None, Some(copy("two", 4))));
    let begun = store.begin_upload(&record.id, "three").await.unwrap();
    assert_eq!((begun.upload.as_deref(), begun.copy), (Some("three"), Some(copy("two", 4))));
    // Only a running sandbox is copied as of a moment: this one is paused.
    store.finish_checkpoint(&record.id, &copy("three", 5), 3, "boot").await.unwrap_err();
    // The reason why a sandbox stays does not change the upload under way.
    store.set_stays(&record.id, Some("it has a volume")).await.unwrap();
    store.set_stays(&nobody, Some("it is not there")).await.unwrap();
    assert_eq!(store.kept(&record.id).await.unwrap().upload.as_deref(), Some("three"));
    // What is given up cannot be finished. Of another one, or of the copy, that says nothing.
    store.give_upload_up(&record.id, "two").await.unwrap();
    assert_eq!(store.kept(&record.id).await.unwrap().upload.as_deref(), Some("three"));
    store.give_upload_up(&record.id, "three").await.unwrap();
    let late = store.finish_upload(&record, &copy("three", 6)).await;
    assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    store.begin_upload(&record.id, "four").await.unwrap();
    store.give_uploads_up().await.unwrap();
    let kept = store.kept(&record.id).await.unwrap();
    assert_eq!((kept.upload, kept.copy), (None, Some(copy("two", 4))), "its copy stays");
    // The record goes with its sandbox.
    store.delete_sandbox(&record.id).await.unwrap();
    assert_eq!(store.kept(&record.id).await.unwrap(), Default::default());
}

pub(super) async fn what_is_kept_is_so_until_it_is_woken(store: &Store) {
    let record = asleep(store).await;
    let kept_ms = async || store.sandbox(&record.id).await.unwrap().unwrap().kept_ms;
    store.begin_upload(&record.id, "one").await.unwrap();
    let another_boot = SandboxRecord { boot_id: "another boot".to_owned(), ..record.clone() };
    // As after a wake with its memory.
    let another_pause = SandboxRecord { paused_ms: Some(1), ..record.clone() };
    for before in [another_boot, another_pause] {
        let other = store.finish_upload(&before, &copy("one", 4)).await;
        assert!(matches!(other, Err(StoreError::Conflict)), "it was woken meanwhile");
    }
    assert_eq!((kept_ms().await, store.kept(&record.id).await.unwrap().copy), (None, None), "nothing of it");
    store.finish_upload(&record, &copy("one", 4)).await.unwrap();
    assert_eq!(kept_ms().await, Some(4));
    let all = SandboxState::ALL;
    // As a server does that finds the sandbox at its start.
    store.set_pause(&record, &all).await.unwrap();
    assert_eq!(kept_ms().await, Some(4));
    let awake = SandboxRecord { state: SandboxState::Running, paused: None, ..record.clone() };
    store.set_pause(&awake, &all).await.unwrap();
    assert_eq!(kept_ms().await, None);
    store.set_pause(&record, &all).await.unwrap();
    assert_eq!(kept_ms().await, None, "what is on disk now is something else");
    // What is on disk with its memory is on disk.
    let asleep = SandboxRecord { paused: Some(PauseMode::Memory), paused_ms: Some(7), ..record.clone() };
    store.set_pause(&awake, &all).await.unwrap();
    store.set_pause(&asleep, &all).await.unwrap();
    store.begin_upload(&record.id, "two").await.unwrap();
    store.finish_upload(&asleep, &copy("two", 8)).await.unwrap();
    assert_eq!(kept_ms().await, Some(8));
    let without = SandboxRecord { paused: Some(PauseMode::Filesystem), ..asleep.clone() };
    store.set_pause(&without, &all).await.unwrap();
    assert_eq!(kept_ms().await, Some(8), "its disk is the same without its memory");
    store.set_pause(&asleep, &all).await.unwrap();
    assert_eq!(kept_ms().await, None, "memory that comes to it is in no copy");
    // There is no node to which it could go.
    let nobody = NodeId::from_parts(1, 1);
    let generation = store.sandbox(&record.id).await.unwrap().unwrap().generation;
    assert!(!store.hand_over(&record.id, generation, &nobody, true).await.unwrap());
    assert_eq!(store.hold(&record.id, generation).await.unwrap(), Some(generation + 1));
    assert_eq!(store.hold(&record.id, generation).await.unwrap(), None);
    assert_eq!(
        (store.arrivals(None).await.unwrap(), store.take_kept(&[], &[], "used").await.unwrap()),
        (Vec::new(), 0)
    );
    store.arrived(&record.id).await.unwrap();
    // The node that has it is to wake it.
    store.expect_wake(&record.id).await.unwrap();
    let arrival = crate::Arrival { sandbox: record.id.clone(), wake: true };
    assert_eq!(store.arrivals(None).await.unwrap(), [arrival]);
    store.arrived(&record.id).await.unwrap();
    assert_eq!(store.arrivals(None).await.unwrap(), []);
    let gone = store.expect_wake(&SandboxId::from_parts(9, 9)).await;
    assert!(matches!(gone, Err(StoreError::NotFound)));
}

pub(super) async fn memory_that_may_have_gone_on_counts_no_more(store: &Store) {
    let all = SandboxState::ALL;
    let paused = Some(PauseMode::Memory);
    let record = SandboxRecord { state: SandboxState::Paused, paused, ..sandbox(1, 1) };
    store.insert_sandbox(&record).await.unwrap();
    let id = &record.id;
    let counts = async || {
        let row = store.sandbox(id).await.unwrap().unwrap();
        (row.kept_ms, row.memory_used)
    };
    let keep = async |upload: &str, at: u64| {
        store.begin_upload(id, upload).await.unwrap();
        store.finish_upload(&record, &copy(upload, at)).await.unwrap();
    };
    keep("one", 4).await;
    store.mark_memory_used(id).await.unwrap();
    assert_eq!(counts().await, (Some(4), true), "its disk is there");
    store.mark_memory_unused(id).await.unwrap();
    assert_eq!(counts().await, (Some(4), false));
    // As often as it is tried.
    store.mark_memory_used(id).await.unwrap();
    store.mark_memory_used(id).await.unwrap();
    // As a server does that finds it at its start, or could not wake it: what is on disk now may be newer.
    store.set_pause(&record, &all).await.unwrap();
    assert_eq!(counts().await, (None, false));
    keep("two", 8).await;
    store.mark_memory_used(id).await.unwrap();
    keep("three", 9).await;
    assert_eq!(counts().await, (Some(9), false), "a newer copy");
    store.mark_memory_used(id).await.unwrap();
    let without = SandboxRecord { paused: Some(PauseMode::Filesystem), ..record.clone() };
    store.set_pause(&without, &all).await.unwrap();
    assert_eq!(counts().await, (None, false), "its disk, too, may have changed");
    store.set_pause(&record, &all).await.unwrap();
    keep("four", 10).await;
    store.mark_memory_used(id).await.unwrap();
    let generation = store.sandbox(id).await.unwrap().unwrap().generation;
    assert_eq!(store.give_memory_up(id, Some("why")).await.unwrap(), generation + 1);
    let given_up = store.sandbox(id).await.unwrap().unwrap();
    assert_eq!((given_up.paused, given_up.reason.as_deref()), (without.paused, Some("why")));
    assert_eq!(counts().await, (Some(10), false), "the copy of its disk is all there is");
    assert!(matches!(store.mark_memory_used(id).await, Err(StoreError::Conflict)), "it has no memory");
    // Awake it needs no copy.
    store.set_pause(&record, &all).await.unwrap();
    store.mark_memory_used(id).await.unwrap();
    let awake = SandboxRecord { state: SandboxState::Running, paused: None, ..record.clone() };
    store.set_pause(&awake, &all).await.unwrap();
    assert_eq!(counts().await, (None, false));
    assert!(matches!(store.mark_memory_used(id).await, Err(StoreError::Conflict)));
    assert!(matches!(store.give_memory_up(id, None).await, Err(StoreError::Conflict)));
}
