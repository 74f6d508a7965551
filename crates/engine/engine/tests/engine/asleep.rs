//! Sandboxes that are put to disk with their memory: what goes on, and what is said when the memory cannot be used.

use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_store::SandboxRecord;

use crate::support::{Server, World, argv, assert_bytes, numbers};

/// Why memory is refused in these tests.
const WHY: &str = "it was written by another QEMU";

fn world() -> World {
    let world = World::new();
    world.host.allow_memory_pause();
    world
}

fn pause(server: &Server, id: &SandboxId, mode: PauseMode) -> SandboxRecord {
    let record = server.run(server.engine.pause_sandbox(id, mode)).unwrap();
    assert_eq!((record.state, record.paused), (SandboxState::Paused, Some(mode)));
    record
}

fn resume(server: &Server, id: &SandboxId) -> SandboxRecord {
    let record = server.run(server.engine.resume_sandbox(id)).unwrap();
    assert_eq!((record.state, record.paused), (SandboxState::Running, None));
    record
}

#[test]
fn what_sleeps_with_its_memory_goes_on_where_it_was() {
    let world = world();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    let counting = server.exec(id, argv(&["seq", "200000"])).unwrap();
    let sleeping = server.exec(id, argv(&["sleep", "1000"])).unwrap();
    pause(&server, id, PauseMode::Memory);
    assert!(world.host.is_hibernated(id));
    // Another process finds it asleep, with what ran in it.
    server.kill();
    let server = world.start();
    server.until_state(id, Some(SandboxState::Paused));
    assert_eq!(server.exec_state(&sleeping), ExecState::Running);
    let woken = resume(&server, id);
    assert_eq!((woken.boot_id, woken.reason), (made.boot_id, None), "the same boot, and nothing to say");
    server.wait(&counting);
    assert_bytes(&server.output(&counting).stdout, &numbers(200_000));
    assert_eq!(server.kill_exec(&sleeping).record.exit.unwrap().reason, ExitReason::Killed);
    server.delete(id);
    world.assert_empty(&server);
}

#[test]
fn memory_that_cannot_be_used_is_lost_with_a_word() {
    let world = world();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    let sleeping = server.exec(id, argv(&["sleep", "1000"])).unwrap();
    pause(&server, id, PauseMode::Memory);
    world.host.refuse_memory(WHY);
    let woken = resume(&server, id);
    let says_why =
        |record: &SandboxRecord| record.reason.as_deref().is_some_and(|reason| reason.contains(WHY));
    assert!(says_why(&woken), "{:?}", woken.reason);
    assert_ne!(woken.boot_id, made.boot_id, "everything began anew");
    assert_eq!(server.wait(&sleeping).record.exit.unwrap().reason, ExitReason::SandboxPaused);
    server.wait(&server.exec(id, argv(&["true"])).unwrap());
    // It is said as long as it runs, also by the next process.
    server.kill();
    let server = world.start();
    server.until_state(id, Some(SandboxState::Running));
    assert!(says_why(&server.engine.sandbox(id).unwrap()));
    let paused = pause(&server, id, PauseMode::Filesystem);
    assert_eq!(paused.reason, None, "it was paused because somebody asked for it");
    assert_eq!(resume(&server, id).reason, None);
    server.delete(id);
    world.assert_empty(&server);
}

/// The memory goes with the attempt; why it went is said by the one that succeeds.
#[test]
fn a_wake_that_fails_after_the_memory_was_lost_does_not_forget_why() {
    let world = world();
    let server = world.start();
    let id = server.sandbox().id;
    pause(&server, &id, PauseMode::Memory);
    world.host.refuse_memory(WHY);
    world.host.fail_wake(1);
    // The driver fails before it says what it woke.
    server.run(server.engine.resume_sandbox(&id)).unwrap_err();
    assert_eq!(server.state(&id), Some(SandboxState::Paused));
    assert!(world.host.is_hibernated(&id));
    let woken = resume(&server, &id);
    assert!(woken.reason.is_some_and(|reason| reason.contains("without its memory")));
    server.delete(&id);
    world.assert_empty(&server);
}

#[test]
fn memory_can_be_given_up() {
    let world = world();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    let sleeping = server.exec(id, argv(&["sleep", "1000"])).unwrap();
    pause(&server, id, PauseMode::Memory);
    pause(&server, id, PauseMode::Filesystem);
    assert_eq!(server.wait(&sleeping).record.exit.unwrap().reason, ExitReason::SandboxPaused);
    let woken = resume(&server, id);
    assert_eq!(woken.reason, None, "somebody asked for that");
    assert_ne!(woken.boot_id, made.boot_id);
    server.delete(id);
    world.assert_empty(&server);
}
