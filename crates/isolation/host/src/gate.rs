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
        keeper: None,
    }
}

/// The gate of the slot that [`convert`] made this of; `None` when it did not.
#[must_use]
pub fn revert(gate: Gate) -> Option<atoll_network::Gate> {
    let steering = gate.steering.downcast::<Steering>().ok()?;
    Some(atoll_network::Gate { tcp: gate.tcp, dns: gate.dns, steering: *steering })
}
