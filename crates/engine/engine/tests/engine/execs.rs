//! Execs: how they end, standard input, idempotency.

use std::collections::BTreeSet;
use std::time::Duration;

use atoll_core::Code;
use atoll_core::build::CommandText;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::service::ServiceSpec;
use atoll_core::spec::{ExecDraft, TtySize};
use atoll_engine::{Caller, ExecQuery};
use atoll_isolation::Usage;
use bytes::Bytes;
use futures::future::join_all;

use crate::support::{World, argv, client_key, ms, until};

#[test]
fn ends_are_told_apart() {
    use ExitReason::{Exited, IdleTimedOut, NotStarted, Signaled, TimedOut};
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.sandbox().id;
    let sleep = || argv(&["sleep", "1000"]);
    let cases = [
        (argv(&["true"]), Exited, Some(0), None),
        (argv(&["exit", "7"]), Exited, Some(7), None),
        (argv(&["no-such-command"]), NotStarted, Some(127), Some(Code::CommandNotFound)),
        (argv(&["fail-start"]), NotStarted, Some(126), Some(Code::CommandNotExecutable)),
        (ExecDraft { timeout_ms: Some(30), ..sleep() }, TimedOut, Some(137), None),
        (ExecDraft { idle_timeout_ms: Some(30), ..sleep() }, IdleTimedOut, Some(137), None),
    ];
    for (draft, reason, code, error) in cases {
        let exec = server.exec(&id, draft.clone()).unwrap();
        let limit_ms = draft.timeout_ms.or(draft.idle_timeout_ms);
        if let Some(limit) = limit_ms {
            clock.advance(ms(limit - 1));
            assert_eq!(server.exec_state(&exec), ExecState::Running);
            clock.advance(ms(1));
        }
        let view = server.wait(&exec);
        let exit = view.record.exit.clone().unwrap();
        assert_eq!((exit.reason, exit.code, exit.error), (reason, code, error), "{draft:?}");
        assert_eq!(view.record.state, ExecState::Exited);
        assert_eq!(view.record.ended_ms, Some(view.record.created_ms + limit_ms.unwrap_or(0)), "{draft:?}");
        // The same from the store, once its session is gone.
        server.until_at_rest();
        assert_eq!(server.run(server.engine.exec(&id, exec.record.id.as_str())).unwrap(), view);
    }
    // A signal that was asked for by name is the command's own business.
    let exec = server.exec(&id, sleep()).unwrap();
    let (sandbox, name) = (&id, exec.record.id.as_str());
    server.run(server.engine.signal_exec(sandbox, name, "TERM", false)).unwrap();
    let exit = server.wait(&exec).record.exit.unwrap();
    assert_eq!((exit.reason, exit.code, exit.signal), (Signaled, Some(143), Some(15)));
    assert_eq!(
        server.run(server.engine.signal_exec(sandbox, name, "TERM", false)).unwrap_err().code,
        Code::ExecEnded
    );
    assert_eq!(
        server.run(server.engine.signal_exec(sandbox, name, "NOPE", false)).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn kill_kills_and_is_remembered() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let exec = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    let killed = server.kill_exec(&exec);
    assert_eq!(killed.record.exit.as_ref().unwrap().reason, ExitReason::Killed);
    // Killing an exec that has ended changes nothing.
    let done = server.exec(&id, argv(&["true"])).unwrap();
    server.wait(&done);
    assert_eq!(server.kill_exec(&done).record.exit.unwrap().reason, ExitReason::Exited);
    assert_eq!(server.kill_exec(&exec), killed);
}

#[test]
fn the_last_client_that_goes_takes_it_along() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let draft = ExecDraft { kill_on_disconnect: true, ..argv(&["sleep", "1000"]) };
    let exec = server.exec(&id, draft).unwrap();
    let attach = |attach| server.run(server.engine.output(&id, exec.record.id.as_str(), 0, attach)).unwrap();
    // A reader that is not attached does not count.
    drop(attach(false));
    let (first, second) = (attach(true), attach(true));
    drop(first);
    assert_eq!(server.engine.stats().execs_running, 1);
    drop(second);
    assert_eq!(server.wait(&exec).record.exit.unwrap().reason, ExitReason::Disconnected);
}

