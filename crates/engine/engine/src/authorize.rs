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

use std::sync::Arc;

use atoll_core::id::{BuildId, KeyId, ProjectId, SandboxId, SnapshotId, VolumeId, is_id_shaped};
use atoll_core::key::Scope;
use atoll_core::sharing::{Belongs, Needs, Requester, SnapshotOwnership};
use atoll_core::snapshot::Reference;
use atoll_core::{Code, Error, Result};
use atoll_store::{BuildRecord, SnapshotRecord, VisibleTo};
use tokio_util::sync::CancellationToken;

use crate::agent::AgentGrant;
use crate::boxed;
use crate::cluster;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::ingress::VerifiedAccess;
use crate::keys::VerifiedKey;
use crate::sandbox::SandboxShared;

/// Sandboxes of one name that a refusal names.
const AMBIGUOUS_SHOWN_COUNT: usize = 5;

/// Who asks: the holder of a key, or the server itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Absent for the server itself.
    pub(crate) key: Option<KeyId>,
    /// The login by which a person is here: what it opened ends with it.
    pub(crate) login: Option<KeyId>,
    /// The project that it belongs to.
    project: Option<ProjectId>,
    scope: Scope,
    /// The name it works under, to tell several that share a key apart.
    holder: Option<String>,
    /// Fingerprint of the SSH key by which it came, which stands for the API key.
    ssh_key: Option<String>,
}

impl Caller {
    /// The server itself, for what it does of its own accord: it may do everything, and owns nothing.
    #[must_use]
    pub const fn system() -> Self {
        Self { key: None, login: None, project: None, scope: Scope::Admin, holder: None, ssh_key: None }
    }

    /// The holder of a key.
    #[must_use]
    pub fn of(key: &VerifiedKey) -> Self {
        Self {
            key: Some(key.id.clone()),
            login: key.login.clone(),
            project: key.project.clone(),
            scope: key.scope,
            holder: None,
            ssh_key: None,
        }
    }

    /// The same, under a name: see [`Requester::holder`].
    #[must_use]
    pub fn working_as(self, holder: Option<String>) -> Self {
        Self { holder, ..self }
    }

    /// The same, by an SSH key with this fingerprint.
    #[must_use]
    pub fn by_ssh_key(self, fingerprint: String) -> Self {
        Self { ssh_key: Some(fingerprint), ..self }
    }

    /// Its key; absent for the server itself.
    #[must_use]
    pub const fn key(&self) -> Option<&KeyId> {
        self.key.as_ref()
    }

    /// The project that it belongs to: what it makes belongs there, too, and it sees nothing of other projects.
    #[must_use]
    pub const fn project(&self) -> Option<&ProjectId> {
        self.project.as_ref()
    }

    /// The most that it may do anywhere.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// The name it works under.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// Fingerprint of the SSH key by which it came, if it did.
    #[must_use]
    pub fn ssh_key(&self) -> Option<&str> {
        self.ssh_key.as_deref()
    }

    /// Whether it may see and do everything.
    #[must_use]
    pub const fn is_admin(&self) -> bool {
        matches!(self.scope, Scope::Admin)
    }

    /// For questions about one sandbox; `None` for the server itself, which nothing is refused.
    pub(crate) fn requester(&self) -> Option<Requester<'_>> {
        let key = self.key.as_ref()?;
        let project = self.project.as_ref();
        Some(Requester { key, scope: self.scope, project, holder: self.holder.as_deref() })
    }
}

