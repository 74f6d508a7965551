//! Rows and artifacts are made to agree. Runs at every start.
//!
//! | row says | on the host | becomes |
//! |---|---|---|
//! | `creating` | anything | undone: nobody was told that it exists |
//! | `ready` | there | kept; its digest is made if it has none |
//! | `ready` | nothing | kept, and reported: using it says that its data is gone |
//! | `deleting` | anything | removed |
//! | `ready`, a checkpoint without its sandbox, or held by a fork or comparison | anything | removed |
//! | no row | anything | removed |

use std::collections::BTreeSet;

use atoll_core::Result;
use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_store::{SnapshotFilter, SnapshotRecord, StoreError};

use crate::boxed;
use crate::engine::Engine;
use crate::errors::{isolation_error, store_error};
use crate::travel;

/// Rows read at once.
const PAGE: u32 = 1000;

impl Engine {
    /// Every snapshot on this node, checkpoints and held ones included.
    pub(crate) async fn all_snapshots(&self) -> Result<Vec<SnapshotRecord>> {
        let filter = SnapshotFilter { held: true, here: true, ..SnapshotFilter::default() };
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let page = self.inner.store.list_snapshots(&filter, after.as_ref(), PAGE).await;
            let page = page.map_err(store_error)?;
            records.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(records),
            }
        }
    }

    /// The ids of all of them, also those of rows that cannot be read: their artifacts belong to a row all the same.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when an id cannot be read: then every artifact may be that row's.
    async fn known_snapshots(&self) -> Result<BTreeSet<SnapshotId>, StoreError> {
        Ok(self.inner.store.snapshot_ids().await?.into_iter().collect())
    }

    /// Removes what was not finished, and the checkpoints of sandboxes that are not among these, if it is known which there
    /// are.
    pub(crate) async fn recover_snapshots(&self, sandboxes: Option<&BTreeSet<SandboxId>>) -> Result<()> {
        let there = self.artifacts().await?;
        let known = self.known_snapshots().await;
        for record in self.all_snapshots().await? {
            let orphan = record.purpose.checkpoint().is_some()
                && sandboxes
                    .is_some_and(|living| record.sandbox.as_ref().is_none_or(|of| !living.contains(of)));
            let passing = match &record.purpose {
                Purpose::Held(by) => {
                    let passing =
                        [super::fork::HOLDER, super::compare::HOLDER, travel::HOLDER, travel::COPY_HOLDER];
                    passing.contains(&by.as_str())
                }
                Purpose::Snapshot | Purpose::Checkpoint(_) | Purpose::AutoCheckpoint(_) => false,
            };
            if record.state != SnapshotState::Ready || orphan || passing {
                tracing::info!(snapshot = %record.id, "removing a snapshot that was not finished or is not needed");
                if let Err(error) = self.remove_snapshot(&record).await {
                    tracing::error!(snapshot = %record.id, %error, "it could not be removed");
                }
            } else if !there.contains(&record.id) {
                tracing::error!(snapshot = %record.id, "the data of a snapshot is gone");
            } else if record.digest.is_none() && !matches!(record.purpose, Purpose::Held(_)) {
                self.inner.tracker.spawn(super::digest::digest_later(self.clone(), record.id));
            }
        }
        let known = match known {
            Ok(known) => known,
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%error, "nothing that belongs to no known snapshot is removed: it may be that row's");
                return Ok(());
            }
            Err(error) => return Err(store_error(error)),
        };
        for unknown in there.difference(&known) {
            tracing::info!(snapshot = %unknown, "removing what belongs to no known snapshot");
            self.remove_artifact(unknown).await?;
        }
        Ok(())
    }

    /// Artifacts on the host that belong to no known snapshot.
    ///
    /// # Errors
    /// When a driver cannot look, or the store does not answer.
    #[boxed]
    pub async fn leaked_artifacts(&self) -> Result<Vec<SnapshotId>> {
        // First what is there: a row is written before its artifact is made.
        let there = self.artifacts().await?;
        let known = self.known_snapshots().await.map_err(store_error)?;
        Ok(there.into_iter().filter(|id| !known.contains(id)).collect())
    }

    /// Removes what [`Self::leaked_artifacts`] finds; gives what it found.
    ///
    /// # Errors
    /// When something resists.
    #[boxed]
    pub async fn remove_leaked_artifacts(&self) -> Result<Vec<SnapshotId>> {
        let leaked = self.leaked_artifacts().await?;
        for id in &leaked {
            self.remove_artifact(id).await?;
        }
        Ok(leaked)
    }

    async fn remove_artifact(&self, id: &SnapshotId) -> Result<()> {
        for driver in self.inner.drivers.values() {
            driver.remove_artifact(id).await.map_err(|error| isolation_error(&error))?;
        }
        Ok(())
    }

    async fn artifacts(&self) -> Result<BTreeSet<SnapshotId>> {
        let mut there = BTreeSet::new();
        for driver in self.inner.drivers.values() {
            there.extend(driver.artifacts().await.map_err(|error| isolation_error(&error))?);
        }
        Ok(there)
    }
}
