//! Pools by demand: sandboxes of a kind that clients ask for again are kept ready, and do not get in the way of other
//! sandboxes.

use std::collections::BTreeMap;

use atoll_core::spec::{ResourcesDraft, SandboxDraft};
use atoll_engine::{Caller, PoolConfig, PoolName, PoolOrigin, PoolView, SnapshotOrder};
use atoll_manual_clock::ManualClock;

use crate::support::{Server, World, ms, named, until};

static CALLER: Caller = Caller::system();
const MINUTE_MS: u64 = 60_000;

fn world() -> (World, ManualClock) {
    let (mut world, clock) = World::by_hand();
    world.pools = PoolConfig { memory_bytes: 1 << 30, fillers: 2, by_demand_max: 4, ..PoolConfig::default() };
    (world, clock)
}

fn pools(server: &Server) -> Vec<PoolView> {
    server.engine.pools().pools
}

fn of_disk(mib: u64) -> SandboxDraft {
    let resources = ResourcesDraft { disk_bytes: Some(mib << 20), ..ResourcesDraft::default() };
    SandboxDraft { resources, ..SandboxDraft::default() }
}

#[track_caller]
fn until_ready(server: &Server, count: u32) {
    until(&format!("{count} wait"), || {
        pools(server).iter().map(|pool| pool.ready).sum::<u32>() == count
            && pools(server).iter().all(|pool| pool.making == 0)
    });
}

/// Whether a creation got a sandbox that waited.
fn waited(world: &World, server: &Server, draft: SandboxDraft) -> bool {
    let before = world.on_host();
    before.contains(&server.create(draft).unwrap().id)
}

#[test]
fn what_is_asked_for_again_within_a_minute_is_kept_ready_until_nobody_asks() {
    let (world, clock) = world();
    let server = world.start();
    assert!(!waited(&world, &server, SandboxDraft::default()));
    clock.advance(ms(MINUTE_MS));
    assert!(!waited(&world, &server, SandboxDraft::default()));
    assert_eq!(pools(&server), [], "a minute ago is long ago");
    clock.advance(ms(MINUTE_MS - 1));
    assert!(!waited(&world, &server, SandboxDraft::default()));
    until_ready(&server, 1);
    let pool = pools(&server).remove(0);
    assert_eq!((pool.origin, pool.spec.min, pool.spec.max), (PoolOrigin::Demand, 0, 4));
    assert_eq!(pool.name.to_string(), "demand:host#1");

    // Just before the pool would be given up, a client asks for this kind of sandbox again.
    clock.advance(ms(5 * MINUTE_MS - 1));
    assert!(waited(&world, &server, SandboxDraft::default()));
    // The next one is not made while this client begins its first command.
    clock.advance(ms(25));
    until_ready(&server, 1);
    assert_eq!(pools(&server)[0].hits, 1);
    clock.advance(ms(5 * MINUTE_MS));
    until("nothing waits", || pools(&server).is_empty() && world.on_host().len() == 4);
    server.stop();
}

#[test]
fn a_client_that_comes_seldom_is_left_alone_after_its_creation() {
    let (world, clock) = world();
    let server = world.start();
    for _ in 0..2 {
        server.create(SandboxDraft::default()).unwrap();
    }
    until_ready(&server, 1);
    clock.advance(ms(100));
    let made = world.host.calls("create");
    assert!(waited(&world, &server, SandboxDraft::default()));
    until("the next one is to be made", || pools(&server)[0].making == 1);
    // Nothing of it is on the host before the pause is over.
    clock.advance(ms(24));
    assert!(!waited(&world, &server, of_disk(64)));
    assert_eq!(world.host.calls("create"), made + 1, "the sandbox of another kind");
    clock.advance(ms(1));
    until_ready(&server, 1);
    server.stop();
}

#[test]
fn a_member_serves_just_what_it_was_made_for() {
    let (world, _clock) = world();
    let server = world.start();
    let first = SandboxDraft {
        env: BTreeMap::from([("OF".to_owned(), "the first".to_owned())]),
        workdir: Some("/srv".to_owned()),
        ..named("first")
    };
    let alike = |name: Option<&str>| SandboxDraft {
        name: name.map(str::to_owned),
        workdir: Some("/srv".to_owned()),
        ..SandboxDraft::default()
    };
    server.create(first).unwrap();
    server.create(alike(Some("second"))).unwrap();
    until_ready(&server, 1);
    let less = ResourcesDraft { memory_bytes: Some(64 << 20), ..ResourcesDraft::default() };
    for other in [
        SandboxDraft::default(),
        SandboxDraft { workdir: Some("/home".to_owned()), ..SandboxDraft::default() },
        SandboxDraft { user: Some("1000".to_owned()), ..alike(None) },
        SandboxDraft { resources: less, ..alike(None) },
        SandboxDraft {
            resources: ResourcesDraft { disk_bytes: Some(64 << 20), ..ResourcesDraft::default() },
            ..alike(None)
        },
    ] {
        assert!(!waited(&world, &server, other.clone()), "{other:?}");
    }
    // A waiting sandbox gets its name, labels and environment only when it is claimed, so other ones are no obstacle.
    let before = world.on_host();
    let env = BTreeMap::from([("OF".to_owned(), "the third".to_owned())]);
    let third = server.create(SandboxDraft { env: env.clone(), ..alike(Some("third")) }).unwrap();
    assert!(before.contains(&third.id) && third.spec.env["OF"] == "the third");
    assert_eq!(world.host.plan(&third.id).unwrap().hostname, "third");
    server.stop();
}

