//! Connections to ports inside, and ports inside that are served from outside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::limits::PORT_CONNECTIONS_MAX_COUNT;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::{GuestPortListener, GuestPortStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::boxed;
use crate::engine::Engine;
use crate::errors::guest_error;
use crate::sandbox::GuestLease;

/// How long after a sandbox was woken its services may take to come up.
const WAKE_WAIT: Duration = Duration::from_secs(30);
/// Pause between attempts: doubles from the first to the second.
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LAST: Duration = Duration::from_millis(250);
/// Ports that a message lists.
const PORTS_TOLD_MAX_COUNT: usize = 10;

/// A connection to a port. It does not keep the sandbox awake by itself: a caller that wants that holds the
/// [`GuestLease`] too.
#[derive(Debug)]
pub struct PortConnection {
    stream: GuestPortStream,
    _counted: OwnedSemaphorePermit,
}

/// A port inside whose connections come out here. It stops listening when this is dropped. It keeps the
/// sandbox awake.
#[derive(Debug)]
pub struct PortListener {
    listener: GuestPortListener,
    lease: GuestLease,
}

impl GuestLease {
    /// Connects to a port on the sandbox's loopback. After a sandbox was woken its services have some time to come
    /// up before a port counts as closed; a service that says on which port it is ready is waited for. Nothing else
    /// begins by itself, so where no service may still come up, a closed port is closed.
    ///
    /// # Errors
    /// [`Code::PortClosed`], which lists the ports on which something does listen;
    /// [`Code::LimitExceeded`]; [`Code::GuestUnavailable`].
    #[boxed]
    pub async fn connect_port(&self, port: u16) -> Result<PortConnection> {
        let deadline = self.shared().woken().map(|woken| woken + WAKE_WAIT);
        if let Some(deadline) = deadline.filter(|deadline| *deadline > Instant::now()) {
            self.shared().services.ready_on(port, deadline).await;
        }
        let mut pause = RETRY_FIRST;
        loop {
            match self.try_port(port).await {
                Err(error)
                    if error.code == Code::PortClosed
                        && deadline.is_some_and(|deadline| Instant::now() + pause < deadline)
                        && self.shared().services.may_come_up(&self.shared().record().boot_id) =>
                {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_LAST);
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_port(&self, port: u16) -> Result<PortConnection> {
        let counted = self.count_port()?;
        match self.dial(port).await.map_err(guest_error) {
            Ok(stream) => Ok(PortConnection { stream, _counted: counted }),
            Err(error) if error.code == Code::PortClosed => Err(self.closed_port(port).await),
            Err(error) => Err(error),
        }
    }

    /// Listens on a port of the sandbox's loopback; 0 for any.
    ///
    /// # Errors
    /// [`Code::PortTaken`] when something listens there already; [`Code::GuestUnavailable`].
    #[boxed]
    pub async fn listen_port(self, port: u16) -> Result<PortListener> {
        let listener = self.listen(port).await.map_err(guest_error)?;
        Ok(PortListener { listener, lease: self })
    }

    fn count_port(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.shared().ports).try_acquire_owned().map_err(|_full| {
            Error::new(
                Code::LimitExceeded,
                format!("{PORT_CONNECTIONS_MAX_COUNT} connections to ports of this sandbox are open already"),
            )
            .hint("close some, or use connections again")
        })
    }

    async fn closed_port(&self, port: u16) -> Error {
        let error = Error::new(Code::PortClosed, format!("nothing listens on port {port} in the sandbox"));
        match self.ports().await {
            Ok(ports) if ports.is_empty() => error.hint("nothing listens on any port; start a server first"),
            Ok(ports) => {
                let list: Vec<String> =
                    ports.iter().take(PORTS_TOLD_MAX_COUNT).map(ToString::to_string).collect();
                let more = if ports.len() > PORTS_TOLD_MAX_COUNT { " and more" } else { "" };
                error.hint(format!("something listens on {}{more}", list.join(", ")))
            }
            Err(_) => error,
        }
    }
}

impl PortListener {
    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The next connection that a process inside made. `None` when the sandbox or the link to it is gone.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`] when too many connections are open (this one is closed), or
    /// [`Code::GuestUnavailable`] when it went away again; others may follow.
    #[boxed]
    pub async fn accept(&mut self) -> Option<Result<PortConnection>> {
        let connection = tokio::select! {
            next = self.listener.next() => next.ok().flatten()?,
            () = self.lease.dead() => return None,
        };
        let counted = match self.lease.count_port() {
            Ok(counted) => counted,
            Err(error) => return Some(Err(error)),
        };
        let taken = self.lease.accept(connection).await.map_err(guest_error);
        Some(taken.map(|stream| PortConnection { stream, _counted: counted }))
    }
}

impl Engine {
    /// A connection to a port, and the lease to hold while it is used. A sandbox that sleeps is woken.
    ///
    /// # Errors
    /// As [`Self::guest`] and [`GuestLease::connect_port`].
    #[boxed]
    pub async fn connect_port(&self, sandbox: &SandboxId, port: u16) -> Result<(GuestLease, PortConnection)> {
        let lease = self.guest(sandbox).await?;
        let connection = lease.connect_port(port).await?;
        Ok((lease, connection))
    }

    /// An SFTP session as a user (the sandbox's own when absent), and the lease to hold while it lasts. Relative
    /// paths begin where commands do.
    ///
    /// # Errors
    /// As [`Self::guest`]; [`Code::UserNotFound`].
    #[boxed]
    pub async fn sftp(
        &self,
        sandbox: &SandboxId,
        user: Option<&str>,
    ) -> Result<(GuestLease, PortConnection)> {
        let lease = self.guest(sandbox).await?;
        let counted = lease.count_port()?;
        let spec = lease.shared().record().spec;
        let user = user.unwrap_or(&spec.user);
        let stream =
            lease.sftp(user, spec.workdir.as_deref().unwrap_or_default()).await.map_err(guest_error)?;
        Ok((lease, PortConnection { stream, _counted: counted }))
    }
}

impl AsyncRead for PortConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for PortConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