#[test]
fn to_be_without_a_client_for_too_long_ends_it() {
    const DETACH_MS: u64 = 60_000;
    let (world, clock) = World::by_hand();
    let server = world.start();
    let id = server.sandbox().id;
    let draft = ExecDraft { detach_timeout_ms: Some(DETACH_MS), ..argv(&["sleep", "1000"]) };
    let exec = server.exec(&id, draft).unwrap();
    let client = server.run(server.engine.output(&id, exec.record.id.as_str(), 0, true)).unwrap();
    clock.advance(ms(2 * DETACH_MS));
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    drop(client);
    clock.advance(ms(DETACH_MS - 1));
    assert_eq!(server.exec_state(&exec), ExecState::Running);
    clock.advance(ms(1));
    let ended = server.wait(&exec).record;
    assert_eq!(ended.exit.unwrap().reason, ExitReason::Disconnected);
    assert_eq!(ended.ended_ms, Some(ended.created_ms + 3 * DETACH_MS));
}

#[test]
fn out_of_memory_is_told_apart_from_other_kills() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    for (oom_kills, reason) in
        [(1, ExitReason::OutOfMemory), (1, ExitReason::Signaled), (2, ExitReason::OutOfMemory)]
    {
        let exec = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
        world.host.set_usage(&id, Usage { oom_kills, ..Usage::default() });
        server.run(server.engine.signal_exec(&id, exec.record.id.as_str(), "9", false)).unwrap();
        let exit = server.wait(&exec).record.exit.unwrap();
        assert_eq!((exit.reason, exit.signal), (reason, Some(9)));
    }
}

#[test]
fn what_never_ran_leaves_no_record() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let keyed = |cwd: Option<&str>| ExecDraft {
        cwd: cwd.map(str::to_owned),
        idempotency_key: client_key("k"),
        ..argv(&["true"])
    };
    assert_eq!(server.exec(&id, keyed(Some("/missing"))).unwrap_err().code, Code::CwdNotFound);
    let (views, _) = server.run(server.engine.execs(&id, &ExecQuery::default())).unwrap();
    assert_eq!(views, []);
    assert_eq!(server.engine.stats().execs_running, 0);
    // The key is free for another command.
    let exec = server.exec(&id, keyed(None)).unwrap();
    server.wait(&exec);
}

#[test]
fn output_that_cannot_be_kept_waits() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    std::fs::write(world.logs(), b"in the way").unwrap();
    let exec = server.exec(&id, argv(&["echo", "kept"])).unwrap();
    let name = exec.record.id.as_str();
    let wait = |ms| server.run(server.engine.wait_exec(&id, name, Duration::from_millis(ms))).unwrap();
    // An exec cannot end before its output is in the log.
    assert_eq!(wait(200).record.exit, None);
    std::fs::remove_file(world.logs()).unwrap();
    assert_eq!(server.wait(&exec).record.output_bytes, 5);
}

#[test]
fn stdin_goes_where_it_may() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let write = |exec: &str, bytes: &[u8], close| {
        let bytes = Bytes::copy_from_slice(bytes);
        server.run(server.engine.write_stdin(&id, exec, bytes, close))
    };
    let cat = server.exec(&id, ExecDraft { stdin: true, ..argv(&["cat"]) }).unwrap();
    let name = cat.record.id.as_str();
    assert_eq!(write(name, &vec![0; (1 << 20) + 1], false).unwrap_err().code, Code::TooLarge);
    assert_eq!(write(name, b"one ", false).unwrap(), 4);
    assert_eq!(write(name, b"", false).unwrap(), 0);
    assert_eq!(write(name, b"two", true).unwrap(), 3);
    assert_eq!(server.output(&cat).stdout, b"one two");
    assert_eq!(write(name, b"late", false).unwrap_err().code, Code::ExecEnded);
    let deaf = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    assert_eq!(write(deaf.record.id.as_str(), b"x", false).unwrap_err().code, Code::StdinClosed);
    let size = TtySize { cols: 80, rows: 24 };
    let resize = |exec: &str| server.run(server.engine.resize_exec(&id, exec, size));
    assert_eq!(resize(deaf.record.id.as_str()).unwrap_err().code, Code::NotATerminal);
    let terminal = server.exec(&id, ExecDraft { tty: Some(size), ..argv(&["cat"]) }).unwrap();
    resize(terminal.record.id.as_str()).unwrap();
    assert_eq!(write(terminal.record.id.as_str(), b"", true).unwrap(), 0);
    server.wait(&terminal);
    assert_eq!(write("nonsense", b"", false).unwrap_err().code, Code::ExecNotFound);
}

