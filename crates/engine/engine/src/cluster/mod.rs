//! Several servers that share a database: each is a node with sandboxes of its own, and any of them answers for all.
//!
//! ```text
//! follow     what other nodes changed (keys, secrets, pools) is read again; a node that cannot ask the database in
//!            time refuses requests
//! keep       the other nodes are watched; one that gives no sign of life is taken over; this one stops in time
//! asked      what a request wanted and is not here: the server, to pass it on, asks `Engine::elsewhere` where it is
//! known      where things of other nodes were found
//! place      which node makes a sandbox
//! checks     what a node finds of itself that concerns the others
//! given      what this node gave to others since they last said what they have
//! ```
//!
//! There is none of it with a database of one's own: [`Inner::cluster`](crate::engine::Inner) is empty then.

mod asked;
mod checks;
mod follow;
mod given;
mod keep;
mod known;
mod nodes;
mod place;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use atoll_core::id::NodeId;
use atoll_core::node::NodeLoad;
use atoll_core::{Code, Error, Result};
use atoll_store::{Lease, NodeRecord, Store, boot_ns};
use tokio::sync::watch;

pub use asked::{Asked, Route, spawn};
pub(crate) use asked::{came_with, elsewhere, here, left, missing};
use given::Given;
use known::Known;

use crate::boxed;
use crate::engine::{Engine, Inner};

/// A node serves no longer than this after it began to look for the last time what others had changed.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// How long a request waits for a node to know again, before it is refused.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// This node, and what it knows of the others.
#[derive(Debug)]
pub(crate) struct Cluster {
    lease: Lease,
    /// What others changed before this moment is known.
    known_ns: AtomicU64,
    looked: watch::Sender<()>,
    /// All nodes as they were when they were last looked at.
    nodes: RwLock<BTreeMap<NodeId, Arc<NodeRecord>>>,
    /// What this node has to do, as it was last measured.
    load: watch::Sender<NodeLoad>,
    known: Known,
    given: Given,
}

impl Cluster {
    pub(crate) fn of(store: &Store) -> Option<Self> {
        let lease = store.lease()?.clone();
        Some(Self {
            lease,
            // A node that starts has just read all of it; the first look comes at once.
            known_ns: AtomicU64::new(0),
            looked: watch::Sender::default(),
            nodes: RwLock::default(),
            load: watch::Sender::default(),
            known: Known::default(),
            given: Given::default(),
        })
    }

    /// Whether this node may answer at this moment.
    fn may_serve(&self) -> bool {
        let known_ns = self.known_ns.load(Ordering::Acquire);
        self.lease.holds() && boot_ns().saturating_sub(known_ns) < ns(KNOWN_FOR)
    }

    pub(crate) const fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn id(&self) -> &NodeId {
        &self.lease.node().id
    }

    fn set_nodes(&self, nodes: Vec<NodeRecord>) {
        self.given.told(nodes.iter());
        let map = nodes.into_iter().map(|node| (node.id.clone(), Arc::new(node))).collect();
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = map;
    }

    /// Takes in what some nodes say now. One that is not there any more goes with the next look at all.
    fn update_nodes(&self, nodes: Vec<NodeRecord>) {
        self.given.told(nodes.iter());
        let mut map = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        map.extend(nodes.into_iter().map(|node| (node.id.clone(), Arc::new(node))));
    }

    /// All nodes as they were a moment ago.
    fn nodes(&self) -> Vec<Arc<NodeRecord>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A node, as it was a moment ago.
    fn any(&self, id: &NodeId) -> Option<Arc<NodeRecord>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Another node, as it was a moment ago.
    fn other(&self, id: &NodeId) -> Option<Arc<NodeRecord>> {
        self.any(id).filter(|node| node.id != *self.id())
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The answer for what is on a node that cannot be asked.
fn node_away(name: &str) -> Error {
    Error::new(Code::NodeUnavailable, format!("it is on the node '{name}', which does not answer"))
        .hint("'atoll node ls' shows the nodes; what is on disk there waits until it is back")
}

impl Engine {
    /// Whether this server is a node of a cluster.
    #[must_use]
    pub fn is_node(&self) -> bool {
        self.inner.cluster.is_some()
    }

    /// Waits, not for long, until this server may answer: always, but for a node that cannot ask the database what holds.
    ///
    /// # Errors
    /// [`Code::StoreUnavailable`].
    #[boxed]
    pub async fn until_may_serve(&self) -> Result<()> {
        let Some(cluster) = &self.inner.cluster else { return Ok(()) };
        if cluster.may_serve() {
            return Ok(());
        }
        let mut looked = cluster.looked.subscribe();
        let waiting = async {
            while !cluster.may_serve() && !cluster.lease.is_lost() {
                // The sender lives in the cluster.
                drop(looked.changed().await);
            }
        };
        drop(tokio::time::timeout(WAIT_MAX, waiting).await);
        if cluster.may_serve() {
            return Ok(());
        }
        Err(Error::new(Code::StoreUnavailable, "this node cannot ask the database what holds now")
            .hint("try again, or ask another node"))
    }

    /// Whether this server may answer at this moment.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        self.inner.cluster.as_ref().is_none_or(Cluster::may_serve)
    }

    /// Resolves when another node has taken over what this one had: it must stop then, and start anew.
    #[boxed]
    pub async fn until_taken_over(&self) {
        let Some(cluster) = &self.inner.cluster else { return std::future::pending().await };
        let mut away = cluster.lease.away();
        while !cluster.lease.is_lost() {
            if away.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Starts what a node does all the time.
    pub(crate) fn start_cluster(&self) {
        if self.inner.cluster.is_some() {
            self.spawn_while_open(follow::follow(self.clone()));
            self.spawn_while_open(keep::keep(self.clone()));
        }
    }

    /// Whether this node takes no new sandboxes.
    pub(crate) fn is_draining(&self) -> bool {
        let Some(cluster) = &self.inner.cluster else { return false };
        cluster.any(cluster.id()).is_some_and(|this| this.is_draining)
    }

    /// Whether there is a node that does not live any more, as of a moment ago.
    pub(crate) fn has_dead_nodes(&self) -> bool {
        let nodes = self.inner.cluster.as_ref().map(Cluster::nodes).unwrap_or_default();
        nodes.iter().any(|node| !node.is_alive)
    }

    pub(crate) fn spawn_while_open(&self, work: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.inner.shutdown.clone();
        self.inner.tracker.spawn(async move {
            shutdown.run_until_cancelled(work).await;
        });
    }
}

impl Inner {
    /// Refuses what was found in the database and is on another node's disk, and notes where.
    pub(crate) async fn must_be_here(&self, at: atoll_store::Whereabouts, missing: Error) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let node = self.store.whereabouts(&at).await.map_err(crate::errors::store_error)?;
        match node {
            Some(node) if node != *cluster.id() => {
                elsewhere(node);
                Err(missing)
            }
            _ => Ok(()),
        }
    }
}
