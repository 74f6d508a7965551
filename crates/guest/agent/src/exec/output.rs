//! Output: from the pipes into the window, from the window to the host.
//!
//! # When an exec has ended
//!
//! When its main process has ended *and* the bytes that were readable in its pipes at that moment are in
//! the window. A background process that keeps a pipe open does not delay the exit. Bytes that it writes
//! later are no longer the exec's output: they are read and thrown away, so that the process neither
//! blocks nor dies of a closed pipe.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Ack, Exited, Started};
use atoll_guest_protocol::wire::Kind;
use bytes::Bytes;
use rustix::io::{Errno, ioctl_fionread};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Exec;
use crate::blocking::BLOCK_BYTES;
use crate::failing::{Stop, invalid};
use crate::operations::Answer;

/// Bytes asked for where the kernel does not say how many there are.
const SMALL_BYTES: usize = 4096;

/// Most output of a terminal that the kernel holds, bytes.
const TERMINAL_MAX_BYTES: usize = 128 << 10;

/// How often an exec that has ended looks whether all that it started has.
const TREE_LOOK: Duration = Duration::from_millis(5);

/// One of the descriptors that output comes from. A terminal has only the first.
#[derive(Debug)]
pub(super) struct Source {
    fd: Rc<AsyncFd<OwnedFd>>,
    stderr: bool,
    open: bool,
}

impl Source {
    pub(super) fn new(fd: Rc<AsyncFd<OwnedFd>>, stderr: bool) -> Self {
        Self { fd, stderr, open: true }
    }

    /// Waits until there are bytes, and takes up to `room` of them. None: it has ended.
    async fn read(&mut self, room: usize) -> Bytes {
        loop {
            let Ok(mut ready) = self.fd.readable().await else { break };
            match ready.try_io(|fd| Ok(take(fd.get_ref(), room)?)) {
                Ok(Ok(bytes)) if bytes.is_empty() => break,
                Ok(Ok(bytes)) => return bytes,
                Ok(Err(error)) if Errno::from_io_error(&error) == Some(Errno::INTR) => {}
                // Reading a terminal that no process has open any longer gives EIO.
                Ok(Err(_)) => break,
                Err(_would_block) => {}
            }
        }
        self.open = false;
        Bytes::new()
    }

    /// How much can be read now, at most.
    ///
    /// A terminal's count leaves out bytes that the kernel still has to hand over to the side that is read, and only a
    /// read waits for those. So for a terminal the answer is the most that the kernel may hold.
    fn readable_bytes(&self) -> usize {
        if rustix::termios::isatty(self.fd.get_ref()) {
            return TERMINAL_MAX_BYTES;
        }
        ioctl_fionread(self.fd.get_ref()).ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
    }

    /// Takes the bytes that are there, without waiting.
    fn take_now(&mut self, room: usize) -> Bytes {
        take(self.fd.get_ref(), room).unwrap_or_default()
    }
}

fn take(fd: &OwnedFd, room: usize) -> Result<Bytes, Errno> {
    let there = ioctl_fionread(fd).ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    let mut buffer: Vec<u8> = Vec::with_capacity(there.max(SMALL_BYTES).min(room).min(BLOCK_BYTES));
    rustix::io::read(fd, rustix::buffer::spare_capacity(&mut buffer))?;
    if buffer.len() < buffer.capacity() / 2 {
        buffer.shrink_to_fit();
    }
    Ok(buffer.into())
}

/// Reads the output until the main process has ended and its output until then is read; later output is thrown away.
pub(super) async fn pump(exec: Rc<Exec>, mut out: Source, mut err: Option<Source>) {
    let mut changed = exec.changed.subscribe();
    while !exec.reaped() {
        let room = exec.room();
        let err_open = err.as_ref().is_some_and(|err| err.open);
        let (stderr, bytes) = tokio::select! {
            _ = changed.changed() => continue,
            bytes = out.read(room), if room > 0 && out.open => (out.stderr, bytes),
            bytes = read_some(&mut err, room), if room > 0 && err_open => (true, bytes),
        };
        exec.push(stderr, bytes);
    }
    for source in [Some(&mut out), err.as_mut()].into_iter().flatten() {
        drain(&exec, source).await;
    }
    exec.end();
    for source in [Some(out), err].into_iter().flatten() {
        tokio::task::spawn_local(discard(source));
    }
}

