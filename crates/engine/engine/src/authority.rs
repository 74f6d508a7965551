//! The certificate authority of this installation, kept sealed in the database.

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_egress::intercept::Authority;
use atoll_store::{SealedValue, Store};
use atoll_vault::Vault;

use crate::clock::now_ms;
use crate::errors::store_error;

/// Name of the row.
const NAME: &str = "interception_ca";

/// What the seal is bound to.
pub(crate) fn context(name: &str) -> String {
    format!("own:{name}")
}

/// Opens the authority, making it first when there is none. `installation` becomes part of its name.
///
/// # Errors
/// [`Code::StoreUnavailable`]; [`Code::Internal`] when it cannot be opened with the vault's key.
pub async fn open(store: &Store, vault: &Vault, installation: &str) -> Result<Authority> {
    let broken = |what: &str, error: &dyn std::error::Error| {
        tracing::error!(%error, "the interception authority cannot be {what}");
        Error::new(Code::Internal, format!("the interception authority cannot be {what}"))
    };
    if store.sealed_value(NAME).await.map_err(store_error)?.is_none() {
        let made = Authority::generate(installation).map_err(|error| broken("made", &error))?;
        let sealed = vault.seal(&context(NAME), &made.key_pem).map_err(|error| broken("sealed", &error))?;
        let value = SealedValue {
            name: NAME.to_owned(),
            visible: made.certificate_pem,
            sealed,
            created_ms: now_ms(),
        };
        // Another server of the same database may have been faster: what is read next stands.
        store.insert_sealed_value(&value).await.map_err(store_error)?;
    }
    let value = store.sealed_value(NAME).await.map_err(store_error)?;
    let value = value.ok_or_else(|| Error::new(Code::Internal, "the interception authority is gone"))?;
    let key: Secret = vault.unseal(&context(NAME), &value.sealed).map_err(|error| {
        tracing::error!(%error, "the interception authority cannot be unsealed");
        Error::new(Code::Internal, "the vault's key does not open what the database holds").hint(
            "start the server with the key that it had, or give that one as the previous key (ATOLL_VAULT_KEY_PREVIOUS)",
        )
    })?;
    Authority::open(&value.visible, &key).map_err(|error| broken("read", &error))
}
