//! Checkpoints: snapshots that belong to their sandbox, by number, and what can be named beside them.

use atoll_core::error::shorten;
use atoll_core::id::SandboxId;
use atoll_core::limits::{CHECKPOINTS_MAX_COUNT, PAGE_MAX_COUNT};
use atoll_core::sharing::Needs;
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{SandboxRecord, SnapshotFilter, SnapshotRecord};

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::sandbox::Message;

use super::SnapshotOrder;

impl Engine {
    /// Takes a checkpoint of a sandbox, which goes on. Beyond [`CHECKPOINTS_MAX_COUNT`] the oldest goes.
    ///
    /// # Errors
    /// As [`Self::create_snapshot`].
    #[boxed]
    pub async fn create_checkpoint(
        &self,
        sandbox: &SandboxId,
        comment: Option<String>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let order = SnapshotOrder::without_name(Purpose::Checkpoint(0), comment);
        let made = self.create_snapshot(sandbox, order, caller).await?;
        let all = self.checkpoints(sandbox).await?;
        self.keep(all.into_iter(), CHECKPOINTS_MAX_COUNT).await?;
        Ok(made)
    }

    /// Keeps the newest of checkpoints, which come newest first, but for those that something stands on.
    pub(super) async fn keep(
        &self,
        checkpoints: impl Iterator<Item = SnapshotRecord>,
        count: u32,
    ) -> Result<()> {
        for old in checkpoints.skip(usize::try_from(count).unwrap_or(usize::MAX)) {
            if self.snapshot_users(&old).await?.is_empty() {
                self.delete_unused_snapshot(&old).await?;
            }
        }
        Ok(())
    }

    /// Puts a sandbox back to a checkpoint, or a snapshot that fits it, under the same id: what runs in it ends.
    /// Without a point, back to where it was before the last command began, as far as there is a checkpoint of
    /// that. Gives the sandbox and what it was put back to.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::SnapshotNotFound`], [`Code::SnapshotIncompatible`],
    /// [`Code::InvalidState`]; what the host refuses, and the sandbox is as it was.
    #[boxed]
    pub async fn rollback(
        &self,
        sandbox: &SandboxId,
        to: Option<&str>,
        caller: &Caller,
    ) -> Result<(SandboxRecord, SnapshotRecord)> {
        let sandbox = self.inner.sandbox(sandbox)?;
        sandbox.usable().await?;
        let record = sandbox.record();
        let to = match to {
            Some(text) => self.point(&record, text, caller).await?,
            None => self.before_last_exec(&record).await?,
        };
        // As the sandbox has it, the disk cannot shrink; a larger one grows.
        if to.manifest.resources.disk_bytes > record.spec.resources.disk_bytes {
            return Err(Error::new(
                Code::SnapshotIncompatible,
                format!(
                    "the snapshot's disk has {} bytes, the sandbox's {}",
                    to.manifest.resources.disk_bytes, record.spec.resources.disk_bytes
                ),
            )
            .hint("make a new sandbox of it"));
        }
        let id = to.id.clone();
        let back = sandbox.ask(|reply| Message::Rollback(id, reply)).await?;
        Ok((back, to))
    }

    /// The newest checkpoint after which a command began; the one before it when none has.
    async fn before_last_exec(&self, record: &SandboxRecord) -> Result<SnapshotRecord> {
        let mut all = self.inner.checkpoints_of(&record.id).await?.into_iter();
        let mut all = all.by_ref().filter(|found| found.state == SnapshotState::Ready);
        let execs = self.inner.store.list_execs(&record.id, &[], None, 1).await.map_err(store_error)?;
        let began = execs.items.first().map(|exec| exec.created_ms);
        let newest = all.next();
        let found = match newest {
            Some(newest) if began.is_some_and(|began| began > newest.created_ms) => Some(newest),
            Some(newest) => Some(all.next().unwrap_or(newest)),
            None => None,
        };
        found.ok_or_else(|| {
            Error::new(Code::SnapshotNotFound, "the sandbox has no checkpoint")
                .hint("'atoll checkpoint SANDBOX' takes one; 'atoll create --auto-checkpoints 10' takes them by itself")
        })
    }

    /// The checkpoints of a sandbox, newest first.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn checkpoints(&self, sandbox: &SandboxId) -> Result<Vec<SnapshotRecord>> {
        let sandbox = self.inner.sandbox(sandbox)?;
        self.inner.checkpoints_of(&sandbox.id).await
    }

    /// Removes a checkpoint.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::SnapshotNotFound`], [`Code::SnapshotInUse`].
    #[boxed]
    pub async fn delete_checkpoint(&self, sandbox: &SandboxId, number: u32) -> Result<()> {
        let found = self.checkpoint(sandbox, number).await?;
        // A caller that may change the sandbox may change its checkpoints, no matter which key took them.
        self.delete_snapshot(&found.id, None, &Caller::system()).await.map(drop)
    }

    async fn checkpoint(&self, sandbox: &SandboxId, number: u32) -> Result<SnapshotRecord> {
        let all = self.checkpoints(sandbox).await?;
        all.into_iter()
            .find(|found| found.purpose.checkpoint() == Some(number) && found.state == SnapshotState::Ready)
            .ok_or_else(|| {
                Error::new(Code::SnapshotNotFound, format!("the sandbox has no checkpoint {number}"))
                    .hint("'atoll checkpoints SANDBOX' shows what there is")
            })
    }

    /// What a caller names: the number of a checkpoint of the sandbox, which it uses, or a snapshot that fits it.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`], also for one that the caller may not know of; [`Code::SnapshotIncompatible`].
    pub(super) async fn point(
        &self,
        sandbox: &SandboxRecord,
        text: &str,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        if let Ok(number) = text.parse::<u32>() {
            return self.checkpoint(&sandbox.id, number).await;
        }
        let found = self.usable_snapshot(text, Needs::READ, caller).await?;
        let fits = found.manifest.image_digest == sandbox.image_digest
            && found.manifest.isolation == sandbox.spec.isolation;
        if fits {
            return Ok(found);
        }
        Err(Error::new(
            Code::SnapshotIncompatible,
            format!("the snapshot '{}' stands on another image than the sandbox", shorten(text)),
        )
        .hint("make a new sandbox of it"))
    }
}

impl crate::engine::Inner {
    /// The checkpoints of a sandbox, newest first.
    pub(crate) async fn checkpoints_of(&self, sandbox: &SandboxId) -> Result<Vec<SnapshotRecord>> {
        let filter = SnapshotFilter {
            sandbox: Some(sandbox.clone()),
            checkpoints: Some(true),
            ..SnapshotFilter::default()
        };
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.list_snapshots(&filter, after.as_ref(), PAGE_MAX_COUNT).await;
            let page = page.map_err(store_error)?;
            found.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Removes the checkpoints of a sandbox that is being taken apart.
    pub(crate) async fn remove_checkpoints(&self, sandbox: &SandboxId) -> Result<()> {
        for checkpoint in self.checkpoints_of(sandbox).await? {
            self.pools.let_go_of_snapshot(&checkpoint.id);
            let driver = self.driver(checkpoint.manifest.isolation)?;
            let gone = driver.remove_artifact(&checkpoint.id).await;
            gone.map_err(|error| crate::errors::isolation_error(&error))?;
            self.store.delete_snapshot(&checkpoint.id).await.map_err(store_error)?;
        }
        Ok(())
    }
}
