//! Checkpoints and forks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Sandbox, Snapshot};

/// Takes a checkpoint of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateCheckpoint {
    /// A line of text, to remember what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// Puts a sandbox back to an earlier state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RollbackSandbox {
    /// The number of a checkpoint, or a snapshot on the same image. When absent, back to before the last command
    /// began, as far as there is a checkpoint of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// A sandbox that was put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// The sandbox, under its old id.
    pub sandbox: Sandbox,
    /// What it was put back to.
    pub to: Snapshot,
}

/// Makes sandboxes that go on from where another is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// How many: 1 to 256.
    #[serde(default = "one")]
    pub count: u32,
    /// The point to go on from: the number of a checkpoint, or a snapshot. Now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Its processes go on in each child, with their memory, too: at the isolation level `microvm`. There they belong to
    /// no exec. With `at`, that snapshot must have been taken with memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Name of a single child, or what the names of several begin with: `name-1`, `name-2`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels on top of the parent's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Variables on top of the parent's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Time to live from the fork on; when absent as long as the parent was given, when it was made or when that was changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

const fn one() -> u32 {
    1
}

impl Default for ForkSandbox {
    fn default() -> Self {
        Self {
            count: 1,
            at: None,
            memory: false,
            name: None,
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            ttl_ms: None,
        }
    }
}
