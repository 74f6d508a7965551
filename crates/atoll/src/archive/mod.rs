//! Tar streams between this machine's disk and a sandbox.
//!
//! The `tar` crate is blocking, HTTP is not: [`ChannelWriter`] and [`ChannelReader`] join the two
//! with a bounded queue, so that neither side runs ahead of the other.

mod extract;
mod pack;

use std::io::{self, Read, Write};

use bytes::{Buf as _, Bytes, BytesMut};
use futures::Stream;
use tokio::sync::mpsc;

pub(crate) use extract::{Extracted, extract};
pub(crate) use pack::pack;

/// Pieces on their way between the two sides.
const QUEUE_COUNT: usize = 8;
/// Size of a piece, bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Blocking end of a queue of bytes, to write to.
#[derive(Debug)]
pub(crate) struct ChannelWriter {
    queue: mpsc::Sender<io::Result<Bytes>>,
    piece: BytesMut,
}

impl Write for ChannelWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let take = data.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&data[..take]);
        if self.piece.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(take)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = self.piece.split().freeze();
        self.queue.blocking_send(Ok(piece)).map_err(|_gone| io::ErrorKind::BrokenPipe.into())
    }
}

/// Blocking end of a queue of bytes, to read from.
#[derive(Debug)]
pub(crate) struct ChannelReader {
    queue: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.queue.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let take = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..take]);
        Ok(take)
    }
}

/// A queue to write into from a blocking thread and to read as a stream.
pub(crate) fn writer() -> (ChannelWriter, impl Stream<Item = io::Result<Bytes>> + Send + 'static) {
    let (queue, receiver) = mpsc::channel(QUEUE_COUNT);
    (ChannelWriter { queue, piece: BytesMut::new() }, stream(receiver))
}

impl ChannelWriter {
    /// Ends the stream with a failure instead of an end, so that the receiver cannot take half of it
    /// for the whole.
    pub(crate) fn fail(self, error: &io::Error) {
        // Sending fails only when the receiver of the stream is gone: then it needs no error either.
        drop(self.queue.blocking_send(Err(io::Error::new(error.kind(), error.to_string()))));
    }
}

/// A queue to write into from async code and to read from a blocking thread.
pub(crate) fn reader() -> (mpsc::Sender<io::Result<Bytes>>, ChannelReader) {
    let (queue, receiver) = mpsc::channel(QUEUE_COUNT);
    (queue, ChannelReader { queue: receiver, piece: Bytes::new() })
}

/// A queue as a stream.
pub(crate) fn stream<T: Send + 'static>(queue: mpsc::Receiver<T>) -> impl Stream<Item = T> + Send + 'static {
    futures::stream::unfold(queue, |mut queue| async move { queue.recv().await.map(|item| (item, queue)) })
}
