//! Ends the connections of clients so that each can read the last that the server has said to it.
//!
//! When the server closes a connection on which bytes are still arriving, the kernel resets it, and the client may lose
//! what was said last: the answer that refuses its request, the frame that closes its WebSocket, the alert that ends
//! its TLS handshake. So the server ends its own direction only, goes on to take what the client sends, and throws it
//! away, until the client ends the connection, too, or has had its time. Every connection on the server's ports ends
//! here, whatever was spoken on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

use crate::serve::Slot;

/// Most bytes that are thrown away.
const LINGER_MAX_BYTES: u64 = 64 << 20;
/// How long that may take.
const LINGER_MAX: Duration = Duration::from_secs(5);

/// The connection of a client.
#[derive(Debug)]
pub(crate) struct Closing {
    /// `None` once it is dropped.
    stream: Option<TcpStream>,
    /// The connection is one of those that the server may have at once until it is closed.
    slot: Slot,
    /// The client has ended its direction, or the connection is broken: there is nothing to wait for.
    ended: bool,
}

impl Closing {
    pub(crate) const fn new(stream: TcpStream, slot: Slot) -> Self {
        Self { stream: Some(stream), slot, ended: false }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Notes that the connection is broken, when that is what came of writing to it.
    fn wrote<T>(&mut self, outcome: io::Result<T>) -> Poll<io::Result<T>> {
        self.ended |= outcome.is_err();
        Poll::Ready(outcome)
    }
}

impl AsyncRead for Closing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.remaining();
        let outcome = ready!(self.stream()?.poll_read(cx, buf));
        self.ended |= outcome.is_err() || (before > 0 && buf.remaining() == before);
        Poll::Ready(outcome)
    }
}

impl AsyncWrite for Closing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = ready!(self.stream()?.poll_write(cx, bytes));
        self.wrote(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(self.stream()?.poll_write_vectored(cx, pieces));
        self.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(self.stream()?.poll_flush(cx));
        self.wrote(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(self.stream()?.poll_shutdown(cx));
        self.wrote(outcome)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take().filter(|_| !self.ended) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Ends by itself, and keeps no server from stopping.
            drop(runtime.spawn(linger(stream, self.slot.clone())));
        }
    }
}

/// Takes what the client still sends, and throws it away. The `_slot` is free after that.
async fn linger(mut stream: TcpStream, _slot: Slot) {
    let thrown_away = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut (&mut stream).take(LINGER_MAX_BYTES), &mut tokio::io::sink()).await
    };
    match tokio::time::timeout(LINGER_MAX, thrown_away).await {
        Ok(Ok(LINGER_MAX_BYTES)) => tracing::debug!("a client sent too much to a connection that had ended"),
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a client's connection broke after it had ended"),
        Err(_late) => tracing::debug!("a client did not end a connection that the server had ended"),
    }
}
