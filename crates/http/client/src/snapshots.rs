//! Snapshots.

use atoll_api::{
    BatchResults, CreateCheckpoint, CreateSnapshot, ForkSandbox, PullSnapshot, PushSnapshot, PushedSnapshot,
    RemovedSnapshot, RollbackSandbox, RolledBack, Snapshot, SnapshotList, TagSnapshot,
};
use atoll_core::snapshot::Comparison;
use bytes::Bytes;
use futures::Stream;
use http::Method;

use crate::files::Download;
use crate::{Client, ClientError, Result};

/// Largest answer that describes a snapshot, bytes: an environment may be in it.
const SNAPSHOT_MAX_BYTES: usize = 4 << 20;

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

    /// The snapshot as a file, to be imported elsewhere.
    pub async fn export_snapshot(&self, snapshot: &str) -> Result<Download> {
        self.download(self.request(Method::GET, self.target(["v1", "snapshots", snapshot, "export"]))).await
    }

    /// Makes a snapshot of an exported one, with these references.
    pub async fn import_snapshot(
        &self,
        tags: &[String],
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<Snapshot> {
        let target = self.target(["v1", "snapshots", "import"]);
        let target = tags.iter().fold(target, |target, tag| target.query("tag", tag));
        let body = reqwest::Body::wrap_stream(content);
        let response = self.send(self.request(Method::POST, target).body(body)).await?;
        self.whole(response).await
    }

    /// Sends it to the server's object store.
    pub async fn push_snapshot(&self, snapshot: &str, push: &PushSnapshot) -> Result<PushedSnapshot> {
        let target = self.target(["v1", "snapshots", snapshot, "push"]);
        let response = self.send(self.request(Method::POST, target).json(push)).await?;
        self.whole(response).await
    }

    /// Fetches one from the server's object store.
    pub async fn pull_snapshot(&self, pull: &PullSnapshot) -> Result<Snapshot> {
        let target = self.target(["v1", "snapshots", "pull"]);
        let response = self.send(self.request(Method::POST, target).json(pull)).await?;
        self.whole(response).await
    }

    /// An answer that takes as long as there is data.
    async fn whole<T: serde::de::DeserializeOwned>(&self, response: reqwest::Response) -> Result<T> {
        let body = self.body(response, SNAPSHOT_MAX_BYTES).await?;
        serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    // === checkpoints and forks ===

    /// Takes a checkpoint of a sandbox, which goes on.
    pub async fn create_checkpoint(&self, sandbox: &str, create: &CreateCheckpoint) -> Result<Snapshot> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["checkpoints"]), create).await
    }

    /// The checkpoints of a sandbox, newest first.
    pub async fn list_checkpoints(&self, sandbox: &str) -> Result<SnapshotList> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["checkpoints"]))).await
    }

    /// Removes a checkpoint.
    pub async fn delete_checkpoint(&self, sandbox: &str, number: u32) -> Result<()> {
        let number = number.to_string();
        let target = self.in_sandbox(sandbox, &["checkpoints", &number]);
        self.call_empty(self.request(Method::DELETE, target)).await
    }

    /// Puts a sandbox back to a checkpoint, or to before the last command.
    pub async fn rollback_sandbox(&self, sandbox: &str, to: Option<&str>) -> Result<RolledBack> {
        let request = RollbackSandbox { to: to.map(str::to_owned) };
        self.submit(Method::POST, self.in_sandbox(sandbox, &["rollback"]), &request).await
    }

    /// What differs between two points of a sandbox: numbers of checkpoints, snapshots, or `now`.
    pub async fn diff_sandbox(
        &self,
        sandbox: &str,
        from: Option<&str>,
        to: Option<&str>,
        text: bool,
    ) -> Result<Comparison> {
        let target =
            self.in_sandbox(sandbox, &["diff"]).maybe("from", from).maybe("to", to).flag("text", text);
        self.call(self.request(Method::GET, target)).await
    }

    /// Makes sandboxes that go on from where this one is. Each has its own outcome.
    pub async fn fork_sandbox(&self, sandbox: &str, fork: &ForkSandbox) -> Result<BatchResults> {
        self.submit(Method::POST, self.in_sandbox(sandbox, &["fork"]), fork).await
    }

    /// Removes it, or one of its references.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<RemovedSnapshot> {
        self.call(self.request(Method::DELETE, self.target(["v1", "snapshots", snapshot]))).await
    }
}
