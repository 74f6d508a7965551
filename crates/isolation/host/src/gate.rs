//! The gate of a network slot, as the engine wants it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use atoll_isolation::{Gate, IsolationError, Original};
use atoll_network::{PROXY_ADDRESS, PROXY_PORT, RESOLVER_ADDRESS, Steering};

const DNS_PORT: u16 = 53;

/// Opens a gate in a slot whose first gate was closed when the server that held it ended. Blocks for half a
/// millisecond.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn open(netns: BorrowedFd<'_>) -> Result<Gate, IsolationError> {
    let opened = atoll_network::open_gate(netns);
    let gate = opened.map_err(|error| IsolationError::Kernel {
        step: format!("open the way out of a sandbox: {error}"),
        source: error.source,
    })?;
    Ok(convert(gate))
}

/// Adds how connections arrive, and where programs find proxy and resolver.
#[must_use]
pub fn convert(gate: atoll_network::Gate) -> Gate {
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
        attribution: None,
    }
}