async fn read_some(source: &mut Option<Source>, room: usize) -> Bytes {
    match source {
        Some(source) => source.read(room).await,
        None => std::future::pending().await,
    }
}

/// Takes the bytes that are readable now, and no more: a process may go on writing for ever.
async fn drain(exec: &Exec, source: &mut Source) {
    if !source.open {
        return;
    }
    let mut changed = exec.changed.subscribe();
    let mut left = source.readable_bytes();
    while left > 0 {
        let room = exec.room();
        if room == 0 {
            // The sender lives in the exec.
            drop(changed.changed().await);
            continue;
        }
        let bytes = source.take_now(room.min(left));
        if bytes.is_empty() {
            return;
        }
        left -= bytes.len();
        exec.push(source.stderr, bytes);
    }
}

async fn discard(mut source: Source) {
    while source.open {
        drop(source.read(BLOCK_BYTES).await);
    }
}

/// Sends an exec's output from `offset` on, then its end; takes acknowledgements meanwhile.
pub(super) async fn stream(
    exec: Rc<Exec>,
    offset: u64,
    request: &mut RecordReader,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    response.message(&Started { pid: exec.pid.unsigned_abs(), offset }).await?;
    let (refused, noticed) = (RefCell::new(None), Notify::new());
    let acknowledged = async {
        *refused.borrow_mut() = Some(acknowledge(&exec, request).await);
        noticed.notify_one();
        std::future::pending().await
    };
    // Not the one that comes first: what is being sent is sent to its end, because an error in the middle of a record
    // could not be told.
    let sent = send(&exec, offset, response, || refused.borrow_mut().take(), &noticed);
    tokio::select! {
        never = acknowledged => never,
        ended = sent => Ok(Answer::last(&ended?)),
    }
}

/// Takes acknowledgements; returns when the host sends what makes no sense.
async fn acknowledge(exec: &Exec, request: &mut RecordReader) -> Stop {
    loop {
        let refused = match request.next().await {
            Ok(Some(record)) if record.kind == Kind::Message => {
                atoll_guest_protocol::wire::decode_message::<Ack>(record.payload)
                    .map_err(|error| error.to_string())
                    .and_then(|ack| exec.acknowledge(ack.offset).map_err(|error| error.to_string()))
            }
            Ok(Some(_)) => Err("only acknowledgements may follow".to_owned()),
            // The host has nothing more to say; the output goes on.
            Ok(None) => std::future::pending().await,
            Err(error) => return error.into(),
        };
        if let Err(why) = refused {
            return Stop::Failure(invalid(why));
        }
    }
}

/// Sends output, record by record, until the exec has ended or `refused` gives a reason to stop, of which `noticed` tells.
async fn send(
    exec: &Exec,
    mut offset: u64,
    response: &mut RecordWriter,
    refused: impl Fn() -> Option<Stop>,
    noticed: &Notify,
) -> Result<Exited, Stop> {
    let mut changed = exec.changed.subscribe();
    loop {
        if let Some(stop) = refused() {
            return Err(stop);
        }
        match exec.piece(offset).map_err(|error| invalid(error.to_string()))? {
            Some(chunk) => {
                offset += chunk.bytes.len() as u64;
                let kind = if chunk.stderr { Kind::DataErr } else { Kind::Data };
                response.data(kind, chunk.bytes).await?;
            }
            None => match exec.exited() {
                Some(exited) => return Ok(exited),
                // The kernel does not tell when the last process has left a cgroup: it may be a moment after its parent
                // was told. The sender lives in the exec.
                None => {
                    let change = async {
                        if exec.waits_for_tree() {
                            drop(timeout(TREE_LOOK, changed.changed()).await);
                        } else {
                            drop(changed.changed().await);
                        }
                    };
                    tokio::select! {
                        () = change => {}
                        () = noticed.notified() => {}
                    }
                }
            },
        }
    }
}
