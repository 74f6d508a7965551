//! Rollbacks under way: which sandbox is being put back to which snapshot. When the server ends in between, its next start
//! reads that here and finishes it.

use std::collections::BTreeMap;

use atoll_core::id::{SandboxId, SnapshotId};
use atoll_core::sandbox::SandboxState;

use crate::Store;
use crate::db::{Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::SandboxRecord;
use crate::sandboxes::set_pause;

const ROLLBACKS: Table = Table::new("rollbacks", "sandbox_id");
const END_ROLLBACK: &str = "DELETE FROM rollbacks WHERE sandbox_id = $1";

impl Store {
    /// Writes down that a sandbox is being put back to a snapshot.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when it is under way already.
    pub async fn begin_rollback(&self, sandbox: &SandboxId, snapshot: &SnapshotId) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO rollbacks (sandbox_id, snapshot_id) VALUES ($1, $2)";
        let values = args![sandbox.as_str(), snapshot.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Writes down that the sandbox is not being put back any more.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn end_rollback(&self, sandbox: &SandboxId) -> Result<(), StoreError> {
        let values = args![sandbox.as_str()];
        self.write_one(move |mut conn| {
            Box::pin(async move { conn.execute(END_ROLLBACK, values).await.map(drop) })
        })
        .await
    }

    /// Stores pause and boot of `sandbox`, as [`Store::set_pause`] does, and that its rollback has ended: both or
    /// neither. Else a start that finds the rollback under way would put it back once more, with all that was done
    /// since.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when it is in another state, [`StoreError::NotFound`].
    pub async fn finish_rollback(
        &self,
        sandbox: &SandboxRecord,
        from: &[SandboxState],
    ) -> Result<i64, StoreError> {
        let (sandbox, from) = (sandbox.clone(), from.to_vec());
        self.write(move |mut conn| {
            Box::pin(async move {
                let generation = set_pause(conn.again(), &sandbox, &from).await?;
                conn.execute(END_ROLLBACK, args![sandbox.id.as_str()]).await?;
                Ok(generation)
            })
        })
        .await
    }

    /// The rollbacks that are under way. Nothing is known of where an unreadable one leads: its sandbox may be half of one
    /// and half of another, and is not to be used.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn rollbacks(&self) -> Result<BTreeMap<SandboxId, SnapshotId>, StoreError> {
        const SQL: &str = "SELECT sandbox_id, snapshot_id FROM rollbacks";
        let read = |row: &Row| Ok((row.parse("sandbox_id")?, row.parse("snapshot_id")?));
        let rollbacks = self.list(&ROLLBACKS, Which::All, SQL, Vec::new(), read).await?;
        Ok(rollbacks.into_iter().collect())
    }
}
