//! How a command ends: by itself, by a signal, with everything that it started.

use atoll_guest_protocol::client::ExecEvent;
use atoll_guest_protocol::messages::{Reason, SignalExec, StartExec};

use crate::code;
use crate::common::{Guest, Output, argv, eventually, finish, reason, run, runs, shell, within};

#[tokio::test]
async fn signals() {
    let guest = Guest::start();
    let client = guest.client().await;
    let signal = |id: &str, signal, tree| client.signal_exec(SignalExec { exec_id: id.into(), signal, tree });
    let stream = client.start_exec(argv("ex1", &["sleep", "1000"])).await.unwrap();
    signal("ex1", libc::SIGTERM, false).await.unwrap();
    let exited = finish(stream).await.exited;
    assert_eq!((exited.code, exited.signal), (None, Some(libc::SIGTERM)));
    assert_eq!(reason(signal("ex1", libc::SIGTERM, false).await), Reason::ExecEnded);
    assert_eq!(reason(signal("ex1", libc::SIGKILL, true).await), Reason::ExecEnded);
    assert_eq!(reason(signal("none", libc::SIGTERM, false).await), Reason::NoSuchExec);
    for bad in [0, -1, 65] {
        assert_eq!(reason(signal("ex1", bad, false).await), Reason::Invalid);
    }
    let mut stream = client
        .start_exec(shell("ex2", "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.01; done"))
        .await
        .unwrap();
    assert!(matches!(within(stream.next()).await.unwrap(), Some(ExecEvent::Output { .. })));
    signal("ex2", libc::SIGUSR1, false).await.unwrap();
    let output = finish(stream).await;
    assert_eq!((output.text().as_str(), output.exited.code), ("got\n", code(5)));
}

/// A tree whose members ran away into sessions of their own and lost their parents.
async fn kill_tree(guest: &Guest) {
    let client = guest.client().await;
    let script = "setsid sh -c 'sleep 1000 & echo $!; exec sleep 1000' & echo $!; (setsid sh -c 'sleep 1000 & echo $!; exit' &); echo $$; exec sleep 1000";
    let mut stream = client.start_exec(shell("ex1", script)).await.unwrap();
    let mut text = String::new();
    while text.lines().count() < 4 {
        let Some(ExecEvent::Output { bytes, .. }) = within(stream.next()).await.unwrap() else {
            panic!("{text}")
        };
        text.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    let pids: Vec<i32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| runs(*pid)), "{text}");
    client
        .signal_exec(SignalExec { exec_id: "ex1".into(), signal: libc::SIGKILL, tree: true })
        .await
        .unwrap();
    assert_eq!(finish(stream).await.exited.signal, Some(libc::SIGKILL));
    eventually(async || pids.iter().all(|pid| !runs(*pid)).then_some(())).await;
    eventually(async || guest.cgroups().is_empty().then_some(())).await;
}

#[tokio::test]
async fn killing_a_tree_by_cgroup() {
    let guest = Guest::start_with_cgroup();
    kill_tree(&guest).await;
}

#[tokio::test]
async fn killing_a_tree_by_search() {
    kill_tree(&Guest::start()).await;
}

#[tokio::test]
async fn a_cgroup_stays_while_a_forgotten_exec_has_processes() {
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    let output = run(&client, shell("ex1", "setsid sleep 1000 >/dev/null 2>&1 & echo $!")).await;
    assert_eq!(guest.cgroups(), ["exec-ex1"]);
    client.forget_exec("ex1").await.unwrap();
    assert_eq!(guest.cgroups(), ["exec-ex1"]);
    let pid: i32 = output.text().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    eventually(async || guest.cgroups().is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_cgroup_goes_when_its_exec_is_forgotten_or_the_last_process_has_ended() {
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    assert_eq!(run(&client, argv("ex1", &["true"])).await.exited.code, code(0));
    client.forget_exec("ex1").await.unwrap();
    let output = run(&client, shell("ex2", "setsid sleep 1000 >/dev/null 2>&1 & echo $!")).await;
    assert_eq!(guest.cgroups(), ["exec-ex2"]);
    let pid: i32 = output.text().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    eventually(async || guest.cgroups().is_empty().then_some(())).await;
    let killed = SignalExec { exec_id: "ex2".into(), signal: libc::SIGKILL, tree: true };
    assert_eq!(reason(client.signal_exec(killed).await), Reason::ExecEnded);
}

#[tokio::test]
async fn what_it_started_ends_with_it_when_that_is_asked_for() {
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exit 3";
    let pid_of = |output: &Output| output.text().trim().parse::<i32>().unwrap();
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    let output = run(&client, StartExec { end_tree: true, ..shell("ex1", script) }).await;
    assert_eq!(output.exited.code, code(3));
    assert!(!runs(pid_of(&output)), "it had ended before the end was told");
    assert_eq!(guest.cgroups(), Vec::<String>::new());
    let guest = Guest::start();
    let client = guest.client().await;
    let output = run(&client, StartExec { end_tree: true, ..shell("ex1", script) }).await;
    assert_eq!(output.exited.code, code(3));
    eventually(async || (!runs(pid_of(&output))).then_some(())).await;
}

#[tokio::test]
async fn what_is_killed_as_a_whole_is_gone_when_its_end_is_told() {
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    let script =
        "for n in $(seq 50); do setsid sleep 1000 >/dev/null 2>&1 & echo $!; done; echo all; sleep 1000";
    let started = client.start_exec(shell("ex1", script)).await.unwrap();
    let killed = SignalExec { exec_id: "ex1".into(), signal: libc::SIGKILL, tree: true };
    let kill = async {
        eventually(async || (guest.processes("ex1") == 52).then_some(())).await;
        client.signal_exec(killed).await.unwrap();
    };
    let (output, ()) = tokio::join!(finish(started), kill);
    assert_eq!(output.exited.signal, Some(libc::SIGKILL));
    assert_eq!(guest.cgroups(), Vec::<String>::new(), "nothing is in it any more");
    let pids: Vec<i32> = output.text().lines().filter_map(|line| line.parse().ok()).collect();
    assert!(pids.len() == 50 && pids.into_iter().all(|pid| !runs(pid)));
}

#[tokio::test]
async fn a_background_process_does_not_delay_the_exit() {
    let guest = Guest::start();
    let client = guest.client().await;
    let output = run(&client, shell("ex1", "yes & echo $!; sleep 1000 & exit 4")).await;
    assert_eq!(output.exited.code, code(4));
    let pid: i32 = output.text().lines().find(|line| *line != "y").unwrap().parse().unwrap();
    assert!(runs(pid), "it neither died of a closed pipe");
    client
        .signal_exec(SignalExec { exec_id: "ex1".into(), signal: libc::SIGKILL, tree: true })
        .await
        .unwrap();
    eventually(async || (!runs(pid)).then_some(())).await;
}
