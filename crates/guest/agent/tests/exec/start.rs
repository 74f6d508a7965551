//! How a command begins: as whom, where, with what, and why it may not.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use atoll_guest_protocol::client::GuestError;
use atoll_guest_protocol::messages::{Reason, SignalExec, StartExec};
use bytes::Bytes;

use crate::code;
use crate::common::{Guest, argv, eventually, finish, reason, run, shell};

#[tokio::test]
async fn environment_user_and_working_directory() {
    let guest = Guest::start();
    let client = guest.client().await;
    let mut exec =
        shell("ex1", "echo $HOME $USER $LOGNAME $SHELL $A $ATOLL_EXEC_ID; pwd; id -u; id -g; id -G; umask");
    exec.env.insert("A".into(), "b c".into());
    exec.env.insert("SHELL".into(), "/mine".into());
    exec.cwd = "/tmp".into();
    let output = run(&client, exec).await;
    assert_eq!(output.text(), "/root root root /mine b c ex1\n/tmp\n0\n0\n0\n0022\n");
    let mut exec = shell("ex2", "id -u; id -g; id -G; echo $USER; pwd");
    exec.user = "4321:77".into();
    exec.cwd = String::new();
    assert_eq!(run(&client, exec).await.text(), "4321\n77\n77\n4321\n/\n");
    let mut exec = shell("ex3", "id -un; id -gn");
    exec.user = "daemon:bin".into();
    assert_eq!(run(&client, exec).await.text(), "daemon\nbin\n");
}

#[tokio::test]
async fn a_child_inherits_nothing_of_the_agent() {
    let guest = Guest::start();
    let client = guest.client().await;
    // The agent raises the score when the program runs already.
    let script = "ls /proc/self/fd | tr '\\n' ' '; grep -E '^(SigBlk|SigIgn|SigCgt)' /proc/self/status; n=0; \
                  while [ $(cat /proc/$$/oom_score_adj) != 500 ] && [ $n -lt 200 ]; do n=$((n+1)); sleep 0.05; done; \
                  cat /proc/$$/oom_score_adj";
    let output = run(&client, argv("ex1", &["/bin/sh", "-c", script])).await.text();
    assert!(output.starts_with("0 1 2 3 SigBlk"), "{output}");
    assert!(output.contains("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"), "{output}");
    assert!(output.ends_with("\n500\n"), "{output}");
}

#[tokio::test]
async fn no_working_directory_is_one_of_the_agents() {
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    let is_directory = |fd: &i32| std::path::Path::new(&format!("/proc/{}/fd/{fd}", guest.pid())).is_dir();
    let directories: Vec<_> = (3..64).filter(is_directory).collect();
    assert!(directories.contains(&4), "{directories:?}");
    let link = guest.path("link");
    for fd in 3..64 {
        std::os::unix::fs::symlink(format!("/proc/self/fd/{fd}"), &link).unwrap();
        for cwd in [format!("/proc/self/fd/{fd}"), format!("/proc/thread-self/fd/{fd}/"), link.clone()] {
            let exec = StartExec { cwd: cwd.clone(), ..argv("ex1", &["/bin/true"]) };
            assert_eq!(reason(client.start_exec(exec).await), Reason::CwdNotFound, "{cwd}");
        }
        std::fs::remove_file(&link).unwrap();
    }
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let guest = Guest::start();
    let client = guest.client().await;
    let plain = guest.path("plain");
    std::fs::write(&plain, "not executable").unwrap();
    let with = |change: &dyn Fn(&mut StartExec)| {
        let mut exec = argv("ex1", &["true"]);
        change(&mut exec);
        exec
    };
    let command = |name: &str| {
        let name = name.to_owned();
        with(&move |exec| exec.argv = vec![name.clone()])
    };
    let cases = [
        (command("no-such-command"), Reason::CommandNotFound),
        (command("/no/such/command"), Reason::CommandNotFound),
        (command(""), Reason::CommandNotFound),
        (command(&plain), Reason::CommandNotExecutable),
        (command("/tmp"), Reason::CommandNotExecutable),
        (with(&|exec| exec.argv.clear()), Reason::Invalid),
        (with(&|exec| exec.argv.push("a\0b".into())), Reason::Invalid),
        (with(&|exec| exec.cwd = "/no/such/directory".into()), Reason::CwdNotFound),
        (with(&|exec| exec.cwd = "/etc/passwd".into()), Reason::CwdNotFound),
        (with(&|exec| exec.user = "no-such-user".into()), Reason::UserNotFound),
        (with(&|exec| exec.user = "root:no-such-group".into()), Reason::UserNotFound),
        (with(&|exec| drop(exec.env.insert("A=B".into(), String::new()))), Reason::Invalid),
        (with(&|exec| exec.exec_id = "../evil".into()), Reason::Invalid),
        (with(&|exec| exec.exec_id = "x".repeat(65)), Reason::Invalid),
        (with(&|exec| exec.argv.push("x".repeat(200_000))), Reason::Invalid),
        (with(&|exec| exec.argv.push("x".repeat(2_000_000))), Reason::Invalid),
    ];
    for (exec, expected) in cases {
        let shown = format!("{exec:.200?}");
        assert_eq!(reason(client.start_exec(exec).await), expected, "{shown}");
    }
    assert_eq!(client.list_execs().await.unwrap(), [], "what did not start is not remembered");
}

