//! Changing the vault's key: everything sealed is sealed anew, then the old key is forgotten.
//!
//! A crash between leaves two keys, both of which open; the next start goes on where it was.

use atoll_core::{Code, Error, Result};
use atoll_store::SealedAt;
use atoll_vault::VaultError;

use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::{chain, store_error};

impl Engine {
    /// Changes the key and says how many values were sealed anew.
    ///
    /// # Errors
    /// [`Code::InvalidState`] when the key comes from outside and no previous one was given;
    /// [`Code::Internal`] when a value cannot be opened: the old key is kept then.
    #[boxed]
    pub async fn rotate_vault_key(&self) -> Result<u64> {
        let inner = &self.inner;
        if self.others_live().await? {
            return Err(Error::new(
                Code::InvalidState,
                "other nodes use the vault's key that is to be changed",
            )
            .hint("stop all nodes but this one, rotate, then start them with the new key"));
        }
        let _turn = inner.secrets.sealing.lock().await;
        inner.vault.begin_rotation().map_err(|error| match error {
            VaultError::NoNewKey => {
                Error::new(Code::InvalidState, "the vault's key comes from outside, and only one was given")
                    .hint("start the server with the new key and the previous one, then rotate")
            }
            other => vault_failed(&other),
        })?;
        atoll_failpoint::fail_point!("engine.rotate.begun");
        inner.reseal_all().await
    }
}

impl Inner {
    /// Finishes a rotation that a crash interrupted.
    pub(crate) async fn continue_rotation(&self) -> Result<()> {
        if !self.vault.rotation_pending() {
            return Ok(());
        }
        let _turn = self.secrets.sealing.lock().await;
        let count = self.reseal_all().await?;
        tracing::info!(count, "a change of the vault's key was finished");
        Ok(())
    }

    async fn reseal_all(&self) -> Result<u64> {
        let mut count = 0;
        for (at, sealed) in self.store.list_sealed().await.map_err(store_error)? {
            let context = context(&at);
            let Some(new) = self.vault.reseal(&context, &sealed).map_err(|error| {
                tracing::error!(what = context, error = chain(&error), "a sealed value cannot be opened");
                Error::new(Code::Internal, format!("'{context}' cannot be opened: the old key is kept"))
                    .hint("set it again or delete it, then rotate again")
            })?
            else {
                continue;
            };
            self.store.replace_sealed(&at, &sealed, &new).await.map_err(store_error)?;
            count += 1;
            atoll_failpoint::fail_point!("engine.rotate.resealed");
        }
        // What is in memory is sealed as well.
        self.secrets.table.replace(self.store.list_secrets().await.map_err(store_error)?);
        self.vault.finish_rotation().map_err(|error| vault_failed(&error))?;
        atoll_failpoint::fail_point!("engine.rotate.finished");
        Ok(count)
    }
}

/// What each sealed value is bound to. Kept where it is sealed; repeated here for all.
fn context(at: &SealedAt) -> String {
    match at {
        SealedAt::Registry { host } => crate::registries::context(host),
        SealedAt::Secret { id, version } => super::context(id, *version),
        SealedAt::Own { name } => crate::authority::context(name),
    }
}

fn vault_failed(error: &VaultError) -> Error {
    tracing::error!(error = chain(error), "the vault's key cannot be changed");
    Error::new(Code::Internal, "the vault's key cannot be changed: the server's log says why")
}
