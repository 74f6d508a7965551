//! Records over the bodies of an HTTP/2 stream: the parts that both sides share.
//!
//! Reading hands flow-control credit back as soon as a chunk is taken, and a chunk is taken only when all records
//! before it were: a slow reader holds one chunk and the stream's window. A reader that must go on reading while bytes
//! that it read wait elsewhere says how many those are ([`RecordReader::hold`]). Writing waits for credit, so nothing
//! piles up in the connection.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use prost::Message;

use crate::messages::Failure;
use crate::wire::{self, Decoder, HEADER_BYTES, Kind, RECORD_MAX_BYTES, Record, WireError};

/// Payloads up to this size are copied behind their header: one frame instead of two.
const JOIN_BYTES: usize = 16 << 10;

/// A body could not be read or written further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The stream or its connection is gone.
    #[error("the stream ended")]
    Closed,
    /// The peer broke the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Reads the records of one body. Dropping a read half-way loses nothing.
#[derive(Debug)]
pub struct RecordReader {
    stream: RecvStream,
    decoder: Decoder,
    /// Bytes whose credit was not handed back; `None` when it always is at once.
    held: Option<usize>,
}

impl RecordReader {
    /// Reads this body.
    #[must_use]
    pub fn new(stream: RecvStream) -> Self {
        Self { stream, decoder: Decoder::new(), held: None }
    }

    /// The next record, or `None` at the proper end of the body. Records of raw bytes may come in
    /// pieces.
    ///
    /// # Errors
    /// [`BodyError`]; the body is useless then.
    pub async fn next(&mut self) -> Result<Option<Record>, BodyError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`], for hand-written futures.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Record>, BodyError>> {
        loop {
            if let Some(record) = self.decoder.next_record()? {
                return Poll::Ready(Ok(Some(record)));
            }
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(chunk)) => {
                    match &mut self.held {
                        Some(held) => *held += chunk.len(),
                        None => self.release(chunk.len()),
                    }
                    self.decoder.push(chunk);
                }
                Some(Err(_)) => return Poll::Ready(Err(BodyError::Closed)),
                None => {
                    self.decoder.finish()?;
                    return Poll::Ready(Ok(None));
                }
            }
        }
    }

    /// Keeps the credit of so many bytes, from now on: they were read and wait elsewhere. Credit that was kept before
    /// beyond that is handed back.
    pub fn hold(&mut self, bytes: usize) {
        let held = self.held.unwrap_or_default();
        let free = held.saturating_sub(bytes);
        self.held = Some(held - free);
        self.release(free);
    }

    fn release(&mut self, bytes: usize) {
        // Fails only when the stream is gone; the next poll says so.
        self.stream.flow_control().release_capacity(bytes).unwrap_or_default();
    }

    /// Reads the message that has to come next.
    ///
    /// # Errors
    /// [`BodyError`]; [`WireError::Message`] when the record is no such message.
    pub async fn message<M: Message + Default>(&mut self) -> Result<M, BodyError> {
        match self.next().await? {
            Some(Record { kind: Kind::Message, payload }) => Ok(wire::decode_message(payload)?),
            _ => Err(WireError::Message.into()),
        }
    }
}

/// Writes the records of one body. Dropping it before [`Self::finish`] resets the stream.
#[derive(Debug)]
pub struct RecordWriter {
    stream: SendStream<Bytes>,
    /// A write was given up half-way: the peer would take further bytes for the rest of that record.
    torn: bool,
}

impl RecordWriter {
    /// Writes this body.
    #[must_use]
    pub fn new(stream: SendStream<Bytes>) -> Self {
        Self { stream, torn: false }
    }

    /// Sends raw bytes as records of this kind.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub async fn data(&mut self, kind: Kind, mut bytes: Bytes) -> Result<(), BodyError> {
        while !bytes.is_empty() {
            let part = bytes.split_to(bytes.len().min(RECORD_MAX_BYTES));
            if part.len() <= JOIN_BYTES {
                let mut record = BytesMut::with_capacity(HEADER_BYTES + part.len());
                record.put_slice(&wire::header(kind, part.len()));
                record.put_slice(&part);
                self.push(record.freeze(), false).await?;
            } else {
                self.check()?;
                self.torn = true;
                self.push_part(Bytes::copy_from_slice(&wire::header(kind, part.len())), false).await?;
                self.push_part(part, false).await?;
                self.torn = false;
            }
        }
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub async fn message(&mut self, message: &impl Message) -> Result<(), BodyError> {
        self.push(wire::encode_message(Kind::Message, message), false).await
    }

    /// Sends records that are encoded already.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub async fn encoded(&mut self, records: Bytes) -> Result<(), BodyError> {
        self.push(records, false).await
    }

    /// Sends a message as the only or final one and ends the body.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub async fn finish_with(mut self, kind: Kind, message: &impl Message) -> Result<(), BodyError> {
        self.push(wire::encode_message(kind, message), true).await
    }

    /// Sends a failure and ends the body.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub async fn fail(self, failure: &Failure) -> Result<(), BodyError> {
        self.finish_with(Kind::Failure, failure).await
    }

    /// Sends final records that are encoded already and ends the body.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub async fn finish_encoded(mut self, records: Bytes) -> Result<(), BodyError> {
        self.push(records, true).await
    }

    /// Ends the body properly.
    ///
    /// # Errors
    /// [`BodyError::Closed`].
    pub fn finish(mut self) -> Result<(), BodyError> {
        self.check()?;
        self.stream.send_data(Bytes::new(), true).or(Err(BodyError::Closed))
    }

    /// Ends the stream at once: the peer sees it cut, not ended.
    pub fn reset(mut self) {
        self.stream.send_reset(Reason::CANCEL);
    }

    /// Resolves when the peer has cut the stream, or the connection is gone.
    pub async fn cut(&mut self) {
        drop(poll_fn(|cx| self.stream.poll_reset(cx)).await);
    }

    /// Whether the peer has cut the stream, or the connection is gone.
    pub async fn is_cut(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.stream.poll_reset(cx).is_ready())).await
    }

    #[cfg(feature = "client")]
    /// The stream itself, for hand-written futures.
    pub(crate) fn into_stream(self) -> SendStream<Bytes> {
        self.stream
    }

    fn check(&self) -> Result<(), BodyError> {
        if self.torn { Err(BodyError::Closed) } else { Ok(()) }
    }

    async fn push(&mut self, bytes: Bytes, end: bool) -> Result<(), BodyError> {
        self.check()?;
        self.torn = true;
        self.push_part(bytes, end).await?;
        self.torn = false;
        Ok(())
    }

    async fn push_part(&mut self, mut bytes: Bytes, end: bool) -> Result<(), BodyError> {
        while !bytes.is_empty() {
            self.stream.reserve_capacity(bytes.len());
            let mut credit = self.stream.capacity();
            if credit == 0 {
                credit = match poll_fn(|cx| self.stream.poll_capacity(cx)).await {
                    Some(Ok(credit)) => credit,
                    Some(Err(_)) | None => return Err(BodyError::Closed),
                };
            }
            let part = bytes.split_to(bytes.len().min(credit));
            if !part.is_empty() {
                let last = end && bytes.is_empty();
                self.stream.send_data(part, last).or(Err(BodyError::Closed))?;
            }
        }
        Ok(())
    }
}
