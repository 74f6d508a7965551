//! Single values about the installation, such as its id.

use crate::Store;
use crate::db::args;
use crate::error::StoreError;

impl Store {
    /// The value with this name, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn meta(&self, name: &str) -> Result<Option<String>, StoreError> {
        let values = args![name];
        let row = self
            .read(move |mut conn| {
                Box::pin(async move { conn.row("SELECT * FROM meta WHERE name = $1", values).await })
            })
            .await?;
        row.map(|row| row.decode("meta", "name", |row| row.text("value"))).transpose()
    }

    /// Stores `value` unless there is one already; gives the one that is stored now. So two
    /// servers that start at once agree.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn meta_or_insert(&self, name: &str, value: &str) -> Result<String, StoreError> {
        // The update changes nothing, but makes RETURNING give the row that is there.
        const SQL: &str = "INSERT INTO meta (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = meta.value RETURNING name, value";
        let values = args![name, value];
        let row = self.write(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        row.ok_or(StoreError::Conflict)?.decode("meta", "name", |row| row.text("value"))
    }

    /// Stores `value` in place of what was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_meta(&self, name: &str, value: &str) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO meta (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let values = args![name, value];
        self.write(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) })).await
    }
}
