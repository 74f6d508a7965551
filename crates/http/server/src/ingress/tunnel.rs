//! Tunnels: TCP connections to and from a sandbox over one connection of the client.
//!
//! A connection through the tunnel holds a lease on the sandbox for as long as it lives, so the first one
//! wakes a sandbox that sleeps; a tunnel without connections lets it sleep. A port that the client shows inside keeps
//! the sandbox awake: programs in the sandbox must be able to reach it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use atoll_core::Code;
use atoll_core::id::SandboxId;
use atoll_core::sharing::Needs;
use atoll_engine::{Grant, PortConnection, PortListener};
use atoll_tunnel::{Mux, Opener, Side, Status, Stream};
use axum::extract::ws::{Message, WebSocket};
use bytes::{Buf as _, Bytes};
use futures::{Sink as _, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

use crate::shared::App;

/// How long a stream may take to say which port it wants, and the client to take one from inside.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest message that is sent, bytes.
const MESSAGE_MAX_BYTES: usize = 64 << 10;
/// Bytes of a connection that are under way in each direction.
const RELAY_BYTES: usize = 32 << 10;
/// Attempts at listening again when the link to the guest broke, and the pause between.
const LISTEN_TRIES_MAX_COUNT: u32 = 20;
const LISTEN_PAUSE: Duration = Duration::from_millis(250);

/// The two ends of a tunnel.
pub(crate) struct Ends {
    pub(crate) sandbox: SandboxId,
    /// The right by which it was opened: it is asked again for each connection, and the tunnel ends with it.
    pub(crate) grant: Grant,
    /// Ports that the client shows inside.
    pub(crate) listeners: Vec<PortListener>,
}

/// Serves a tunnel until its byte stream, the sandbox or the server ends.
pub(crate) async fn serve<S>(app: &App, stream: S, ends: Ends)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Ends { sandbox, grant, listeners } = ends;
    let (opener, mut accepted, driver) = Mux::new(stream, Side::Server).split();
    let mut driver = std::pin::pin!(driver);
    // Dropped with the tunnel, and all connections with it.
    let mut connections = JoinSet::new();
    let mut serving = JoinSet::new();
    for listener in listeners {
        serving.spawn(serve_listener(app.clone(), sandbox.clone(), listener, opener.clone()));
    }
    let listens = !serving.is_empty();
    let mut revoked = std::pin::pin!(app.engine.until_revoked(&grant));
    loop {
        tokio::select! {
            () = &mut driver => return,
            () = app.draining.cancelled() => return,
            () = &mut revoked => return,
            stream = accepted.next() => match stream {
                Some(stream) => {
                    connections.spawn(connect(app.clone(), sandbox.clone(), grant.clone(), stream));
                }
                None => return,
            },
            Some(_) = connections.join_next() => {}
            // A port that the client shows inside is gone: the client has to open the tunnel anew.
            Some(_) = serving.join_next(), if listens => return,
        }
    }
}

/// A connection that the client makes to a port inside.
async fn connect(app: App, sandbox: SandboxId, grant: Grant, mut stream: Stream) {
    let asked = tokio::time::timeout(ASK_TIMEOUT, atoll_tunnel::asked(&mut stream)).await;
    let Ok(Ok(Some(port))) = asked else { return };
    let connected = match app.engine.recheck(&grant, Needs::EXEC) {
        Ok(()) => app.engine.connect_port(&sandbox, port).await,
        Err(error) => Err(error),
    };
    let done = match connected {
        Ok((lease, connection)) => {
            let answered = atoll_tunnel::answer(&mut stream, Status::Connected).await;
            let dead = lease.dead();
            tokio::select! {
                done = async { answered?; relay(stream, connection).await } => done,
                () = dead => Ok(()),
            }
        }
        Err(error) => {
            tracing::debug!(%error, port, "a connection through a tunnel was refused");
            let status = match error.code {
                _ if port == 0 => Status::NotAllowed,
                Code::Forbidden | Code::SandboxLeased | Code::Unauthorized => Status::NotAllowed,
                _ => Status::Refused,
            };
            atoll_tunnel::answer(&mut stream, status).await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, port, "a connection through a tunnel broke");
    }
}

/// Serves connections that programs in the sandbox make to a port of the client. Ends when it cannot listen any more.
async fn serve_listener(app: App, sandbox: SandboxId, listener: PortListener, opener: Opener) {
    let port = listener.port();
    let mut connections = JoinSet::new();
    let mut listener = Some(listener);
    let mut tries = 0;
    while tries < LISTEN_TRIES_MAX_COUNT {
        let Some(mut listening) = listener.take() else {
            tries += 1;
            tokio::time::sleep(LISTEN_PAUSE).await;
            let Ok(lease) = app.engine.guest(&sandbox).await else { continue };
            listener = lease.listen_port(port).await.ok();
            continue;
        };
        tries = 0;
        while let Some(accepted) = listening.accept().await {
            match accepted {
                Ok(connection) => {
                    connections.spawn(offer(opener.clone(), port, connection));
                }
                Err(error) => tracing::debug!(%error, port, "a connection from inside was not taken"),
            }
            while connections.try_join_next().is_some() {}
        }
        // The link to the guest broke, or the sandbox is gone: then there is no guest to be had.
    }
}

async fn offer(opener: Opener, port: u16, connection: PortConnection) {
    let Ok(mut stream) = opener.open().await else { return };
    match tokio::time::timeout(ASK_TIMEOUT, atoll_tunnel::ask(&mut stream, port)).await {
        Ok(Ok(Status::Connected)) => {
            if let Err(error) = relay(stream, connection).await {
                tracing::debug!(%error, port, "a connection from inside broke");
            }
        }
        // Dropping the connection closes it inside.
        Ok(Ok(_) | Err(_)) | Err(_) => {
            tracing::debug!(port, "the client did not take a connection from inside");
        }
    }
}

async fn relay(mut stream: Stream, mut connection: PortConnection) -> io::Result<()> {
    tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut connection, RELAY_BYTES, RELAY_BYTES)
        .await
        .map(drop)
}

/// The bytes of a WebSocket's binary messages.
pub(crate) fn bytes_of(socket: WebSocket, app: App) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static {
    SocketBytes { socket, app, unread: Bytes::new(), ended: false }
}

struct SocketBytes {
    socket: WebSocket,
    app: App,
    unread: Bytes,
    ended: bool,
}

impl AsyncRead for SocketBytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.ended {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => {
                    self.app.metrics.received(bytes.len());
                    self.unread = bytes;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a text message")));
                }
                Some(Ok(Message::Close(_))) | None => self.ended = true,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let len = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..len]);
        self.unread.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SocketBytes {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io::Error::other)?;
        let len = buf.len().min(MESSAGE_MAX_BYTES);
        let message = Message::Binary(Bytes::copy_from_slice(&buf[..len]));
        Pin::new(&mut self.socket).start_send(message).map_err(io::Error::other)?;
        self.app.metrics.sent(len);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(io::Error::other)
    }
}
