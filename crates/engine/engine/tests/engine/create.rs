//! Creation: whole or not at all.

use std::collections::BTreeSet;
use std::time::Duration;

use atoll_core::Code;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{RequestKey, SandboxDraft};
use atoll_engine::{Caller, KeyScope, Made, SandboxQuery};
use atoll_isolation::fake::Connect;
use futures::future::join_all;

use crate::support::{Server, World, argv, ms, named, until};

#[test]
fn a_sandbox_is_made_used_and_deleted() {
    let world = World::new();
    let server = world.start();
    let record = server.create(named("one")).unwrap();
    assert_eq!((record.state, record.generation), (SandboxState::Running, 2));
    assert_eq!(world.host.plan(&record.id).unwrap().hostname, "one");
    for text in ["one", record.id.as_str()] {
        assert_eq!(server.engine.sandbox(&server.id(text)).unwrap().id, record.id);
    }
    let exec = server.exec(&record.id, argv(&["echo", "hello"])).unwrap();
    assert_eq!(server.output(&exec).stdout, b"hello\n");
    server.delete(&record.id);
    assert_eq!(server.engine.sandbox(&server.id("one")).unwrap_err().code, Code::SandboxNotFound);
    world.assert_empty(&server);
}

#[test]
fn a_creation_that_fails_leaves_nothing() {
    let world = World::new();
    let server = world.start();
    let cases: [(&str, &dyn Fn()); 3] = [
        ("the driver fails", &|| world.host.fail_create(1, false)),
        ("the driver fails half-way", &|| world.host.fail_create(1, true)),
        ("it fails half-way and resists", &|| {
            world.host.fail_create(1, true);
            world.host.fail_destroy(3);
        }),
    ];
    for (what, arrange) in cases {
        arrange();
        assert_undone(&world, &server, what, Code::Internal);
    }
}

/// The next creation fails, and it is as if it had never been asked for.
fn assert_undone(world: &World, server: &Server, what: &str, code: Code) {
    let error = server.create(named("name")).unwrap_err();
    assert_eq!(error.code, code, "{what}: {error:?}");
    world.host.set_connect(Connect::Works);
    world.assert_empty(server);
    // The name is free again.
    let record = server.create(named("name")).unwrap();
    server.delete(&record.id);
    world.assert_empty(server);
}

#[test]
fn a_guest_that_cannot_be_talked_to_is_none() {
    // Each case takes as long as a guest agent may take to answer, so all run at once.
    std::thread::scope(|scope| {
        for connect in [Connect::Garbage, Connect::Silent, Connect::Hangs] {
            scope.spawn(move || {
                let world = World::new();
                let server = world.start();
                world.host.set_connect(connect);
                assert_undone(&world, &server, &format!("{connect:?}"), Code::GuestUnavailable);
            });
        }
    });
}

#[test]
fn what_cannot_be_undone_is_deleted_later() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    world.host.fail_create(1, true);
    // The removal fails for more than one round of attempts.
    world.host.fail_destroy(60);
    let error = server.create(named("stubborn")).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert_eq!(server.engine.sandbox(&server.id("stubborn")).unwrap().state, SandboxState::Deleting);
    assert_eq!(server.create(named("stubborn")).unwrap_err().code, Code::NameTaken);
    until("the host lets go", || {
        clock.advance(ms(10_000));
        server.engine.sandbox(&server.id("stubborn")).is_err()
    });
    world.assert_empty(&server);
}

/// It is for the caller to know: only what is new is finished or undone.
#[test]
fn a_request_that_is_repeated_is_told_that_its_sandbox_is_not_new() {
    let world = World::new();
    let server = world.start();
    let [mine, theirs] = ["mine", "theirs"].map(|name| {
        let new = server.run(server.engine.create_key(name, KeyScope::Manage, None)).unwrap();
        Caller::of(&server.run(async { server.engine.verify_key(new.secret.reveal()) }).unwrap())
    });
    let request = |digest: &str| RequestKey { key: "once".to_owned(), digest: digest.to_owned() };
    let ask = |server: &Server, caller: &Caller, request: Option<RequestKey>| {
        server.run(server.engine.create_sandbox_once(SandboxDraft::default(), request, caller))
    };
    let made = ask(&server, &mine, Some(request("a"))).unwrap();
    assert!(made.is_new());
    let again = ask(&server, &mine, Some(request("a"))).unwrap();
    assert_eq!(again, Made::Before(server.engine.sandbox(&made.record().id).unwrap()));
    let other = ask(&server, &mine, Some(request("b"))).unwrap_err();
    assert_eq!(other.code, Code::IdempotencyMismatch);
    assert!(ask(&server, &theirs, Some(request("a"))).unwrap().is_new(), "keys of others are their own");
    assert!(ask(&server, &mine, None).unwrap().is_new());
    server.kill();
    let server = world.start();
    let again = ask(&server, &mine, Some(request("a"))).unwrap();
    assert_eq!((again.is_new(), again.into_record().id), (false, made.into_record().id));
}

