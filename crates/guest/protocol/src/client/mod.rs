//! The host's side: one connection to one guest.
//!
//! The guest is hostile. Its bytes are bounded before they are kept, its text is cleaned before it can
//! be shown, and the first record that does not fit the protocol ends the connection with
//! [`GuestError::Protocol`]; the engine then connects again or gives the sandbox up. A guest that merely
//! does not answer costs a waiting task: small calls have a deadline ([`CALL_TIMEOUT`]), bulk transfers
//! and streams have the caller's.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{Method, Request};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::body::{BodyError, RecordReader, RecordWriter};
use crate::messages::{
    Configure, Done, ExecInfo, ExecList, Failure, ForgetExec, GetMetrics, Hello, InstallTrust, ListExecs,
    ListPorts, Metrics, PortList, Reason, ResizeExec, SignalExec, Welcome, WriteStdin,
};
use crate::wire::{self, Kind, Record, WireError};
use crate::{ANSWER_WINDOW_BYTES, CONNECTION_WINDOW_BYTES, FRAME_BYTES, PATH_PREFIX, VERSION};

mod exec;
mod files;
mod port;

pub use exec::{AckHandle, ExecEvent, ExecStream, OpenedExec};
pub use files::{ByteStream, FileReader, FileWriter, WatchStream};
pub use port::{GuestPortListener, GuestPortStream, IncomingConnection};

/// How long the guest may take to introduce itself.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a small call (anything but transfers, streams, removing and standard input) may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Characters of a guest's message that are kept.
pub const MESSAGE_MAX_CHARS: usize = 512;
/// Longest name of a user, group, exec or boot that a guest may send, bytes.
const NAME_MAX_BYTES: usize = 256;
/// Most execs a guest may list.
const EXECS_MAX: usize = 4096;
/// Bytes of one stream that wait in the connection for the socket.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Why an operation in a guest did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// The guest refused or failed.
    #[error("{message}")]
    Failure {
        /// Its reason.
        reason: Reason,
        /// Its words, cleaned and bounded to [`MESSAGE_MAX_CHARS`].
        message: String,
    },
    /// The guest broke the protocol; the connection was closed.
    #[error("the guest broke the protocol: {0}")]
    Protocol(&'static str),
    /// The operation's stream, or the connection, ended.
    #[error("the connection to the guest ended")]
    Closed,
    /// The guest did not answer in time.
    #[error("the guest did not answer in time")]
    Timeout,
    /// The guest stood still, as a frozen one does, for longer than its user waits for it.
    #[error("the guest stood still for too long")]
    StoodStill,
    /// Nothing was asked of the guest: its user has no memory left for what it would send.
    #[error("too much of what guests send waits for those who take it")]
    NoRoom,
}

#[derive(Debug)]
struct Inner {
    requests: SendRequest<Bytes>,
    link: Link,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.kill.cancel();
    }
}

/// Ends the connection from wherever a violation is seen.
#[derive(Debug, Clone)]
struct Link {
    kill: CancellationToken,
    closed: CancellationToken,
}

impl Link {
    fn violation(&self, what: &'static str) -> GuestError {
        self.kill.cancel();
        GuestError::Protocol(what)
    }

    fn body(&self, error: BodyError) -> GuestError {
        match error {
            BodyError::Closed => GuestError::Closed,
            BodyError::Wire(WireError::Kind(_)) => self.violation("unknown record kind"),
            BodyError::Wire(WireError::TooLarge(_)) => self.violation("oversized record"),
            BodyError::Wire(WireError::Message) => self.violation("malformed message"),
            BodyError::Wire(WireError::Truncated) => self.violation("body ended inside a record"),
        }
    }

    fn decode<M: Message + Default>(&self, payload: Bytes) -> Result<M, GuestError> {
        wire::decode_message(payload).map_err(|error| self.body(error.into()))
    }

    /// The error in a record of kind [`Kind::Failure`].
    fn failure(&self, payload: Bytes) -> GuestError {
        match self.decode::<Failure>(payload) {
            Ok(failure) => {
                GuestError::Failure { reason: failure.reason(), message: cleaned(&failure.message) }
            }
            Err(violation) => violation,
        }
    }
}

/// One operation under way.
#[derive(Debug)]
struct Call {
    writer: RecordWriter,
    response: ResponseFuture,
    link: Link,
}

impl Call {
    async fn reader(response: ResponseFuture, link: Link) -> Result<Reader, GuestError> {
        let response = response.await.or(Err(GuestError::Closed))?;
        Ok(Reader { records: RecordReader::new(response.into_body()), link })
    }
}

/// Reads the records of one answer.
#[derive(Debug)]
struct Reader {
    records: RecordReader,
    link: Link,
}

impl Reader {
    /// The next record; failures come as errors.
    async fn next(&mut self) -> Result<Option<Record>, GuestError> {
        match self.records.next().await {
            Ok(Some(Record { kind: Kind::Failure, payload })) => Err(self.link.failure(payload)),
            Ok(record) => Ok(record),
            Err(error) => Err(self.link.body(error)),
        }
    }

