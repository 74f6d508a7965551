//! Places where a test can kill the process or inject an error, in builds with debug assertions.
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
    "engine.volume.journalled",
    "engine.volume.made",
    "engine.volume.marked",
    "engine.volume.removed",
    "engine.pool.isolated",
    "engine.pool.started",
    "engine.pool.removed",
    "engine.claim.taken",
    "engine.claim.identified",
    "engine.claim.committed",
    "engine.exec.journalled",
    "engine.exec.started",
    "engine.exec.appended",
    "engine.exec.exited",
    "engine.exec.finished",
    "engine.pause.frozen",
    "engine.pause.recorded",
    "engine.resume.recorded",
    "engine.hibernate.marked",
    "engine.hibernate.done",
    "engine.hibernate.recorded",
    "engine.wake.started",
    "engine.wake.recorded",
    "engine.snapshot.journalled",
    "engine.snapshot.taken",
    "engine.snapshot.finished",
    "engine.snapshot.marked",
    "engine.snapshot.removed",
    "engine.rollback.journalled",
    "engine.rollback.replaced",
    "engine.rollback.recorded",
    "engine.fork.taken",
    "engine.fork.made",
    "engine.import.journalled",
    "engine.import.filled",
    "engine.service.begun",
    "engine.agent.housed",
    "engine.agent.recorded",
    "engine.build.journalled",
    "engine.build.running",
    "engine.build.worked",
    "engine.build.snapshot",
    "engine.build.cached",
    "engine.build.committed",
    "engine.delete.marked",
    "engine.delete.destroyed",
    "engine.delete.checkpoints_removed",
    "engine.delete.logs_removed",
    "engine.delete.unrecorded",
    "engine.rotate.begun",
    "engine.rotate.resealed",
    "engine.rotate.finished",
];

/// Those that only nodes with an object store pass: a sandbox is copied there, goes to another node, and is fetched. The last
/// one only machines pass, which have memory that is used.
pub const TRAVEL: &[&str] = &[
    "engine.travel.begun",
    "engine.travel.sent",
    "engine.travel.kept",
    "engine.move.ahead",
    "engine.move.paused",
    "engine.move.kept",
    "engine.move.recorded",
    "engine.move.given",
    "engine.move.gone",
    "engine.travel.arrived",
    "engine.travel.fetching",
    "engine.travel.fetched",
    "engine.wake.marked",
];

/// Those that only nodes with an object store pass: an image is given to the others, or taken from them.
pub const IMAGES: &[&str] = &[
    "engine.images.layer",
    "engine.images.sent",
    "engine.images.told",
    "engine.images.removed",
    "engine.images.template",
];

/// Those that only templates with memory pass, at a level that has that.
pub const MEMORY: &[&str] = &[
    "engine.memory.journalled",
    "engine.memory.taken",
    "engine.memory.kept",
    "engine.memory.saved",
    "engine.create.carried",
];
