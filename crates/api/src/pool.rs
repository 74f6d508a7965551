//! Warm pools.

use atoll_core::pool::PoolSpec;
use atoll_core::spec::IsolationLevel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Sets a pool up, or changes its size. Exactly one of `template` and `image` says what it is of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutPool {
    /// Name of a template: members are made of its newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// An image: members have the default limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Kept ready whatever the demand.
    pub min: u32,
    /// Most that are kept ready.
    pub max: u32,
    /// Members older than this are replaced. One hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
}

impl PutPool {
    /// The numbers.
    #[must_use]
    pub const fn spec(&self) -> PoolSpec {
        PoolSpec { min: self.min, max: self.max, max_age_ms: self.max_age_ms }
    }
}

/// Who says how large a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolOrigin {
    /// The server's arguments.
    Server,
    /// The template.
    Template,
    /// A call of this API.
    Call,
    /// The server, because such sandboxes are asked for again and again.
    Demand,
}

/// A pool of running sandboxes that wait to be handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// What tells it from the others.
    pub name: String,
    /// The template it is of.
    pub template: Option<String>,
    /// The version of it that members are made of.
    pub version: Option<u32>,
    /// The image it is of.
    pub image: Option<String>,
    /// The isolation level of its members, where they can be made.
    pub isolation: Option<IsolationLevel>,
    /// Kept ready whatever the demand.
    pub min: u32,
    /// Most that are kept ready.
    pub max: u32,
    /// Members older than this are replaced.
    pub max_age_ms: u64,
    /// Who says so.
    pub origin: PoolOrigin,
    /// Members that wait.
    pub ready: u32,
    /// Members being made.
    pub making: u32,
    /// Members that should wait, by the demand of late and the memory there is.
    pub target: u32,
    /// Requests that got a member, since the server started.
    pub hits: u64,
    /// Requests that found none and made a sandbox instead.
    pub misses: u64,
    /// Members made.
    pub made: u64,
    /// Attempts at making one that failed.
    pub failed: u64,
    /// Age of the oldest member that waits.
    pub oldest_age_ms: Option<u64>,
    /// How long making one takes on average.
    pub make_ms: u64,
    /// Memory that one takes, as measured; 0 when none was made yet.
    pub member_bytes: u64,
    /// Why it cannot be filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// All pools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// The pools.
    pub items: Vec<Pool>,
    /// Memory that members take now.
    pub memory_bytes: u64,
    /// Memory that the members of all pools may take together.
    pub memory_max_bytes: u64,
}
