//! Recovery: makes what is there agree with what is intended. Runs at every start, for what is on this node, and for what
//! this node takes over from another.
//!
//! | row says | on the host | becomes |
//! |---|---|---|
//! | `creating` | anything | undone: nobody was told that it exists |
//! | `running`, with a rollback under way | anything | put back, once more if need be |
//! | `running` | alive | taken up, with its execs |
//! | `running` | stands still | it dozed: thawed and taken up |
//! | `paused` (frozen) | alive | frozen, if it is not; its guest is not asked |
//! | `pausing`, `paused` (on disk) | disk, perhaps more | what is more than the disk is ended |
//! | `paused` (on disk), kept in the object store | nothing, or part of a disk that was fetched | as it is: fetched when it is woken |
//! | `paused` (memory), which may have gone on | disk, perhaps more | what is more than disk and memory is ended; copied anew |
//! | the same | nothing | fetched without its memory when it is woken |
//! | `running`, `paused` (frozen) | dead | `failed`, its execs `lost`, its remains removed |
//! | `deleting` | anything | deleted |
//! | `failed` | anything | its remains removed, the record kept |
//! | unreadable, or what resists | anything | left as it is; shown as `failed` if it can be; the next start tries again |
//! | no row | anything | removed: a creation died before its row, or a deletion after it |
//!
//! What is found here is all that a start waits for. The actors take up the rest (network, guest, execs) behind it, with
//! turns at the networks: who uses a sandbox waits until its actor has done that.

use std::collections::BTreeSet;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::snapshot::Purpose;
use atoll_core::{Error, Result};
use atoll_isolation::IsolationError;
use atoll_store::{SandboxFilter, SandboxRecord, StoreError};
use futures::StreamExt as _;

use crate::engine::Engine;
use crate::errors::{isolation_error, store_error};
use crate::execution::execution;
use crate::sandbox::{self, Origin, SandboxShared};

/// Rows read at once.
const PAGE: u32 = 1000;
/// Sandboxes found again at the same time: while the driver looks for one on the host, others go on.
const AT_ONCE_MAX_COUNT: usize = 8;

impl Engine {
    pub(crate) async fn recover(&self) -> Result<()> {
        let records = self.all_records().await?;
        self.adopt_starts(&records).await?;
        // Also the ids of rows that cannot be read: what is on the host for them belongs to a row all the same.
        let known = known_ids(self.inner.store.own_sandbox_ids().await)?;
        // Those of other nodes, too: checkpoints may be here whose sandbox is another's since this node was taken over.
        let everywhere = known_ids(self.inner.store.sandbox_ids().await)?;
        // Before the first of them is recorded.
        if let (Some(own), Some(everywhere)) = (&known, &everywhere) {
            self.set_journals_aside(own, everywhere).await?;
        }
        Box::pin(self.take_up_left_journals(&records)).await?;
        // The checkpoints of one that is being deleted go with it.
        let going = records.iter().filter(|record| record.state == SandboxState::Deleting);
        let going: BTreeSet<&SandboxId> = going.map(|record| &record.id).collect();
        self.undo_fetches(&records).await?;
        let living = everywhere.map(|all| all.into_iter().filter(|id| !going.contains(id)).collect());
        self.recover_snapshots(living.as_ref()).await?;
        let rollbacks = self.inner.store.rollbacks().await.map_err(store_error)?;
        let recover = |record: SandboxRecord| {
            let rollback = rollbacks.get(&record.id).cloned();
            self.recover_or_show(record, rollback)
        };
        let recoveries: Vec<_> = records.into_iter().map(recover).collect();
        futures::stream::iter(recoveries).buffer_unordered(AT_ONCE_MAX_COUNT).collect::<()>().await;
        if let Some(known) = known {
            self.remove_unknown(&known).await;
            self.remove_unknown_logs(&known).await;
        }
        self.recover_builds().await?;
        Ok(())
    }

