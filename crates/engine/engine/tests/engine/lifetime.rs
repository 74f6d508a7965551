//! Times to live, idleness, updates.

use std::collections::BTreeMap;

use atoll_core::Code;
use atoll_core::idle::IdlePolicy;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{IsolationLevel, ResourcesDraft, SandboxDraft, SandboxUpdate, TemplateSpec};
use atoll_engine::{Caller, KeyScope, SandboxQuery};
use atoll_isolation::Death;

use crate::support::{World, argv, ms, named, until};

fn ttl(ms: u64) -> SandboxDraft {
    SandboxDraft { ttl_ms: Some(ms), ..SandboxDraft::default() }
}

fn idle(ms: u64) -> SandboxDraft {
    SandboxDraft { idle_timeout_ms: Some(ms), ..SandboxDraft::default() }
}

#[test]
fn time_to_live_ends_the_busy_and_the_failed() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let busy = server.sandbox().id;
    server.exec(&busy, argv(&["sleep", "1000"])).unwrap();
    let soon = SandboxUpdate { ttl_ms: Some(Some(100)), ..SandboxUpdate::default() };
    server.run(server.engine.update_sandbox(&busy, soon)).unwrap();
    let failed = server.create(ttl(300)).unwrap().id;
    world.host.die(&failed, Death::Exited);
    server.until_state(&failed, Some(SandboxState::Failed));
    let stays = server.create(ttl(301)).unwrap().id;
    clock.advance(ms(99));
    assert_eq!(server.state(&busy), Some(SandboxState::Running));
    clock.advance(ms(1));
    server.until_state(&busy, None);
    clock.advance(ms(199));
    assert_eq!(server.state(&failed), Some(SandboxState::Failed));
    clock.advance(ms(1));
    server.until_state(&failed, None);
    assert_eq!(server.state(&stays), Some(SandboxState::Running));
    server.delete(&stays);
    world.assert_empty(&server);
}

#[test]
fn time_to_live_passes_while_no_server_runs() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let [id, later] = [100, 101].map(|ms| server.create(ttl(ms)).unwrap().id);
    server.kill();
    clock.advance(ms(100));
    let server = world.start();
    server.until_state(&id, None);
    assert_eq!(server.state(&later), Some(SandboxState::Running));
    clock.advance(ms(1));
    server.until_state(&later, None);
    world.assert_empty(&server);
}

#[test]
fn only_the_idle_are_idle() {
    const IDLE_MS: u64 = 60_000;
    let (world, clock) = World::by_hand();
    let server = world.start();
    let [idler, busy, held] = [(); 3].map(|()| server.sandbox().id);
    let exec = server.exec(&busy, argv(&["sleep", "1000"])).unwrap();
    let lease = server.run(server.engine.guest(&held)).unwrap();
    for id in [&idler, &busy, &held] {
        let update = SandboxUpdate { idle_timeout_ms: Some(Some(IDLE_MS)), ..SandboxUpdate::default() };
        server.run(server.engine.update_sandbox(id, update)).unwrap();
    }
    clock.advance(ms(IDLE_MS - 1));
    assert_eq!(server.state(&idler), Some(SandboxState::Running));
    clock.advance(ms(1));
    server.until_state(&idler, None);
    clock.advance(ms(3 * IDLE_MS));
    let both_run = || {
        assert_eq!(server.state(&busy), Some(SandboxState::Running));
        assert_eq!(server.state(&held), Some(SandboxState::Running));
    };
    both_run();
    // The idle time begins with the end of the use.
    server.kill_exec(&exec);
    server.until_at_rest();
    drop(lease);
    clock.advance(ms(IDLE_MS - 1));
    both_run();
    clock.advance(ms(1));
    server.until_state(&busy, None);
    server.until_state(&held, None);
    world.assert_empty(&server);
}

#[test]
fn the_time_without_a_server_is_nobodys_idleness() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.create(idle(3000)).unwrap().id;
    server.kill();
    clock.advance(ms(3100));
    let server = world.start();
    clock.advance(ms(2999));
    assert_eq!(server.state(&id), Some(SandboxState::Running));
    clock.advance(ms(1));
    server.until_state(&id, None);
}

