//! The thread `witness-grow`: gives a sandbox that turns out to be busy a larger ring, once.
//!
//! ```text
//! the small ring   ── pinned ──┬── the last programs end ── read to its end ── unpinned
//! the larger ring              └── programs write to it ───────────────────────────────── read
//! ```
//!
//! Putting the larger ring into the kernel's map is one step for the programs: each record goes to the one or to the
//! other. The call that does it ends when no program runs any more that began before, also in a process that is killed
//! meanwhile. So the small ring has an end, and what is in it was seen before what the larger one has, or at the same
//! time on another processor.
//!
//! It is a thread of its own because the thread `witness` may be held up, by the digest of a large program or by a disk,
//! and a small ring must not fill up meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::epoll::Epoll;
use crate::object::{self, GROWN_BYTES, WAKE_ABOVE_BYTES};
use crate::ring::Ring;
use crate::watched::Watched;
use crate::{Shared, lock};

/// Sandboxes that are given a larger ring at a time: each has to wait for the same programs to end.
const AT_ONCE_MAX_COUNT: usize = 16;
/// How long a sandbox's records are added up.
const PACE_OVER: Duration = Duration::from_secs(1);

/// Which sandboxes are busy: by what waits in their rings, or by the word of the thread `witness`.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Tells of rings by the cgroups of their sandboxes.
    epoll: Epoll,
    /// Cgroups of sandboxes that wrote much in short time.
    asked: Mutex<BTreeSet<u64>>,
}

impl Growth {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new()?, asked: Mutex::default() })
    }

    /// Listens to a small ring, which is replaced when much waits there.
    pub(crate) fn add(&self, ring: &Ring, cgroup: u64) -> io::Result<()> {
        self.epoll.add(ring, cgroup)
    }

    /// Ends that, if it does.
    pub(crate) fn remove(&self, ring: &Ring) {
        self.epoll.remove(ring);
    }

    /// Asks for a larger ring for the sandbox of this cgroup, and does not wait for it.
    pub(crate) fn ask(&self, cgroup: u64) {
        lock(&self.asked).insert(cgroup);
        self.wake();
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.epoll.wake();
    }
}

/// How much a sandbox writes, a second at a time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    began: Option<Instant>,
    bytes: u64,
    told: bool,
}

impl Pace {
    /// Counts bytes that were read at `now`. `true` once: when more of them came within a second than may wait in a ring.
    pub(crate) fn turns_out_busy(&mut self, bytes: u64, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) > PACE_OVER) {
            self.began = Some(now);
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes > WAKE_ABOVE_BYTES && !std::mem::replace(&mut self.told, true)
    }
}

/// The thread.
pub(crate) fn run(shared: &Shared) {
    while !shared.stop.load(Ordering::Acquire) {
        let heard = shared.growth.epoll.wait(None);
        let asked = std::mem::take(&mut *lock(&shared.growth.asked));
        let find = |cgroup: &u64| lock(&shared.watched).get(cgroup).cloned();
        // The thread `witness` may have read it since it was heard, or it was heard only because it was new here.
        let is_full = |watched: &Arc<Watched>| lock(&watched.rings).now.waiting_bytes() > WAKE_ABOVE_BYTES;
        let full = heard.iter().filter_map(find).filter(is_full);
        let busy: Vec<_> = asked.iter().filter_map(find).chain(full).collect();
        for some in busy.chunks(AT_ONCE_MAX_COUNT) {
            grow_all(shared, some);
        }
    }
}

fn grow_all(shared: &Shared, busy: &[Arc<Watched>]) {
    let say = |watched: &Watched, error: io::Error| {
        let sandbox = &watched.sandbox;
        tracing::warn!(%error, %sandbox, "a busy sandbox keeps its small ring for the kernel's records");
    };
    std::thread::scope(|scope| {
        for watched in busy {
            let grow = move || grow(shared, watched).unwrap_or_else(|error| say(watched, error));
            let thread = std::thread::Builder::new().name("witness-grows".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, grow) {
                say(watched, error);
            }
        }
    });
}

/// Gives a sandbox a larger ring, unless that was tried before or it has ended. Blocks for some milliseconds. There is no
/// second try: memory that the kernel does not have now would be asked for with each record of a flood.
fn grow(shared: &Shared, watched: &Watched) -> io::Result<()> {
    let mut may_grow = lock(&watched.may_grow);
    if !std::mem::take(&mut *may_grow) {
        return Ok(());
    }
    let small = Arc::clone(&lock(&watched.rings).now);
    shared.growth.remove(&small);
    let larger = Ring::open(object::make_ring(GROWN_BYTES)?)?;
    shared.bell.add(&larger)?;
    let replaced = shared.store.enlarge(watched.slot, &small, &larger);
    if let Err(error) = replaced {
        shared.bell.remove(&larger);
        return Err(error);
    }
    // Here and not by the thread `witness`, which would have to do it later; it says so when that fails, too.
    drop(larger.map_records());
    lock(&watched.rings).next = Some(Arc::new(larger));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_much_within_a_second_is_busy_and_that_is_told_once() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::default();
        // As much as may wait each second and a bit, for ever.
        for second in 0..100 {
            assert!(!pace.turns_out_busy(WAKE_ABOVE_BYTES, after(second * 1001)));
        }
        let mut pace = Pace::default();
        assert!(!pace.turns_out_busy(WAKE_ABOVE_BYTES, after(0)));
        assert!(pace.turns_out_busy(1, after(1000)), "one byte more in the same second");
        assert!(!pace.turns_out_busy(WAKE_ABOVE_BYTES, after(1000)));
        assert!(!pace.turns_out_busy(10 * WAKE_ABOVE_BYTES, after(5000)));
        assert!(Pace::default().turns_out_busy(WAKE_ABOVE_BYTES + 1, after(0)), "all at once");
    }
}
