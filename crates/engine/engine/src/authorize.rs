//! Decides what a caller may do: the one place for it, for every protocol.
//!
//! ```text
//! credentials ─ verify ─▶ Caller ─┐
//! what is needed ─────────▶ Needs ─┼─▶ Engine::authorize ─▶ Grant ─ ids that were found, once
//! what it is about ──────▶ Target ─┘                              ─ the most that may be done there
//!                                                                 ─ what revocation watches
//! ```
//!
//! A name is looked up here and nowhere else: what a [`Grant`] holds are ids, and every call of the engine takes
//! ids. So the thing that was checked is the thing that is used, even when another request renames or deletes things in
//! between. A thing that a caller may not know of gets the same answer as one that is not there.
//!
//! [`caller`] says who asks, [`grants`] what the question and the answer are, [`names`] finds sandboxes by what they are called.

mod caller;
mod grants;
mod names;

use std::sync::Arc;

use atoll_core::id::{BuildId, KeyId, SandboxId, SnapshotId, VolumeId};
use atoll_core::key::Scope;
use atoll_core::sharing::{Belongs, Needs};
use atoll_core::{Code, Error, Result};
use atoll_store::{BuildRecord, SnapshotRecord, VisibleTo};
use tokio_util::sync::CancellationToken;

pub use caller::Caller;
use grants::{Credential, SnapshotFacts};
pub use grants::{EffectivePermission, Grant, Resource, SnapshotGrant, Target};

use crate::boxed;
use crate::cluster;
use crate::engine::Engine;
use crate::sandbox::SandboxShared;

/// The answer to a key that is too weak for what it wants anywhere.
fn forbidden(needed: Scope) -> Error {
    let needed = needed.as_str();
    Error::new(Code::Forbidden, format!("the API key does not have the scope '{needed}', which this needs"))
        .hint("use a key with a higher scope: read, exec, manage, admin")
}

/// The answer to a key that was good when its request came.
pub(crate) fn gone() -> Error {
    Error::new(Code::Unauthorized, "the API key does not work any more")
}

