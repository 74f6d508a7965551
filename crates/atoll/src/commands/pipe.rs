//! Standard input and output of long work that a signal can end: the process at the other end of the pipe may do
//! nothing for ever.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How soon a signal is seen.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes that a pipe takes without waiting, if it takes any.
const PIECE_BYTES: usize = 4096;

/// One end of a pipe, or a file.
#[derive(Debug)]
pub(super) struct Stoppable<'a, F> {
    pub(super) pipe: F,
    pub(super) stop: &'a AtomicBool,
}

impl<F: AsFd> Stoppable<'_, F> {
    fn wait(&self, wanted: PollFlags) -> io::Result<BorrowedFd<'_>> {
        let pipe = self.pipe.as_fd();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("stopped"));
            }
            match poll(&mut [PollFd::from_borrowed_fd(pipe, wanted)], Some(&LOOK_EVERY)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(pipe),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<F: AsFd> Read for Stoppable<'_, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.wait(PollFlags::IN)?, into)?)
    }
}

impl<F: AsFd> Write for Stoppable<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        Ok(rustix::io::write(self.wait(PollFlags::OUT)?, piece)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
