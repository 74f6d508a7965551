//! Places where a test can kill the process or inject an error (feature `failpoints`).
//!
//! The list is the contract with the crash test: it kills at each of them and checks that recovery
//! leaves nothing behind.

/// Every fail point of the engine, in the order in which a create, an exec and a delete pass them.
pub const ALL: &[&str] = &[
    "engine.create.before",
    "engine.create.journalled",
    "engine.create.isolated",
    "engine.create.networked",
    "engine.create.connected",
    "engine.create.configured",
    "engine.create.committed",
    "engine.pool.isolated",
    "engine.pool.removed",
    "engine.claim.taken",
    "engine.claim.identified",
    "engine.claim.committed",
    "engine.exec.journalled",
    "engine.exec.started",
    "engine.exec.appended",
    "engine.exec.exited",
    "engine.exec.finished",
    "engine.snapshot.journalled",
    "engine.snapshot.taken",
    "engine.snapshot.finished",
    "engine.snapshot.marked",
    "engine.snapshot.removed",
    "engine.start.begun",
    "engine.build.journalled",
    "engine.build.running",
    "engine.build.worked",
    "engine.build.snapshot",
    "engine.build.cached",
    "engine.build.committed",
    "engine.delete.marked",
    "engine.delete.destroyed",
    "engine.delete.logs_removed",
    "engine.delete.unrecorded",
];
