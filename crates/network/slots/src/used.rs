//! Slots that come back from sandboxes that have ended, and the thread that looks at them.
//!
//! Taking a namespace apart and making the next one costs the host two to three milliseconds of processor time, and most
//! sandboxes of short life never open a socket. So a slot rests for a moment, then the thread enters its namespace and
//! compares it with a new one ([`Fresh`]). If there is no difference the pool has it again, with its gate as it is;
//! else it is dropped here, in the way of nobody.
#![expect(unsafe_code, reason = "asking a socket for its namespace has no safe wrapper")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_ready::Pool;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::fresh::Fresh;
use crate::{Gate, NetworkError, Slot, Steering, Step, slot};

/// How long a slot rests before it is looked at. The kernel frees netlink sockets after a grace period, and announces
/// the end of a multicast membership after some ticks: by then both have happened.
const REST: Duration = Duration::from_millis(250);
/// Slots that rest at the same time. Beyond it those that come are dropped.
const RESTING_MAX_COUNT: usize = 128;
/// Gives the network namespace of a socket.
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// The slots that rest, and the thread. Dropping it ends the thread and drops what rests.
#[derive(Debug)]
pub(crate) struct Used {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<Pool<Slot, NetworkError>>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The one that rests longest is the first.
    resting: VecDeque<(Instant, Gate)>,
    closed: bool,
}

impl Used {
    /// Starts the thread, which gives the pool what is as new.
    pub(crate) fn start(pool: Arc<Pool<Slot, NetworkError>>) -> io::Result<Self> {
        let shared = Arc::new(Shared { pool, queue: Mutex::default(), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let run = move || {
            of_thread.look_at_all();
            of_thread.close();
        };
        let thread = std::thread::Builder::new().name("atoll-used-slot".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Lets a slot rest that may be used again if nothing was done in it. Does not wait.
    pub(crate) fn take(&self, gate: Gate) {
        // With rules of `nft` a later gate of the same namespace puts its own in their place; without a name server it is
        // no new slot.
        if gate.dns.is_none() || !matches!(gate.steering, Steering::Bpf(_)) {
            return;
        }
        let mut queue = self.shared.lock();
        if queue.closed || queue.resting.len() >= RESTING_MAX_COUNT {
            return;
        }
        queue.resting.push_back((Instant::now(), gate));
        let is_first = queue.resting.len() == 1;
        drop(queue);
        if is_first {
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to undo.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing in it is left half changed by a panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is taken from now on.
    fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        // They are closed without the lock.
        let resting = std::mem::take(&mut queue.resting);
        drop(queue);
        self.changed.notify_all();
        drop(resting);
    }

    /// Waits for the next slot that has rested; `None` at the end.
    fn next(&self) -> Option<Gate> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            let left = queue.resting.front().map(|(since, _)| REST.saturating_sub(since.elapsed()));
            queue = match left {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return queue.resting.pop_front().map(|(_, gate)| gate),
                Some(left) => {
                    self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The thread. It lives for nothing else, and is at home between two slots: otherwise it would keep the namespace of
    /// one that is gone.
    fn look_at_all(&self) {
        let home = match slot::own_netns() {
            Ok(home) => home,
            Err(error) => {
                tracing::warn!(%error, "the networks of sandboxes are not used again");
                return;
            }
        };
        let mut fresh = None;
        while let Some(gate) = self.next() {
            let kept = self.look_at(gate, &mut fresh);
            let at_home = enter(&home);
            if let Err(error) = kept {
                tracing::debug!(%error, cause = %error.source, "a sandbox's network is not used again");
            }
            if let Err(error) = at_home {
                tracing::warn!(%error, cause = %error.source, "the networks of sandboxes are no longer used again");
                return;
            }
        }
    }

    /// Gives the slot to the pool if it is as new. Leaves the thread in its namespace.
    fn look_at(&self, gate: Gate, fresh: &mut Option<Fresh>) -> Result<(), NetworkError> {
        let fresh = match fresh {
            Some(known) => known,
            None => match self.read_fresh()? {
                Some(read) => fresh.insert(read),
                None => return Ok(()),
            },
        };
        let netns = netns_of(&gate.tcp).step("find the network namespace of a gate")?;
        enter(&netns)?;
        match fresh.difference().step("read what a network namespace shows")? {
            None => self.keep(Slot { netns, gate }),
            Some(file) => tracing::debug!(file, "a sandbox used its network, which is not used again"),
        }
        Ok(())
    }

    /// Makes a slot to compare others with, which rests as they do. `None` when the pool closes meanwhile.
    fn read_fresh(&self) -> Result<Option<Fresh>, NetworkError> {
        let slot = slot::make()?;
        let closing = self.changed.wait_timeout_while(self.lock(), REST, |queue| !queue.closed);
        let closed = closing.unwrap_or_else(PoisonError::into_inner).0.closed;
        if closed {
            return Ok(None);
        }
        enter(&slot.netns)?;
        let fresh = Fresh::read().step("read what a network namespace shows")?;
        self.keep(slot);
        Ok(Some(fresh))
    }

    fn keep(&self, slot: Slot) {
        // The pool has enough: taken apart here.
        drop(self.pool.give_back(slot));
    }
}

fn enter(netns: &OwnedFd) -> Result<(), NetworkError> {
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .step("enter a network namespace")
}

/// The namespace of a socket: so nothing but its sockets has to be kept open of a slot while its sandbox lives.
fn netns_of(socket: &impl AsRawFd) -> io::Result<OwnedFd> {
    // SAFETY: SIOCGSKNS takes no argument and touches no memory.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
#[path = "used_tests.rs"]
mod tests;
