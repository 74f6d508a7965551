//! What each API key may do with one sandbox: visibility, grants, leases.
//!
//! A key's [`Scope`] is the most that it may do anywhere. What it may do with *one* sandbox is the least of
//! its scope and what the sandbox gives it:
//!
//! | the key | gets |
//! |---|---|
//! | has the scope `admin` | everything |
//! | made the sandbox | everything that its scope allows |
//! | was granted a role | that role |
//! | belongs to another project, or to none, and the sandbox to one | nothing: the sandbox does not exist for it |
//! | any other, sandbox shared | everything that its scope allows |
//! | any other, sandbox private | nothing: the sandbox does not exist for it |
//!
//! A [`Lease`] comes on top: while a holder has one, all others can only look.
//!
//! A snapshot follows the sandbox that it was taken of. It also belongs to the key that took it: [`SnapshotOwnership`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::id::{KeyId, ProjectId};
use crate::key::Scope;
use crate::limits::{GRANTS_MAX_COUNT, LEASE_HOLDER_MAX_BYTES, LEASE_MAX_MS};

/// Whether keys without a grant see a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Every key of its project may use it as far as its scope goes; of no project, if it belongs to none.
    #[default]
    Shared,
    /// Only its owner, who was granted a role, and `admin` keys.
    Private,
}

impl Visibility {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Shared, Self::Private].into_iter().find(|one| one.as_str() == text)
    }
}

/// What a key is granted on one sandbox. Each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at it, its execs, output and files.
    Read,
    /// Run commands and change files in it.
    Exec,
    /// Change it, delete it, and grant roles on it.
    Manage,
}

impl Role {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Exec => "exec",
            Self::Manage => "manage",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Read, Self::Exec, Self::Manage].into_iter().find(|one| one.as_str() == text)
    }

    const fn scope(self) -> Scope {
        match self {
            Self::Read => Scope::Read,
            Self::Exec => Scope::Exec,
            Self::Manage => Scope::Manage,
        }
    }
}

/// What an operation needs of who asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The scope, on what the operation is about.
    pub scope: Scope,
    /// Whether it may be done to a sandbox that somebody else has a lease on.
    pub despite_lease: bool,
    /// Whether it changes what all projects use, such as images: nothing for a key of one.
    pub common: bool,
}

impl Needs {
    /// To look.
    pub const READ: Self = Self::scope(Scope::Read);
    /// To run commands and change files.
    pub const EXEC: Self = Self::scope(Scope::Exec);
    /// To make, change and delete.
    pub const MANAGE: Self = Self::scope(Scope::Manage);
    /// To administer the server.
    pub const ADMIN: Self = Self::scope(Scope::Admin);

    /// What a scope is enough for. Looking is possible whoever has a lease.
    #[must_use]
    pub const fn scope(scope: Scope) -> Self {
        Self { scope, despite_lease: matches!(scope, Scope::Read), common: false }
    }

    /// The same, whoever has a lease.
    #[must_use]
    pub const fn despite_lease(self) -> Self {
        Self { despite_lease: true, ..self }
    }

    /// The same, of what all projects use.
    #[must_use]
    pub const fn common(self) -> Self {
        Self { common: true, ..self }
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// The key.
    pub key: &'a KeyId,
    /// What it may do anywhere.
    pub scope: Scope,
    /// The project that it belongs to.
    pub project: Option<&'a ProjectId>,
    /// The name under which it works, to tell several that share a key apart.
    pub holder: Option<&'a str>,
}

/// To whom a sandbox belongs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Belongs<'a> {
    /// The key that made it.
    pub owner: Option<&'a KeyId>,
    /// The project of that key then.
    pub project: Option<&'a ProjectId>,
}

/// What a sandbox says about who may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acl {
    /// Its own visibility; the server's default when absent.
    pub visibility: Option<Visibility>,
    /// Roles by key.
    pub grants: BTreeMap<KeyId, Role>,
    /// Who has it for itself.
    pub lease: Option<Lease>,
}

impl Acl {
    /// The most that a key may do with the sandbox, leases aside; `None` when it may not even know of it.
    #[must_use]
    pub fn scope_of(&self, who: &Requester<'_>, of: Belongs<'_>, default: Visibility) -> Option<Scope> {
        if who.scope == Scope::Admin {
            return Some(Scope::Admin);
        }
        let shared = self.visibility.unwrap_or(default) == Visibility::Shared;
        // A key that made the sandbox and is in another project now, as a person's can be, has no right
        // to it as its owner.
        if who.project == of.project && (shared || of.owner == Some(who.key)) {
            return Some(who.scope);
        }
        self.grants.get(who.key).map(|role| role.scope().min(who.scope))
    }

