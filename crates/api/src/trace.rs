//! The flight recorder.

pub use atoll_core::trace::TraceMode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An event of a sandbox. What else it has depends on its kind; see the documentation of the recorder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceEvent {
    /// The sandbox.
    pub sandbox: String,
    /// Counts the events of a sandbox, from 1.
    pub number: u64,
    /// When, microseconds since the epoch.
    pub at_us: u64,
    /// Who saw it: `host`, `sentry`, `gateway`, `server` or `guest`.
    pub witness: String,
    /// What happened, such as `exec_started`.
    pub kind: String,
    /// What else is known of it.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: std::collections::BTreeMap<String, serde_json::Value>,
}

/// Events in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracePage {
    /// The events.
    pub items: Vec<TraceEvent>,
    /// Number from which to ask for the next page.
    pub next: u64,
}

/// Something in a journal that is not as the recorder wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceFinding {
    /// Name of the file.
    pub segment: String,
    /// Offset in the unpacked segment, bytes.
    pub offset: u64,
    /// The last event before it that is as it was written.
    pub after: u64,
    /// What is wrong.
    pub what: String,
}

/// A gap that the recorder itself announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceGap {
    /// Number of the event that announces it.
    pub number: u64,
    /// What is missing and why.
    pub what: String,
}

/// Whether a journal is as the recorder wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceReport {
    /// The sandbox.
    pub sandbox: String,
    /// The public key that signatures were verified with.
    pub key: String,
    /// Events that were read.
    pub events: u64,
    /// Number of the first event that is kept.
    pub first: u64,
    /// Number of the last event.
    pub last: u64,
    /// Number of the last event that a good signature covers.
    pub signed: u64,
    /// Whether the journal was ended: nothing can be missing at its end.
    pub ended: bool,
    /// The last signed statement as `number:link`, to be kept elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Gaps that the recorder itself announced.
    pub gaps: Vec<TraceGap>,
    /// What is not as it was written; none when all is well.
    pub findings: Vec<TraceFinding>,
}
