//! The network of a sandbox.

use atoll_core::network::NetworkView;
use http::Method;

use crate::{Client, Result};

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Open connections, bytes by destination, and what was refused, with the reason.
    pub async fn sandbox_network(&self, sandbox: &str) -> Result<NetworkView> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["network"]))).await
    }
}
