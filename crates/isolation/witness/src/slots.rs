//! Slots: each has a ring, and belongs to one sandbox at a time. When its sandbox is gone a ring stays in the kernel's
//! map for another sandbox: removing it would wait until every program that runs in the kernel has ended. A few stay
//! mapped here, too: the kernel maps all of one at once, page by page, and takes them apart one by one. After many
//! sandboxes have gone a thread of its own removes what is too many of them. The same thread removes the larger ring of a
//! busy sandbox that is gone ([`clear_away`]): every sandbox begins with a small one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::level::Missing;
use crate::lock;
use crate::object::{RING_BYTES, SLOTS_MAX, make_ring};
use crate::ring::Ring;
use crate::{bpf, store};

/// Bytes of a ring that a sandbox can begin with.
const BYTES: usize = RING_BYTES as usize;

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
    /// Slots that were given back with a larger ring, and are nobody's until that is removed.
    larger: Vec<u32>,
    /// Whether rings are being removed.
    clearing: bool,
}

/// What the thread `witness-away` has to do.
#[derive(Debug)]
enum Due {
    /// Remove the larger ring of this slot.
    Larger(u32),
    /// Remove rings of no sandbox, but for those that are kept.
    Many,
}

impl Free {
    pub(crate) fn take(&self, slot: u32) {
        lock(&self.0).taken.insert(slot);
    }

    /// Takes back a slot with its ring, to which nobody listens any more. `true` when the caller has to see to it that
    /// [`clear_away`] runs.
    pub(crate) fn give_back(&self, slot: Slot) -> bool {
        let mut state = lock(&self.0);
        if slot.ring.bytes() == BYTES {
            state.taken.remove(&slot.number);
            if state.idle.len() < IDLE_MAX_COUNT {
                state.idle.insert(slot.number, slot.ring);
                return false;
            }
            state.let_go += 1;
        } else {
            state.larger.push(slot.number);
        }
        let due = !state.clearing && (state.let_go > RINGS_KEPT_COUNT || !state.larger.is_empty());
        state.clearing |= due;
        due
    }

    /// Nobody removes rings now: the next slot that is given back is a new occasion.
    pub(crate) fn not_cleared(&self) {
        lock(&self.0).clearing = false;
    }

