//! Gives blocks that were freed in the pool back to the host's file system, now and then.
//!
//! XFS can do it with every block it frees (the mount option `discard`). Then a task that makes a disk waits while XFS
//! punches holes for disks deleted before: measured as pauses of a quarter of a second. So a thread looks how much has
//! become free, and gives it back all at once: now and then, and as soon as the host's room gets tight (the guard asks
//! for it then), before sandboxes are stopped for want of room that is free in the pool.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_isolation::IsolationError;

use crate::step::Step;
use crate::{freeze, sys};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(10);
/// Bytes that must have been freed since the last time.
const WORTHWHILE_BYTES: u64 = 64 << 20;
/// Smaller free pieces stay, bytes: they are written again soon.
const PIECE_MIN_BYTES: u64 = 256 << 10;

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Trimmer {
    asked: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Trimmer {
    /// Starts the thread for the file system of a mount.
    pub(crate) fn start(mount: BorrowedFd<'_>) -> Result<Self, IsolationError> {
        let root = freeze::root(mount)?;
        let (asked, asks) = sync_channel::<()>(1);
        let look = move || {
            let mut least = free_bytes(&root);
            while asks.recv_timeout(PERIOD) != Err(RecvTimeoutError::Disconnected) {
                let free = free_bytes(&root);
                least = least.min(free);
                if free - least >= WORTHWHILE_BYTES {
                    least = free;
                    if let Err(error) = sys::trim(root.as_fd(), PIECE_MIN_BYTES) {
                        tracing::warn!(%error, "what was freed is not given back to the host");
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("atoll-trim".to_owned()).spawn(look);
        let thread = thread.step("start the thread atoll-trim")?;
        Ok(Self { asked: Some(asked), thread: Some(thread) })
    }

    /// Makes the thread look now. Does not wait.
    pub(crate) fn look(&self) {
        if let Some(asked) = &self.asked {
            // When the channel is full, the thread is about to look anyway. When the thread is gone, its panic has been
            // reported.
            let _ = asked.try_send(());
        }
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        drop(self.asked.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to undo.
            drop(thread.join());
        }
    }
}

/// Gives everything back now.
pub(crate) fn now(mount: BorrowedFd<'_>) -> Result<(), IsolationError> {
    sys::trim(freeze::root(mount)?.as_fd(), 0).step("give room back to the host")
}

fn free_bytes(root: &OwnedFd) -> u64 {
    rustix::fs::fstatvfs(root).map_or(0, |stat| stat.f_bfree * stat.f_frsize)
}
