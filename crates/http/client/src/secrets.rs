//! Secrets.

use atoll_api::{PutSecret, Secret, SecretList, SecretUseList, VaultRotated};
use http::Method;

use crate::{Client, Result};

/// Which uses to list. Everything that is set must match.
#[derive(Debug, Clone, Default)]
pub struct ListSecretUses {
    /// Of this secret.
    pub secret: Option<String>,
    /// By this sandbox.
    pub sandbox: Option<String>,
    /// At most this many.
    pub limit: Option<u32>,
}

/// `project` is the project whose secret it is; that of the key, or none, when absent.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a secret, gives it a new value, or changes its scope or note.
    pub async fn put_secret(&self, project: Option<&str>, name: &str, put: &PutSecret) -> Result<Secret> {
        self.submit(Method::PUT, self.target(["v1", "secrets", name]).maybe("project", project), put).await
    }

    /// All secrets, without values.
    pub async fn list_secrets(&self, project: Option<&str>) -> Result<SecretList> {
        self.call(self.request(Method::GET, self.target(["v1", "secrets"]).maybe("project", project))).await
    }

    /// One secret, without its value.
    pub async fn get_secret(&self, project: Option<&str>, name: &str) -> Result<Secret> {
        self.call(self.request(Method::GET, self.target(["v1", "secrets", name]).maybe("project", project)))
            .await
    }

    /// Deletes a secret with all its versions.
    pub async fn delete_secret(&self, project: Option<&str>, name: &str) -> Result<()> {
        self.call_empty(
            self.request(Method::DELETE, self.target(["v1", "secrets", name]).maybe("project", project)),
        )
        .await
    }

    /// Uses of secrets, newest first.
    pub async fn list_secret_uses(&self, list: &ListSecretUses) -> Result<SecretUseList> {
        let target = self
            .target(["v1", "secret-uses"])
            .maybe("secret", list.secret.as_deref())
            .maybe("sandbox", list.sandbox.as_deref())
            .maybe("limit", list.limit);
        self.call(self.request(Method::GET, target)).await
    }

    /// Changes the vault's key.
    pub async fn rotate_vault_key(&self) -> Result<VaultRotated> {
        self.call(self.request(Method::POST, self.target(["v1", "vault", "rotate"]))).await
    }
}
