//! Which API keys may use a sandbox, in the database.

use std::collections::BTreeMap;

use atoll_core::id::{KeyId, SandboxId};
use atoll_core::sharing::{Acl, Lease, Role, Visibility};

use crate::Store;
use crate::db::{BadColumn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};

const SAID: Table = Table::new("sandbox_access", "sandbox_id");
const GRANTS: Table = Table::new("sandbox_grants", "sandbox_id");
const LEASES: Table = Table::new("sandbox_leases", "sandbox_id");
/// The end of a lease whose end cannot be read, milliseconds since the epoch: the last moment that a date of JavaScript can be.
const LEASE_END_MS: u64 = 8_640_000_000_000_000;

impl Store {
    /// The visibility, grants and lease of each sandbox that has any of them. Where a row cannot be read nobody gets more
    /// than it could have given: a sandbox with an unreadable visibility is private, and an unreadable lease is held by
    /// nobody, so that all can only look, until it ends or is released by force. An unreadable role is none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are told of in the log.
    pub async fn list_access(&self) -> Result<BTreeMap<SandboxId, Acl>, StoreError> {
        let (said, grants, leases) = self
            .read(|mut conn| {
                Box::pin(async move {
                    let said = conn.rows("SELECT * FROM sandbox_access", Vec::new()).await?;
                    let grants = conn.rows("SELECT * FROM sandbox_grants", Vec::new()).await?;
                    let leases = conn.rows("SELECT * FROM sandbox_leases", Vec::new()).await?;
                    Ok((said, grants, leases))
                })
            })
            .await?;
        let mut all: BTreeMap<SandboxId, Acl> = BTreeMap::new();
        let unreadable = said.iter().filter(|row| read_visibility(row).is_err());
        let closed = unreadable.filter_map(|row| Some((row.parse("sandbox_id").ok()?, Visibility::Private)));
        for (id, visibility) in closed.chain(self.readable(&SAID, Which::All, &said, read_visibility)) {
            all.entry(id).or_default().visibility = Some(visibility);
        }
        for (id, key, role) in self.readable(&GRANTS, Which::All, &grants, read_grant) {
            all.entry(id).or_default().grants.insert(key, role);
        }
        let unreadable = leases.iter().filter(|row| read_lease(row).is_err());
        let held = unreadable.filter_map(|row| Some((row.parse("sandbox_id").ok()?, nobodys_lease(row))));
        for (id, lease) in held.chain(self.readable(&LEASES, Which::All, &leases, read_lease)) {
            all.entry(id).or_default().lease = Some(lease);
        }
        Ok(all)
    }

    /// Sets a sandbox's visibility; `None` leaves it to the server's default.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such sandbox.
    pub async fn set_visibility(
        &self,
        id: &SandboxId,
        visibility: Option<Visibility>,
    ) -> Result<(), StoreError> {
        const PUT: &str = "INSERT INTO sandbox_access (sandbox_id, visibility) VALUES ($1, $2) \
             ON CONFLICT (sandbox_id) DO UPDATE SET visibility = $2";
        const FORGET: &str = "DELETE FROM sandbox_access WHERE sandbox_id = $1";
        let (sql, values) = match visibility {
            Some(visibility) => (PUT, args![id.as_str(), visibility.as_str()]),
            None => (FORGET, args![id.as_str()]),
        };
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(sql, values).await.map(drop) }))
            .await
    }

    /// Gives a key a role on a sandbox.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such sandbox or key.
    pub async fn put_grant(&self, id: &SandboxId, key: &KeyId, role: Role) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO sandbox_grants (sandbox_id, key_id, role) VALUES ($1, $2, $3) \
             ON CONFLICT (sandbox_id, key_id) DO UPDATE SET role = $3";
        let values = args![id.as_str(), key.as_str(), role.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Takes a key's role away. Says whether it had one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_grant(&self, id: &SandboxId, key: &KeyId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM sandbox_grants WHERE sandbox_id = $1 AND key_id = $2";
        let values = args![id.as_str(), key.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }

    /// Records a lease in place of the one before.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such sandbox.
    pub async fn put_lease(&self, id: &SandboxId, lease: &Lease) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO sandbox_leases (sandbox_id, key_id, holder, taken_ms, expires_ms) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (sandbox_id) \
             DO UPDATE SET key_id = $2, holder = $3, taken_ms = $4, expires_ms = $5";
        let values =
            args![id.as_str(), lease.key.as_str(), lease.holder.as_str(), lease.taken_ms, lease.expires_ms];
        self.write_one(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) }))
            .await
    }

    /// Forgets a sandbox's lease. Says whether it had one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_lease(&self, id: &SandboxId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM sandbox_leases WHERE sandbox_id = $1";
        let values = args![id.as_str()];
        self.write_one(move |mut conn| Box::pin(async move { Ok(conn.execute(SQL, values).await? > 0) }))
            .await
    }
}

fn read_visibility(row: &Row) -> Result<(SandboxId, Visibility), BadColumn> {
    let visibility = Visibility::parse(&row.text("visibility")?).ok_or("visibility")?;
    Ok((row.parse("sandbox_id")?, visibility))
}

fn read_grant(row: &Row) -> Result<(SandboxId, KeyId, Role), BadColumn> {
    let role = Role::parse(&row.text("role")?).ok_or("role")?;
    Ok((row.parse("sandbox_id")?, row.parse("key_id")?, role))
}

/// What stands for a lease whose row cannot be read.
fn nobodys_lease(row: &Row) -> Lease {
    Lease {
        key: KeyId::from_parts(0, 0),
        holder: "unknown".to_owned(),
        taken_ms: row.uint("taken_ms").unwrap_or_default(),
        expires_ms: row.uint("expires_ms").unwrap_or(LEASE_END_MS),
    }
}

fn read_lease(row: &Row) -> Result<(SandboxId, Lease), BadColumn> {
    let lease = Lease {
        key: row.parse("key_id")?,
        holder: row.text("holder")?,
        taken_ms: row.uint("taken_ms")?,
        expires_ms: row.uint("expires_ms")?,
    };
    Ok((row.parse("sandbox_id")?, lease))
}
