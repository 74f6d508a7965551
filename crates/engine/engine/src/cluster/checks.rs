//! What a node finds of itself that concerns the others.

use std::sync::Arc;

use atoll_core::Result;
use atoll_isolation::{Check, Status};
use atoll_store::NodeRecord;

use super::Cluster;
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

/// By how much a clock may differ from the database's before that is said, milliseconds: what times are shown to people by.
const CLOCK_MAX_MS: u64 = 1000;

impl Engine {
    /// The other nodes that live, as they were a moment ago.
    #[must_use]
    pub fn other_nodes(&self) -> Vec<Arc<NodeRecord>> {
        let Some(cluster) = &self.inner.cluster else { return Vec::new() };
        cluster.nodes().into_iter().filter(|node| node.is_alive && node.id != *cluster.id()).collect()
    }

    /// Whether this node's lease, clock, key of the vault and schema are as they must be; nothing where it is none.
    ///
    /// # Errors
    /// [`atoll_core::Code::StoreUnavailable`].
    #[boxed]
    pub async fn check_node(&self) -> Result<Vec<Check>> {
        let Some(cluster) = &self.inner.cluster else { return Ok(Vec::new()) };
        Ok(vec![
            lease(cluster),
            self.check_clock().await?,
            self.check_vault().await,
            self.check_schema().await?,
        ])
    }

    async fn check_clock(&self) -> Result<Check> {
        let before = self.inner.now_ms();
        let theirs = self.inner.store.clock_ms().await.map_err(store_error)?;
        let after = self.inner.now_ms();
        // It was read at some moment between these two.
        let apart = theirs.saturating_sub(after).max(before.saturating_sub(theirs));
        let detail = format!(
            "{apart} ms or less from the database's, which took {} ms to ask",
            after.saturating_sub(before)
        );
        Ok(if apart > CLOCK_MAX_MS {
            Check::new("clock", Status::Limited, detail).hint(
                "set the machines' clocks by NTP; leases do not depend on them, times that are shown do",
            )
        } else {
            Check::new("clock", Status::Ok, detail)
        })
    }

    async fn check_vault(&self) -> Check {
        match crate::authority::opens(&self.inner.store, &self.inner.vault, &self.inner.clock).await {
            Ok(()) => Check::new("vault", Status::Ok, "its key opens what the database holds"),
            Err(error) => Check::new("vault", Status::Missing, error.message)
                .hint("give every node the same ATOLL_VAULT_KEY"),
        }
    }

    async fn check_schema(&self) -> Result<Check> {
        let (own, database) = self.inner.store.schema().await.map_err(store_error)?;
        let detail = format!("this program knows version {own}, the database has {database}");
        Ok(if own == database {
            Check::new("schema", Status::Ok, detail)
        } else {
            Check::new("schema", Status::Limited, detail)
                .hint("bring all nodes to the same version of the program")
        })
    }
}

fn lease(cluster: &Cluster) -> Check {
    if cluster.may_serve() {
        let ms = cluster.lease().node().lease_ms;
        return Check::new("lease", Status::Ok, format!("held, of {ms} ms"));
    }
    Check::new("lease", Status::Missing, "not held: this node stands still")
        .hint("it goes on when it reaches the database, or ends if another has taken over")
}
