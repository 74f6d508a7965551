//! Removes an instance, from any half-made state, any number of times: kills what is in its cgroups,
//! waits for the kernel to let go, removes the cgroups and, last, the directory with the claims and the
//! disk. Taking the disk apart is left to [`crate::trash`].

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_failpoint::fail_point;
use atoll_isolation::{IsolationError, Resource};
use atoll_isolation_host::resources;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::Inner;
use crate::disk::Disk;
use crate::gate::Home;
use crate::step::{Step, failed};

/// How long killed processes may take to end.
const END_DEADLINE: Duration = Duration::from_secs(20);

/// What is left in this process of an instance whose processes have ended.
pub(crate) struct Ended {
    /// What keeps its disk mounted, if this process has it.
    pub(crate) disk: Option<Disk>,
    /// Where the gate of its network is, if this process knew it.
    home: Option<Arc<Home>>,
}

impl Inner {
    /// Kills and removes. Blocks for about a millisecond.
    pub(crate) fn destroy(&self, id: &SandboxId) -> Result<(), IsolationError> {
        fail_point!("container::destroy::start");
        self.thaw_unused(id)?;
        let Ended { disk, home } = self.end_processes(id)?;
        fail_point!("container::destroy::processes");
        self.cgroups.remove(id)?;
        if let Some(home) = home {
            home.ended();
        }
        self.forget(id)?;
        fail_point!("container::destroy::cgroups");
        let record = self.records.of(id);
        let first_id = record.first_id();
        self.trash.take(&self.storage.sandbox_disk(id), record.dir(), disk)?;
        if let Some(first_id) = first_id {
            self.ranges.give_back(first_id);
        }
        fail_point!("container::destroy::directory");
        Ok(())
    }

    /// Waits for a snapshot that this process takes; one of a killed process left the sandbox stopped.
    pub(crate) fn thaw_unused(&self, id: &SandboxId) -> Result<(), IsolationError> {
        if let Some(instance) = self.live.get(id) {
            drop(instance.freezing());
        }
        self.thaw_left_over(id)
    }

    /// Kills and waits until no process is left.
    pub(crate) fn end_processes(&self, id: &SandboxId) -> Result<Ended, IsolationError> {
        let deadline = Instant::now() + END_DEADLINE;
        let mut ended = Ended { disk: None, home: None };
        if let Some(instance) = self.live.remove(id) {
            ended = Ended { disk: instance.take_disk(), home: Some(Arc::clone(instance.home())) };
            // Killing the first process of a pid namespace ends all of it; dead already is fine.
            let _ = pidfd_send_signal(instance.pidfd(), Signal::KILL);
            wait_for_end(instance.pidfd(), deadline)?;
            let _ = instance.reap();
        }
        loop {
            let pids = self.cgroups.kill(id)?;
            if pids.is_empty() {
                return Ok(ended);
            }
            for pid in pids.into_iter().filter_map(Pid::from_raw) {
                let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
                if self.cgroups.contains(id, pid.as_raw_nonzero().get()) {
                    wait_for_end(pidfd.as_fd(), deadline)?;
                }
            }
        }
    }

    /// Everything that carries a sandbox's id.
    pub(crate) fn scan(&self) -> Result<Vec<Resource>, IsolationError> {
        resources::with_processes(&self.cgroups, self.parts()?)
    }

    /// The same, but for processes, which are in cgroups that are found.
    pub(crate) fn parts(&self) -> Result<Vec<Resource>, IsolationError> {
        let mut found = resources::parts(&self.cgroups, self.records.dir())?;
        found.extend(self.storage.container_disks()?);
        if let Ok(witness) = &self.witness {
            found.extend(witness.sandboxes().into_iter().map(|(sandbox, name)| Resource {
                sandbox,
                kind: "witness",
                name,
            }));
        }
        Ok(found)
    }
}

fn wait_for_end(pidfd: std::os::fd::BorrowedFd<'_>, deadline: Instant) -> Result<(), IsolationError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(std::io::Error::other).step("wait for a process")?;
        let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(failed("see a killed process end".to_owned(), late));
            }
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("wait for a process".to_owned(), error.into())),
        }
    }
}
