//! Streams of execs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;

use super::{Call, GuestClient, GuestError, Reader, too_large, within};
use crate::body::RecordWriter;
use crate::messages::{Ack, AttachExec, Exited, StartExec, Started};
use crate::wire::{Kind, RECORD_MAX_BYTES, Record};

/// The next event on an exec's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Output. Its first byte has the offset that all before it add up to.
    Output {
        /// Standard error rather than standard output.
        stderr: bool,
        /// The bytes, never none.
        bytes: Bytes,
    },
    /// The main process ended; nothing follows.
    Exited(Exited),
}

/// An exec's output and end.
#[derive(Debug)]
pub struct ExecStream {
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Offset of the next byte: where the stream began, plus the bytes that [`Self::next`] gave.
    pub offset: u64,
    reader: Reader,
    acks: AckHandle,
    ended: bool,
}

/// The open stream of an exec that is yet to be started. The guest has been woken, and listens on it. When this is
/// dropped the stream closes, and nothing was started.
#[derive(Debug)]
pub struct OpenedExec {
    call: Call,
}

impl OpenedExec {
    /// As [`GuestClient::start_exec`], on this stream.
    ///
    /// # Errors
    /// As [`GuestClient::start_exec`]. [`GuestError::Closed`] also when the connection has ended since the stream was
    /// opened.
    pub async fn start(self, request: StartExec) -> Result<ExecStream, GuestError> {
        check_size(&request)?;
        within(stream_on(self.call, &request)).await
    }
}

/// Tells the guest which output the host has stored. Clones share the stream.
#[derive(Debug, Clone)]
pub struct AckHandle {
    writer: Arc<Mutex<RecordWriter>>,
}

impl AckHandle {
    /// Tells the guest that everything below `offset` is safe: it forgets it and reads on.
    ///
    /// # Errors
    /// [`GuestError::Closed`] when the stream is over, which after [`ExecEvent::Exited`] means nothing.
    pub async fn ack(&self, offset: u64) -> Result<(), GuestError> {
        self.writer.lock().await.message(&Ack { offset }).await.or(Err(GuestError::Closed))
    }
}

impl ExecStream {
    /// The next event, or `None` after [`ExecEvent::Exited`]. Dropping the future half-way loses
    /// nothing.
    ///
    /// # Errors
    /// [`GuestError::Closed`] when the connection went: attach again at [`Self::offset`].
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, GuestError> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let Some(Record { kind, payload }) = self.reader.next().await? else {
                return Err(self.reader.link.violation("exec stream ended without an exit"));
            };
            match kind {
                Kind::Data | Kind::DataErr => {
                    if payload.is_empty() {
                        continue;
                    }
                    self.offset = self
                        .offset
                        .checked_add(payload.len() as u64)
                        .ok_or_else(|| self.reader.link.violation("offset overflows"))?;
                    return Ok(Some(ExecEvent::Output { stderr: kind == Kind::DataErr, bytes: payload }));
                }
                Kind::Last => {
                    self.ended = true;
                    return Ok(Some(ExecEvent::Exited(self.reader.link.decode(payload)?)));
                }
                Kind::Message | Kind::Failure => {
                    return Err(self.reader.link.violation("wrong record kind"));
                }
            }
        }
    }

    /// Sends acknowledgements, also while another task waits in [`Self::next`].
    #[must_use]
    pub fn acks(&self) -> AckHandle {
        self.acks.clone()
    }

    /// As [`AckHandle::ack`].
    ///
    /// # Errors
    /// [`GuestError::Closed`].
    pub async fn ack(&self, offset: u64) -> Result<(), GuestError> {
        self.acks.ack(offset).await
    }
}

impl GuestClient {
    /// Starts an exec and streams it from its first retained byte. Starting an id that exists, with an
    /// equal message, attaches to it.
    ///
    /// # Errors
    /// [`GuestError`]; among the reasons are `CommandNotFound`, `CommandNotExecutable`, `CwdNotFound`,
    /// `UserNotFound`, `Conflict`, `NoProcesses`.
    pub async fn start_exec(&self, request: StartExec) -> Result<ExecStream, GuestError> {
        self.stream_exec("exec-start", &request).await
    }

    /// Opens the stream of an exec that will have this id, and does not say yet what it is: for a host that has to wait
    /// for something before the start. The guest prepares what it can for the id, which is one that may stand in an
    /// address.
    ///
    /// # Errors
    /// [`GuestError::Closed`] or [`GuestError::Timeout`].
    pub async fn open_exec(&self, exec_id: &str) -> Result<OpenedExec, GuestError> {
        let operation = format!("exec-start?{exec_id}");
        within(async { Ok(OpenedExec { call: self.start(&operation).await? }) }).await
    }

    /// Streams an exec from an offset.
    ///
    /// # Errors
    /// [`GuestError`]; `NoSuchExec`, or `Invalid` when the guest no longer has the offset.
    pub async fn attach_exec(&self, request: AttachExec) -> Result<ExecStream, GuestError> {
        let stream = self.stream_exec("exec-attach", &request).await?;
        if stream.offset != request.offset {
            return Err(stream.reader.link.violation("exec stream starts at another offset"));
        }
        Ok(stream)
    }

    async fn stream_exec(
        &self,
        operation: &str,
        request: &impl prost::Message,
    ) -> Result<ExecStream, GuestError> {
        check_size(request)?;
        within(async { stream_on(self.start(operation).await?, request).await }).await
    }
}

fn check_size(request: &impl prost::Message) -> Result<(), GuestError> {
    if request.encoded_len() > RECORD_MAX_BYTES { Err(too_large()) } else { Ok(()) }
}

/// Says on an open stream which exec it is for, and waits for the guest's first word.
async fn stream_on(call: Call, request: &impl prost::Message) -> Result<ExecStream, GuestError> {
    let Call { mut writer, response, link } = call;
    // A guest that refuses early says why in its answer.
    writer.message(request).await.unwrap_or_default();
    let mut reader = Call::reader(response, link).await?;
    let Started { pid, offset } = reader.expect(Kind::Message).await?;
    let acks = AckHandle { writer: Arc::new(Mutex::new(writer)) };
    Ok(ExecStream { pid, offset, reader, acks, ended: false })
}