    /// The record that has to come next, of this kind.
    async fn expect<M: Message + Default>(&mut self, kind: Kind) -> Result<M, GuestError> {
        match self.next().await? {
            Some(record) if record.kind == kind => self.link.decode(record.payload),
            Some(_) => Err(self.link.violation("wrong record kind")),
            None => Err(self.link.violation("answer is missing")),
        }
    }
}

/// A connection to a guest. Clones share it; it ends with the last clone, by [`Self::close`], or when
/// the guest goes away. Streams taken from it do not keep it alive.
#[derive(Debug, Clone)]
pub struct GuestClient {
    inner: Arc<Inner>,
}

impl GuestClient {
    /// Sets the connection up over a fresh stream and makes sure that the guest is the right one.
    ///
    /// # Errors
    /// [`GuestError`]: [`GuestError::Failure`] when the guest is another sandbox's or another version,
    /// [`GuestError::Timeout`] after [`HELLO_TIMEOUT`].
    pub async fn connect<S>(stream: S, sandbox_id: &str) -> Result<(Self, Welcome), GuestError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        tokio::time::timeout(HELLO_TIMEOUT, Self::introduce(stream, sandbox_id))
            .await
            .or(Err(GuestError::Timeout))?
    }

    async fn introduce<S>(stream: S, sandbox_id: &str) -> Result<(Self, Welcome), GuestError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(ANSWER_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .max_header_list_size(4096)
            .enable_push(false)
            .handshake::<S, Bytes>(stream)
            .await
            .or(Err(GuestError::Closed))?;
        let link = Link { kill: CancellationToken::new(), closed: CancellationToken::new() };
        let driver = link.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = driver.kill.cancelled() => {}
                _ = connection => {}
            }
            driver.closed.cancel();
        });
        let client = Self { inner: Arc::new(Inner { requests, link }) };
        let hello = Hello { version: VERSION, sandbox_id: sandbox_id.to_owned() };
        let welcome: Welcome = client.call("hello", &hello).await?;
        if welcome.version != VERSION {
            return Err(client.inner.link.violation("another protocol version"));
        }
        client.bounded(&[&welcome.boot_id], NAME_MAX_BYTES)?;
        Ok((client, welcome))
    }

    /// Resolves when the connection is down, whichever side ended it.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        self.inner.link.closed.clone().cancelled_owned()
    }

    /// Ends the connection and every operation on it.
    pub fn close(&self) {
        self.inner.link.kill.cancel();
    }

    /// Sets identity, environment and clock.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn configure(&self, request: Configure) -> Result<(), GuestError> {
        self.done("configure", &request).await.map(drop)
    }

    /// Makes programs in the sandbox accept certificates of an authority.
    ///
    /// # Errors
    /// [`GuestError`]: [`Reason::Invalid`] when the image's `/etc` cannot be written.
    pub async fn install_trust(&self, request: InstallTrust) -> Result<(), GuestError> {
        self.done("trust", &request).await.map(drop)
    }

    /// Sends a signal to an exec.
    ///
    /// # Errors
    /// [`GuestError`]: [`Reason::NoSuchExec`], [`Reason::ExecEnded`], [`Reason::Invalid`].
    pub async fn signal_exec(&self, request: SignalExec) -> Result<(), GuestError> {
        self.done("exec-signal", &request).await.map(drop)
    }

    /// Changes the size of an exec's terminal.
    ///
    /// # Errors
    /// [`GuestError`]: [`Reason::NotATerminal`] among others.
    pub async fn resize_exec(&self, request: ResizeExec) -> Result<(), GuestError> {
        self.done("exec-resize", &request).await.map(drop)
    }

    /// Lets the guest forget an exec that has ended.
    ///
    /// # Errors
    /// [`GuestError`]. An exec that is not known is no error; one that still runs is [`Reason::Conflict`].
    pub async fn forget_exec(&self, exec_id: &str) -> Result<(), GuestError> {
        self.done("exec-forget", &ForgetExec { exec_id: exec_id.to_owned() }).await.map(drop)
    }

    /// Writes to an exec's standard input, and closes it after that if asked. Returns when all bytes
    /// are in the guest's buffer, which may take as long as the program does not read: no deadline.
    ///
    /// # Errors
    /// [`GuestError`]: [`Reason::StdinClosed`], [`Reason::ExecEnded`], [`Reason::NoSuchExec`].
    pub async fn write_stdin(&self, exec_id: &str, bytes: Bytes, close: bool) -> Result<(), GuestError> {
        let Call { mut writer, response, link } = self.start("exec-stdin").await?;
        let request = WriteStdin { exec_id: exec_id.to_owned(), close };
        // A guest that refuses may stop reading; then its answer says why, not our failed write.
        let write = async {
            writer.message(&request).await?;
            writer.data(Kind::Data, bytes).await?;
            writer.finish()
        };
        let read = async { Call::reader(response, link.clone()).await?.expect::<Done>(Kind::Last).await };
        answer_first(write, read).await.map(drop)
    }

    /// Lists the execs that the guest remembers.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn list_execs(&self) -> Result<Vec<ExecInfo>, GuestError> {
        let list: ExecList = self.quick("exec-list", &ListExecs {}).await?;
        if list.execs.len() > EXECS_MAX {
            return Err(self.inner.link.violation("too many execs"));
        }
        for exec in &list.execs {
            self.bounded(&[&exec.exec_id], NAME_MAX_BYTES)?;
        }
        Ok(list.execs)
    }

    /// TCP ports that a program listens on, ascending.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn ports(&self) -> Result<Vec<u16>, GuestError> {
        let list: PortList = self.quick("ports", &ListPorts {}).await?;
        let mut ports = Vec::with_capacity(list.ports.len().min(usize::from(u16::MAX)));
        for port in list.ports {
            match u16::try_from(port) {
                Ok(port) if ports.last().is_none_or(|last| *last < port) => ports.push(port),
                _ => return Err(self.inner.link.violation("ports out of range or order")),
            }
        }
        Ok(ports)
    }

    /// The sandbox's own report of its use of resources. Hostile numbers: for showing, never for deciding.
    ///
    /// # Errors
    /// [`GuestError`].
    pub async fn metrics(&self) -> Result<Metrics, GuestError> {
        self.quick("metrics", &GetMetrics {}).await
    }

    /// Opens the stream of an operation; the request's body follows.
    async fn start(&self, operation: &str) -> Result<Call, GuestError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://guest{PATH_PREFIX}{operation}"))
            .body(())
            .or(Err(GuestError::Closed))?;
        let mut requests = self.inner.requests.clone().ready().await.or(Err(GuestError::Closed))?;
        let (response, stream) = requests.send_request(request, false).or(Err(GuestError::Closed))?;
        Ok(Call { writer: RecordWriter::new(stream), response, link: self.inner.link.clone() })
    }

    /// Opens an operation whose request is one message, and waits for the answer to begin.
    async fn ask(&self, operation: &str, request: &impl Message) -> Result<Reader, GuestError> {
        if request.encoded_len() > wire::RECORD_MAX_BYTES {
            return Err(too_large());
        }
        let call = self.start(operation).await?;
        // A guest that refuses may stop reading before it has read this; its answer says why.
        call.writer.finish_with(Kind::Message, request).await.unwrap_or_default();
        Call::reader(call.response, call.link).await
    }

    async fn call<M: Message + Default>(
        &self,
        operation: &str,
        request: &impl Message,
    ) -> Result<M, GuestError> {
        self.ask(operation, request).await?.expect(Kind::Message).await
    }

    /// A call with one message as its answer, with a deadline.
    async fn quick<M: Message + Default>(
        &self,
        operation: &str,
        request: &impl Message,
    ) -> Result<M, GuestError> {
        within(self.call(operation, request)).await
    }

    /// A call that is answered by [`Done`], with a deadline.
    async fn done(&self, operation: &str, request: &impl Message) -> Result<Done, GuestError> {
        within(self.done_sometime(operation, request)).await
    }

    async fn done_sometime(&self, operation: &str, request: &impl Message) -> Result<Done, GuestError> {
        self.ask(operation, request).await?.expect(Kind::Last).await
    }

    fn bounded(&self, texts: &[&str], max: usize) -> Result<(), GuestError> {
        if texts.iter().any(|text| text.len() > max) {
            return Err(self.inner.link.violation("text is too long"));
        }
        Ok(())
    }
}

async fn within<T>(call: impl Future<Output = Result<T, GuestError>>) -> Result<T, GuestError> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.or(Err(GuestError::Timeout))?
}

/// A request that no record can hold. The guest would say the same.
fn too_large() -> GuestError {
    GuestError::Failure { reason: Reason::Invalid, message: "the request is too large".to_owned() }
}

/// Runs a write and the wait for the answer together. The answer decides: a guest that refuses early
/// stops reading.
async fn answer_first<T>(
    write: impl Future<Output = Result<(), BodyError>>,
    read: impl Future<Output = Result<T, GuestError>>,
) -> Result<T, GuestError> {
    let mut read = std::pin::pin!(read);
    tokio::select! {
        biased;
        answer = &mut read => answer,
        // Written, or the stream was cut: an answer that was on its way tells which.
        _ = write => read.await,
    }
}

/// A hostile sentence as it may be shown: no control characters, no line breaks, bounded.
#[must_use]
pub fn cleaned(text: &str) -> String {
    text.chars()
        .take(MESSAGE_MAX_CHARS)
        .map(|c| if c.is_control() || is_invisible(c) { ' ' } else { c })
        .collect()
}

/// Characters that reorder or hide text on a terminal or page.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
