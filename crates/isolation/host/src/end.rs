//! Ends the processes of a sandbox: kills them all, and waits until they have ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_isolation::IsolationError;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::Cgroups;
use crate::process;
use crate::step::Step;

/// How long a killed process may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Kills a process and waits for its end. Dead already is fine.
///
/// # Errors
/// [`IsolationError::Kernel`], also when it takes too long.
pub async fn end(pidfd: &OwnedFd) -> Result<(), IsolationError> {
    let _dead_already = pidfd_send_signal(pidfd.as_fd(), Signal::KILL);
    see_end(pidfd).await
}

async fn see_end(pidfd: &OwnedFd) -> Result<(), IsolationError> {
    let ended = tokio::time::timeout(END_TIMEOUT, process::ended(pidfd)).await;
    ended.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into())).step("see a killed process end")
}

impl Cgroups {
    /// Kills everything in a sandbox's cgroups, and waits until nothing is left. Children of this process are reaped.
    ///
    /// # Errors
    /// Those of [`Cgroups::kill`], and [`IsolationError::Kernel`] when a process takes too long to end.
    pub async fn end(&self, id: &SandboxId) -> Result<(), IsolationError> {
        loop {
            // Opened before they are killed: once its process has ended, a number may belong to another process.
            let pids = self.pids(id)?;
            let pidfds: Vec<_> = pids
                .iter()
                .filter_map(|pid| {
                    pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok().map(|fd| (*pid, fd))
                })
                .filter(|(pid, _)| self.contains(id, *pid))
                .collect();
            if self.kill(id)?.is_empty() {
                return Ok(());
            }
            for (_, pidfd) in pidfds {
                see_end(&pidfd).await?;
                let _no_child =
                    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            }
        }
    }
}
