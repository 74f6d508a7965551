//! Commands in the real agent.

mod common;

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::os::unix::fs::PermissionsExt;

    use atoll_guest_protocol::client::{ExecEvent, GuestError};
    use atoll_guest_protocol::messages::{
        AttachExec, Exited, Reason, ResizeExec, SignalExec, StartExec, TtySize,
    };
    use bytes::Bytes;

    use crate::common::{Guest, Output, argv, eventually, finish, reason, run, runs, shell, within};

    fn code(code: i32) -> Option<i32> {
        Some(code)
    }

    #[tokio::test]
    async fn output_order_and_exit_code() {
        let guest = Guest::start();
        let client = guest.client().await;
        let output = run(&client, shell("ex1", "echo out; echo err >&2; exit 7")).await;
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!((output.exited.code, output.exited.signal), (code(7), None));
        let listed = client.list_execs().await.unwrap();
        assert_eq!(
            listed.iter().map(|e| (e.exec_id.as_str(), e.exited)).collect::<Vec<_>>(),
            [("ex1", true)]
        );
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
    async fn environment_user_and_working_directory() {
        let guest = Guest::start();
        let client = guest.client().await;
        let mut exec = shell(
            "ex1",
            "echo $HOME $USER $LOGNAME $SHELL $A $ATOLL_EXEC_ID; pwd; id -u; id -g; id -G; umask",
        );
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
        let is_directory =
            |fd: &i32| std::path::Path::new(&format!("/proc/{}/fd/{fd}", guest.pid())).is_dir();
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

    #[tokio::test]
    async fn signals() {
        let guest = Guest::start();
        let client = guest.client().await;
        let signal =
            |id: &str, signal, tree| client.signal_exec(SignalExec { exec_id: id.into(), signal, tree });
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
            .start_exec(shell(
                "ex2",
                "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.01; done",
            ))
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
                client
                    .attach_exec(AttachExec { exec_id: "ex1".into(), offset: log.len() as u64 })
                    .await
                    .unwrap()
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
        let script =
            format!("i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > {progress}; done");
        let stream = client.start_exec(shell("ex1", &script)).await.unwrap();
        drop(stream);
        client.close();
        // It comes to a stop by itself, within the window and the pipe.
        let count =
            || std::fs::read_to_string(&progress).ok().and_then(|text| text.trim().parse::<u64>().ok());
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
}
