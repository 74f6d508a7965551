//! Which API keys may use which sandbox. Every request asks this, so all of it is in memory; the store has what must
//! survive.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::error::shorten;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::sharing::{Acl, Lease, Role, Visibility};
use atoll_core::{Code, Error, Result};
use atoll_store::{Store, StoreError};
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;
use crate::sandbox::SandboxShared;

/// The access settings of sandboxes: visibility, grants and leases.
#[derive(Debug)]
pub(crate) struct AclTable {
    default: Visibility,
    said: RwLock<BTreeMap<SandboxId, Arc<Acl>>>,
    /// Changes come one after the other: what is in memory follows what is stored.
    changing: Mutex<()>,
    /// Told of everything that may take rights away: see [`Engine::until_revoked`].
    changed: watch::Sender<()>,
}

impl AclTable {
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

    /// The access settings of a sandbox.
    pub(crate) fn get(&self, id: &SandboxId) -> Arc<Acl> {
        self.said.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned().unwrap_or_default()
    }

    /// Whether a sandbox is private, by its own setting or else by default.
    pub(crate) fn is_private(&self, id: &SandboxId) -> bool {
        self.get(id).visibility.unwrap_or(self.default) == Visibility::Private
    }

    /// Keeps changes out while it is held.
    pub(crate) async fn unchanging(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// Tells of everything that may take rights away.
    pub(crate) fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// An SSH key is gone, or ends at another time.
    pub(crate) fn ssh_key_changed(&self) {
        self.changed.send_replace(());
    }

    /// The API keys have changed.
    pub(crate) fn keys_changed(&self) {
        self.changed.send_replace(());
    }

    fn change(&self, id: &SandboxId, change: impl FnOnce(&mut Acl)) -> Arc<Acl> {
        let mut said = self.said.write().unwrap_or_else(PoisonError::into_inner);
        let entry = said.entry(id.clone()).or_default();
        change(Arc::make_mut(entry));
        let access = Arc::clone(entry);
        drop(said);
        self.changed.send_replace(());
        access
    }

    /// Sets the visibility of a sandbox that has no row yet; its creation writes it down.
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

/// Who may use a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessView {
    /// The API key that made it.
    pub owner: Option<KeyId>,
    /// Whether keys without a grant see it.
    pub visibility: Visibility,
    /// Whether that is only the server's default.
    pub is_default: bool,
    /// Roles by key.
    pub grants: BTreeMap<KeyId, Role>,
}

impl Engine {
    /// Who may use a sandbox.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn access(&self, sandbox: &SandboxId) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        Ok(self.view(&found, &self.inner.acl.get(&found.id)))
    }

    fn view(&self, sandbox: &SandboxShared, access: &Acl) -> AccessView {
        AccessView {
            owner: sandbox.record().owner,
            visibility: access.visibility.unwrap_or(self.inner.acl.default),
            is_default: access.visibility.is_none(),
            grants: access.grants.clone(),
        }
    }

