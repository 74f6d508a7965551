//! Certificate authorities of this installation, kept sealed in the database.

use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result};
use atoll_egress::intercept::Authority;
use atoll_store::{SealedValue, Store};
use atoll_vault::Vault;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::errors::store_error;

/// Name of the gateway's row.
const INTERCEPTION: &str = "interception_ca";

/// What the seal is bound to.
pub(crate) fn context(name: &str) -> String {
    format!("own:{name}")
}

fn broken(name: &str, what: &str, error: &dyn std::error::Error) -> Error {
    tracing::error!(%error, "the authority {name} cannot be {what}");
    Error::new(Code::Internal, format!("the authority {name} cannot be {what}"))
}

/// Opens the gateway's authority, making it first when there is none. `installation` becomes part of its name.
///
/// # Errors
/// [`Code::StoreUnavailable`]; [`Code::Internal`] when it cannot be opened with the vault's key.
pub async fn open(store: &Store, vault: &Vault, installation: &str, clock: &Clock) -> Result<Authority> {
    let make = || Authority::generate(installation).map(|made| (made.certificate_pem, made.key_pem));
    let (certificate, key) = kept(store, vault, INTERCEPTION, clock, make).await?;
    Authority::open(&certificate, &key).map_err(|error| broken(INTERCEPTION, "read", &error))
}

/// A key, PEM, and what of it may be seen, such as its certificate: those that were kept under this name, or what `make` makes if there are none.
///
/// # Errors
/// [`Code::StoreUnavailable`]; [`Code::Internal`] when it cannot be made, or opened with the vault's key.
pub async fn kept<E: std::error::Error>(
    store: &Store,
    vault: &Vault,
    name: &str,
    clock: &Clock,
    make: impl FnOnce() -> std::result::Result<(String, Secret), E>,
) -> Result<(String, Secret)> {
    if store.sealed_value(name).await.map_err(store_error)?.is_none() {
        let (visible, key) = make().map_err(|error| broken(name, "made", &error))?;
        let sealed = vault.seal(&context(name), &key).map_err(|error| broken(name, "sealed", &error))?;
        let value = SealedValue { name: name.to_owned(), visible, sealed, created_ms: clock.now_ms() };
        // Another server of the same database may have been faster: what is read next stands.
        store.insert_sealed_value(&value).await.map_err(store_error)?;
    }
    let value = store.sealed_value(name).await.map_err(store_error)?;
    let value = value.ok_or_else(|| Error::new(Code::Internal, format!("the authority {name} is gone")))?;
    let key: Secret = vault.unseal(&context(name), &value.sealed).map_err(|error| {
        tracing::error!(%error, "the authority {name} cannot be unsealed");
        Error::new(Code::Internal, "the vault's key does not open what the database holds").hint(
            "start the server with the key that it had, or give that one as the previous key (ATOLL_VAULT_KEY_PREVIOUS)",
        )
    })?;
    Ok((value.visible, key))
}

impl Engine {
    /// A key that all servers of the database have, and what of it may be seen: as [`kept`].
    ///
    /// # Errors
    /// As [`kept`].
    pub async fn shared_key<E: std::error::Error>(
        &self,
        name: &str,
        make: impl FnOnce() -> std::result::Result<(String, Secret), E>,
    ) -> Result<(String, Secret)> {
        kept(&self.inner.store, &self.inner.vault, name, &self.inner.clock, make).await
    }
}

/// Whether the vault's key opens what the database holds.
///
/// # Errors
/// As [`kept`]; when nothing was kept yet.
pub(crate) async fn opens(store: &Store, vault: &Vault, clock: &Clock) -> Result<()> {
    let none = || Err::<(String, Secret), _>(std::io::Error::other("nothing is kept yet"));
    kept(store, vault, INTERCEPTION, clock, none).await.map(drop)
}