#[tokio::test]
async fn what_is_opened_starts_nothing_before_it_is_told_what() {
    const GIVEN_UP: usize = 100;
    let guest = Guest::start();
    let client = guest.client().await;
    // As by a host whose database fails while the guest stands still: the guest finds them opened and closed at once.
    let agent = rustix::process::Pid::from_raw(guest.pid().cast_signed()).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::STOP).unwrap();
    let mut opened = Vec::new();
    for number in 0..GIVEN_UP {
        opened.push(client.open_exec(&format!("given-up{number}")).await.unwrap());
    }
    // So that the task of the connection sends what there is.
    tokio::task::yield_now().await;
    drop(opened);
    tokio::task::yield_now().await;
    rustix::process::kill_process(agent, rustix::process::Signal::CONT).unwrap();
    assert_eq!(client.list_execs().await.unwrap(), []);
    let (opened, other) = (client.open_exec("ex1").await.unwrap(), client.open_exec("ex2").await.unwrap());
    assert_eq!(client.list_execs().await.unwrap(), []);
    let output = finish(opened.start(shell("ex1", "echo hello; exit 3")).await.unwrap()).await;
    assert_eq!((output.text().as_str(), output.exited.code), ("hello\n", code(3)));
    assert_eq!(reason(other.start(argv("ex2", &["no-such-command"])).await), Reason::CommandNotFound);
    let opened = client.open_exec("ex3").await.unwrap();
    client.close();
    assert_eq!(opened.start(argv("ex3", &["true"])).await.err(), Some(GuestError::Closed));
}

#[tokio::test]
async fn the_cgroup_of_an_announced_exec_goes_if_the_exec_is_not_started() {
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    let opened = client.open_exec("ex1").await.unwrap();
    eventually(async || (guest.cgroups() == ["exec-ex1"]).then_some(())).await;
    drop(opened);
    eventually(async || guest.cgroups().is_empty().then_some(())).await;
    // Another one is started after all.
    for announced in ["ex1", "../evil", "ex2/evil", ""] {
        let opened = client.open_exec(announced).await.unwrap();
        let running = opened.start(argv("ex2", &["sleep", "1000"])).await.unwrap();
        assert_eq!(guest.cgroups(), ["exec-ex2"], "announced: '{announced}'");
        assert_eq!(guest.processes("ex2"), 1);
        let killed = SignalExec { exec_id: "ex2".into(), signal: libc::SIGKILL, tree: true };
        client.signal_exec(killed).await.unwrap();
        finish(running).await;
        client.forget_exec("ex2").await.unwrap();
    }
    // An exec that runs is not announced again: what it has stays.
    let running = client.start_exec(argv("ex3", &["sleep", "1000"])).await.unwrap();
    drop(client.open_exec("ex3").await.unwrap());
    assert_eq!(client.list_execs().await.unwrap().len(), 1);
    assert_eq!((guest.cgroups(), guest.processes("ex3")), (vec!["exec-ex3".to_owned()], 1));
    drop(running);
    let opened = client.open_exec("ex4").await.unwrap();
    let output = finish(opened.start(shell("ex4", "cat /proc/self/cgroup")).await.unwrap()).await.text();
    assert!(output.contains("/exec-ex4\n"), "{output}");
}

#[tokio::test]
async fn what_was_given_up_while_the_guest_stood_still_does_not_begin() {
    let guest = Guest::start();
    let client = guest.client().await;
    let opened = client.open_exec("ex1").await.unwrap();
    // When this is answered the guest waits for what it is to start.
    assert_eq!(client.list_execs().await.unwrap(), []);
    let agent = rustix::process::Pid::from_raw(guest.pid().cast_signed()).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::STOP).unwrap();
    let start = opened.start(argv("ex1", &["sleep", "1000"]));
    assert!(tokio::time::timeout(Duration::from_millis(100), start).await.is_err(), "it stands still");
    // So that the task of the connection says that it is given up.
    tokio::task::yield_now().await;
    rustix::process::kill_process(agent, rustix::process::Signal::CONT).unwrap();
    assert_eq!(client.list_execs().await.unwrap(), []);
    // The id is free.
    let output = finish(client.start_exec(shell("ex1", "echo hello")).await.unwrap()).await;
    assert_eq!(output.text(), "hello\n");
}

