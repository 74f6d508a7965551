//! Work that blocks, each on a thread of its own, and the channels that feed it.

use std::io::{self, Read, Write};
use std::sync::Arc;

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Failure, Reason};
use atoll_guest_protocol::server::failure;
use atoll_guest_protocol::wire::{Kind, Record};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::failing::{Stop, invalid};

/// Bytes handed over at once.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// Blocks that wait between a thread and the connection.
const BLOCKS_QUEUED: usize = 4;
/// Threads at once; more work waits.
const THREADS_MAX: usize = 16;
/// Stack of a thread. Nothing here recurses.
const STACK_BYTES: usize = 256 << 10;

/// Bounds the threads.
#[derive(Debug, Clone)]
pub(crate) struct Threads(Arc<Semaphore>);

impl Threads {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(THREADS_MAX)))
    }

    /// Runs work on a thread. Giving the future up does not end the work; its channels do.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, Stop>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Failure> + Send + 'static,
    {
        let permit = Arc::clone(&self.0).acquire_owned().await.or(Err(Stop::Gone))?;
        let (done, result) = oneshot::channel();
        std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let outcome = work();
                drop(permit);
                drop(done.send(outcome));
            })
            .map_err(|error| failure(Reason::NoProcesses, format!("cannot start a thread: {error}")))?;
        let result = result.await.map_err(|_ended| failure(Reason::Other, "the work ended early"))?;
        Ok(result?)
    }
}

/// The pieces of an upload that a thread gets.
enum Feed {
    Bytes(Bytes),
    End,
}

/// The thread's end of an upload.
pub(crate) struct Inlet {
    feed: mpsc::Receiver<Feed>,
    rest: Bytes,
    ended: bool,
}

impl Inlet {
    /// The next bytes, or `None` at the proper end. An upload that was cut is an error.
    pub(crate) fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        match self.feed.blocking_recv() {
            Some(Feed::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Feed::End) => {
                self.ended = true;
                Ok(None)
            }
            None => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

impl Read for Inlet {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.next()? {
                Some(bytes) => self.rest = bytes,
                None => return Ok(0),
            }
        }
        let len = self.rest.len().min(buf.len());
        buf[..len].copy_from_slice(&self.rest.split_to(len));
        Ok(len)
    }
}

/// Runs work on the bytes that follow in the request.
pub(crate) async fn consume<T, F>(threads: &Threads, request: &mut RecordReader, work: F) -> Result<T, Stop>
where
    T: Send + 'static,
    F: FnOnce(Inlet) -> Result<T, Failure> + Send + 'static,
{
    let (sender, feed) = mpsc::channel(BLOCKS_QUEUED);
    let mut work =
        std::pin::pin!(threads.run(move || work(Inlet { feed, rest: Bytes::new(), ended: false })));
    let pump = async move {
        loop {
            let feed = match request.next().await? {
                Some(Record { kind: Kind::Data, payload }) => Feed::Bytes(payload),
                Some(_) => return Err(Stop::Failure(invalid("only data may follow"))),
                None => Feed::End,
            };
            let ended = matches!(feed, Feed::End);
            // The work may have failed already: its result says so.
            if sender.send(feed).await.is_err() || ended {
                return Ok(());
            }
        }
    };
    tokio::select! {
        biased;
        result = &mut work => return result,
        pumped = pump => pumped?,
    }
    work.await
}

/// The thread's end of a download.
pub(crate) struct Outlet(mpsc::Sender<Bytes>);

impl Outlet {
    /// Sends a block; an error means that the receiver is gone and wants no more.
    pub(crate) fn send(&self, block: Bytes) -> io::Result<()> {
        self.0.blocking_send(block).or(Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Whether the receiver is gone and wants no more: work that finds nothing to send asks from time to time.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Gathers written bytes into blocks.
pub(crate) struct Blocks {
    outlet: Outlet,
    block: Vec<u8>,
    pub(crate) written: u64,
}

impl Blocks {
    pub(crate) fn new(outlet: Outlet) -> Self {
        Self { outlet, block: Vec::new(), written: 0 }
    }
}

impl Write for Blocks {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.block.capacity() == 0 {
            self.block.reserve_exact(BLOCK_BYTES);
        }
        let len = buf.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&buf[..len]);
        self.written += len as u64;
        if self.block.len() == BLOCK_BYTES {
            self.flush()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.outlet.send(std::mem::take(&mut self.block).into())
    }
}

/// Runs work and sends the blocks it produces as records of this kind.
pub(crate) async fn produce<T, F>(
    threads: &Threads,
    response: &mut RecordWriter,
    framing: Framing,
    work: F,
) -> Result<T, Stop>
where
    T: Send + 'static,
    F: FnOnce(Outlet) -> Result<T, Failure> + Send + 'static,
{
    let (sender, mut blocks) = mpsc::channel(BLOCKS_QUEUED);
    let mut work = std::pin::pin!(threads.run(move || work(Outlet(sender))));
    let mut result = None;
    loop {
        tokio::select! {
            biased;
            block = blocks.recv() => match (block, framing) {
                (Some(block), Framing::Data) => response.data(Kind::Data, block).await?,
                (Some(block), Framing::Encoded) => response.encoded(block).await?,
                (None, _) => break,
            },
            outcome = &mut work, if result.is_none() => result = Some(outcome?),
        }
    }
    match result {
        Some(result) => Ok(result),
        None => work.await,
    }
}

/// The form of a download's blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Framing {
    /// Raw bytes.
    Data,
    /// Records that are encoded already.
    Encoded,
}
