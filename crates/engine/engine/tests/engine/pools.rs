//! Warm pools: claims, filling, replacing, and that they never make a creation fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_core::Code;
use atoll_core::build::{CommandText, Ready};
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::pool::PoolSpec;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{ResourcesDraft, SandboxDraft, TemplateSpec};
use atoll_engine::{Caller, ExecQuery, ExecView, PoolConfig, PoolName, PoolOrigin, PoolView};
use atoll_isolation::{Death, Usage};
use atoll_manual_clock::ManualClock;
use futures::future::join_all;

use crate::support::{Server, World, argv, ms, named, until};

const MEMORY: u64 = 1 << 30;
static CALLER: Caller = Caller::system();

/// A world whose servers keep `count` of the image `host` ready.
fn world(count: u32) -> World {
    let mut world = World::new();
    world.pools = pools(PoolSpec::fixed(count));
    world
}

/// The same, with a time that stands still until it is moved.
fn by_hand(spec: PoolSpec) -> (World, ManualClock) {
    let (mut world, clock) = World::by_hand();
    world.pools = pools(spec);
    (world, clock)
}

fn pools(spec: PoolSpec) -> PoolConfig {
    PoolConfig {
        memory_bytes: MEMORY,
        fillers: 2,
        images: vec![("host".to_owned(), spec)],
        ..PoolConfig::default()
    }
}

fn pool(server: &Server) -> Option<PoolView> {
    server.engine.pools().pools.into_iter().next()
}

#[track_caller]
fn until_ready(server: &Server, count: u32) {
    until(&format!("{count} wait"), || {
        pool(server).is_some_and(|pool| pool.ready == count && pool.making == 0)
    });
}

fn template(name: &str) -> SandboxDraft {
    SandboxDraft { template: Some(name.to_owned()), ..SandboxDraft::default() }
}

/// Makes sandboxes all at once.
fn burst(server: &Server, count: usize) -> BTreeSet<SandboxId> {
    let create = || server.engine.create_sandbox(SandboxDraft::default(), &CALLER);
    let made = server.run(join_all((0..count).map(|_| create())));
    made.into_iter().map(|made| made.unwrap().id).collect()
}

/// Forgets its pools and waits until nothing of them is left.
fn empty(world: &mut World, server: Server) {
    server.stop();
    world.pools = PoolConfig::default();
    let server = world.start();
    let sandboxes: Vec<SandboxId> = server.run(server.store.sandbox_ids()).unwrap();
    sandboxes.iter().for_each(|id| server.delete(id));
    world.assert_empty(&server);
}

#[test]
fn a_claim_hands_over_a_member_with_its_new_identity() {
    let mut world = world(2);
    let server = world.start();
    until_ready(&server, 2);
    let members = world.on_host();
    assert_eq!(server.engine.stats().sandboxes.len(), 0, "members are no sandboxes");
    assert!(server.run(server.engine.leaks()).unwrap().is_empty(), "nor leaks");

    let draft = SandboxDraft {
        labels: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
        env: BTreeMap::from([("E".to_owned(), "2".to_owned())]),
        resources: ResourcesDraft {
            memory_bytes: Some(64 << 20),
            pids: Some(50),
            ..ResourcesDraft::default()
        },
        ttl_ms: Some(1_000_000),
        ..named("one")
    };
    let record = server.create(draft).unwrap();
    assert!(members.contains(&record.id), "it waited");
    assert_eq!((record.state, record.name.as_deref()), (SandboxState::Running, Some("one")));
    assert_eq!((record.labels["a"].as_str(), record.spec.env["E"].as_str()), ("1", "2"));
    let plan = world.host.plan(&record.id).unwrap();
    assert_eq!((plan.hostname.as_str(), plan.resources), ("one", record.spec.resources));
    assert_eq!(server.run(server.store.sandbox(&record.id)).unwrap(), Some(record.clone()));
    let exec = server.exec(&record.id, argv(&["echo", "hello"])).unwrap();
    assert_eq!(server.output(&exec).stdout, b"hello\n");

    // The pool is filled again, and says what happened.
    until_ready(&server, 2);
    let view = pool(&server).unwrap();
    assert_eq!((view.hits, view.misses, view.origin), (1, 0, PoolOrigin::Server));
    assert!(view.made >= 3 && view.problem.is_none(), "{view:?}");
    server.delete(&record.id);
    empty(&mut world, server);
}

