//! Keys, and the server itself.

use atoll_api::{CreateKey, DashboardLink, Doctor, Health, KeyCreated, KeyList, LeakList, ServerInfo};
use http::Method;

use crate::{Client, ClientError, Result};

/// Largest certificate, bytes.
const CA_MAX_BYTES: usize = 64 << 10;

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a key. Its secret is in the answer and nowhere else.
    pub async fn create_key(&self, create: &CreateKey) -> Result<KeyCreated> {
        self.submit(Method::POST, self.target(["v1", "keys"]), create).await
    }

    /// All keys, without secrets.
    pub async fn list_keys(&self) -> Result<KeyList> {
        self.call(self.request(Method::GET, self.target(["v1", "keys"]))).await
    }

    /// Makes a key stop working.
    pub async fn delete_key(&self, id: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.target(["v1", "keys", id]))).await
    }

    /// A link that signs a browser in to the dashboard with this client's key.
    pub async fn create_dashboard_link(&self) -> Result<DashboardLink> {
        self.call(self.request(Method::POST, self.target(["v1", "dashboard", "links"]))).await
    }

    /// What the server is.
    pub async fn server_info(&self) -> Result<ServerInfo> {
        self.call(self.request(Method::GET, self.target(["v1", "info"]))).await
    }

    /// The authority of the server's own that clients must trust, PEM. Needs no key.
    pub async fn server_ca(&self) -> Result<String> {
        let response = self.open(self.request(Method::GET, self.target(["v1", "ca"]))).await?;
        let pem = self.body(response, CA_MAX_BYTES).await?;
        String::from_utf8(pem.into())
            .map_err(|_binary| ClientError::Protocol("the authority is not PEM".into()))
    }

    /// What the server's host enforces.
    pub async fn doctor(&self) -> Result<Doctor> {
        self.call(self.request(Method::GET, self.target(["v1", "doctor"]))).await
    }

    /// Whether the nodes of a cluster fit together.
    pub async fn cluster_doctor(&self) -> Result<Doctor> {
        self.call(self.request(Method::GET, self.target(["v1", "doctor", "cluster"]))).await
    }

    /// What on the host belongs to no known sandbox.
    pub async fn list_leaks(&self) -> Result<LeakList> {
        self.call(self.request(Method::GET, self.target(["v1", "leaks"]))).await
    }

    /// Removes what belongs to no known sandbox.
    pub async fn remove_leaks(&self) -> Result<LeakList> {
        self.call(self.request(Method::DELETE, self.target(["v1", "leaks"]))).await
    }

    /// Whether the server works. Needs no key.
    pub async fn health(&self) -> Result<Health> {
        self.call(self.request(Method::GET, self.target(["healthz"]))).await
    }
}
