//! Pausing and resuming.

use atoll_core::Code;
use atoll_core::build::CommandText;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::idle::{IdlePolicy, OnIdle};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{ExecDraft, SandboxDraft, TemplateSpec};
use atoll_engine::{Caller, ExecQuery, ForkOrder};
use atoll_isolation::{Death, StandingStill as _};
use atoll_store::SandboxRecord;

use crate::support::{Server, World, argv, ms, numbers, until};

pub(crate) fn pause(server: &Server, id: &SandboxId, mode: PauseMode) -> SandboxRecord {
    let record = server.run(server.engine.pause_sandbox(id, mode)).unwrap();
    assert_eq!((record.state, record.paused), (SandboxState::Paused, Some(mode)));
    record
}

pub(crate) fn resume(server: &Server, id: &SandboxId) -> SandboxRecord {
    let record = server.run(server.engine.resume_sandbox(id)).unwrap();
    assert_eq!((record.state, record.paused), (SandboxState::Running, None));
    record
}

#[test]
fn what_is_frozen_goes_on_where_it_was() {
    let world = World::new();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    let exec = server.exec(id, argv(&["seq", "300000"])).unwrap();
    for _ in 0..20 {
        pause(&server, id, PauseMode::Frozen);
        assert!(world.host.is_frozen(id));
        assert_eq!(server.exec_state(&exec), server.exec_state(&exec));
        assert_eq!(resume(&server, id).boot_id, made.boot_id);
        assert!(!world.host.is_frozen(id));
    }
    server.wait(&exec);
    crate::support::assert_bytes(&server.output(&exec).stdout, &numbers(300_000));
    // Pausing twice and resuming twice is the same as once.
    resume(&server, id);
    pause(&server, id, PauseMode::Frozen);
    pause(&server, id, PauseMode::Frozen);
    server.delete(id);
    world.assert_empty(&server);
}

fn starts(server: &Server, id: &SandboxId, state: ExecState) -> usize {
    let (execs, _) = server.run(server.engine.execs(id, &ExecQuery::default())).unwrap();
    execs.iter().filter(|exec| exec.record.state == state && exec.record.spec.argv[0] == "sleep").count()
}

/// The start command runs once in each boot, and does not count as use of the sandbox.
#[test]
fn what_a_template_starts_begins_again_with_each_boot() {
    let world = World::new();
    let server = world.start();
    let recipe = TemplateSpec {
        start: Some(CommandText::Argv(vec!["sleep".to_owned(), "1000".to_owned()])),
        ..TemplateSpec::new("host")
    };
    server.run(server.engine.create_template("web", recipe, &Caller::system())).unwrap();
    let draft = SandboxDraft { template: Some("web".to_owned()), ..SandboxDraft::default() };
    let id = server.create(draft.clone()).unwrap().id;
    pause(&server, &id, PauseMode::Frozen);
    resume(&server, &id);
    assert_eq!(starts(&server, &id, ExecState::Running), 1);
    let started = || server.run(server.engine.start_exec(&id)).unwrap().unwrap().record;
    for boot in 1..=10 {
        let before = started();
        pause(&server, &id, PauseMode::Filesystem);
        assert_eq!(started().state, ExecState::Exited);
        resume(&server, &id);
        // A client that asks for the start command right after the boot does not get the one of the boot before.
        let now = started();
        assert!(now.id != before.id && !now.state.is_final(), "{now:?}");
        until("it is started again", || starts(&server, &id, ExecState::Running) == 1);
        assert_eq!(starts(&server, &id, ExecState::Exited), boot);
    }
    let order = ForkOrder { count: 1, ..ForkOrder::default() };
    let children = server.run(server.engine.fork_sandbox(&id, &order, &Caller::system())).unwrap();
    let child = children.into_iter().next().unwrap().unwrap().id;
    assert_eq!(starts(&server, &child, ExecState::Running), 1);
    // A server that starts finds the start command running and does not start it again.
    server.kill();
    let server = world.start();
    for sandbox in [&id, &child] {
        until("it is taken up", || starts(&server, sandbox, ExecState::Running) == 1);
    }
    assert_eq!(starts(&server, &id, ExecState::Exited), 10);
    let idle = IdlePolicy { on_idle: OnIdle::Freeze, ..IdlePolicy::default() };
    let sleepy = server.create(SandboxDraft { idle, idle_timeout_ms: Some(50), ..draft }).unwrap().id;
    server.until_state(&sleepy, Some(SandboxState::Paused));
    [&id, &child, &sleepy].into_iter().for_each(|sandbox| server.delete(sandbox));
    world.assert_empty(&server);
}

