//! Commands with attached streams or a terminal: exit codes, streams, signals, files, a real terminal.

#![expect(clippy::tests_outside_test_module, clippy::unwrap_used, reason = "integration test")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use support::{DEADLINE, Fake, finish, until};

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

#[test]
fn run_passes_everything_through_and_cleans_up() {
    let fake = Fake::start();
    let output = finish(&mut fake.atoll(&["run", "--", "both"]));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
    let requests = fake.requests();
    assert_eq!(requests.first().unwrap(), "POST /v1/sandboxes");
    assert_eq!(requests.last().unwrap(), "DELETE /v1/sandboxes/sb_1");

    let output = finish(&mut fake.atoll(&["run", "--keep", "--", "both"]));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stderr, b"err\nkept: sb_1\n");
    let deletes = fake.requests().iter().filter(|line| line.starts_with("DELETE")).count();
    assert_eq!(deletes, 1, "the second was kept");
}

#[test]
fn a_command_that_failed_for_the_network_says_what_would_allow_it() {
    let fake = Fake::start();
    let stderr = |args: &[&str], code| {
        let output = finish(&mut fake.atoll(args));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let why = "hint: the network stopped web.test: no rule allows it (internet: rules); ";
    let here = "'atoll net allow sb_1 web.test' would allow it, 'atoll net denied sb_1' says more\n";
    assert_eq!(stderr(&["exec", "sb_1", "--", "offline"], 6), format!("{why}{here}"));
    assert_eq!(
        stderr(&["run", "--", "offline"], 6),
        format!("{why}'atoll run --allow web.test' would allow it\n")
    );
    assert_eq!(fake.requests().last().unwrap(), "DELETE /v1/sandboxes/sb_1");
    assert_eq!(stderr(&["run", "--keep", "--", "offline"], 6), format!("{why}{here}kept: sb_1\n"));

    // Nothing where nothing failed, where nothing was refused meanwhile, or where a program reads.
    assert_eq!(stderr(&["exec", "sb_1", "--", "lucky"], 0), "");
    assert_eq!(stderr(&["exec", "sb_1", "--", "both"], 7), "err\n");
    assert_eq!(stderr(&["--json", "exec", "sb_1", "--", "offline"], 6), "");
}

#[test]
fn standard_input_is_passed_on_to_its_end() {
    let fake = Fake::start();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    let mut child = fake
        .atoll(&["exec", "-i", "sb_1", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let data = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&data).unwrap());
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(got == sent);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_first_interrupt_goes_to_the_program() {
    let fake = Fake::start();
    let mut child =
        fake.atoll(&["run", "--", "hang"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    kill_process(pid(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let requests = fake.requests();
    assert!(requests.contains(&"POST /v1/sandboxes/sb_1/execs/ex_1/signal".to_owned()), "{requests:?}");
    assert_eq!(requests.last().unwrap(), "DELETE /v1/sandboxes/sb_1");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = fake.atoll(&["run", "--", "both"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(141), ""));
    assert_eq!(fake.requests().last().unwrap(), "DELETE /v1/sandboxes/sb_1");
}

fn hostile_tar(name: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(4);
    header.set_mode(0o644);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(b"evil");
    out.resize(2048, 0);
    out
}

#[test]
fn files_go_both_ways() {
    let fake = Fake::start();
    let dir = tempfile::Builder::new().prefix("atoll").tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let copy = |from: &str, to: &str| finish(&mut fake.atoll(&["cp", from, to]));

    // A file down, under its own name and under a new one.
    assert!(copy("sb_1:/file", &path("")).status.success());
    assert!(copy("sb_1:/file", &path("new")).status.success());
    assert_eq!(fs::read(path("file")).unwrap(), b"hello");
    assert_eq!(fs::metadata(path("new")).unwrap().permissions().mode() & 0o700, 0o600);

    // A file up: into a directory, and under a new name.
    assert!(copy(&path("new"), "sb_1:/dir").status.success());
    assert!(copy(&path("new"), "sb_1:/other").status.success());
    assert_eq!(fake.uploads(), [b"hello", b"hello"]);
    let puts: Vec<_> = fake.requests().into_iter().filter(|line| line.starts_with("PUT")).collect();
    assert!(puts[0].contains("path=%2Fdir%2Fnew&mode=06"), "{puts:?}");
    assert!(puts[1].contains("path=%2Fother&"), "{puts:?}");

    // A directory up and, renamed, down again.
    fs::create_dir(path("tree")).unwrap();
    fs::write(path("tree/leaf"), "green").unwrap();
    assert!(copy(&path("tree"), "sb_1:/dir").status.success());
    let tar = fake.uploads().pop().unwrap();
    fake.set_archive(tar.clone());
    assert!(copy("sb_1:/dir", &path("copy")).status.success());
    assert_eq!(fs::read(path("copy/leaf")).unwrap(), b"green");
    assert_eq!(copy("sb_1:/dir", "-").stdout, tar);

    // A tar that wants out.
    fake.set_archive(hostile_tar("../../evil"));
    let output = copy("sb_1:/dir", &path("bad"));
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused to unpack"), "{output:?}");
    assert!(!fs::exists(path("../evil")).unwrap() && !fs::exists(path("evil")).unwrap());

    // A file that is not there on this side.
    let output = copy(&path("absent"), "sb_1:/dir");
    assert_eq!(output.status.code(), Some(125));
    let left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A terminal with the program on it.
struct Terminal {
    master: fs::File,
    slave: OwnedFd,
    child: Child,
    screen: Arc<Mutex<String>>,
    before: Termios,
}

impl Terminal {
    fn start(fake: &Fake, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
        resize(&master, 100, 30);
        let before = tcgetattr(&slave).unwrap();
        let side = || Stdio::from(slave.try_clone().unwrap());
        let child = fake.atoll(args).stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let master = fs::File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (master.try_clone().unwrap(), Arc::clone(&screen));
        // Ends with the terminal.
        drop(std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        }));
        Self { master, slave, child, screen, before }
    }

    fn sees(&self, text: &str) {
        let end = Instant::now() + DEADLINE;
        while !self.screen.lock().unwrap().contains(text) {
            assert!(Instant::now() < end, "'{text}' is not in {:?}", self.screen.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn types(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    fn is_raw(&self) -> bool {
        let now = tcgetattr(&self.slave).unwrap();
        now.local_modes != self.before.local_modes && now.output_modes != self.before.output_modes
    }

    fn ends_with(&mut self, code: i32) {
        let child = &mut self.child;
        let mut status = None;
        until("the end", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(code), "{:?}", self.screen.lock().unwrap());
        let after = tcgetattr(&self.slave).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Only if a test failed before its end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn resize(terminal: impl std::os::fd::AsFd, cols: u16, rows: u16) {
    let size = Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

#[test]
fn a_terminal_is_raw_follows_its_window_and_is_given_back() {
    let fake = Fake::start();
    let mut terminal = Terminal::start(&fake, &["run", "-it", "--", "term"]);
    terminal.sees("made 100x30");
    terminal.sees("size 100x30");
    assert!(terminal.is_raw());
    // Ctrl-C is a key like any other.
    terminal.types(b"\x03");
    terminal.sees("typed b\"\\x03\"");
    resize(terminal.master.as_fd(), 90, 20);
    // Without a controlling terminal the kernel sends no signal.
    kill_process(pid(&terminal.child), Signal::WINCH).unwrap();
    terminal.sees("size 90x20");
    // The beginning of the detach keys that leads nowhere.
    terminal.types(b"\x10x");
    terminal.sees("typed b\"\\x10x\"");
    terminal.types(b"q");
    terminal.ends_with(3);
    assert_eq!(fake.requests().last().unwrap(), "DELETE /v1/sandboxes/sb_1");
}

#[test]
fn detaching_leaves_the_sandbox_alone() {
    let fake = Fake::start();
    let mut terminal = Terminal::start(&fake, &["run", "-it", "--", "term"]);
    terminal.sees("size 100x30");
    terminal.types(b"\x10");
    terminal.types(b"\x11");
    terminal.ends_with(0);
    terminal.sees("atoll attach sb_1 ex_1");
    assert!(!fake.requests().iter().any(|line| line.starts_with("DELETE")));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let fake = Fake::start();
        let mut terminal = Terminal::start(&fake, &["run", "-it", "--", "term"]);
        terminal.sees("size 100x30");
        assert!(terminal.is_raw());
        kill_process(pid(&terminal.child), signal).unwrap();
        terminal.ends_with(code);
        assert_eq!(fake.requests().last().unwrap(), "DELETE /v1/sandboxes/sb_1");
    }
}

#[test]
fn passwords_are_not_shown() {
    let fake = Fake::start();
    let mut terminal = Terminal::start(&fake, &["registry", "login", "-u", "me", "localhost:5000"]);
    terminal.sees("Password: ");
    terminal.types(b"hunter2\n");
    // The fake has no registries: the test checks only that it was asked, and what was shown.
    terminal.ends_with(125);
    assert!(fake.requests().contains(&"PUT /v1/registries/localhost:5000".to_owned()));
    assert!(!terminal.screen.lock().unwrap().contains("hunter2"));
}
