//! Who may use which sandbox. Asked with every request, so all of it is in memory; the store has what must
//! survive.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::error::shorten;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::key::Scope;
use atoll_core::sharing::{Access, Lease, Requester, Role, Visibility};
use atoll_core::{Code, Error, Result};
use atoll_store::{Store, StoreError};
use tokio::sync::{Mutex, watch};

use crate::clock::now_ms;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;
use crate::sandbox::SandboxShared;

/// What was said about sandboxes.
#[derive(Debug)]
pub(crate) struct AccessTable {
    default: Visibility,
    said: RwLock<BTreeMap<SandboxId, Arc<Access>>>,
    /// Changes come one after the other: what is in memory follows what is stored.
    changing: Mutex<()>,
    /// Told of everything that may take rights away: see [`Engine::until_unwelcome`].
    changed: watch::Sender<()>,
}

impl AccessTable {
    pub(crate) async fn load(store: &Store, default: Visibility) -> Result<Self> {
        let said = store.list_access().await.map_err(store_error)?;
        let said = said.into_iter().map(|(id, access)| (id, Arc::new(access))).collect();
        Ok(Self {
            default,
            said: RwLock::new(said),
            changing: Mutex::default(),
            changed: watch::Sender::default(),
        })
    }

    pub(crate) const fn default(&self) -> Visibility {
        self.default
    }

    /// What was said of a sandbox.
    pub(crate) fn get(&self, id: &SandboxId) -> Arc<Access> {
        self.said.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned().unwrap_or_default()
    }

    /// Tells of everything that may take rights away.
    pub(crate) fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// An SSH key is gone, or ends at another time.
    pub(crate) fn ssh_key_changed(&self) {
        self.changed.send_replace(());
    }

    fn change(&self, id: &SandboxId, change: impl FnOnce(&mut Access)) -> Arc<Access> {
        let mut said = self.said.write().unwrap_or_else(PoisonError::into_inner);
        let entry = said.entry(id.clone()).or_default();
        change(Arc::make_mut(entry));
        let access = Arc::clone(entry);
        drop(said);
        self.changed.send_replace(());
        access
    }

    /// Says who sees a sandbox that has no row yet; [`Inner::store_held_visibility`] writes it down.
    pub(crate) fn hold(&self, id: &SandboxId, visibility: Option<Visibility>) {
        if visibility.is_some() {
            self.change(id, |access| access.visibility = visibility);
        }
    }

    /// A sandbox is gone.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.said.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// A key is gone, and with it what it was granted.
    pub(crate) fn forget_key(&self, key: &KeyId) {
        let mut said = self.said.write().unwrap_or_else(PoisonError::into_inner);
        for access in said.values_mut().filter(|access| access.grants.contains_key(key)) {
            Arc::make_mut(access).grants.remove(key);
        }
        drop(said);
        self.changed.send_replace(());
    }
}

impl Inner {
    /// Writes down what was said of a sandbox before it had a row.
    pub(crate) async fn store_held_visibility(&self, id: &SandboxId) -> Result<()> {
        match self.access.get(id).visibility {
            None => Ok(()),
            said => self.store.set_visibility(id, said).await.map_err(store_error),
        }
    }
}

/// Who may use a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessView {
    /// Who made it.
    pub owner: Option<KeyId>,
    /// Whether keys without a grant see it.
    pub visibility: Visibility,
    /// Whether that is only the server's default.
    pub is_default: bool,
    /// Roles by key.
    pub grants: BTreeMap<KeyId, Role>,
}

/// What a key may do with a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The most it may do, leases aside.
    pub scope: Scope,
    /// Why it may only look for now: somebody has a lease.
    pub leased: Option<Error>,
}

impl Standing {
    /// The most that may be done, if that is enough for `needed`.
    ///
    /// # Errors
    /// [`Code::Forbidden`]; [`Code::SandboxLeased`] unless it may be done `despite_lease`.
    pub fn allow(self, needed: Scope, despite_lease: bool) -> Result<Scope> {
        if self.scope < needed {
            let role = self.scope.as_str();
            return Err(Error::new(
                Code::Forbidden,
                format!("the API key has the role '{role}' on this sandbox"),
            )
            .hint("who manages the sandbox can grant a higher one: 'atoll access grant'"));
        }
        match self.leased {
            Some(error) if !despite_lease => Err(error),
            Some(_) | None => Ok(self.scope),
        }
    }
}

impl Engine {
    /// Whether the holder of a key may run commands in a sandbox at this moment. Whatever stays open after it was
    /// let in asks this again with each thing that it begins.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] when the key is not good any more; as [`Self::standing`] and [`Standing::allow`].
    pub fn may_exec(&self, key: &KeyId, sandbox: &str) -> Result<()> {
        let key = self
            .verified_by_id(key)
            .ok_or_else(|| Error::new(Code::Unauthorized, "the API key does not work any more"))?;
        let who = Requester { key: &key.id, scope: key.scope, holder: None };
        self.standing(&who, sandbox)?.allow(Scope::Exec, false).map(drop)
    }

    /// Makes the snapshots of a sandbox as private as it is.
    pub(crate) async fn keep_private(&self, sandbox: &SandboxId) -> Result<()> {
        let said = self.inner.access.get(sandbox).visibility.unwrap_or(self.inner.access.default);
        let private = said == Visibility::Private;
        self.inner.store.set_snapshots_private(sandbox, private).await.map_err(store_error)
    }

    /// Whether a key may know of a sandbox.
    pub(crate) fn sees(&self, key: &KeyId, sandbox: &SandboxId) -> bool {
        self.verified_by_id(key).is_some_and(|key| {
            let who = Requester { key: &key.id, scope: key.scope, holder: None };
            self.standing(&who, sandbox.as_str()).is_ok()
        })
    }

