//! Injection rules of a sandbox: made ready when they are set.

use std::collections::BTreeMap;

use atoll_core::id::KeyId;
use atoll_core::policy::{DomainPattern, EgressPolicy, SecretScope, SecretUser, inject};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_guest_protocol::messages::InstallTrust;
use atoll_store::SandboxRecord;

use super::not_found;
use super::table::Owner;
use crate::engine::Inner;
use crate::errors::guest_error;

/// Letters and digits of the random part of a placeholder.
const PLACEHOLDER_CHARS: usize = 26;

impl Inner {
    /// Makes the injection rules of a sandbox ready: every secret in them exists and is for this sandbox (a
    /// wrong name should be heard of now, not at the first request), and every placeholder has its text.
    ///
    /// `by` is the key that sets them, `before` is what the sandbox had, `private` what it is given now.
    pub(crate) fn prepare_rules(
        &self,
        record: &SandboxRecord,
        by: Option<&KeyId>,
        policy: &mut EgressPolicy,
        before: &EgressPolicy,
        private: &BTreeMap<String, Secret>,
    ) -> Result<()> {
        let owner = record.owner.as_ref();
        for key in [owner, by] {
            self.check_rules(
                record,
                by,
                private,
                policy,
                &SecretUser {
                    sandbox: record.id.as_str(),
                    name: record.name.as_deref(),
                    template: record.spec.template.as_deref(),
                    owner: key,
                },
            )?;
            if owner == by {
                break;
            }
        }
        inject::fill_placeholders(&mut policy.inject, &before.inject, || {
            let mut random = [0; PLACEHOLDER_CHARS];
            getrandom::fill(&mut random).map_err(|error| {
                tracing::error!(%error, "the kernel gave no randomness");
                Error::new(Code::Internal, "the host's random generator failed")
            })?;
            const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
            Ok(random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect())
        })
    }

    /// Makes a sandbox trust the gateway, if its policy lets the gateway look inside.
    pub(crate) async fn install_trust(&self, guest: &GuestClient, policy: &EgressPolicy) -> Result<()> {
        let trust = &self.config.trust;
        if !policy.looks_inside() || trust.ca_pem.is_empty() {
            return Ok(());
        }
        let request = InstallTrust { ca_pem: trust.ca_pem.clone(), roots_pem: trust.roots_pem.clone() };
        guest.install_trust(request).await.map_err(guest_error)
    }

    fn check_rules(
        &self,
        sandbox: &SandboxRecord,
        by: Option<&KeyId>,
        private: &BTreeMap<String, Secret>,
        policy: &EgressPolicy,
        user: &SecretUser<'_>,
    ) -> Result<()> {
        let table = &self.secrets.table;
        for rule in &policy.inject {
            for secret in rule.secrets() {
                if private.contains_key(&secret.name) {
                    continue;
                }
                if let Some(own) = table.find(Owner::Sandbox(sandbox.id.clone()), &secret.name) {
                    // The key that gave it may send it elsewhere; other keys only to where it goes already.
                    let strange = |host: &&DomainPattern| !reachable(&own.scope, host);
                    match rule.hosts.iter().find(strange).filter(|_| own.created_by.as_ref() != by) {
                        None => continue,
                        Some(host) => return Err(redirected(&rule.name, &secret.name, host)),
                    }
                }
                let shared = Owner::project(sandbox.project.as_ref());
                let record = table.find(shared, &secret.name).ok_or_else(|| not_found(&secret.name))?;
                record.scope.admits_user(&secret.name, user)?;
                if let Some(host) = rule.hosts.iter().find(|host| !reachable(&record.scope, host)) {
                    let why = format!("the rule '{}' sends '{}' to {host}", rule.name, secret.name);
                    return Err(Error::new(Code::Forbidden, format!("{why}, which its scope does not name"))
                        .hint("an admin can add the host: 'atoll secret set --keep-value --host …'"));
                }
            }
        }
        Ok(())
    }
}

fn redirected(rule: &str, secret: &str, host: &DomainPattern) -> Error {
    let why =
        format!("the rule '{rule}' sends '{secret}' to {host}, and whoever gave it has not sent it there");
    Error::new(Code::Forbidden, why)
        .hint("give its value anew with the rule, or let the key that gave it set the rule")
}

/// Whether some host that `pattern` means is admitted.
fn reachable(scope: &SecretScope, pattern: &DomainPattern) -> bool {
    match pattern {
        DomainPattern::Exact(host) => scope.admits_host(host),
        DomainPattern::Below(parent) => scope.hosts.iter().any(|admitted| match admitted {
            DomainPattern::Any => true,
            DomainPattern::Exact(host) => pattern.matches(host),
            DomainPattern::Below(other) => {
                other == parent || pattern.matches(other) || admitted.matches(parent)
            }
        }),
        DomainPattern::Any => false,
    }
}
