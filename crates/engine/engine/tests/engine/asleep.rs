//! Sandboxes that are put to disk with their memory: what goes on, and what is said when the memory cannot be used.

use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_isolation::Lifecycle as _;
use atoll_isolation::fake::Connect;
use atoll_store::{CopyRecord, SandboxRecord};

use crate::support::{Server, World, argv, assert_bytes, numbers, until};

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

fn row(world: &World, id: &SandboxId) -> SandboxRecord {
    world.edit(async |store| store.sandbox(id).await.unwrap().unwrap())
}

/// Writes down that a sandbox is in the object store, as a node does when its copy is whole.
fn copied(world: &World, id: &SandboxId) {
    world.edit(async |store| {
        let asleep = store.sandbox(id).await.unwrap().unwrap();
        store.begin_upload(id, "one").await.unwrap();
        let copy =
            CopyRecord { upload: "one".to_owned(), digest: "digest".to_owned(), bytes: 1, copied_ms: 7 };
        store.finish_upload(&asleep, &copy).await.unwrap();
    });
}

/// Ends a server in the moment in which it wakes a sandbox: the machine has gone on, and that is not recorded.
fn kill_in_wake(world: &World, server: Server, id: &SandboxId) {
    world.host.set_connect(Connect::Hangs);
    let before = world.host.calls("connect");
    let (engine, id) = (server.engine.clone(), id.clone());
    drop(server.spawn(async move { engine.resume_sandbox(&id).await }));
    until("its guest is asked for", || world.host.calls("connect") > before);
    server.kill();
    world.host.set_connect(Connect::Works);
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

#[test]
fn no_machine_goes_on_before_its_copy_counts_for_its_disk_alone() {
    let world = world();
    let server = world.start();
    let id = server.sandbox().id;
    pause(&server, &id, PauseMode::Memory);
    server.kill();
    copied(&world, &id);
    let server = world.start();
    server.until_state(&id, Some(SandboxState::Paused));
    server.run(server.store.close());
    assert_eq!(server.run(server.engine.resume_sandbox(&id)).unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.host.calls("wake"), 0, "that its memory is used is not written down");
    server.kill();
    let untouched = row(&world, &id);
    assert_eq!((untouched.kept_ms, untouched.memory_used), (Some(7), false));
}

#[test]
fn a_server_that_was_killed_as_it_woke_a_machine_puts_it_to_sleep_and_its_copy_is_too_old() {
    let world = world();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    let sleeping = server.exec(id, argv(&["sleep", "1000"])).unwrap();
    pause(&server, id, PauseMode::Memory);
    server.kill();
    copied(&world, id);
    let server = world.start();
    server.until_state(id, Some(SandboxState::Paused));
    assert_eq!(server.engine.sandbox(id).unwrap().kept_ms, Some(7), "a start alone changes nothing");
    kill_in_wake(&world, server, id);
    let waking = row(&world, id);
    assert_eq!((waking.state, waking.paused), (SandboxState::Paused, Some(PauseMode::Memory)));
    assert_eq!((waking.kept_ms, waking.memory_used), (Some(7), true));
    let server = world.start();
    until("it sleeps", || world.host.is_hibernated(id));
    server.until_state(id, Some(SandboxState::Paused));
    until("its copy counts no more", || server.engine.sandbox(id).unwrap().kept_ms.is_none());
    server.kill();
    let asleep = row(&world, id);
    assert_eq!((asleep.paused, asleep.kept_ms), (Some(PauseMode::Memory), None));
    assert!(!asleep.memory_used);
    // What is here is the sandbox, with what ran in it.
    let server = world.start();
    server.until_state(id, Some(SandboxState::Paused));
    let woken = resume(&server, id);
    assert_eq!((woken.boot_id, woken.reason), (made.boot_id, None));
    assert_eq!(server.kill_exec(&sleeping).record.exit.unwrap().reason, ExitReason::Killed);
    server.delete(id);
    world.assert_empty(&server);
}

/// Beside one that nobody woke, of which the copy is as good as ever.
#[test]
fn a_copied_memory_that_may_have_gone_on_is_not_used_when_nothing_else_is_left() {
    let world = world();
    let server = world.start();
    let [waking, asleep] = [(); 2].map(|()| server.sandbox().id);
    let both = [&waking, &asleep];
    let execs = both.map(|id| server.exec(id, argv(&["sleep", "1000"])).unwrap());
    for id in both {
        pause(&server, id, PauseMode::Memory);
    }
    server.kill();
    for id in both {
        copied(&world, id);
    }
    let server = world.start();
    server.until_state(&waking, Some(SandboxState::Paused));
    kill_in_wake(&world, server, &waking);
    for id in both {
        world.run(async { world.host.driver().destroy(id).await.unwrap() });
    }
    let server = world.start();
    until("its memory is given up", || {
        server.engine.sandbox(&waking).unwrap().paused == Some(PauseMode::Filesystem)
    });
    assert_eq!(server.wait(&execs[0]).record.exit.unwrap().reason, ExitReason::SandboxPaused);
    let record = server.engine.sandbox(&waking).unwrap();
    assert_eq!((record.state, record.kept_ms), (SandboxState::Paused, Some(7)));
    let reason = record.reason.unwrap();
    assert!(reason.contains("without its memory") && reason.contains("may have gone on"), "{reason}");
    server.until_state(&asleep, Some(SandboxState::Paused));
    let exec = server.run(server.store.exec(&execs[1].record.id)).unwrap().unwrap();
    assert!(!exec.state.is_final(), "it goes on when its sandbox does: {:?}", exec.state);
    server.kill();
    let rows = both.map(|id| row(&world, id));
    assert_eq!(rows.each_ref().map(|row| row.kept_ms), [Some(7); 2], "their disks are in the object store");
    let paused = rows.each_ref().map(|row| (row.paused, row.memory_used));
    assert_eq!(paused, [(Some(PauseMode::Filesystem), false), (Some(PauseMode::Memory), false)]);
    let server = world.start();
    for id in both {
        server.until_state(id, Some(SandboxState::Paused));
        server.delete(id);
    }
    world.assert_empty(&server);
}

#[test]
fn a_wake_that_fails_makes_the_copy_too_old() {
    let world = world();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    pause(&server, id, PauseMode::Memory);
    server.kill();
    copied(&world, id);
    let server = world.start();
    server.until_state(id, Some(SandboxState::Paused));
    world.host.fail_wake(1);
    server.run(server.engine.resume_sandbox(id)).unwrap_err();
    assert_eq!(server.engine.sandbox(id).unwrap().kept_ms, None);
    let stored = server.run(server.store.sandbox(id)).unwrap().unwrap();
    assert_eq!((stored.state, stored.paused), (SandboxState::Paused, Some(PauseMode::Memory)));
    assert_eq!((stored.kept_ms, stored.memory_used), (None, false), "nobody is given the older copy");
    assert_eq!(resume(&server, id).boot_id, made.boot_id);
    server.delete(id);
    world.assert_empty(&server);
}
