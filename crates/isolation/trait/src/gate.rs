//! The two ways between the host and an instance: the stream to its guest agent, and where its traffic arrives.

use std::any::Any;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::BorrowedFd;

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
    /// Says who made a connection, where that can be known.
    pub attribution: Option<Box<dyn Attribution>>,
}

/// Says who made a connection. What root inside does changes nothing about it.
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

    /// Gives the way out of the instance's network: nothing of it reaches anything before somebody has
    /// this, nor after it was dropped. May be asked for again, by a later server; only the newest counts.
    ///
    /// # Errors
    /// [`IsolationError::Gone`], or [`IsolationError::Kernel`].
    async fn gate(&self, id: &SandboxId) -> Result<Gate, IsolationError>;
}
