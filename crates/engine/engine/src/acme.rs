//! Certificates of servers of ACME in the database: how it stands with them in the open, keys sealed.

use atoll_core::Result;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use atoll_store::SealedValue;

use crate::authority::context;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

/// Something to be sealed: its name, what may be seen of it, and what not.
#[derive(Debug)]
pub struct ToSeal {
    /// Its name.
    pub name: String,
    /// What may be seen of it, such as a certificate.
    pub visible: String,
    /// What may not, such as its key.
    pub secret: Secret,
}

impl Engine {
    /// How it stands with the certificate of this name, and the version of that; version 0 when nothing is known.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn acme(&self, name: &str) -> Result<(String, i64)> {
        let row = self.inner.store.acme(name).await.map_err(store_error)?;
        Ok(row.unwrap_or_default())
    }

    /// Changes that, unless another caller was faster, and keeps something sealed with it. Says whether it did.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`]; [`Code::Internal`] when it cannot be sealed.
    #[boxed]
    pub async fn set_acme(
        &self,
        name: &str,
        state: &str,
        version: i64,
        seal: Option<&ToSeal>,
    ) -> Result<bool> {
        let sealed = seal.map(|one| {
            let sealed = self.inner.vault.seal(&context(&one.name), &one.secret).map_err(|error| {
                tracing::error!(%error, "{} cannot be sealed", one.name);
                Error::new(Code::Internal, format!("{} cannot be sealed", one.name))
            })?;
            let (name, visible) = (one.name.clone(), one.visible.clone());
            Ok::<_, Error>(SealedValue { name, visible, sealed, created_ms: self.inner.now_ms() })
        });
        let sealed = sealed.transpose()?;
        self.inner.store.set_acme(name, state, version, sealed.as_ref()).await.map_err(store_error)
    }

    /// What was kept sealed under this name, and what may be seen of it.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`]; [`Code::Internal`] when the vault's key does not open it.
    #[boxed]
    pub async fn sealed(&self, name: &str) -> Result<Option<(String, Secret)>> {
        let Some(value) = self.inner.store.sealed_value(name).await.map_err(store_error)? else {
            return Ok(None);
        };
        let secret: Secret = self.inner.vault.unseal(&context(name), &value.sealed).map_err(|error| {
            tracing::error!(%error, "{name} cannot be unsealed");
            Error::new(Code::Internal, format!("the vault's key does not open {name}"))
        })?;
        Ok(Some((value.visible, secret)))
    }
}
