//! Snapshots: taking them, naming them, removing them, and making rows and artifacts agree after a crash.
//!
//! A row is written before anything of a snapshot is made, says `ready` before the caller is told, and says
//! `deleting` before anything is removed. Everything that a driver makes for a snapshot carries its id, and one
//! undo serves every step: [`atoll_isolation::Isolation::remove_artifact`].
//!
//! No count of references is kept: what uses a snapshot is looked up when a caller wants to remove it. A sandbox made
//! from one has a disk of its own and does not need it any more.

mod auto;
mod checkpoint;
mod compare;
mod digest;
mod fork;
mod manage;
mod reconcile;
mod remote;
mod take;
mod transfer;

pub(crate) use auto::after_exec;
pub use fork::ForkOrder;
pub(crate) use fork::life;
pub(crate) use manage::not_found;
pub use manage::{RemovedSnapshot, SnapshotQuery};
pub use remote::Pushed;
pub(crate) use remote::objects_error;
pub(crate) use take::manifest;
pub use take::{Begin, SnapshotOrder};
pub use transfer::Export;
pub(crate) use transfer::Pieces;

use atoll_core::snapshot::SnapshotKind;
use atoll_core::{Error, Result};
use atoll_store::SnapshotRecord;
use tokio::sync::Mutex;

use crate::rooms::{Limits, Rooms};

/// Digests that are made at the same time. What is on a disk decides how long that takes: minutes, at worst.
const DIGESTED_AT_ONCE: Limits = Limits { all: 4, of_key: 1 };

/// Refuses a snapshot without memory, for a sandbox that is to go on from memory.
pub(crate) fn check_memory(snapshot: &SnapshotRecord) -> Result<()> {
    match snapshot.manifest.kind {
        SnapshotKind::Memory => Ok(()),
        SnapshotKind::Disk => Err(Error::invalid("memory", "the snapshot holds a disk, and no memory")
            .hint("take one with memory, or go on from its disk alone")),
    }
}

/// What the engine keeps for snapshots.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// Held while a digest is made: one at a time of the snapshots of a key, and so of one snapshot.
    digesting: Rooms,
    /// Held from the check of which snapshots some references point to until they point to another.
    naming: Mutex<()>,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { digesting: Rooms::new(DIGESTED_AT_ONCE), naming: Mutex::default() }
    }
}