#[test]
fn what_cannot_be_changed_afterwards_is_made() {
    let mut world = world(1);
    let server = world.start();
    until_ready(&server, 1);
    let members = world.on_host();
    let resources = ResourcesDraft { disk_bytes: Some(32 << 20), ..ResourcesDraft::default() };
    let record = server.create(SandboxDraft { resources, ..SandboxDraft::default() }).unwrap();
    assert!(!members.contains(&record.id));
    assert_eq!(pool(&server).unwrap().hits + pool(&server).unwrap().misses, 0, "it was none of its business");
    empty(&mut world, server);
}

#[test]
fn a_drained_pool_is_a_slower_creation_and_no_error() {
    let mut world = world(3);
    let server = world.start();
    until_ready(&server, 3);
    world.host.delay_create(Duration::from_millis(50));
    assert_eq!(burst(&server, 12).len(), 12);
    let view = pool(&server).unwrap();
    assert_eq!(view.hits + view.misses, 12);
    assert!(view.hits >= 3, "{view:?}");
    // The maximum equals the minimum, so demand does not raise the target.
    assert_eq!(view.target, 3);
    until_ready(&server, 3);
    empty(&mut world, server);
}

#[test]
fn demand_raises_the_target_up_to_the_maximum() {
    let (mut world, clock) = by_hand(PoolSpec { min: 0, max: 4, max_age_ms: None });
    let server = world.start();
    until("the pool is there", || pool(&server).is_some());
    assert_eq!(world.on_host().len(), 0, "nobody asked yet");
    burst(&server, 12);
    // The fillers pause for a moment after each claim.
    clock.advance(ms(25));
    until("four wait", || pool(&server).is_some_and(|pool| pool.ready == 4));
    // The demand is forgotten with time.
    clock.advance(ms(3_600_000));
    until("none wait", || pool(&server).is_some_and(|pool| pool.ready == 0));
    empty(&mut world, server);
}

#[test]
fn members_that_take_more_while_they_wait_are_fewer() {
    let (mut world, clock) = by_hand(PoolSpec::fixed(4));
    let server = world.start();
    until_ready(&server, 4);
    let members = world.on_host();
    let usage = Usage { memory_bytes: MEMORY / 3, ..Usage::default() };
    members.iter().for_each(|id| world.host.set_usage(id, usage));
    clock.advance(ms(30_000));
    until("no more wait than fit", || {
        pool(&server).is_some_and(|pool| pool.ready == 3) && world.on_host().len() == 3
    });
    assert!(world.on_host().is_subset(&members), "those that fit stay");
    empty(&mut world, server);
}

#[test]
fn a_host_that_cannot_make_members_can_still_make_sandboxes() {
    let (mut world, clock) = by_hand(PoolSpec::fixed(2));
    // Both fillers fail, and then rest.
    world.host.fail_create(2, true);
    let server = world.start();
    until("the pool has a problem", || {
        pool(&server).is_some_and(|pool| pool.failed == 2 && pool.problem.is_some() && pool.making == 0)
    });
    assert_eq!(world.on_host().len(), 0, "what was half made is gone");
    let record = server.sandbox();
    assert_eq!(server.state(&record.id), Some(SandboxState::Running));
    // The fillers try again after a while.
    assert_eq!(pool(&server).unwrap().making, 0);
    clock.advance(ms(2000));
    until_ready(&server, 2);
    assert_eq!(pool(&server).unwrap().problem, None);
    empty(&mut world, server);
}

