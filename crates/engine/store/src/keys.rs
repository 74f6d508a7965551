//! API keys in the database: hashes only.

use atoll_core::id::KeyId;

use crate::Store;
use crate::db::{BadColumn, Row, Value, args, json};
use crate::error::StoreError;
use crate::record::KeyRecord;

impl Store {
    /// Stores a new key.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for the id or the hash.
    pub async fn insert_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO api_keys (id, name, hash, scopes, created_ms, expires_ms, last_used_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let values = args![
            key.id.as_str(),
            key.name.as_str(),
            key.hash.as_slice(),
            json(&key.scopes)?,
            key.created_ms,
            key.expires_ms,
            key.last_used_ms,
        ];
        self.change_keys(SQL, values).await.map(drop)
    }

    /// Every key, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a row cannot be read.
    pub async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.keys("SELECT * FROM api_keys ORDER BY created_ms, id", Vec::new()).await
    }

    /// Removes a key. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_key(&self, id: &KeyId) -> Result<bool, StoreError> {
        self.change_keys("DELETE FROM api_keys WHERE id = $1", args![id.as_str()]).await
    }

    /// Records when a key was last used; an earlier time than the stored one changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn touch_key(&self, id: &KeyId, used_ms: u64) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE api_keys SET last_used_ms = $2 \
             WHERE id = $1 AND (last_used_ms IS NULL OR last_used_ms < $2)";
        self.change_keys(SQL, args![id.as_str(), used_ms]).await.map(drop)
    }

    async fn keys(&self, sql: &'static str, values: Vec<Value>) -> Result<Vec<KeyRecord>, StoreError> {
        let rows = self.read(move |mut conn| Box::pin(async move { conn.rows(sql, values).await })).await?;
        rows.iter().map(|row| row.decode("api_keys", "id", read)).collect()
    }

    async fn change_keys(&self, sql: &'static str, values: Vec<Value>) -> Result<bool, StoreError> {
        self.write(move |mut conn| Box::pin(async move { Ok(conn.execute(sql, values).await? > 0) })).await
    }
}

fn read(row: &Row) -> Result<KeyRecord, BadColumn> {
    Ok(KeyRecord {
        id: row.parse("id")?,
        name: row.text("name")?,
        hash: row.bytes("hash")?,
        scopes: row.json("scopes")?,
        created_ms: row.uint("created_ms")?,
        expires_ms: row.uint_opt("expires_ms")?,
        last_used_ms: row.uint_opt("last_used_ms")?,
    })
}