#[test]
fn a_lease_ends_with_its_time() {
    const LEASE_MS: u64 = 600_000;
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.sandbox().id;
    let [mine, theirs] = ["mine", "theirs"].map(|name| {
        let new = server.run(server.engine.create_key(name, KeyScope::Manage, None)).unwrap();
        Caller::of(&server.run(async { server.engine.verify_key(new.secret.reveal()) }).unwrap())
    });
    let take = |caller| server.run(server.engine.take_lease(&id, caller, LEASE_MS));
    assert_eq!(take(&mine).unwrap().expires_ms, clock.now_ms() + LEASE_MS);
    clock.advance(ms(LEASE_MS - 1));
    assert_eq!(take(&theirs).unwrap_err().code, Code::SandboxLeased);
    assert!(server.engine.lease(&id).unwrap().is_some());
    clock.advance(ms(1));
    assert_eq!(server.engine.lease(&id).unwrap(), None);
    take(&theirs).unwrap();
    assert_eq!(take(&mine).unwrap_err().code, Code::SandboxLeased);
}

#[test]
fn updates_take_effect_and_last() {
    let world = World::new();
    let server = world.start();
    let id = server
        .create(SandboxDraft { labels: BTreeMap::from([("a".into(), "1".into())]), ..named("up") })
        .unwrap()
        .id;
    let update = |update: SandboxUpdate| server.run(server.engine.update_sandbox(&server.id("up"), update));
    let resources = |resources| SandboxUpdate { resources, ..SandboxUpdate::default() };
    let labels = BTreeMap::from([("b".to_owned(), "2".to_owned())]);
    let record = update(SandboxUpdate {
        labels: Some(labels.clone()),
        ttl_ms: Some(Some(1_000_000)),
        idle_timeout_ms: Some(Some(2_000_000)),
        resources: ResourcesDraft { memory_bytes: Some(1 << 30), ..ResourcesDraft::default() },
        ..SandboxUpdate::default()
    })
    .unwrap();
    assert_eq!((&record.labels, record.spec.idle_timeout_ms), (&labels, Some(2_000_000)));
    assert!(record.expires_ms > Some(record.created_ms));
    assert_eq!(world.host.plan(&id).unwrap().resources.memory_bytes, 1 << 30);
    let found = |key: &str, value: &str| {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let query = SandboxQuery { labels, ..SandboxQuery::default() };
        server.run(server.engine.sandboxes(&query, &Caller::system())).unwrap().items.len()
    };
    assert_eq!((found("a", "1"), found("b", "2")), (0, 1));
    for (change, field) in [
        (
            resources(ResourcesDraft { memory_bytes: Some(1), ..ResourcesDraft::default() }),
            "resources.memory_bytes",
        ),
        (
            resources(ResourcesDraft { disk_bytes: Some(1 << 30), ..ResourcesDraft::default() }),
            "resources.disk_bytes",
        ),
        (SandboxUpdate { ttl_ms: Some(Some(0)), ..SandboxUpdate::default() }, "ttl_ms"),
    ] {
        let error = update(change).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.starts_with(field), "{}", error.message);
    }
    assert_eq!(
        server.engine.sandbox(&server.id("up")).unwrap().generation,
        record.generation,
        "what is refused changes nothing"
    );
    server.kill();
    let server = world.start();
    let again = server.engine.sandbox(&server.id("up")).unwrap();
    assert_eq!((again.labels, again.expires_ms, again.spec), (labels, record.expires_ms, record.spec));
    // No end any more; then an end at once.
    let update = |ttl_ms| {
        let update = SandboxUpdate { ttl_ms: Some(ttl_ms), ..SandboxUpdate::default() };
        server.run(server.engine.update_sandbox(&server.id("up"), update)).unwrap()
    };
    assert_eq!(update(None).expires_ms, None);
    update(Some(1));
    server.until_state(&id, None);
}

