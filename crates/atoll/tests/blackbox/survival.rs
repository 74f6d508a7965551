//! What survives what: the table of `ARCHITECTURE.md`, row by row.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::{code, follow, outputs, shell};
use atoll_api::{CreateExec, CreateSandbox, UpdateSandbox};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::{AttachEvent, ListSandboxes, OutputQuery, ResumePolicy};
use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason, OutputStream};
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::ResourcesDraft;

/// Bytes of each stream in the long run.
const STREAM_BYTES: usize = 10 << 20;

/// A program that writes known bytes to both outputs, one block after the other.
fn writer(bytes: usize) -> String {
    format!(
        "perl -e '$| = 1; my $n = 0; my $b = 0; while ($b < {bytes}) {{ \
         my $l = sprintf(\"%015d\\n\", $n++) x 512; syswrite(STDOUT, $l); $l =~ tr/0-9/a-j/; \
         syswrite(STDERR, $l); $b += length $l; }}'"
    )
}

fn expected(bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let blocks = bytes / (16 * 512);
    let out: Vec<u8> = (0..blocks).flat_map(|n| format!("{n:015}\n").repeat(512).into_bytes()).collect();
    let err = out.iter().map(|&b| if b.is_ascii_digit() { b - b'0' + b'a' } else { b }).collect();
    (out, err)
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_whole_over_kills_of_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let exec = server.shell(&sandbox, &writer(STREAM_BYTES)).await;
    let (mut out, mut err, mut offset, mut kills) = (Vec::new(), Vec::new(), 0_u64, 0);
    let step = 3 * (2 * STREAM_BYTES as u64) / 20;
    loop {
        let mut attached =
            server.client.attach(&sandbox, &exec, offset, ResumePolicy::never()).await.unwrap();
        let mut exit = None;
        while let Some(Ok(event)) = attached.events.next().await {
            match event {
                AttachEvent::Output { stream, offset: at, data } => {
                    assert_eq!(at, offset, "a byte is lost or repeated");
                    offset += data.len() as u64;
                    if stream == OutputStream::Stdout { &mut out } else { &mut err }.extend_from_slice(&data);
                }
                AttachEvent::Exit { exit: how, offset: end, .. } => exit = Some((how, end)),
                other => panic!("{other:?}"),
            }
            if offset >= step * (kills + 1) && kills < 5 && server.is_running() {
                server.kill();
                kills += 1;
            }
        }
        if let Some((how, end)) = exit {
            assert_eq!((how.reason, how.code, end), (ExitReason::Exited, Some(0), offset));
            break;
        }
        assert!(!server.is_running(), "the connection ended though the server lives");
        server.restart();
    }
    assert!(kills >= 3, "it was killed only {kills} times");
    if !server.is_running() {
        // The last kill came when the end was already on its way to the client.
        server.restart();
    }
    let (want_out, want_err) = expected(STREAM_BYTES);
    assert!(out == want_out, "standard output differs: {} bytes", out.len());
    assert!(err == want_err, "standard error differs: {} bytes", err.len());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resumes_sees_nothing_of_a_restart() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create = CreateExec { stdin: true, ..shell("while read line; do echo \"<$line>\"; done; exit 4") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    let mut attached = server.client.attach(&sandbox, &exec, 0, ResumePolicy::default()).await.unwrap();
    for round in 0..3 {
        attached.input.write(format!("{round}\n").into()).await.unwrap();
        loop {
            match attached.events.next().await.unwrap().unwrap() {
                AttachEvent::Output { data, .. } => {
                    assert_eq!(data, format!("<{round}>\n"));
                    break;
                }
                AttachEvent::Reconnected { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        server.kill();
        server.restart();
        // The first event after it: input that is written while there is no connection may be lost.
        match attached.events.next().await.unwrap().unwrap() {
            AttachEvent::Reconnected { input_unconfirmed_bytes } => assert!(input_unconfirmed_bytes <= 2),
            other => panic!("{other:?}"),
        }
    }
    attached.input.close().await.unwrap();
    match attached.events.next().await.unwrap().unwrap() {
        AttachEvent::Exit { exit, .. } => assert_eq!(exit.code, Some(4)),
        other => panic!("{other:?}"),
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_while_the_server_is_away_is_told_with_its_output() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let gate = "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo out; echo err >&2; touch /tmp/done; exit 5";
    let exec = server.shell(&sandbox, gate).await;
    // The last thing that the server does before it dies.
    server.sh(&sandbox, "(sleep 1; touch /tmp/go) >/dev/null 2>&1 &").await;
    let agent = host::processes(&sandbox)[0];
    server.kill();
    let done = format!("/proc/{agent}/root/tmp/done");
    wait_until("the command to end without the server", async || {
        Path::new(&done).try_exists().unwrap().then_some(())
    })
    .await;
    server.restart();
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().code, Some(5));
    assert_eq!(outputs(&server, &sandbox, &exec).await, (b"out\n".to_vec(), b"err\n".to_vec()));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_fails_the_sandbox_and_ends_its_streams() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let other = server.sandbox().await.id;
    let exec = server.shell(&sandbox, "echo before; sleep 1000").await;
    let mut attached = server.client.attach(&sandbox, &exec, 0, ResumePolicy::default()).await.unwrap();
    assert!(matches!(attached.events.next().await, Some(Ok(AttachEvent::Output { .. }))));
    host::kill(host::processes(&sandbox)[0]);
    match attached.events.next().await {
        Some(Ok(AttachEvent::Exit { state, exit, .. })) => {
            assert_eq!((state, exit.reason, exit.code), (ExecState::Lost, ExitReason::SandboxDied, None));
        }
        event => panic!("{event:?}"),
    }
    for restarted in [false, true] {
        if restarted {
            server.kill();
            server.restart();
        }
        let failed = wait_until("the sandbox to fail", async || {
            let sandbox = server.client.get_sandbox(&sandbox).await.unwrap();
            (sandbox.state == SandboxState::Failed).then_some(sandbox)
        })
        .await;
        assert!(failed.reason.is_some_and(|reason| !reason.is_empty()));
        assert_eq!(outputs(&server, &sandbox, &exec).await.0, b"before\n");
        let refused = server.client.create_exec(&sandbox, &shell("true")).await;
        assert_eq!(code(refused), Code::SandboxFailed);
        assert_eq!(server.sh(&other, "echo alive").await.stdout, "alive\n");
    }
    assert!(host::processes(&sandbox).is_empty());
    server.client.delete_sandbox(&sandbox).await.unwrap();
    assert_eq!(code(server.client.get_sandbox(&sandbox).await), Code::SandboxNotFound);
    server.finish().await;
}

/// To outlive a timeout, root inside would stop the guest agent. It can no longer do that from inside, so the test does
/// it from outside.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_holds_though_the_agent_stands_still() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let other = server.sandbox().await.id;
    let create = CreateExec { timeout_ms: Some(2000), ..shell("echo before; sleep 1000") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    follow(&server, &sandbox, &exec, 7).await;
    host::stop(host::processes(&sandbox)[0]);
    let failed = wait_until("the sandbox to be given up", async || {
        let sandbox = server.client.get_sandbox(&sandbox).await.unwrap();
        (sandbox.state == SandboxState::Failed).then_some(sandbox)
    })
    .await;
    assert!(failed.reason.is_some_and(|reason| reason.contains("does not answer")));
    let exec = server.client.get_exec(&sandbox, &exec, 0).await.unwrap();
    assert_ne!(exec.state, ExecState::Running, "{exec:?}");
    // The server records the failure first, and takes the sandbox apart afterwards, however long that takes.
    wait_until("its processes to be gone", async || host::processes(&sandbox).is_empty().then_some(())).await;
    assert_eq!(server.sh(&other, "echo alive").await.stdout, "alive\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_while_the_server_is_away() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let exec = server.shell(&sandbox, "echo before; sleep 1000").await;
    follow(&server, &sandbox, &exec, 7).await;
    let agent = host::processes(&sandbox)[0];
    server.kill();
    host::kill(agent);
    server.restart();
    let failed = server.client.get_sandbox(&sandbox).await.unwrap();
    assert_eq!(failed.state, SandboxState::Failed);
    assert!(failed.reason.unwrap().contains("died"), "a reason");
    let lost = server.client.get_exec(&sandbox, &exec, 0).await.unwrap();
    assert_eq!((lost.state, lost.exit.unwrap().reason), (ExecState::Lost, ExitReason::SandboxDied));
    assert_eq!(outputs(&server, &sandbox, &exec).await.0, b"before\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_runs_out_inside_ends_the_command_and_says_so() {
    let server = Server::start();
    let create = CreateSandbox {
        resources: ResourcesDraft { memory_bytes: Some(64 << 20), ..ResourcesDraft::default() },
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let eat = CreateExec {
        argv: Some(
            ["perl", "-e", "print qq(x\\n); my $x = 'x' x (1 << 30); sleep 100"].map(str::to_owned).into(),
        ),
        ..CreateExec::default()
    };
    let done = server.run(&sandbox, eat).await;
    let exit = done.exec.exit.unwrap();
    assert_eq!((exit.reason, exit.code), (ExitReason::OutOfMemory, Some(137)));
    // The sandbox goes on, and so do all other sandboxes.
    assert_eq!(server.sh(&sandbox, "echo alive").await.stdout, "alive\n");
    assert!(server.client.sandbox_metrics(&sandbox).await.unwrap().oom_kills > 0);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_inside_is_enospc_inside() {
    let server = Server::start();
    let create = CreateSandbox {
        resources: ResourcesDraft { disk_bytes: Some(32 << 20), ..ResourcesDraft::default() },
        ..CreateSandbox::default()
    };
    let sandbox = server.client.create_sandbox(&create).await.unwrap().id;
    let full = server.sh(&sandbox, "head -c 200M /dev/zero > /home/user/big; ls /home/user").await;
    assert!(full.stderr.contains("No space left on device"), "{full:?}");
    // The file API says it with a code.
    let upload = server.request("PUT", &format!("/v1/sandboxes/{sandbox}/files?path=/home/user/more"));
    let answer = server.send(upload.body(vec![0; 8 << 20])).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (507, Some("disk_full")),
        "{}",
        answer.text()
    );
    let metrics = server.client.sandbox_metrics(&sandbox).await.unwrap();
    assert!(metrics.disk_host_bytes <= 33 << 20, "{metrics:?}");
    assert_eq!(
        server.sh(&sandbox, "rm /home/user/big; echo room > /home/user/x; cat /home/user/x").await.stdout,
        "room\n"
    );
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_on_the_host_makes_output_wait_and_creations_fail() {
    let small = crate::common::SmallDisk::new(320 << 20);
    let server = Server::on(&small.path().join("data"), &[]);
    let sandbox = server.sandbox().await.id;
    // It begins when it stands still already, or a moment before.
    let exec = server.shell(&sandbox, &format!("sleep 1; {}", writer(4 << 20))).await;
    let filler = small.fill(1 << 20);
    wait_until("the sandboxes to be stopped", async || {
        server.log().contains("sandboxes stand still").then_some(())
    })
    .await;
    assert_eq!(server.client.get_exec(&sandbox, &exec, 200).await.unwrap().state, ExecState::Running);
    let refused = server.client.create_sandbox(&CreateSandbox::default()).await;
    assert_eq!(code(refused), Code::HostDiskFull);
    fs::remove_file(filler).unwrap();
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().code, Some(0));
    let (out, err) = outputs(&server, &sandbox, &exec).await;
    let (want_out, want_err) = expected(4 << 20);
    assert!(out == want_out && err == want_err, "{} and {} bytes", out.len(), err.len());
    let after = server.sandbox().await;
    assert_eq!(server.sh(&after.id, "echo room").await.stdout, "room\n");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_fast_writer_gets_everything_or_an_exact_gap() {
    let server = Server::start();
    let sandbox = server.sandbox().await.id;
    let bytes = 8 << 20;
    for keep in [None, Some(1 << 20)] {
        let create = CreateExec { keep_output_bytes: keep, ..shell(&writer(bytes)) };
        let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
        let mut slow = server.client.attach(&sandbox, &exec, 0, ResumePolicy::default()).await.unwrap();
        // It does not read until the writer has ended: it does not hold the writer up.
        let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
        assert_eq!(ended.exit.unwrap().code, Some(0));
        let (mut offset, mut got, mut gaps) = (0, 0, 0);
        // Since the last gap.
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(event) = slow.events.next().await {
            match event.unwrap() {
                AttachEvent::Output { offset: at, data, stream } => {
                    assert_eq!(at, offset);
                    if stream == OutputStream::Stdout { &mut out } else { &mut err }.extend_from_slice(&data);
                    offset += data.len() as u64;
                    got += data.len() as u64;
                }
                AttachEvent::Gap { from, to } => {
                    assert_eq!(from, offset);
                    assert!(to > from);
                    (offset, gaps) = (to, gaps + to - from);
                    out.clear();
                    err.clear();
                }
                AttachEvent::Exit { offset: end, .. } => assert_eq!(end, offset),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got + gaps, 2 * bytes as u64);
        let (want_out, want_err) = expected(bytes);
        assert!(want_out.ends_with(&out) && want_err.ends_with(&err), "what came is not what was written");
        match keep {
            None => assert_eq!(gaps, 0),
            Some(_) => assert!(gaps > 0, "everything was kept though the limit is small"),
        }
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_with_sandboxes_in_every_state() {
    let mut server = Server::start();
    let lives = server.sandbox().await.id;
    let fails = server.sandbox().await.id;
    let kept = server.shell(&fails, "echo kept").await;
    server.client.get_exec(&fails, &kept, 60_000).await.unwrap();
    let expires = CreateSandbox { ttl_ms: Some(400), name: Some("short".into()), ..CreateSandbox::default() };
    let expires = server.client.create_sandbox(&expires).await.unwrap().id;
    host::kill(host::processes(&fails)[0]);
    server.kill();
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.restart();
    server.kill();
    server.restart();
    // Its time passed while the server was away.
    wait_until("an expired sandbox to go", async || {
        let gone = server.client.get_sandbox(&expires).await;
        (gone.is_err_and(|error| error.code() == Some(Code::SandboxNotFound))).then_some(())
    })
    .await;
    assert_eq!(server.client.get_sandbox(&lives).await.unwrap().state, SandboxState::Running);
    assert_eq!(server.client.get_sandbox(&fails).await.unwrap().state, SandboxState::Failed);
    assert_eq!(outputs(&server, &fails, &kept).await.0, b"kept\n");
    assert_eq!(server.sh(&lives, "echo on").await.stdout, "on\n");
    // Stopping gracefully is no different.
    let exec = server.shell(&lives, "sleep 0.5; echo later").await;
    assert!(server.stop().success());
    server.restart();
    server.client.get_exec(&lives, &exec, 60_000).await.unwrap();
    assert_eq!(outputs(&server, &lives, &exec).await.0, b"later\n");
    // A change survives too.
    let update =
        UpdateSandbox { labels: Some([("a".into(), "b".into())].into()), ..UpdateSandbox::default() };
    server.client.update_sandbox(&lives, &update).await.unwrap();
    server.kill();
    server.restart();
    let list = ListSandboxes { labels: [("a".into(), "b".into())].into(), ..ListSandboxes::default() };
    assert_eq!(server.client.list_sandboxes(&list).await.unwrap().items.len(), 1);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_count_while_the_server_is_away() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let create = CreateExec { timeout_ms: Some(700), ..shell("sleep 1000") };
    let exec = server.client.create_exec(&sandbox, &create).await.unwrap().exec.id;
    server.kill();
    tokio::time::sleep(Duration::from_millis(800)).await;
    server.restart();
    let ended = server.client.get_exec(&sandbox, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, ExitReason::TimedOut);
    let page = server.client.exec_output(&sandbox, &exec, OutputQuery::default()).await.unwrap();
    assert!(page.chunks.is_empty());
    server.finish().await;
}

/// The server clones a sandbox's first process into a cgroup. Where that stands still the process is born and never runs, with the
/// server's lock and port, which the next server needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_never_began_is_in_no_servers_way() {
    let mut server = Server::start();
    server.sandbox().await;
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()).unwrap();
    let cgroup = root.join(format!("atoll-{}", server.installation()));
    fs::write(cgroup.join("cgroup.freeze"), "1").unwrap();
    let client = server.client.clone();
    let creating = tokio::spawn(async move { client.create_sandbox(&CreateSandbox::default()).await });
    let is_born = || {
        let sandboxes = fs::read_dir(&cgroup).unwrap().flatten();
        let pids = sandboxes.filter_map(|entry| fs::read_to_string(entry.path().join("cgroup.procs")).ok());
        let pids: Vec<String> =
            pids.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let is_the_server = |pid: &String| {
            let exe = fs::read_link(format!("/proc/{pid}/exe"));
            exe.is_ok_and(|exe| exe.file_name().is_some_and(|name| name == "atoll"))
        };
        std::future::ready(pids.into_iter().find(is_the_server))
    };
    let child = wait_until("a child that is born", is_born).await;
    server.kill();
    // The client would ask again until there is a server.
    creating.abort();
    // The next server starts while everything stands still. As soon as it has ended the child this thread thaws the
    // cgroup, for which the server waits then.
    let thaw = std::thread::spawn(move || {
        while Path::new("/proc").join(&child).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write(cgroup.join("cgroup.freeze"), "0").unwrap();
    });
    server.restart();
    thaw.join().unwrap();
    server.sandbox().await;
}
