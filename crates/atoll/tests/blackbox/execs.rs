//! Durable execs: many readers, exact offsets, one run for each key, every way to end told apart.

use crate::common::{argv, code, follow, outputs, shell};
use atoll_api::{CreateExec, SignalExec};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::{AttachEvent, ExecEvent, ListExecs, OutputQuery, ResumePolicy};
use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason, OutputStream};
use atoll_core::spec::TtySize;
use futures::StreamExt as _;

type Pieces = Vec<(OutputStream, Vec<u8>)>;

/// Appends, so that pieces of the same stream join however they were cut.
fn push(pieces: &mut Pieces, stream: OutputStream, bytes: &[u8]) {
    match pieces.last_mut() {
        Some((last, all)) if *last == stream => all.extend_from_slice(bytes),
        _ => pieces.push((stream, bytes.to_vec())),
    }
}

async fn by_websocket(server: &Server, sandbox: &str, exec: &str, from: u64) -> Pieces {
    let (mut pieces, mut at) = (Pieces::new(), from);
    let mut attached = server.client.attach(sandbox, exec, from, ResumePolicy::never()).await.unwrap();
    while let Some(event) = attached.events.next().await {
        match event.unwrap() {
            AttachEvent::Output { stream, offset, data } => {
                assert_eq!(offset, at);
                at += data.len() as u64;
                push(&mut pieces, stream, &data);
            }
            AttachEvent::Exit { offset, .. } => assert_eq!(offset, at),
            other => panic!("{other:?}"),
        }
    }
    pieces
}

async fn by_events(server: &Server, sandbox: &str, exec: &str, from: u64) -> Pieces {
    let mut pieces = Pieces::new();
    let mut events = server.client.exec_events(sandbox, exec, from).await.unwrap();
    while let Some(event) = events.next().await {
        match event.unwrap() {
            ExecEvent::Output(chunk) => push(&mut pieces, chunk.stream, &chunk.bytes().unwrap()),
            ExecEvent::Exit { .. } => return pieces,
            ExecEvent::Gap { .. } => panic!("a gap"),
        }
    }
    panic!("the events end without an exit");
}

