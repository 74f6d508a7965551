//! API keys. Verifying one touches only memory: it is on every request's path.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use atoll_core::id::{KeyId, ProjectId};
pub use atoll_core::key::{KeyFormat, Scope as KeyScope};
use atoll_core::person::Person;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_store::{KeyKind, KeyRecord, Login, LoginBy, Store, StoreError};
use atoll_vault::ApiKey;

use crate::authorize::gone;
use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;

/// Longest name of a key, bytes.
const NAME_MAX_BYTES: usize = 128;
/// The last use of a key is recorded at most this often, milliseconds.
const TOUCH_EVERY_MS: u64 = 60_000;

/// Keys that work, people and their logins among them.
#[derive(Debug, Default)]
pub(crate) struct KeyCache {
    known: RwLock<Known>,
    /// Changes come one after the other: what is in memory follows what is stored.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: BTreeMap<KeyId, Arc<KeyRecord>>,
    /// By the hash of what is shown.
    by_hash: BTreeMap<Vec<u8>, KeyId>,
}

impl Known {
    fn put(&mut self, record: KeyRecord) {
        self.by_hash.insert(record.hash.clone(), record.id.clone());
        self.by_id.insert(record.id.clone(), Arc::new(record));
    }
}

impl KeyCache {
    pub(crate) async fn load(store: &Store) -> Result<Self> {
        let cache = Self::default();
        let _new = cache.replace(store.list_keys().await.map_err(store_error)?);
        Ok(cache)
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the database holds in place of everything; gives the ids of those that are gone.
    fn replace(&self, records: Vec<KeyRecord>) -> Vec<KeyId> {
        let mut new = Known::default();
        records.into_iter().for_each(|record| new.put(record));
        let mut known = self.write();
        let gone = known.by_id.keys().filter(|id| !new.by_id.contains_key(*id)).cloned().collect();
        *known = new;
        gone
    }

    pub(crate) fn find(&self, hash: &[u8]) -> Option<Arc<KeyRecord>> {
        let known = self.read();
        known.by_id.get(known.by_hash.get(hash)?).cloned()
    }

    pub(crate) fn find_id(&self, id: &KeyId) -> Option<Arc<KeyRecord>> {
        self.read().by_id.get(id).cloned()
    }

    /// All of them, as they are now.
    pub(crate) fn all(&self) -> Vec<Arc<KeyRecord>> {
        self.read().by_id.values().cloned().collect()
    }

    fn put(&self, record: KeyRecord) {
        self.write().put(record);
    }

    /// Notes a use. A key that was deleted meanwhile stays deleted.
    fn used(&self, id: &KeyId, at_ms: u64) {
        if let Some(known) = self.write().by_id.get_mut(id) {
            *known = Arc::new(KeyRecord { last_used_ms: Some(at_ms), ..KeyRecord::clone(known) });
        }
    }

    /// When a key runs out, if it is there and does.
    pub(crate) fn expires_ms(&self, id: &KeyId) -> Option<u64> {
        self.find_id(id)?.expires_ms
    }

    /// Whether there is a key with this id.
    pub(crate) fn knows(&self, id: &KeyId) -> bool {
        self.read().by_id.contains_key(id)
    }

    fn remove(&self, id: &KeyId) {
        let mut known = self.write();
        known.by_id.retain(|_, record| {
            record.id != *id && !matches!(&record.kind, KeyKind::Login(login) if login.person == *id)
        });
        let Known { by_id, by_hash } = &mut *known;
        by_hash.retain(|_, id| by_id.contains_key(id));
    }
}

/// A key that was presented and is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedKey {
    /// Its id; a person's, when they are logged in.
    pub id: KeyId,
    /// By which of the person's logins it was shown.
    pub login: Option<KeyId>,
    /// The project that it belongs to.
    pub project: Option<ProjectId>,
    /// The highest thing it may do.
    pub scope: KeyScope,
}

impl VerifiedKey {
    /// What must go on to work for this to be good: the login, or else the key itself.
    #[must_use]
    pub const fn lasts_with(&self) -> &KeyId {
        match &self.login {
            Some(login) => login,
            None => &self.id,
        }
    }
}

