//! A node that takes no new sandboxes, or has no room, names another.

use atoll_core::node::{Candidate, Wanted, place};
use atoll_core::spec::SandboxDraft;
use atoll_core::{Code, Error, Result};

use super::elsewhere;
use crate::engine::Engine;

impl Engine {
    /// Refuses a creation that another node should make, and notes which. Where there is no other that can, this one tries.
    pub(crate) fn place(&self, draft: &SandboxDraft) -> Result<()> {
        let Some(cluster) = &self.inner.cluster else { return Ok(()) };
        let level = draft.isolation.unwrap_or(self.inner.config.defaults.isolation);
        let is_full = self.inner.count_sandboxes() >= self.inner.config.sandboxes_max as u64;
        let lacks_level = draft.isolation.is_some() && self.inner.driver(level).is_err();
        let is_draining = cluster.is_draining();
        if !is_full && !lacks_level && !is_draining {
            return Ok(());
        }
        let nodes = cluster.nodes();
        let others: Vec<Candidate<'_>> = nodes
            .iter()
            .filter(|node| node.is_alive && node.id != *cluster.id())
            .map(|node| Candidate {
                id: &node.id,
                facts: &node.facts,
                load: node.load,
                is_draining: node.is_draining,
            })
            .collect();
        let memory_bytes = draft.resources.memory_bytes.unwrap_or_default();
        match place(&Wanted { level, memory_bytes }, &others) {
            Some(node) => {
                elsewhere(node.clone());
                Err(Error::new(Code::NodeUnavailable, "this node takes no new sandboxes")
                    .hint("ask another node"))
            }
            None if is_draining => Err(Error::new(
                Code::NodeUnavailable,
                "this node takes no new sandboxes, and no other can take it",
            )
            .hint("'atoll node undrain' lets it take some again")),
            // It says itself what is in the way.
            None => Ok(()),
        }
    }
}
