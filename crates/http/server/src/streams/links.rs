//! Places for requests by links: to files of sandboxes, and to objects that a dialect keeps. Anybody may have a link, and may
//! take nothing of what it gives: so those to what one owner has, or one project, leave places to others', and those to one
//! sandbox's files, or to one object, leave some to the owner's other ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, ProjectId, SandboxId};
use atoll_core::shares::{Step, Tree, steps};

/// All links together have as many places as so many keys. Those to what one project has, or one owner of no project, have no
/// more of them than is left to others: without others, as many as a key. Owners of one project leave some to each other, and
/// those to one thing have no more than is left to the owner's other things.
const LINKS_IN_KEYS: usize = 2;

/// Whose that is which a link leads to. Without a key it is nobody's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owner<'a> {
    pub(crate) key: Option<&'a KeyId>,
    pub(crate) project: Option<&'a ProjectId>,
}

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
pub(super) struct Links(Arc<Mutex<Tree<Step<Linked>>>>);

/// One of the places, until it is dropped.
#[derive(Debug)]
pub(super) struct LinkPlace {
    steps: Vec<Step<Linked>>,
    links: Links,
}

impl Drop for LinkPlace {
    fn drop(&mut self) {
        self.links.taken().give_back(&self.steps, 1);
    }
}

impl Links {
    /// A place for a link to this, which this owner has. `most` are the places of a key.
    pub(super) fn take(&self, linked: &Linked, owner: Owner<'_>, most: usize) -> Option<LinkPlace> {
        let mut steps = steps(owner.key, owner.project);
        steps.push(Step::Of(linked.clone()));
        let taken = self.taken().take(&steps, 1, most.saturating_mul(LINKS_IN_KEYS));
        taken.then(|| LinkPlace { steps, links: self.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, Tree<Step<Linked>>> {
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
            let owner = Owner { key: owner, project: None };
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
        assert_eq!((taken.taken(), taken.takers()), (0, 0), "places are given back");
    }

    #[test]
    fn the_only_place_of_an_owner_is_one_that_a_sandbox_can_have() {
        let links = Links::default();
        let (owner, sandbox) = (KeyId::from_parts(1, 1), Linked::Sandbox(SandboxId::from_parts(1, 1)));
        let owner = Owner { key: Some(&owner), project: None };
        let place = links.take(&sandbox, owner, 1);
        assert!(place.is_some() && links.take(&sandbox, owner, 1).is_none());
    }

    #[test]
    fn links_to_what_many_keys_of_one_project_have_leave_places_to_other_projects() {
        const MOST: usize = 64;
        let links = Links::default();
        let fill = |key: u64, project: u64| -> Vec<_> {
            let (key, project) = (KeyId::from_parts(1, key), ProjectId::from_parts(1, project));
            let (owner, linked) =
                (Owner { key: Some(&key), project: Some(&project) }, Linked::Object("o".into()));
            std::iter::from_fn(|| links.take(&linked, owner, MOST)).collect()
        };
        let first: Vec<_> = (0..50).flat_map(|key| fill(key, 1)).collect();
        assert!(first.len() <= MOST, "a project has no more than a key has: {}", first.len());
        assert!(!fill(50, 2).is_empty());
    }
}