#[tokio::test]
async fn an_exec_that_is_announced_twice_keeps_its_cgroup() {
    let guest = Guest::start_with_cgroup();
    let client = guest.client().await;
    for gives_first_up in [true, false] {
        // As by a host whose connection broke, while the guest has yet to see that.
        let first = client.open_exec("ex1").await.unwrap();
        let second = client.open_exec("ex1").await.unwrap();
        assert_eq!(client.list_execs().await.unwrap(), []);
        assert_eq!(guest.cgroups(), ["exec-ex1"]);
        let (given_up, goes_on) = if gives_first_up { (first, second) } else { (second, first) };
        drop(given_up);
        if gives_first_up {
            eventually(async || guest.cgroups().is_empty().then_some(())).await;
        }
        assert_eq!(client.list_execs().await.unwrap(), []);
        let script = "cat /proc/self/cgroup; exit 3";
        let output = finish(goes_on.start(shell("ex1", script)).await.unwrap()).await;
        assert_eq!(output.exited.code, code(3));
        assert!(output.text().contains("/exec-ex1\n"), "{}", output.text());
        client.forget_exec("ex1").await.unwrap();
    }
}

#[tokio::test]
async fn the_users_permissions_decide() {
    let guest = Guest::start();
    let client = guest.client().await;
    let private = guest.path("private");
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::copy("/bin/true", format!("{private}/tool")).unwrap();
    let mut exec = argv("ex1", &["/bin/true"]);
    exec.user = "4321".into();
    exec.cwd.clone_from(&private);
    assert_eq!(reason(client.start_exec(exec).await), Reason::CwdNotFound);
    let mut exec = argv("ex1", &[&format!("{private}/tool")]);
    exec.user = "4321".into();
    assert_eq!(reason(client.start_exec(exec).await), Reason::CommandNotExecutable);
}

#[tokio::test]
async fn commands_are_found_as_a_shell_finds_them() {
    let guest = Guest::start();
    let client = guest.client().await;
    let (denied, good) = (guest.path("denied"), guest.path("good"));
    for directory in [&denied, &good] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(format!("{directory}/tool"), "echo script $0 $1").unwrap();
    }
    std::fs::set_permissions(format!("{good}/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut exec = argv("ex1", &["tool", "x"]);
    exec.env.insert("PATH".into(), format!("/none:{denied}:{good}"));
    // No `#!` line: a shell runs it.
    assert_eq!(run(&client, exec.clone()).await.text(), format!("script {good}/tool x\n"));
    exec.exec_id = "ex2".into();
    exec.env.insert("PATH".into(), format!("{denied}:/none"));
    assert_eq!(reason(client.start_exec(exec.clone()).await), Reason::CommandNotExecutable);
    exec.env.insert("PATH".into(), "good".into());
    exec.cwd = guest.directory.path().to_str().unwrap().into();
    assert_eq!(run(&client, exec).await.text(), "script good/tool x\n");
}

#[tokio::test]
async fn starting_again_attaches_and_another_spec_conflicts() {
    let guest = Guest::start();
    let client = guest.client().await;
    let marks = guest.path("marks");
    let exec = shell("ex1", &format!("echo x >> {marks}; echo hello; read y; exit 3"));
    let exec = StartExec { stdin: true, ..exec };
    let first = client.start_exec(exec.clone()).await.unwrap();
    let second = client.start_exec(exec.clone()).await.unwrap();
    assert_eq!(first.pid, second.pid);
    assert_eq!(reason(client.start_exec(shell("ex1", "echo other")).await), Reason::Conflict);
    assert_eq!(reason(client.forget_exec("ex1").await), Reason::Conflict);
    client.write_stdin("ex1", Bytes::new(), true).await.unwrap();
    assert_eq!(finish(second).await.text(), "hello\n");
    drop(first);
    // After its end, too. Whether the acknowledgement came before the end is open.
    let again = client.start_exec(exec).await.unwrap();
    assert!([0, 6].contains(&again.offset), "{}", again.offset);
    assert_eq!(finish(again).await.exited.code, code(3));
    assert_eq!(std::fs::read_to_string(marks).unwrap(), "x\n");
}
