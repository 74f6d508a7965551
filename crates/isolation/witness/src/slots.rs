//! Slots: each has a ring, and belongs to one sandbox at a time. When its sandbox is gone a ring stays in the kernel's
//! map for another sandbox: removing it would wait until every program that runs in the kernel has ended.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use crate::level::Missing;
use crate::lock;
use crate::object::{RING_BYTES, SLOTS_MAX, make_ring};
use crate::ring::Ring;
use crate::{bpf, store};

/// A slot with its ring.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: u32,
    pub(crate) ring: Ring,
}

/// Which slots are taken.
#[derive(Debug, Default)]
pub(crate) struct Free {
    taken: Mutex<BTreeSet<u32>>,
}

impl Free {
    pub(crate) fn take(&self, slot: u32) {
        lock(&self.taken).insert(slot);
    }

    pub(crate) fn give_back(&self, slot: u32) {
        lock(&self.taken).remove(&slot);
    }

    /// Claims the lowest free slot: slots that have rings already come first.
    fn claim(&self) -> Option<u32> {
        let mut taken = lock(&self.taken);
        let slot = (0..SLOTS_MAX).find(|slot| !taken.contains(slot))?;
        taken.insert(slot);
        Some(slot)
    }
}

/// Claims a slot, with the ring that it has, or a new one.
pub(crate) fn make(free: &Free, rings: &OwnedFd) -> Result<Slot, Missing> {
    let number = free.claim().ok_or_else(|| {
        let full = std::io::Error::other(format!("{SLOTS_MAX} sandboxes are watched already"));
        Missing::refused("watch one more sandbox", full)
    })?;
    let mapped = |ring: Ring| ring.map_records().map(|()| ring);
    let ring = find_or_make(rings, number).and_then(mapped);
    let ring = ring.map_err(|error| Missing::refused("make a ring", error));
    if ring.is_err() {
        free.give_back(number);
    }
    Ok(Slot { number, ring: ring? })
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
