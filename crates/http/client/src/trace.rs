//! The flight recorder.

use atoll_api::{TracePage, TraceReport};
use http::Method;

use crate::{Client, Result};

/// Which events of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GetEvents {
    /// Number of the first one.
    pub from: u64,
    /// Of these kinds; all when empty.
    pub kinds: Vec<String>,
    /// Of this exec.
    pub exec: Option<String>,
    /// Not older than this, milliseconds since the epoch.
    pub since_ms: Option<u64>,
    /// Wait so long when there is nothing yet.
    pub wait_ms: u64,
}

impl Client {
    /// Events of a sandbox, which may be gone, from a number on.
    ///
    /// # Errors
    /// [`crate::ClientError`].
    pub async fn events(&self, sandbox: &str, query: &GetEvents) -> Result<TracePage> {
        let mut target = self.in_sandbox(sandbox, &["events"]).query("from", query.from);
        for kind in &query.kinds {
            target = target.query("kind", kind);
        }
        let target = target
            .maybe("exec", query.exec.as_ref())
            .maybe("since_ms", query.since_ms)
            .query("wait_ms", query.wait_ms);
        self.call_waiting(self.request(Method::GET, target), query.wait_ms).await
    }

    /// Whether the journal of a sandbox is as the recorder wrote it, as the server says.
    ///
    /// # Errors
    /// [`crate::ClientError`].
    pub async fn verify_events(&self, sandbox: &str) -> Result<TraceReport> {
        self.call(self.request(Method::GET, self.in_sandbox(sandbox, &["events", "verify"]))).await
    }
}