#[test]
fn what_is_on_disk_boots_anew() {
    let world = World::new();
    let server = world.start();
    let made = server.sandbox();
    let id = &made.id;
    let exec = server.exec(id, argv(&["sleep", "1000"])).unwrap();
    let guest = server.run(server.engine.guest(id)).unwrap();
    let dead = guest.dead();
    drop(guest);
    pause(&server, id, PauseMode::Filesystem);
    assert!(world.host.is_hibernated(id));
    server.run(dead);
    let ended = server.wait(&exec);
    assert_eq!(ended.record.state, ExecState::Exited);
    assert_eq!(ended.record.exit.unwrap().reason, ExitReason::SandboxPaused);
    // Eight callers use it at once: it is woken once.
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (engine, id) = (server.engine.clone(), id.clone());
            server.spawn(async move { engine.guest(&id).await.map(drop) })
        })
        .collect();
    for call in calls {
        server.run(call).unwrap().unwrap();
    }
    assert_eq!(world.host.calls("wake"), 1);
    let record = server.engine.sandbox(id).unwrap();
    assert_eq!(record.state, SandboxState::Running);
    assert_ne!(record.boot_id, made.boot_id);
    let exec = server.exec(id, argv(&["echo", "on"])).unwrap();
    server.wait(&exec);
    assert_eq!(server.output(&exec).stdout, b"on\n");
    server.delete(id);
    world.assert_empty(&server);
}

#[test]
fn every_use_wakes() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let sleeper = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    for mode in [PauseMode::Frozen, PauseMode::Filesystem] {
        pause(&server, &id, mode);
        let exec = server.exec(&id, argv(&["echo", "awake"])).unwrap();
        server.wait(&exec);
        assert_eq!(server.output(&exec).stdout, b"awake\n", "{mode}");
        assert_eq!(server.state(&id), Some(SandboxState::Running));
    }
    assert_eq!(server.wait(&sleeper).record.exit.unwrap().reason, ExitReason::SandboxPaused);
    let sleeper = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    pause(&server, &id, PauseMode::Frozen);
    let killed = server.kill_exec(&sleeper);
    assert_eq!(killed.record.exit.unwrap().reason, ExitReason::Killed);
    // Looking does not wake.
    pause(&server, &id, PauseMode::Frozen);
    server.run(server.engine.metrics(&id)).unwrap();
    assert_eq!(server.state(&id), Some(SandboxState::Paused));
    let unsupported = server.run(server.engine.pause_sandbox(&id, PauseMode::Memory)).unwrap_err();
    assert_eq!(unsupported.code, Code::PauseUnavailable);
    assert!(unsupported.message.contains("memory pause unavailable"), "{unsupported:?}");
    assert_eq!(server.state(&id), Some(SandboxState::Paused), "and nothing changed");
    server.delete(&id);
    world.assert_empty(&server);
}

#[test]
fn a_timeout_does_not_run_while_it_stands_still() {
    const TIMEOUT_MS: u64 = 600;
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.sandbox().id;
    let draft = ExecDraft {
        timeout_ms: Some(TIMEOUT_MS),
        idle_timeout_ms: Some(TIMEOUT_MS),
        ..argv(&["sleep", "1000"])
    };
    let exec = server.exec(&id, draft).unwrap();
    clock.advance(ms(100));
    pause(&server, &id, PauseMode::Frozen);
    clock.advance(ms(2 * TIMEOUT_MS));
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    // Nor over a restart, before and after the resume.
    server.kill();
    let server = world.start();
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    assert_eq!(server.state(&id), Some(SandboxState::Paused));
    clock.advance(ms(TIMEOUT_MS));
    resume(&server, &id);
    clock.advance(ms(TIMEOUT_MS - 101));
    assert_eq!(server.exec_state(&exec), ExecState::Running, "its time is not over yet");
    clock.advance(ms(1));
    let ended = server.wait(&exec).record;
    assert_eq!(ended.exit.unwrap().reason, ExitReason::TimedOut);
    assert_eq!(ended.ended_ms, Some(ended.created_ms + 4 * TIMEOUT_MS));
    server.delete(&id);
    world.assert_empty(&server);
}

