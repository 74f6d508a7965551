//! Connections to TCP ports inside a sandbox, and ports inside that the host listens on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::SendStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Call, GuestClient, GuestError, Reader, within};
use crate::PORT_WINDOW_BYTES;
use crate::body::RecordWriter;
use crate::messages::{Accept, Ack, Dial, Done, Incoming, Listen, Listening, Sftp};
use crate::wire::{self, HEADER_BYTES, Kind, Record};

/// Bytes taken from a writer at once.
const WRITE_BYTES: usize = 64 << 10;

/// Credit of the stream that data leaves to acknowledgements: they must get through while the guest cannot pass
/// data on, or neither direction would ever move again.
const ACK_CREDIT_BYTES: usize = 1 << 10;

/// Bytes of a session that may be under way: there are few sessions, and files are large.
const SFTP_WINDOW_BYTES: u32 = 1 << 20;

/// A byte stream to a port. Shutting it down ends only the direction to the guest.
#[derive(Debug)]
pub struct GuestPortStream {
    reader: Reader,
    stream: SendStream<Bytes>,
    unread: Bytes,
    /// Bytes that were passed on, and how many of them the guest knows about.
    passed: u64,
    acked: u64,
    /// The guest said that no more bytes come. It goes on passing ours to the port.
    last_read: bool,
    /// The guest is done with both directions.
    read_ended: bool,
    write_ended: bool,
}

/// A port of the sandbox on which the guest listens for the host, until this is dropped.
#[derive(Debug)]
pub struct GuestPortListener {
    reader: Reader,
    /// Dropping it would end the operation.
    _request: RecordWriter,
    port: u16,
}

/// A connection that a program in the sandbox made; it waits a while to be taken by [`GuestClient::accept`].
#[derive(Debug)]
pub struct IncomingConnection(u64);

impl GuestPortListener {
    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The next connection, or `None` when the guest stopped listening.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<IncomingConnection>, GuestError> {
        match self.reader.next().await? {
            Some(Record { kind: Kind::Message, payload }) => {
                let incoming: Incoming = self.reader.link.decode(payload)?;
                Ok(Some(IncomingConnection(incoming.connection)))
            }
            Some(_) => Err(self.reader.link.violation("wrong record kind")),
            None => Ok(None),
        }
    }
}

impl GuestClient {
    /// Connects to a port on the sandbox's loopback.
    ///
    /// # Errors
    /// [`GuestError`]; `PortClosed` when nothing listens.
    pub async fn dial(&self, port: u16) -> Result<GuestPortStream, GuestError> {
        let request = Dial { port: port.into(), window_bytes: PORT_WINDOW_BYTES, proxy: false };
        self.port_stream("dial", &request).await
    }

