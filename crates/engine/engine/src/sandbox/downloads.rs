//! Memory for what sandboxes send to clients that do not take it: files and archives.
//!
//! A guest sends, unasked, what the window of its answer lets it, and what was read of that waits for the client. So each
//! download holds up to [`HOLDS_BYTES`], whatever the guest says of its size, and these are reserved before the guest is
//! asked. All together have [`MAX_BYTES`]. Owners of sandboxes, and the sandboxes of one owner, leave some to
//! [others](atoll_core::shares). Where there is none left the guest is not asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::shares::Nested;
use atoll_guest_protocol::ANSWER_WINDOW_BYTES;

/// What one download holds at most: a window that was not read, and as much that was.
const HOLDS_BYTES: usize = 2 * ANSWER_WINDOW_BYTES as usize;
/// What all hold together at most: 2,048 of them.
const MAX_BYTES: usize = 512 << 20;

/// By the owner of the sandbox; `None` stands for sandboxes of nobody.
type Reserved = Nested<Option<KeyId>, SandboxId>;

/// The bytes that downloads hold.
#[derive(Debug, Default)]
pub(crate) struct Downloads(Mutex<Reserved>);

/// The memory of one download, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    downloads: Arc<Downloads>,
    owner: Option<KeyId>,
    sandbox: SandboxId,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.downloads.reserved().give_back(&self.owner, &self.sandbox, HOLDS_BYTES);
    }
}

impl Downloads {
    /// Memory for a download from this sandbox, which this owner has, if their shares have it.
    pub(crate) fn hold(self: &Arc<Self>, sandbox: &SandboxId, owner: Option<KeyId>) -> Option<Held> {
        let taken = self.reserved().take(&owner, sandbox, HOLDS_BYTES, MAX_BYTES);
        taken.then(|| Held { downloads: Arc::clone(self), owner, sandbox: sandbox.clone() })
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        // Counts: a panic leaves them usable as they are.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_that_nobody_takes_hold_so_much_and_leave_some_to_others() {
        let downloads = Arc::new(Downloads::default());
        let sandbox = |n| SandboxId::from_parts(1, n);
        let fill = |owner: u64, n: u64| -> Vec<Held> {
            let owner = KeyId::from_parts(1, owner);
            std::iter::from_fn(|| downloads.hold(&sandbox(n), Some(owner.clone()))).collect()
        };
        let first = fill(1, 1);
        assert_eq!(first.len() * HOLDS_BYTES, MAX_BYTES / 4, "a sandbox: half of what its owner may have");
        let of_owner: Vec<_> = (2..40).flat_map(|n| fill(1, n)).collect();
        assert_eq!((first.len() + of_owner.len()) * HOLDS_BYTES, MAX_BYTES / 2);
        let others: Vec<_> = (2..40).flat_map(|owner| fill(owner, 100 + owner)).collect();
        assert!(!others.is_empty() && downloads.reserved().taken() <= MAX_BYTES);
        drop((first, of_owner, others));
        assert_eq!(downloads.reserved().taken(), 0);
    }
}
