//! Snapshots.

use atoll_api::{CreateSnapshot, RemovedSnapshot, Snapshot, SnapshotList, TagSnapshot};
use http::Method;

use crate::{Client, Result};

/// Which snapshots to list. Everything that is set must match.
#[derive(Debug, Clone, Default)]
pub struct ListSnapshots {
    /// Only of this sandbox.
    pub sandbox: Option<String>,
    /// Only with a reference of this name.
    pub name: Option<String>,
    /// Size of the page.
    pub limit: Option<u32>,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// A snapshot is named by its id, `name` or `name:tag` in all of these.
///
/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Takes a snapshot of a sandbox, which goes on.
    pub async fn create_snapshot(&self, sandbox: &str, create: &CreateSnapshot) -> Result<Snapshot> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["snapshots"]), create).await
    }

    /// One page of snapshots, newest first.
    pub async fn list_snapshots(&self, list: &ListSnapshots) -> Result<SnapshotList> {
        let target = self
            .target(["v1", "snapshots"])
            .maybe("sandbox", list.sandbox.as_ref())
            .maybe("name", list.name.as_ref())
            .maybe("limit", list.limit)
            .maybe("cursor", list.cursor.as_ref());
        self.call(self.request(Method::GET, target)).await
    }

    /// One snapshot.
    pub async fn get_snapshot(&self, snapshot: &str) -> Result<Snapshot> {
        self.call(self.request(Method::GET, self.target(["v1", "snapshots", snapshot]))).await
    }

    /// Makes a reference point to it.
    pub async fn tag_snapshot(&self, snapshot: &str, tag: &str) -> Result<Snapshot> {
        let target = self.target(["v1", "snapshots", snapshot, "tags"]);
        self.submit(Method::POST, target, &TagSnapshot { tag: tag.to_owned() }).await
    }

    /// Removes it, or one of its references.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<RemovedSnapshot> {
        self.call(self.request(Method::DELETE, self.target(["v1", "snapshots", snapshot]))).await
    }
}
