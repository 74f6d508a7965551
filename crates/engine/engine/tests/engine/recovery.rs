//! Each row of the table in the engine's `recovery` module, and other leftovers of a crash.

use std::collections::BTreeSet;
use std::time::Duration;

use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::SandboxDraft;
use atoll_engine::{Caller, ExecQuery};
use atoll_guest_protocol::client::GuestClient;
use atoll_guest_protocol::messages::StartExec;
use atoll_isolation::fake::Connect;
use atoll_isolation::{Death, Gates as _, Lifecycle as _};

use crate::support::{DEADLINE, World, argv, assert_bytes, exec_row, ms, named, numbers, plan, row, until};

/// The state of a row's sandbox on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnHost {
    Nothing,
    Alive,
    Dead,
}

fn arrange(world: &World, id: &SandboxId, on_host: OnHost) {
    if on_host != OnHost::Nothing {
        world.run(world.host.driver().create(&plan(id))).unwrap();
    }
    if on_host == OnHost::Dead {
        world.host.die(id, Death::Exited);
    }
}

#[test]
fn each_row_becomes_what_the_table_says() {
    use OnHost::{Alive, Dead, Nothing};
    use SandboxState::{Creating, Deleting, Failed, Running};
    let cases = [
        (Creating, Nothing, None),
        (Creating, Alive, None),
        (Creating, Dead, None),
        (Running, Alive, Some(Running)),
        (Running, Dead, Some(Failed)),
        (Running, Nothing, Some(Failed)),
        (Deleting, Nothing, None),
        (Deleting, Alive, None),
        (Deleting, Dead, None),
        (Failed, Nothing, Some(Failed)),
        (Failed, Alive, Some(Failed)),
        (Failed, Dead, Some(Failed)),
    ];
    let world = World::new();
    let rows: Vec<_> = (1..).zip(&cases).map(|(n, (state, ..))| row(n, *state)).collect();
    world.edit(async |store| {
        for record in &rows {
            store.insert_sandbox(record).await.unwrap();
            store.insert_exec(&exec_row(record, record.created_ms)).await.unwrap();
        }
    });
    for (record, (_, on_host, _)) in rows.iter().zip(&cases) {
        arrange(&world, &record.id, *on_host);
        std::fs::create_dir_all(world.logs().join(record.id.as_str())).unwrap();
    }
    // The first attempts to remove sandboxes from the host fail.
    world.host.fail_destroy(3);
    let server = world.start();
    for (record, (state, on_host, expected)) in rows.iter().zip(&cases) {
        let what = format!("{state} with {on_host:?} on the host");
        until(&what, || server.state(&record.id) == *expected);
        let (row, exec) = server.run(async {
            let exec = ExecId::from_parts(record.created_ms, record.created_ms);
            (server.store.sandbox(&record.id).await.unwrap(), server.store.exec(&exec).await.unwrap())
        });
        assert_eq!(row.map(|row| row.state), *expected, "{what}");
        match (state, expected) {
            (Running, Some(Failed)) => {
                let (exec, seen) = (exec.unwrap(), server.engine.sandbox(&record.id).unwrap());
                assert_eq!(exec.state, ExecState::Lost);
                assert_eq!(exec.exit.unwrap().reason, ExitReason::SandboxDied);
                assert!(seen.reason.unwrap().contains("away"));
            }
            // The guest agent never heard of the exec.
            (Running, Some(Running)) => {
                until("the exec is gone", || {
                    let found = server.run(server.engine.execs(&record.id, &ExecQuery::default()));
                    found.unwrap().0.is_empty()
                });
                server.exec(&record.id, argv(&["true"])).unwrap();
            }
            _ => {}
        }
    }
    let alive: BTreeSet<_> = rows
        .iter()
        .zip(&cases)
        .filter(|(_, (_, _, expected))| *expected == Some(Running))
        .map(|(record, _)| record.id.clone())
        .collect();
    until("only the living are on the host", || world.on_host() == alive);
    // A name is free when its sandbox is gone, and only then.
    assert!(server.create(named("row-1")).is_ok());
    assert_eq!(server.create(named("row-5")).unwrap_err().code, Code::NameTaken);
    for record in &rows {
        if server.state(&record.id).is_some() {
            server.delete(&record.id);
        }
    }
}

