//! Stored registry credentials: the password is sealed by the vault and never leaves but for a pull.

use atoll_core::error::shorten;
use atoll_core::secret::Secret;
use atoll_core::{Code, Error, Result, spec};
use atoll_image::Credentials;
use atoll_store::RegistryRecord;

use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

/// Longest host with port, bytes.
const HOST_MAX_BYTES: usize = 255;
/// Longest user name or password, bytes.
const CREDENTIAL_MAX_BYTES: usize = 16 << 10;

/// What the seal is bound to: a sealed password of one registry is of no use for another.
pub(crate) fn context(host: &str) -> String {
    format!("registry:{host}")
}

/// Checks a user name and a password.
///
/// # Errors
/// [`Code::InvalidArgument`] naming the field.
pub(crate) fn check_login(username: &str, password: &Secret) -> Result<()> {
    for (field, text) in [("username", username), ("password", password.reveal())] {
        if text.is_empty() || text.len() > CREDENTIAL_MAX_BYTES || text.contains('\0') {
            return Err(Error::invalid(field, "must have 1 byte to 16 KiB and no NUL"));
        }
    }
    Ok(())
}

impl Engine {
    /// Stores credentials for a registry, replacing older ones. `name` is what people call it; without one,
    /// it keeps the one it has.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    #[boxed]
    pub async fn put_registry(
        &self,
        host: &str,
        name: Option<&str>,
        username: &str,
        password: &Secret,
    ) -> Result<RegistryRecord> {
        let host_ok = !host.is_empty()
            && host.len() <= HOST_MAX_BYTES
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
        if !host_ok {
            return Err(Error::invalid("host", format_args!("'{}' is not a registry", shorten(host)))
                .hint("write a host name, with ':port' if it is not the standard one"));
        }
        if let Some(name) = name {
            spec::name("name", name)?;
        }
        check_login(username, password)?;
        let host = host.to_ascii_lowercase();
        let _turn = self.inner.secrets.sealing.lock().await;
        let sealed = self.inner.vault.seal(&context(&host), password).map_err(|error| {
            tracing::error!(%error, "the vault cannot seal");
            Error::new(Code::Internal, "the vault cannot seal the password")
        })?;
        let record = RegistryRecord {
            host,
            name: name.map(str::to_owned),
            username: username.to_owned(),
            sealed,
            updated_ms: self.inner.now_ms(),
        };
        self.inner.store.put_registry(&record).await.map_err(store_error)?;
        Ok(record)
    }

    /// Registries with stored credentials. The passwords in them are sealed.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn registries(&self) -> Result<Vec<RegistryRecord>> {
        self.inner.store.list_registries().await.map_err(store_error)
    }

    /// Forgets the credentials of a registry.
    ///
    /// # Errors
    /// [`Code::RegistryNotFound`].
    #[boxed]
    pub async fn delete_registry(&self, host: &str) -> Result<()> {
        let host = host.to_ascii_lowercase();
        if self.inner.store.delete_registry(&host).await.map_err(store_error)? {
            return Ok(());
        }
        Err(Error::new(Code::RegistryNotFound, format!("no credentials are stored for '{}'", shorten(&host))))
    }

    /// The stored credentials for a registry, opened.
    ///
    /// # Errors
    /// [`Code::Internal`] when they were sealed with another key file.
    #[boxed]
    pub async fn registry_credentials(&self, host: &str) -> Result<Option<Credentials>> {
        let host = host.to_ascii_lowercase();
        let Some(record) = self.inner.store.registry(&host).await.map_err(store_error)? else {
            return Ok(None);
        };
        let password = self.inner.vault.unseal(&context(&host), &record.sealed).map_err(|error| {
            tracing::error!(%error, "stored credentials cannot be opened");
            Error::new(
                Code::Internal,
                format!("the stored credentials for '{}' cannot be opened", shorten(&host)),
            )
            .hint("was the key file replaced? store them again with 'atoll registry login'")
        })?;
        Ok(Some(Credentials::Basic { username: record.username, password }))
    }
}
