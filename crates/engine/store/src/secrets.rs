//! Secrets in the database: sealed values, and the record of their uses.

use std::collections::BTreeMap;

use atoll_core::id::{KeyId, ProjectId, SandboxId, SecretId};
use atoll_core::policy::SecretScope;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};

const TABLE: Table = Table::new("secrets", "id").named("name").of("owner");
const USES: Table = Table::new("secret_uses", "id").of("sandbox_id");

/// A secret, with its sealed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRecord {
    /// Its id.
    pub id: SecretId,
    /// The one sandbox that it is for; `None` for a secret of the installation.
    pub sandbox: Option<SandboxId>,
    /// The project that it is for; `None` for one of a sandbox, or of no project.
    pub project: Option<ProjectId>,
    /// Its name, unique among those of the same owner.
    pub name: String,
    /// Where it may go.
    pub scope: SecretScope,
    /// What people wrote about it.
    pub note: String,
    /// When it was made.
    pub created_ms: u64,
    /// The API key that made it.
    pub created_by: Option<KeyId>,
    /// Its values, oldest first.
    pub versions: Vec<SecretVersion>,
}

/// One value of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretVersion {
    /// Counts from 1.
    pub version: u32,
    /// The value, sealed by the vault.
    pub sealed: Vec<u8>,
    /// When it was set.
    pub created_ms: u64,
}

/// A value of the server's own that it keeps sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedValue {
    /// Its name.
    pub name: String,
    /// What may be seen of it.
    pub visible: String,
    /// The sealed part.
    pub sealed: Vec<u8>,
    /// When it was made.
    pub created_ms: u64,
}

/// One use of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    /// Its id: sorts by time.
    pub id: String,
    /// When.
    pub at_ms: u64,
    /// The secret's name.
    pub secret: String,
    /// Which version.
    pub version: u32,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The project of that.
    pub project: Option<ProjectId>,
    /// The host that received it.
    pub host: String,
    /// The request's method.
    pub method: String,
    /// The request's path, without its query.
    pub path: String,
    /// The rule.
    pub rule: String,
}

/// A sealed value somewhere in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealedAt {
    /// The password of a registry.
    Registry {
        /// Its host.
        host: String,
    },
    /// A version of a secret.
    Secret {
        /// The secret.
        id: SecretId,
        /// The version.
        version: u32,
    },
    /// One of the server's own.
    Own {
        /// Its name.
        name: String,
    },
}

const USE_COLUMNS: &str = "INSERT INTO secret_uses (id, at_ms, secret, version, sandbox_id, host, method, path, rule, \
     project) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

impl Store {
    /// Stores a secret with its first version.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for id or name; [`StoreError::NotFound`] when its sandbox is not there.
    pub async fn insert_secret(&self, secret: &SecretRecord) -> Result<(), StoreError> {
        let secret = secret.clone();
        self.write(move |conn| Box::pin(insert(conn, secret))).await
    }

    /// Adds a version, changes scope and note, and drops all versions but the newest `keep`.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the secret is gone; [`StoreError::AlreadyExists`] for the version.
    pub async fn add_secret_version(
        &self,
        secret: &SecretRecord,
        version: &SecretVersion,
        keep: u32,
    ) -> Result<(), StoreError> {
        let (secret, version) = (secret.clone(), version.clone());
        self.write(move |conn| Box::pin(add_version(conn, secret, version, keep))).await
    }

    /// Changes scope and note.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when the secret is gone.
    pub async fn update_secret(&self, secret: &SecretRecord) -> Result<(), StoreError> {
        let secret = secret.clone();
        self.write(move |mut conn| Box::pin(async move { describe(&mut conn, &secret).await })).await
    }

