//! Snapshots, forks and rollbacks over the fake: the parts that need no kernel.

use std::time::Duration;

use atoll_core::Code;
use atoll_core::id::SnapshotId;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::SandboxDraft;
use atoll_engine::{Caller, ForkOrder, KeyScope, NewKey, SnapshotOrder};

use crate::support::{DEADLINE, World, named};

fn from(snapshot: &str) -> SandboxDraft {
    SandboxDraft { snapshot: Some(snapshot.to_owned()), ..SandboxDraft::default() }
}

#[test]
fn what_fails_leaves_nothing() {
    let world = World::new();
    let server = world.start();
    let (engine, caller) = (&server.engine, Caller::system());
    server.run(async {
        engine.create_sandbox(named("box"), &caller).await.unwrap();
        world.host.fail_snapshot(1);
        let refused =
            engine.create_snapshot(&server.id("box"), SnapshotOrder::unnamed(), &caller).await.unwrap_err();
        assert_eq!(refused.code, Code::Internal);
        assert!(engine.leaked_artifacts().await.unwrap().is_empty());
        let made =
            engine.create_snapshot(&server.id("box"), SnapshotOrder::unnamed(), &caller).await.unwrap();
        // A fork of which one child fails, and a fork of which all do.
        world.host.fail_create(1, true);
        let order = ForkOrder { count: 3, ..ForkOrder::default() };
        let children = engine.fork_sandbox(&server.id("box"), &order, &caller).await.unwrap();
        assert_eq!(children.iter().filter(|child| child.is_ok()).count(), 2);
        // A snapshot can be deleted while a sandbox that was made from it runs; then no other can be made from it.
        let child = engine.create_sandbox(from(made.id.as_str()), &caller).await.unwrap();
        assert_eq!(child.state, SandboxState::Running);
        engine.delete_snapshot(&made.id, None, &caller).await.unwrap();
        assert!(engine.leaked_artifacts().await.unwrap().is_empty());
        let gone = engine.create_sandbox(from(made.id.as_str()), &caller).await.unwrap_err();
        assert_eq!(gone.code, Code::SnapshotNotFound);
    });
}

/// Waits until something holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_late| panic!("never happened: {what}"));
}

/// Without the line of `make_digest` that waits for a room the first key's second digest is begun while its first is made; with
/// one for whoever comes first the other key's waits.
#[test]
fn a_snapshot_whose_digest_takes_long_holds_up_no_other_keys() {
    let world = World::new();
    let server = world.start();
    let (engine, host) = (&server.engine, &world.host);
    server.run(async {
        let first = engine.create_key("first", KeyScope::Manage, None).await.unwrap();
        let second = engine.create_key("second", KeyScope::Manage, None).await.unwrap();
        let caller = |key: &NewKey| Caller::of(&engine.verify_key(key.secret.reveal()).unwrap());
        let (first, second) = (caller(&first), caller(&second));
        engine.create_sandbox(named("of-first"), &first).await.unwrap();
        engine.create_sandbox(named("of-second"), &second).await.unwrap();
        let take = async |name: &str, caller: &Caller| {
            engine.create_snapshot(&server.id(name), SnapshotOrder::unnamed(), caller).await.unwrap().id
        };
        let has_digest = async |id: &SnapshotId| engine.snapshot(id).await.unwrap().digest.is_some();
        host.hold_seals(1);
        let slow = take("of-first", &first).await;
        eventually("a digest is begun", async || host.calls("seal_artifact") == 1).await;
        let waits = take("of-first", &first).await;
        let quick = take("of-second", &second).await;
        eventually("the other key's is made", async || has_digest(&quick).await).await;
        assert_eq!(host.calls("seal_artifact"), 2, "of one key one is made at a time");
        assert!(!has_digest(&slow).await && !has_digest(&waits).await);
        host.let_seals_go_on();
        eventually("all are made", async || has_digest(&slow).await && has_digest(&waits).await).await;
    });
    server.stop();
}
