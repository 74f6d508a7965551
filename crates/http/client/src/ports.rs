//! Ports of sandboxes, accesses to them, and tunnels.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use atoll_api::{AccessCreated, AccessList, CreateAccess};
use atoll_tunnel::{Mux, Side};
use bytes::{Buf as _, Bytes};
use futures::{Sink as _, Stream as _};
use http::Method;
use reqwest::Upgraded;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::{Client, Result};

/// Largest message that is sent, bytes.
const MESSAGE_MAX_BYTES: usize = 64 << 10;

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Lets a client without an API key reach a port or file. The token is in the answer and nowhere else.
    pub async fn create_access(&self, sandbox: &str, create: &CreateAccess) -> Result<AccessCreated> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["access"]), create).await
    }

    /// The accesses of a sandbox, without tokens.
    pub async fn list_accesses(&self, sandbox: &str) -> Result<AccessList> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["access"]))).await
    }

    /// Takes an access back.
    pub async fn revoke_access(&self, sandbox: &str, id: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.in_sandbox(sandbox, &["access", id]))).await
    }

    /// Opens a tunnel. Streams that this side opens go to ports of the sandbox; connections that programs in the
    /// sandbox make to one of the `listen` ports come as streams of the other side.
    pub async fn tunnel(&self, sandbox: &str, listen: &[u16]) -> Result<Mux<TunnelSocket>> {
        let target = self.in_sandbox(sandbox, &["tunnel"]);
        let target = listen.iter().fold(target, |target, port| target.query("listen", port));
        let socket = self.websocket(target).await?;
        Ok(Mux::new(TunnelSocket::new(socket), Side::Client))
    }
}

/// The bytes of a WebSocket's binary messages.
#[derive(Debug)]
pub struct TunnelSocket {
    socket: WebSocketStream<Upgraded>,
    unread: Bytes,
    ended: bool,
}

impl TunnelSocket {
    pub(crate) const fn new(socket: WebSocketStream<Upgraded>) -> Self {
        Self { socket, unread: Bytes::new(), ended: false }
    }
}

impl AsyncRead for TunnelSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.ended {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Text(_) | Message::Frame(_))) => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "not a binary message",
                    )));
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

impl AsyncWrite for TunnelSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io::Error::other)?;
        let len = buf.len().min(MESSAGE_MAX_BYTES);
        let message = Message::Binary(Bytes::copy_from_slice(&buf[..len]));
        Pin::new(&mut self.socket).start_send(message).map_err(io::Error::other)?;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(io::Error::other)
    }
}
