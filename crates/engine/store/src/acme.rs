//! The state of certificates from ACME servers. The store does not read a state: its writers define what is in it.

use crate::db::args;
use crate::error::StoreError;
use crate::{SealedValue, Store};

impl Store {
    /// The state of this name and its version; nothing when there is none yet.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn acme(&self, name: &str) -> Result<Option<(String, i64)>, StoreError> {
        const SQL: &str = "SELECT * FROM acme WHERE name = $1";
        let values = args![name];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        row.map(|row| row.decode("acme", "name", |row| Ok((row.text("state")?, row.int("version")?))))
            .transpose()
    }

    /// Replaces the state that has this version (0: there is none yet), and stores with it the values that were sealed
    /// meanwhile. Says whether it did: it does not when another writer has changed the state first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_acme(
        &self,
        name: &str,
        state: &str,
        version: i64,
        sealed: Option<&SealedValue>,
    ) -> Result<bool, StoreError> {
        const MAKE: &str =
            "INSERT INTO acme (name, version, state) VALUES ($1, 1, $2) ON CONFLICT (name) DO NOTHING";
        const CHANGE: &str =
            "UPDATE acme SET version = version + 1, state = $2 WHERE name = $1 AND version = $3";
        const SEAL: &str = "INSERT INTO sealed_values (name, visible, sealed, created_ms) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO UPDATE SET visible = EXCLUDED.visible, sealed = EXCLUDED.sealed, \
             created_ms = EXCLUDED.created_ms";
        let (sql, values) = match version {
            0 => (MAKE, args![name, state]),
            _ => (CHANGE, args![name, state, version]),
        };
        let sealed = sealed.map(|value| {
            args![value.name.as_str(), value.visible.as_str(), value.sealed.as_slice(), value.created_ms]
        });
        self.write(move |mut conn| {
            Box::pin(async move {
                if conn.execute(sql, values).await? == 0 {
                    return Ok(false);
                }
                if let Some(sealed) = sealed {
                    conn.execute(SEAL, sealed).await?;
                }
                Ok(true)
            })
        })
        .await
    }
}