    /// Connects to the explicit proxy of the sandbox's network, as a program in the sandbox would.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn dial_proxy(&self) -> Result<GuestPortStream, GuestError> {
        self.port_stream("dial", &Dial { port: 0, window_bytes: PORT_WINDOW_BYTES, proxy: true }).await
    }

    /// Takes a connection that a program in the sandbox made.
    ///
    /// # Errors
    /// [`GuestError`]; `PortClosed` when it has gone away.
    pub async fn accept(&self, connection: IncomingConnection) -> Result<GuestPortStream, GuestError> {
        let request = Accept { connection: connection.0, window_bytes: PORT_WINDOW_BYTES };
        self.port_stream("accept", &request).await
    }

    /// Listens on a port of the sandbox's loopback; 0 for any.
    ///
    /// # Errors
    /// [`GuestError`]; `PortTaken` when a program listens there, `Denied` for a port that only the host's root may
    /// have.
    pub async fn listen(&self, port: u16) -> Result<GuestPortListener, GuestError> {
        within(async {
            let Call { mut writer, response, link } = self.start("listen").await?;
            // A guest that refuses early says why in its answer.
            writer.message(&Listen { port: port.into() }).await.unwrap_or_default();
            let mut reader = Call::reader(response, link).await?;
            let listening: Listening = reader.expect(Kind::Message).await?;
            let wanted = |got: &u16| *got != 0 && (port == 0 || *got == port);
            match u16::try_from(listening.port).ok().filter(wanted) {
                Some(port) => Ok(GuestPortListener { reader, _request: writer, port }),
                None => Err(reader.link.violation("another port")),
            }
        })
        .await
    }

    /// Begins an SFTP session as a user, in a directory (empty for the user's home); the stream carries the protocol's packets.
    ///
    /// # Errors
    /// [`GuestError`]; `UserNotFound`.
    pub async fn sftp(&self, user: &str, cwd: &str) -> Result<GuestPortStream, GuestError> {
        self.port_stream(
            "sftp",
            &Sftp { user: user.to_owned(), window_bytes: SFTP_WINDOW_BYTES, cwd: cwd.to_owned() },
        )
        .await
    }

    async fn port_stream(
        &self,
        operation: &str,
        request: &impl prost::Message,
    ) -> Result<GuestPortStream, GuestError> {
        within(async {
            let Call { mut writer, response, link } = self.start(operation).await?;
            // A guest that refuses early says why in its answer.
            writer.message(request).await.unwrap_or_default();
            let mut reader = Call::reader(response, link).await?;
            let _: Done = reader.expect(Kind::Message).await?;
            Ok(GuestPortStream {
                reader,
                stream: writer.into_stream(),
                unread: Bytes::new(),
                passed: 0,
                acked: 0,
                last_read: false,
                read_ended: false,
                write_ended: false,
            })
        })
        .await
    }
}

impl GuestPortStream {
    /// Whether the end can be told to the reader. When our direction has ended too, the reader may drop this stream on
    /// hearing of the end, and with it bytes that the guest did not yet pass to the port. So then the guest's own end
    /// is waited for first.
    const fn is_read(&self) -> bool {
        self.read_ended || (self.last_read && !self.write_ended)
    }

    /// Tells the guest now and then how many bytes were passed on. Once our direction of the stream has ended this is
    /// not possible; the guest then goes by the stream's own window.
    fn ack(&mut self) {
        let due = self.passed - self.acked >= u64::from(PORT_WINDOW_BYTES / 2);
        if due && !self.write_ended {
            self.acked = self.passed;
            let record = wire::encode_message(Kind::Message, &Ack { offset: self.passed });
            // Fails only when the stream is gone; the next read says so.
            self.stream.send_data(record, false).unwrap_or_default();
        }
    }
}

impl AsyncRead for GuestPortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.is_read() {
            match ready!(self.reader.records.poll_next(cx)) {
                Ok(Some(Record { kind: Kind::Data, payload })) if !self.last_read => self.unread = payload,
                Ok(Some(Record { kind: Kind::Last, .. })) => self.last_read = true,
                Ok(None) => self.read_ended = true,
                // The port took our last bytes no more. All of its own were read.
                Ok(Some(Record { kind: Kind::Failure, .. })) | Err(_) if self.last_read => {
                    self.read_ended = true;
                }
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
        self.passed += len as u64;
        self.ack();
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
        self.stream.reserve_capacity(want + HEADER_BYTES + ACK_CREDIT_BYTES);
        let mut credit = self.stream.capacity();
        while credit <= ACK_CREDIT_BYTES {
            credit = match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(credit)) => credit,
                Some(Err(_)) | None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        // The header may go beyond the credit by its few bytes; they wait in the connection then.
        let len = want.min(credit - ACK_CREDIT_BYTES);
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

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.write_ended {
            self.write_ended = true;
            if self.stream.send_data(Bytes::new(), true).is_err() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
        }
        // No reader is left that could wait for the guest: see `is_read`.
        while self.last_read && !self.read_ended {
            match ready!(self.reader.records.poll_next(cx)) {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => self.read_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}