#[test]
fn what_belongs_to_nobody_is_removed() {
    let world = World::new();
    let (alive, dead, log) =
        (row(1, SandboxState::Running).id, row(2, SandboxState::Running).id, SandboxId::from_parts(3, 3));
    arrange(&world, &alive, OnHost::Alive);
    arrange(&world, &dead, OnHost::Dead);
    std::fs::create_dir_all(world.logs().join(log.as_str()).join("x")).unwrap();
    std::fs::create_dir_all(world.logs().join("not-ours")).unwrap();
    world.host.fail_destroy(2);
    let server = world.start();
    assert_eq!(world.on_host(), BTreeSet::new());
    assert!(!world.logs().join(log.as_str()).try_exists().unwrap());
    assert!(world.logs().join("not-ours").try_exists().unwrap(), "what has no id of ours is not ours");
    std::fs::remove_dir(world.logs().join("not-ours")).unwrap();
    // A sandbox that appears on the host later is a leak, which an operator can remove.
    arrange(&world, &alive, OnHost::Alive);
    let sandbox = server.sandbox().id;
    let leaks = server.run(server.engine.leaks()).unwrap();
    assert_eq!(leaks.iter().map(|leak| &leak.sandbox).collect::<Vec<_>>(), [&alive]);
    server.run(server.engine.remove_leaks()).unwrap();
    assert_eq!(world.on_host(), BTreeSet::from([sandbox]));
}

#[test]
fn running_sandboxes_survive_every_crash() {
    let world = World::new();
    let mut server = world.start();
    let ids: Vec<_> = (0..5).map(|n| server.create(named(&format!("s{n}"))).unwrap().id).collect();
    let execs: Vec<_> = ids.iter().map(|id| server.exec(id, argv(&["sleep", "1000"])).unwrap()).collect();
    for round in 0..3 {
        if round == 1 {
            server.stop();
        } else {
            server.kill();
        }
        server = world.start();
        for (id, exec) in ids.iter().zip(&execs) {
            assert_eq!(server.state(id), Some(SandboxState::Running));
            // Even right after the start, a client is not told that nothing runs, that the exec does not exist, or that there
            // is no network.
            let running = server.run(server.engine.running_execs(id)).unwrap();
            assert!(running.iter().any(|view| view.record.id == exec.record.id), "{running:?}");
            server.run(server.engine.network(id)).unwrap();
            let view = server.run(server.engine.exec(id, exec.record.id.as_str())).unwrap();
            assert_eq!(view.record.state, ExecState::Running);
            server.exec(id, argv(&["true"])).unwrap();
        }
    }
    for exec in &execs {
        assert_eq!(server.kill_exec(exec).record.exit.unwrap().reason, ExitReason::Killed);
    }
    for id in &ids {
        server.delete(id);
    }
    world.assert_empty(&server);
}

#[test]
fn guests_that_do_not_answer_keep_no_other_sandbox_from_its_network() {
    // More than have a turn at the same time.
    const COUNT: u64 = 20;
    let world = World::new();
    let server = world.start();
    let ids: Vec<_> = (0..COUNT).map(|n| server.create(named(&format!("s{n}"))).unwrap().id).collect();
    server.kill();
    world.host.set_connect(Connect::Silent);
    let before = world.host.calls("gate");
    let server = world.start();
    until("each has its network", || world.host.calls("gate") == before + COUNT);
    server.kill();
    world.host.set_connect(Connect::Works);
    let server = world.start();
    for id in &ids {
        server.exec(id, argv(&["true"])).unwrap();
        server.delete(id);
    }
    world.assert_empty(&server);
}

/// The server asks such a guest for half a minute, or waits for what it lists, before it goes on without.
#[test]
fn a_sandbox_whose_guest_lets_its_taking_up_take_long_is_deleted_at_once() {
    let world = World::new();
    let server = world.start();
    let [silent, hides] = [(); 2].map(|()| server.sandbox().id);
    server.exec(&hides, argv(&["sleep", "1000"])).unwrap();
    server.kill();
    world.host.hide_execs(&hides);
    let asked = world.host.calls("connect");
    let server = world.start();
    until("the guests are asked", || world.host.calls("connect") == asked + 2);
    let deleted = server.run(async {
        tokio::time::timeout(DEADLINE, server.engine.delete_sandbox(&hides)).await.expect("it is deleted")
    });
    deleted.unwrap();
    server.exec(&silent, argv(&["true"])).unwrap();
    server.kill();
    world.host.set_connect(Connect::Silent);
    let asked = world.host.calls("connect");
    let server = world.start();
    until("the guest is asked", || world.host.calls("connect") > asked);
    server.delete(&silent);
    assert_eq!(world.host.calls("connect"), asked + 1, "its guest is asked again and again");
    world.assert_empty(&server);
}

