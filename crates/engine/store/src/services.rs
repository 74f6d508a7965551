//! Services in the database.

use atoll_core::id::{SandboxId, ServiceId};
use atoll_core::service::{ServiceSpec, ServiceStatus};
use atoll_core::spec::IdempotencyKey;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};

/// Version of the JSON form of a service's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: Table = Table::new("services", "id").named("name").of("sandbox_id");

/// One service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Its id.
    pub id: ServiceId,
    /// The sandbox it runs in.
    pub sandbox: SandboxId,
    /// Its name; no two services of a sandbox have the same.
    pub name: String,
    /// What it is.
    pub spec: ServiceSpec,
    /// Its runs and how they ended.
    pub status: ServiceStatus,
    /// When it was asked for.
    pub created_ms: u64,
}

impl Store {
    /// Stores a new service.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`]; [`StoreError::NotFound`] when there is no such sandbox.
    pub async fn insert_service(&self, service: &ServiceRecord) -> Result<(), StoreError> {
        let service = service.clone();
        let inserted = self.write_one(move |mut conn| {
            Box::pin(async move {
                let sandbox = args![service.sandbox.as_str()];
                if conn.row("SELECT id FROM sandboxes WHERE id = $1", sandbox).await?.is_none() {
                    return Err(StoreError::NotFound);
                }
                insert_service(&mut conn, &service).await
            })
        });
        if inserted.await? == 0 { Err(StoreError::NameTaken) } else { Ok(()) }
    }

    /// Stores the service that a sandbox's start command is, and gives the exec that ran as that before the key of its run.
    /// Nothing happens when the sandbox has a service of that name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn adopt_start(
        &self,
        service: &ServiceRecord,
        before: &str,
        key: &IdempotencyKey,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE execs SET idempotency_key = $3 WHERE sandbox_id = $1 AND idempotency_key = $2";
        let values = args![service.sandbox.as_str(), before, key.to_string()];
        let service = service.clone();
        self.write_one(move |mut conn| {
            Box::pin(async move {
                if insert_service(&mut conn, &service).await? > 0 {
                    conn.execute(SQL, values).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Records what became of a service. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn set_service_status(
        &self,
        id: &ServiceId,
        status: &ServiceStatus,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE services SET status = $2 WHERE id = $1";
        let values = args![id.as_str(), json(status)?];
        self.write_one_soon(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Every service of every sandbox, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_services(&self) -> Result<Vec<ServiceRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM services ORDER BY created_ms, id";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Removes a service. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_service(&self, id: &ServiceId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM services WHERE id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }
}

/// Stores a service of a sandbox that is there. Gives how many were stored: none when its name is taken.
pub(crate) async fn insert_service(conn: &mut Conn<'_>, service: &ServiceRecord) -> Result<u64, StoreError> {
    const SQL: &str = "INSERT INTO services (id, sandbox_id, name, spec, spec_version, status, created_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (sandbox_id, name) DO NOTHING";
    let values = args![
        service.id.as_str(),
        service.sandbox.as_str(),
        service.name.as_str(),
        json(&service.spec)?,
        SPEC_VERSION,
        json(&service.status)?,
        service.created_ms,
    ];
    conn.execute(SQL, values).await
}

fn read(row: &Row) -> Result<ServiceRecord, BadColumn> {
    Ok(ServiceRecord {
        id: row.parse("id")?,
        sandbox: row.parse("sandbox_id")?,
        name: row.text("name")?,
        spec: row.spec(SPEC_VERSION)?,
        status: row.json("status")?,
        created_ms: row.uint("created_ms")?,
    })
}