#[test]
fn a_member_that_resists_its_new_identity_is_replaced_by_a_fresh_sandbox() {
    let mut world = world(1);
    let server = world.start();
    until_ready(&server, 1);
    let member = world.on_host().into_iter().next().unwrap();
    let destroyed = world.host.calls("destroy");
    world.host.fail_rename(1);
    let record = server.create(named("other")).unwrap();
    assert_eq!(record.id, member, "under the same id");
    assert!(world.host.calls("destroy") > destroyed, "the member is gone");
    assert_eq!(world.host.plan(&record.id).unwrap().hostname, "other");
    let exec = server.exec(&record.id, argv(&["true"])).unwrap();
    assert_eq!(server.wait(&exec).record.exit.unwrap().code, Some(0));
    empty(&mut world, server);
}

#[test]
fn a_name_that_is_taken_costs_no_member() {
    let mut world = world(1);
    let server = world.start();
    until_ready(&server, 1);
    let first = server.create(named("one")).unwrap();
    until_ready(&server, 1);
    let before = world.on_host();
    assert_eq!(server.create(named("one")).unwrap_err().code, Code::NameTaken);
    until_ready(&server, 1);
    assert_eq!(world.on_host(), before);
    server.delete(&first.id);
    empty(&mut world, server);
}

#[test]
fn dead_members_are_replaced_at_once() {
    let mut world = world(2);
    let server = world.start();
    until_ready(&server, 2);
    let before = world.on_host();
    before.iter().for_each(|id| world.host.die(id, Death::Exited));
    until("others wait", || world.on_host().len() == 2 && world.on_host().is_disjoint(&before));
    until_ready(&server, 2);
    let record = server.sandbox();
    let exec = server.exec(&record.id, argv(&["true"])).unwrap();
    assert_eq!(server.wait(&exec).record.exit.unwrap().code, Some(0));
    empty(&mut world, server);
}

#[test]
fn old_members_are_replaced() {
    let (mut world, clock) = by_hand(PoolSpec { max_age_ms: Some(1000), ..PoolSpec::fixed(2) });
    let server = world.start();
    until_ready(&server, 2);
    let before = world.on_host();
    clock.advance(ms(999));
    assert_eq!(world.on_host(), before);
    clock.advance(ms(1));
    until("others wait", || {
        pool(&server).is_some_and(|pool| pool.ready == 2) && world.on_host().is_disjoint(&before)
    });
    empty(&mut world, server);
}

#[test]
fn members_of_a_template_follow_its_newest_version() {
    let mut world = world(0);
    world.pools.images.clear();
    let server = world.start();
    let (engine, caller) = (&server.engine, Caller::system());
    let recipe = |disk: u64, count: Option<u32>| TemplateSpec {
        resources: ResourcesDraft { disk_bytes: Some(disk << 20), ..ResourcesDraft::default() },
        env: BTreeMap::from([("DISK".to_owned(), disk.to_string())]),
        pool: count.map(PoolSpec::fixed),
        ..TemplateSpec::new("host")
    };
    server.run(engine.create_template("tool", recipe(32, Some(2)), &caller)).unwrap();
    until_ready(&server, 2);
    let first = world.on_host();
    assert_eq!(pool(&server).unwrap().template.as_deref(), Some("tool:1"));

    server.run(engine.create_template("tool", recipe(64, Some(1)), &caller)).unwrap();
    until("the new version waits", || {
        pool(&server).is_some_and(|pool| pool.template.as_deref() == Some("tool:2") && pool.ready == 1)
            && world.on_host().is_disjoint(&first)
    });
    // A client that names the old version gets the old version, made on request.
    let waiting = world.on_host();
    let old = server.create(template("tool:1")).unwrap();
    assert!(!waiting.contains(&old.id) && old.spec.env["DISK"] == "32");
    let new = server.create(template("tool")).unwrap();
    assert!(waiting.contains(&new.id) && new.spec.env["DISK"] == "64");
    until_ready(&server, 1);

    // A version without a pool, and then no template: no members.
    server.run(engine.create_template("tool", recipe(64, None), &caller)).unwrap();
    until("there is no pool", || pool(&server).is_none() && world.on_host().len() == 2);
    server.run(engine.create_template("tool", recipe(64, Some(1)), &caller)).unwrap();
    until_ready(&server, 1);
    server.run(engine.delete_template("tool", None, &Caller::system())).unwrap();
    until("there is no pool", || pool(&server).is_none() && world.on_host().len() == 2);
    empty(&mut world, server);
}

