//! From a thread that writes to a task that reads: a bounded queue, and how long the writer waits for its reader.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendTimeoutError, TrySendError};
use tokio::task::JoinHandle;

use crate::rooms::Pace;

/// Bytes of a piece that is sent.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// What was written and waits for the reader. The reader has it, and the writer knows of it.
#[derive(Debug)]
pub(super) struct Queue(Mutex<mpsc::Receiver<io::Result<Bytes>>>);

impl Queue {
    pub(super) fn new(receiver: mpsc::Receiver<io::Result<Bytes>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(receiver)))
    }

    fn receiver(&self) -> MutexGuard<'_, mpsc::Receiver<io::Result<Bytes>>> {
        // One call at a time: a panic leaves it usable as it is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was not taken: the reader may be there for ever without taking it.
    pub(super) fn forget(&self) {
        let mut receiver = self.receiver();
        receiver.close();
        while let Ok(piece) = receiver.try_recv() {
            drop(piece);
        }
    }
}

/// What is written, and at the end the error of the writer, if there was one: it cannot send that itself to a reader that
/// takes nothing.
pub(super) fn received(
    queue: Arc<Queue>,
    writing: JoinHandle<io::Result<()>>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let pieces = futures::stream::poll_fn(move |context| queue.receiver().poll_recv(context));
    let end = futures::stream::once(writing).filter_map(|ended| {
        let error = match ended {
            Ok(written) => written.err(),
            Err(panicked) => Some(io::Error::other(panicked)),
        };
        futures::future::ready(error.map(Err::<Bytes, _>))
    });
    pieces.chain(end)
}

/// Hands what is written to the stream, in chunks.
pub(crate) struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    /// How a chunk waits to be taken; without end where there is nothing.
    patience: Option<Patience>,
}

/// How long the writer waits for a reader.
#[derive(Debug)]
pub(super) struct Patience {
    /// For one chunk.
    pub(super) of_chunk: Duration,
    /// What the reader has to take of many, where others wait for the writer's room.
    pub(super) pace: Pace,
}

impl Pieces {
    pub(crate) fn new(sender: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self { sender, chunk: Vec::with_capacity(CHUNK_BYTES), patience: None }
    }

    /// With an end to how long a chunk waits to be taken.
    pub(super) fn waiting(self, patience: Option<Patience>) -> Self {
        Self { patience, ..self }
    }

    fn send(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        let (len, sender) = (chunk.len(), &self.sender);
        let waits = match sender.try_send(Ok(Bytes::from(chunk))) {
            Ok(()) => None,
            Err(TrySendError::Closed(_piece)) => return Err(gone()),
            Err(TrySendError::Full(piece)) => Some(piece),
        };
        let Some(Patience { of_chunk, pace }) = &mut self.patience else {
            let sent = waits.map_or(Ok(()), |piece| sender.blocking_send(piece));
            return sent.map_err(|_closed| gone());
        };
        if let Some(piece) = waits {
            // Made inside, because it needs the runtime's clock.
            let sending = async { pace.during(sender.send_timeout(piece, *of_chunk)).await };
            Handle::current().block_on(sending)?.map_err(|error| match error {
                SendTimeoutError::Timeout(_piece) => nothing_taken(),
                SendTimeoutError::Closed(_piece) => gone(),
            })?;
        }
        pace.moved(len);
        Ok(())
    }

    /// Waits until the reader has taken what was sent: it is in memory, which is bounded by the rooms of those that write.
    pub(super) fn until_taken(&mut self) -> io::Result<()> {
        let sender = &self.sender;
        let Some(Patience { of_chunk, pace }) = &mut self.patience else { return Ok(()) };
        for free in 1..=sender.max_capacity() {
            let taking =
                async { pace.during(tokio::time::timeout(*of_chunk, sender.reserve_many(free))).await };
            match Handle::current().block_on(taking)? {
                Ok(Ok(free)) => drop(free),
                Ok(Err(_closed)) => return Err(gone()),
                Err(_elapsed) => return Err(nothing_taken()),
            }
        }
        Ok(())
    }
}

fn gone() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

fn nothing_taken() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing of it was taken for too long")
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() { Ok(()) } else { self.send() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_export_of_which_nothing_is_taken_ends_and_is_not_whole() {
        let (sender, receiver) = mpsc::channel(1);
        let writing = tokio::task::spawn_blocking(move || {
            let patience = Patience { of_chunk: Duration::from_millis(50), pace: Pace::new(None) };
            let mut pieces = Pieces::new(sender).waiting(Some(patience));
            pieces.write_all(&vec![1; 3 * CHUNK_BYTES])
        });
        // Its thread is free, though nobody has read anything.
        while !writing.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let got: Vec<_> = received(Queue::new(receiver), writing).collect().await;
        let [Ok(first), Err(error)] = got.as_slice() else { panic!("{}", got.len()) };
        assert_eq!((first.len(), error.kind()), (CHUNK_BYTES, io::ErrorKind::TimedOut));
    }
}
