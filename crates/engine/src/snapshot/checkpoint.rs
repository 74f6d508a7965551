//! Checkpoints: snapshots that belong to their sandbox, by number, and what can be named beside them.

use atoll_core::error::shorten;
use atoll_core::limits::{CHECKPOINTS_MAX_COUNT, PAGE_MAX_COUNT};
use atoll_core::snapshot::{Purpose, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{SandboxRecord, SnapshotFilter, SnapshotRecord};

use crate::engine::{Caller, Engine};
use crate::errors::store_error;

use super::SnapshotOrder;

impl Engine {
    /// Takes a checkpoint of a sandbox, which goes on. Beyond [`CHECKPOINTS_MAX_COUNT`] the oldest goes.
    ///
    /// # Errors
    /// As [`Self::create_snapshot`].
    pub async fn create_checkpoint(
        &self,
        sandbox: &str,
        comment: Option<String>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let order = SnapshotOrder { purpose: Purpose::Checkpoint(0), tags: Vec::new(), comment };
        let made = self.create_snapshot(sandbox, order, caller).await?;
        let max = usize::try_from(CHECKPOINTS_MAX_COUNT).unwrap_or(usize::MAX);
        for old in self.checkpoints(sandbox).await?.into_iter().skip(max) {
            self.delete_unused_snapshot(&old).await?;
        }
        Ok(made)
    }

    /// The checkpoints of a sandbox, newest first.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub async fn checkpoints(&self, sandbox: &str) -> Result<Vec<SnapshotRecord>> {
        let sandbox = self.inner.sandbox(sandbox)?;
        self.inner.checkpoints_of(&sandbox.id).await
    }

    /// Removes a checkpoint.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::SnapshotNotFound`], [`Code::SnapshotInUse`].
    pub async fn delete_checkpoint(&self, sandbox: &str, number: u32) -> Result<()> {
        let found = self.checkpoint(sandbox, number).await?;
        self.delete_snapshot(found.id.as_str()).await.map(drop)
    }

    async fn checkpoint(&self, sandbox: &str, number: u32) -> Result<SnapshotRecord> {
        let all = self.checkpoints(sandbox).await?;
        let wanted = Purpose::Checkpoint(number);
        all.into_iter()
            .find(|found| found.purpose == wanted && found.state == SnapshotState::Ready)
            .ok_or_else(|| {
                Error::new(Code::SnapshotNotFound, format!("the sandbox has no checkpoint {number}"))
                    .hint("'atoll checkpoints SANDBOX' shows what there is")
            })
    }

    /// What a caller names: the number of a checkpoint of the sandbox, or a snapshot that fits it.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`], [`Code::SnapshotIncompatible`].
    pub(super) async fn point(&self, sandbox: &SandboxRecord, text: &str) -> Result<SnapshotRecord> {
        if let Ok(number) = text.parse::<u32>() {
            return self.checkpoint(sandbox.id.as_str(), number).await;
        }
        let found = self.ready_snapshot(text).await?;
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
    pub(crate) async fn checkpoints_of(
        &self,
        sandbox: &atoll_core::id::SandboxId,
    ) -> Result<Vec<SnapshotRecord>> {
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
    pub(crate) async fn remove_checkpoints(&self, sandbox: &atoll_core::id::SandboxId) -> Result<()> {
        for checkpoint in self.checkpoints_of(sandbox).await? {
            let driver = self.driver(checkpoint.manifest.isolation)?;
            let gone = driver.remove_artifact(&checkpoint.id).await;
            gone.map_err(|error| crate::errors::isolation_error(&error))?;
            self.store.delete_snapshot(&checkpoint.id).await.map_err(store_error)?;
        }
        Ok(())
    }
}
