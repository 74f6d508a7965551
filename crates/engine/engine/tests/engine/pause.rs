//! Pausing, resuming, dozing, budgets, memory pressure.

use atoll_core::Code;
use atoll_core::build::CommandText;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::idle::{IdlePolicy, IdleUpdate, OnIdle};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{ExecDraft, SandboxDraft, SandboxUpdate, TemplateSpec};
use atoll_core::usage::{Budget, OnExhausted};
use atoll_engine::{Caller, ExecQuery, ForkOrder, UsageGroup, UsageQuery};
use atoll_isolation::{Death, StandingStill as _, Usage};
use atoll_store::SandboxRecord;

use crate::support::{NOON_MS, Server, World, argv, ms, numbers, until};

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

fn policy(idle: IdlePolicy, idle_timeout_ms: Option<u64>) -> SandboxDraft {
    SandboxDraft { idle, idle_timeout_ms, ..SandboxDraft::default() }
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

#[test]
fn a_budget_that_is_used_up_stops_everything_until_it_is_raised() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let budget = Budget { cpu_ms: Some(1000), ..Budget::default() };
    let cpu = |ms: u64| Usage { cpu_us: ms * 1000, ..Usage::default() };
    let draft = SandboxDraft { budget, ..SandboxDraft::default() };
    let id = server.create(draft.clone()).unwrap().id;
    let exec = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    world.host.set_usage(&id, cpu(999));
    let looks = world.host.calls("usage");
    clock.advance(ms(20_000));
    until("it is looked at", || world.host.calls("usage") > looks);
    assert_eq!(server.state(&id), Some(SandboxState::Running));
    // So near to the end, it is looked at again soon.
    world.host.set_usage(&id, cpu(1000));
    clock.advance(ms(50));
    server.until_state(&id, Some(SandboxState::Paused));
    let ended = server.wait(&exec);
    assert_eq!(ended.record.exit.unwrap().reason, ExitReason::BudgetExhausted);
    let record = server.engine.sandbox(&id).unwrap();
    assert!(record.reason.unwrap().contains("cpu_ms: 1000 of 1000"));
    assert_eq!(server.exec(&id, argv(&["true"])).unwrap_err().code, Code::BudgetExhausted);
    // Also after a restart: what was used is not forgotten.
    server.stop();
    let server = world.start();
    assert_eq!(server.exec(&id, argv(&["true"])).unwrap_err().code, Code::BudgetExhausted);
    let raised = Budget { cpu_ms: Some(1500), ..budget };
    let update = SandboxUpdate { budget: Some(raised), ..SandboxUpdate::default() };
    server.run(server.engine.update_sandbox(&id, update)).unwrap();
    server.wait(&server.exec(&id, argv(&["true"])).unwrap());
    assert_eq!(server.engine.sandbox(&id).unwrap().reason, None);
    // Deletion instead of a pause.
    let deleted = Budget { on_exhausted: OnExhausted::Delete, ..budget };
    let deleted = server.create(SandboxDraft { budget: deleted, ..draft }).unwrap().id;
    world.host.set_usage(&id, cpu(2000));
    world.host.set_usage(&deleted, cpu(2000));
    clock.advance(ms(30_000));
    server.until_state(&id, Some(SandboxState::Paused));
    server.until_state(&deleted, None);
    let query = UsageQuery { sandbox: Some(deleted.to_string()), ..UsageQuery::default() };
    let used = server.run(server.engine.usage(&query, &Caller::system())).unwrap();
    assert_eq!(used[0].used.cpu_us, 2_000_000, "what is gone is not forgotten");
    server.delete(&id);
    world.assert_empty(&server);
}

#[test]
fn usage_adds_up_over_restarts() {
    const HOUR_MS: u64 = 3_600_000;
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.sandbox().id;
    world.host.set_usage(&id, Usage { cpu_us: 500, memory_bytes: 1 << 30, ..Usage::default() });
    for _ in 0..3 {
        server.wait(&server.exec(&id, argv(&["true"])).unwrap());
    }
    server.run(server.engine.usage(&UsageQuery::default(), &Caller::system())).unwrap();
    world.host.set_usage(&id, Usage { cpu_us: 800, memory_bytes: 1 << 30, ..Usage::default() });
    // Use that was not recorded is still in the kernel's counter.
    server.kill();
    clock.advance(ms(HOUR_MS));
    let server = world.start();
    server.delete(&id);
    for group in [UsageGroup::Total, UsageGroup::Sandbox, UsageGroup::Key, UsageGroup::Hour] {
        let query = UsageQuery { group, ..UsageQuery::default() };
        let items = server.run(server.engine.usage(&query, &Caller::system())).unwrap();
        assert_eq!(items.iter().map(|item| item.used.cpu_us).sum::<u64>(), 800, "{group:?}");
        assert_eq!(items.iter().map(|item| item.used.execs).sum::<u64>(), 3, "{group:?}");
        let memory: u64 = items.iter().map(|item| item.used.memory_byte_seconds).sum();
        assert_eq!(memory, 3600 << 30, "{group:?}");
        if group == UsageGroup::Hour {
            let hours: Vec<_> = items.iter().map(|item| (item.hour_ms, item.used.execs)).collect();
            assert_eq!(hours, [(Some(NOON_MS + HOUR_MS), 0), (Some(NOON_MS), 3)]);
        }
    }
    let nonsense = UsageQuery { from_ms: Some(5), to_ms: Some(5), ..UsageQuery::default() };
    let refused = server.run(server.engine.usage(&nonsense, &Caller::system())).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    world.assert_empty(&server);
}

#[test]
fn the_longest_frozen_gives_its_memory_first() {
    let (mut world, clock) = World::by_hand();
    world.reclaim_below_bytes = 1 << 30;
    let server = world.start();
    let [first, second, third, awake] = [(); 4].map(|()| server.sandbox().id);
    for id in [&first, &second, &third, &awake] {
        world.host.set_usage(id, Usage { memory_bytes: 400 << 20, ..Usage::default() });
    }
    for id in [&first, &second, &third] {
        pause(&server, id, PauseMode::Frozen);
        clock.advance(ms(5));
    }
    world.host.set_memory_available(Some((1 << 30) - (500 << 20)));
    clock.advance(ms(5000 - 15));
    until("memory is taken", || world.host.reclaimed().len() >= 2);
    assert_eq!(world.host.reclaimed(), [first.clone(), second.clone()]);
    world.host.set_memory_available(None);
    for id in [first, second, third, awake] {
        server.delete(&id);
    }
    world.assert_empty(&server);
}
