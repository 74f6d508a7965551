//! A connection to a TCP port inside a sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::SendStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Call, GuestClient, GuestError, Reader, within};
use crate::messages::{Dial, Done};
use crate::wire::{self, HEADER_BYTES, Kind, Record};

/// Bytes taken from a writer at once.
const WRITE_BYTES: usize = 64 << 10;

/// A byte stream to a port. Shutting it down ends only the direction to the guest.
#[derive(Debug)]
pub struct GuestPortStream {
    reader: Reader,
    stream: SendStream<Bytes>,
    unread: Bytes,
    read_ended: bool,
    write_ended: bool,
}

impl GuestClient {
    /// Connects to a port on the sandbox's loopback.
    ///
    /// # Errors
    /// [`GuestError`]; `PortClosed` when nothing listens.
    pub async fn dial(&self, port: u16) -> Result<GuestPortStream, GuestError> {
        within(async {
            let Call { mut writer, response, link } = self.start("dial").await?;
            // A guest that refuses early says why in its answer.
            writer.message(&Dial { port: port.into() }).await.unwrap_or_default();
            let mut reader = Call::reader(response, link).await?;
            let _: Done = reader.expect(Kind::Message).await?;
            Ok(GuestPortStream {
                reader,
                stream: writer.into_stream(),
                unread: Bytes::new(),
                read_ended: false,
                write_ended: false,
            })
        })
        .await
    }
}

impl AsyncRead for GuestPortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.read_ended {
            match ready!(self.reader.records.poll_next(cx)) {
                Ok(Some(Record { kind: Kind::Data, payload })) => self.unread = payload,
                Ok(None) => self.read_ended = true,
                // A connection that broke inside the sandbox.
                Ok(Some(Record { kind: Kind::Failure, payload })) => {
                    let failure = self.reader.link.failure(payload);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, failure)));
                }
                Ok(Some(_)) => {
                    let violation = self.reader.link.violation("wrong record kind");
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
                }
                Err(error) => {
                    let error = self.reader.link.body(error);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, error)));
                }
            }
        }
        let len = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..len]);
        self.unread.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GuestPortStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.write_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let want = buf.len().min(WRITE_BYTES);
        self.stream.reserve_capacity(want + HEADER_BYTES);
        let mut credit = self.stream.capacity();
        while credit == 0 {
            credit = match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(credit)) => credit,
                Some(Err(_)) | None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        // The header may go beyond the credit by its few bytes; they wait in the connection then.
        let len = want.min(credit);
        let mut record = BytesMut::with_capacity(HEADER_BYTES + len);
        record.put_slice(&wire::header(Kind::Data, len));
        record.put_slice(&buf[..len]);
        match self.stream.send_data(record.freeze(), false) {
            Ok(()) => Poll::Ready(Ok(len)),
            Err(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.write_ended {
            self.write_ended = true;
            if self.stream.send_data(Bytes::new(), true).is_err() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}