#[test]
fn what_is_paused_is_paused_after_a_restart() {
    let world = World::new();
    let server = world.start();
    let [frozen, disk, dozing, dies] = [(); 4].map(|()| server.sandbox().id);
    let exec = server.exec(&frozen, argv(&["seq", "200000"])).unwrap();
    pause(&server, &frozen, PauseMode::Frozen);
    pause(&server, &disk, PauseMode::Filesystem);
    pause(&server, &dies, PauseMode::Frozen);
    server.kill();
    // The host differs from the rows: a running sandbox is frozen, and a frozen one runs.
    let driver = world.host.driver();
    world.run(driver.freeze(&dozing)).unwrap();
    world.run(driver.thaw(&frozen)).unwrap();
    world.host.die(&dies, Death::Exited);
    let connects = world.host.calls("connect");
    let server = world.start();
    // It is there before its network has been taken up, and says so then.
    server.run(server.engine.network(&frozen)).unwrap();
    until("the frozen one is frozen", || world.host.is_frozen(&frozen));
    for id in [&frozen, &disk] {
        server.until_state(id, Some(SandboxState::Paused));
    }
    server.until_state(&dies, Some(SandboxState::Failed));
    until("the dozing one goes on", || !world.host.is_frozen(&dozing));
    let done = server.exec(&dozing, argv(&["true"])).unwrap();
    server.wait(&done);
    assert_eq!(world.host.calls("connect"), connects + 1, "nobody asked the frozen one");
    assert!(server.run(server.engine.leaks()).unwrap().is_empty());
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    server.wait(&server.exec(&frozen, argv(&["true"])).unwrap());
    server.wait(&exec);
    crate::support::assert_bytes(&server.output(&exec).stdout, &numbers(200_000));
    resume(&server, &disk);
    for id in [frozen, disk, dozing, dies] {
        server.delete(&id);
    }
    world.assert_empty(&server);
}

#[test]
fn what_was_half_asleep_or_half_awake_is_put_to_disk() {
    let world = World::new();
    let server = world.start();
    let [asleep, awake] = [(); 2].map(|()| server.sandbox().id);
    let exec = server.exec(&asleep, argv(&["sleep", "1000"])).unwrap();
    pause(&server, &awake, PauseMode::Filesystem);
    let plan = world.host.plan(&awake).unwrap();
    server.kill();
    world.run(world.host.driver().wake(&plan)).unwrap();
    world.edit(async |store| {
        let record = store.sandbox(&asleep).await.unwrap().unwrap();
        let next = SandboxRecord {
            state: SandboxState::Pausing,
            paused: Some(PauseMode::Filesystem),
            paused_ms: Some(1),
            ..record
        };
        store.set_pause(&next, &[SandboxState::Running]).await.unwrap();
    });
    let server = world.start();
    for id in [&asleep, &awake] {
        server.until_state(id, Some(SandboxState::Paused));
        assert!(world.host.is_hibernated(id));
        resume(&server, id);
    }
    assert_eq!(server.wait(&exec).record.exit.unwrap().reason, ExitReason::SandboxPaused);
    for id in [asleep, awake] {
        server.delete(&id);
    }
    world.assert_empty(&server);
}

#[test]
fn a_wake_that_fails_leaves_it_paused() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    pause(&server, &id, PauseMode::Filesystem);
    world.host.fail_wake(1);
    let error = server.exec(&id, argv(&["true"])).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert_eq!(server.state(&id), Some(SandboxState::Paused));
    assert!(world.host.is_hibernated(&id));
    server.wait(&server.exec(&id, argv(&["true"])).unwrap());
    // Half-way between the two states it can be deleted like any other.
    world.host.fail_wake(1);
    pause(&server, &id, PauseMode::Filesystem);
    server.run(server.engine.resume_sandbox(&id)).unwrap_err();
    server.delete(&id);
    world.assert_empty(&server);
}

#[test]
fn what_dies_while_it_stands_still_has_failed() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    pause(&server, &id, PauseMode::Frozen);
    world.host.die(&id, Death::OutOfMemory);
    server.until_state(&id, Some(SandboxState::Failed));
    assert_eq!(server.exec(&id, argv(&["true"])).unwrap_err().code, Code::SandboxFailed);
    server.delete(&id);
    world.assert_empty(&server);
}