#[test]
fn the_failed_can_be_relabelled_but_not_resized() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    world.host.die(&id, Death::Exited);
    server.until_state(&id, Some(SandboxState::Failed));
    let update = |update| server.run(server.engine.update_sandbox(&id, update));
    update(SandboxUpdate { labels: Some(BTreeMap::new()), ..SandboxUpdate::default() }).unwrap();
    let resources = ResourcesDraft { pids: Some(100), ..ResourcesDraft::default() };
    let refused = update(SandboxUpdate { resources, ..SandboxUpdate::default() }).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
}

#[test]
fn disk_io_is_limited_changed_and_let_go() {
    let world = World::new();
    let server = world.start();
    let io = |bytes, operations| ResourcesDraft {
        io_bytes_per_second: bytes,
        io_operations_per_second: operations,
        ..ResourcesDraft::default()
    };
    let draft = SandboxDraft { resources: io(Some(Some(8 << 20)), Some(Some(500))), ..named("slow") };
    let id = server.create(draft).unwrap().id;
    let now = || {
        let of = world.host.plan(&id).unwrap().resources;
        (of.io_bytes_per_second, of.io_operations_per_second)
    };
    assert_eq!(now(), (Some(8 << 20), Some(500)));
    let update = |resources| {
        let update = SandboxUpdate { resources, ..SandboxUpdate::default() };
        server.run(server.engine.update_sandbox(&server.id("slow"), update))
    };
    update(io(Some(Some(16 << 20)), None)).unwrap();
    assert_eq!(now(), (Some(16 << 20), Some(500)));
    let error = update(io(Some(Some(1)), None)).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert!(error.message.starts_with("resources.io_bytes_per_second"), "{}", error.message);
    server.kill();
    let server = world.start();
    let kept = server.engine.sandbox(&server.id("slow")).unwrap().spec.resources;
    assert_eq!((kept.io_bytes_per_second, kept.io_operations_per_second), (Some(16 << 20), Some(500)));
    let update = SandboxUpdate { resources: io(Some(None), Some(None)), ..SandboxUpdate::default() };
    let record = server.run(server.engine.update_sandbox(&server.id("slow"), update)).unwrap();
    assert!(!record.spec.resources.limits_io() && now() == (None, None), "{record:?}");
}

#[test]
fn a_level_without_limits_of_disk_io_refuses_them_before_anything_is_made() {
    let world = World::new();
    world.host.refuse_io_limits();
    let server = world.start();
    let resources = ResourcesDraft { io_operations_per_second: Some(Some(500)), ..ResourcesDraft::default() };
    let refused = |error: atoll_core::Error| {
        assert_eq!(error.code, Code::LimitUnenforceable);
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("microvm")), "{error:?}");
    };
    refused(server.create(SandboxDraft { resources, ..SandboxDraft::default() }).unwrap_err());
    assert_eq!(world.host.calls("create"), 0);
    let id = server.sandbox().id;
    let update = SandboxUpdate { resources, ..named_update("other") };
    refused(server.run(server.engine.update_sandbox(&id, update)).unwrap_err());
    assert_eq!(world.host.calls("update"), 0);
    assert_eq!(server.engine.sandbox(&id).unwrap().name, None);
    let recipe =
        TemplateSpec { isolation: Some(IsolationLevel::Container), resources, ..TemplateSpec::new("host") };
    let caller = Caller::system();
    refused(server.run(server.engine.create_template("slow", recipe, &caller)).unwrap_err());
}

fn named_update(name: &str) -> SandboxUpdate {
    SandboxUpdate { name: Some(name.to_owned()), ..SandboxUpdate::default() }
}

#[test]
fn one_that_dozes_is_roused_to_be_limited() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let idle = IdlePolicy { freeze_ms: Some(20), ..IdlePolicy::default() };
    let id = server.create(SandboxDraft { idle, ..SandboxDraft::default() }).unwrap().id;
    clock.advance(ms(20));
    until("it dozes", || world.host.is_frozen(&id));
    let resources = ResourcesDraft { pids: Some(99), ..ResourcesDraft::default() };
    let update = SandboxUpdate { resources, ..SandboxUpdate::default() };
    server.run(server.engine.update_sandbox(&id, update)).unwrap();
    assert_eq!(world.host.plan(&id).unwrap().resources.pids, 99);
}
