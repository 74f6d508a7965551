//! SSH public keys. Each stands for an API key: who logs in with it may do what that key may.

use atoll_core::id::SshKeyId;
use atoll_core::limits::SSH_KEYS_MAX_COUNT;
use atoll_core::{Code, Error, Result, access};
use atoll_store::{SshKeyRecord, StoreError};

use crate::clock::{now_ms, random};
use crate::engine::Engine;
use crate::errors::store_error;
use crate::keys::VerifiedKey;

/// Longest public key, bytes: RSA of 16,384 bits.
const PUBLIC_KEY_MAX_BYTES: usize = 8 << 10;

impl Engine {
    /// Registers an SSH public key for the API key of the caller. `public_key` and `fingerprint` were read by
    /// whoever knows SSH; here they are texts. Registering the same key for the same API key again changes
    /// its end and gives the record that is there.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], [`Code::LimitExceeded`]; [`Code::NameTaken`] when the key is registered for
    /// another API key.
    pub async fn add_ssh_key(
        &self,
        name: &str,
        public_key: &str,
        fingerprint: &str,
        ttl_ms: Option<u64>,
        owner: &VerifiedKey,
    ) -> Result<SshKeyRecord> {
        access::label("name", name)?;
        if public_key.len() > PUBLIC_KEY_MAX_BYTES {
            return Err(Error::invalid("public_key", "is longer than 8 KiB"));
        }
        if ttl_ms == Some(0) {
            return Err(Error::invalid("ttl_ms", "must be at least 1"));
        }
        let created_ms = now_ms();
        let store = &self.inner.store;
        store.prune_ssh_keys(created_ms).await.map_err(store_error)?;
        let all = store.list_ssh_keys().await.map_err(store_error)?;
        if let Some(known) = all.iter().find(|record| record.fingerprint == fingerprint) {
            if known.owner != owner.id {
                return Err(Error::new(Code::NameTaken, "this SSH key is registered for another API key")
                    .hint("remove it there, or use another SSH key"));
            }
            store.delete_ssh_key(&known.id).await.map_err(store_error)?;
        } else if all.iter().filter(|record| record.owner == owner.id).count() >= SSH_KEYS_MAX_COUNT {
            return Err(Error::new(
                Code::LimitExceeded,
                format!("the API key has {SSH_KEYS_MAX_COUNT} SSH keys already"),
            )
            .hint("remove some"));
        }
        let record = SshKeyRecord {
            id: SshKeyId::from_parts(created_ms, random()?),
            name: name.to_owned(),
            public_key: public_key.to_owned(),
            fingerprint: fingerprint.to_owned(),
            owner: owner.id.clone(),
            created_ms,
            expires_ms: ttl_ms.map(|ttl| created_ms.saturating_add(ttl)),
        };
        match store.insert_ssh_key(&record).await {
            Ok(()) => Ok(record),
            Err(StoreError::AlreadyExists) => {
                Err(Error::new(Code::NameTaken, "this SSH key was registered at the same time")
                    .hint("try again"))
            }
            Err(error) => Err(store_error(error)),
        }
    }

    /// Every SSH key of an API key, or of all.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    pub async fn ssh_keys(&self, owner: Option<&VerifiedKey>) -> Result<Vec<SshKeyRecord>> {
        let mut records = self.inner.store.list_ssh_keys().await.map_err(store_error)?;
        let now = now_ms();
        records.retain(|record| record.expires_ms.is_none_or(|end| end > now));
        records.retain(|record| owner.is_none_or(|owner| record.owner == owner.id));
        Ok(records)
    }

    /// Removes an SSH key of an API key, or of any: no new login works with it.
    ///
    /// # Errors
    /// [`Code::SshKeyNotFound`].
    pub async fn remove_ssh_key(&self, id: &str, owner: Option<&VerifiedKey>) -> Result<()> {
        let parsed: SshKeyId = id.parse()?;
        if !self.ssh_keys(owner).await?.iter().any(|record| record.id == parsed) {
            return Err(SshKeyId::not_found(id));
        }
        self.inner.store.delete_ssh_key(&parsed).await.map_err(store_error)?;
        Ok(())
    }

    /// The API key that an SSH key stands for, if both are good.
    ///
    /// # Errors
    /// [`Code::Unauthorized`]; [`Code::StoreUnavailable`].
    pub async fn verify_ssh_key(&self, fingerprint: &str) -> Result<VerifiedKey> {
        let refused = || Error::new(Code::Unauthorized, "the SSH key is not registered");
        let found = self.inner.store.ssh_key(fingerprint).await.map_err(store_error)?;
        let record = found.ok_or_else(refused)?;
        if record.expires_ms.is_some_and(|end| end <= now_ms()) {
            return Err(refused());
        }
        self.verified_by_id(&record.owner).ok_or_else(refused)
    }
}
