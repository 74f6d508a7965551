//! The two ways between the host and an instance: the stream to its guest agent, and where its traffic arrives.

use std::any::Any;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::policy::Sender;

use crate::{GuestStream, IsolationError};

/// How to learn where an accepted connection wanted to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Original {
    /// It is the connection's local address.
    LocalAddress,
    /// The kernel rewrote it and remembers (`SO_ORIGINAL_DST`).
    Redirected,
}

/// The only way out of an instance's network: sockets on which all traffic arrives that is not for the instance itself.
/// The process that holds the gate (the server) decides what becomes of that traffic; dropping the gate closes the way.
/// Whoever no longer serves it offers it to its [keeper](Keeper) instead, if it has one.
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
    /// Steers connections to these sockets, until it is dropped.
    pub steering: Box<dyn Any + Send + Sync>,
    /// Tells which program made a connection, where that can be known.
    pub attribution: Option<Box<dyn Attribution>>,
    /// Who may have another use for its sockets when they are no longer served.
    pub keeper: Option<Arc<dyn Keeper>>,
}

/// Takes a gate back when it is no longer served.
pub trait Keeper: Send + Sync + std::fmt::Debug {
    /// Takes the sockets as the driver gave them: neither blocking nor watched by a runtime, and no task that served them
    /// has a part of them left. Must not block: a task of the runtime calls it.
    fn take_back(&self, gate: Gate);
}

/// Tells which program made a connection. Root inside the instance cannot falsify the answer.
pub trait Attribution: Send + Sync + std::fmt::Debug {
    /// Which of the programs that the policy tells apart made a connection that was accepted at the gate; `None` when that is not
    /// known.
    fn sender(&self, connection: BorrowedFd<'_>) -> Option<Sender>;
}

/// The ways into an instance and out of it. See the crate for the contract.
#[async_trait]
pub trait Gates: Send + Sync + std::fmt::Debug {
    /// Opens a stream to the guest agent. Only the newest stream is served by the guest.
    ///
    /// # Errors
    /// [`IsolationError::Gone`], or [`IsolationError::Kernel`] when the socket refuses.
    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn GuestStream>, IsolationError>;

    /// Gives the way out of the instance's network: its traffic reaches nothing before a server has the gate, nor after
    /// the gate was dropped. A later server may ask for it again; only the newest gate counts.
    ///
    /// # Errors
    /// [`IsolationError::Gone`], or [`IsolationError::Kernel`].
    async fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError>;
}
