//! What waits of all connections together until a session or forwarding takes it ([`crate::inbox`]): so much memory, of which
//! a project, or a key of no project, leaves as much to others as it has, and the keys of a project to each other. Which data
//! comes is for clients to say, within their windows, and nothing of it can be dropped: so who has much is slowed down long
//! before there is no more, and a connection for whose data there is no room ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use atoll_core::shares::{Step, Tree, steps};
use atoll_engine::Caller;

/// What may wait of all connections together, bytes.
const MAX_BYTES: usize = 1 << 30;
/// Who has more than one in so many parts of what is left has much.
const MUCH: usize = 8;

/// The memory for what waits. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Backlog(Arc<All>);

#[derive(Debug)]
struct All {
    max_bytes: usize,
    taken: Mutex<Tree<Step<()>>>,
}

impl Default for Backlog {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl Backlog {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self(Arc::new(All { max_bytes, taken: Mutex::default() }))
    }

    /// The part of one direction of a connection: nothing yet, and nobody's.
    pub(crate) fn part(&self) -> Part {
        Part { backlog: self.clone(), steps: OnceLock::new(), held: AtomicUsize::new(0) }
    }

    fn taken(&self) -> MutexGuard<'_, Tree<Step<()>>> {
        // Counts: a panic leaves them usable as they are.
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one connection has of it. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    backlog: Backlog,
    steps: OnceLock<Vec<Step<()>>>,
    held: AtomicUsize,
}

impl Part {
    /// From now on it is this caller's; nobody's without one. To be called before anything waits: later it changes nothing.
    pub(crate) fn belongs_to(&self, caller: Option<&Caller>) {
        self.steps.get_or_init(|| steps(caller.and_then(Caller::key), caller.and_then(Caller::project)));
    }

    fn steps(&self) -> &[Step<()>] {
        self.steps.get_or_init(|| steps(None, None))
    }

    /// Takes so many bytes more; says whether there is room for them.
    #[must_use]
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let is_taken = self.backlog.taken().take(self.steps(), bytes, self.backlog.0.max_bytes);
        if is_taken {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Gives so many bytes back; gives how many are left.
    pub(crate) fn give_back(&self, bytes: usize) -> usize {
        self.backlog.taken().give_back(self.steps(), bytes);
        self.held.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes)
    }

    /// How many bytes it has.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the project, or the key of no project, has much of what there is, over all its connections.
    pub(crate) fn is_much(&self) -> bool {
        let first = self.steps().get(..1).unwrap_or_default();
        let taken = self.backlog.taken();
        taken.own(first).saturating_mul(MUCH) > self.backlog.0.max_bytes.saturating_sub(taken.taken())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let rest = self.held();
        self.give_back(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_leaves_room_to_others_and_is_given_back() {
        let backlog = Backlog::new(64);
        let (one, same) = (backlog.part(), backlog.part());
        for part in [&one, &same] {
            part.belongs_to(Some(&Caller::system()));
        }
        assert!(!one.is_much() && one.take(7) && !one.is_much());
        assert!(one.take(1) && same.is_much(), "8 of 56 are left: the connections of one count together");
        assert!(same.take(24) && !same.take(1) && !one.take(1), "half of all");
        assert_eq!(one.give_back(3), 5);
        assert!(same.take(3));
        drop(same);
        assert!(!one.is_much() && one.held() == 5);
        drop(one);
        let taken = backlog.taken();
        assert_eq!((taken.taken(), taken.takers()), (0, 0));
    }
}
