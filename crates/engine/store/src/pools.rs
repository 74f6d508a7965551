//! Warm pools that were set up by name, in the database.

use atoll_core::pool::PoolSpec;

use crate::Store;
use crate::db::{BadColumn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::PoolRecord;

/// Version of the JSON form of a pool's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: Table = Table::new("pools", "name").named("name");

impl Store {
    /// Sets a pool up, or changes it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn put_pool(&self, pool: &PoolRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO pools (name, spec, spec_version, updated_ms) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO UPDATE SET spec = $2, spec_version = $3, updated_ms = $4";
        let values = args![pool.name.as_str(), json(&pool.spec)?, SPEC_VERSION, pool.updated_ms];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await?;
        self.met.mended(&TABLE, &pool.name);
        Ok(())
    }

    /// Every pool that was set up, by name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_pools(&self) -> Result<Vec<PoolRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM pools ORDER BY name";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Forgets a pool. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_pool(&self, name: &str) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM pools WHERE name = $1";
        let values = args![name];
        let deleted = self
            .write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await?;
        self.met.mended(&TABLE, name);
        Ok(deleted)
    }
}

fn read(row: &Row) -> Result<PoolRecord, BadColumn> {
    let spec: PoolSpec = row.spec(SPEC_VERSION)?;
    Ok(PoolRecord { name: row.text("name")?, spec, updated_ms: row.uint("updated_ms")? })
}