    /// Takes up a sandbox. One that resists must not keep the others down: it is shown, and can be deleted.
    async fn recover_or_show(&self, record: SandboxRecord, rollback: Option<SnapshotId>) {
        let id = record.id.clone();
        let recovered = match self.inner.store.unreadable_named("rollbacks", id.as_str()) {
            Some(row) => Err(store_error(row.into())),
            None => self.recover_one(record.clone(), rollback).await,
        };
        if let Err(error) = recovered {
            tracing::error!(sandbox = %id, %error, "a sandbox could not be recovered");
            let why = format!("it could not be taken up when the server started: {}", error.message);
            if let Err(error) = self.start_actor(record, Origin::Unusable(why)) {
                tracing::error!(sandbox = %id, %error, "it cannot be shown either");
            }
        }
    }

    /// A sandbox that was being fetched may have a part of its disk here: it is fetched anew. Before its artifact's row goes, which says
    /// that it was. One that may have gone on with its memory is left to its driver, which knows: what went on is whole.
    async fn undo_fetches(&self, records: &[SandboxRecord]) -> Result<()> {
        for artifact in self.all_snapshots().await? {
            let fetched = matches!(&artifact.purpose, Purpose::Held(by) if by == crate::travel::HOLDER);
            let Some(id) = artifact.sandbox.filter(|_| fetched) else { continue };
            let asleep = |record: &&SandboxRecord| record.id == id && record.is_kept() && !record.memory_used;
            if let Some(record) = records.iter().find(asleep)
                && let Some(driver) = self.inner.drivers.get(&record.spec.isolation)
            {
                sandbox::destroy(driver.as_ref(), &id).await?;
            }
        }
        Ok(())
    }

