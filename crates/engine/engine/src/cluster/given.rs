//! What this node gave to others since they last said what they have.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::id::NodeId;
use atoll_core::placement::Handed;
use atoll_store::NodeRecord;

/// Signs of life after which a node has told of what it was given: what it says is as old as the sign before, at most.
const TOLD_AFTER: i64 = 2;

/// By node. Those that are gone go with the next look.
#[derive(Debug, Default)]
pub(super) struct Given(Mutex<HashMap<NodeId, One>>);

#[derive(Debug)]
struct One {
    /// Epoch and beats of the node when it got the first of these.
    sign: (i64, i64),
    sandboxes: u64,
    memory_bytes: u64,
    underway: Arc<AtomicU64>,
}

/// A creation that another node does at this moment.
#[derive(Debug)]
pub(super) struct Underway(Arc<AtomicU64>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Given {
    fn map(&self) -> MutexGuard<'_, HashMap<NodeId, One>> {
        // Counts that are off by one are put right by the next sign of life.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a node got.
    pub(super) fn to(&self, node: &NodeId) -> Handed {
        let map = self.map();
        map.get(node).map_or_else(Handed::default, |one| Handed {
            sandboxes: one.sandboxes,
            memory_bytes: one.memory_bytes,
            underway: one.underway.load(Ordering::Acquire),
        })
    }

    /// Counts one more, which is under way as long as what is given lives.
    pub(super) fn one(&self, node: &NodeRecord, memory_bytes: u64) -> Underway {
        let mut map = self.map();
        let new = || One { sign: (0, 0), sandboxes: 0, memory_bytes: 0, underway: Arc::default() };
        let one = map.entry(node.id.clone()).or_insert_with(new);
        if one.sandboxes == 0 {
            one.sign = (node.epoch, node.beats);
        }
        one.sandboxes += 1;
        one.memory_bytes = one.memory_bytes.saturating_add(memory_bytes);
        one.underway.fetch_add(1, Ordering::AcqRel);
        Underway(Arc::clone(&one.underway))
    }

    /// Takes in what the nodes say now.
    pub(super) fn told<'a>(&self, nodes: impl Iterator<Item = &'a NodeRecord>) {
        let mut map = self.map();
        for node in nodes {
            let told = |one: &One| one.sign.0 != node.epoch || node.beats >= one.sign.1 + TOLD_AFTER;
            if let Some(one) = map.get_mut(&node.id).filter(|one| told(one)) {
                (one.sandboxes, one.memory_bytes) = (0, 0);
            }
        }
        map.retain(|_, one| one.sandboxes > 0 || one.underway.load(Ordering::Acquire) > 0);
    }
}
