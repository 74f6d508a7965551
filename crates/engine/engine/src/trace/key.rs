//! The key that signs journals, kept sealed in the database.

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_recorder::SigningKey;
use atoll_store::{SealedValue, Store};
use atoll_vault::Vault;
use zeroize::Zeroizing;

use crate::authority::context;
use crate::clock::Clock;
use crate::errors::store_error;

/// Name of the row with the key.
const NAME: &str = "trace_key";
const SEED_BYTES: usize = 32;

/// Opens the key, making it first when there is none.
///
/// # Errors
/// [`Code::StoreUnavailable`]; [`Code::Internal`] when it cannot be opened with the vault's key.
pub async fn open(store: &Store, vault: &Vault, clock: &Clock) -> Result<SigningKey> {
    let broken = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "the key that signs journals cannot be used");
        Error::new(Code::Internal, "the key that signs journals cannot be used")
            .hint("start the server with the vault's key that it had")
    };
    if store.sealed_value(NAME).await.map_err(store_error)?.is_none() {
        let mut seed = Zeroizing::new([0; SEED_BYTES]);
        getrandom::fill(&mut *seed).map_err(|error| broken(&error))?;
        let key = SigningKey::from_seed(&seed).map_err(|error| broken(&error))?;
        let secret = Secret::new(blake3::Hash::from_bytes(*seed).to_hex().as_str());
        let sealed = vault.seal(&context(NAME), &secret).map_err(|error| broken(&error))?;
        let visible = key.public().to_string();
        let value = SealedValue { name: NAME.to_owned(), visible, sealed, created_ms: clock.now_ms() };
        // Another server of the same database may have been faster: what is read next stands.
        store.insert_sealed_value(&value).await.map_err(store_error)?;
    }
    let value = store.sealed_value(NAME).await.map_err(store_error)?;
    let value = value.ok_or_else(|| broken(&"it is gone"))?;
    let secret = vault.unseal(&context(NAME), &value.sealed).map_err(|error| broken(&error))?;
    let seed = blake3::Hash::from_hex(secret.reveal()).map_err(|error| broken(&error))?;
    SigningKey::from_seed(&Zeroizing::new(*seed.as_bytes())).map_err(|error| broken(&error))
}