#[test]
fn of_many_with_one_name_one_is_made() {
    let world = World::new();
    let server = world.start();
    world.host.delay_create(Duration::from_millis(20));
    let caller = Caller::system();
    let results = server.run(join_all((0..20).map(|_| server.engine.create_sandbox(named("same"), &caller))));
    let made: Vec<_> = results.iter().flatten().collect();
    assert_eq!(made.len(), 1);
    assert!(
        results.iter().flat_map(|result| result.as_ref().err()).all(|error| error.code == Code::NameTaken)
    );
    assert_eq!(world.on_host(), BTreeSet::from([made[0].id.clone()]));
}

#[test]
fn there_are_never_more_than_allowed() {
    let mut world = World::new();
    world.sandboxes_max = 3;
    let server = world.start();
    let caller = Caller::system();
    let results =
        server.run(join_all((0..10).map(|_| server.engine.create_sandbox(SandboxDraft::default(), &caller))));
    let made: Vec<_> = results.iter().flatten().collect();
    assert_eq!(made.len(), 3);
    assert!(
        results
            .iter()
            .flat_map(|result| result.as_ref().err())
            .all(|error| error.code == Code::LimitExceeded)
    );
    assert_eq!(world.on_host().len(), 3);
    server.delete(&made[0].id);
    server.sandbox();
    // A smaller limit after a restart removes no sandbox, but allows no new one.
    server.kill();
    world.sandboxes_max = 2;
    let server = world.start();
    assert_eq!(server.engine.stats().sandboxes[&SandboxState::Running], 3);
    assert_eq!(server.create(SandboxDraft::default()).unwrap_err().code, Code::LimitExceeded);
}

#[test]
fn a_caller_that_goes_away_changes_nothing() {
    let world = World::new();
    let server = world.start();
    world.host.delay_create(Duration::from_millis(50));
    for n in 0..8 {
        // The caller leaves at a different moment each time.
        let name = format!("n{n}");
        server.run(async {
            let caller = Caller::system();
            let create = server.engine.create_sandbox(named(&name), &caller);
            drop(tokio::time::timeout(Duration::from_millis(n * 10), create).await);
        });
    }
    // Each sandbox that was entered into the table is made: a creation goes on to its end without its caller.
    until("all are made", || {
        let page = server.run(server.engine.sandboxes(&SandboxQuery::default(), &Caller::system())).unwrap();
        page.items.iter().all(|record| record.state == SandboxState::Running)
            && page.items.len() as u64 == server.engine.stats().sandboxes.values().sum::<u64>()
    });
    let page = server.run(server.engine.sandboxes(&SandboxQuery::default(), &Caller::system())).unwrap();
    assert_eq!(world.on_host(), page.items.iter().map(|record| record.id.clone()).collect());
    for record in page.items {
        server.delete(&record.id);
    }
    world.assert_empty(&server);
}

#[test]
fn deleting_what_is_being_made_deletes_it() {
    let world = World::new();
    let server = world.start();
    world.host.delay_create(Duration::from_millis(50));
    let engine = server.engine.clone();
    let create = server.spawn(async move { engine.create_sandbox(named("brief"), &Caller::system()).await });
    until("it is entered", || server.engine.sandbox(&server.id("brief")).is_ok());
    // Several deletions at once: all succeed.
    let id = server.id("brief");
    let deleted = server.run(join_all((0..3).map(|_| server.engine.delete_sandbox(&id))));
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    server.run(create).unwrap().unwrap();
    world.assert_empty(&server);
}

#[test]
fn bad_drafts_touch_nothing() {
    let world = World::new();
    let server = world.start();
    let cases = [
        (SandboxDraft { name: Some("Bad".into()), ..SandboxDraft::default() }, Code::InvalidArgument),
        (SandboxDraft { image: Some("missing".into()), ..SandboxDraft::default() }, Code::ImageNotFound),
        (
            SandboxDraft { template: Some("missing".into()), ..SandboxDraft::default() },
            Code::TemplateNotFound,
        ),
        (SandboxDraft { template: Some("a:b".into()), ..SandboxDraft::default() }, Code::TemplateNotFound),
        (SandboxDraft { template: Some("a:B".into()), ..SandboxDraft::default() }, Code::InvalidArgument),
        (SandboxDraft { ttl_ms: Some(0), ..SandboxDraft::default() }, Code::InvalidArgument),
        (SandboxDraft { workdir: Some("x".into()), ..SandboxDraft::default() }, Code::PathInvalid),
    ];
    for (draft, code) in cases {
        assert_eq!(server.create(draft.clone()).unwrap_err().code, code, "{draft:?}");
    }
    assert_eq!(world.host.calls("create"), 0);
    world.assert_empty(&server);
}
