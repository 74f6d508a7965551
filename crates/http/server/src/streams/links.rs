//! Places for downloads by links to files. Anybody may have a link, and may take nothing of what it gives: so those to one
//! owner's sandboxes leave places to others', and those to one sandbox leave some to its owner's other sandboxes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::shares::Shares;

/// All links together have as many places as so many keys. Those to one owner's sandboxes have no more of them than is
/// left to others: without others, as many as a key. Those to one sandbox have no more of these than is left to the
/// owner's other sandboxes.
const LINKS_IN_KEYS: usize = 2;

/// The places that links have. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Links(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    /// By the owner of their sandbox; `None` stands for sandboxes of nobody.
    owners: Shares<Option<KeyId>>,
    /// What each of these owners has, by sandbox.
    sandboxes: HashMap<Option<KeyId>, Shares<SandboxId>>,
}

/// One of the places, until it is dropped.
#[derive(Debug)]
pub(super) struct LinkPlace {
    owner: Option<KeyId>,
    sandbox: SandboxId,
    links: Links,
}

impl Drop for LinkPlace {
    fn drop(&mut self) {
        self.links.taken().give_back(&self.owner, &self.sandbox);
    }
}

impl Links {
    /// A place for a link to a file of this sandbox, which this owner has. `most` are the places of a key.
    pub(super) fn take(&self, sandbox: &SandboxId, owner: Option<&KeyId>, most: usize) -> Option<LinkPlace> {
        let owner = owner.cloned();
        let taken = self.taken().take(&owner, sandbox, most.saturating_mul(LINKS_IN_KEYS));
        taken.then(|| LinkPlace { owner, sandbox: sandbox.clone(), links: self.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Counts: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Takes one of `max` places, if the share of the owner has it, and the sandbox's of that.
    fn take(&mut self, owner: &Option<KeyId>, sandbox: &SandboxId, max: usize) -> bool {
        // One more than there are, so that of an odd number the sandbox has the larger half: of one place, that one.
        let of_owner = self.owners.most(owner, max).saturating_add(1);
        if !self.owners.take(owner, 1, max) {
            return false;
        }
        // The first of an owner's sandboxes always gets one here, so that none is kept that has nothing.
        let taken = self.sandboxes.entry(owner.clone()).or_default().take(sandbox, 1, of_owner);
        if !taken {
            self.owners.give_back(owner, 1);
        }
        taken
    }

    fn give_back(&mut self, owner: &Option<KeyId>, sandbox: &SandboxId) {
        self.owners.give_back(owner, 1);
        let Some(sandboxes) = self.sandboxes.get_mut(owner) else { return };
        sandboxes.give_back(sandbox, 1);
        if sandboxes.taken() == 0 {
            self.sandboxes.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_one_sandbox_and_to_one_owners_leave_places_to_others() {
        const MOST: usize = 8;
        let links = Links::default();
        let owners: Vec<_> = (0..2).map(|n| KeyId::from_parts(1, n)).collect();
        let fill = |sandbox: u64, owner: Option<&KeyId>| -> Vec<_> {
            let sandbox = SandboxId::from_parts(1, sandbox);
            std::iter::from_fn(|| links.take(&sandbox, owner, MOST)).collect()
        };
        let first = fill(0, owners.first());
        assert_eq!(first.len(), MOST / 2, "one sandbox has half of what its owner may have");
        let second = fill(1, owners.first());
        assert_eq!(second.len(), MOST / 4, "another finds something");
        let rest: Vec<_> = (2..8).flat_map(|sandbox| fill(sandbox, owners.first())).collect();
        assert_eq!(first.len() + second.len() + rest.len(), MOST, "together they have what a key has");
        let others = fill(8, owners.last());
        assert_eq!(others.len(), MOST / 4, "half of the half that is another owner's");
        assert!(!fill(9, None).is_empty(), "sandboxes of nobody have a share, too");
        drop((first, second, rest, others));
        let taken = links.taken();
        assert_eq!((taken.owners.taken(), taken.sandboxes.len()), (0, 0), "places are given back");
    }

    #[test]
    fn the_only_place_of_an_owner_is_one_that_a_sandbox_can_have() {
        let links = Links::default();
        let (owner, sandbox) = (KeyId::from_parts(1, 1), SandboxId::from_parts(1, 1));
        let place = links.take(&sandbox, Some(&owner), 1);
        assert!(place.is_some() && links.take(&sandbox, Some(&owner), 1).is_none());
    }
}
