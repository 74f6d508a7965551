//! What goes in and out of a command: streams, terminals, the window, connections that are cut.

use std::fmt::Write;

use atoll_guest_protocol::client::{ExecEvent, GuestError};
use atoll_guest_protocol::messages::{
    AttachExec, Exited, Reason, ResizeExec, SignalExec, StartExec, TtySize,
};
use bytes::Bytes;

use crate::code;
use crate::common::{Guest, argv, eventually, finish, reason, run, shell, within};

#[tokio::test]
async fn output_order_and_exit_code() {
    let guest = Guest::start();
    let client = guest.client().await;
    let output = run(&client, shell("ex1", "echo out; echo err >&2; exit 7")).await;
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.exited.code, output.exited.signal), (code(7), None));
    let listed = client.list_execs().await.unwrap();
    assert_eq!(listed.iter().map(|e| (e.exec_id.as_str(), e.exited)).collect::<Vec<_>>(), [("ex1", true)]);
    client.forget_exec("ex1").await.unwrap();
    client.forget_exec("ex1").await.unwrap();
    assert_eq!(client.list_execs().await.unwrap(), []);
    assert_eq!(
        reason(client.attach_exec(AttachExec { exec_id: "ex1".into(), offset: 0 }).await),
        Reason::NoSuchExec
    );
}

