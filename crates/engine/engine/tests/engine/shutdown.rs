//! A server that stops in good order: no client is left waiting, and no running sandbox is taken for dead.

use std::time::Duration;

use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::sandbox::SandboxState;
use atoll_engine::{Caller, OutputEvent, Piece};
use atoll_isolation::fake::Connect;

use crate::support::{DEADLINE, World, argv, named, until};

#[test]
fn whoever_waits_is_told() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    let (engine, name) = (server.engine.clone(), exec.record.id.to_string());
    let readers: Vec<_> = [true, false]
        .into_iter()
        .map(|attach| {
            let reader = server.run(engine.output(&id, &name, 0, attach)).unwrap();
            server.spawn(async move {
                let mut reader = reader;
                reader.next(1000).await
            })
        })
        .collect();
    let waiter = {
        let (engine, id, name) = (engine.clone(), id.clone(), name.clone());
        server.spawn(async move { engine.wait_exec(&id, &name, 10 * DEADLINE).await })
    };
    // Let them begin to wait: then the stop has to wake them.
    server.pass(Duration::from_millis(20));
    server.run(async {
        tokio::time::timeout(DEADLINE, engine.shutdown()).await.expect("it stops");
        for reader in readers {
            let told = tokio::time::timeout(DEADLINE, reader).await.expect("it is told").unwrap();
            assert_eq!(told.unwrap_err().code, Code::ShuttingDown);
        }
        let view = tokio::time::timeout(DEADLINE, waiter).await.expect("it is told").unwrap().unwrap();
        assert_eq!(view.record.state, ExecState::Running);
        let refused = engine.create_sandbox(named("late"), &Caller::system()).await.unwrap_err();
        assert_eq!(refused.code, Code::ShuttingDown);
        // The error is not "there is no such sandbox": the sandbox is there.
        let refused = engine.delete_sandbox(&id).await.unwrap_err();
        assert_eq!(refused.code, Code::ShuttingDown);
    });
    drop(engine);
    server.kill();
    let server = world.start();
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    server.kill_exec(&exec);
}

#[test]
fn a_deletion_under_way_does_not_hold_it_up() {
    for n in 0..10_u64 {
        let world = World::new();
        let server = world.start();
        let id = server.sandbox().id;
        for _ in 0..5 {
            server.exec(&id, argv(&["sleep", "1000"])).unwrap();
        }
        world.host.fail_destroy(1);
        let (engine, name) = (server.engine.clone(), id.clone());
        let delete = server.spawn(async move { engine.delete_sandbox(&name).await });
        server.pass(Duration::from_micros(n * 200));
        server.stop_engine();
        let deleted = server.run(delete).unwrap();
        server.kill();
        let server = world.start();
        match deleted {
            Ok(()) => world.assert_empty(&server),
            Err(error) => {
                assert_eq!(error.code, Code::ShuttingDown);
                until("whole or gone", || matches!(server.state(&id), None | Some(SandboxState::Running)));
            }
        }
    }
}

#[test]
fn a_creation_that_waits_for_its_guest_is_undone() {
    let world = World::new();
    let server = world.start();
    world.host.set_connect(Connect::Silent);
    let engine = server.engine.clone();
    let create = server.spawn(async move { engine.create_sandbox(named("slow"), &Caller::system()).await });
    until("it is being made", || world.host.calls("connect") > 0);
    server.stop_engine();
    assert_eq!(server.run(create).unwrap().unwrap_err().code, Code::ShuttingDown);
    server.kill();
    world.host.set_connect(Connect::Works);
    world.assert_empty(&world.start());
}

#[test]
fn a_sandbox_that_is_being_taken_up_is_not_taken_for_dead() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    server.kill();
    world.host.set_connect(Connect::Silent);
    let server = world.start();
    until("it is being taken up", || world.host.calls("connect") > 1);
    server.stop();
    world.host.set_connect(Connect::Works);
    let server = world.start();
    assert_eq!(server.state(&id), Some(SandboxState::Running));
    let exec = server.exec(&id, argv(&["echo", "alive"])).unwrap();
    let mut reader = server.run(server.engine.output(&id, exec.record.id.as_str(), 0, false)).unwrap();
    let first = server.run(reader.next(1000)).unwrap();
    assert!(matches!(first, OutputEvent::Piece(Piece::Output { bytes, .. }) if bytes == "alive\n"));
}
