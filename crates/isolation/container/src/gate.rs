//! The way out of an instance's network: ready from the slot that it was made with, or opened anew in the
//! namespace of an instance that an earlier server made.

use std::os::fd::{AsFd, OwnedFd};

use atoll_core::id::SandboxId;
use atoll_isolation::{Gate, IsolationError};
use atoll_isolation_host::gate;
use rustix::fs::{Mode, OFlags};

use crate::Inner;
use crate::step::Step;

impl Inner {
    /// The gate that the instance was made with, if it is still here.
    pub(crate) fn ready_gate(&self, id: &SandboxId) -> Result<Option<Gate>, IsolationError> {
        Ok(self.living(id)?.take_gate().map(gate::convert))
    }

    /// Opens a new gate. Blocks for half a millisecond.
    pub(crate) fn new_gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        let netns = self.netns(id)?;
        gate::open(netns.as_fd())
    }

    /// The network namespace of a live instance.
    fn netns(&self, id: &SandboxId) -> Result<OwnedFd, IsolationError> {
        let process = self.records.of(id).read_process().ok_or(IsolationError::Gone)?;
        let path = format!("/proc/{}/ns/net", process.pid);
        let netns = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .step("open the network namespace of a sandbox")?;
        // A process that lives now has had its number all the time: what was opened is its own.
        self.living(id)?;
        Ok(netns)
    }
}
