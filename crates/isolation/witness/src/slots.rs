//! Slots: each has a ring, and belongs to one sandbox at a time. When its sandbox is gone a ring stays in the kernel's
//! map for another sandbox: removing it would wait until every program that runs in the kernel has ended. A few stay
//! mapped here, too: the kernel maps all 2 MiB of one at once, page by page, and takes them apart one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::level::Missing;
use crate::lock;
use crate::object::{RING_BYTES, SLOTS_MAX, make_ring};
use crate::ring::Ring;
use crate::{bpf, store};

/// Rings of no sandbox that stay mapped: some for sandboxes that end at the same time. The kernel counts each as 2 MiB of
/// this process.
const IDLE_MAX_COUNT: usize = 8;

/// A slot with its ring.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    pub(crate) ring: Arc<Ring>,
}

/// Which slots are taken.
#[derive(Debug, Default)]
pub(crate) struct Free(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    taken: BTreeSet<u32>,
    /// Rings of slots that are free.
    idle: BTreeMap<u32, Arc<Ring>>,
}

impl Free {
    pub(crate) fn take(&self, slot: u32) {
        lock(&self.0).taken.insert(slot);
    }

    /// Takes back a slot with its ring, to which nobody listens any more.
    pub(crate) fn give_back(&self, slot: Slot) {
        let mut state = lock(&self.0);
        state.taken.remove(&slot.number);
        if state.idle.len() < IDLE_MAX_COUNT {
            state.idle.insert(slot.number, slot.ring);
        }
    }

    /// Claims a free slot: one whose ring is mapped, or else the lowest, because those have rings already.
    fn claim(&self) -> Option<(u32, Option<Arc<Ring>>)> {
        let mut state = lock(&self.0);
        let (slot, ring) = match state.idle.pop_first() {
            Some((slot, ring)) => (slot, Some(ring)),
            None => ((0..SLOTS_MAX).find(|slot| !state.taken.contains(slot))?, None),
        };
        state.taken.insert(slot);
        Some((slot, ring))
    }
}

/// Claims a slot, with the ring that it has, or a new one.
pub(crate) fn make(free: &Free, rings: &OwnedFd) -> Result<Slot, Missing> {
    let (number, mapped) = free.claim().ok_or_else(|| {
        let full = std::io::Error::other(format!("{SLOTS_MAX} sandboxes are watched already"));
        Missing::refused("watch one more sandbox", full)
    })?;
    if let Some(ring) = mapped {
        ring.map_records().map_err(|error| undo(free, number, error))?;
        return Ok(Slot { number, ring });
    }
    let made = find_or_make(rings, number).and_then(|ring| ring.map_records().map(|()| ring));
    let ring = made.map_err(|error| undo(free, number, error))?;
    Ok(Slot { number, ring: Arc::new(ring) })
}

/// A slot whose ring cannot be had is free again.
fn undo(free: &Free, number: u32, error: std::io::Error) -> Missing {
    lock(&free.0).taken.remove(&number);
    Missing::refused("make a ring", error)
}

fn find_or_make(rings: &OwnedFd, number: u32) -> std::io::Result<Ring> {
    if let Some(ring) = store::ring_of(rings, number)? {
        return Ok(ring);
    }
    let map = make_ring()?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&map).to_ne_bytes();
    bpf::update(rings, &number.to_ne_bytes(), &fd, false)?;
    Ring::open(map, RING_BYTES as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_rings_stay_mapped_and_are_used_again_first() {
        let free = Free::default();
        let claim = || free.claim().unwrap();
        let taken: Vec<_> = (0..IDLE_MAX_COUNT + 3)
            .map(|_| {
                let (number, ring) = claim();
                assert!(ring.is_none(), "slot {number} was never used");
                let ring = Ring::open(make_ring().unwrap(), RING_BYTES as usize).unwrap();
                Slot { number, ring: Arc::new(ring) }
            })
            .collect();
        let rings: Vec<_> = taken.iter().map(|slot| Arc::downgrade(&slot.ring)).collect();
        for slot in taken {
            free.give_back(slot);
        }
        let mapped = || rings.iter().filter(|ring| ring.strong_count() > 0).count();
        assert_eq!(mapped(), IDLE_MAX_COUNT);
        let (number, ring) = claim();
        assert!(ring.is_some_and(|ring| Arc::downgrade(&ring).ptr_eq(&rings[number as usize])));
        assert_eq!(mapped(), IDLE_MAX_COUNT - 1, "who claimed it has it alone");
        for _ in 1..IDLE_MAX_COUNT {
            assert!(claim().1.is_some());
        }
        assert!(claim().1.is_none());
    }
}
