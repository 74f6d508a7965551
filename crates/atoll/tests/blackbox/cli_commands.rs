//! A command in a sandbox, from the command line: its exit code, its output while it runs and afterwards, a terminal,
//! and signals to the program that shows it.

use std::process::Stdio;

use crate::common::pty::Terminal;
use atoll_blackbox::{Server, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_exit_code_is_the_programs() {
    let server = Server::start();
    for (argv, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 42"], 42),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = server.cli(&[&["run", "--"], argv].concat());
        assert_eq!(output.code, Some(code), "{argv:?}: {output:?}");
    }
    let both = server.cli(&["run", "--", "sh", "-c", "echo out; echo err >&2"]).ok();
    assert_eq!((both.stdout.as_str(), both.stderr.as_str()), ("out\n", "err\n"));
    let timeout = server.cli(&["run", "--timeout", "300ms", "--", "sleep", "1000"]);
    assert_eq!(timeout.code, Some(137));
    assert!(timeout.stderr.contains("timeout"), "{timeout:?}");
    let input = server.cli_with(&["run", "-i", "--", "wc", "-c"], &vec![b'x'; 300_000]).ok();
    assert_eq!(input.stdout.trim(), "300000");
    // Every run deleted its sandbox; a kept one stays.
    assert_eq!(server.cli(&["ls", "--json"]).ok().json()["items"], serde_json::json!([]));
    server.cli(&["run", "--keep", "--name", "kept", "--", "true"]).ok();
    let kept = server.cli(&["ls", "--json"]).ok().json();
    assert_eq!(kept["items"][0]["name"], "kept");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_output_nobody_reads_is_hung_up() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let mut child = server
        .cli_command()
        .args(["exec", "box", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 2];
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut first).unwrap();
    assert_eq!(&first, b"y\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), &[][..]));
    wait_until("the end of yes", || async {
        let listed = server.cli(&["ps", "box", "--json"]).ok().json();
        (listed["items"][0]["exit"]["signal"] == 1).then_some(())
    })
    .await;
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_show_the_newest_commands_last_lines() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let none = server.cli(&["logs", "box"]);
    assert!(none.code == Some(125) && none.stderr.contains("no command was run in 'box' yet"), "{none:?}");
    server.cli(&["exec", "box", "sh", "-c", "seq 1 9; printf end"]).ok();
    for (args, wanted) in [
        (&["logs", "box"][..], "1\n2\n3\n4\n5\n6\n7\n8\n9\nend"),
        (&["logs", "-n", "2", "box"], "9\nend"),
        (&["logs", "--tail", "100", "box"], "1\n2\n3\n4\n5\n6\n7\n8\n9\nend"),
        (&["logs", "--tail", "0", "box"], ""),
        (&["logs", "--since", "1h", "box"], "1\n2\n3\n4\n5\n6\n7\n8\n9\nend"),
    ] {
        assert_eq!(server.cli(args).ok().stdout, wanted, "{args:?}");
    }
    server.cli(&["exec", "box", "seq", "1", "3"]).ok();
    assert_eq!(server.cli(&["logs", "-f", "--tail", "2", "box"]).ok().stdout, "2\n3\n");
    assert_eq!(server.cli(&["logs", "--tail", "0", "box"]).ok().stdout, "");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_follow_and_begin_where_told() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let line = "echo one; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two >&2; exit 3";
    let exec = server.cli(&["exec", "-d", "box", "--", "sh", "-c", line]).ok().stdout.trim().to_owned();
    let mut follow = server.cli_command();
    follow
        .args(["logs", "-f", "box", &exec])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let follow = follow.spawn().unwrap();
    wait_until("the first line", async || {
        (server.cli(&["logs", "box", &exec]).ok().stdout == "one\n").then_some(())
    })
    .await;
    assert!(server.cli(&["ps", "box"]).ok().stdout.contains("running"));
    assert_eq!(server.cli(&["exec", "--timeout", "100ms", "box", "--", "sleep", "60"]).code, Some(137));
    assert!(server.cli(&["ps", "box"]).ok().stdout.contains("timed out"));
    server.cli(&["exec", "box", "--", "touch", "/tmp/go"]).ok();
    let followed = follow.wait_with_output().unwrap();
    assert_eq!((&followed.stdout[..], &followed.stderr[..]), (&b"one\n"[..], &b"two\n"[..]));
    let rest = server.cli(&["logs", "--offset", "2", "box", &exec]).ok();
    assert_eq!((rest.stdout.as_str(), rest.stderr.as_str()), ("e\n", "two\n"));
    // Attaching to an exec that has ended gives its output and its code.
    let attached = server.cli(&["attach", "--no-stdin", "box", &exec]);
    assert_eq!((attached.code, attached.stdout.as_str()), (Some(3), "one\n"));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_terminal() {
    let server = Server::start();
    server.cli(&["create", "--name", "box"]).ok();
    let mut terminal = Terminal::start(&server, &["exec", "-it", "box", "--", "sh"], 97, 31);
    terminal.write("stty size; test -t 0 && echo tty-$((1+1))\n");
    terminal.expect("31 97");
    terminal.expect("tty-2");
    terminal.resize(111, 44);
    // Sizes and keys reach the sandbox by ways of their own.
    terminal.write("until [ \"$(stty size)\" = '44 111' ]; do sleep 0.1; done; echo sized-$((3*4))\n");
    terminal.expect("sized-12");
    // Ctrl-C interrupts the command in the sandbox, not the program.
    terminal.write("sleep 1000; echo after-$?\n");
    std::thread::sleep(std::time::Duration::from_millis(300));
    terminal.write("\u{3}");
    terminal.write("echo still-$((40+2))\n");
    terminal.expect("still-42");
    terminal.write("exit 7\n");
    assert_eq!(terminal.wait(), Some(7));
    // The keys detach; the command goes on and can be attached to again.
    let mut terminal = Terminal::start(&server, &["exec", "-it", "box", "--", "sh"], 80, 24);
    terminal.write("echo up-$((2+3))\n");
    terminal.expect("up-5");
    terminal.write("\u{10}\u{11}");
    terminal.expect("detached");
    assert_eq!(terminal.wait(), Some(0));
    let list = server.cli(&["ps", "box", "--json"]).ok().json();
    let running = list["items"].as_array().unwrap().iter().find(|exec| exec["state"] == "running").unwrap();
    let exec = running["id"].as_str().unwrap().to_owned();
    let mut terminal = Terminal::start(&server, &["attach", "box", &exec], 80, 24);
    terminal.expect("up-5");
    terminal.write("echo again-$((3+3)); exit 9\n");
    terminal.expect("again-6");
    assert_eq!(terminal.wait(), Some(9));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_leaves_no_sandbox() {
    let server = Server::start();
    for (signal, code) in [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::INT, 130)] {
        let mut child = server.cli_command();
        // Debian's shell loses an interrupt that comes while it makes a process: it makes none.
        child.args(["run", "--", "sh", "-c", "echo up; exec sleep 1000"]).stdout(Stdio::piped());
        let mut child = child.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(server.cli(&["ls", "-a", "--json"]).ok().json()["items"], serde_json::json!([]));
    }
    server.finish().await;
}
