//! Secrets: named values that sandboxes use and never see.
//!
//! ```text
//! put ──▶ vault seals ──▶ store ──▶ table in memory (sealed)
//!                                      │ open: version, scope
//! gateway asks for a value ────────────┘──▶ vault opens ──▶ into the request, nowhere else
//!        └── tells of the use ──▶ queue ──▶ store (the record of uses)
//! ```
//!
//! What is in memory is sealed, too, but for values of sandboxes that are being made: a value is open only while it is
//! put into a request, and overwritten after it. A use is recorded before the request goes on; when the database does
//! not keep up, requests wait.

mod door;
mod private;
mod record;
mod rotate;
mod rules;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::error::shorten;
use atoll_core::id::{KeyId, ProjectId, SandboxId, SecretId};
use atoll_core::limits::{SECRET_VERSIONS_MAX_COUNT, SECRETS_MAX_COUNT};
use atoll_core::policy::{HostName, SecretRef, SecretScope, SecretUser, secret_name, secret_value};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_egress::intercept::OpenedSecret;
use atoll_store::{SecretRecord, SecretVersion, Store, StoreError, UnreadableRow};
use tokio::sync::Mutex;

use crate::authorize::Caller;
use crate::boxed;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;

pub use door::SecretDoor;
use private::Held;
pub(crate) use record::Recorder;
pub use record::UseQuery;
use table::{Owner, Table};

/// Longest note about a secret, bytes.
const NOTE_MAX_BYTES: usize = 10 << 10;

/// A change of a secret. A field that is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretDraft {
    /// A new value: the next version.
    pub value: Option<Secret>,
    /// Where it may go. A new secret needs it.
    pub scope: Option<SecretScope>,
    /// What people should know about it.
    pub note: Option<String>,
    /// Whether there may be one of the name.
    pub is: SecretIs,
}

/// What the caller that sets a secret expects of its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecretIs {
    /// Nothing: one that is not there is made.
    #[default]
    Any,
    /// There is none yet.
    New,
    /// There is one.
    Known,
}

/// Every secret, sealed, and what changes them.
#[derive(Debug)]
pub(crate) struct Secrets {
    table: Table,
    /// Held from sealing a value to having stored it, and for the whole of a change of the key: nothing sealed
    /// with the old key can arrive after the change has passed.
    pub(crate) sealing: Mutex<()>,
    pub(crate) recorder: Recorder,
    /// Values for sandboxes whose row is not written yet.
    held: std::sync::Mutex<BTreeMap<SandboxId, Held>>,
}

impl Secrets {
    pub(crate) async fn load(store: &Store) -> Result<Self> {
        let records = store.list_secrets().await.map_err(store_error)?;
        Ok(Self {
            table: Table::new(records),
            sealing: Mutex::default(),
            recorder: Recorder::default(),
            held: std::sync::Mutex::default(),
        })
    }

    /// Forgets those of a sandbox that is gone; the database has done so by itself.
    pub(crate) fn forget(&self, sandbox: &SandboxId) {
        self.table.forget(sandbox);
        self.held().remove(sandbox);
    }
}

impl Inner {
    /// Takes up what other nodes changed.
    pub(crate) async fn reload_secrets(&self) -> Result<()> {
        let _turn = self.secrets.sealing.lock().await;
        self.secrets.table.replace(self.store.list_secrets().await.map_err(store_error)?);
        Ok(())
    }
}

/// What the seal of a version is bound to.
fn context(id: &SecretId, version: u32) -> String {
    format!("secret:{id}:{version}")
}

fn not_found(name: &str) -> Error {
    Error::new(Code::SecretNotFound, format!("no secret '{}'", shorten(name)))
        .hint("'atoll secret ls' lists them; 'atoll secret set' makes one")
}

impl Engine {
    /// Makes a secret of a project, or of none, gives it a new value, or changes its scope or note. The value is in no answer.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field; [`Code::LimitExceeded`]; [`Code::NameTaken`] and
    /// [`Code::SecretNotFound`] when it is not as [`SecretDraft::is`] says.
    #[boxed]
    pub async fn put_secret(
        &self,
        project: Option<&ProjectId>,
        name: &str,
        draft: SecretDraft,
        caller: &Caller,
    ) -> Result<SecretRecord> {
        secret_name("name", name)?;
        if draft.note.as_ref().is_some_and(|note| note.len() > NOTE_MAX_BYTES || note.contains('\0')) {
            return Err(Error::invalid("note", "is longer than 10 KiB or contains NUL"));
        }
        self.inner.put_secret(Owner::project(project), name, draft, caller.key()).await
    }

    /// Every secret of a project, or of none, by name. Values in them are sealed.
    #[must_use]
    pub fn secrets(&self, project: Option<&ProjectId>) -> Vec<SecretRecord> {
        let of = self.inner.secrets.table.of(&Owner::project(project));
        of.iter().map(|record| SecretRecord::clone(record)).collect()
    }

