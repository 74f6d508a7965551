//! The memory of all indexes of contexts. An index is there until its build has ended, and a build may wait for hours until it
//! runs: so all have a bound together, of which owners leave some to others, as of [rooms](crate::rooms).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::shares::{Step, Tree};

use crate::rooms::Who;

/// What the indexes of all contexts take. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Indexes(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    max_bytes: usize,
    taken: Tree<Step<Infallible>>,
}

impl Indexes {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(State { max_bytes, taken: Tree::default() })))
    }

    /// The share of an index in which nothing is yet.
    pub(super) fn begin(&self, who: Who) -> Share {
        Share { of: self.clone(), who, bytes: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts, of which each change is one step: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one index takes, until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    of: Indexes,
    who: Who,
    bytes: usize,
}

impl Share {
    /// Takes so many bytes more; says whether there were enough. If not, nothing more is taken.
    #[must_use]
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let mut state = self.of.state();
        let State { max_bytes, taken } = &mut *state;
        let is_taken = taken.take(self.who.steps(), bytes, *max_bytes);
        if is_taken {
            self.bytes += bytes;
        }
        is_taken
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.state().taken.give_back(self.who.steps(), self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::{KeyId, ProjectId};

    const MAX_BYTES: usize = 1024;

    fn who(key: u64, project: Option<u64>) -> Who {
        let project = project.map(|project| ProjectId::from_parts(1, project));
        Who::new(Some(&KeyId::from_parts(1, key)), project.as_ref())
    }

    /// As many indexes of so many bytes as there is memory for.
    fn fill(indexes: &Indexes, who: &Who, bytes: usize) -> Vec<Share> {
        let next = || {
            let mut share = indexes.begin(who.clone());
            share.grow(bytes).then_some(share)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn indexes_leave_memory_to_those_of_others_and_give_it_back() {
        let indexes = Indexes::new(MAX_BYTES);
        let one = fill(&indexes, &who(1, None), 64);
        assert_eq!(one.len(), 8, "half of all, however many builds the key has");
        let held: Vec<_> = (2..40).flat_map(|key| fill(&indexes, &who(key, Some(1)), 16)).collect();
        assert!(
            held.len() <= MAX_BYTES / 4 / 16,
            "keys of one project have what one owner may have: {}",
            held.len()
        );
        assert!(!fill(&indexes, &who(100, None), 16).is_empty(), "there is some for one that comes later");
        drop((one, held));
        assert_eq!(indexes.state().taken.taken(), 0, "all is given back");
    }

    #[test]
    fn what_an_index_may_not_take_leaves_it_as_it_was() {
        let indexes = Indexes::new(MAX_BYTES);
        let mut share = indexes.begin(who(1, None));
        assert!(share.grow(MAX_BYTES / 2 - 1) && !share.grow(2) && !share.grow(usize::MAX));
        assert!(share.grow(1), "what was refused was not taken");
        drop(share);
        assert_eq!(indexes.state().taken.taken(), 0);
    }
}
