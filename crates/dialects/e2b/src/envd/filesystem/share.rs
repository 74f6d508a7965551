//! Shares of what all watchers have together: their places, and the memory of events that wait for clients. Projects and keys
//! leave some to each other, and a key's sandboxes too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, ProjectId, SandboxId};
use atoll_core::shares::{Step, Tree, steps};

/// What is taken of something, and by whom. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken(Arc<Mutex<Tree<Step<SandboxId>>>>);

impl Taken {
    /// The share of a key's watcher of a sandbox in which nothing is yet, of `max` that there is for all.
    pub(super) fn begin(
        &self,
        key: Option<&KeyId>,
        project: Option<&ProjectId>,
        sandbox: &SandboxId,
        max: usize,
    ) -> Share {
        let mut steps = steps(key, project);
        steps.push(Step::Of(sandbox.clone()));
        Share { of: self.clone(), steps, max, count: 0 }
    }

    fn tree(&self) -> MutexGuard<'_, Tree<Step<SandboxId>>> {
        // Counts: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one watcher has, until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    of: Taken,
    steps: Vec<Step<SandboxId>>,
    max: usize,
    count: usize,
}

impl Share {
    /// Takes so much more; says whether there was enough. If not, nothing more is taken.
    #[must_use]
    pub(super) fn grow(&mut self, count: usize) -> bool {
        let is_taken = self.of.tree().take(&self.steps, count, self.max);
        if is_taken {
            self.count += count;
        }
        is_taken
    }

    /// Gives so much back.
    pub(super) fn shrink(&mut self, count: usize) {
        let count = count.min(self.count);
        self.of.tree().give_back(&self.steps, count);
        self.count -= count;
    }

    /// How much it has.
    pub(super) const fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.count);
    }
}
