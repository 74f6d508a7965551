//! Faults: what must not be lost, what must not be done twice, and what must go on when something else fails.

use std::collections::BTreeMap;

use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::id::KeyId;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{ResourcesDraft, SandboxUpdate};
use atoll_core::usage::Usage;
use atoll_engine::{Caller, SandboxQuery, UsageGroup, UsageQuery};
use atoll_guest_protocol::client::GuestClient;
use atoll_isolation::Gates as _;

use crate::support::{World, argv, client_key, exec_row, named};

#[test]
fn what_cannot_be_taken_up_is_shown_and_can_be_deleted_or_taken_up_later() {
    let world = World::new();
    let server = world.start();
    let (one, other) = (server.create(named("one")).unwrap().id, server.sandbox().id);
    server.stop();
    world.host.fail_adopt(2);
    let server = world.start();
    for id in [&one, &other] {
        let seen = server.engine.sandbox(id).unwrap();
        assert_eq!(seen.state, SandboxState::Failed);
        assert!(seen.reason.unwrap().contains("could not be taken up"));
    }
    let listed =
        server.run(server.engine.sandboxes(&SandboxQuery::default(), &Caller::system())).unwrap().items;
    assert!(listed.iter().all(|record| record.state == SandboxState::Failed), "listings say the same");
    assert!(world.on_host().contains(&one), "it is left as it is");
    server.delete(&other);
    assert!(!world.on_host().contains(&other));
    server.stop();
    let server = world.start();
    assert_eq!(server.state(&one), Some(SandboxState::Running));
    server.exec(&one, argv(&["true"])).unwrap();
}

#[test]
fn a_key_is_no_mismatch_because_the_sandbox_changed() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let draft = || {
        let mut draft = argv(&["true"]);
        draft.idempotency_key = client_key("once");
        draft
    };
    let first = server.exec(&id, draft()).unwrap();
    let update = SandboxUpdate {
        env: BTreeMap::from([("NEW".to_owned(), Some("1".to_owned()))]),
        user: Some("1000".to_owned()),
        ..SandboxUpdate::default()
    };
    server.run(server.engine.update_sandbox(&id, update)).unwrap();
    assert_eq!(server.exec(&id, draft()).unwrap().record.id, first.record.id);
    let mut other = draft();
    other.env = BTreeMap::from([("NEW".to_owned(), "1".to_owned())]);
    assert_eq!(server.exec(&id, other).unwrap_err().code, Code::IdempotencyMismatch);
}

#[test]
fn a_key_of_an_exec_that_never_ran_is_free() {
    let world = World::new();
    let server = world.start();
    let sandbox = server.sandbox();
    // As after an insertion that the database stored, but whose answer was lost.
    let mut row = exec_row(&sandbox, 7);
    let mut draft = argv(&["true"]);
    draft.idempotency_key = client_key("once");
    row.idempotency_key.clone_from(&draft.idempotency_key);
    row.state = ExecState::Starting;
    let made = server.exec(&sandbox.id, draft.clone()).unwrap();
    server.wait(&made);
    let digest = server.run(server.store.exec(&made.record.id)).unwrap().unwrap().request_digest;
    server.run(server.store.delete_exec(&made.record.id)).unwrap();
    row.request_digest = digest;
    server.run(server.store.insert_exec(&row)).unwrap();
    let again = server.exec(&sandbox.id, draft).unwrap();
    assert_ne!(again.record.id, row.id);
    assert_eq!(server.run(server.store.exec(&row.id)).unwrap(), None);
}

#[test]
fn what_cannot_be_recorded_is_not_started() {
    const TRIES: usize = 50;
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    // No row of an exec can be without that of its sandbox.
    server.run(server.store.delete_sandbox(&id)).unwrap();
    for _ in 0..TRIES {
        assert_eq!(server.exec(&id, argv(&["sleep", "1000"])).unwrap_err().code, Code::SandboxNotFound);
    }
    assert_eq!(server.engine.stats().execs_running, 0);
    server.kill();
    let known = world.run(async {
        let stream = world.host.driver().connect(&id).await.unwrap();
        let (client, _) = GuestClient::connect(stream, id.as_str()).await.unwrap();
        client.list_execs().await.unwrap()
    });
    assert_eq!(known, []);
}

#[test]
fn a_change_is_made_whole_or_not_at_all() {
    let world = World::new();
    let server = world.start();
    server.create(named("taken")).unwrap();
    let before = server.create(named("mine")).unwrap();
    let update = SandboxUpdate {
        name: Some("taken".to_owned()),
        resources: ResourcesDraft { memory_bytes: Some(256 << 20), ..ResourcesDraft::default() },
        ..SandboxUpdate::default()
    };
    let refused = server.run(server.engine.update_sandbox(&before.id, update)).unwrap_err();
    assert_eq!(refused.code, Code::NameTaken);
    let now = server.engine.sandbox(&before.id).unwrap();
    assert_eq!((now.generation, &now.spec), (before.generation, &before.spec));
    assert_eq!(world.host.plan(&before.id).unwrap().resources, before.spec.resources);
}

#[test]
fn totals_are_of_everything() {
    const KEYS: u64 = 10_001;
    let world = World::new();
    let server = world.start();
    let sandbox = server.sandbox();
    let one = Usage { requests: 1, ..Usage::default() };
    let used = (0..KEYS).map(|n| (Some(KeyId::from_parts(n, n)), one)).collect();
    server.run(server.store.add_usage(&sandbox.id, None, &used, None, 3_600_000)).unwrap();
    let query = UsageQuery { group: UsageGroup::Total, to_ms: Some(7_200_000), ..UsageQuery::default() };
    let items = server.run(server.engine.usage(&query, &Caller::system())).unwrap();
    assert_eq!(items.iter().map(|item| item.used.requests).sum::<u64>(), KEYS);
}
