//! Secrets of one sandbox: given with it, found by its rules only, and gone with it.
//!
//! They go to the hosts that the rules of the key which gave them name. Another key that may change the sandbox's rules
//! cannot send them elsewhere.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use atoll_core::Result;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::policy::{DomainPattern, EgressPolicy, HostName, SecretScope};
use atoll_core::secret::Secret;
use atoll_store::SandboxRecord;

use super::table::Owner;
use super::{SecretDraft, Secrets};
use crate::engine::Inner;
use crate::errors::store_error;

/// Where a secret goes that no rule names yet. No host has a name below it (RFC 2606).
const NOWHERE: &str = "nowhere.invalid";

/// Values that wait for the row of their sandbox.
#[derive(Debug, Default)]
pub(super) struct Held {
    values: BTreeMap<String, Secret>,
    /// The sandbox whose secrets they are copies of: where those may go, these may.
    copied_from: Option<SandboxId>,
}

impl Secrets {
    pub(super) fn held(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps values for a sandbox until it has a row. `copied_from` is another sandbox that they are of.
    pub(crate) fn hold(
        &self,
        sandbox: &SandboxId,
        values: BTreeMap<String, Secret>,
        copied_from: Option<&SandboxId>,
    ) {
        if !values.is_empty() {
            let held = Held { values, copied_from: copied_from.cloned() };
            self.held().insert(sandbox.clone(), held);
        }
    }
}

impl Inner {
    /// Stores the values that were held for a sandbox; its row is there now.
    pub(crate) async fn store_held_secrets(&self, sandbox: &SandboxRecord) -> Result<()> {
        let held = self.secrets.held().remove(&sandbox.id).unwrap_or_default();
        let Some(original) = &held.copied_from else {
            return self.put_private_secrets(sandbox, &held.values, sandbox.owner.as_ref()).await;
        };
        for (name, value) in &held.values {
            // A copy is no gift: the caller that copies a sandbox may send its secrets nowhere else.
            let known = self.secrets.table.find(Owner::Sandbox(original.clone()), name);
            let (scope, by) = match known {
                Some(known) => (known.scope.clone(), known.created_by.clone()),
                None => (scope_for(&sandbox.spec.egress, name, None), None),
            };
            let draft =
                SecretDraft { value: Some(value.clone()), scope: Some(scope), ..SecretDraft::default() };
            self.put_secret(Owner::Sandbox(sandbox.id.clone()), name, draft, by.as_ref()).await?;
        }
        Ok(())
    }

    /// The newest values that a sandbox has of its own, for one that goes on from it.
    pub(crate) fn private_secrets(&self, sandbox: &SandboxId) -> Result<BTreeMap<String, Secret>> {
        let mut values = BTreeMap::new();
        for record in self.secrets.table.of(&Owner::Sandbox(sandbox.clone())) {
            if let Some(newest) = record.versions.last() {
                values.insert(record.name.clone(), self.unseal_version(&record, newest)?);
            }
        }
        Ok(values)
    }

    /// Gives a sandbox values of its own, for the hosts that its rules name them for. Those that it has and that `by`
    /// gave follow the rules.
    pub(crate) async fn put_private_secrets(
        &self,
        sandbox: &SandboxRecord,
        values: &BTreeMap<String, Secret>,
        by: Option<&KeyId>,
    ) -> Result<()> {
        let policy = &sandbox.spec.egress;
        for (name, value) in values {
            self.forget_strange(&sandbox.id, name, by).await?;
            let scope = scope_for(policy, name, None);
            let draft =
                SecretDraft { value: Some(value.clone()), scope: Some(scope), ..SecretDraft::default() };
            self.put_secret(Owner::Sandbox(sandbox.id.clone()), name, draft, by).await?;
        }
        for known in self.secrets.table.of(&Owner::Sandbox(sandbox.id.clone())) {
            let wider = scope_for(policy, &known.name, Some(&known.scope));
            if known.created_by.as_ref() == by && wider != known.scope {
                let draft = SecretDraft { scope: Some(wider), ..SecretDraft::default() };
                self.put_secret(Owner::Sandbox(sandbox.id.clone()), &known.name, draft, by).await?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Deletes a secret that another key gave and that is to be given anew: its versions must not go where the new ones
    /// do.
    async fn forget_strange(&self, sandbox: &SandboxId, name: &str, by: Option<&KeyId>) -> Result<()> {
        let _turn = self.secrets.sealing.lock().await;
        let table = &self.secrets.table;
        if let Some(known) =
            table.find(Owner::Sandbox(sandbox.clone()), name).filter(|known| known.created_by.as_ref() != by)
        {
            table.remove(&known);
            self.store.delete_secret(&known.id).await.map_err(store_error)?;
        }
        Ok(())
    }
}

/// The hosts that a policy's rules send a secret to, besides those of a scope that it has.
fn scope_for(policy: &EgressPolicy, name: &str, before: Option<&SecretScope>) -> SecretScope {
    let rules = policy.inject.iter().filter(|rule| rule.secrets().any(|secret| secret.name == name));
    let nowhere = |host: &&DomainPattern| host.to_string() != NOWHERE;
    let earlier = before.into_iter().flat_map(|scope| &scope.hosts).filter(nowhere);
    let mut hosts: Vec<DomainPattern> = Vec::new();
    for host in earlier.chain(rules.flat_map(|rule| &rule.hosts)) {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    if hosts.is_empty() {
        hosts.extend(NOWHERE.parse::<HostName>().ok().map(DomainPattern::Exact));
    }
    SecretScope { hosts, templates: Vec::new(), sandboxes: Vec::new(), keys: Vec::new() }
}
