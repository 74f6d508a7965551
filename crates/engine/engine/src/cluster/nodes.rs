//! Looking at nodes, and telling them to take nothing new.

use atoll_core::error::shorten;
use atoll_core::id::NodeId;
use atoll_core::{Code, Error, Result};
use atoll_store::{Left, NodeRecord, StoreError};

use crate::boxed;
use crate::engine::{Capacity, Engine};
use crate::errors::store_error;

impl Engine {
    /// The node that this server is, if it is one.
    #[must_use]
    pub fn node_id(&self) -> Option<NodeId> {
        self.inner.cluster.as_ref().map(|cluster| cluster.id().clone())
    }

    /// Every node, by name; none where the database belongs to one server.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.inner.store.nodes().await.map_err(store_error)
    }

    /// What there is room for.
    pub(crate) fn capacity(&self) -> Capacity {
        let config = &self.inner.config;
        let node = self.inner.cluster.as_ref();
        let load = node.map(|cluster| *cluster.load.borrow());
        let available = load.map(|load| load.memory_available_bytes).filter(|bytes| *bytes < u64::MAX);
        Capacity {
            sandboxes_max: config.sandboxes_max as u64,
            creations: self.inner.pools.creating(),
            creations_max: config.creates_max as u64,
            memory_available_bytes: available.unwrap_or_default(),
            memory_total_bytes: load.map(|load| load.memory_total_bytes).unwrap_or_default(),
            is_draining: node
                .and_then(|cluster| cluster.any(cluster.id()))
                .is_some_and(|node| node.is_draining),
        }
    }

    /// Whether there are other nodes that live.
    pub(crate) async fn others_live(&self) -> Result<bool> {
        let Some(cluster) = &self.inner.cluster else { return Ok(false) };
        Ok(self.nodes().await?.iter().any(|node| node.is_alive && node.id != *cluster.id()))
    }

    /// Refuses what nodes of another version might not keep to.
    ///
    /// # Errors
    /// [`Code::InvalidState`].
    pub(crate) async fn refuse_beside_other_versions(&self) -> Result<()> {
        let Some(cluster) = &self.inner.cluster else { return Ok(()) };
        let nodes = self.nodes().await?;
        let own = nodes.iter().find(|node| node.id == *cluster.id()).map(|node| node.version.clone());
        match nodes.iter().find(|node| node.is_alive && Some(&node.version) != own.as_ref()) {
            Some(other) => {
                let name = &other.name;
                let why = format!(
                    "the node '{name}' has another version of the program, which may know no projects"
                );
                Err(Error::new(Code::InvalidState, why).hint("bring all nodes to the same version first"))
            }
            None => Ok(()),
        }
    }

    /// The node with this id or name.
    ///
    /// # Errors
    /// [`Code::NodeNotFound`].
    #[boxed]
    pub async fn node(&self, text: &str) -> Result<NodeRecord> {
        let found =
            self.nodes().await?.into_iter().find(|node| node.id.as_str() == text || node.name == text);
        found.ok_or_else(|| {
            Error::new(Code::NodeNotFound, format!("no node '{}'", shorten(text)))
                .hint("'atoll node ls' shows the nodes; a server with a database of its own is none")
        })
    }

    /// A node, and what it still has.
    ///
    /// # Errors
    /// [`Code::NodeNotFound`].
    #[boxed]
    pub async fn left_on(&self, text: &str) -> Result<(NodeRecord, Left)> {
        let node = self.node(text).await?;
        let left = self.inner.store.left_on(&node.id).await.map_err(store_error)?;
        Ok((node, left))
    }

    /// Says whether a node takes new sandboxes. What is there goes to other nodes meanwhile, where there is an object store.
    ///
    /// # Errors
    /// [`Code::NodeNotFound`].
    #[boxed]
    pub async fn set_draining(&self, text: &str, draining: bool) -> Result<NodeRecord> {
        let node = self.node(text).await?;
        self.inner.store.set_draining(&node.id, draining).await.map_err(store_error)?;
        // Here it holds at once, at the others when they look again.
        if let Some(cluster) = &self.inner.cluster {
            cluster.set_nodes(self.nodes().await?);
        }
        self.node(node.id.as_str()).await
    }

    /// Forgets a node that does not live any more, with what was on its disks.
    ///
    /// # Errors
    /// [`Code::NodeNotFound`]; [`Code::InvalidState`] while it lives.
    #[boxed]
    pub async fn remove_node(&self, text: &str) -> Result<NodeRecord> {
        let node = self.node(text).await?;
        self.inner.store.remove_node(&node.id).await.map_err(|error| match error {
            StoreError::Conflict => {
                Error::new(Code::InvalidState, format!("the node '{}' lives", shorten(&node.name)))
                    .hint("stop its server first, and wait until its lease has ended")
            }
            other => store_error(other),
        })?;
        Ok(node)
    }
}