#[test]
fn a_key_runs_once() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let draft =
        |words: &[&str]| ExecDraft { idempotency_key: client_key("once"), stdin: true, ..argv(words) };
    let caller = Caller::system();
    let results =
        server.run(join_all((0..10).map(|_| server.engine.create_exec(&id, draft(&["cat"]), &caller))));
    let views: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    let ids: BTreeSet<_> = views.iter().map(|view| view.record.id.clone()).collect();
    assert_eq!(ids.len(), 1, "one run for all");
    assert_eq!(server.engine.stats().execs_running, 1);
    let other = server.exec(&id, draft(&["true"])).unwrap_err();
    assert_eq!(other.code, Code::IdempotencyMismatch);
    // Across a crash while it runs, and again when it has ended.
    server.kill();
    let server = world.start();
    assert_eq!(server.exec(&id, draft(&["cat"])).unwrap().record.id, views[0].record.id);
    let bytes = Bytes::from_static(b"x");
    server.run(server.engine.write_stdin(&id, views[0].record.id.as_str(), bytes, true)).unwrap();
    server.wait(&views[0]);
    server.kill();
    let server = world.start();
    let again = server.exec(&id, draft(&["cat"])).unwrap();
    assert_eq!((&again.record.id, again.record.state), (&views[0].record.id, ExecState::Exited));
    assert_eq!(server.output(&again).stdout, b"x");
    assert_eq!(server.exec(&id, draft(&["true"])).unwrap_err().code, Code::IdempotencyMismatch);
    // Another sandbox has keys of its own.
    let other = server.sandbox().id;
    assert_ne!(server.exec(&other, draft(&["cat"])).unwrap().record.id, views[0].record.id);
}

/// The server finds the runs of a service by names. A client that gives its own exec the name of the next run must not have
/// the server take that exec for the service.
#[test]
fn no_client_takes_the_name_of_a_run_of_a_service() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let sleeps = CommandText::Argv(vec!["sleep".to_owned(), "1000".to_owned()]);
    let service = server.run(server.engine.create_service(&id, "web", ServiceSpec::new(sleeps))).unwrap();
    let run = |number| {
        let view = server.run(server.engine.service(&id, "web", ms(0))).unwrap();
        (view.record.status.runs.last().map(|run| run.number) == Some(number)).then_some(view.exec).flatten()
    };
    until("the service runs", || run(1).is_some());
    let first = run(1);
    let name = format!("atoll-service-{}-2", service.record.id);
    let taken = server
        .exec(&id, ExecDraft { idempotency_key: client_key(&name), ..argv(&["sleep", "1000"]) })
        .unwrap();
    assert_eq!(
        server.run(server.engine.running_execs(&id)).unwrap().len(),
        1,
        "the client's exec is a use of the sandbox"
    );
    server.run(server.engine.restart_service(&id, "web")).unwrap();
    until("it runs again", || run(2).is_some_and(|exec| Some(&exec) != first.as_ref()));
    assert_ne!(run(2).as_ref(), Some(&taken.record.id));
    let found = server.run(server.engine.exec_by_key(&id, &client_key(&name).unwrap())).unwrap();
    assert_eq!(found.record.id, taken.record.id);
}

#[test]
fn racing_a_start_that_fails_gives_everybody_its_error() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let draft =
        || ExecDraft { idempotency_key: client_key("k"), cwd: Some("/missing".into()), ..argv(&["true"]) };
    for _ in 0..20 {
        let caller = Caller::system();
        let results = server.run(join_all((0..8).map(|_| server.engine.create_exec(&id, draft(), &caller))));
        for result in results {
            assert_eq!(result.unwrap_err().code, Code::CwdNotFound);
        }
    }
    assert_eq!(server.run(server.engine.execs(&id, &ExecQuery::default())).unwrap().0, []);
}

#[test]
fn lists_tell_states_and_pages() {
    let world = World::new();
    let server = world.start();
    let id = server.sandbox().id;
    let running = server.exec(&id, argv(&["sleep", "1000"])).unwrap();
    let mut ended = Vec::new();
    for _ in 0..5 {
        let exec = server.exec(&id, argv(&["true"])).unwrap();
        ended.insert(0, server.wait(&exec).record.id);
    }
    let list = |query: ExecQuery| {
        let (views, next) = server.run(server.engine.execs(&id, &query)).unwrap();
        (views.into_iter().map(|view| view.record.id).collect::<Vec<_>>(), next)
    };
    let by = |states: &[ExecState]| ExecQuery { states: states.to_vec(), ..ExecQuery::default() };
    assert_eq!(list(by(&[ExecState::Running])).0, [running.record.id]);
    assert_eq!(list(by(&[ExecState::Exited])).0, ended);
    assert_eq!(list(by(&[ExecState::Lost])).0, []);
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let (ids, next) = list(ExecQuery { limit: Some(2), cursor, states: Vec::new() });
        seen.extend(ids);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 6);
    for query in [
        ExecQuery { limit: Some(0), ..ExecQuery::default() },
        ExecQuery { cursor: Some("x".into()), ..ExecQuery::default() },
    ] {
        assert_eq!(server.run(server.engine.execs(&id, &query)).unwrap_err().code, Code::InvalidArgument);
    }
}
