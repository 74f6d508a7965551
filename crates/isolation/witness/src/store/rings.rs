//! The kernel's map of rings: which ring each slot has, and which it had before it was given a larger one.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use atoll_failpoint::fail_point;

use crate::bpf;
use crate::level::Missing;
use crate::ring::Ring;
use crate::store::Store;
use crate::watched::Rings;

/// How the ring is pinned that a slot had before it was given a larger one: this and the slot's number. The pin is there
/// from before the change until the thread `witness` has read that ring to its end. Nothing else would keep its records
/// when this server is killed.
const BEFORE_PREFIX: &str = "before_";

impl Store {
    /// The rings of a slot, as an earlier server left them.
    pub(crate) fn rings_of(&self, slot: u32) -> Result<Rings, Missing> {
        let refused = |error| Missing::refused("open a ring", error);
        let written = ring_of(&self.maps.rings, slot).map_err(refused)?;
        let written = Arc::new(written.ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?);
        let Some(before) = self.before(slot).map_err(refused)? else { return Ok(Rings::of(written)) };
        let number = |ring: &Ring| bpf::map_id(&ring.map).map_err(refused);
        if number(&before)? == number(&written)? {
            // That server was killed before the larger ring was there.
            self.forget_before(slot);
            return Ok(Rings::of(written));
        }
        Ok(Rings { now: Arc::new(before), next: Some(written) })
    }

    /// Gives a slot a larger ring, to which the kernel's programs write from now on. `before` stays pinned until
    /// [`Self::forget_before`]. Waits until every program that began before has ended: none writes to `before` then.
    pub(crate) fn enlarge(&self, slot: u32, before: &Ring, larger: &Ring) -> io::Result<()> {
        bpf::pin(&before.map, &self.before_pin(slot))?;
        fail_point!("witness::growth::pinned");
        put_ring(&self.maps.rings, slot, &larger.map).inspect_err(|_unchanged| self.forget_before(slot))?;
        fail_point!("witness::growth::replaced");
        Ok(())
    }

    /// Lets go of the ring that a slot had before, if there is one: it was read to its end, or its sandbox is gone.
    pub(crate) fn forget_before(&self, slot: u32) {
        match std::fs::remove_file(self.before_pin(slot)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, slot, "a ring that was read to its end stays in the kernel for now");
            }
            _ => {}
        }
    }

    /// Does so for all slots but these, which sandboxes have: a server was killed while it forgot the others' sandboxes.
    pub(crate) fn forget_before_of_others(&self, taken: &BTreeSet<u32>) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.set)? {
            let name = entry?.file_name();
            let slot = name.to_str().and_then(|name| name.strip_prefix(BEFORE_PREFIX));
            let slot = slot.and_then(|slot| slot.parse::<u32>().ok());
            if let Some(slot) = slot.filter(|slot| !taken.contains(slot)) {
                self.forget_before(slot);
            }
        }
        Ok(())
    }

    fn before(&self, slot: u32) -> io::Result<Option<Ring>> {
        match bpf::open_pin(&self.before_pin(slot)) {
            Ok(map) => Ring::open(map).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn before_pin(&self, slot: u32) -> PathBuf {
        self.set.join(format!("{BEFORE_PREFIX}{slot}"))
    }
}

/// The ring that a slot has.
pub(crate) fn ring_of(rings: &OwnedFd, slot: u32) -> io::Result<Option<Ring>> {
    let mut id = [0; 4];
    if !bpf::look_up(rings, &slot.to_ne_bytes(), &mut id)? {
        return Ok(None);
    }
    let map = bpf::map_by_id(u32::from_ne_bytes(id))?;
    Ring::open(map).map(Some)
}

/// Gives a slot a ring, in place of the one that it has. Waits until every program in the kernel that began before has
/// ended.
pub(crate) fn put_ring(rings: &OwnedFd, slot: u32, ring: &OwnedFd) -> io::Result<()> {
    bpf::update(rings, &slot.to_ne_bytes(), &ring.as_raw_fd().to_ne_bytes(), false)
}
