//! What sandboxes use at this moment.

use atoll_core::sandbox::{PauseMode, SandboxState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What one sandbox uses, measured by its host. What only grows is counted since the sandbox was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveUsage {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Its state.
    pub state: SandboxState,
    /// How it is paused, while it is.
    pub paused: Option<PauseMode>,
    /// When it was asked for.
    pub created_at_ms: u64,
    /// When it was measured.
    pub at_ms: u64,
    /// Processor time, microseconds: two measurements say how busy it is.
    pub cpu_us: u64,
    /// Processor time that it may use, thousandths of a processor.
    pub cpu_limit_millis: u32,
    /// Memory now, bytes.
    pub memory_bytes: u64,
    /// Memory that it may use, bytes.
    pub memory_limit_bytes: u64,
    /// Space of its writable disk on the host, bytes.
    pub disk_bytes: u64,
    /// Processes and threads now.
    pub pids: u32,
    /// Commands that run now.
    pub execs: u32,
    /// Bytes that left it since its server was started.
    pub sent_bytes: u64,
    /// Bytes that came into it since its server was started.
    pub received_bytes: u64,
}

/// What all of them use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveUsageList {
    /// One for each, on every node.
    pub items: Vec<LiveUsage>,
}
