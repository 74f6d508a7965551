//! The guest's side of a connection: HTTP/2 set-up and the shape of an operation.
//!
//! Shared by the agent and by fakes, so that both read the host's requests in the same way. It needs no
//! runtime: the caller drives the connection and chooses where an operation runs.

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use http::{Request, Response};

use crate::body::{BodyError, RecordReader, RecordWriter};
use crate::messages::{Failure, Reason};
use crate::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, PATH_PREFIX, STREAM_WINDOW_BYTES, STREAMS_MAX};

/// Bytes of one stream that wait in the connection for the socket.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Largest header block, bytes: the protocol has no headers of its own.
const HEADERS_BYTES: u32 = 4096;
/// Operations that the host may have begun and given up before the guest has looked at them, as when it stood still
/// meanwhile: as many as it may have under way ([`STREAMS_MAX`]).
const GIVEN_UP_MAX_COUNT: usize = 4096;

/// How a guest accepts connections.
#[must_use]
pub fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(GIVEN_UP_MAX_COUNT)
        .max_header_list_size(HEADERS_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES);
    builder
}

/// One operation that the host started.
#[derive(Debug)]
pub struct Operation {
    /// Its name, the end of the path.
    pub name: String,
    /// What the host announces that it will be about, before the request is there: any text, a hint.
    pub announced: Option<String>,
    /// Records that the host sends.
    pub request: RecordReader,
    /// Records for the host.
    pub response: RecordWriter,
}

impl Operation {
    fn new(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) -> Result<Self, h2::Error> {
        let name = request.uri().path().strip_prefix(PATH_PREFIX).unwrap_or_default().to_owned();
        let announced = request.uri().query().map(str::to_owned);
        let response = respond.send_response(Response::new(()), false)?;
        Ok(Self {
            name,
            announced,
            request: RecordReader::new(request.into_body()),
            response: RecordWriter::new(response),
        })
    }
}

/// Waits for the host's next operation and drives the connection meanwhile. `None` when the
/// connection ended.
pub async fn next_operation<T>(connection: &mut Connection<T, Bytes>) -> Option<Operation>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        let (request, respond) = connection.accept().await?.ok()?;
        // An error concerns a stream that was reset already: there is no request to answer.
        if let Ok(operation) = Operation::new(request, respond) {
            return Some(operation);
        }
    }
}

/// A failure by reason, with a short sentence.
#[must_use]
pub fn failure(reason: Reason, message: impl Into<String>) -> Failure {
    Failure { reason: reason.into(), message: message.into() }
}

/// The answer when the request's body does not fit the operation. `None` when the host is gone and cannot hear it.
#[must_use]
pub fn body_failure(error: BodyError) -> Option<Failure> {
    match error {
        BodyError::Closed => None,
        BodyError::Wire(wire) => Some(failure(Reason::Invalid, wire.to_string())),
    }
}