    /// Every secret, by name. One of which a version cannot be read is unreadable as a whole: an older value must not be
    /// taken for the newest.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_secrets(&self) -> Result<Vec<SecretRecord>, StoreError> {
        const VERSIONS: &str = "SELECT * FROM secret_versions ORDER BY secret_id, version";
        let (secrets, versions) = self
            .read(|mut conn| {
                Box::pin(async move {
                    let secrets = conn.rows("SELECT * FROM secrets ORDER BY name, owner", Vec::new()).await?;
                    Ok((secrets, conn.rows(VERSIONS, Vec::new()).await?))
                })
            })
            .await?;
        let mut by_id: BTreeMap<String, Result<Vec<SecretVersion>, BadColumn>> = BTreeMap::new();
        for row in &versions {
            let entry =
                by_id.entry(row.text("secret_id").unwrap_or_default()).or_insert_with(|| Ok(Vec::new()));
            match read_version(row) {
                Ok(version) => {
                    if let Ok(known) = entry {
                        known.push(version);
                    }
                }
                Err(column) => *entry = Err(column),
            }
        }
        let whole = |row: &Row| {
            let versions = by_id.get(&row.text("id")?).cloned().unwrap_or_else(|| Ok(Vec::new()))?;
            Ok(SecretRecord { versions, ..read(row)? })
        };
        Ok(self.readable(&TABLE, Which::All, &secrets, whole))
    }

    /// Removes a secret with all its versions. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_secret(&self, id: &SecretId) -> Result<bool, StoreError> {
        let values = args![id.as_str()];
        let deleted = self.write(move |mut conn| {
            Box::pin(async move { Ok(conn.execute("DELETE FROM secrets WHERE id = $1", values).await? > 0) })
        });
        let deleted = deleted.await?;
        self.met.mended(&TABLE, id.as_str());
        Ok(deleted)
    }

    /// One of the server's own sealed values.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn sealed_value(&self, name: &str) -> Result<Option<SealedValue>, StoreError> {
        let values = args![name];
        let row = self
            .read(move |mut conn| {
                Box::pin(async move { conn.row("SELECT * FROM sealed_values WHERE name = $1", values).await })
            })
            .await?;
        row.map(|row| row.decode("sealed_values", "name", read_own)).transpose()
    }

    /// Stores one of the server's own sealed values, if there is none of this name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn insert_sealed_value(&self, value: &SealedValue) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO sealed_values (name, visible, sealed, created_ms) \
             VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO NOTHING";
        let values =
            args![value.name.as_str(), value.visible.as_str(), value.sealed.as_slice(), value.created_ms];
        self.write(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await.map(drop) })).await
    }

    /// Every sealed value there is, for a change of the key. All or none: what is left out would stay sealed with a key
    /// that is thrown away.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a row cannot be read.
    pub async fn list_sealed(&self) -> Result<Vec<(SealedAt, Vec<u8>)>, StoreError> {
        const SECRETS: &str = "SELECT secret_id, version, sealed FROM secret_versions";
        let (registries, secrets, own) = self
            .read(|mut conn| {
                Box::pin(async move {
                    let registries = conn.rows("SELECT host, sealed FROM registries", Vec::new()).await?;
                    let secrets = conn.rows(SECRETS, Vec::new()).await?;
                    let own = conn.rows("SELECT name, sealed FROM sealed_values", Vec::new()).await?;
                    Ok((registries, secrets, own))
                })
            })
            .await?;
        let mut all = Vec::with_capacity(registries.len() + secrets.len() + own.len());
        for row in &registries {
            all.push(row.decode("registries", "host", |row| {
                Ok((SealedAt::Registry { host: row.text("host")? }, row.bytes("sealed")?))
            })?);
        }
        for row in &secrets {
            all.push(row.decode("secret_versions", "secret_id", |row| {
                let at = SealedAt::Secret { id: row.parse("secret_id")?, version: version(row)? };
                Ok((at, row.bytes("sealed")?))
            })?);
        }
        for row in &own {
            all.push(row.decode("sealed_values", "name", |row| {
                Ok((SealedAt::Own { name: row.text("name")? }, row.bytes("sealed")?))
            })?);
        }
        Ok(all)
    }

    /// Puts `new` in the place of `old`, where it still is `old`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn replace_sealed(&self, at: &SealedAt, old: &[u8], new: &[u8]) -> Result<(), StoreError> {
        let (sql, values) = match at {
            SealedAt::Registry { host } => (
                "UPDATE registries SET sealed = $1 WHERE sealed = $2 AND host = $3",
                args![new, old, host.as_str()],
            ),
            SealedAt::Secret { id, version } => (
                "UPDATE secret_versions SET sealed = $1 WHERE sealed = $2 AND secret_id = $3 AND version = $4",
                args![new, old, id.as_str(), *version],
            ),
            SealedAt::Own { name } => (
                "UPDATE sealed_values SET sealed = $1 WHERE sealed = $2 AND name = $3",
                args![new, old, name.as_str()],
            ),
        };
        self.write(move |mut conn| Box::pin(async move { conn.execute(sql, values).await.map(drop) })).await
    }

    /// Records uses.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: none is recorded then.
    pub async fn insert_secret_uses(&self, uses: &[SecretUse]) -> Result<(), StoreError> {
        let uses = uses.to_vec();
        self.write(move |mut conn| {
            Box::pin(async move {
                for one in uses {
                    let values = args![
                        one.id.as_str(),
                        one.at_ms,
                        one.secret.as_str(),
                        one.version,
                        one.sandbox.as_str(),
                        one.host.as_str(),
                        one.method.as_str(),
                        one.path.as_str(),
                        one.rule.as_str(),
                        one.project.as_ref().map(ProjectId::as_str),
                    ];
                    conn.execute(USE_COLUMNS, values).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Drops all recorded uses but the newest `keep`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn prune_secret_uses(&self, keep: u64) -> Result<u64, StoreError> {
        const SQL: &str = "DELETE FROM secret_uses WHERE id IN \
             (SELECT id FROM secret_uses ORDER BY at_ms DESC, id DESC LIMIT 1000000 OFFSET $1)";
        let values = args![keep];
        self.write(move |mut conn| Box::pin(async move { conn.execute(SQL, values).await })).await
    }

    /// Recorded uses, newest first: of one secret, of one sandbox, or all.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_secret_uses(
        &self,
        secret: Option<&str>,
        sandbox: Option<&SandboxId>,
        limit: u32,
    ) -> Result<Vec<SecretUse>, StoreError> {
        const SQL: &str = "SELECT * FROM secret_uses WHERE ($1 = '' OR secret = $2) AND \
             ($3 = '' OR sandbox_id = $4) ORDER BY at_ms DESC, id DESC LIMIT $5";
        let secret = secret.unwrap_or_default();
        let sandbox = sandbox.map_or("", SandboxId::as_str);
        let values = args![secret, secret, sandbox, sandbox, limit];
        self.list(&USES, Which::Some, SQL, values, read_use).await
    }
}

async fn insert(mut conn: Conn<'_>, secret: SecretRecord) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO secrets (id, owner, sandbox_id, name, scope, note, created_ms, created_by, \
         project) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let sandbox = secret.sandbox.as_ref().map(SandboxId::as_str);
    let project = secret.project.as_ref().map(ProjectId::as_str);
    let values = args![
        secret.id.as_str(),
        sandbox.or(project).unwrap_or_default(),
        sandbox,
        secret.name.as_str(),
        json(&secret.scope)?,
        secret.note.as_str(),
        secret.created_ms,
        secret.created_by.as_ref().map(KeyId::as_str),
        project,
    ];
    conn.execute(SQL, values).await?;
    for version in &secret.versions {
        insert_version(&mut conn, &secret.id, version).await?;
    }
    Ok(())
}

async fn insert_version(
    conn: &mut Conn<'_>,
    secret: &SecretId,
    version: &SecretVersion,
) -> Result<(), StoreError> {
    const SQL: &str =
        "INSERT INTO secret_versions (secret_id, version, sealed, created_ms) VALUES ($1, $2, $3, $4)";
    let values = args![secret.as_str(), version.version, version.sealed.as_slice(), version.created_ms];
    conn.execute(SQL, values).await.map(drop)
}

async fn add_version(
    mut conn: Conn<'_>,
    secret: SecretRecord,
    version: SecretVersion,
    keep: u32,
) -> Result<(), StoreError> {
    const PRUNE: &str = "DELETE FROM secret_versions WHERE secret_id = $1 AND version <= $2";
    describe(&mut conn, &secret).await?;
    insert_version(&mut conn, &secret.id, &version).await?;
    let last_dropped = version.version.saturating_sub(keep);
    conn.execute(PRUNE, args![secret.id.as_str(), last_dropped]).await.map(drop)
}

async fn describe(conn: &mut Conn<'_>, secret: &SecretRecord) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE secrets SET scope = $1, note = $2 WHERE id = $3";
    let values = args![json(&secret.scope)?, secret.note.as_str(), secret.id.as_str()];
    if conn.execute(SQL, values).await? == 0 { Err(StoreError::NotFound) } else { Ok(()) }
}

fn read(row: &Row) -> Result<SecretRecord, BadColumn> {
    Ok(SecretRecord {
        id: row.parse("id")?,
        sandbox: row.parse_opt("sandbox_id")?,
        project: row.parse_opt("project")?,
        name: row.text("name")?,
        scope: row.json("scope")?,
        note: row.text("note")?,
        created_ms: row.uint("created_ms")?,
        created_by: row.parse_opt("created_by")?,
        versions: Vec::new(),
    })
}

fn version(row: &Row) -> Result<u32, BadColumn> {
    u32::try_from(row.int("version")?).or(Err("version"))
}

fn read_version(row: &Row) -> Result<SecretVersion, BadColumn> {
    Ok(SecretVersion {
        version: version(row)?,
        sealed: row.bytes("sealed")?,
        created_ms: row.uint("created_ms")?,
    })
}

fn read_own(row: &Row) -> Result<SealedValue, BadColumn> {
    Ok(SealedValue {
        name: row.text("name")?,
        visible: row.text("visible")?,
        sealed: row.bytes("sealed")?,
        created_ms: row.uint("created_ms")?,
    })
}

fn read_use(row: &Row) -> Result<SecretUse, BadColumn> {
    Ok(SecretUse {
        id: row.text("id")?,
        at_ms: row.uint("at_ms")?,
        secret: row.text("secret")?,
        version: version(row)?,
        sandbox: row.parse("sandbox_id")?,
        project: row.parse_opt("project")?,
        host: row.text("host")?,
        method: row.text("method")?,
        path: row.text("path")?,
        rule: row.text("rule")?,
    })
}