/// What a key may do, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRight {
    /// The highest thing it may do.
    pub scope: KeyScope,
    /// The project that it belongs to.
    pub project: Option<ProjectId>,
}

/// A new key, with its secret.
#[derive(Debug)]
pub struct NewKey {
    /// The record.
    pub record: KeyRecord,
    /// What to present. Not kept anywhere.
    pub secret: Secret,
}

impl Engine {
    /// Verifies what a client presented.
    ///
    /// # Errors
    /// [`Code::Unauthorized`], which does not say in which way it is wrong.
    pub fn verify_key(&self, presented: &str) -> Result<VerifiedKey> {
        let refused = || {
            Error::new(Code::Unauthorized, "the API key is not valid")
                .hint("send 'Authorization: Bearer <key>'; 'atoll key create' makes one")
        };
        let key = ApiKey::parse(presented).map_err(|_malformed| refused())?;
        // The look-up is by a hash of 256 random bits: its timing tells nothing about other keys.
        let record = self.inner.keys.find(&key.hash()).ok_or_else(refused)?;
        match &record.kind {
            KeyKind::Key | KeyKind::Login(Login { by: LoginBy::Key, .. }) => {}
            // The dashboard's cookie opens nothing else, and no secret stands for a person.
            KeyKind::Person(_) | KeyKind::Login(_) => return Err(refused()),
        }
        self.verified(&record).ok_or_else(refused)
    }

    /// The key that a signature or a token stands for, if the key is good. The caller has verified the signature or the
    /// token.
    ///
    /// # Errors
    /// [`Code::Unauthorized`].
    pub fn key_behind(&self, id: &KeyId) -> Result<VerifiedKey> {
        self.verified_by_id(id).ok_or_else(gone)
    }

    /// The same, for ourselves.
    pub(crate) fn verified_by_id(&self, id: &KeyId) -> Option<VerifiedKey> {
        let record = self.inner.keys.find_id(id)?;
        self.verified(&record)
    }

    pub(crate) fn verified(&self, record: &KeyRecord) -> Option<VerifiedKey> {
        let now = self.inner.now_ms();
        if record.expires_ms.is_some_and(|end| end <= now) {
            return None;
        }
        let verified = match &record.kind {
            KeyKind::Login(login) => {
                let person = self.verified_by_id(&login.person)?;
                VerifiedKey { login: Some(record.id.clone()), ..person }
            }
            KeyKind::Key | KeyKind::Person(_) => {
                let KeyRight { scope, project } = self.right_of_key(record)?;
                VerifiedKey { id: record.id.clone(), login: None, project, scope }
            }
        };
        if record.last_used_ms.is_none_or(|used| now.saturating_sub(used) > TOUCH_EVERY_MS) {
            self.touch_key(record, now);
        }
        Some(verified)
    }

    /// What a key may do; nothing when that cannot be read, or no rule names the person any more, or the rule names another
    /// project than this person of it is of, or one that is not there. A login has no right of its own.
    #[must_use]
    pub fn right_of_key(&self, record: &KeyRecord) -> Option<KeyRight> {
        match &record.kind {
            KeyKind::Key => {
                let scope = record.scopes.first().and_then(|text| KeyScope::parse(text))?;
                Some(KeyRight { scope, project: record.project.clone() })
            }
            KeyKind::Person(person) => {
                self.right_of_person(person).filter(|right| right.project == record.project)
            }
            KeyKind::Login(_) => None,
        }
    }

    /// What a person may do.
    pub(crate) fn right_of_person(&self, person: &Person) -> Option<KeyRight> {
        let right = self.inner.config.people.rules.right_of(person)?;
        let project = match right.project {
            Some(name) => Some(self.inner.projects.named(name)?.id.clone()),
            None => None,
        };
        Some(KeyRight { scope: right.scope, project })
    }

