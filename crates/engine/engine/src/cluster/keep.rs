//! Nodes watch each other.
//!
//! A node counts, by a clock of its own that no one can set, for how long another's sign of life has not changed. Only
//! an unbroken watch counts: a node that could not look for a while (the database was away, this process stood still)
//! begins anew, as the other may have been as unable to show itself.
//!
//! If each of many nodes read all rows every second, the database would do nothing else. So a node reads all rows the
//! more seldom the more nodes there are. Every second it reads those that it watches, and a few by chance, to choose
//! nodes for new sandboxes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use atoll_core::id::{NodeId, SandboxId};
use atoll_core::node::watched;
use atoll_core::{Error, Result};
use atoll_store::{NodeRecord, boot_ns};
use futures::future::join_all;

use super::ns;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;

/// How often the others are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Nodes that one watches.
const WATCHED_COUNT: usize = 8;
/// Others that are read each time.
const DRAWN_COUNT: usize = 24;
/// How much longer it takes for each node until all are read again: up to fifty, all are each time.
const ALL_EVERY_PER_NODE: Duration = Duration::from_millis(20);
/// Sandboxes of a dead node that are taken up at the same time.
const INHERITED_AT_ONCE: usize = 16;
/// A watch with a longer gap is broken.
const GAP_MAX: Duration = Duration::from_secs(3);

/// What was seen of a node: its epoch and beats, and since when.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sign: (i64, i64),
    since_ns: u64,
}

#[derive(Debug, Default)]
struct Watch {
    seen: BTreeMap<NodeId, Seen>,
    looked_ns: u64,
    /// When all nodes were last read.
    all_ns: u64,
}

impl Watch {
    /// Takes in what was read between two moments; gives those that gave no sign of life for their whole lease.
    fn look<'a>(&mut self, nodes: &'a [NodeRecord], began_ns: u64, now_ns: u64) -> Vec<&'a NodeRecord> {
        if began_ns.saturating_sub(self.looked_ns) > ns(GAP_MAX) {
            self.seen.clear();
        }
        self.looked_ns = began_ns;
        let alive = || nodes.iter().filter(|node| node.is_alive);
        self.seen.retain(|id, _| alive().any(|node| node.id == *id));
        let mut silent = Vec::new();
        for node in alive() {
            let sign = (node.epoch, node.beats);
            // It may have given this sign at any time before it was read.
            let seen = self.seen.entry(node.id.clone()).or_insert(Seen { sign, since_ns: now_ns });
            if seen.sign != sign {
                *seen = Seen { sign, since_ns: now_ns };
            }
            if began_ns.saturating_sub(seen.since_ns) > ns(Duration::from_millis(node.lease_ms)) {
                silent.push(node);
            }
        }
        silent
    }
}

