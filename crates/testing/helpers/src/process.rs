//! Child processes that do not outlive their test.

use std::io::Read as _;
use std::process::{Command, Stdio};

/// A process that is killed, by its pid, and reaped when this is dropped.
#[derive(Debug)]
pub struct Child(std::process::Child);

impl Child {
    /// Starts a program without input and output.
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")))
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs a program to its end and gives its standard output; panics with its standard error when it fails.
pub fn run(command: &mut Command) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let mut stderr = child.stderr.take().expect("it is a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        drop(stderr.read_to_string(&mut text));
        text
    });
    let output = child.wait_with_output().expect("wait for a child");
    let stderr = reader.join().expect("read a pipe");
    assert!(output.status.success(), "{command:?} failed: {}: {stderr}", output.status);
    output.stdout
}