    /// Refuses whoever is not the holder of a lease that has not run out.
    ///
    /// # Errors
    /// [`Code::SandboxLeased`], naming the holder.
    pub fn admits(&self, who: &Requester<'_>, now_ms: u64) -> Result<()> {
        match &self.lease {
            Some(lease) if !lease.has_ended(now_ms) && !lease.is_held_by(who) => Err(lease.refusal(now_ms)),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether one more key can be granted a role.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`].
    pub fn check_room(&self, key: &KeyId) -> Result<()> {
        if self.grants.len() >= GRANTS_MAX_COUNT && !self.grants.contains_key(key) {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("{GRANTS_MAX_COUNT} keys have a role on this sandbox already"),
            )
            .hint("revoke some with 'atoll access revoke', or make the sandbox shared"));
        }
        Ok(())
    }
}

/// Whose a snapshot is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotOwnership {
    /// The key that made it, by taking, importing or pulling it.
    pub created_by: Option<KeyId>,
    /// The project that it belongs to.
    pub project: Option<ProjectId>,
    /// Whether others see it once its sandbox is gone, or if it never had one.
    pub private: bool,
}

impl SnapshotOwnership {
    /// The most that a key may do with the snapshot; `None` when it may not even know of it.
    ///
    /// `sandbox` is what the key may do with the sandbox that the snapshot was taken of ([`Acl::scope_of`]), as
    /// long as that lives: a role on it, and its visibility, hold for its snapshots.
    #[must_use]
    pub fn scope_of(&self, who: &Requester<'_>, sandbox: Option<Option<Scope>>) -> Option<Scope> {
        let same_project = who.project == self.project.as_ref();
        if who.scope == Scope::Admin || same_project && self.created_by.as_ref() == Some(who.key) {
            return Some(who.scope);
        }
        match sandbox {
            Some(of_sandbox) => of_sandbox,
            None if self.private || !same_project => None,
            None => Some(who.scope),
        }
    }
}

/// Exclusive use of a sandbox for a time. Others can look, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The key that took it.
    pub key: KeyId,
    /// The name it was taken under.
    pub holder: String,
    /// When it was taken.
    pub taken_ms: u64,
    /// When it ends by itself.
    pub expires_ms: u64,
}

impl Lease {
    /// Checks what a lease is asked for with.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    pub fn validate(holder: &str, ttl_ms: u64) -> Result<()> {
        if holder.is_empty() || holder.len() > LEASE_HOLDER_MAX_BYTES || holder.chars().any(char::is_control)
        {
            return Err(Error::invalid(
                "holder",
                format_args!("must have 1 to {LEASE_HOLDER_MAX_BYTES} bytes without control characters"),
            ));
        }
        if ttl_ms == 0 || ttl_ms > LEASE_MAX_MS {
            return Err(Error::invalid("ttl_ms", format_args!("must lie between 1 and {LEASE_MAX_MS}")));
        }
        Ok(())
    }

    /// Whether it has run out.
    #[must_use]
    pub const fn has_ended(&self, now_ms: u64) -> bool {
        self.expires_ms <= now_ms
    }

    /// Whether it is who took it. Who gives no name is taken for the holder if the key is the holder's.
    #[must_use]
    pub fn is_held_by(&self, who: &Requester<'_>) -> bool {
        self.key == *who.key && who.holder.is_none_or(|name| name == self.holder)
    }

    /// The error for everybody else.
    #[must_use]
    pub fn refusal(&self, now_ms: u64) -> Error {
        let left_s = self.expires_ms.saturating_sub(now_ms).div_ceil(1000);
        let holder = crate::error::shorten(&self.holder);
        Error::new(Code::SandboxLeased, format!("'{holder}' has the sandbox for itself, for {left_s} s more"))
            .hint("wait until the lease ends; who manages the sandbox can end it: 'atoll lease release --force'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> KeyId {
        KeyId::from_parts(n, n)
    }

    fn who(key: &KeyId, scope: Scope) -> Requester<'_> {
        Requester { key, scope, project: None, holder: None }
    }

    fn made_by(owner: &KeyId) -> Belongs<'_> {
        Belongs { owner: Some(owner), project: None }
    }

    #[test]
    fn another_projects_key_sees_nothing_without_a_role() {
        let [owner, friend] = [key(1), key(2)];
        let [own, other] = [ProjectId::from_parts(1, 1), ProjectId::from_parts(2, 2)];
        let of = Belongs { owner: Some(&owner), project: Some(&own) };
        let shared = Acl { visibility: Some(Visibility::Shared), ..Acl::default() };
        let asks = |key, scope, project| Requester { key, scope, project, holder: None };
        let seen = |who: &Requester<'_>| shared.scope_of(who, of, Visibility::Shared);
        assert_eq!(seen(&asks(&friend, Scope::Exec, Some(&own))), Some(Scope::Exec));
        for project in [None, Some(&other)] {
            assert_eq!(seen(&asks(&friend, Scope::Manage, project)), None);
            // The key that made it sees nothing either, once it is in another project.
            assert_eq!(seen(&asks(&owner, Scope::Manage, project)), None);
            assert_eq!(seen(&asks(&friend, Scope::Admin, project)), Some(Scope::Admin));
            let granted = Acl { grants: BTreeMap::from([(friend.clone(), Role::Read)]), ..shared.clone() };
            let asks = asks(&friend, Scope::Manage, project);
            assert_eq!(granted.scope_of(&asks, of, Visibility::Shared), Some(Scope::Read));
            let snapshot = SnapshotOwnership {
                created_by: Some(friend.clone()),
                project: Some(own.clone()),
                private: false,
            };
            assert_eq!(snapshot.scope_of(&asks, None), None);
            assert_eq!(snapshot.scope_of(&asks, Some(Some(Scope::Read))), Some(Scope::Read));
        }
        // A key of a project does not see a sandbox of no project.
        let asks = asks(&friend, Scope::Manage, Some(&own));
        assert_eq!(shared.scope_of(&asks, made_by(&owner), Visibility::Shared), None);
    }

    #[test]
    fn the_least_of_scope_and_role() {
        let [owner, friend, other] = [key(1), key(2), key(3)];
        let access = Acl {
            visibility: Some(Visibility::Private),
            grants: BTreeMap::from([(friend.clone(), Role::Exec)]),
            lease: None,
        };
        let seen =
            |key: &KeyId, scope| access.scope_of(&who(key, scope), made_by(&owner), Visibility::Shared);
        for scope in [Scope::Read, Scope::Exec, Scope::Manage] {
            assert_eq!(seen(&owner, scope), Some(scope));
            assert_eq!(seen(&friend, scope), Some(scope.min(Scope::Exec)));
            assert_eq!(seen(&other, scope), None, "it does not exist for others");
        }
        assert_eq!(seen(&other, Scope::Admin), Some(Scope::Admin));
        // A sandbox without an owner is owned by no key.
        assert_eq!(
            access.scope_of(&who(&other, Scope::Manage), Belongs::default(), Visibility::Shared),
            None
        );
    }

    #[test]
    fn a_snapshot_follows_its_sandbox_and_belongs_to_who_made_it() {
        let (maker, other) = (key(1), key(2));
        let of = |private| SnapshotOwnership { created_by: Some(maker.clone()), project: None, private };
        for scope in [Scope::Read, Scope::Exec, Scope::Manage] {
            // The key that made the snapshot, whether the sandbox lives or is gone.
            assert_eq!(of(true).scope_of(&who(&maker, scope), None), Some(scope));
            assert_eq!(of(true).scope_of(&who(&maker, scope), Some(None)), Some(scope));
            // Other keys: while the sandbox lives, their role on it.
            let asks = who(&other, scope);
            assert_eq!(of(false).scope_of(&asks, Some(None)), None);
            assert_eq!(of(true).scope_of(&asks, Some(Some(Scope::Read))), Some(Scope::Read));
            // When the sandbox is gone, its visibility at the time of the snapshot.
            assert_eq!(of(true).scope_of(&asks, None), None);
            assert_eq!(of(false).scope_of(&asks, None), Some(scope));
        }
        assert_eq!(of(true).scope_of(&who(&other, Scope::Admin), Some(None)), Some(Scope::Admin));
    }

    #[test]
    fn the_default_holds_where_nothing_else_was_said() {
        let (owner, other) = (key(1), key(2));
        let access = Acl::default();
        let seen = |default| access.scope_of(&who(&other, Scope::Exec), made_by(&owner), default);
        assert_eq!(seen(Visibility::Shared), Some(Scope::Exec));
        assert_eq!(seen(Visibility::Private), None);
        let shared = Acl { visibility: Some(Visibility::Shared), ..Acl::default() };
        let asks = who(&other, Scope::Exec);
        assert_eq!(shared.scope_of(&asks, made_by(&owner), Visibility::Private), Some(Scope::Exec));
    }

    #[test]
    fn a_lease_keeps_everybody_else_out_until_it_ends() {
        let (holder, other) = (key(1), key(2));
        let lease = Lease { key: holder.clone(), holder: "agent-1".into(), taken_ms: 0, expires_ms: 5000 };
        let access = Acl { lease: Some(lease), ..Acl::default() };
        let named = |key, holder| Requester { key, scope: Scope::Admin, project: None, holder };
        assert!(access.admits(&named(&holder, None), 0).is_ok());
        assert!(access.admits(&named(&holder, Some("agent-1")), 0).is_ok());
        let refused = access.admits(&named(&holder, Some("agent-2")), 0).unwrap_err();
        assert!(refused.code == Code::SandboxLeased && refused.message.contains("agent-1"), "{refused}");
        assert!(access.admits(&named(&other, Some("agent-1")), 4999).is_err(), "a name is no proof");
        assert!(access.admits(&named(&other, None), 5000).is_ok());
    }

    #[test]
    fn leases_at_their_edges() {
        assert!(Lease::validate("a", 1).is_ok() && Lease::validate("a", LEASE_MAX_MS).is_ok());
        for (holder, ttl, field) in
            [("", 1, "holder"), ("a\n", 1, "holder"), ("a", 0, "ttl_ms"), ("a", LEASE_MAX_MS + 1, "ttl_ms")]
        {
            let error = Lease::validate(holder, ttl).unwrap_err();
            assert!(error.message.starts_with(field), "{error}");
        }
    }
}
