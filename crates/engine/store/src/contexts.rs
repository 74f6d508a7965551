//! Contexts of code interpreters in the database.

use atoll_core::code::ContextSpec;
use atoll_core::id::{ContextId, SandboxId};

use crate::Store;
use crate::db::{BadColumn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};

/// Version of the JSON form of a context's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: Table = Table::new("contexts", "id").named("name").of("sandbox_id");

/// One context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextRecord {
    /// Its id.
    pub id: ContextId,
    /// The sandbox whose interpreter it is of.
    pub sandbox: SandboxId,
    /// Its name; no two contexts of a sandbox have the same.
    pub name: Option<String>,
    /// What it is.
    pub spec: ContextSpec,
    /// When it was asked for.
    pub created_ms: u64,
}

impl Store {
    /// Stores a new context.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`]; [`StoreError::NotFound`] when there is no such sandbox.
    pub async fn insert_context(&self, context: &ContextRecord) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO contexts (id, sandbox_id, name, spec, spec_version, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (sandbox_id, name) DO NOTHING";
        let values = args![
            context.id.as_str(),
            context.sandbox.as_str(),
            context.name.as_deref(),
            json(&context.spec)?,
            SPEC_VERSION,
            context.created_ms,
        ];
        self.insert_of_sandbox(&context.sandbox, SQL, values).await
    }

    /// The contexts of a sandbox, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_contexts(&self, sandbox: &SandboxId) -> Result<Vec<ContextRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM contexts WHERE sandbox_id = $1 ORDER BY created_ms, id";
        let values = args![sandbox.as_str()];
        self.list(&TABLE, Which::Some, SQL, values, read).await
    }

    /// The context of a sandbox with this id or name, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn context(
        &self,
        sandbox: &SandboxId,
        id_or_name: &str,
    ) -> Result<Option<ContextRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM contexts WHERE sandbox_id = $1 AND (id = $2 OR name = $2)";
        let values = args![sandbox.as_str(), id_or_name];
        self.read(move |mut conn| {
            Box::pin(async move {
                let row = conn.row(SQL, values).await?;
                row.map(|row| row.decode("contexts", "id", read)).transpose()
            })
        })
        .await
    }

    /// Removes a context. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_context(&self, id: &ContextId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM contexts WHERE id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }
}

fn read(row: &Row) -> Result<ContextRecord, BadColumn> {
    Ok(ContextRecord {
        id: row.parse("id")?,
        sandbox: row.parse("sandbox_id")?,
        name: row.text_opt("name")?,
        spec: row.spec(SPEC_VERSION)?,
        created_ms: row.uint("created_ms")?,
    })
}
