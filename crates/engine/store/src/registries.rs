//! Credentials of image registries in the database, sealed.

use crate::Store;
use crate::db::{BadColumn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::RegistryRecord;

const TABLE: Table = Table::new("registries", "host");

impl Store {
    /// Stores credentials, in place of those that the host had. A name that is not given stays.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn put_registry(&self, registry: &RegistryRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO registries (host, username, sealed, updated_ms, name) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (host) DO UPDATE SET username = excluded.username, \
             sealed = excluded.sealed, updated_ms = excluded.updated_ms, \
             name = COALESCE(excluded.name, registries.name)";
        let values = args![
            registry.host.as_str(),
            registry.username.as_str(),
            registry.sealed.as_slice(),
            registry.updated_ms,
            registry.name.as_deref(),
        ];
        self.write(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await?;
        self.met.mended(&TABLE, &registry.host);
        Ok(())
    }

    /// The credentials for a host, if there are any.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the row cannot be read.
    pub async fn registry(&self, host: &str) -> Result<Option<RegistryRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM registries WHERE host = $1";
        let values = args![host];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        row.map(|row| row.decode("registries", "host", read)).transpose()
    }

    /// Every registry, by host.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_registries(&self) -> Result<Vec<RegistryRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM registries ORDER BY host";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Removes the credentials for a host. Says whether there were any.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_registry(&self, host: &str) -> Result<bool, StoreError> {
        let values = args![host];
        let deleted = self.write(move |mut conn| {
            Box::pin(
                async move { Ok(conn.execute("DELETE FROM registries WHERE host = $1", values).await? > 0) },
            )
        });
        let deleted = deleted.await?;
        self.met.mended(&TABLE, host);
        Ok(deleted)
    }
}

fn read(row: &Row) -> Result<RegistryRecord, BadColumn> {
    Ok(RegistryRecord {
        host: row.text("host")?,
        name: row.text_opt("name")?,
        username: row.text("username")?,
        sealed: row.bytes("sealed")?,
        updated_ms: row.uint("updated_ms")?,
    })
}
