//! Nodes: servers that share a database.

use std::collections::BTreeMap;

use atoll_core::spec::IsolationLevel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It takes new sandboxes.
    Ready,
    /// It takes no new ones; those that it has go on.
    Draining,
    /// It gave no sign of life for its whole lease, and what ran there was taken over.
    Dead,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its id, which stands in its data directory.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Where the other nodes reach it.
    pub address: String,
    /// Version of its program.
    pub version: String,
    /// How it is.
    pub state: NodeState,
    /// Whether it is the one that answers.
    pub is_this: bool,
    /// Isolation levels that it has.
    pub levels: Vec<IsolationLevel>,
    /// What its operator says of it.
    pub labels: BTreeMap<String, String>,
    /// Sandboxes that it has, as it said with its last sign of life.
    pub sandboxes: u64,
    /// Most that it takes.
    pub sandboxes_max: u64,
    /// Memory that is available there, bytes; absent where that cannot be told.
    pub memory_available_bytes: Option<u64>,
    /// How long the others wait for a sign of life, milliseconds.
    pub lease_ms: u64,
    /// Its last sign of life, by the database's clock, milliseconds since the epoch.
    pub seen_ms: u64,
    /// When it entered the cluster first, milliseconds since the epoch.
    pub created_ms: u64,
}

/// Every node, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The nodes; none where the database belongs to one server.
    pub items: Vec<Node>,
}

/// A sandbox that stays on a node which is drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StayingSandbox {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why it does not go to another node.
    pub reason: String,
}

/// What a node still has that takes no new sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeDrain {
    /// How the node is.
    pub state: NodeState,
    /// Sandboxes that it has now.
    pub sandboxes: u64,
    /// Those of them that stay; the others are on their way.
    pub staying: u64,
    /// Which those are, and why: the first hundred.
    pub items: Vec<StayingSandbox>,
}

/// Changes a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateNode {
    /// Whether it takes no new sandboxes.
    pub draining: bool,
}
