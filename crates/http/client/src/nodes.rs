//! Nodes of a cluster.

use atoll_api::{Node, NodeDrain, NodeList, UpdateNode};
use http::Method;

use crate::{Client, Result};

/// # Errors
/// Every call fails with [`crate::ClientError`].
impl Client {
    /// Every node, by name.
    pub async fn list_nodes(&self) -> Result<NodeList> {
        self.call(self.request(Method::GET, self.target(["v1", "nodes"]))).await
    }

    /// Says whether a node takes new sandboxes.
    pub async fn update_node(&self, node: &str, update: &UpdateNode) -> Result<Node> {
        self.submit(Method::PATCH, self.target(["v1", "nodes", node]), update).await
    }

    /// What a node that takes no new sandboxes still has.
    pub async fn get_node_drain(&self, node: &str) -> Result<NodeDrain> {
        self.call(self.request(Method::GET, self.target(["v1", "nodes", node, "drain"]))).await
    }

    /// Forgets a dead node with what was on its disks.
    pub async fn delete_node(&self, node: &str) -> Result<Node> {
        self.call(self.request(Method::DELETE, self.target(["v1", "nodes", node]))).await
    }
}
