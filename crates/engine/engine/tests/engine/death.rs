//! Sandboxes that die, connections that break, guests that misbehave.

use std::time::{Duration, Instant};

use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::ExecDraft;
use atoll_isolation::Death;
use bytes::Bytes;

use crate::support::{DEADLINE, World, argv, assert_bytes, named, numbers, read, until};

#[test]
fn death_is_told_at_once_and_what_was_written_stays() {
    let world = World::new();
    let server = world.start();
    for (death, word) in [(Death::Exited, "ended"), (Death::OutOfMemory, "out of memory")] {
        let id = server.create(named("mortal")).unwrap().id;
        let done = server.exec(&id, argv(&["echo", "before"])).unwrap();
        server.wait(&done);
        let cat = server.exec(&id, ExecDraft { stdin: true, ..argv(&["cat"]) }).unwrap();
        let (exec, engine) = (cat.record.id.clone(), &server.engine);
        let sent = Bytes::from_static(b"last words");
        server.run(engine.write_stdin(&id, exec.as_str(), sent, false)).unwrap();
        until("it is in the log", || server.run(engine.exec(&id, exec.as_str())).unwrap().extent.end == 10);
        let reader = {
            let (engine, id, exec) = (engine.clone(), id.clone(), exec.clone());
            server.spawn(async move { read(&engine, &id, &exec, 0).await })
        };
        world.host.die(&id, death);
        let output = server.run(reader).unwrap().unwrap();
        assert_eq!(output.stdout, b"last words");
        let (state, exit, _) = output.end.clone().unwrap();
        assert_eq!((state, exit.reason, exit.code), (ExecState::Lost, ExitReason::SandboxDied, None));
        server.until_state(&id, Some(SandboxState::Failed));
        let record = engine.sandbox(&server.id("mortal")).unwrap();
        assert!(record.reason.unwrap().contains(word));
        // Output is still readable, but the sandbox is not usable any more.
        assert_eq!(server.output(&done).stdout, b"before\n");
        assert_eq!(server.output(&cat), output);
        let refused = server.exec(&id, argv(&["true"])).unwrap_err();
        assert_eq!(refused.code, Code::SandboxFailed);
        assert!(refused.message.contains(word), "{}", refused.message);
        assert_eq!(server.run(engine.guest(&server.id("mortal"))).unwrap_err().code, Code::SandboxFailed);
        until("its remains are gone", || world.on_host().is_empty());
        server.delete(&id);
        world.assert_empty(&server);
    }
}

#[test]
fn cut_connections_cost_no_byte() {
    const LAST: u64 = 300_000;
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["seq", &LAST.to_string()])).unwrap();
    let mut cuts = 0_u32;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let view = server.run(server.engine.exec(&id, exec.record.id.as_str())).unwrap();
        if view.record.state.is_final() {
            break;
        }
        assert!(Instant::now() < deadline);
        if cuts < 40 {
            world.host.cut_connections(&id);
            cuts += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(cuts > 3, "it was cut: {cuts}");
    let output = server.output(&exec);
    assert_bytes(&output.stdout, &numbers(LAST));
    assert_eq!(output.end.unwrap().1.code, Some(0));
    assert_eq!(server.state(&id), Some(SandboxState::Running));
}

#[test]
fn a_broken_protocol_is_answered_with_a_new_connection() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, ExecDraft { stdin: true, ..argv(&["cat"]) }).unwrap();
    let name = exec.record.id.as_str();
    let mut said = Vec::new();
    for n in 0..10 {
        let line = format!("{n}\n");
        // A write may meet the broken connection; the caller has to repeat it.
        until("it is written", || {
            server.run(server.engine.write_stdin(&id, name, line.clone().into(), false)).is_ok()
        });
        said.extend_from_slice(line.as_bytes());
        until("it is in the log", || {
            server.run(server.engine.exec(&id, name)).unwrap().extent.end == said.len() as u64
        });
        world.host.break_protocol(&id);
    }
    server.kill_exec(&exec);
    assert_bytes(&server.output(&exec).stdout, &said);
    // And new work is taken.
    let exec = server.exec(&id, argv(&["echo", "still", "here"])).unwrap();
    assert_eq!(server.output(&exec).stdout, b"still here\n");
    assert_eq!(server.state(&id), Some(SandboxState::Running));
}

#[test]
fn execs_start_over_connections_that_break() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    for n in 0..30 {
        world.host.cut_connections(&id);
        let exec = server.exec(&id, argv(&["echo", &n.to_string()])).unwrap();
        assert_eq!(server.output(&exec).stdout, format!("{n}\n").into_bytes());
    }
}

#[test]
fn deletion_ends_readers_and_is_tried_again() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["sleep", "1000"])).unwrap().record.id;
    let reader = {
        let (engine, id) = (server.engine.clone(), id.clone());
        server.spawn(async move { read(&engine, &id, &exec, 0).await })
    };
    world.host.fail_destroy(5);
    server.delete(&id);
    let output = server.run(reader).unwrap();
    // The reader either saw the end, or came when the sandbox was gone.
    match output {
        Ok(output) => assert_eq!(output.end.unwrap().0, ExecState::Lost),
        Err(error) => assert!(matches!(error.code, Code::SandboxNotFound | Code::ExecNotFound), "{error:?}"),
    }
    world.assert_empty(&server);
}

#[test]
fn a_deletion_that_fails_says_so_and_goes_on() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    world.host.fail_destroy(60);
    let error = server.run(server.engine.delete_sandbox(&id)).unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert_eq!(server.state(&id), Some(SandboxState::Deleting));
    assert_eq!(server.exec(&id, argv(&["true"])).unwrap_err().code, Code::InvalidState);
    // No client has to ask again: the engine tries again by itself.
    server.until_state(&id, None);
    world.assert_empty(&server);
}
