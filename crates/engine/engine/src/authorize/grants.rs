//! The question and its answer. A [`Target`] is what an operation is about, as it was named; a [`Resource`] is the same,
//! found; an [`EffectivePermission`] is what the caller may do with it; a [`Grant`] has all of that together, and is kept by
//! connections that stay open. Only [`super`] makes grants of callers.

use atoll_core::id::{BuildId, SandboxId, SnapshotId, VolumeId};
use atoll_core::key::Scope;
use atoll_core::sharing::{Needs, SnapshotOwnership};
use atoll_core::snapshot::Reference;
use atoll_core::{Code, Error, Result};
use atoll_store::SnapshotRecord;
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use crate::agent::AgentGrant;
use crate::ingress::VerifiedAccess;

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
    pub(super) facts: SnapshotFacts,
}

/// What decides about a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SnapshotFacts {
    pub(super) ownership: SnapshotOwnership,
    pub(super) sandbox: Option<SandboxId>,
    /// It belongs to its sandbox, and so does a lease on that.
    pub(super) checkpoint: bool,
}

impl SnapshotFacts {
    pub(super) fn of(record: &SnapshotRecord) -> Self {
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
/// [`until_revoked`](crate::Engine::until_revoked), and calls [`recheck`](crate::Engine::recheck) for each operation
/// that it begins.
#[derive(Debug, Clone)]
pub struct Grant {
    pub(super) credential: Credential,
    pub(super) needs: Needs,
    pub(super) resource: Resource,
    pub(super) scope: Scope,
    /// Ends the right before its credential does.
    pub(super) ended: Option<CancellationToken>,
    /// The right ends with this access too.
    pub(super) within: Option<VerifiedAccess>,
}

/// The credential that the client showed.
#[derive(Debug, Clone)]
pub(super) enum Credential {
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
            within: None,
        }
    }

    /// The right of work that a caller began and that goes on by itself, for as long as its key may do so much anywhere. It
    /// outlives the login by which a person came: who logs out has not lost a right.
    pub(crate) fn to_work(caller: &Caller, needs: Needs) -> Self {
        let caller = Caller { login: None, ..caller.clone() };
        Self {
            needs,
            resource: Resource::Installation,
            scope: caller.scope,
            credential: Credential::Caller(caller),
            ended: None,
            within: None,
        }
    }

    /// The same, but it ends when the token fires at the latest: for a session, say, which stands for a credential for
    /// a time.
    #[must_use]
    pub fn ending_with(self, ended: CancellationToken) -> Self {
        Self { ended: Some(ended), ..self }
    }

    /// The same, but it ends with this access at the latest, when that is taken back or its time is over: for a client
    /// that came by an address which stands for a key.
    #[must_use]
    pub fn within(self, access: VerifiedAccess) -> Self {
        Self { within: Some(access), ..self }
    }

    pub(crate) const fn access(&self) -> Option<&VerifiedAccess> {
        self.within.as_ref()
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