    /// One secret.
    ///
    /// # Errors
    /// [`Code::SecretNotFound`].
    pub fn secret(&self, project: Option<&ProjectId>, name: &str) -> Result<SecretRecord> {
        let found = self.inner.secrets.table.find(Owner::project(project), name);
        let found = found.map(|record| SecretRecord::clone(&record));
        found.ok_or_else(|| match self.inner.unreadable_secret(&Owner::project(project), name) {
            Some(row) => store_error(row.into()),
            None => not_found(name),
        })
    }

    /// Deletes a secret with all its versions. Rules that name it fail from now on.
    ///
    /// # Errors
    /// [`Code::SecretNotFound`].
    #[boxed]
    pub async fn delete_secret(&self, project: Option<&ProjectId>, name: &str) -> Result<()> {
        let secrets = &self.inner.secrets;
        let _turn = secrets.sealing.lock().await;
        let id = match secrets.table.find(Owner::project(project), name) {
            Some(record) => {
                // Out of memory first: no request gets it any more, even if the database refuses.
                secrets.table.remove(&record);
                record.id.clone()
            }
            // The database may have refused an earlier deletion: the row is still there then.
            None => {
                let known = self.inner.store.list_secrets().await.map_err(store_error)?;
                let is_meant = |record: &SecretRecord| {
                    record.sandbox.is_none() && record.project.as_ref() == project && record.name == name
                };
                match known.into_iter().find(is_meant) {
                    Some(record) => record.id,
                    // One that cannot be read can be deleted, and set anew.
                    None => match self.inner.unreadable_secret(&Owner::project(project), name) {
                        Some(row) => row.id.parse().map_err(|_unreadable| store_error(row.into()))?,
                        None => return Err(not_found(name)),
                    },
                }
            }
        };
        self.inner.store.delete_secret(&id).await.map_err(store_error)?;
        Ok(())
    }
}

impl Inner {
    async fn put_secret(
        &self,
        owner: Owner,
        name: &str,
        draft: SecretDraft,
        by: Option<&KeyId>,
    ) -> Result<SecretRecord> {
        if let Some(scope) = &draft.scope {
            scope.validate()?;
        }
        if let Some(value) = &draft.value {
            secret_value("value", value)?;
        }
        let secrets = &self.secrets;
        let _turn = secrets.sealing.lock().await;
        if let Some(row) = self.unreadable_secret(&owner, name) {
            return Err(store_error(row.into()));
        }
        let record = match secrets.table.find(owner.clone(), name) {
            Some(_) if draft.is == SecretIs::New => {
                return Err(Error::new(
                    Code::NameTaken,
                    format!("there is a secret '{}' already", shorten(name)),
                ));
            }
            None if draft.is == SecretIs::Known => return Err(not_found(name)),
            Some(known) => self.change_secret(&known, draft).await?,
            None => self.new_secret(owner, name, draft, by).await?,
        };
        secrets.table.put(record.clone());
        Ok(record)
    }

    async fn new_secret(
        &self,
        owner: Owner,
        name: &str,
        draft: SecretDraft,
        by: Option<&KeyId>,
    ) -> Result<SecretRecord> {
        let missing = |field: &str, hint: &str| {
            Error::invalid(field, format_args!("a new secret ('{name}') needs it")).hint(hint)
        };
        let value = draft.value.ok_or_else(|| missing("value", "send the value"))?;
        let scope = draft
            .scope
            .ok_or_else(|| missing("scope", "name the hosts that may receive it; '*' means any"))?;
        if self.secrets.table.len() >= SECRETS_MAX_COUNT {
            return Err(Error::new(Code::LimitExceeded, format!("there are {SECRETS_MAX_COUNT} secrets"))
                .hint("delete some"));
        }
        let created_ms = self.clock.now_ms();
        let id = SecretId::from_parts(created_ms, random()?);
        let first = self.seal_version(&id, 1, &value, created_ms)?;
        let (sandbox, project) = match owner {
            Owner::Installation => (None, None),
            Owner::Project(project) => (None, Some(project)),
            Owner::Sandbox(sandbox) => (Some(sandbox), None),
        };
        let record = SecretRecord {
            id,
            sandbox,
            project,
            name: name.to_owned(),
            scope,
            note: draft.note.unwrap_or_default(),
            created_ms,
            created_by: by.cloned(),
            versions: vec![first],
        };
        self.store.insert_secret(&record).await.map_err(changed_elsewhere)?;
        Ok(record)
    }