/// What an operation is about, as it was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// The server as a whole.
    Installation,
    /// A sandbox, by id or name.
    Sandbox(&'a str),
    /// A snapshot, by id, `name` or `name:tag`.
    Snapshot(&'a str),
    /// A volume, by id or name.
    Volume(&'a str),
    /// A build, by id.
    Build(&'a str),
    /// An agent, by id or name: as the sandbox that it lives in.
    Agent(&'a str),
    /// The journal of a sandbox: as the sandbox, or by the id of one that is gone.
    Journal(&'a str),
}

/// What an operation is about, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// The server as a whole.
    Installation,
    /// A sandbox.
    Sandbox(SandboxId),
    /// A snapshot.
    Snapshot(SnapshotGrant),
    /// A volume.
    Volume(VolumeId),
    /// A build.
    Build(BuildId),
    /// An agent.
    Agent(AgentGrant),
    /// The journal of a sandbox that is gone.
    Journal(SandboxId),
}

/// A snapshot that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotGrant {
    /// Its id.
    pub id: SnapshotId,
    /// The reference by which it was named, if it was not named by its id.
    pub reference: Option<Reference>,
    facts: SnapshotFacts,
}

/// What decides about a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SnapshotFacts {
    ownership: SnapshotOwnership,
    sandbox: Option<SandboxId>,
    /// It belongs to its sandbox, and so does a lease on that.
    checkpoint: bool,
}

impl SnapshotFacts {
    fn of(record: &SnapshotRecord) -> Self {
        Self {
            ownership: SnapshotOwnership {
                created_by: record.created_by.clone(),
                project: record.project.clone(),
                private: record.private,
            },
            sandbox: record.sandbox.clone(),
            checkpoint: record.purpose.checkpoint().is_some(),
        }
    }
}

/// What a caller may do with one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectivePermission {
    /// The most it may do, leases aside.
    pub scope: Scope,
    /// Why the caller may only look for now: another caller has a lease.
    pub leased: Option<Error>,
}

impl EffectivePermission {
    /// The most that may be done, if that is enough.
    ///
    /// # Errors
    /// [`Code::Forbidden`]; [`Code::SandboxLeased`].
    pub fn allow(self, needs: Needs) -> Result<Scope> {
        if self.scope < needs.scope {
            let role = self.scope.as_str();
            return Err(Error::new(
                Code::Forbidden,
                format!(
                    "the API key has the role '{role}' on this sandbox, '{}' is needed",
                    needs.scope.as_str()
                ),
            )
            .hint("who manages the sandbox can grant a higher one: 'atoll access grant'"));
        }
        match self.leased {
            Some(error) if !needs.despite_lease => Err(error),
            Some(_) | None => Ok(self.scope),
        }
    }
}

/// The right by which an operation goes on, and the thing that it is about. A connection that stays open waits for
/// [`Engine::until_revoked`], and calls [`Engine::recheck`] for each operation that it begins.
#[derive(Debug, Clone)]
pub struct Grant {
    credential: Credential,
    needs: Needs,
    resource: Resource,
    scope: Scope,
    /// Ends the right before its credential does.
    ended: Option<CancellationToken>,
}

/// The credential that the client showed.
#[derive(Debug, Clone)]
enum Credential {
    Caller(Caller),
    /// A link to a port or a file, or the fact that the port is public.
    Link(VerifiedAccess),
}

impl Grant {
    /// The right of a client that has a link to a port or a file.
    #[must_use]
    pub fn of_link(link: VerifiedAccess) -> Self {
        let resource = Resource::Sandbox(link.sandbox().clone());
        Self {
            credential: Credential::Link(link),
            needs: Needs::READ,
            resource,
            scope: Scope::Read,
            ended: None,
        }
    }

    /// The same, but it ends when the token fires at the latest: for a session, say, which stands for a credential for
    /// a time.
    #[must_use]
    pub fn ending_with(self, ended: CancellationToken) -> Self {
        Self { ended: Some(ended), ..self }
    }

    pub(crate) const fn ended(&self) -> Option<&CancellationToken> {
        self.ended.as_ref()
    }

    /// The caller; `None` for a client that came by a link.
    #[must_use]
    pub const fn caller(&self) -> Option<&Caller> {
        match &self.credential {
            Credential::Caller(caller) => Some(caller),
            Credential::Link(_) => None,
        }
    }

    pub(crate) const fn link(&self) -> Option<&VerifiedAccess> {
        match &self.credential {
            Credential::Caller(_) => None,
            Credential::Link(link) => Some(link),
        }
    }

    /// What was needed.
    #[must_use]
    pub const fn needs(&self) -> Needs {
        self.needs
    }

    /// The most that may be done, leases aside: on what it is about, or else anywhere.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// What it is about.
    #[must_use]
    pub const fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The sandbox, if it is about one.
    #[must_use]
    pub const fn sandbox(&self) -> Option<&SandboxId> {
        match &self.resource {
            Resource::Sandbox(id) | Resource::Journal(id) => Some(id),
            _ => None,
        }
    }
}

/// The answer to a key that is too weak for what it wants anywhere.
fn forbidden(needed: Scope) -> Error {
    let needed = needed.as_str();
    Error::new(Code::Forbidden, format!("the API key does not have the scope '{needed}', which this needs"))
        .hint("use a key with a higher scope: read, exec, manage, admin")
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
        let gone = || Error::new(Code::Unauthorized, "the API key does not work any more");
        if grant.ended.as_ref().is_some_and(CancellationToken::is_cancelled) {
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

    /// Finds a sandbox. While it is on its way to another node, this waits: once it has gone, it is not found here, and
    /// the request follows it.
    async fn resolve_settled(&self, caller: &Caller, text: &str) -> Result<Arc<SandboxShared>> {
        let found = self.resolve_for(caller, text).await?;
        if !found.has_settled_here().await {
            return Ok(found);
        }
        self.inner.sandbox(&found.id).inspect_err(|_gone| cluster::left())
    }

    /// Finds what a caller means by an id or a name: a name in its project. An administrator, who is of none, may also mean
    /// that of a project, when it is the only one.
    async fn resolve_for(&self, caller: &Caller, text: &str) -> Result<Arc<SandboxShared>> {
        let missing = match self.inner.resolve(&caller.kept(text)) {
            // Others are not told of what may be private.
            Err(missing) if caller.is_admin() => self.inner.absent("sandboxes", text, missing),
            found => return found,
        };
        if is_id_shaped(text) || missing.code != Code::SandboxNotFound {
            return Err(missing);
        }
        let named = self.inner.store.sandboxes_named(text).await.map_err(store_error)?;
        let own = named.iter().find(|(project, _)| project.is_none());
        match (own, named.as_slice()) {
            (Some((_, id)), _) | (None, [(_, id)]) => self.inner.sandbox(id),
            (None, []) => Err(missing),
            (None, several) => {
                let one = |(project, id): &(Option<ProjectId>, SandboxId)| {
                    let project = project.as_ref().map(|project| self.project_name(project));
                    format!("{id} ({})", project.unwrap_or_default())
                };
                let ids: Vec<String> = several.iter().take(AMBIGUOUS_SHOWN_COUNT).map(one).collect();
                let why =
                    format!("{} projects have a sandbox of this name: {}", several.len(), ids.join(", "));
                Err(Error::invalid("sandbox", why).hint("say its id"))
            }
        }
    }

    /// Finds a sandbox that a caller may know of, by id or name.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub(crate) async fn seen_sandbox(&self, caller: &Caller, text: &str) -> Result<Arc<SandboxShared>> {
        let found = self.resolve_for(caller, text).await?;
        self.on_sandbox(caller, &found).ok_or_else(|| SandboxId::not_found(text))?;
        Ok(found)
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

    /// Whether a text is a sandbox's id, or its name within its project. It gives no right to anything.
    #[must_use]
    pub fn is_called(&self, sandbox: &SandboxId, text: &str) -> bool {
        let found = self.inner.find(sandbox);
        found.is_some_and(|found| found.id.as_str() == text || found.record().name.as_deref() == Some(text))
    }

    /// The id of the sandbox that has this name in a caller's project. It gives no right to anything.
    #[must_use]
    pub fn sandbox_called(&self, caller: &Caller, name: &str) -> Option<SandboxId> {
        self.inner.resolve(&caller.kept(name)).ok().map(|sandbox| sandbox.id.clone())
    }

    /// The id of the sandbox with this id or, if it belongs to no project, this name: there is no caller here whose
    /// project could be meant. It gives no right to anything, and a client that is given it must not learn from it
    /// whether the sandbox is there.
    #[must_use]
    pub fn resolve_sandbox(&self, text: &str) -> Option<SandboxId> {
        self.inner.resolve(text).ok().map(|sandbox| sandbox.id.clone())
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
    Ok(Grant { credential: Credential::Caller(caller.clone()), needs, resource, scope, ended: None })
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
