//! Standard input: a bounded buffer, and the task that empties it into the pipe or terminal.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use atoll_guest_protocol::STDIN_WINDOW_BYTES;
use atoll_guest_protocol::messages::{Failure, Reason};
use atoll_guest_protocol::server::failure;
use bytes::{Buf, Bytes};
use rustix::io::Errno;
use rustix::termios::{SpecialCodeIndex, tcgetattr};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, Notify};

/// Ctrl-D, should the terminal not say which character ends its input.
const DEFAULT_END_OF_INPUT: u8 = 4;

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bytes>,
    bytes: usize,
    /// No more input is taken: the host closed it, or no process reads it any longer.
    closed: bool,
}

/// One exec's standard input.
#[derive(Debug, Default)]
pub(super) struct Input {
    state: RefCell<State>,
    /// Bytes were queued, or the end was.
    filled: Notify,
    /// Bytes were taken, or no process reads any longer.
    drained: Notify,
    /// One write at a time: the bytes of two do not mix.
    pub(super) turn: Mutex<()>,
}

fn closed() -> Failure {
    failure(Reason::StdinClosed, "standard input is closed")
}

impl Input {
    /// Queues bytes; waits while the buffer is full.
    pub(super) async fn push(&self, bytes: Bytes) -> Result<(), Failure> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                if state.closed {
                    return Err(closed());
                }
                if state.bytes < STDIN_WINDOW_BYTES {
                    state.bytes += bytes.len();
                    state.queue.push_back(bytes);
                    self.filled.notify_one();
                    return Ok(());
                }
            }
            self.drained.notified().await;
        }
    }

    /// Whether it takes more.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.state.borrow().closed { Err(closed()) } else { Ok(()) }
    }

    /// Ends the input after the queued bytes.
    pub(super) fn close(&self) {
        self.state.borrow_mut().closed = true;
        self.filled.notify_one();
        self.drained.notify_one();
    }

    /// No process reads any longer: throws away the queued bytes.
    pub(super) fn abandon(&self) {
        {
            let mut state = self.state.borrow_mut();
            state.queue.clear();
            state.bytes = 0;
        }
        self.close();
    }

    /// Empties the buffer into the descriptor until the end, or until the reader is gone. A pipe is
    /// closed then (when the caller holds no other end); a terminal gets its end-of-input character.
    pub(super) async fn pump(&self, target: Rc<AsyncFd<OwnedFd>>, terminal: bool) {
        let mut line_open = false;
        loop {
            let next = self.state.borrow_mut().queue.pop_front();
            let Some(mut bytes) = next else {
                if self.state.borrow().closed {
                    break;
                }
                self.filled.notified().await;
                continue;
            };
            line_open = !bytes.ends_with(b"\n");
            while bytes.has_remaining() {
                match write(&target, &bytes).await {
                    Ok(len) => {
                        bytes.advance(len);
                        let mut state = self.state.borrow_mut();
                        state.bytes = state.bytes.saturating_sub(len);
                    }
                    Err(_) => return self.abandon(),
                }
                self.drained.notify_one();
            }
        }
        if terminal {
            let end = tcgetattr(target.get_ref())
                .map_or(DEFAULT_END_OF_INPUT, |settings| settings.special_codes[SpecialCodeIndex::VEOF]);
            // Within a line the character only hands the line over; the next one then ends the input.
            let ends = if line_open { vec![end, end] } else { vec![end] };
            write(&target, &ends).await.unwrap_or_default();
        }
    }
}

async fn write(target: &AsyncFd<OwnedFd>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        let mut ready = target.writable().await.or(Err(Errno::IO))?;
        let attempt = ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?));
        match attempt {
            Ok(Ok(len)) => return Ok(len),
            Ok(Err(error)) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                if errno != Errno::INTR {
                    return Err(errno);
                }
            }
            Err(_would_block) => {}
        }
    }
}
