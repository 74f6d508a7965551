//! What sandboxes use: budgets, sums, memory pressure.

use atoll_core::Code;
use atoll_core::exec::ExitReason;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{SandboxDraft, SandboxUpdate};
use atoll_core::usage::{Budget, OnExhausted};
use atoll_engine::{Caller, UsageGroup, UsageQuery};
use atoll_isolation::Usage;

use crate::pause::pause;
use crate::support::{NOON_MS, World, argv, ms, until};

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
