//! Pausing, and what was used.

use atoll_api::{PauseSandbox, Sandbox, UsageGroup, UsageList};
use http::Method;

use crate::{Client, Result};

/// Which usage. Everything that is set must match.
#[derive(Debug, Clone, Default)]
pub struct GetUsage {
    /// Of this sandbox: id or name, or the id of one that is gone.
    pub sandbox: Option<String>,
    /// On account of the key with this id.
    pub key: Option<String>,
    /// Of sandboxes of this project: id or name.
    pub project: Option<String>,
    /// From the hour that holds this time on, milliseconds since the epoch.
    pub from_ms: Option<u64>,
    /// In hours that begin before this time.
    pub to_ms: Option<u64>,
    /// What one line stands for.
    pub group: UsageGroup,
}

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Pauses a sandbox and waits until it stands still.
    pub async fn pause_sandbox(&self, sandbox: &str, pause: &PauseSandbox) -> Result<Sandbox> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["pause"]), pause).await
    }

    /// Resumes a sandbox and waits until it runs.
    pub async fn resume_sandbox(&self, sandbox: &str) -> Result<Sandbox> {
        self.call(self.request(Method::POST, self.in_sandbox(sandbox, &["resume"]))).await
    }

    /// What was used, up to now.
    pub async fn usage(&self, get: &GetUsage) -> Result<UsageList> {
        let target = self
            .target(["v1", "usage"])
            .maybe("sandbox", get.sandbox.as_deref())
            .maybe("key", get.key.as_deref())
            .maybe("project", get.project.as_deref())
            .maybe("from_ms", get.from_ms)
            .maybe("to_ms", get.to_ms)
            .query("group", get.group);
        self.call(self.request(Method::GET, target)).await
    }
}