    /// What somebody may do with a sandbox. Adapters of other APIs call this before anything else.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], also when it is there and not to be known.
    pub fn standing(&self, who: &Requester<'_>, sandbox: &str) -> Result<Standing> {
        let found = self.inner.sandbox(sandbox)?;
        let access = self.inner.access.get(&found.id);
        let owner = found.record().owner;
        let scope = access.scope_of(who, owner.as_ref(), self.inner.access.default);
        let scope = scope.ok_or_else(|| SandboxId::not_found(sandbox))?;
        Ok(Standing { scope, leased: access.admits(who, now_ms()).err() })
    }

    /// Who may use a sandbox.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn access(&self, sandbox: &str) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        Ok(self.view(&found, &self.inner.access.get(&found.id)))
    }

    fn view(&self, sandbox: &SandboxShared, access: &Access) -> AccessView {
        AccessView {
            owner: sandbox.record().owner,
            visibility: access.visibility.unwrap_or(self.inner.access.default),
            is_default: access.visibility.is_none(),
            grants: access.grants.clone(),
        }
    }

    /// Sets whether keys without a grant see a sandbox; `None` leaves it to the server's default.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub async fn set_visibility(&self, sandbox: &str, visibility: Option<Visibility>) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        let _turn = self.inner.access.changing.lock().await;
        self.inner
            .store
            .set_visibility(&found.id, visibility)
            .await
            .map_err(|error| missing(error, sandbox))?;
        let access = self.inner.access.change(&found.id, |access| access.visibility = visibility);
        self.keep_private(&found.id).await?;
        Ok(self.view(&found, &access))
    }

    /// Gives a key a role on a sandbox, in place of the one it had.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::KeyNotFound`], [`Code::LimitExceeded`].
    pub async fn grant(&self, sandbox: &str, key: &str, role: Role) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        let id: KeyId = key.parse()?;
        let _turn = self.inner.access.changing.lock().await;
        if !self.inner.keys.knows(&id) {
            return Err(KeyId::not_found(key).hint("'atoll key ls' shows the ids of keys"));
        }
        self.inner.access.get(&found.id).check_room(&id)?;
        self.inner.store.put_grant(&found.id, &id, role).await.map_err(|error| missing(error, sandbox))?;
        let access = self.inner.access.change(&found.id, |access| {
            access.grants.insert(id, role);
        });
        Ok(self.view(&found, &access))
    }

    /// Takes a key's role on a sandbox away.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`]; [`Code::KeyNotFound`] when it had none.
    pub async fn revoke(&self, sandbox: &str, key: &str) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        let id: KeyId = key.parse()?;
        let _turn = self.inner.access.changing.lock().await;
        if !self.inner.store.delete_grant(&found.id, &id).await.map_err(store_error)? {
            let key = shorten(key);
            return Err(Error::new(
                Code::KeyNotFound,
                format!("the key '{key}' has no role on this sandbox"),
            ));
        }
        let access = self.inner.access.change(&found.id, |access| {
            access.grants.remove(&id);
        });
        Ok(self.view(&found, &access))
    }

    /// The lease that somebody has on a sandbox.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn lease(&self, sandbox: &str) -> Result<Option<Lease>> {
        let found = self.inner.sandbox(sandbox)?;
        let lease = self.inner.access.get(&found.id).lease.clone();
        Ok(lease.filter(|lease| !lease.has_ended(now_ms())))
    }

    /// Takes a sandbox for oneself, or goes on having it, for `ttl_ms` from now. `who.holder` is the name that
    /// others are shown; the key's id when absent.
    ///
    /// # Errors
    /// [`Code::SandboxLeased`] while somebody else has it; [`Code::InvalidArgument`] naming the field.
    pub async fn take_lease(&self, sandbox: &str, who: &Requester<'_>, ttl_ms: u64) -> Result<Lease> {
        let holder = who.holder.unwrap_or(who.key.as_str());
        Lease::validate(holder, ttl_ms)?;
        let found = self.inner.sandbox(sandbox)?;
        let _turn = self.inner.access.changing.lock().await;
        let now = now_ms();
        let access = self.inner.access.get(&found.id);
        access.admits(who, now)?;
        let before = access.lease.as_ref().filter(|lease| !lease.has_ended(now));
        let lease = Lease {
            key: who.key.clone(),
            // Who goes on without a name keeps the one it gave.
            holder: before.filter(|_| who.holder.is_none()).map_or(holder, |lease| &lease.holder).to_owned(),
            taken_ms: before.map_or(now, |lease| lease.taken_ms),
            expires_ms: now.saturating_add(ttl_ms),
        };
        self.inner.store.put_lease(&found.id, &lease).await.map_err(|error| missing(error, sandbox))?;
        self.inner.access.change(&found.id, |access| access.lease = Some(lease.clone()));
        Ok(lease)
    }

    /// Gives a lease back. With `force` also somebody else's, for who manages the sandbox. Nothing happens
    /// when there is none.
    ///
    /// # Errors
    /// [`Code::SandboxLeased`] when it is somebody else's.
    pub async fn release_lease(&self, sandbox: &str, who: &Requester<'_>, force: bool) -> Result<()> {
        let found = self.inner.sandbox(sandbox)?;
        let _turn = self.inner.access.changing.lock().await;
        if !force {
            self.inner.access.get(&found.id).admits(who, now_ms())?;
        }
        self.inner.store.delete_lease(&found.id).await.map_err(store_error)?;
        self.inner.access.change(&found.id, |access| access.lease = None);
        Ok(())
    }
}

/// The sandbox went away meanwhile.
fn missing(error: StoreError, sandbox: &str) -> Error {
    match error {
        StoreError::NotFound => SandboxId::not_found(sandbox),
        error => store_error(error),
    }
}
