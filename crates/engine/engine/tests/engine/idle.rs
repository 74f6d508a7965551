//! What becomes of a sandbox by itself: it dozes, is paused, or is deleted when its time is over.

use atoll_core::idle::{IdlePolicy, IdleUpdate, OnIdle};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{SandboxDraft, SandboxUpdate};

use crate::pause::{pause, resume};
use crate::support::{NOON_MS, World, argv, ms, until};

fn policy(idle: IdlePolicy, idle_timeout_ms: Option<u64>) -> SandboxDraft {
    SandboxDraft { idle, idle_timeout_ms, ..SandboxDraft::default() }
}

#[test]
fn the_end_may_be_a_pause() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let idle = IdlePolicy { pause_at_end: Some(PauseMode::Frozen), ..IdlePolicy::default() };
    let draft = SandboxDraft { ttl_ms: Some(50), ..policy(idle, None) };
    let made = server.create(draft).unwrap();
    let id = made.id;
    clock.advance(ms(49));
    assert_eq!(server.state(&id), Some(SandboxState::Running));
    clock.advance(ms(1));
    server.until_state(&id, Some(SandboxState::Paused));
    let record = server.run(async { server.engine.sandbox(&id) }).unwrap();
    assert_eq!((record.paused, record.expires_ms), (Some(PauseMode::Frozen), None));
    assert_eq!(record.paused_ms, Some(made.created_ms + 50));
    // Without a new end the sandbox goes on; with one it is paused again.
    resume(&server, &id);
    clock.advance(ms(1000));
    let update = SandboxUpdate { ttl_ms: Some(Some(50)), ..SandboxUpdate::default() };
    server.run(server.engine.update_sandbox(&id, update)).unwrap();
    clock.advance(ms(49));
    assert_eq!(server.state(&id), Some(SandboxState::Running));
    clock.advance(ms(1));
    server.until_state(&id, Some(SandboxState::Paused));
    let gone = IdleUpdate { pause_at_end: Some(None), ..IdleUpdate::default() };
    let update = SandboxUpdate { idle: gone, ttl_ms: Some(Some(50)), ..SandboxUpdate::default() };
    server.run(server.engine.update_sandbox(&id, update)).unwrap();
    clock.advance(ms(50));
    server.until_state(&id, None);
    world.assert_empty(&server);
}

#[test]
fn the_idle_doze_and_nobody_notices() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let doze = IdlePolicy { freeze_ms: Some(20), ..IdlePolicy::default() };
    let id = server.create(policy(doze, None)).unwrap().id;
    for round in 0..5 {
        clock.advance(ms(20));
        until("it dozes", || world.host.is_frozen(&id));
        assert_eq!(server.state(&id), Some(SandboxState::Running));
        let exec = server.exec(&id, argv(&["echo", &round.to_string()])).unwrap();
        server.wait(&exec);
        assert_eq!(server.output(&exec).stdout, format!("{round}\n").as_bytes());
        server.until_at_rest();
    }
    let busy = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    clock.advance(ms(100));
    assert!(!world.host.is_frozen(&id), "it dozes while something runs");
    server.kill_exec(&busy);
    server.until_at_rest();
    clock.advance(ms(19));
    assert!(!world.host.is_frozen(&id), "it dozes too early");
    clock.advance(ms(1));
    until("it dozes again", || world.host.is_frozen(&id));
    server.kill();
    let server = world.start();
    server.wait(&server.exec(&id, argv(&["true"])).unwrap());
    server.delete(&id);
    world.assert_empty(&server);
}

#[test]
fn idle_timeouts_pause_or_delete() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let on = |on_idle| policy(IdlePolicy { on_idle, ..IdlePolicy::default() }, Some(50));
    let paused_ms = |id| server.engine.sandbox(id).unwrap().paused_ms;
    let freezes = server.create(on(OnIdle::Freeze)).unwrap().id;
    let hibernates = server.create(on(OnIdle::Hibernate)).unwrap().id;
    let deletes = server.create(on(OnIdle::Delete)).unwrap().id;
    let both = IdlePolicy {
        on_idle: OnIdle::Freeze,
        hibernate_after_ms: Some(50),
        freeze_ms: Some(10),
        ..IdlePolicy::default()
    };
    let deeper = server.create(policy(both, Some(50))).unwrap().id;
    clock.advance(ms(10));
    until("it dozes first", || world.host.is_frozen(&deeper));
    clock.advance(ms(39));
    for id in [&freezes, &hibernates, &deletes, &deeper] {
        assert_eq!(server.state(id), Some(SandboxState::Running));
    }
    clock.advance(ms(1));
    server.until_state(&freezes, Some(SandboxState::Paused));
    server.until_state(&hibernates, Some(SandboxState::Paused));
    server.until_state(&deeper, Some(SandboxState::Paused));
    server.until_state(&deletes, None);
    assert!(world.host.is_frozen(&freezes) && world.host.is_hibernated(&hibernates));
    for id in [&freezes, &hibernates, &deeper] {
        assert_eq!(paused_ms(id), Some(NOON_MS + 50));
    }
    clock.advance(ms(49));
    assert!(!world.host.is_hibernated(&deeper));
    clock.advance(ms(1));
    until("it hibernates after all", || world.host.is_hibernated(&deeper));
    for id in [&freezes, &hibernates] {
        server.wait(&server.exec(id, argv(&["true"])).unwrap());
        server.until_at_rest();
        clock.advance(ms(50));
        server.until_state(id, Some(SandboxState::Paused));
    }
    for id in [freezes, hibernates, deeper] {
        server.delete(&id);
    }
    world.assert_empty(&server);
}

#[test]
fn a_paused_sandbox_that_nobody_comes_back_for_is_deleted() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let draft = |ms| policy(IdlePolicy { delete_paused_after_ms: Some(ms), ..IdlePolicy::default() }, None);
    let frozen = server.create(draft(50)).unwrap().id;
    let hibernated = server.create(draft(50)).unwrap().id;
    let later = server.create(draft(3_600_000)).unwrap().id;
    clock.advance(ms(100));
    assert_eq!(server.state(&frozen), Some(SandboxState::Running), "it counts from the pause");
    pause(&server, &frozen, PauseMode::Frozen);
    pause(&server, &hibernated, PauseMode::Filesystem);
    clock.advance(ms(49));
    assert_eq!(server.state(&frozen), Some(SandboxState::Paused));
    assert_eq!(server.state(&hibernated), Some(SandboxState::Paused));
    clock.advance(ms(1));
    server.until_state(&frozen, None);
    server.until_state(&hibernated, None);
    // The time goes on while no server runs.
    pause(&server, &later, PauseMode::Filesystem);
    server.stop();
    clock.advance(ms(3_599_999));
    let server = world.start();
    assert_eq!(server.state(&later), Some(SandboxState::Paused));
    clock.advance(ms(1));
    server.until_state(&later, None);
    world.assert_empty(&server);
}
