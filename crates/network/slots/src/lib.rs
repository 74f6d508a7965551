//! Network slots: the network namespaces that sandboxes live in, made ahead of need.
//!
//! A slot is an anonymous network namespace, held only by a file descriptor: an unclaimed one
//! vanishes with the server, a claimed one with the last process of its sandbox, and neither leaves
//! anything on the host. There is one interface inside, `lo`, and no link to anywhere.
//!
//! # How traffic leaves without a link
//!
//! ```text
//! inside                                                    outside
//! connect(93.184.216.34:443)
//!   └ route: local 0.0.0.0/0 dev lo ─ sk_lookup ─▶ gateway's TCP socket ── accepted by the server ──▶ dial
//! sendto(10.0.2.3:53)              ─────────────▶ resolver's UDP socket
//! connect(127.0.0.1:8000), 10.0.2.15 ───────────▶ the server that listens inside
//! anything else (UDP, IPv6)        ── refused at once by the kernel
//! ping                             ── gets no answer
//! ```
//!
//! The [`Gate`] (both sockets and the program or rules that steer to them) is opened *inside* the namespace by the
//! server and held by the server alone. When the server is gone so is the gate, and with it every way out: connections
//! are refused, none leaves. A new server opens a new gate ([`open_gate`]).
//!
//! Steering is a small BPF program for each slot (see `steer`), or, where the kernel refuses
//! BPF, `nft` rules in the slot's own namespace (see `redirect`). Every port may be bound inside
//! without privilege, because no capability of a sandbox reaches its network namespace (that belongs
//! to the host's user namespace).
//!
//! A virtual machine sits beside its slot, at the other end of a cable ([`open_tap`]): its packets come in at an
//! interface, and everything else is the same.
//!
//! Making a slot costs about half a millisecond, claiming one a few microseconds, and taking one apart costs the kernel
//! more than both. A slot in which nothing was done is used again: see [`SlotPool::give_back`].

mod fresh;
mod gate;
mod netlink;
mod openers;
mod redirect;
mod settings;
mod slot;
mod steer;
mod tap;
#[cfg(test)]
mod testing;
mod used;

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use atoll_ready::{Keep, Pool};

pub use gate::{Gate, Steering, open_gate};
pub use tap::open_tap;

/// The sandbox's own address, the same in every sandbox.
pub const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Where programs that want an explicit HTTP proxy find it, at [`PROXY_PORT`].
pub const PROXY_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Port of the explicit HTTP proxy.
pub const PROXY_PORT: u16 = 3128;
/// The resolver's address, as in `/etc/resolv.conf` inside.
pub const RESOLVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Why a slot could not be made; `step` says where.
#[derive(Debug, thiserror::Error)]
#[error("failed to {step}")]
pub struct NetworkError {
    /// The step that failed.
    pub step: &'static str,
    /// The kernel's word.
    #[source]
    pub source: std::io::Error,
}

/// Names the step that failed.
trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, NetworkError>;
}

impl<T, E: Into<std::io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, NetworkError> {
        self.map_err(|error| NetworkError { step, source: error.into() })
    }
}

/// A network namespace that no other sandbox uses, with its gate.
#[derive(Debug)]
pub struct Slot {
    /// The namespace, for `setns`.
    pub netns: OwnedFd,
    /// The way out.
    pub gate: Gate,
}

/// Used slots that are kept beyond the minimum: a burst of sandboxes finds those of the one before.
const KEEP: Keep = Keep { max_count: 128, unclaimed_for: Duration::from_secs(60) };

/// Keeps slots ready.
#[derive(Debug)]
pub struct SlotPool {
    used: used::Used,
    pool: Arc<Pool<Slot, NetworkError>>,
}

impl SlotPool {
    /// Starts keeping `min` slots ready in the background, and up to 128 more of those that are given back, each until
    /// nobody has needed it for a minute.
    ///
    /// # Errors
    /// When the host cannot start a thread.
    pub fn start(min: usize) -> Result<Self, NetworkError> {
        let pool = Pool::start_keeping("atoll-slots", min, KEEP, slot::make)
            .map(Arc::new)
            .step("start the thread that makes network slots")?;
        let used =
            used::Used::start(Arc::clone(&pool)).step("start the thread that looks at network slots")?;
        Ok(Self { used, pool })
    }

    /// Takes a ready slot, or makes one (blocking, half a millisecond) when none is.
    ///
    /// # Errors
    /// [`NetworkError`], most likely for want of privilege or of memory.
    pub fn claim(&self) -> Result<Slot, NetworkError> {
        self.pool.claim()
    }

    /// Takes the gate of a slot whose sandbox has ended, with the sockets as they are. A quarter of a second later a
    /// thread of the pool looks whether anything was done in its namespace, be it one datagram; if not, the slot is ready
    /// again, else it is taken apart. Does not wait.
    ///
    /// The caller has seen that no process of the sandbox lives, and that nothing that was open in one can be open
    /// elsewhere. A socket would be noticed here; a file of `/proc/net`, handed on over a Unix socket on a shared volume,
    /// would not, and would show what the next sandbox does.
    pub fn give_back(&self, gate: Gate) {
        self.used.take(gate);
    }

    /// How many slots are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.pool.ready()
    }
}
