//! Slots: each has a ring, and belongs to one sandbox at a time. When its sandbox is gone a ring stays in the kernel's
//! map for another sandbox: removing it would wait until every program that runs in the kernel has ended. A few stay
//! mapped here, too: the kernel maps all of one at once, page by page, and takes them apart one by one. After many
//! sandboxes have gone a thread of its own removes what is too many of them ([`thin_out`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::level::Missing;
use crate::lock;
use crate::object::{SLOTS_MAX, make_ring};
use crate::ring::Ring;
use crate::{bpf, store};

/// Rings of no sandbox that stay mapped: some for sandboxes that end at the same time. The kernel counts each twice as
/// memory of this process.
const IDLE_MAX_COUNT: usize = 8;
/// Rings of no sandbox that stay in the kernel, those of the lowest slots: as many sandboxes as may come at once.
const RINGS_KEPT_COUNT: usize = 64;

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
    /// Slots that were given back, with a ring that is in the kernel alone, since rings were removed.
    let_go: usize,
    /// Whether rings are being removed.
    thinning: bool,
}

impl Free {
    pub(crate) fn take(&self, slot: u32) {
        lock(&self.0).taken.insert(slot);
    }

    /// Takes back a slot with its ring, to which nobody listens any more. `true` when the caller has to see to it that
    /// [`thin_out`] runs.
    pub(crate) fn give_back(&self, slot: Slot) -> bool {
        let mut state = lock(&self.0);
        state.taken.remove(&slot.number);
        if state.idle.len() < IDLE_MAX_COUNT {
            state.idle.insert(slot.number, slot.ring);
            return false;
        }
        state.let_go += 1;
        let due = state.let_go > RINGS_KEPT_COUNT && !state.thinning;
        state.thinning |= due;
        due
    }

    /// The rings that are too many have been removed, or could not be.
    pub(crate) fn thinned(&self) {
        let mut state = lock(&self.0);
        state.let_go = 0;
        state.thinning = false;
    }

    /// Claims this slot, if it is free and its ring is not mapped.
    fn hold(&self, slot: u32) -> bool {
        let mut state = lock(&self.0);
        !state.idle.contains_key(&slot) && state.taken.insert(slot)
    }

    fn let_go(&self, slot: u32) {
        lock(&self.0).taken.remove(&slot);
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

/// Removes rings of slots that are free from the kernel, but for those that are to be kept, until `stop` says so. Blocks
/// for some milliseconds with each.
pub(crate) fn thin_out(free: &Free, rings: &OwnedFd, stop: impl Fn() -> bool) -> std::io::Result<()> {
    let mut kept = 0;
    for slot in (0..SLOTS_MAX).take_while(|_| !stop()) {
        if !free.hold(slot) {
            continue;
        }
        let key = slot.to_ne_bytes();
        let looked = bpf::look_up(rings, &key, &mut [0; 4]).and_then(|there| {
            let removed = there && kept >= RINGS_KEPT_COUNT && bpf::delete(rings, &key)?;
            kept += usize::from(there && !removed);
            Ok(())
        });
        free.let_go(slot);
        looked?;
    }
    Ok(())
}

/// A slot whose ring cannot be had is free again.
fn undo(free: &Free, number: u32, error: std::io::Error) -> Missing {
    free.let_go(number);
    Missing::refused("make a ring", error)
}

fn find_or_make(rings: &OwnedFd, number: u32) -> std::io::Result<Ring> {
    if let Some(ring) = store::ring_of(rings, number)? {
        return Ok(ring);
    }
    let map = make_ring()?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&map).to_ne_bytes();
    bpf::update(rings, &number.to_ne_bytes(), &fd, false)?;
    Ring::open(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    #[test]
    fn a_few_rings_stay_mapped_and_are_used_again_first() {
        let free = Free::default();
        let claim = || free.claim().unwrap();
        let taken: Vec<_> = (0..IDLE_MAX_COUNT + 3)
            .map(|_| {
                let (number, ring) = claim();
                assert!(ring.is_none(), "slot {number} was never used");
                let ring = Ring::open(make_ring().unwrap()).unwrap();
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

    #[test]
    fn rings_that_are_too_many_are_removed_and_those_in_use_stay() {
        let free = Free::default();
        let rings = object::make_map("rings", &make_ring().unwrap()).unwrap();
        let count = RINGS_KEPT_COUNT + IDLE_MAX_COUNT + 6;
        let mut slots: Vec<_> = (0..count).map(|_| make(&free, &rings).unwrap()).collect();
        let last = slots.pop().unwrap();
        let due: Vec<_> = slots.into_iter().map(|slot| free.give_back(slot)).collect();
        assert_eq!(due.iter().filter(|due| **due).count(), 1, "one is told to remove them");
        let there = || {
            (0..SLOTS_MAX)
                .filter(|slot| bpf::look_up(&rings, &slot.to_ne_bytes(), &mut [0; 4]).unwrap())
                .count()
        };
        assert_eq!(there(), count);
        thin_out(&free, &rings, || true).unwrap();
        assert_eq!(there(), count, "who stops, stops");
        thin_out(&free, &rings, || false).unwrap();
        free.thinned();
        assert_eq!(there(), RINGS_KEPT_COUNT + IDLE_MAX_COUNT + 1);
        assert!(bpf::look_up(&rings, &last.number.to_ne_bytes(), &mut [0; 4]).unwrap(), "it is in use");
        // All of them can be claimed again, with new rings where those are gone.
        let again: BTreeSet<_> = (1..count).map(|_| make(&free, &rings).unwrap().number).collect();
        assert_eq!((again.len(), there()), (count - 1, count));
    }
}
