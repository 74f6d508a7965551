//! Runs the programs of e2fsprogs, and of erofs-utils, on images that sandboxes or strangers wrote.
//!
//! A hostile image decides what such a program prints, how long it takes and how much memory it wants, within limits
//! that this module sets: the output is read as it comes and all but its end is dropped, and the program is killed when
//! its time is up.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use atoll_isolation::IsolationError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::step::{Step, failed};

mod confined;

/// Where the programs of e2fsprogs may be.
const PROGRAM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
/// Most of what one says that is kept, bytes from its end.
const SAID_BYTES: usize = 4096;
/// Pause between two looks whether one that closed its output has ended.
const LOOK: Duration = Duration::from_millis(2);

/// What a program may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long it may take.
    time: Duration,
    /// Processor time, seconds.
    cpu_seconds: u64,
    /// Address space, bytes.
    memory_bytes: u64,
}

impl Limits {
    /// For what nobody waits for but who asked.
    pub(crate) const USUAL: Self =
        Self { time: Duration::from_secs(600), cpu_seconds: 300, memory_bytes: 4 << 30 };
    /// While others wait for the place.
    pub(crate) const SHORT: Self =
        Self { time: Duration::from_secs(60), cpu_seconds: 30, memory_bytes: 1 << 30 };
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: its time was up, and it was ended.
    pub(crate) status: Option<ExitStatus>,
    /// The last it said, on both its streams.
    pub(crate) said: String,
}

impl Ended {
    /// An error that says what failed.
    pub(crate) fn error(&self, what: &str) -> IsolationError {
        let cause = match self.status {
            None => io::Error::from(io::ErrorKind::TimedOut),
            Some(_) if self.has_no_room() => rustix::io::Errno::NOSPC.into(),
            Some(_) => io::Error::other(self.last_line().to_owned()),
        };
        failed(what.to_owned(), cause)
    }

    /// Whether the host's disk was full: the program then prints the C library's message, untranslated since it has no
    /// environment.
    fn has_no_room(&self) -> bool {
        ["No space left on device", "Disk quota exceeded"]
            .iter()
            .any(|words| self.last_line().contains(words))
    }

    /// Its last line with anything in it.
    pub(crate) fn last_line(&self) -> &str {
        self.said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
    }
}

/// A program of e2fsprogs, or of util-linux.
///
/// # Errors
/// [`IsolationError::Unenforceable`] when it is missing.
pub(crate) fn program(name: &str) -> Result<PathBuf, IsolationError> {
    find(name).ok_or_else(|| {
        IsolationError::Unenforceable(format!("{name} is missing: install e2fsprogs and util-linux"))
    })
}

/// Where a program is.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    PROGRAM_DIRS
        .into_iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.try_exists().unwrap_or(false))
}

/// The path under which a program of e2fsprogs finds the file that [`run`] was given: a file of the pool has no path
/// that the program could open.
pub(crate) const IMAGE: &str = "/proc/self/fd/0";

/// A tree of files that a program reads all of, whoever owns them.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    /// A mount that is attached nowhere yet.
    pub(crate) mount: BorrowedFd<'a>,
    /// The empty directory at which the program finds it, and nobody else.
    pub(crate) at: &'a Path,
}

/// Runs a program until it ends, or kills it when its time is up. Blocks. Besides programs, libraries, their configuration
/// and what the kernel tells, it can reach only `reach` of the host's files, a file or the content of a directory, to
/// read and to write; it has that as [`IMAGE`], too.
///
/// # Errors
/// [`IsolationError::Kernel`] when it cannot be run; not when it fails.
pub(crate) fn run(command: &Command, reach: &File, what: &str) -> Result<Ended, IsolationError> {
    run_within(Limits::USUAL, command, reach, what)
}

/// The same for one that may take no more than this.
///
/// # Errors
/// As those of [`run`].
pub(crate) fn run_within(
    limits: Limits,
    command: &Command,
    reach: &File,
    what: &str,
) -> Result<Ended, IsolationError> {
    run_confined(command, reach, None, limits).step(what)
}

