//! Pausing and resuming with the real program on the real kernel.

use std::time::Duration;

use crate::common::{code, outputs, shell};
use atoll_api::{CreateExec, CreateSandbox, PauseSandbox, UpdateSandbox};
use atoll_blackbox::{Server, host, wait_until};
use atoll_client::{AttachEvent, ResumePolicy};
use atoll_core::Code;
use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::idle::OnIdle;
use atoll_core::sandbox::{PauseMode, SandboxState};

const FROZEN: PauseSandbox = PauseSandbox { mode: Some(PauseMode::Frozen) };
const FILESYSTEM: PauseSandbox = PauseSandbox { mode: Some(PauseMode::Filesystem) };

async fn state(server: &Server, sandbox: &str) -> (SandboxState, Option<PauseMode>) {
    let sandbox = server.client.get_sandbox(sandbox).await.unwrap();
    (sandbox.state, sandbox.paused)
}

/// CPU time of a process and those below it, clock ticks.
fn cpu_ticks(pids: &[i32]) -> u64 {
    let ticks = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<u64> = stat
            .rsplit_once(") ")
            .unwrap()
            .1
            .split(' ')
            .skip(11)
            .take(2)
            .map(|n| n.parse().unwrap())
            .collect();
        fields[0] + fields[1]
    };
    pids.iter().map(ticks).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_pauses_lose_no_byte() {
    const ROUNDS: usize = 100;
    let server = Server::start();
    let sandbox = server.sandbox().await;
    let id = &sandbox.id;
    // One counts to an attached client, one counts into a file, one answers over a socket.
    let counter = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; done; exit 3";
    let exec = server.shell(id, counter).await;
    let filer = "exec perl -e 'open(my $f, \">>\", \"/root/lines\"); $f->autoflush(1); my $i = 0; \
                 while (! -e \"/tmp/stop\") { print $f ++$i, \"\\n\" for 1..500; select(undef, undef, undef, 0.002) }'";
    let files = server.shell(id, filer).await;
    let mut attached = server.client.attach(id, &exec, 0, ResumePolicy::never()).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut bytes = Vec::new();
        loop {
            match attached.events.next().await.unwrap().unwrap() {
                AttachEvent::Output { offset, data, .. } => {
                    assert_eq!(offset, bytes.len() as u64, "a byte is lost or repeated");
                    bytes.extend_from_slice(&data);
                }
                AttachEvent::Exit { exit, .. } => return (bytes, exit),
                other => panic!("{other:?}"),
            }
        }
    });
    let pids = wait_until("the agent and both run", || async {
        Some(host::processes(id)).filter(|pids| pids.len() == 3)
    })
    .await;
    for round in 0..ROUNDS {
        let paused = server.client.pause_sandbox(id, &FROZEN).await.unwrap();
        assert_eq!((paused.state, paused.paused), (SandboxState::Paused, Some(PauseMode::Frozen)));
        if round % 25 == 0 {
            let before = cpu_ticks(&pids);
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(cpu_ticks(&pids), before, "it works while it is paused");
        }
        let running = server.client.resume_sandbox(id).await.unwrap();
        assert_eq!((running.state, running.paused), (SandboxState::Running, None));
        assert_eq!(running.boot_id, sandbox.boot_id);
    }
    assert_eq!(host::processes(id), pids, "the same processes");
    assert_eq!(server.sh(id, "touch /tmp/stop; date +%s").await.code, Some(0));
    let (bytes, exit) = reader.await.unwrap();
    assert_eq!((exit.reason, exit.code), (ExitReason::Exited, Some(3)));
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    let expected: String = (1..=lines).map(|n| format!("{n}\n")).collect();
    assert!(lines > ROUNDS && bytes == expected.as_bytes(), "{lines} lines are not the numbers");
    server.client.get_exec(id, &files, 60_000).await.unwrap();
    let check =
        "perl -ne 'die \"line $. is $_\" if $_ != $.; END { print $. > 1000 ? \"whole\" : $. }' /root/lines";
    assert_eq!(server.sh(id, check).await.stdout, "whole");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_survives_the_server() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await.id;
    let exec = server.shell(&sandbox, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); echo $i; done").await;
    let pids = host::processes(&sandbox);
    server.client.pause_sandbox(&sandbox, &FROZEN).await.unwrap();
    for _ in 0..2 {
        server.kill();
        server.restart();
        assert_eq!(state(&server, &sandbox).await, (SandboxState::Paused, Some(PauseMode::Frozen)));
        assert_eq!(server.client.get_exec(&sandbox, &exec, 0).await.unwrap().state, ExecState::Running);
        assert_eq!(host::processes(&sandbox), pids);
    }
    // Use wakes it.
    assert_eq!(server.sh(&sandbox, "echo awake").await.stdout, "awake\n");
    let (out, _) = outputs(&server, &sandbox, &exec).await;
    let expected: String = (1..=300_000).map(|n| format!("{n}\n")).collect();
    assert!(out == expected.as_bytes(), "{} bytes", out.len());
    server.client.pause_sandbox(&sandbox, &FROZEN).await.unwrap();
    server.client.delete_sandbox(&sandbox).await.unwrap();
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_disk_there_is_only_the_disk() {
    let mut server = Server::start();
    let sandbox = server.sandbox().await;
    let id = &sandbox.id;
    let write = "head -c 4M /dev/urandom > /root/data; echo x > /dev/shm/gone; cksum < /root/data";
    let sum = server.sh(id, write).await.stdout;
    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let exec = server.shell(id, polite).await;
    let stubborn = server.shell(id, "trap '' TERM; while :; do sleep 0.05; done").await;
    crate::common::follow(&server, id, &exec, 6).await;
    let paused = server.client.pause_sandbox(id, &FILESYSTEM).await.unwrap();
    assert_eq!((paused.state, paused.paused), (SandboxState::Paused, Some(PauseMode::Filesystem)));
    let ended = server.client.get_exec(id, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, ExitReason::SandboxPaused);
    assert_eq!(outputs(&server, id, &exec).await.0, b"ready\nbye\n", "it may say good-bye");
    let ended = server.client.get_exec(id, &stubborn, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, ExitReason::SandboxPaused);
    assert_eq!(host::processes(id), Vec::<i32>::new());
    let remains = || -> Vec<String> {
        let all = host::remains(&server.installation(), server.data());
        all.into_iter().filter(|line| line.contains(id.as_str())).collect()
    };
    let left = remains();
    assert!(left.iter().all(|line| line.starts_with("directory ")), "more than a directory: {left:?}");
    assert!(server.client.list_leaks().await.unwrap().items.is_empty());
    let metrics = server.client.sandbox_metrics(id).await.unwrap();
    assert_eq!((metrics.memory_bytes, metrics.pids), (0, 0));
    assert!(metrics.disk_host_bytes > 4 << 20, "{metrics:?}");
    server.kill();
    server.restart();
    assert_eq!(state(&server, id).await, (SandboxState::Paused, Some(PauseMode::Filesystem)));
    // Eight clients use it at once; and its clock is right.
    let uses = (0..8).map(|_| server.sh(id, "cksum < /root/data; test ! -e /dev/shm/gone; date +%s"));
    for output in futures::future::join_all(uses).await {
        let (first, clock) = output.stdout.trim_end().split_once('\n').unwrap();
        assert_eq!(format!("{first}\n"), sum);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(clock.parse::<u64>().unwrap().abs_diff(now) <= 60, "the clock says {clock}, it is {now}");
    }
    let running = server.client.get_sandbox(id).await.unwrap();
    assert_eq!(running.state, SandboxState::Running);
    assert_ne!(running.boot_id, sandbox.boot_id);
    assert_eq!(running.paused, None);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_sandbox_that_is_just_being_paused_does_not_undo_that() {
    let server = Server::start();
    let id = &server.sandbox().await.id;
    // It does not end when it is asked to, so that the pause lasts a while.
    let stubborn = server.shell(id, "trap '' TERM; echo ready; while :; do sleep 0.05; done").await;
    crate::common::follow(&server, id, &stubborn, 6).await;
    let pausing = server.client.pause_sandbox(id, &FILESYSTEM);
    let looking = async {
        wait_until("the pause to begin", async || {
            (state(&server, id).await.0 == SandboxState::Pausing).then_some(())
        })
        .await;
        server.client.sandbox_metrics(id).await
    };
    let (paused, metrics) = tokio::join!(pausing, looking);
    assert_eq!(paused.unwrap().state, SandboxState::Paused);
    metrics.unwrap();
    assert_eq!(state(&server, id).await, (SandboxState::Paused, Some(PauseMode::Filesystem)));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_paused_cost_their_disks() {
    const COUNT: usize = 12;
    let server = Server::start();
    let mut ids = Vec::new();
    for _ in 0..COUNT {
        ids.push(server.sandbox().await.id);
    }
    for id in &ids {
        server.client.pause_sandbox(id, &FILESYSTEM).await.unwrap();
    }
    for line in host::remains(&server.installation(), server.data()) {
        let of_one = ids.iter().any(|id| line.contains(id.as_str()));
        assert!(!of_one || line.starts_with("directory "), "more than a directory: {line}");
    }
    let page = server.cli(&["ls"]).ok().stdout;
    assert_eq!(page.matches("paused (filesystem)").count(), COUNT, "{page}");
    let done = futures::future::join_all(ids.iter().map(|id| server.sh(id, "echo up"))).await;
    assert!(done.iter().all(|output| output.stdout == "up\n"), "{done:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_commands_it_dozes() {
    let server = Server::start();
    let create = CreateSandbox { idle_freeze_ms: Some(50), ..CreateSandbox::default() };
    let id = server.client.create_sandbox(&create).await.unwrap().id;
    server.sh(&id, "(while :; do :; done) > /dev/null 2>&1 &").await;
    let pids = host::processes(&id);
    wait_until("it to doze", async || {
        let before = cpu_ticks(&pids);
        tokio::time::sleep(Duration::from_millis(100)).await;
        (cpu_ticks(&pids) == before).then_some(())
    })
    .await;
    let ticks = cpu_ticks(&pids);
    assert_eq!(state(&server, &id).await, (SandboxState::Running, None));
    for round in 0..20 {
        assert_eq!(server.sh(&id, &format!("echo {round}")).await.stdout, format!("{round}\n"));
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    // The policy changes while it lives.
    let never = UpdateSandbox { idle_freeze_ms: Some(None), ..UpdateSandbox::default() };
    assert_eq!(server.client.update_sandbox(&id, &never).await.unwrap().idle_freeze_ms, None);
    server.sh(&id, "true").await;
    wait_until("it to work on", async || (cpu_ticks(&pids) > ticks).then_some(())).await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sandboxes_go_to_sleep_by_themselves() {
    let server = Server::start();
    let create = |on_idle| CreateSandbox {
        idle_timeout_ms: Some(200),
        on_idle: Some(on_idle),
        ..CreateSandbox::default()
    };
    let freezes = server.client.create_sandbox(&create(OnIdle::Freeze)).await.unwrap().id;
    let hibernates = server.client.create_sandbox(&create(OnIdle::Hibernate)).await.unwrap().id;
    for (id, mode) in [(&freezes, PauseMode::Frozen), (&hibernates, PauseMode::Filesystem)] {
        let paused = (SandboxState::Paused, Some(mode));
        wait_until("it to pause", async || (state(&server, id).await == paused).then_some(())).await;
        assert_eq!(server.sh(id, "echo up").await.stdout, "up\n");
        wait_until("it to pause again", async || (state(&server, id).await == paused).then_some(())).await;
    }
    // Any use wakes.
    assert!(server.client.sandbox_ports(&hibernates).await.unwrap().items.is_empty());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_does_not_run_while_paused() {
    let server = Server::start();
    let id = server.sandbox().await.id;
    // Long enough for a busy host to pause it before.
    let create = CreateExec { timeout_ms: Some(6000), ..shell("sleep 1000") };
    let exec = server.client.create_exec(&id, &create).await.unwrap().exec.id;
    server.client.pause_sandbox(&id, &FROZEN).await.unwrap();
    tokio::time::sleep(Duration::from_millis(7000)).await;
    server.client.resume_sandbox(&id).await.unwrap();
    assert_eq!(server.client.get_exec(&id, &exec, 0).await.unwrap().state, ExecState::Running);
    let ended = server.client.get_exec(&id, &exec, 60_000).await.unwrap();
    assert_eq!(ended.exit.unwrap().reason, ExitReason::TimedOut);
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_with_its_reason() {
    let server = Server::start();
    let id = server.sandbox().await.id;
    let memory = PauseSandbox { mode: Some(PauseMode::Memory) };
    let refused = server.client.pause_sandbox(&id, &memory).await;
    assert_eq!(code(refused), Code::PauseUnavailable);
    assert_eq!(state(&server, &id).await, (SandboxState::Running, None));
    let text = server.cli(&["pause", "--mode", "memory", &id]);
    assert!(text.code == Some(125) && text.stderr.contains("memory pause unavailable"), "{text:?}");
    let unknown = server.request("POST", &format!("/v1/sandboxes/{id}/pause")).json(&serde_json::json!({
        "mode": "sleeping"
    }));
    assert_eq!(server.send(unknown).await.status, 400);
    assert_eq!(code(server.client.pause_sandbox("nobody", &FROZEN).await), Code::SandboxNotFound);
    let short = CreateSandbox { idle_freeze_ms: Some(1), ..CreateSandbox::default() };
    assert_eq!(code(server.client.create_sandbox(&short).await), Code::InvalidArgument);
    // By the command line: there and back.
    assert_eq!(server.cli(&["pause", &id]).ok().stdout.trim(), id);
    assert!(server.cli(&["ls"]).ok().stdout.contains("paused (frozen)"));
    assert_eq!(server.cli(&["resume", &id]).ok().stdout.trim(), id);
    // Dead while it stands still.
    server.client.pause_sandbox(&id, &FROZEN).await.unwrap();
    host::kill(host::processes(&id)[0]);
    wait_until("its death to be noticed", async || {
        (state(&server, &id).await.0 == SandboxState::Failed).then_some(())
    })
    .await;
    assert_eq!(code(server.client.resume_sandbox(&id).await), Code::SandboxFailed);
    server.finish().await;
}

/// `kill -9` at every step of pausing and resuming. A state that was acknowledged is kept; otherwise it is one or the
/// other.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_every_step() {
    const PAUSE: &[&str] = &["engine.pause.frozen", "engine.pause.recorded"];
    const RESUME: &[&str] = &["engine.resume.recorded"];
    const HIBERNATE: &[&str] = &[
        "engine.hibernate.marked",
        "container::hibernate::start",
        "container::hibernate::processes",
        "container::hibernate::cgroups",
        "container::hibernate::disk",
        "engine.hibernate.done",
        "engine.hibernate.recorded",
    ];
    const WAKE: &[&str] = &[
        "container::wake::start",
        "container::wake::disk",
        "container::wake::process",
        "engine.wake.started",
        "engine.wake.recorded",
    ];
    let mut server = Server::with(&[]);
    let id = server.sandbox().await.id;
    server.sh(&id, "echo kept > /root/mark").await;
    for (points, before, pause) in [
        (PAUSE, None, Some(FROZEN)),
        (RESUME, Some(FROZEN), None),
        (HIBERNATE, None, Some(FILESYSTEM)),
        (WAKE, Some(FILESYSTEM), None),
    ] {
        for point in points {
            if let Some(before) = before {
                server.client.pause_sandbox(&id, &before).await.unwrap();
            }
            server.kill();
            server.restart_with(&format!("{point}=kill"));
            let answer = match pause {
                Some(pause) => server.client.pause_sandbox(&id, &pause).await,
                None => server.client.resume_sandbox(&id).await,
            };
            assert!(answer.is_err(), "{point} is not passed: {answer:?}");
            assert!(!server.wait_end().success());
            server.restart();
            let (state, mode) = wait_until("it to settle", async || {
                let now = state(&server, &id).await;
                matches!(now.0, SandboxState::Running | SandboxState::Paused).then_some(now)
            })
            .await;
            if points == HIBERNATE {
                assert_eq!((state, mode), (SandboxState::Paused, Some(PauseMode::Filesystem)), "{point}");
            }
            assert!(server.client.list_leaks().await.unwrap().items.is_empty(), "{point}");
            assert_eq!(server.sh(&id, "cat /root/mark").await.stdout, "kept\n", "{point}");
        }
    }
    server.finish().await;
}
