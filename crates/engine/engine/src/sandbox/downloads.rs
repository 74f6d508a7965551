//! Memory for what sandboxes send to clients that do not take it: files and archives.
//!
//! A guest sends, unasked, what the window of its answer lets it, and what was read of that waits for the client. So each
//! download holds up to [`HOLDS_BYTES`], whatever the guest says of its size, and these are reserved before the guest is
//! asked. All together have [`MAX_BYTES`]. The owners of sandboxes, their projects, and the sandboxes of one owner leave some to
//! [others](atoll_core::shares), and so do the links to a sandbox's files: anybody may have one, and whoever has a key still
//! reads files of that sandbox. Where there is none left the guest is not asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, ProjectId, SandboxId};
use atoll_core::shares::{Step, Tree, steps};
use atoll_guest_protocol::ANSWER_WINDOW_BYTES;

/// What one download holds at most: a window that was not read, and as much that was.
const HOLDS_BYTES: usize = 2 * ANSWER_WINDOW_BYTES as usize;
/// What all hold together at most: 2,048 of them.
const MAX_BYTES: usize = 512 << 20;

/// What has a share of what its owner may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Part {
    /// Downloads from a sandbox.
    Sandbox(SandboxId),
    /// Those by links to its files, and by addresses that a key signed.
    LinksTo(SandboxId),
}

/// Whose sandbox it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) key: Option<KeyId>,
    pub(super) project: Option<ProjectId>,
}

/// The bytes that downloads hold.
#[derive(Debug, Default)]
pub(crate) struct Downloads(Mutex<Tree<Step<Part>>>);

/// The memory of one download, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    downloads: Arc<Downloads>,
    steps: Vec<Step<Part>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.downloads.reserved().give_back(&self.steps, HOLDS_BYTES);
    }
}

impl Downloads {
    /// Memory for a download from this sandbox, which this owner has, if their shares have it. `of_anybody` is one by a link.
    pub(super) fn hold(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        owner: &Owner,
        of_anybody: bool,
    ) -> Option<Held> {
        let part = if of_anybody { Part::LinksTo } else { Part::Sandbox };
        let mut steps = steps(owner.key.as_ref(), owner.project.as_ref());
        steps.push(Step::Of(part(sandbox.clone())));
        let taken = self.reserved().take(&steps, HOLDS_BYTES, MAX_BYTES);
        taken.then(|| Held { downloads: Arc::clone(self), steps })
    }

    fn reserved(&self) -> MutexGuard<'_, Tree<Step<Part>>> {
        // Counts: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(downloads: &Arc<Downloads>, owner: &Owner, sandbox: u64, of_anybody: bool) -> Vec<Held> {
        let sandbox = SandboxId::from_parts(1, sandbox);
        std::iter::from_fn(|| downloads.hold(&sandbox, owner, of_anybody)).collect()
    }

    fn key(n: u64) -> Owner {
        Owner { key: Some(KeyId::from_parts(1, n)), project: None }
    }

    #[test]
    fn downloads_that_nobody_takes_hold_so_much_and_leave_some_to_others() {
        let downloads = Arc::new(Downloads::default());
        let fill = |owner: u64, n: u64| fill(&downloads, &key(owner), n, false);
        let first = fill(1, 1);
        assert_eq!(first.len() * HOLDS_BYTES, MAX_BYTES / 4, "a sandbox: half of what its owner may have");
        let of_owner: Vec<_> = (2..40).flat_map(|n| fill(1, n)).collect();
        assert_eq!((first.len() + of_owner.len()) * HOLDS_BYTES, MAX_BYTES / 2);
        let others: Vec<_> = (2..40).flat_map(|owner| fill(owner, 100 + owner)).collect();
        assert!(!others.is_empty() && downloads.reserved().taken() <= MAX_BYTES);
        drop((first, of_owner, others));
        assert_eq!(downloads.reserved().taken(), 0);
    }

    #[test]
    fn downloads_by_links_leave_some_to_who_has_a_key_and_keys_of_a_project_to_other_projects() {
        let downloads = Arc::new(Downloads::default());
        let by_links = fill(&downloads, &key(1), 1, true);
        assert!(by_links.len() >= 512, "{}", by_links.len());
        let by_key = fill(&downloads, &key(1), 1, false);
        assert!(by_key.len() >= 256, "whoever has links to it takes nothing of that: {}", by_key.len());
        let project = |n| Some(ProjectId::from_parts(1, n));
        let of_project: Vec<_> = (10..60)
            .flat_map(|n| fill(&downloads, &Owner { project: project(1), ..key(n) }, n, false))
            .collect();
        let other = fill(&downloads, &Owner { project: project(2), ..key(60) }, 60, false);
        assert!(!other.is_empty(), "fifty keys of one project have {}", of_project.len());
    }
}