    /// Sets whether keys without a grant see a sandbox; `None` leaves it to the server's default.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn set_visibility(
        &self,
        sandbox: &SandboxId,
        visibility: Option<Visibility>,
    ) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        let _turn = self.inner.acl.changing.lock().await;
        self.inner
            .store
            .set_visibility(&found.id, visibility)
            .await
            .map_err(|error| missing(error, &found.id))?;
        let access = self.inner.acl.change(&found.id, |access| access.visibility = visibility);
        // Its snapshots keep this visibility when it is gone. Done in the same turn, so that no snapshot is entered
        // meanwhile.
        let private = self.inner.acl.is_private(&found.id);
        self.inner.store.set_snapshots_private(&found.id, private).await.map_err(store_error)?;
        Ok(self.view(&found, &access))
    }

    /// Gives a key a role on a sandbox, in place of the one it had.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::KeyNotFound`], [`Code::LimitExceeded`].
    #[boxed]
    pub async fn grant(&self, sandbox: &SandboxId, key: &str, role: Role) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        let id: KeyId = key.parse()?;
        let _turn = self.inner.acl.changing.lock().await;
        if !self.inner.keys.knows(&id) {
            return Err(KeyId::not_found(key).hint("'atoll key ls' shows the ids of keys"));
        }
        self.inner.acl.get(&found.id).check_room(&id)?;
        self.inner.store.put_grant(&found.id, &id, role).await.map_err(|error| missing(error, &found.id))?;
        let access = self.inner.acl.change(&found.id, |access| {
            access.grants.insert(id, role);
        });
        Ok(self.view(&found, &access))
    }

    /// Takes a key's role on a sandbox away.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`]; [`Code::KeyNotFound`] when it had none.
    #[boxed]
    pub async fn revoke(&self, sandbox: &SandboxId, key: &str) -> Result<AccessView> {
        let found = self.inner.sandbox(sandbox)?;
        let id: KeyId = key.parse()?;
        let _turn = self.inner.acl.changing.lock().await;
        if !self.inner.store.delete_grant(&found.id, &id).await.map_err(store_error)? {
            let key = shorten(key);
            return Err(Error::new(
                Code::KeyNotFound,
                format!("the key '{key}' has no role on this sandbox"),
            ));
        }
        let access = self.inner.acl.change(&found.id, |access| {
            access.grants.remove(&id);
        });
        Ok(self.view(&found, &access))
    }

    /// The lease on a sandbox, if there is one that has not ended.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn lease(&self, sandbox: &SandboxId) -> Result<Option<Lease>> {
        let found = self.inner.sandbox(sandbox)?;
        let lease = self.inner.acl.get(&found.id).lease.clone();
        Ok(lease.filter(|lease| !lease.has_ended(self.inner.now_ms())))
    }

    /// Takes a lease on a sandbox for the caller, or goes on with the one it has, for `ttl_ms` from now. The caller's
    /// [holder](Caller::holder) is the name that other callers are shown; the key's id when absent.
    ///
    /// # Errors
    /// [`Code::SandboxLeased`] while another caller has it; [`Code::InvalidArgument`] naming the field.
    #[boxed]
    pub async fn take_lease(&self, sandbox: &SandboxId, caller: &Caller, ttl_ms: u64) -> Result<Lease> {
        let who = caller.requester().ok_or_else(nobody)?;
        let holder = who.holder.unwrap_or(who.key.as_str());
        Lease::validate(holder, ttl_ms)?;
        let found = self.inner.sandbox(sandbox)?;
        let _turn = self.inner.acl.changing.lock().await;
        let now = self.inner.now_ms();
        let access = self.inner.acl.get(&found.id);
        access.admits(&who, now)?;
        let before = access.lease.as_ref().filter(|lease| !lease.has_ended(now));
        let lease = Lease {
            key: who.key.clone(),
            // A caller that goes on with its lease without giving a name keeps the name that it gave before.
            holder: before.filter(|_| who.holder.is_none()).map_or(holder, |lease| &lease.holder).to_owned(),
            taken_ms: before.map_or(now, |lease| lease.taken_ms),
            expires_ms: now.saturating_add(ttl_ms),
        };
        self.inner.store.put_lease(&found.id, &lease).await.map_err(|error| missing(error, &found.id))?;
        self.inner.acl.change(&found.id, |access| access.lease = Some(lease.clone()));
        Ok(lease)
    }

    /// Gives a lease back. With `force` it ends another caller's lease, too: for a caller that manages the sandbox.
    /// Nothing happens when there is none.
    ///
    /// # Errors
    /// [`Code::SandboxLeased`] when another caller has it.
    #[boxed]
    pub async fn release_lease(&self, sandbox: &SandboxId, caller: &Caller, force: bool) -> Result<()> {
        let found = self.inner.sandbox(sandbox)?;
        let _turn = self.inner.acl.changing.lock().await;
        if !force {
            let who = caller.requester().ok_or_else(nobody)?;
            self.inner.acl.get(&found.id).admits(&who, self.inner.now_ms())?;
        }
        self.inner.store.delete_lease(&found.id).await.map_err(store_error)?;
        self.inner.acl.change(&found.id, |access| access.lease = None);
        Ok(())
    }
}

impl Inner {
    /// Reads the access settings again of sandboxes that were another node's.
    pub(crate) async fn reload_acl(&self, ids: &[SandboxId]) -> Result<()> {
        let _turn = self.acl.changing.lock().await;
        let stored: BTreeMap<_, _> =
            self.store.list_access().await.map_err(store_error)?.into_iter().collect();
        for id in ids {
            let acl = stored.get(id).cloned().unwrap_or_default();
            let _acl = self.acl.change(id, |known| *known = acl);
        }
        Ok(())
    }
}

/// The refusal for the server itself, which has no API key: a lease belongs to a key.
fn nobody() -> Error {
    Error::new(Code::Forbidden, "a lease needs an API key")
}

/// The sandbox went away meanwhile.
fn missing(error: StoreError, sandbox: &SandboxId) -> Error {
    match error {
        StoreError::NotFound => SandboxId::not_found(sandbox.as_str()),
        error => store_error(error),
    }
}