    /// What is to be removed. With `None` whoever asks has to end: the next one who gives back too much begins another.
    fn due(&self) -> Option<Due> {
        let mut state = lock(&self.0);
        if let Some(slot) = state.larger.pop() {
            return Some(Due::Larger(slot));
        }
        if state.let_go > RINGS_KEPT_COUNT {
            state.let_go = 0;
            return Some(Due::Many);
        }
        state.clearing = false;
        None
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

/// Removes what is too much in the kernel, until there is nothing or `stop` says so: the thread `witness-away`. Blocks for
/// some milliseconds with each ring.
pub(crate) fn clear_away(free: &Free, rings: &OwnedFd, stop: impl Fn() -> bool) {
    while !stop()
        && let Some(due) = free.due()
    {
        let removed = match due {
            Due::Larger(slot) => remove_larger(free, rings, slot),
            Due::Many => thin_out(free, rings, &stop),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "rings of sandboxes that are gone stay for now");
        }
    }
}

/// Removes the larger ring of a sandbox that is gone, whose slot is free then. When the kernel keeps the ring, it is
/// replaced when the slot is claimed.
fn remove_larger(free: &Free, rings: &OwnedFd, slot: u32) -> std::io::Result<()> {
    let removed = bpf::delete(rings, &slot.to_ne_bytes());
    free.let_go(slot);
    removed.map(drop)
}

/// Removes rings of slots that are free from the kernel, but for those that are to be kept, until `stop` says so.
fn thin_out(free: &Free, rings: &OwnedFd, stop: impl Fn() -> bool) -> std::io::Result<()> {
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
    // A larger one is of a server that was killed before it removed it, or of a version with larger rings for all.
    if let Some(ring) = store::ring_of(rings, number)?.filter(|ring| ring.bytes() == BYTES) {
        return Ok(ring);
    }
    let map = make_ring(RING_BYTES)?;
    store::put_ring(rings, number, &map)?;
    Ring::open(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{self, GROWN_BYTES};

    fn map_of_rings() -> OwnedFd {
        object::make_map("rings", &make_ring(RING_BYTES).unwrap()).unwrap()
    }

    fn has_ring(rings: &OwnedFd, slot: u32) -> bool {
        bpf::look_up(rings, &slot.to_ne_bytes(), &mut [0; 4]).unwrap()
    }

    /// Gives a slot a larger ring, as a busy sandbox has it.
    fn put_larger(rings: &OwnedFd, number: u32) -> Slot {
        let map = make_ring(GROWN_BYTES).unwrap();
        store::put_ring(rings, number, &map).unwrap();
        Slot { number, ring: Arc::new(Ring::open(map).unwrap()) }
    }

    #[test]
    fn a_few_rings_stay_mapped_and_are_used_again_first() {
        let free = Free::default();
        let claim = || free.claim().unwrap();
        let taken: Vec<_> = (0..IDLE_MAX_COUNT + 3)
            .map(|_| {
                let (number, ring) = claim();
                assert!(ring.is_none(), "slot {number} was never used");
                let ring = Ring::open(make_ring(RING_BYTES).unwrap()).unwrap();
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
        let rings = map_of_rings();
        let count = RINGS_KEPT_COUNT + IDLE_MAX_COUNT + 6;
        let mut slots: Vec<_> = (0..count).map(|_| make(&free, &rings).unwrap()).collect();
        let last = slots.pop().unwrap();
        let due: Vec<_> = slots.into_iter().map(|slot| free.give_back(slot)).collect();
        assert_eq!(due.iter().filter(|due| **due).count(), 1, "one is told to remove them");
        let there = || (0..SLOTS_MAX).filter(|slot| has_ring(&rings, *slot)).count();
        assert_eq!(there(), count);
        thin_out(&free, &rings, || true).unwrap();
        assert_eq!(there(), count, "who stops, stops");
        clear_away(&free, &rings, || false);
        assert_eq!(there(), RINGS_KEPT_COUNT + IDLE_MAX_COUNT + 1);
        assert!(has_ring(&rings, last.number), "it is in use");
        // All of them can be claimed again, with new rings where those are gone.
        let again: BTreeSet<_> = (1..count).map(|_| make(&free, &rings).unwrap().number).collect();
        assert_eq!((again.len(), there()), (count - 1, count));
    }

    #[test]
    fn a_larger_ring_goes_with_its_sandbox() {
        let (free, rings) = (Free::default(), map_of_rings());
        let number = make(&free, &rings).unwrap().number;
        assert!(free.give_back(put_larger(&rings, number)), "somebody is told to remove it");
        let (second, third) = (make(&free, &rings).unwrap().number, make(&free, &rings).unwrap().number);
        assert!(second != number && third != number, "the slot is nobody's until then");
        assert!(!free.give_back(put_larger(&rings, third)), "the same one is to remove it");
        clear_away(&free, &rings, || false);
        assert_eq!([number, second, third].map(|slot| has_ring(&rings, slot)), [false, true, false]);
        let again = make(&free, &rings).unwrap();
        assert_eq!((again.number, again.ring.bytes()), (number, BYTES));
        assert!(free.give_back(put_larger(&rings, number)), "who removed the others has ended");
    }

    #[test]
    fn a_larger_ring_that_a_killed_server_left_is_no_new_sandboxs() {
        let (free, rings) = (Free::default(), map_of_rings());
        let left = put_larger(&rings, 0);
        let made = make(&free, &rings).unwrap();
        assert_eq!((made.number, made.ring.bytes()), (left.number, BYTES));
        let found = store::ring_of(&rings, left.number).unwrap().unwrap();
        assert_eq!(found.bytes(), BYTES, "programs of the kernel write to the small one");
    }
}
