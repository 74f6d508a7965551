//! An epoll over rings, which a task of this process can wake, too.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;

use crate::ring::Ring;

/// Rings that one wait tells of at most; the next one tells of the others.
const EVENTS_MAX_COUNT: usize = 16;
/// The number under which a task wakes, which is no ring's.
const OWN: u64 = 0;
/// How long a thread rests when the kernel does not let it wait.
const REST: Duration = Duration::from_millis(20);

/// What one thread waits for.
#[derive(Debug)]
pub(crate) struct Epoll {
    epoll: OwnedFd,
    event: OwnedFd,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(OWN);
        epoll::add(&epoll, &event, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Self { epoll, event })
    }

    /// Listens to a ring: the thread is woken when a program in the kernel says that much waits there, and once at the
    /// beginning when anything does. `number` is what [`Self::wait`] calls it, and not 0.
    pub(crate) fn add(&self, ring: &Ring, number: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, ring.map.as_fd(), epoll::EventData::new_u64(number), flags)
            .map_err(Into::into)
    }

    /// Ends that. A ring to which it does not listen is left alone.
    pub(crate) fn remove(&self, ring: &Ring) {
        match epoll::delete(&self.epoll, ring.map.as_fd()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => tracing::error!(%error, "cannot stop listening to a ring"),
        }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // When the counter is full, the thread wakes anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Waits until a ring or a task wakes the thread, or for so long; gives the numbers of the rings.
    pub(crate) fn wait(&self, timeout: Option<&Timespec>) -> Vec<u64> {
        let mut events = Vec::<epoll::Event>::with_capacity(EVENTS_MAX_COUNT);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "cannot wait for rings");
                std::thread::sleep(REST);
            }
        }
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        let number = |event: &epoll::Event| {
            let data = event.data;
            data.u64()
        };
        events.iter().map(number).filter(|number| *number != OWN).collect()
    }
}