    /// Records the use, off the request's path.
    fn touch_key(&self, record: &KeyRecord, now: u64) {
        self.inner.keys.used(&record.id, now);
        let store = self.inner.store.clone();
        let id = record.id.clone();
        self.inner.tracker.spawn(async move {
            if let Err(error) = store.touch_key(&id, now).await {
                tracing::warn!(%error, "the use of a key was not recorded");
            }
        });
    }

    /// Makes a key that looks like ours.
    ///
    /// # Errors
    /// As [`Self::create_key_as`].
    #[boxed]
    pub async fn create_key(&self, name: &str, scope: KeyScope, ttl_ms: Option<u64>) -> Result<NewKey> {
        self.create_key_as(KeyFormat::Atoll, name, scope, ttl_ms, None).await
    }

    /// Makes a key, of the project with this id or name, or of none. In every format it opens the same, everywhere.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for the name, and for an administrator of a project; [`Code::ProjectNotFound`].
    #[boxed]
    pub async fn create_key_as(
        &self,
        format: KeyFormat,
        name: &str,
        scope: KeyScope,
        ttl_ms: Option<u64>,
        project: Option<&str>,
    ) -> Result<NewKey> {
        if name.is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
            return Err(Error::invalid("name", "must have 1 to 128 bytes without control characters"));
        }
        if ttl_ms == Some(0) {
            return Err(Error::invalid("ttl_ms", "must be at least 1"));
        }
        if project.is_some() && scope == KeyScope::Admin {
            return Err(Error::invalid("scope", "administrators belong to no project")
                .hint("the most that a key of a project may have is 'manage'"));
        }
        let project = project.map(|text| self.project(text)).transpose()?;
        let created_ms = self.inner.now_ms();
        let key = ApiKey::generate(format).map_err(|error| {
            tracing::error!(%error, "no randomness for a key");
            Error::new(Code::Internal, "the host's random generator failed")
        })?;
        let record = KeyRecord {
            id: KeyId::from_parts(created_ms, random()?),
            name: name.to_owned(),
            hash: key.hash().to_vec(),
            scopes: vec![scope.as_str().to_owned()],
            project: project.as_ref().map(|project| project.id.clone()),
            created_ms,
            expires_ms: ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
            last_used_ms: None,
            kind: KeyKind::Key,
        };
        let _turn = self.inner.keys.changing.lock().await;
        self.inner.store.insert_key(&record).await.map_err(|error| match (error, &project) {
            // It was removed at the same moment.
            (StoreError::NotFound, Some(project)) => ProjectId::not_found(&project.name),
            (error, _) => store_error(error),
        })?;
        self.inner.keys.put(record.clone());
        Ok(NewKey { record, secret: key.text().clone() })
    }

    /// Every key that works or has run out, people among them, but not their logins.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn keys(&self) -> Result<Vec<KeyRecord>> {
        let mut all = self.inner.store.list_keys().await.map_err(store_error)?;
        all.retain(|record| !matches!(record.kind, KeyKind::Login(_)));
        Ok(all)
    }

    /// Deletes a key: it stops working at once.
    ///
    /// # Errors
    /// [`Code::KeyNotFound`].
    #[boxed]
    pub async fn delete_key(&self, id: &str) -> Result<()> {
        let parsed: KeyId = id.parse()?;
        if self.inner.keys.find_id(&parsed).is_some_and(|record| matches!(record.kind, KeyKind::Login(_))) {
            return Err(KeyId::not_found(id));
        }
        let _turn = self.inner.keys.changing.lock().await;
        self.inner.keys.remove(&parsed);
        self.inner.acl.forget_key(&parsed);
        let there = self.inner.store.delete_key(&parsed).await.map_err(store_error)?;
        if there { Ok(()) } else { Err(KeyId::not_found(id)) }
    }

    /// Takes up what other nodes changed. What is open by the right of a key that is gone ends.
    pub(crate) async fn reload_keys(&self) -> Result<()> {
        let _turn = self.inner.keys.changing.lock().await;
        let records = self.inner.store.list_keys().await.map_err(store_error)?;
        for gone in self.inner.keys.replace(records) {
            self.inner.acl.forget_key(&gone);
        }
        self.inner.acl.keys_changed();
        Ok(())
    }
}
