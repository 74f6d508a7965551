//! The gate of an instance's network: the one of the slot that it was made with, or one opened anew in the namespace of
//! an instance that an earlier server made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::policy::Sender;
use atoll_isolation::{Attribution, Gate, IsolationError};
use atoll_isolation_host::gate;
use atoll_witness::Witness;
use rustix::fs::{Mode, OFlags};

use crate::Inner;
use crate::step::Step;
use crate::sys;

/// Reads the mark that the kernel's programs put on a connection when it was made.
#[derive(Debug)]
struct ByWitness {
    witness: Arc<Witness>,
    sandbox: SandboxId,
}

impl Attribution for ByWitness {
    fn sender(&self, connection: BorrowedFd<'_>) -> Option<Sender> {
        let mark = sys::mark(connection).ok()?;
        self.witness.origins(&self.sandbox, mark).map(Sender::new)
    }
}

impl Inner {
    /// The gate that the instance was made with, if it is still here.
    pub(crate) fn ready_gate(&self, id: &SandboxId) -> Result<Option<Gate>, IsolationError> {
        let gate = self.living(id)?.take_gate().map(gate::convert);
        Ok(gate.map(|gate| self.attributed(id, gate)))
    }

    /// The same gate, which also tells which programs make connections, where the host's kernel knows.
    fn attributed(&self, id: &SandboxId, gate: Gate) -> Gate {
        let by_witness = |witness: &Arc<Witness>| -> Box<dyn Attribution> {
            Box::new(ByWitness { witness: Arc::clone(witness), sandbox: id.clone() })
        };
        Gate { attribution: self.witness.as_ref().ok().map(by_witness), ..gate }
    }

    /// Opens a new gate. Blocks for half a millisecond.
    pub(crate) fn new_gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        let netns = self.netns(id)?;
        Ok(self.attributed(id, gate::open(netns.as_fd())?))
    }

    /// The network namespace of a live instance.
    fn netns(&self, id: &SandboxId) -> Result<OwnedFd, IsolationError> {
        let instance = self.live.get(id).ok_or(IsolationError::Gone)?;
        let path = format!("/proc/{}/ns/net", instance.pid());
        let netns = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .step("open the network namespace of a sandbox")?;
        // A process that lives now has had its number all the time: what was opened is its own.
        if instance.is_dead() {
            return Err(IsolationError::Gone);
        }
        Ok(netns)
    }
}