#[test]
fn a_crash_at_any_moment_of_a_creation_leaves_all_or_nothing() {
    let world = World::new();
    world.host.delay_create(Duration::from_millis(5));
    for n in 0..12_u64 {
        let server = world.start();
        let engine = server.engine.clone();
        server.spawn(async move { engine.create_sandbox(named("phoenix"), &Caller::system()).await });
        server.pass(Duration::from_millis(n));
        server.kill();
        let server = world.start();
        until("it is whole or gone", || match server.state_of("phoenix") {
            None => true,
            Some(state) => state == SandboxState::Running,
        });
        if server.state_of("phoenix").is_some() {
            let id = server.engine.sandbox(&server.id("phoenix")).unwrap().id;
            server.exec(&id, argv(&["true"])).unwrap();
            server.delete(&id);
        }
        world.assert_empty(&server);
    }
}

#[test]
fn a_crash_at_any_moment_of_a_deletion_is_finished() {
    let world = World::new();
    for n in 0..8_u64 {
        let server = world.start();
        let id = server.create(named("phoenix")).unwrap().id;
        let exec = server.exec(&id, argv(&["echo", "x"])).unwrap();
        server.wait(&exec);
        let engine = server.engine.clone();
        let name = id.clone();
        server.spawn(async move { engine.delete_sandbox(&name).await });
        server.pass(Duration::from_micros(n * 300));
        server.kill();
        let server = world.start();
        until("it is whole or gone", || matches!(server.state(&id), None | Some(SandboxState::Running)));
        if server.state(&id).is_some() {
            assert_eq!(server.output(&exec).stdout, b"x\n");
            server.delete(&id);
        }
        world.assert_empty(&server);
    }
}

#[test]
fn a_timeout_counts_over_a_restart() {
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.sandbox().id;
    let draft = atoll_core::spec::ExecDraft { timeout_ms: Some(200), ..argv(&["sleep", "1000"]) };
    let exec = server.exec(&id, draft).unwrap();
    server.kill();
    clock.advance(ms(199));
    let server = world.start();
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    clock.advance(ms(1));
    let ended = server.wait(&exec).record;
    assert_eq!(ended.exit.unwrap().reason, ExitReason::TimedOut);
    assert_eq!(ended.ended_ms, Some(ended.created_ms + 200));
}

#[test]
fn an_exec_that_ended_while_nobody_looked_is_told_in_full() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["sleep", "0.1"])).unwrap();
    let loud = server.exec(&id, argv(&["seq", "1000"])).unwrap();
    server.kill();
    std::thread::sleep(Duration::from_millis(150));
    let server = world.start();
    assert_eq!(server.wait(&exec).record.exit.unwrap().code, Some(0));
    assert_bytes(&server.output(&loud).stdout, &numbers(1000));
}

#[test]
fn an_exec_that_only_the_guest_knows_is_killed() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    server.kill();
    // A start that the server gave up, although the guest agent had carried it out.
    let list = |start: bool| {
        world.run(async {
            let stream = world.host.driver().connect(&id).await.unwrap();
            let (client, _) = GuestClient::connect(stream, id.as_str()).await.unwrap();
            if start {
                let argv = vec!["sleep".to_owned(), "1000".to_owned()];
                let request = StartExec { exec_id: "stray".to_owned(), argv, ..StartExec::default() };
                drop(client.start_exec(request).await.unwrap());
            }
            client.list_execs().await.unwrap()
        })
    };
    assert_eq!(list(true).len(), 1);
    let server = world.start();
    server.exec(&id, argv(&["true"])).unwrap();
    server.kill();
    assert!(list(false).iter().all(|exec| exec.exec_id != "stray" || exec.exited));
    // The next one tidies up.
    let server = world.start();
    server.exec(&id, argv(&["true"])).unwrap();
    server.kill();
    assert!(list(false).iter().all(|exec| exec.exec_id != "stray"));
}

#[test]
fn connections_that_break_while_it_is_taken_up_do_not_kill_it() {
    let world = World::new();
    let mut server = world.start();
    let id = server.create(SandboxDraft::default()).unwrap().id;
    let exec = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    for _ in 0..5 {
        server.kill();
        let cutter = {
            let (host, id) = (world.host.clone(), id.clone());
            std::thread::spawn(move || {
                for _ in 0..30 {
                    host.cut_connections(&id);
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        server = world.start();
        cutter.join().unwrap();
        server.exec(&id, argv(&["true"])).unwrap();
        assert_eq!(server.state(&id), Some(SandboxState::Running));
    }
    server.kill_exec(&exec);
}