#[test]
fn what_a_call_sets_survives_a_restart_and_can_be_taken_back() {
    let mut world = world(1);
    let server = world.start();
    let host = || PoolName::Image("host".to_owned());
    until_ready(&server, 1);
    let view = server.run(server.engine.put_pool(host(), PoolSpec::fixed(3))).unwrap();
    assert_eq!((view.spec, view.origin), (PoolSpec::fixed(3), PoolOrigin::Call));
    until_ready(&server, 3);
    server.stop();
    assert_eq!(world.on_host().len(), 0, "an orderly stop leaves no members");
    let server = world.start();
    until_ready(&server, 3);
    server.run(server.engine.delete_pool(&host())).unwrap();
    until_ready(&server, 1);
    assert_eq!(pool(&server).unwrap().origin, PoolOrigin::Server);

    let put = |name, spec| server.run(server.engine.put_pool(name, spec)).unwrap_err().code;
    assert_eq!(put(host(), PoolSpec { min: 2, max: 1, max_age_ms: None }), Code::InvalidArgument);
    assert_eq!(put(host(), PoolSpec::fixed(1000)), Code::PoolTooLarge);
    assert_eq!(put(PoolName::Template("none".to_owned()), PoolSpec::fixed(1)), Code::TemplateNotFound);
    assert_eq!(put(PoolName::Image("none".to_owned()), PoolSpec::fixed(1)), Code::ImageNotFound);
    let gone = server.run(server.engine.delete_pool(&host()));
    assert_eq!(gone.unwrap_err().code, Code::PoolNotFound);
    let large = TemplateSpec { pool: Some(PoolSpec::fixed(1000)), ..TemplateSpec::new("host") };
    let refused = server.run(server.engine.create_template("big", large, &Caller::system()));
    assert_eq!(refused.unwrap_err().code, Code::PoolTooLarge);
    empty(&mut world, server);
}

#[test]
fn after_a_kill_members_are_gone_and_sandboxes_are_not() {
    let mut world = world(3);
    let server = world.start();
    until_ready(&server, 3);
    let record = server.sandbox();
    until_ready(&server, 3);
    let before = world.on_host();
    server.kill();
    assert_eq!(world.on_host(), before, "nobody tidied up");
    let server = world.start();
    until_ready(&server, 3);
    let after = world.on_host();
    let both: Vec<_> = before.intersection(&after).collect();
    assert_eq!(both, [&record.id]);
    empty(&mut world, server);
}

/// A template whose sandboxes start something, with a pool of `count`.
fn starting(command: &[&str], ready: Option<&[&str]>, count: u32) -> TemplateSpec {
    let list = |words: &[&str]| CommandText::Argv(words.iter().map(|word| (*word).to_owned()).collect());
    TemplateSpec {
        start: Some(list(command)),
        ready: ready.map(|words| Ready {
            command: Some(list(words)),
            port: None,
            timeout_ms: Some(2000),
            interval_ms: Some(10),
        }),
        pool: Some(PoolSpec::fixed(count)),
        ..TemplateSpec::new("host")
    }
}

fn execs_of(server: &Server, sandbox: &SandboxId) -> Vec<ExecView> {
    server.run(server.engine.execs(sandbox, &ExecQuery::default())).unwrap().0
}

