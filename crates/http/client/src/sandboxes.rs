//! Sandboxes.

use std::collections::BTreeMap;

use atoll_api::{
    BatchCreate, BatchResults, CreateSandbox, Metrics, PortList, Sandbox, SandboxList, UpdateSandbox,
};
use atoll_core::sandbox::SandboxState;
use http::Method;

use crate::{Client, Result};

/// Which sandboxes to list. Everything that is set must match.
#[derive(Debug, Clone, Default)]
pub struct ListSandboxes {
    /// Only in this state.
    pub state: Option<SandboxState>,
    /// Only with these labels.
    pub labels: BTreeMap<String, String>,
    /// Only with names that begin so.
    pub name_prefix: Option<String>,
    /// Only of this project: id or name.
    pub project: Option<String>,
    /// Size of the page.
    pub limit: Option<u32>,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// A sandbox is named by its id or its name in all of these.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Makes a sandbox and waits until it runs.
    pub async fn create_sandbox(&self, create: &CreateSandbox) -> Result<Sandbox> {
        self.submit(Method::POST, self.target(["v1", "sandboxes"]), create).await
    }

    /// Makes several at once. Each has its own outcome.
    pub async fn create_sandboxes(&self, batch: &BatchCreate) -> Result<BatchResults> {
        self.submit(Method::POST, self.target(["v1", "sandboxes", "batch"]), batch).await
    }

    /// One page of sandboxes, newest first.
    pub async fn list_sandboxes(&self, list: &ListSandboxes) -> Result<SandboxList> {
        let mut target = self
            .target(["v1", "sandboxes"])
            .maybe("state", list.state)
            .maybe("name_prefix", list.name_prefix.as_deref())
            .maybe("project", list.project.as_deref())
            .maybe("limit", list.limit)
            .maybe("cursor", list.cursor.as_deref());
        for (key, value) in &list.labels {
            target = target.query("label", format_args!("{key}={value}"));
        }
        self.call(self.request(Method::GET, target)).await
    }

    /// One sandbox.
    pub async fn get_sandbox(&self, sandbox: &str) -> Result<Sandbox> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &[]))).await
    }

    /// Changes labels, lifetime or limits.
    pub async fn update_sandbox(&self, sandbox: &str, update: &UpdateSandbox) -> Result<Sandbox> {
        self.submit(Method::PATCH, self.in_sandbox(sandbox, &[]), update).await
    }

    /// Takes it apart and waits until that is done.
    pub async fn delete_sandbox(&self, sandbox: &str) -> Result<()> {
        self.call_empty(self.request(Method::DELETE, self.in_sandbox(sandbox, &[]))).await
    }

    /// What it uses now.
    pub async fn sandbox_metrics(&self, sandbox: &str) -> Result<Metrics> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["metrics"]))).await
    }

    /// TCP ports on which a program listens inside.
    pub async fn sandbox_ports(&self, sandbox: &str) -> Result<PortList> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["ports"]))).await
    }
}