#[tokio::test]
async fn streams_keep_the_order_they_were_written_in() {
    let guest = Guest::start();
    let client = guest.client().await;
    // Each write is acknowledged before the next, so the order is certain.
    let mut exec = shell("ex1", "for i in 1 2 3; do echo o$i; read x; echo e$i >&2; read x; done");
    exec.stdin = true;
    let mut stream = client.start_exec(exec).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = within(stream.next()).await.unwrap() {
        if let ExecEvent::Output { stderr, bytes } = event {
            seen.push((stderr, String::from_utf8(bytes.to_vec()).unwrap()));
            client.write_stdin("ex1", Bytes::from_static(b"\n"), false).await.unwrap();
        }
    }
    let expected: Vec<_> =
        (1..=3).flat_map(|i| [(false, format!("o{i}\n")), (true, format!("e{i}\n"))]).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn standard_input() {
    let guest = Guest::start();
    let client = guest.client().await;
    let cat = |id: &str| StartExec { stdin: true, ..argv(id, &["cat"]) };
    let data = Bytes::from((0..3_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    let stream = client.start_exec(cat("ex1")).await.unwrap();
    let (written, output) = tokio::join!(client.write_stdin("ex1", data.clone(), true), finish(stream));
    written.unwrap();
    assert!(output.stdout == data);
    assert_eq!(reason(client.write_stdin("ex1", Bytes::new(), false).await), Reason::ExecEnded);

    let stream = client.start_exec(cat("ex2")).await.unwrap();
    client.write_stdin("ex2", Bytes::from_static(b"a"), false).await.unwrap();
    client.write_stdin("ex2", Bytes::from_static(b"b"), true).await.unwrap();
    let late = client.write_stdin("ex2", Bytes::from_static(b"c"), false).await;
    assert!(matches!(reason(late), Reason::StdinClosed | Reason::ExecEnded));
    assert_eq!(finish(stream).await.text(), "ab");

    let stream = client.start_exec(shell("ex3", "cat; exec sleep 1000")).await.unwrap();
    assert_eq!(reason(client.write_stdin("ex3", Bytes::new(), true).await), Reason::StdinClosed);
    drop(stream);
    // A reader that goes away while a write waits.
    let stream = client
        .start_exec(StartExec { stdin: true, ..shell("ex4", "exec <&-; exec sleep 1000") })
        .await
        .unwrap();
    let refused: Result<(), GuestError> = within(async {
        loop {
            client.write_stdin("ex4", data.clone(), false).await?;
        }
    })
    .await;
    assert_eq!(reason(refused), Reason::StdinClosed);
    drop(stream);
}

#[tokio::test]
async fn terminals() {
    let guest = Guest::start();
    let client = guest.client().await;
    let tty = |id: &str, script: &str| StartExec {
        tty: Some(TtySize { cols: 100, rows: 30 }),
        stdin: true,
        ..shell(id, script)
    };
    let mut stream = client.start_exec(tty("ex1", "tty >/dev/null && stty size; read x; stty size; ps -o tty= -p $$ | grep -q pts && echo controlled")).await.unwrap();
    let Some(ExecEvent::Output { stderr: false, bytes }) = within(stream.next()).await.unwrap() else {
        panic!()
    };
    assert_eq!(bytes, "30 100\r\n");
    let resize = |id: &str, cols, rows| {
        client.resize_exec(ResizeExec { exec_id: id.into(), size: Some(TtySize { cols, rows }) })
    };
    resize("ex1", 80, 24).await.unwrap();
    client.write_stdin("ex1", Bytes::from_static(b"go\n"), false).await.unwrap();
    let output = finish(stream).await;
    assert_eq!(output.text(), "go\r\n24 80\r\ncontrolled\r\n");
    assert_eq!(output.exited.code, code(0));
    assert_eq!(reason(resize("ex1", 70_000, 1).await), Reason::Invalid);

    let stream = client.start_exec(tty("ex2", "stty -echo; cat")).await.unwrap();
    client.write_stdin("ex2", Bytes::from_static(b"no newline"), true).await.unwrap();
    assert!(finish(stream).await.text().ends_with("no newline"));
    let stream = client
        .start_exec(tty("ex3", "trap 'echo int; exit 9' INT; echo ready; while :; do sleep 0.01; done"))
        .await
        .unwrap();
    client.write_stdin("ex3", Bytes::from_static(b"\x03"), false).await.unwrap();
    // Ctrl-C before the trap is set ends the shell; either way it was the terminal that did it.
    let exited = finish(stream).await.exited;
    assert!(exited.code == code(9) || exited.signal == Some(libc::SIGINT), "{exited:?}");
    drop(client.start_exec(argv("ex4", &["sleep", "1000"])).await.unwrap());
    assert_eq!(reason(resize("ex4", 80, 24).await), Reason::NotATerminal);
}

/// Its end comes after all output, however late the host comes to read it.
#[tokio::test]
async fn killed_with_a_full_window() {
    let guest = Guest::start();
    let client = guest.client().await;
    let stream = client.start_exec(argv("full", &["cat", "/dev/zero"])).await.unwrap();
    drop(stream);
    client.close();
    let client = guest.client().await;
    client
        .signal_exec(SignalExec { exec_id: "full".into(), signal: libc::SIGKILL, tree: false })
        .await
        .unwrap();
    eventually(async || client.list_execs().await.unwrap()[0].exited.then_some(())).await;
    let mut stream = client.attach_exec(AttachExec { exec_id: "full".into(), offset: 0 }).await.unwrap();
    // Everything that fits is on its way before the first byte is read.
    eventually(async || client.ports().await.ok()).await;
    let mut exited = None;
    while let Some(event) = within(stream.next()).await.unwrap() {
        match event {
            ExecEvent::Output { .. } => drop(stream.ack(stream.offset).await),
            ExecEvent::Exited(end) => exited = Some(end),
        }
    }
    assert_eq!(exited.map(|end| end.signal), Some(Some(libc::SIGKILL)));
    // Output that was acknowledged is gone; the end is not.
    let stream =
        client.attach_exec(AttachExec { exec_id: "full".into(), offset: stream.offset }).await.unwrap();
    assert_eq!(finish(stream).await.exited.signal, Some(libc::SIGKILL));
}

/// Twenty megabytes in numbered lines, on connections that are cut again and again.
#[tokio::test]
async fn reconnecting_loses_and_repeats_nothing() {
    let guest = Guest::start();
    let mut expected = String::new();
    for line in 1..=2_700_000 {
        writeln!(expected, "{line}").unwrap();
    }
    let expected = expected.into_bytes();
    assert!(expected.len() > 20_000_000);
    let cuts = 100;
    let step = expected.len() / cuts;
    let mut log: Vec<u8> = Vec::new();
    let mut exited = None;
    let mut connections = 0;
    while exited.is_none() {
        connections += 1;
        let client = guest.client().await;
        let mut stream = if connections == 1 {
            client.start_exec(argv("ex1", &["seq", "2700000"])).await.unwrap()
        } else {
            client.attach_exec(AttachExec { exec_id: "ex1".into(), offset: log.len() as u64 }).await.unwrap()
        };
        let stop = (connections * step).min(expected.len());
        // Some connections end before they have acknowledged the output that they read.
        let acknowledges = connections % 3 != 0;
        while log.len() < stop || connections > cuts {
            match within(stream.next()).await.unwrap() {
                Some(ExecEvent::Output { bytes, .. }) => log.extend_from_slice(&bytes),
                Some(ExecEvent::Exited(end)) => exited = Some(end),
                None => break,
            }
            if acknowledges || log.len() + 500_000 > stop {
                drop(stream.ack(stream.offset).await);
            }
        }
        client.close();
    }
    assert!(connections >= 20, "{connections}");
    assert_eq!(log.len(), expected.len());
    assert!(log == expected);
    assert_eq!(exited.and_then(|end: Exited| end.code), code(0));
}

#[tokio::test]
async fn a_full_window_stops_the_program_not_the_agent() {
    let guest = Guest::start();
    let client = guest.client().await;
    let progress = guest.path("progress");
    let script = format!("i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > {progress}; done");
    let stream = client.start_exec(shell("ex1", &script)).await.unwrap();
    drop(stream);
    client.close();
    // It comes to a stop by itself, within the window and the pipe.
    let count = || std::fs::read_to_string(&progress).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let mut last = None;
    let mut same = 0;
    let stopped_at = eventually(async || {
        let now = count();
        same = if now.is_some() && now == last { same + 1 } else { 0 };
        last = now;
        (same > 60).then_some(now).flatten()
    })
    .await;
    assert!(stopped_at <= 24, "{stopped_at} blocks of 64 KiB");
    let client = guest.client().await;
    let mut stream = client.attach_exec(AttachExec { exec_id: "ex1".into(), offset: 0 }).await.unwrap();
    while stream.offset < 10 << 20 {
        assert!(matches!(within(stream.next()).await.unwrap(), Some(ExecEvent::Output { .. })));
        stream.ack(stream.offset).await.unwrap();
    }
    let gone = client.attach_exec(AttachExec { exec_id: "ex1".into(), offset: 0 }).await;
    assert_eq!(reason(gone), Reason::Invalid);
    let beyond = client.attach_exec(AttachExec { exec_id: "ex1".into(), offset: 1 << 40 }).await;
    assert_eq!(reason(beyond), Reason::Invalid);
    stream.ack(1 << 40).await.unwrap();
    let refused = within(async {
        loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                other => return other,
            }
        }
    })
    .await;
    assert!(matches!(refused, Err(GuestError::Failure { reason: Reason::Invalid, .. })), "{refused:?}");
}
