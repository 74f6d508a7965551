//! Snapshots, forks and rollbacks over the fake: the parts that need no kernel.

use atoll_core::Code;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::SandboxDraft;
use atoll_engine::{Caller, ForkOrder, SnapshotOrder};

use crate::support::{World, named};

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
