//! SSH public keys in the database.

use atoll_core::id::SshKeyId;

use crate::Store;
use crate::db::{BadColumn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::SshKeyRecord;

const TABLE: Table = Table::new("ssh_keys", "id").named("name");

impl Store {
    /// Stores a new SSH key.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when its API key is not there; [`StoreError::AlreadyExists`] for the id or
    /// the fingerprint.
    pub async fn insert_ssh_key(&self, key: &SshKeyRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO ssh_keys (id, name, public_key, fingerprint, owner, created_ms, \
             expires_ms) SELECT $1, $2, $3, $4, id, $6, $7 FROM api_keys WHERE id = $5";
        let values = args![
            key.id.as_str(),
            key.name.as_str(),
            key.public_key.as_str(),
            key.fingerprint.as_str(),
            key.owner.as_str(),
            key.created_ms,
            key.expires_ms,
        ];
        let inserted =
            self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await })).await?;
        if inserted == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }

    /// Gives an SSH key another name and end. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn renew_ssh_key(
        &self,
        id: &SshKeyId,
        name: &str,
        expires_ms: Option<u64>,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE ssh_keys SET name = $2, expires_ms = $3 WHERE id = $1";
        let values = args![id.as_str(), name, expires_ms];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Every SSH key, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_ssh_keys(&self) -> Result<Vec<SshKeyRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM ssh_keys ORDER BY created_ms, id";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// The SSH key with this fingerprint.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn ssh_key(&self, fingerprint: &str) -> Result<Option<SshKeyRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM ssh_keys WHERE fingerprint = $1";
        let values = args![fingerprint];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        row.map(|row| row.decode("ssh_keys", "id", read)).transpose()
    }

    /// Removes an SSH key. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_ssh_key(&self, id: &SshKeyId) -> Result<bool, StoreError> {
        let values = args![id.as_str()];
        self.write_one(move |mut conn| {
            Box::pin(async move { Ok(conn.execute("DELETE FROM ssh_keys WHERE id = $1", values).await? > 0) })
        })
        .await
    }

    /// Removes SSH keys that ended before `now_ms`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_ssh_keys(&self, now_ms: u64) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM ssh_keys WHERE expires_ms <= $1";
        let values = args![now_ms];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await }))
            .await
            .map(drop)
    }
}

fn read(row: &Row) -> Result<SshKeyRecord, BadColumn> {
    Ok(SshKeyRecord {
        id: row.parse("id")?,
        name: row.text("name")?,
        public_key: row.text("public_key")?,
        fingerprint: row.text("fingerprint")?,
        owner: row.parse("owner")?,
        created_ms: row.uint("created_ms")?,
        expires_ms: row.uint_opt("expires_ms")?,
    })
}
