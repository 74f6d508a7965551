//! Who may use a sandbox, and leases.

use atoll_api::{Lease, LeaseStatus, PutGrant, SandboxAccess, SetVisibility, TakeLease};
use atoll_core::sharing::{Role, Visibility};
use http::Method;

use crate::{Client, Result};

/// A sandbox is named by its id or its name in all of these.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Who may use it.
    pub async fn sandbox_access(&self, sandbox: &str) -> Result<SandboxAccess> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["sharing"]))).await
    }

    /// Sets whether keys without a role see it; `None` leaves it to the server's default.
    pub async fn set_visibility(
        &self,
        sandbox: &str,
        visibility: Option<Visibility>,
    ) -> Result<SandboxAccess> {
        let target = self.in_sandbox(sandbox, &["sharing"]);
        self.submit(Method::PUT, target, &SetVisibility { visibility }).await
    }

    /// Gives a key a role on it.
    pub async fn grant(&self, sandbox: &str, key: &str, role: Role) -> Result<SandboxAccess> {
        self.submit(Method::PUT, self.in_sandbox(sandbox, &["sharing", key]), &PutGrant { role }).await
    }

    /// Takes a key's role on it away.
    pub async fn revoke(&self, sandbox: &str, key: &str) -> Result<SandboxAccess> {
        self.call(self.request(Method::DELETE, self.in_sandbox(sandbox, &["sharing", key]))).await
    }

    /// Which key has a lease on it.
    pub async fn lease(&self, sandbox: &str) -> Result<LeaseStatus> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["lease"]))).await
    }

    /// Takes a lease on it, or goes on having one.
    pub async fn take_lease(&self, sandbox: &str, take: &TakeLease) -> Result<Lease> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["lease"]), take).await
    }

    /// Gives a lease back; with `force` also that of another key.
    pub async fn release_lease(&self, sandbox: &str, force: bool) -> Result<()> {
        let target = self.in_sandbox(sandbox, &["lease"]).flag("force", force);
        self.call_empty(self.request(Method::DELETE, target)).await
    }
}
