//! Accesses in the database: hashes of tokens only.

use atoll_core::id::AccessId;

use crate::Store;
use crate::db::{BadColumn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::AccessRecord;

const TABLE: Table = Table::new("accesses", "id").named("name");

impl Store {
    /// Stores a new access.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the sandbox is not there; [`StoreError::AlreadyExists`] for the id.
    pub async fn insert_access(&self, access: &AccessRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO accesses (id, sandbox_id, target, name, hash, created_ms, created_by, \
             expires_ms) SELECT $1, id, $3, $4, $5, $6, $7, $8 FROM sandboxes WHERE id = $2";
        let values = args![
            access.id.as_str(),
            access.sandbox.as_str(),
            json(&access.target)?,
            access.name.as_deref(),
            access.hash.as_deref().unwrap_or_default(),
            access.created_ms,
            access.created_by.as_ref().map(|key| key.as_str()),
            access.expires_ms,
        ];
        let inserted =
            self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await })).await?;
        if inserted == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }

    /// Every access, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_accesses(&self) -> Result<Vec<AccessRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM accesses ORDER BY created_ms, id";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Removes an access. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_access(&self, id: &AccessId) -> Result<bool, StoreError> {
        let values = args![id.as_str()];
        self.write_one(move |mut conn| {
            Box::pin(async move { Ok(conn.execute("DELETE FROM accesses WHERE id = $1", values).await? > 0) })
        })
        .await
    }

    /// Removes accesses that ended before `now_ms`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_accesses(&self, now_ms: u64) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM accesses WHERE expires_ms <= $1";
        let values = args![now_ms];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await }))
            .await
            .map(drop)
    }
}

fn read(row: &Row) -> Result<AccessRecord, BadColumn> {
    Ok(AccessRecord {
        id: row.parse("id")?,
        sandbox: row.parse("sandbox_id")?,
        target: row.json("target")?,
        name: row.text_opt("name")?,
        hash: Some(row.bytes("hash")?).filter(|hash| !hash.is_empty()),
        created_ms: row.uint("created_ms")?,
        created_by: row.parse_opt("created_by")?,
        expires_ms: row.uint_opt("expires_ms")?,
    })
}
