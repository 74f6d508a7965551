//! Places for requests by links: to files of sandboxes, and to objects that a dialect keeps. Anybody may have a link, and may
//! take nothing of what it gives: so those to what one owner has leave places to others', and those to one sandbox's files,
//! or to one object, leave some to the owner's other ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::shares::Nested;

/// All links together have as many places as so many keys. Those to what one owner has have no more of them than is left
/// to others: without others, as many as a key. Those to one thing have no more of these than is left to the owner's
/// other things.
const LINKS_IN_KEYS: usize = 2;

/// What a link leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Linked {
    /// Files of a sandbox.
    Sandbox(SandboxId),
    /// An object that a dialect keeps, by the dialect's name for it.
    Object(Box<str>),
}

/// The places that links have. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Links(Arc<Mutex<Taken>>);

/// By the owner of what the links lead to; `None` stands for what nobody owns.
type Taken = Nested<Option<KeyId>, Linked>;

/// One of the places, until it is dropped.
#[derive(Debug)]
pub(super) struct LinkPlace {
    owner: Option<KeyId>,
    linked: Linked,
    links: Links,
}

impl Drop for LinkPlace {
    fn drop(&mut self) {
        self.links.taken().give_back(&self.owner, &self.linked, 1);
    }
}

impl Links {
    /// A place for a link to this, which this owner has. `most` are the places of a key.
    pub(super) fn take(&self, linked: &Linked, owner: Option<&KeyId>, most: usize) -> Option<LinkPlace> {
        let owner = owner.cloned();
        let taken = self.taken().take(&owner, linked, 1, most.saturating_mul(LINKS_IN_KEYS));
        taken.then(|| LinkPlace { owner, linked: linked.clone(), links: self.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Counts: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            let sandbox = Linked::Sandbox(SandboxId::from_parts(1, sandbox));
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
        assert_eq!((taken.taken(), taken.owners()), (0, 0), "places are given back");
    }

    #[test]
    fn the_only_place_of_an_owner_is_one_that_a_sandbox_can_have() {
        let links = Links::default();
        let (owner, sandbox) = (KeyId::from_parts(1, 1), Linked::Sandbox(SandboxId::from_parts(1, 1)));
        let place = links.take(&sandbox, Some(&owner), 1);
        assert!(place.is_some() && links.take(&sandbox, Some(&owner), 1).is_none());
    }
}
