//! What differs between two snapshots that stand on the same image.
//!
//! Each side is mounted as a sandbox would see it: an overlay of the snapshot's layer on the image's layers, but
//! read-only, in no place, and such that nothing in it can run or be a device. Compared is only what either
//! layer touches: what a layer does not mention is the image's on both sides.
//!
//! The files are hostile: no symbolic link is followed, every directory is opened from the one above, depth,
//! count and bytes are bounded.

mod side;
mod text;
mod walk;

use atoll_core::id::SnapshotId;
use atoll_core::snapshot::Comparison;
use atoll_isolation::{IsolationError, RootFs};

use crate::Inner;
use side::Side;
use walk::Walk;

impl Inner {
    /// Compares two artifacts, or the bare image with one. Blocks for as long as there is to read.
    pub(crate) fn compare(
        &self,
        root: &RootFs,
        from: Option<&SnapshotId>,
        to: &SnapshotId,
        with_text: bool,
    ) -> Result<Comparison, IsolationError> {
        let layers = match root {
            RootFs::Host => vec![self.skeleton.dir().to_owned()],
            RootFs::Layers(layers) => layers.clone(),
        };
        let from = Side::open(&self.storage, &layers, from)?;
        let to = Side::open(&self.storage, &layers, Some(to))?;
        Walk::new(with_text).run(&from, &to)
    }
}
