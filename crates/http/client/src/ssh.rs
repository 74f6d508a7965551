//! SSH keys, and connections for SSH clients.

use atoll_api::{CreateSshKey, SshInfo, SshKey, SshKeyList};
use http::Method;

use crate::{Client, Result, TunnelSocket};

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// What SSH clients need to know about the server.
    pub async fn ssh_info(&self) -> Result<SshInfo> {
        self.call(self.request(Method::GET, self.target(["v1", "ssh"]))).await
    }

    /// A connection for an SSH client, over the way that all calls take.
    pub async fn ssh_connect(&self) -> Result<TunnelSocket> {
        Ok(TunnelSocket::new(self.websocket(self.target(["v1", "ssh", "connect"])).await?))
    }

    /// Registers an SSH public key for the API key of this client.
    pub async fn add_ssh_key(&self, create: &CreateSshKey) -> Result<SshKey> {
        self.submit(Method::POST, self.target(["v1", "ssh-keys"]), create).await
    }

    /// The SSH keys of the API key of this client; those of all for an admin.
    pub async fn list_ssh_keys(&self) -> Result<SshKeyList> {
        self.call(self.request(Method::GET, self.target(["v1", "ssh-keys"]))).await
    }

    /// Makes an SSH key stop working.
    pub async fn remove_ssh_key(&self, id: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "ssh-keys", id]))).await
    }
}
