//! The way out of an instance's network: ready from the slot that it was made with, or opened anew in the
//! namespace of an instance that an earlier server made.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use atoll_core::id::SandboxId;
use atoll_isolation::{Gate, IsolationError, Original};
use atoll_network::{PROXY_ADDRESS, PROXY_PORT, RESOLVER_ADDRESS, Steering};
use rustix::fs::{Mode, OFlags};

use crate::Inner;
use crate::step::Step;

const DNS_PORT: u16 = 53;

impl Inner {
    /// The gate that the instance was made with, if it is still here.
    pub(crate) fn ready_gate(&self, id: &SandboxId) -> Result<Option<Gate>, IsolationError> {
        Ok(self.living(id)?.take_gate().map(convert))
    }

    /// Opens a new gate. Blocks for half a millisecond.
    pub(crate) fn new_gate(&self, id: &SandboxId) -> Result<Gate, IsolationError> {
        let netns = self.netns(id)?;
        let opened = atoll_network::open_gate(netns.as_fd());
        let gate = opened.map_err(|error| IsolationError::Kernel {
            step: format!("open the way out of a sandbox: {error}"),
            source: error.source,
        })?;
        Ok(convert(gate))
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

fn convert(gate: atoll_network::Gate) -> Gate {
    let original = match &gate.steering {
        Steering::Bpf(_) => Original::LocalAddress,
        Steering::Redirect => Original::Redirected,
    };
    Gate {
        tcp: gate.tcp,
        dns: gate.dns,
        proxy: SocketAddr::from((PROXY_ADDRESS, PROXY_PORT)),
        resolver: SocketAddr::from((RESOLVER_ADDRESS, DNS_PORT)),
        original,
        steering: Box::new(gate.steering),
    }
}
