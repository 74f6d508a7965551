//! Where things of other nodes were found, so that not every request for them asks the database.
//!
//! It is not kept true: things go, and move. A node that is asked for what it does not have says so; then this node
//! forgets it here and looks it up ([`crate::Asked`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_core::id::NodeId;
use atoll_store::Whereabouts;

/// Things in each of the two halves.
const HALF_MAX_COUNT: usize = 16_384;

/// What is known. When the younger half is full it becomes the older one, and what no request asked for since then
/// goes.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Halves>);

#[derive(Debug, Default)]
struct Halves {
    younger: HashMap<Whereabouts, NodeId>,
    older: HashMap<Whereabouts, NodeId>,
}

impl Halves {
    fn put(&mut self, what: Whereabouts, node: NodeId) {
        if self.younger.len() >= HALF_MAX_COUNT && !self.younger.contains_key(&what) {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.insert(what, node);
    }
}

impl Known {
    fn halves(&self) -> MutexGuard<'_, Halves> {
        // Two maps: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where something was when it was last looked for.
    pub(super) fn get(&self, what: &Whereabouts) -> Option<NodeId> {
        let mut halves = self.halves();
        if let Some(node) = halves.younger.get(what) {
            return Some(node.clone());
        }
        let (what, node) = halves.older.remove_entry(what)?;
        halves.put(what, node.clone());
        Some(node)
    }

    pub(super) fn put(&self, what: Whereabouts, node: NodeId) {
        // A client asks for a sandbox by its request a few times, and then by its id.
        if !matches!(what, Whereabouts::Request(..)) {
            self.halves().put(what, node);
        }
    }

    pub(super) fn forget(&self, what: &Whereabouts) {
        let mut halves = self.halves();
        halves.younger.remove(what);
        halves.older.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(number: usize) -> Whereabouts {
        Whereabouts::Sandbox(format!("box-{number}"))
    }

    #[test]
    fn what_is_put_is_there_until_it_is_forgotten() {
        let (known, node) = (Known::default(), NodeId::from_parts(1, 1));
        known.put(named(1), node.clone());
        assert_eq!((known.get(&named(1)), known.get(&named(2))), (Some(node), None));
        let other = NodeId::from_parts(2, 2);
        known.put(named(1), other.clone());
        assert_eq!(known.get(&named(1)), Some(other));
        known.forget(&named(1));
        assert_eq!(known.get(&named(1)), None);
    }

    #[test]
    fn it_is_bounded_and_what_is_asked_for_stays() {
        let (known, node) = (Known::default(), NodeId::from_parts(1, 1));
        for number in 0..5 * HALF_MAX_COUNT {
            known.put(named(number), node.clone());
            assert_eq!(known.get(&named(0)), Some(node.clone()), "{number}");
        }
        let halves = known.halves();
        assert!(halves.younger.len() + halves.older.len() <= 2 * HALF_MAX_COUNT);
        assert!(!halves.younger.contains_key(&named(1)) && !halves.older.contains_key(&named(1)));
    }
}
