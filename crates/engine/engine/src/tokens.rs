//! Tokens that stand for an API key on one sandbox or volume, for programs that should not have the key itself.
//!
//! A token is a message authentication code over its purpose, the key's id and that of the sandbox or volume, under a
//! secret of this installation: nothing is stored for it, it is the same whenever it is made, and it lives as long as
//! the key and the sandbox or volume do. What it allows is what the key may do there at that moment.

use atoll_core::id::{KeyId, SandboxId, VolumeId};
use atoll_core::secret::Secret;
use atoll_core::sharing::{Belongs, Requester};
use atoll_core::{Code, Error, Result};
use atoll_store::{KeyRecord, SealedValue, Store};
use atoll_vault::Vault;

use crate::authority::context;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::keys::VerifiedKey;

/// Name of the row with the secret.
const NAME: &str = "sandbox_tokens";
/// Bytes of the secret, as of every key of BLAKE3.
const KEY_BYTES: usize = 32;

/// What tokens are made with.
pub(crate) struct TokenKey([u8; KEY_BYTES]);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

impl TokenKey {
    /// Reads it, making it first when there is none.
    pub(crate) async fn open(store: &Store, vault: &Vault, clock: &Clock) -> Result<Self> {
        let broken = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "the secret of sandbox tokens cannot be used");
            Error::new(Code::Internal, "the secret of sandbox tokens cannot be used")
                .hint("start the server with the vault's key that it had")
        };
        if store.sealed_value(NAME).await.map_err(store_error)?.is_none() {
            let mut bytes = [0; KEY_BYTES];
            getrandom::fill(&mut bytes).map_err(|error| broken(&error))?;
            let secret = Secret::new(blake3::Hash::from_bytes(bytes).to_hex().as_str());
            let sealed = vault.seal(&context(NAME), &secret).map_err(|error| broken(&error))?;
            let value = SealedValue {
                name: NAME.to_owned(),
                visible: String::new(),
                sealed,
                created_ms: clock.now_ms(),
            };
            // Another server of the same database may have been faster: what is read next stands.
            store.insert_sealed_value(&value).await.map_err(store_error)?;
        }
        let value = store.sealed_value(NAME).await.map_err(store_error)?;
        let value = value.ok_or_else(|| broken(&"it is gone"))?;
        let secret = vault.unseal(&context(NAME), &value.sealed).map_err(|error| broken(&error))?;
        let bytes = blake3::Hash::from_hex(secret.reveal()).map_err(|error| broken(&error))?;
        Ok(Self(*bytes.as_bytes()))
    }

    /// `on` is the id of a sandbox or of a volume: ids say of what kind they are. Empty, it is neither.
    fn code(&self, purpose: &str, key: &KeyId, on: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [purpose, key.as_str(), on] {
            // With its length, so that no two lists of parts read the same.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize()
    }
}

impl Engine {
    /// The token that stands for a key on a sandbox, for one purpose. Always the same.
    #[must_use]
    pub fn sandbox_token(&self, purpose: &str, key: &KeyId, sandbox: &SandboxId) -> Secret {
        self.token(purpose, key, sandbox.as_str())
    }

    /// The same, on a volume.
    #[must_use]
    pub fn volume_token(&self, purpose: &str, key: &KeyId, volume: &VolumeId) -> Secret {
        self.token(purpose, key, volume.as_str())
    }

    /// The same, where it is not about one thing.
    #[must_use]
    pub fn key_token(&self, purpose: &str, key: &KeyId) -> Secret {
        self.token(purpose, key, "")
    }

    fn token(&self, purpose: &str, key: &KeyId, on: &str) -> Secret {
        let code = self.inner.tokens.code(purpose, key, on);
        Secret::new(format!("{key}_{code}"))
    }

    /// The key that a token stands for, if both are good. What that may do there is asked for with
    /// [`Engine::authorize`].
    ///
    /// # Errors
    /// [`Code::Unauthorized`], which does not say in which way it is wrong.
    pub fn verify_sandbox_token(
        &self,
        purpose: &str,
        presented: &str,
        sandbox: &SandboxId,
    ) -> Result<VerifiedKey> {
        self.verify_token(purpose, presented, sandbox.as_str())
    }

    /// The same, on a volume.
    ///
    /// # Errors
    /// As [`Self::verify_sandbox_token`].
    pub fn verify_volume_token(
        &self,
        purpose: &str,
        presented: &str,
        volume: &VolumeId,
    ) -> Result<VerifiedKey> {
        self.verify_token(purpose, presented, volume.as_str())
    }

    /// The same, where it is not about one thing.
    ///
    /// # Errors
    /// As [`Self::verify_sandbox_token`].
    pub fn verify_key_token(&self, purpose: &str, presented: &str) -> Result<VerifiedKey> {
        self.verify_token(purpose, presented, "")
    }

    /// The key behind a signature on a sandbox, which does not name it: of the keys that may know of the sandbox the first for
    /// which `is` is true, after its owner and those that have a role there. Only memory is asked: whoever shows a signature
    /// may be anybody, as often as they like.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn signer(&self, sandbox: &SandboxId, is: impl Fn(&KeyId) -> bool) -> Result<Option<KeyId>> {
        let found = self.inner.sandbox(sandbox)?;
        let (record, acl) = (found.record(), self.inner.acl.get(&found.id));
        if let Some(key) = record.owner.iter().chain(acl.grants.keys()).find(|key| is(key)) {
            return Ok(Some(key.clone()));
        }
        let of = Belongs { owner: record.owner.as_ref(), project: record.project.as_ref() };
        let knows = |key: &KeyRecord| {
            self.right_of_key(key).is_some_and(|right| {
                let project = right.project.as_ref();
                let who = Requester { key: &key.id, scope: right.scope, project, holder: None };
                acl.scope_of(&who, of, self.inner.acl.default()).is_some()
            })
        };
        let signed = self.inner.keys.all().into_iter().find(|key| knows(key) && is(&key.id));
        Ok(signed.map(|key| key.id.clone()))
    }

    fn verify_token(&self, purpose: &str, presented: &str, on: &str) -> Result<VerifiedKey> {
        let refused = || Error::new(Code::Unauthorized, "the token is not valid here");
        let (key, code) = presented.split_once('_').ok_or_else(refused)?;
        let key: KeyId = key.parse().map_err(|_malformed: Error| refused())?;
        let code = blake3::Hash::from_hex(code).map_err(|_malformed| refused())?;
        // Hashes are compared in constant time.
        if self.inner.tokens.code(purpose, &key, on) != code {
            return Err(refused());
        }
        self.verified_by_id(&key).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_for_one_purpose_key_and_sandbox() {
        let made = TokenKey([7; KEY_BYTES]);
        let (key, sandbox) = (KeyId::from_parts(1, 1), SandboxId::from_parts(1, 1));
        let (other, volume) = (SandboxId::from_parts(1, 2), VolumeId::from_parts(1, 1));
        let code = made.code("a", &key, sandbox.as_str());
        assert_eq!(code, made.code("a", &key, sandbox.as_str()));
        assert_ne!(code, made.code("b", &key, sandbox.as_str()));
        assert_ne!(code, made.code("a", &KeyId::from_parts(1, 2), sandbox.as_str()));
        assert_ne!(code, made.code("a", &key, other.as_str()));
        assert_ne!(code, made.code("a", &key, volume.as_str()));
        assert_ne!(code, made.code("a", &key, ""));
        assert_ne!(code, TokenKey([8; KEY_BYTES]).code("a", &key, sandbox.as_str()));
        assert_eq!(format!("{made:?}"), "****");
    }
}
