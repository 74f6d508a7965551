//! Where the traffic of an instance arrives.

use std::any::Any;
use std::net::{SocketAddr, TcpListener, UdpSocket};

/// How to learn where an accepted connection wanted to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Original {
    /// It is the connection's local address.
    LocalAddress,
    /// The kernel rewrote it and remembers (`SO_ORIGINAL_DST`).
    Redirected,
}

/// The only way out of an instance's network: sockets on which everything arrives that is not for the
/// instance itself. Whoever holds the gate decides what becomes of it; dropping it closes the way.
#[derive(Debug)]
pub struct Gate {
    /// Every TCP connection to the outside. Does not block.
    pub tcp: TcpListener,
    /// Questions to the resolver. Does not block. Absent when the instance cannot have names.
    pub dns: Option<UdpSocket>,
    /// Where programs inside find an explicit HTTP proxy.
    pub proxy: SocketAddr,
    /// Where programs inside find the resolver; over TCP it arrives at `tcp`.
    pub resolver: SocketAddr,
    /// How to learn where a connection wanted to go.
    pub original: Original,
    /// What leads connections here, for as long as it lives.
    pub steering: Box<dyn Any + Send + Sync>,
}