impl Engine {
    /// Decides whether a caller may do what it asks for, and finds the thing that it is about.
    ///
    /// # Errors
    /// [`Code::Forbidden`]; [`Code::SandboxLeased`]; for what is not there, or not to be known, as if it were not
    /// there; [`Code::StoreUnavailable`] when that cannot be decided.
    #[boxed]
    pub async fn authorize<'a>(
        &'a self,
        caller: &'a Caller,
        needs: Needs,
        target: Target<'a>,
    ) -> Result<Grant> {
        if let Some(key) = &caller.key {
            cluster::came_with(key);
        }
        if caller.scope < needs.scope {
            return Err(forbidden(needs.scope));
        }
        if needs.common {
            self.check_common(caller)?;
        }
        // The decision must go by what the database says now.
        self.until_may_serve().await?;
        let resource = match target {
            Target::Installation => Resource::Installation,
            Target::Sandbox(text) => {
                let found = self.resolve_settled(caller, text).await?;
                let permission = self.on_sandbox(caller, &found);
                let permission = permission.ok_or_else(|| SandboxId::not_found(text))?;
                return grant(caller, needs, Resource::Sandbox(found.id.clone()), permission);
            }
            Target::Agent(text) => {
                let (found, permission) = self.seen_agent(caller, text)?;
                return grant(caller, needs, Resource::Agent(found), permission);
            }
            Target::Snapshot(text) => {
                let (_record, found, permission) = self.seen_snapshot(caller, text).await?;
                return grant(caller, needs, Resource::Snapshot(found), permission);
            }
            Target::Journal(text) => match self.authorize_gone(caller, text).await? {
                Some(id) => Resource::Journal(id),
                None => return self.authorize(caller, needs, Target::Sandbox(text)).await,
            },
            Target::Volume(text) => Resource::Volume(self.inner.volume_of(caller, text)?.id),
            Target::Build(text) => {
                let record = self.build_record(&text.parse()?).await?;
                if !self.sees_build(caller, &record) {
                    return Err(BuildId::not_found(text));
                }
                Resource::Build(record.id)
            }
        };
        let everything = EffectivePermission { scope: caller.scope, leased: None };
        grant(caller, needs, resource, everything)
    }

    /// Decides again, at this moment, about the thing that a grant is for: for an operation that begins over a
    /// connection that stays open. Meanwhile a key may have been deleted, a role taken away, or a lease taken.
    ///
    /// # Errors
    /// As [`Self::authorize`]; [`Code::Unauthorized`] when the credential is good no longer.
    pub fn recheck(&self, grant: &Grant, needs: Needs) -> Result<()> {
        if grant.ended.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Err(gone());
        }
        if grant.access().is_some_and(|access| access.is_over(self.inner.now_ms())) {
            return Err(gone());
        }
        let caller = match &grant.credential {
            Credential::Caller(caller) => self.caller_now(caller).ok_or_else(gone)?,
            Credential::Link(_) => return Err(gone()),
        };
        if caller.scope < needs.scope {
            return Err(forbidden(needs.scope));
        }
        let permission = self.on_resource(&caller, &grant.resource);
        permission.ok_or_else(|| not_found(&grant.resource))?.allow(needs).map(drop)
    }

    /// The caller, with the scope and the project that its key has now; `None` when the key does not work any more.
    pub(crate) fn caller_now(&self, caller: &Caller) -> Option<Caller> {
        match &caller.key {
            None => Some(caller.clone()),
            Some(key) => {
                let lasts_with = caller.login.as_ref().unwrap_or(key);
                let now = self.verified_by_id(lasts_with)?;
                Some(Caller { scope: now.scope, project: now.project, ..caller.clone() })
            }
        }
    }

    /// What a caller may do with the thing that a grant is for; `None` when it may not know of it any more.
    pub(crate) fn on_resource(&self, caller: &Caller, resource: &Resource) -> Option<EffectivePermission> {
        match resource {
            Resource::Sandbox(id) => self.on_sandbox(caller, &self.inner.find(id)?),
            Resource::Agent(agent) => self.on_sandbox(caller, &self.inner.find(&agent.sandbox)?),
            Resource::Snapshot(snapshot) => self.on_snapshot(caller, &snapshot.facts),
            Resource::Volume(id) => {
                self.inner.volume_of(caller, id.as_str()).ok()?;
                Some(EffectivePermission { scope: caller.scope, leased: None })
            }
            Resource::Installation | Resource::Build(_) | Resource::Journal(_) => {
                Some(EffectivePermission { scope: caller.scope, leased: None })
            }
        }
    }

    pub(crate) fn on_sandbox(
        &self,
        caller: &Caller,
        sandbox: &Arc<SandboxShared>,
    ) -> Option<EffectivePermission> {
        let Some(who) = caller.requester() else {
            return Some(EffectivePermission { scope: caller.scope, leased: None });
        };
        let acl = self.inner.acl.get(&sandbox.id);
        let record = sandbox.record();
        let of = Belongs { owner: record.owner.as_ref(), project: record.project.as_ref() };
        let scope = acl.scope_of(&who, of, self.inner.acl.default())?;
        Some(EffectivePermission { scope, leased: acl.admits(&who, self.inner.now_ms()).err() })
    }

    fn on_snapshot(&self, caller: &Caller, facts: &SnapshotFacts) -> Option<EffectivePermission> {
        let Some(who) = caller.requester() else {
            return Some(EffectivePermission { scope: caller.scope, leased: None });
        };
        let sandbox = facts.sandbox.as_ref().and_then(|id| self.inner.find(id));
        let of_sandbox = sandbox.map(|sandbox| self.on_sandbox(caller, &sandbox));
        let scope = of_sandbox.as_ref().map(|permission| permission.as_ref().map(|one| one.scope));
        let scope = facts.ownership.scope_of(&who, scope)?;
        let leased = of_sandbox.flatten().and_then(|permission| permission.leased);
        Some(EffectivePermission { scope, leased: leased.filter(|_| facts.checkpoint) })
    }

    /// Finds a snapshot that a caller may know of, and what it may do with it.
    ///
    /// # Errors
    /// [`Code::SnapshotNotFound`]; [`Code::InvalidArgument`] for what can be no name of one.
    pub(crate) async fn seen_snapshot(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<(SnapshotRecord, SnapshotGrant, EffectivePermission)> {
        let (record, reference) = self.find_snapshot(caller, text).await?;
        let facts = SnapshotFacts::of(&record);
        let permission = self.on_snapshot(caller, &facts);
        let permission = permission.ok_or_else(|| crate::snapshot::not_found(text))?;
        let found = SnapshotGrant { id: record.id.clone(), reference, facts };
        Ok((record, found, permission))
    }

    /// What a caller may do with a snapshot; `None` when it may not know of it.
    pub(crate) fn permission_on(
        &self,
        caller: &Caller,
        snapshot: &SnapshotRecord,
    ) -> Option<EffectivePermission> {
        self.on_snapshot(caller, &SnapshotFacts::of(snapshot))
    }

    /// Whether a caller may know of a sandbox. Only an administrator may know of one that is gone.
    pub(crate) fn sees(&self, caller: &Caller, sandbox: &SandboxId) -> bool {
        caller.is_admin()
            || self.inner.find(sandbox).is_some_and(|found| self.on_sandbox(caller, &found).is_some())
    }

    /// The caller to whom a listing is shown; `None` when the listing shows everything.
    pub(crate) fn visible_to(&self, caller: &Caller) -> Option<VisibleTo> {
        let key = caller.key.clone().filter(|_| !caller.is_admin())?;
        Some(VisibleTo { key, project: caller.project.clone(), default: self.inner.acl.default() })
    }

    /// Whether a caller may know of a build. An administrator may. A key that is of no project may if the server's
    /// default is that things are shared, or if it began the build. A key of a project begins no builds, and sees none.
    pub(crate) fn sees_build(&self, caller: &Caller, build: &BuildRecord) -> bool {
        self.is_shared_or_own(caller, build.created_by.as_ref())
    }

    /// Whether something that belongs to no project and has no visibility of its own is a caller's to use: it follows the
    /// server's default.
    pub(crate) fn is_shared_or_own(&self, caller: &Caller, owner: Option<&KeyId>) -> bool {
        use atoll_core::sharing::Visibility;
        caller.is_admin()
            || caller.project.is_none()
                && (self.inner.acl.default() == Visibility::Shared
                    || owner.is_some() && caller.key.as_ref() == owner)
    }
}

fn grant(
    caller: &Caller,
    needs: Needs,
    resource: Resource,
    permission: EffectivePermission,
) -> Result<Grant> {
    let scope = permission.allow(needs)?;
    if resource != Resource::Installation {
        cluster::here();
    }
    let credential = Credential::Caller(caller.clone());
    Ok(Grant { credential, needs, resource, scope, ended: None, within: None })
}

fn not_found(resource: &Resource) -> Error {
    match resource {
        Resource::Sandbox(id) => SandboxId::not_found(id.as_str()),
        Resource::Snapshot(snapshot) => SnapshotId::not_found(snapshot.id.as_str()),
        Resource::Volume(id) => VolumeId::not_found(id.as_str()),
        Resource::Build(id) => BuildId::not_found(id.as_str()),
        Resource::Journal(id) => SandboxId::not_found(id.as_str()),
        Resource::Agent(agent) => crate::agent::agent_not_found(agent.id.as_str()),
        Resource::Installation => forbidden(Scope::Admin),
    }
}