#[test]
fn a_pool_that_was_set_up_comes_first() {
    let (world, _clock) = world();
    let server = world.start();
    for _ in 0..2 {
        server.create(SandboxDraft::default()).unwrap();
    }
    until_ready(&server, 1);
    let host = PoolName::Image("host".to_owned());
    server.run(server.engine.put_pool(host.clone(), atoll_core::pool::PoolSpec::fixed(1))).unwrap();
    until_ready(&server, 2);
    assert!(waited(&world, &server, SandboxDraft::default()));
    let hits: Vec<(bool, u64)> =
        pools(&server).into_iter().map(|pool| (pool.name == host, pool.hits)).collect();
    assert_eq!(hits, [(true, 1), (false, 0)]);
    server.stop();
}

#[test]
fn it_keeps_no_image_and_no_snapshot_from_being_removed() {
    let (world, _clock) = world();
    let server = world.start();
    let engine = &server.engine;
    server.run(engine.images().import("empty", std::io::Cursor::new(vec![0; 1024]))).unwrap();
    let snapshot = server.run(async {
        engine.create_sandbox(named("box"), &CALLER).await.unwrap();
        engine.create_snapshot(&server.id("box"), SnapshotOrder::unnamed(), &CALLER).await.unwrap()
    });
    let of_image = || SandboxDraft { image: Some("empty".to_owned()), ..SandboxDraft::default() };
    let of_snapshot = || SandboxDraft { snapshot: Some(snapshot.id.to_string()), ..SandboxDraft::default() };
    for draft in [of_image(), of_image(), of_snapshot(), of_snapshot()] {
        let made = server.create(draft).unwrap();
        server.delete(&made.id);
    }
    until_ready(&server, 2);
    assert!(waited(&world, &server, of_snapshot()));
    until_ready(&server, 2);
    server.run(engine.remove_image("empty")).unwrap();
    until_ready(&server, 1);
    server.run(engine.delete_snapshot(&snapshot.id, None, &CALLER)).unwrap();
    until("nothing waits", || pools(&server).is_empty() && world.on_host().len() == 2);
    server.stop();
}

#[test]
fn what_cannot_be_made_ready_is_no_longer_tried() {
    let (world, _clock) = world();
    let server = world.start();
    for _ in 0..2 {
        server.create(SandboxDraft::default()).unwrap();
    }
    until_ready(&server, 1);
    world.host.fail_create(1, true);
    assert!(waited(&world, &server, SandboxDraft::default()));
    until("there is no pool", || pools(&server).is_empty() && world.on_host().len() == 3);
    // The pool begins anew.
    for _ in 0..2 {
        assert!(!waited(&world, &server, SandboxDraft::default()));
    }
    until_ready(&server, 1);
    server.stop();
    assert_eq!(world.on_host().len(), 5, "an orderly stop leaves no members");
}

#[test]
fn kinds_are_bounded() {
    let (world, clock) = world();
    let server = world.start();
    for mib in 32..49 {
        for _ in 0..2 {
            let made = server.create(of_disk(mib)).unwrap();
            server.delete(&made.id);
        }
        clock.advance(ms(10));
    }
    until_ready(&server, 16);
    assert!(!waited(&world, &server, of_disk(32)), "what was asked for longest ago made room");
    assert!(waited(&world, &server, of_disk(48)));
    server.stop();
}

#[test]
fn what_is_refused_is_no_reason_to_keep_anything_ready() {
    let (world, clock) = world();
    let server = world.start();
    server.create(named("taken")).unwrap();
    for _ in 0..3 {
        server.create(named("taken")).unwrap_err();
    }
    assert_eq!(pools(&server), []);
    server.create(SandboxDraft::default()).unwrap();
    until_ready(&server, 1);
    // A refused creation is no reason to keep the pool for longer, either.
    clock.advance(ms(5 * MINUTE_MS - 1));
    server.create(named("taken")).unwrap_err();
    until_ready(&server, 1);
    clock.advance(ms(1));
    until("nothing waits", || pools(&server).is_empty() && world.on_host().len() == 2);
    server.stop();
}

#[test]
fn on_a_server_that_is_half_full_nothing_waits_by_demand() {
    let (mut world, clock) = world();
    world.sandboxes_max = 6;
    let server = world.start();
    let first = server.create(SandboxDraft::default()).unwrap();
    server.create(SandboxDraft::default()).unwrap();
    until_ready(&server, 1);
    assert!(waited(&world, &server, SandboxDraft::default()));
    until("nothing waits", || world.on_host().len() == 3 && pools(&server)[0].target == 0);
    server.delete(&first.id);
    clock.advance(ms(1000));
    until_ready(&server, 1);
    server.stop();
}

#[test]
fn nothing_is_kept_ready_where_that_is_not_wanted() {
    let (mut world, _clock) = world();
    world.pools.by_demand_max = 0;
    let server = world.start();
    for _ in 0..3 {
        assert!(!waited(&world, &server, SandboxDraft::default()));
    }
    assert_eq!(pools(&server), []);
    server.stop();
}