    async fn all_records(&self) -> Result<Vec<SandboxRecord>> {
        let filter = SandboxFilter { here: true, ..SandboxFilter::default() };
        let mut records = Vec::new();
        let mut after = None;
        loop {
            let page =
                self.inner.store.list_sandboxes(&filter, after.as_ref(), PAGE).await.map_err(store_error)?;
            records.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(records),
            }
        }
    }

    pub(crate) async fn recover_one(
        &self,
        mut record: SandboxRecord,
        rollback: Option<SnapshotId>,
    ) -> Result<()> {
        // The time in which the server was away does not count as idleness.
        record.last_active_ms = self.inner.now_ms();
        if let (SandboxState::Running, Some(to)) = (record.state, rollback) {
            // Whether it is the old one that lives, the new one, or none: it becomes the new one.
            return self.start_actor(record, Origin::FinishRollback(to));
        }
        let origin = match record.state {
            SandboxState::Creating => {
                tracing::info!(sandbox = %record.id, "undoing a creation that was interrupted");
                record = self.set_state(record, SandboxState::Deleting, None).await?;
                Origin::FinishDelete
            }
            SandboxState::Deleting => Origin::FinishDelete,
            SandboxState::Failed => Origin::Failed,
            // `resuming` and the `pausing` of a freeze are not recorded.
            SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming
                if record.paused.is_some_and(|mode| mode != PauseMode::Frozen) =>
            {
                Origin::Hibernated
            }
            SandboxState::Running | SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming => {
                match self.adopt(&record).await {
                    Ok(origin) => origin,
                    Err(IsolationError::Gone) => {
                        record = self.bury(record).await?;
                        Origin::Failed
                    }
                    Err(error) => return Err(isolation_error(&error)),
                }
            }
        };
        self.start_actor(record, origin)
    }

    fn start_actor(&self, record: SandboxRecord, origin: Origin) -> Result<()> {
        let shared = SandboxShared::new(record, &self.inner)?;
        self.inner.enter(&shared, false)?;
        sandbox::spawn(&self.inner, &shared, origin);
        self.inner.taken_up.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Finds a live instance, and makes it stand still or go on as its row says.
    async fn adopt(&self, record: &SandboxRecord) -> Result<Origin, IsolationError> {
        let Some(driver) = self.inner.drivers.get(&record.spec.isolation) else {
            let why = format!("this server has no isolation level '{}'", record.spec.isolation);
            return Err(IsolationError::Unavailable(why));
        };
        driver.adopt(&record.id).await?;
        // Set before the sandbox goes on, no matter what an earlier server set last.
        if let Err(error) = driver.set_execution(&record.id, &execution(&record.spec)).await {
            // Nothing may hold back what should not run: it stands still until a server comes that can.
            driver.freeze(&record.id).await?;
            return Err(error);
        }
        // What an earlier server did last may not have been recorded. Without them it still is what it was.
        match self.inner.planned_layers(&record.spec.layers) {
            Ok(layers) => {
                if let Err(error) = driver.set_layers(&record.id, &layers).await {
                    tracing::error!(sandbox = %record.id, %error, "agent layers may be other ones than are recorded");
                }
            }
            Err(error) => tracing::error!(sandbox = %record.id, %error, "agent layers are not here any more"),
        }
        if record.paused == Some(PauseMode::Frozen) {
            driver.freeze(&record.id).await?;
            return Ok(Origin::AdoptFrozen);
        }
        driver.thaw(&record.id).await?;
        Ok(Origin::Adopt)
    }

    /// A sandbox that died while the server was away.
    async fn bury(&self, record: SandboxRecord) -> Result<SandboxRecord> {
        tracing::warn!(sandbox = %record.id, "a sandbox died while the server was away");
        self.inner.store.lose_execs(&record.id, self.inner.now_ms()).await.map_err(store_error)?;
        self.set_state(record, SandboxState::Failed, Some("it died while the server was away")).await
    }

    async fn set_state(
        &self,
        mut record: SandboxRecord,
        to: SandboxState,
        reason: Option<&str>,
    ) -> Result<SandboxRecord, Error> {
        let from = [record.state];
        record.generation =
            self.inner.store.set_sandbox_state(&record.id, &from, to, reason).await.map_err(store_error)?;
        record.state = to;
        record.reason = reason.map(str::to_owned);
        Ok(record)
    }

    async fn remove_unknown(&self, known: &BTreeSet<SandboxId>) {
        for driver in self.inner.drivers.values() {
            let found = match driver.sandboxes().await {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!(%error, "a driver cannot look for what is left over");
                    continue;
                }
            };
            for id in found.difference(known) {
                tracing::info!(sandbox = %id, "removing what belongs to no known sandbox");
                if let Err(error) = sandbox::destroy(driver.as_ref(), id).await {
                    tracing::error!(sandbox = %id, %error, "left-over parts could not be removed");
                }
            }
        }
    }

    async fn remove_unknown_logs(&self, known: &BTreeSet<SandboxId>) {
        let logs = self.inner.config.data_dir.join("logs");
        let Ok(mut entries) = tokio::fs::read_dir(&logs).await else { return };
        while let Ok(Some(entry)) = entries.next_entry().await {
            let id = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok());
            if id.is_some_and(|id| !known.contains(&id))
                && let Err(error) = tokio::fs::remove_dir_all(entry.path()).await
            {
                tracing::warn!(%error, "left-over output logs could not be removed");
            }
        }
    }
}

/// The ids of all rows; nothing when one of them cannot be read: then what is on the host may be that row's.
fn known_ids(ids: Result<Vec<SandboxId>, StoreError>) -> Result<Option<BTreeSet<SandboxId>>, Error> {
    match ids {
        Ok(ids) => Ok(Some(ids.into_iter().collect())),
        Err(error @ StoreError::Corrupt { .. }) => {
            tracing::error!(%error, "nothing that belongs to no known sandbox is removed: it may be that row's");
            Ok(None)
        }
        Err(error) => Err(store_error(error)),
    }
}
