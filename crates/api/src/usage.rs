//! Pausing, and what was used.

use atoll_core::sandbox::PauseMode;
pub use atoll_core::usage::Usage;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Pauses a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PauseSandbox {
    /// What is kept; `frozen` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PauseMode>,
}

/// What one line of usage stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageGroup {
    /// Everything.
    Total,
    /// One sandbox.
    #[default]
    Sandbox,
    /// One API key.
    Key,
    /// One project.
    Project,
    /// One hour.
    Hour,
}

impl UsageGroup {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Sandbox => "sandbox",
            Self::Key => "key",
            Self::Project => "project",
            Self::Hour => "hour",
        }
    }
}

impl std::fmt::Display for UsageGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One line of usage. What it is not grouped by is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageItem {
    /// Id of the sandbox, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Id of the key, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Id of the project, which may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// When the hour began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hour_at_ms: Option<u64>,
    /// How much.
    #[serde(flatten)]
    pub used: Usage,
}

/// What was used, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageList {
    /// The lines.
    pub items: Vec<UsageItem>,
}
