//! Secrets of one sandbox: given with it, found by its rules only, and gone with it.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use atoll_core::Result;
use atoll_core::id::SandboxId;
use atoll_core::policy::{DomainPattern, SecretScope};
use atoll_core::secret::Secret;
use atoll_store::SandboxRecord;

use super::{SecretDraft, Secrets};
use crate::engine::Inner;

impl Secrets {
    pub(super) fn held(&self) -> MutexGuard<'_, BTreeMap<SandboxId, BTreeMap<String, Secret>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps values for a sandbox until it has a row.
    pub(crate) fn hold(&self, sandbox: &SandboxId, values: BTreeMap<String, Secret>) {
        if !values.is_empty() {
            self.held().insert(sandbox.clone(), values);
        }
    }
}

impl Inner {
    /// Stores the values that were held for a sandbox; its row is there now.
    pub(crate) async fn store_held_secrets(&self, sandbox: &SandboxRecord) -> Result<()> {
        let values = self.secrets.held().remove(&sandbox.id).unwrap_or_default();
        self.put_private_secrets(sandbox, &values).await
    }

    /// The newest values that a sandbox has of its own, for one that goes on from it.
    pub(crate) fn private_secrets(&self, sandbox: &SandboxId) -> Result<BTreeMap<String, Secret>> {
        let mut values = BTreeMap::new();
        for record in self.secrets.table.private(sandbox) {
            if let Some(newest) = record.versions.last() {
                values.insert(record.name.clone(), self.unseal_version(&record, newest)?);
            }
        }
        Ok(values)
    }

    /// Gives a sandbox values of its own.
    pub(crate) async fn put_private_secrets(
        &self,
        sandbox: &SandboxRecord,
        values: &BTreeMap<String, Secret>,
    ) -> Result<()> {
        for (name, value) in values {
            // Its rules, given by the same caller, say where it goes.
            let scope = SecretScope {
                hosts: vec![DomainPattern::Any],
                templates: Vec::new(),
                sandboxes: Vec::new(),
                keys: Vec::new(),
            };
            let draft = SecretDraft { value: Some(value.clone()), scope: Some(scope), note: None };
            self.put_secret(Some(&sandbox.id), name, draft, sandbox.owner.as_ref()).await?;
        }
        Ok(())
    }
}