#[test]
fn members_run_what_their_template_starts() {
    let mut world = world(0);
    world.pools.images.clear();
    let server = world.start();
    let (engine, caller) = (&server.engine, Caller::system());
    server
        .run(engine.create_template("web", starting(&["sleep", "1000"], Some(&["true"]), 1), &caller))
        .unwrap();
    until_ready(&server, 1);
    let waiting = world.on_host();
    let record = server.create(template("web")).unwrap();
    assert!(waiting.contains(&record.id), "it waited");
    let execs = execs_of(&server, &record.id);
    assert_eq!(execs.len(), 1, "{execs:?}");
    let start = &execs[0];
    assert_eq!(
        (start.record.state, start.record.spec.argv.join(" ")),
        (ExecState::Running, "sleep 1000".into())
    );
    assert!(start.record.created_ms <= record.created_ms && start.record.pid.is_some());
    let killed = server.kill_exec(start);
    assert_eq!(killed.record.exit.unwrap().reason, ExitReason::Killed);

    // The output that the start command wrote before the claim is there: more than the guest agent keeps for a slow
    // reader.
    server.run(engine.create_template("web", starting(&["seq", "300000"], None, 1), &caller)).unwrap();
    until("the new version waits", || {
        pool(&server).is_some_and(|pool| pool.template.as_deref() == Some("web:2") && pool.ready == 1)
    });
    until("it has written", || !world.with_logs().is_subset(&BTreeSet::from([record.id.clone()])));
    let second = server.create(template("web")).unwrap();
    let start = execs_of(&server, &second.id).remove(0);
    assert_eq!(server.wait(&start).record.exit.unwrap().code, Some(0));
    let wanted: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(server.output(&start).stdout == wanted.as_bytes());

    // A sandbox with another environment is made on request.
    until_ready(&server, 1);
    let waiting = world.on_host();
    let env = BTreeMap::from([("E".to_owned(), "1".to_owned())]);
    let other = server.create(SandboxDraft { env, ..template("web") }).unwrap();
    assert!(!waiting.contains(&other.id));
    let labelled = SandboxDraft { labels: BTreeMap::from([("a".into(), "b".into())]), ..named("mine") };
    let third = server.create(SandboxDraft { template: Some("web".into()), ..labelled }).unwrap();
    assert!(waiting.contains(&third.id));
    server.run(engine.delete_template("web", None, &Caller::system())).unwrap();
    until("there is no pool", || pool(&server).is_none() && world.on_host().len() == 4);
    empty(&mut world, server);
}

#[test]
fn a_member_that_does_not_become_ready_is_none() {
    let mut world = world(0);
    world.pools.images.clear();
    let server = world.start();
    let (engine, caller) = (&server.engine, Caller::system());
    let broken = starting(&["exit", "3"], Some(&["false"]), 1);
    server.run(engine.create_template("web", broken, &caller)).unwrap();
    until("the pool says why", || {
        pool(&server).and_then(|pool| pool.problem).is_some_and(|problem| problem.contains("with code 3"))
    });
    assert_eq!(server.create(template("web")).unwrap_err().code, Code::StartFailed, "as without a pool");
    until("nothing is left", || world.on_host().is_empty() && world.with_logs().is_empty());
    server.run(engine.delete_template("web", None, &Caller::system())).unwrap();
    empty(&mut world, server);
}

#[test]
fn after_a_kill_a_claimed_start_goes_on() {
    let mut world = world(0);
    world.pools.images.clear();
    let server = world.start();
    let recipe = starting(&["sleep", "1000"], None, 2);
    server.run(server.engine.create_template("web", recipe, &Caller::system())).unwrap();
    until_ready(&server, 2);
    let record = server.create(template("web")).unwrap();
    let before = execs_of(&server, &record.id);
    server.kill();
    let server = world.start();
    until_ready(&server, 2);
    let after = execs_of(&server, &record.id);
    assert_eq!(after.len(), 1, "it was not started again");
    assert_eq!((&after[0].record.id, after[0].record.state), (&before[0].record.id, ExecState::Running));
    server.run(server.engine.delete_template("web", None, &Caller::system())).unwrap();
    until("only the claimed one is left", || world.on_host() == BTreeSet::from([record.id.clone()]));
    empty(&mut world, server);
}
