//! The program on a real terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use atoll_blackbox::Server;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A program on a terminal of its own.
pub(crate) struct Terminal {
    master: File,
    child: Child,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// Starts the command line program.
    pub(crate) fn start(server: &Server, args: &[&str], cols: u16, rows: u16) -> Self {
        let mut program = server.cli_command();
        program.args(args);
        Self::run(&program, cols, rows)
    }

    /// Starts another program, with a bare environment.
    pub(crate) fn of(program: &str, args: &[&str], cols: u16, rows: u16) -> Self {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "xterm")
            .env("HOME", "/nonexistent");
        Self::run(&command, cols, rows)
    }

    fn run(program: &Command, cols: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        size(&master, cols, rows);
        let slave: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
        // The session's leader has the terminal as its own.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(program.get_program()).args(program.get_args());
        command.env_clear();
        command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = command.spawn().unwrap();
        drop(command);
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(got @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..got].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { master, child, output, seen: String::new() }
    }

    /// Types.
    pub(crate) fn write(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until this is shown, after what was expected before.
    pub(crate) fn expect(&mut self, text: &str) {
        let start = Instant::now();
        while !self.seen.contains(text) {
            let left = Duration::from_secs(30).saturating_sub(start.elapsed());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("'{text}' is not shown: {error}: {:?}", self.seen),
            }
        }
        let at = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..at);
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&self, cols: u16, rows: u16) {
        size(&self.master, cols, rows);
    }

    /// Waits for the end; gives the exit code.
    pub(crate) fn wait(mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn size(terminal: impl std::os::fd::AsFd, cols: u16, rows: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}