/// The same for a program that reads a tree besides.
///
/// # Errors
/// As those of [`run`].
pub(crate) fn run_on(
    command: &Command,
    tree: &Tree<'_>,
    reach: &File,
    what: &str,
) -> Result<Ended, IsolationError> {
    run_confined(command, reach, Some(tree), Limits::USUAL).step(what)
}

fn run_confined(
    command: &Command,
    reach: &File,
    tree: Option<&Tree<'_>>,
    limits: Limits,
) -> io::Result<Ended> {
    let deadline = Instant::now() + limits.time;
    let (reader, writer) = io::pipe()?;
    let mut command = limited(command, limits).map_err(io::Error::other)?;
    command.stdin(reach.try_clone()?).stdout(writer.try_clone()?).stderr(writer);
    let mut child = confined::spawn(&mut command, reach, tree)?;
    // Closes our copies of the writing end: while they are open, the reader would never see the end of the output.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let followed = follow(&mut child, reader, deadline);
    if !matches!(followed, Ok(Ended { status: Some(_), .. })) {
        // It may have ended by itself just now.
        drop(child.kill());
        child.wait()?;
    }
    followed
}

/// The same with no environment but its own, and with limits that hold from its first instruction on: `prlimit` sets its
/// own, then becomes the program.
fn limited(command: &Command, limits: Limits) -> Result<Command, IsolationError> {
    let Limits { cpu_seconds, memory_bytes, .. } = limits;
    let mut limited = Command::new(program("prlimit")?);
    limited.arg("--core=0:0").arg(format!("--cpu={cpu_seconds}:{cpu_seconds}"));
    limited.arg(format!("--as={memory_bytes}:{memory_bytes}")).arg("--");
    limited.arg(command.get_program()).args(command.get_args());
    limited.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(limited)
}

/// Reads what it says until it has ended, or the deadline.
fn follow(child: &mut Child, mut reader: io::PipeReader, deadline: Instant) -> io::Result<Ended> {
    let mut kept = Vec::new();
    let mut piece = [0; SAID_BYTES];
    let mut is_open = true;
    loop {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return Ok(Ended { status: None, said: text(&kept) });
        };
        if !is_open {
            if let Some(status) = child.try_wait()? {
                return Ok(Ended { status: Some(status), said: text(&kept) });
            }
            std::thread::sleep(LOOK.min(left));
            continue;
        }
        let wait = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Err(rustix::io::Errno::INTR) | Ok(0) => continue,
            other => drop(other?),
        }
        let len = reader.read(&mut piece)?;
        is_open = len > 0;
        kept.extend_from_slice(&piece[..len]);
        let surplus = kept.len().saturating_sub(SAID_BYTES);
        kept.drain(..surplus);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> File {
        File::open("/dev/null").unwrap()
    }

    fn shell(line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn of_all_that_is_said_the_end_is_kept() {
        let ended =
            run(&shell("yes no | head -c 50000000; echo; echo last; exit 3"), &nothing(), "try").unwrap();
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert!(ended.said.len() <= SAID_BYTES && ended.last_line() == "last", "{}", ended.said.len());
    }

    #[test]
    fn one_that_does_not_end_is_ended() {
        let limits = Limits { time: Duration::from_millis(200), ..Limits::SHORT };
        for line in ["exec sleep 1000", "exec sleep 1000 > /dev/null 2>&1", "while :; do echo x; done"] {
            let ended = run_within(limits, &shell(line), &nothing(), "wait").unwrap();
            assert!(ended.status.is_none());
            assert!(ended.error("wait").to_string().contains("wait"));
        }
    }

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = |line: &str| run(&shell(line), &full, "try").unwrap().error("make a file system");
        let full = error("exec cat /proc/version >/dev/full");
        assert!(matches!(full, IsolationError::HostFull { .. }), "{full:?}");
        assert!(matches!(error("echo no idea; exit 1"), IsolationError::Kernel { .. }));
    }

    #[test]
    fn memory_and_processor_time_have_an_end() {
        for limits in [Limits::USUAL, Limits::SHORT] {
            let asked = shell("ulimit -v; ulimit -t; ulimit -c");
            let ended = run_within(limits, &asked, &nothing(), "ask").unwrap();
            assert_eq!(ended.said, format!("{}\n{}\n0\n", limits.memory_bytes >> 10, limits.cpu_seconds));
        }
    }
}