async fn by_long_poll(server: &Server, sandbox: &str, exec: &str, from: u64) -> Pieces {
    let (mut pieces, mut offset) = (Pieces::new(), from);
    loop {
        let query = OutputQuery { offset, wait_ms: 30_000, max_bytes: Some(1000), ..OutputQuery::default() };
        let page = server.client.exec_output(sandbox, exec, query).await.unwrap();
        for chunk in &page.chunks {
            push(&mut pieces, chunk.stream, &chunk.bytes().unwrap());
        }
        offset = page.next_offset;
        if page.state.is_final() && page.chunks.is_empty() {
            return pieces;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_different_offsets_read_the_same_bytes() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let line = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo out $i; echo err $i >&2; \
                [ $((i % 50)) -ne 0 ] || sleep 0.05; done; printf '\\377\\000end'";
    let exec = server.shell(&sandbox, line).await;
    let all = by_long_poll(&server, &sandbox, &exec, 0).await;
    let bytes: usize = all.iter().map(|(_, bytes)| bytes.len()).sum();
    let (out, err) = outputs(&server, &sandbox, &exec).await;
    let want_err: String = (1..=300).map(|i| format!("err {i}\n")).collect();
    assert!(err == want_err.as_bytes() && out.ends_with(b"out 300\n\xff\0end"));
    // A second run, read while it runs.
    let exec = server.shell(&sandbox, line).await;
    let starts = [0, 1, 7, 100];
    follow(&server, &sandbox, &exec, 100).await;
    let readers = starts.map(|from| {
        let (server, sandbox, exec) = (&server, &sandbox, &exec);
        async move {
            tokio::join!(
                by_websocket(server, sandbox, exec, from),
                by_events(server, sandbox, exec, from),
                by_long_poll(server, sandbox, exec, from)
            )
        }
    });
    let all = futures::future::join_all(readers).await;
    let full = by_long_poll(&server, &sandbox, &exec, 0).await;
    assert_eq!(full.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), bytes);
    for (from, (socket, events, poll)) in starts.into_iter().zip(all) {
        let mut skip = usize::try_from(from).unwrap();
        let mut want = Pieces::new();
        for (stream, bytes) in &full {
            let cut = skip.min(bytes.len());
            skip -= cut;
            if cut < bytes.len() {
                push(&mut want, *stream, &bytes[cut..]);
            }
        }
        assert!(socket == want && events == want && poll == want, "from {from}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_sent_events_go_on_after_the_last_id() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let exec = server.shell(&sandbox, "echo one; echo two >&2; exit 3").await;
    server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    let path = format!("/v1/sandboxes/{sandbox}/execs/{exec}/events");
    let whole = server.send(server.request("GET", &path)).await;
    assert_eq!(whole.headers["content-type"], "text/event-stream");
    let text = whole.text();
    let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id:")).map(str::trim).collect();
    assert_eq!(ids, ["4", "8", "8"], "{text}");
    let rest = server.send(server.request("GET", &path).header("Last-Event-ID", "4")).await.text();
    // Which of two outputs written at once comes first is not said; where the second begins is.
    assert!(
        rest.contains("event: exit") && text.ends_with(&rest) && rest.matches("data:").count() == 2,
        "{rest}"
    );
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_run() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create =
        CreateExec { idempotency_key: Some("k".into()), ..shell("echo ran >> /tmp/runs; cat /tmp/runs") };
    let answers =
        futures::future::join_all((0..10).map(|_| server.client.create_exec(&sandbox, &create))).await;
    let ids: std::collections::BTreeSet<String> =
        answers.into_iter().map(|answer| answer.unwrap().exec.id).collect();
    assert_eq!(ids.len(), 1);
    let exec = ids.first().unwrap();
    assert_eq!(outputs(&server, &sandbox, exec).await.0, b"ran\n");
    let other = CreateExec { idempotency_key: Some("k".into()), ..shell("echo other") };
    assert_eq!(code(server.client.create_exec(&sandbox, &other).await), Code::IdempotencyMismatch);
    // The key counts within its sandbox only.
    let second = server.sandbox().await.id;
    assert!(!ids.contains(&server.client.create_exec(&second, &other).await.unwrap().exec.id));
    assert_eq!(server.sh(&sandbox, "wc -l < /tmp/runs").await.stdout.trim(), "1");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_end_is_told_apart() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let cases = [
        (shell("exit 3"), ExitReason::Exited, Some(3), None),
        (shell("exit 137"), ExitReason::Exited, Some(137), None),
        (shell("kill -TERM $$"), ExitReason::Signaled, Some(143), Some(15)),
        (shell("kill -9 $$"), ExitReason::Signaled, Some(137), Some(9)),
        (
            CreateExec { timeout_ms: Some(200), ..shell("sleep 1000") },
            ExitReason::TimedOut,
            Some(137),
            Some(9),
        ),
        (
            CreateExec { idle_timeout_ms: Some(300), ..shell("echo a; sleep 0.1; echo b; sleep 1000") },
            ExitReason::IdleTimedOut,
            Some(137),
            Some(9),
        ),
        (argv(&["/no/such/program"]), ExitReason::NotStarted, Some(127), None),
        (argv(&["no-such-program"]), ExitReason::NotStarted, Some(127), None),
        (argv(&["/etc/passwd"]), ExitReason::NotStarted, Some(126), None),
        (shell("no-such-program"), ExitReason::Exited, Some(127), None),
    ];
    for (create, reason, code, signal) in cases {
        let exit = server.run(&sandbox, create.clone()).await.exec.exit.unwrap();
        assert_eq!((exit.reason, exit.code, exit.signal), (reason, code, signal), "{create:?}");
    }
    // A command that writes steadily is not idle.
    let busy = CreateExec {
        idle_timeout_ms: Some(600),
        ..shell("for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done")
    };
    assert_eq!(server.run(&sandbox, busy).await.exec.exit.unwrap().code, Some(0));
    assert_eq!(server.sh(&sandbox, "ls /proc | grep -c '^[0-9]'; true").await.code, Some(0));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_takes_the_whole_tree_with_it() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    // A process in its own session, a daemon that forked twice, one that ignores everything.
    let tree = "setsid sleep 4001 & (sh -c 'sleep 4002 &' &) ; sh -c 'trap \"\" TERM INT HUP; sleep 4003' & \
                perl -e 'exit if fork; require POSIX; POSIX::setsid(); exit if fork; sleep 4004' ; \
                echo up; sleep 4000";
    let exec = server.shell(&sandbox, tree).await;
    follow(&server, &sandbox, &exec, 3).await;
    let sleepers = async || host::processes(&sandbox).len() - 1;
    wait_until("the tree to stand", async || (sleepers().await >= 5).then_some(())).await;
    server.client.kill_exec(&sandbox, &exec).await.unwrap();
    let ended = server.client.get_exec(&sandbox, &exec, 0).await.unwrap();
    assert_eq!((ended.state, ended.exit.unwrap().reason), (ExecState::Exited, ExitReason::Killed));
    wait_until("everything to be gone but the agent", async || (sleepers().await == 0).then_some(())).await;
    // Killing an exec that has ended changes nothing.
    server.client.kill_exec(&sandbox, &exec).await.unwrap();
    // A timeout takes the tree too.
    let create = CreateExec { timeout_ms: Some(500), ..shell("setsid sleep 4005 & echo up; sleep 4006") };
    assert_eq!(server.run(&sandbox, create).await.exec.exit.unwrap().reason, ExitReason::TimedOut);
    wait_until("everything to be gone but the agent", async || (sleepers().await == 0).then_some(())).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_by_name_and_number() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    // The shell would say on standard error that a signal ended its `sleep`.
    let handler = "exec 2>/dev/null; trap 'echo usr1' USR1; trap 'echo hup; exit 9' HUP; echo ready; while :; do sleep 0.05; done";
    let exec = server.shell(&sandbox, handler).await;
    assert_eq!(follow(&server, &sandbox, &exec, 6).await.0, b"ready\n");
    let signal = async |text: &str, tree: bool| {
        server.client.signal_exec(&sandbox, &exec, &SignalExec { signal: text.into(), tree }).await
    };
    signal("USR1", false).await.unwrap();
    assert_eq!(follow(&server, &sandbox, &exec, 11).await.0, b"ready\nusr1\n");
    for bad in ["", "NOPE", "0", "65", "-9", "usr 1"] {
        assert_eq!(code(signal(bad, false).await), Code::InvalidArgument, "{bad}");
    }
    signal("1", false).await.unwrap();
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().code, Some(9));
    assert_eq!(code(signal("SIGTERM", true).await), Code::ExecEnded);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_ends_with_its_last_client_if_it_asked_for_that() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create = CreateExec { kill_on_disconnect: true, ..shell("echo up; sleep 1000") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    let first = server.client.attach(&sandbox, &exec, 0, ResumePolicy::never()).await.unwrap();
    let second = server.client.attach(&sandbox, &exec, 0, ResumePolicy::never()).await.unwrap();
    drop(first);
    let still = server.client.get_exec(&sandbox, &exec, 300).await.unwrap();
    assert_eq!(still.state, ExecState::Running);
    drop(second);
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, ExitReason::Disconnected);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_arrives_and_ends() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create = CreateExec { stdin: true, ..shell("cat; echo end") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    let big = vec![b'x'; 1 << 20];
    for piece in [b"one\n".to_vec(), big.clone()] {
        let written = server.client.write_stdin(&sandbox, &exec, piece.clone().into(), false).await.unwrap();
        assert_eq!(written.bytes, piece.len() as u64);
    }
    server.client.write_stdin(&sandbox, &exec, bytes::Bytes::new(), true).await.unwrap();
    let again = server.client.write_stdin(&sandbox, &exec, "more".into(), false).await;
    assert!([Code::StdinClosed, Code::ExecEnded].contains(&code(again)));
    let (out, _) = outputs(&server, &sandbox, &exec).await;
    assert!(out == [b"one\n", &big[..], b"end\n"].concat(), "{} bytes", out.len());
    // Without it a command reads its end at once, and writing is refused.
    let exec = server.shell(&sandbox, "cat; echo eof; sleep 1000").await;
    assert_eq!(follow(&server, &sandbox, &exec, 4).await.0, b"eof\n");
    let refused = server.client.write_stdin(&sandbox, &exec, "x".into(), false).await;
    assert_eq!(code(refused), Code::StdinClosed);
    let size = TtySize { cols: 80, rows: 24 };
    assert_eq!(code(server.client.resize_exec(&sandbox, &exec, size).await), Code::NotATerminal);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_one_and_changes_its_size() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    // No trap: a shell that waits for a line may see a signal only with the next one.
    let line = "test -t 0 && test -t 1 && test -t 2 && stty size; \
                until test \"$(stty size)\" = '40 120'; do sleep 0.02; done; stty size; \
                read line; echo \"<$line>\"; exit 6";
    let create = CreateExec { tty: Some(TtySize { cols: 91, rows: 17 }), ..shell(line) };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    assert_eq!(follow(&server, &sandbox, &exec, 7).await.0, b"17 91\r\n");
    server.client.resize_exec(&sandbox, &exec, TtySize { cols: 120, rows: 40 }).await.unwrap();
    assert_eq!(follow(&server, &sandbox, &exec, 15).await.0, b"17 91\r\n40 120\r\n");
    server.client.write_stdin(&sandbox, &exec, "q\n".into(), false).await.unwrap();
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().code, Some(6));
    assert_eq!(outputs(&server, &sandbox, &exec).await.0, b"17 91\r\n40 120\r\nq\r\n<q>\r\n");
    // Ctrl-D is the end of the input, Ctrl-C interrupts.
    let create = CreateExec { tty: Some(TtySize { cols: 80, rows: 24 }), ..shell("cat; echo end") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    server.client.write_stdin(&sandbox, &exec, "x\n\u{4}".into(), false).await.unwrap();
    assert_eq!(outputs(&server, &sandbox, &exec).await.0, b"x\r\nx\r\nend\r\n");
    let create =
        CreateExec { tty: Some(TtySize { cols: 80, rows: 24 }), ..shell("echo up; exec sleep 1000") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    follow(&server, &sandbox, &exec, 4).await;
    server.client.write_stdin(&sandbox, &exec, "\u{3}".into(), false).await.unwrap();
    let exit = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap().exit.unwrap();
    assert_eq!((exit.reason, exit.signal), (ExitReason::Signaled, Some(2)));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dropped_is_announced_and_the_rest_is_kept() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create = CreateExec { keep_output_bytes: Some(64 << 10), ..shell("seq 1 100000") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    let want: String = (1..=100_000).map(|i| format!("{i}\n")).collect();
    assert_eq!(ended.output_bytes, want.len() as u64);
    assert!(ended.output_bytes - ended.output_first <= (64 << 10) + (64 << 10) / 4, "{ended:?}");
    let page = server.client.exec_output(&sandbox, &exec, OutputQuery::default()).await.unwrap();
    let first = page.gap_until.unwrap();
    assert_eq!(first, ended.output_first);
    let kept: Vec<u8> = page.chunks.iter().flat_map(|chunk| chunk.bytes().unwrap()).collect();
    assert!(want.as_bytes()[usize::try_from(first).unwrap()..].starts_with(&kept) && !kept.is_empty());
    let beyond = OutputQuery { offset: ended.output_bytes + 1, ..OutputQuery::default() };
    assert_eq!(code(server.client.exec_output(&sandbox, &exec, beyond).await), Code::OffsetOutOfRange);
    let exactly = OutputQuery { offset: ended.output_bytes, ..OutputQuery::default() };
    let page = server.client.exec_output(&sandbox, &exec, exactly).await.unwrap();
    assert!(page.chunks.is_empty() && page.state.is_final() && page.exit.is_some());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn execs_are_listed_in_pages_and_limited_in_number() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(server.run(&sandbox, shell("true")).await.exec.id);
    }
    let running = server.shell(&sandbox, "sleep 1000").await;
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let list = ListExecs { limit: Some(2), cursor, ..ListExecs::default() };
        let page = server.client.list_execs(&sandbox, &list).await.unwrap();
        assert!(page.items.len() <= 2);
        seen.extend(page.items.into_iter().map(|exec| exec.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    ids.push(running.clone());
    ids.reverse();
    assert_eq!(seen, ids);
    let list = ListExecs { state: Some(ExecState::Running), ..ListExecs::default() };
    let page = server.client.list_execs(&sandbox, &list).await.unwrap();
    assert_eq!(page.items.iter().map(|exec| &exec.id).collect::<Vec<_>>(), [&running]);
    // More at once than a sandbox's processes allow: a clear refusal, and nothing is left of it.
    let max = atoll_core::limits::EXECS_RUNNING_MAX_COUNT;
    let waits = CreateExec { stdin: true, ..argv(&["cat"]) };
    let more = (0..max + 20).map(|_| server.client.create_exec(&sandbox, &waits));
    let answers = futures::stream::iter(more).buffer_unordered(32).collect::<Vec<_>>().await;
    let refused: Vec<Code> = answers.into_iter().filter(Result::is_err).map(code).collect();
    assert!(!refused.is_empty() && refused.iter().all(|code| *code == Code::LimitExceeded), "{refused:?}");
    server.client.delete_sandbox(&sandbox).await.unwrap();
    assert_eq!(code(server.client.get_exec(&sandbox, &running, 0).await), Code::SandboxNotFound);
    server.finish().await;
}
