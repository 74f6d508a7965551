//! Processes that a server wrote down, for a later server to find them again.
#![expect(unsafe_code, reason = "registers a descriptor with the runtime")]

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use atoll_isolation::IsolationError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::step::Step;

/// What a file about a process usually has at most, and what is read of one at most, bytes.
const FILE_USUAL_BYTES: usize = 4096;
const FILE_MAX_BYTES: u64 = 1 << 20;

/// The first process of a sandbox, or its virtual machine. The start time tells it from another that later got
/// the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id on the host.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start_time: u64,
}

impl Process {
    /// Describes a live process.
    ///
    /// # Errors
    /// When there is none.
    pub fn read(pid: i32) -> io::Result<Self> {
        let stat = read_file(&format!("/proc/{pid}/stat"))?;
        // The command in parentheses may hold anything; the start time is the 20th field after it.
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let start_time = fields.split(' ').nth(19).and_then(|field| field.parse().ok());
        let start_time = start_time.ok_or_else(|| io::Error::other("the process has no start time"))?;
        Ok(Self { pid, start_time })
    }

    /// Opens it; `None` when it has ended.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn open(self) -> Result<Option<OwnedFd>, IsolationError> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            other => other.step("open the process of a sandbox")?,
        };
        // The descriptor fixes the process; only now can the start time be compared without a race.
        let same = Self::read(self.pid).is_ok_and(|now| now == self);
        Ok((same && !is_dead(&pidfd)).then_some(pidfd))
    }
}

/// Reads a file of `/proc`: at once, where the usual way asks for its size, which is 0, and begins with a few bytes. Names in it,
/// of programs and of cgroups, may hold bytes that are no text: these are replaced.
pub(crate) fn read_file(path: &str) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(FILE_USUAL_BYTES);
    File::open(path)?.take(FILE_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a process has ended.
#[must_use]
pub fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

/// Waits for the end of a process.
///
/// # Errors
/// When the runtime cannot watch it.
pub async fn ended(pidfd: &OwnedFd) -> io::Result<()> {
    let pidfd = pidfd.try_clone()?;
    // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
    let watched = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
    watched.readable().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_by_its_start() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = Process::read(pid).unwrap();
        assert_eq!(own, Process::read(pid).unwrap());
        assert!(own.start_time > Process::read(1).unwrap().start_time);
        assert!(own.open().unwrap().is_some());
        assert!(Process { start_time: own.start_time + 1, ..own }.open().unwrap().is_none());
    }
}
