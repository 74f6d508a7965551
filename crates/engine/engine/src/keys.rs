//! API keys. Verifying one touches only memory: it is on every request's path.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_core::id::KeyId;
pub use atoll_core::key::{KeyFormat, Scope as KeyScope};
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_store::{KeyRecord, Store};
use atoll_vault::ApiKey;

use crate::clock::{now_ms, random};
use crate::engine::Engine;
use crate::errors::store_error;

/// Longest name of a key, bytes.
const NAME_MAX_BYTES: usize = 128;
/// The last use of a key is recorded at most this often, milliseconds.
const TOUCH_EVERY_MS: u64 = 60_000;

/// Keys that work, by the hash of their secret.
#[derive(Debug, Default)]
pub(crate) struct KeyCache {
    by_hash: RwLock<BTreeMap<Vec<u8>, Arc<KeyRecord>>>,
    /// Changes come one after the other: what is in memory follows what is stored.
    changing: tokio::sync::Mutex<()>,
}

impl KeyCache {
    pub(crate) async fn load(store: &Store) -> Result<Self> {
        let cache = Self::default();
        let _new = cache.replace(store.list_keys().await.map_err(store_error)?);
        Ok(cache)
    }

    /// Takes what the database holds in place of everything; gives the ids of those that are gone.
    fn replace(&self, records: Vec<KeyRecord>) -> Vec<KeyId> {
        let new: BTreeMap<_, _> =
            records.into_iter().map(|record| (record.hash.clone(), Arc::new(record))).collect();
        let mut keys = self.by_hash.write().unwrap_or_else(PoisonError::into_inner);
        let gone = keys.iter().filter(|(hash, _)| !new.contains_key(*hash));
        let gone = gone.map(|(_, record)| record.id.clone()).collect();
        *keys = new;
        gone
    }

    fn find(&self, hash: &[u8]) -> Option<Arc<KeyRecord>> {
        self.by_hash.read().unwrap_or_else(PoisonError::into_inner).get(hash).cloned()
    }

    fn find_id(&self, id: &KeyId) -> Option<Arc<KeyRecord>> {
        let keys = self.by_hash.read().unwrap_or_else(PoisonError::into_inner);
        keys.values().find(|record| record.id == *id).cloned()
    }

    fn put(&self, record: KeyRecord) {
        let mut keys = self.by_hash.write().unwrap_or_else(PoisonError::into_inner);
        keys.insert(record.hash.clone(), Arc::new(record));
    }

    /// Notes a use. A key that was deleted meanwhile stays deleted.
    fn used(&self, record: &KeyRecord, at_ms: u64) {
        let mut keys = self.by_hash.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.get_mut(&record.hash) {
            *known = Arc::new(KeyRecord { last_used_ms: Some(at_ms), ..record.clone() });
        }
    }

    /// When a key runs out, if it is there and does.
    pub(crate) fn expires_ms(&self, id: &KeyId) -> Option<u64> {
        self.find_id(id)?.expires_ms
    }

    /// Whether there is a key with this id.
    pub(crate) fn knows(&self, id: &KeyId) -> bool {
        self.by_hash.read().unwrap_or_else(PoisonError::into_inner).values().any(|record| record.id == *id)
    }

    fn remove(&self, id: &KeyId) {
        self.by_hash.write().unwrap_or_else(PoisonError::into_inner).retain(|_, record| record.id != *id);
    }
}

/// A key that was presented and is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedKey {
    /// Its id.
    pub id: KeyId,
    /// The highest thing it may do.
    pub scope: KeyScope,
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
        self.verified(&record).ok_or_else(refused)
    }

    /// A key that something else stands for, if it is good: a signature, a token. Whoever calls this has verified that.
    ///
    /// # Errors
    /// [`Code::Unauthorized`].
    pub fn key_behind(&self, id: &KeyId) -> Result<VerifiedKey> {
        let gone = || Error::new(Code::Unauthorized, "the API key does not work any more");
        self.verified_by_id(id).ok_or_else(gone)
    }

    /// The same, for ourselves.
    pub(crate) fn verified_by_id(&self, id: &KeyId) -> Option<VerifiedKey> {
        let record = self.inner.keys.find_id(id)?;
        self.verified(&record)
    }

    fn verified(&self, record: &KeyRecord) -> Option<VerifiedKey> {
        let now = now_ms();
        if record.expires_ms.is_some_and(|end| end <= now) {
            return None;
        }
        let scope = record.scopes.first().and_then(|text| KeyScope::parse(text))?;
        if record.last_used_ms.is_none_or(|used| now.saturating_sub(used) > TOUCH_EVERY_MS) {
            self.touch_key(record, now);
        }
        Some(VerifiedKey { id: record.id.clone(), scope })
    }

    /// Records the use, off the request's path.
    fn touch_key(&self, record: &KeyRecord, now: u64) {
        self.inner.keys.used(record, now);
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
    pub async fn create_key(&self, name: &str, scope: KeyScope, ttl_ms: Option<u64>) -> Result<NewKey> {
        self.create_key_as(KeyFormat::Atoll, name, scope, ttl_ms).await
    }

    /// Makes a key. Whatever it looks like, it opens the same, everywhere.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for the name.
    pub async fn create_key_as(
        &self,
        format: KeyFormat,
        name: &str,
        scope: KeyScope,
        ttl_ms: Option<u64>,
    ) -> Result<NewKey> {
        if name.is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
            return Err(Error::invalid("name", "must have 1 to 128 bytes without control characters"));
        }
        if ttl_ms == Some(0) {
            return Err(Error::invalid("ttl_ms", "must be at least 1"));
        }
        let created_ms = now_ms();
        let key = ApiKey::generate(format).map_err(|error| {
            tracing::error!(%error, "no randomness for a key");
            Error::new(Code::Internal, "the host's random generator failed")
        })?;
        let record = KeyRecord {
            id: KeyId::from_parts(created_ms, random()?),
            name: name.to_owned(),
            hash: key.hash().to_vec(),
            scopes: vec![scope.as_str().to_owned()],
            created_ms,
            expires_ms: ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
            last_used_ms: None,
        };
        let _turn = self.inner.keys.changing.lock().await;
        self.inner.store.insert_key(&record).await.map_err(store_error)?;
        self.inner.keys.put(record.clone());
        Ok(NewKey { record, secret: key.text().clone() })
    }

    /// Every key that works or has run out.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    pub async fn keys(&self) -> Result<Vec<KeyRecord>> {
        self.inner.store.list_keys().await.map_err(store_error)
    }

    /// Deletes a key: it stops working at once.
    ///
    /// # Errors
    /// [`Code::KeyNotFound`].
    pub async fn delete_key(&self, id: &str) -> Result<()> {
        let parsed: KeyId = id.parse()?;
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