    async fn change_secret(&self, known: &SecretRecord, draft: SecretDraft) -> Result<SecretRecord> {
        let mut record = known.clone();
        if let Some(scope) = draft.scope {
            record.scope = scope;
        }
        if let Some(note) = draft.note {
            record.note = note;
        }
        let Some(value) = draft.value else {
            self.store.update_secret(&record).await.map_err(changed_elsewhere)?;
            return Ok(record);
        };
        let last = record.versions.last().map_or(0, |version| version.version);
        let next = self.seal_version(&record.id, last.saturating_add(1), &value, self.clock.now_ms())?;
        let stored = self.store.add_secret_version(&record, &next, SECRET_VERSIONS_MAX_COUNT).await;
        stored.map_err(changed_elsewhere)?;
        let kept_from = next.version.saturating_sub(SECRET_VERSIONS_MAX_COUNT);
        record.versions.push(next);
        record.versions.retain(|version| version.version > kept_from);
        Ok(record)
    }

    fn seal_version(
        &self,
        id: &SecretId,
        version: u32,
        value: &Secret,
        created_ms: u64,
    ) -> Result<SecretVersion> {
        let sealed = self.vault.seal(&context(id, version), value).map_err(|error| {
            tracing::error!(%error, "the vault cannot seal");
            Error::new(Code::Internal, "the vault cannot seal the secret")
        })?;
        Ok(SecretVersion { version, sealed, created_ms })
    }

    /// The secret that a sandbox's rule means: its own before its project's, or before those of none if it is of none.
    fn secret_of(&self, sandbox: &SandboxId, name: &str) -> Option<Arc<SecretRecord>> {
        let table = &self.secrets.table;
        let (own, project) = (
            Owner::Sandbox(sandbox.clone()),
            self.find(sandbox).and_then(|sandbox| sandbox.record().project),
        );
        if self.unreadable_secret(&own, name).is_some() {
            // It is there: no other takes its place.
            return None;
        }
        table.find(own, name).or_else(|| table.find(Owner::project(project.as_ref()), name))
    }

    fn unreadable_secret(&self, owner: &Owner, name: &str) -> Option<UnreadableRow> {
        let rows = self.store.unreadable_of("secrets");
        let is_meant = |row: &&UnreadableRow| {
            row.name.as_deref() == Some(name) && row.of.as_deref() == Some(owner.as_str())
        };
        if let Some(row) = rows.remembered().iter().find(is_meant) {
            return Some(row.clone());
        }
        // One of those that are not remembered may have this name, unless a readable one has it.
        let may_be = rows.overflowed() && self.secrets.table.find(owner.clone(), name).is_none();
        may_be.then(|| UnreadableRow {
            table: "secrets",
            id: "?".to_owned(),
            column: "?",
            name: Some(name.to_owned()),
            of: Some(owner.as_str().to_owned()),
        })
    }

    /// Opens a secret for one request of a sandbox to `host`.
    pub(crate) fn open_secret(
        &self,
        sandbox: &SandboxId,
        reference: &SecretRef,
        host: &HostName,
    ) -> Result<OpenedSecret> {
        let record = self.secret_of(sandbox, &reference.name).ok_or_else(|| not_found(&reference.name))?;
        if !record.scope.admits_host(host) {
            let why = format!("the secret '{}' may not be sent to {host}", record.name);
            return Err(Error::new(Code::Forbidden, why)
                .hint("its scope names the hosts that may receive it; an admin can add this one"));
        }
        let user = self.find(sandbox).ok_or_else(|| SandboxId::not_found(sandbox.as_str()))?.record();
        record.scope.admits_user(
            &record.name,
            &SecretUser {
                sandbox: sandbox.as_str(),
                name: user.name.as_deref(),
                template: user.spec.template.as_deref(),
                owner: user.owner.as_ref(),
            },
        )?;
        let version = match reference.version {
            None => record.versions.last(),
            Some(wanted) => record.versions.iter().find(|version| version.version == wanted),
        };
        let version = version.ok_or_else(|| {
            Error::new(Code::SecretNotFound, format!("the secret '{reference}' is not there any more"))
                .hint("the newest 16 versions are kept; name one of them, or none for the newest")
        })?;
        Ok(OpenedSecret { value: self.unseal_version(&record, version)?, version: version.version })
    }

    fn unseal_version(&self, record: &SecretRecord, version: &SecretVersion) -> Result<Secret> {
        let opened = self.vault.unseal(&context(&record.id, version.version), &version.sealed);
        opened.map_err(|error| {
            tracing::error!(%error, secret = record.name, "a secret cannot be opened");
            Error::new(Code::Internal, format!("the secret '{}' cannot be opened", record.name))
                .hint("was the vault's key replaced? set the secret again with 'atoll secret set'")
        })
    }
}

/// Another server of the same database was faster, or has deleted it.
fn changed_elsewhere(error: StoreError) -> Error {
    match error {
        StoreError::AlreadyExists | StoreError::NotFound => store_error(StoreError::Conflict),
        other => store_error(other),
    }
}
