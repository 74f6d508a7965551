//! The sandbox's side of a connection, with the bytes that were looked at in front again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection from a sandbox. Bytes that were read ahead are read again.
#[derive(Debug)]
pub struct ClientStream {
    ahead: BytesMut,
    stream: TcpStream,
}

impl ClientStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { ahead: BytesMut::new(), stream }
    }

    /// Puts bytes in front that a caller has read already, so that they are read again.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        let mut ahead = BytesMut::from(bytes);
        ahead.extend_from_slice(&self.ahead);
        self.ahead = ahead;
    }

    /// Takes out the bytes that were read ahead.
    pub(crate) fn take_ahead(&mut self) -> BytesMut {
        std::mem::take(&mut self.ahead)
    }

    /// The connection without the bytes that were read ahead.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// The connection, and the bytes that were read ahead of it.
    pub(crate) fn split(&mut self) -> (&TcpStream, &mut BytesMut) {
        (&self.stream, &mut self.ahead)
    }

    /// Reads more ahead; 0 at the end.
    pub(crate) async fn read_ahead(&mut self) -> io::Result<usize> {
        read_more(&self.stream, &mut self.ahead).await
    }
}

/// Appends the bytes that there are to read; 0 at the end. Loses nothing when it is dropped.
pub(crate) async fn read_more(socket: &TcpStream, ahead: &mut BytesMut) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        match socket.try_read_buf(ahead) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
