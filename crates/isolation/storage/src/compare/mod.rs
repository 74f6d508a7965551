//! What differs between two snapshots that stand on the same image.
//!
//! Each side is mounted as a sandbox would see it: an overlay of the snapshot's layer on the image's layers, but
//! read-only, attached nowhere, and such that no file in it can run or be a device. The walk compares only entries that
//! either layer touches: an entry that no layer mentions is the image's on both sides. Of entries that both mention it
//! asks the kernel only about those that are not surely the same ([`inodes`]).
//!
//! The files are hostile: no symbolic link is followed, every directory is opened from the one above, depth,
//! count and bytes are bounded.

mod inodes;
mod side;
mod text;
mod walk;

use std::path::PathBuf;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::Comparison;
use atoll_isolation::IsolationError;

use crate::Storage;
use side::Side;
use walk::Walk;

impl Storage {
    /// Compares two artifacts that stand on these layers (lowest first), or the bare layers with one. Blocks for
    /// as long as there is to read.
    ///
    /// # Errors
    /// [`IsolationError::NoArtifact`], [`IsolationError::Unavailable`] when the kernel is too old,
    /// [`IsolationError::Kernel`].
    pub fn compare(
        &self,
        layers: &[PathBuf],
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let from = Side::open(self, layers, from)?;
        let to = Side::open(self, layers, Some(to))?;
        Walk::new(with_text).run(&from, &to)
    }
}