pub(super) async fn keep(engine: Engine) {
    let mut watch = Watch::default();
    loop {
        if let Err(error) = engine.watch_others(&mut watch).await {
            tracing::warn!(%error, "the other nodes could not be looked at");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Engine {
    async fn watch_others(&self, watch: &mut Watch) -> Result<()> {
        let Some(cluster) = &self.inner.cluster else { return Ok(()) };
        let load = self.inner.measure_load().await;
        cluster.lease().say(serde_json::to_string(&load).unwrap_or_else(|_| "{}".to_owned()));
        cluster.load.send_replace(load);
        let began_ns = boot_ns();
        let known = cluster.nodes();
        let many = u32::try_from(known.len()).unwrap_or(u32::MAX);
        if began_ns.saturating_sub(watch.all_ns) >= ns(ALL_EVERY_PER_NODE.saturating_mul(many)) {
            cluster.set_nodes(self.inner.store.nodes().await.map_err(store_error)?);
            watch.all_ns = began_ns;
        } else {
            let living: Vec<&NodeId> =
                known.iter().filter(|node| node.is_alive).map(|node| &node.id).collect();
            let mut ids: Vec<NodeId> =
                watched(cluster.id(), &living, WATCHED_COUNT).into_iter().cloned().collect();
            ids.push(cluster.id().clone());
            for _ in 0..DRAWN_COUNT {
                // Not empty: this node was read before.
                let at = usize::try_from(random()? % u64::from(many.max(1))).unwrap_or_default();
                ids.extend(known.get(at).map(|node| node.id.clone()));
            }
            cluster.update_nodes(self.inner.store.some_nodes(&ids).await.map_err(store_error)?);
        }
        // By what is known now: a node that died meanwhile is not one of them.
        let known = cluster.nodes();
        let living: Vec<&NodeId> = known.iter().filter(|node| node.is_alive).map(|node| &node.id).collect();
        let ids = watched(cluster.id(), &living, WATCHED_COUNT);
        let others: Vec<NodeRecord> =
            known.iter().filter(|node| ids.contains(&&node.id)).map(|node| NodeRecord::clone(node)).collect();
        for node in watch.look(&others, began_ns, boot_ns()) {
            self.take_over(node).await?;
        }
        self.say_facts(cluster).await
    }

    /// What a node had that gave no sign of life for its whole lease is this one's to answer for.
    async fn take_over(&self, node: &NodeRecord) -> Result<()> {
        let reason = format!("its node '{}' gave no sign of life any more", node.name);
        // What there is to go on from can be fetched only where there is a way to it.
        let levels = self.inner.travel.as_ref().map(|_| self.isolation_levels()).unwrap_or_default();
        let moved = self.inner.store.take_over(node, &levels, &reason, self.inner.now_ms()).await;
        let moved = moved.map_err(store_error)?;
        let Some(moved) = moved else { return Ok(()) };
        tracing::error!(
            node = node.name,
            sandboxes = moved.len(),
            "a node gives no sign of life: it is taken over"
        );
        self.inner.reload_acl(&moved).await?;
        let reachable = AtomicBool::new(true);
        for some in moved.chunks(INHERITED_AT_ONCE) {
            let inherited = join_all(some.iter().map(|id| self.inherit(id, &reachable))).await;
            for (id, outcome) in some.iter().zip(inherited) {
                if let Err(error) = outcome {
                    tracing::error!(sandbox = %id, %error, "a sandbox of that node cannot be shown here");
                }
            }
        }
        self.interrupt_left_builds().await
    }

    async fn inherit(&self, id: &SandboxId, reachable: &AtomicBool) -> Result<(), Error> {
        let Some(record) = self.inner.store.sandbox(id).await.map_err(store_error)? else { return Ok(()) };
        self.take_up_journal_if_there(&record, reachable).await;
        self.recover_one(record, None).await
    }
}

#[cfg(test)]
mod tests {
    use atoll_core::node::{NodeFacts, NodeLoad};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn node(number: u64, beats: i64) -> NodeRecord {
        NodeRecord {
            id: NodeId::from_parts(number, number),
            name: format!("n{number}"),
            address: String::new(),
            version: String::new(),
            facts: NodeFacts::default(),
            load: NodeLoad::default(),
            epoch: 1,
            beats,
            lease_ms: 10_000,
            is_alive: true,
            is_draining: false,
            created_ms: 0,
            seen_ms: 0,
        }
    }

    /// Looks every second from `from` to `to`; gives when the node was found to be silent.
    fn silent_at(watch: &mut Watch, node: &NodeRecord, from: u64, to: u64) -> Option<u64> {
        (from..=to).find(|at| !watch.look(std::slice::from_ref(node), at * SECOND, at * SECOND).is_empty())
    }

    #[test]
    fn a_node_is_silent_after_its_whole_lease() {
        let mut watch = Watch::default();
        assert_eq!(silent_at(&mut watch, &node(1, 5), 100, 110), None);
        assert_eq!(silent_at(&mut watch, &node(1, 6), 111, 121), None, "it gave a sign of life");
        assert_eq!(silent_at(&mut watch, &node(1, 6), 122, 200), Some(122));
    }

    #[test]
    fn a_watch_with_a_gap_begins_anew() {
        let mut watch = Watch::default();
        assert_eq!(silent_at(&mut watch, &node(1, 5), 100, 108), None);
        // The database was away for a minute, and with it every sign of life.
        assert_eq!(silent_at(&mut watch, &node(1, 5), 168, 178), None);
        assert_eq!(silent_at(&mut watch, &node(1, 5), 179, 200), Some(179));
    }

    #[test]
    fn who_was_taken_over_or_started_anew_is_not_silent() {
        let mut watch = Watch::default();
        silent_at(&mut watch, &node(1, 5), 100, 109);
        let anew = NodeRecord { epoch: 2, ..node(1, 5) };
        assert_eq!(silent_at(&mut watch, &anew, 110, 115), None);
        let dead = NodeRecord { is_alive: false, ..node(1, 5) };
        assert_eq!(silent_at(&mut watch, &dead, 116, 200), None);
    }
}
