//! Who asks. A [`Caller`] is made of a key that was verified, or stands for the server itself; protocols add the name that
//! it works under. It is what the engine's methods that list things take, and it decides nothing by itself.

use atoll_core::id::{KeyId, ProjectId};
use atoll_core::key::Scope;
use atoll_core::sharing::Requester;

use crate::keys::VerifiedKey;

/// Who asks: the holder of a key, or the server itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Absent for the server itself.
    pub(crate) key: Option<KeyId>,
    /// The login by which a person is here: what it opened ends with it.
    pub(crate) login: Option<KeyId>,
    /// The project that it belongs to.
    pub(super) project: Option<ProjectId>,
    pub(super) scope: Scope,
    /// The name it works under, to tell several that share a key apart.
    pub(super) holder: Option<String>,
    /// Fingerprint of the SSH key by which it came, which stands for the API key.
    pub(super) ssh_key: Option<String>,
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
