//! What a request asks for that is not on this node.
//!
//! The code that looks a thing up and does not find it notes that ([`missing`]), in the slot of the request for which
//! it runs. When the request fails, the server that received it asks [`Engine::elsewhere`] whether one of these things
//! is on another node, and passes the request on. So only what is not here costs anything, and no node needs a list of
//! everything that is elsewhere.
//!
//! Where something was found is remembered. The node that is asked may not have it any more: then the request is begun anew
//! here ([`Engine::not_there`]), and the database is asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::Result;
use atoll_core::id::{KeyId, NodeId};
use atoll_store::{NodeRecord, Whereabouts};

use super::given::Underway;
use super::{Cluster, node_away};
use crate::boxed;
use crate::engine::Engine;
use crate::errors::store_error;

/// Things that one request may have missed; more are not noted.
const MISSING_MAX_COUNT: usize = 8;
/// How long a request waits for a node that is being started anew.
const RETURN_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks for it.
const RETURN_LOOK: Duration = Duration::from_millis(100);

tokio::task_local! {
    static ASKED: Arc<Asked>;
}

/// What one request asked for.
#[derive(Debug, Default)]
pub struct Asked {
    notes: Arc<Mutex<Notes>>,
    here: Arc<AtomicBool>,
    left: Arc<AtomicBool>,
    from_node: bool,
    stays: bool,
}

#[derive(Debug, Default)]
struct Notes {
    missing: Vec<Whereabouts>,
    node: Option<(NodeId, Option<Underway>)>,
    /// Nodes that did not make the sandbox that this asks for.
    tried: Vec<NodeId>,
    refused: bool,
    /// The key of the caller.
    key: Option<KeyId>,
    /// Anybody may have sent it.
    of_anybody: bool,
}

/// The node that a request is to be passed on to.
#[derive(Debug)]
pub struct Route {
    /// Which.
    pub node: Arc<NodeRecord>,
    /// Whether it was looked up for this request, and is not what is remembered or was chosen.
    pub is_sure: bool,
    what: Option<Whereabouts>,
    _underway: Option<Underway>,
}

impl Asked {
    /// The slot of a request that another node passed on: it is answered here, or not at all.
    #[must_use]
    pub fn by_node() -> Self {
        Self { from_node: true, ..Self::default() }
    }

    /// A slot for a part of what the current request does, which is not given to another node for that part's sake.
    #[must_use]
    pub fn part() -> Self {
        let Some(whole) = Self::current() else { return Self { stays: true, ..Self::default() } };
        Self {
            notes: Arc::clone(&whole.notes),
            here: Arc::clone(&whole.here),
            left: Arc::clone(&whole.left),
            from_node: whole.from_node,
            stays: true,
        }
    }

    /// Runs what belongs to the request.
    pub async fn scope<F: Future>(self: Arc<Self>, work: F) -> F::Output {
        ASKED.scope(self, work).await
    }

    /// The slot of the request for which this runs, to be taken into another task.
    #[must_use]
    pub fn current() -> Option<Arc<Self>> {
        ASKED.try_with(Arc::clone).ok()
    }

    /// Whether what the request is about was found here: it will not be passed on.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.here.load(Ordering::Acquire)
    }

    /// Whether what this request is refused may be for another node to answer: such an answer is none to keep. Never where there
    /// are no other nodes.
    #[must_use]
    pub fn may_be_for_another() -> bool {
        Self::current().is_some_and(|asked| !asked.stays && !asked.is_here())
    }

    /// The key of the caller, once a right of it was asked for: it is good, whatever it may do. `None` for a request that
    /// anybody may have sent ([`Self::of_anybody`]).
    #[must_use]
    pub fn key(&self) -> Option<KeyId> {
        let notes = self.notes();
        notes.key.clone().filter(|_| !notes.of_anybody)
    }

    /// Notes that the request for which this runs is for a port of a sandbox, or came by an address that a key signed. What
    /// is open of such requests is bounded by sandbox, where that is. Whoever has an address or a token takes no place of
    /// the key that stands behind these: with enough of them that key could do nothing more.
    pub fn of_anybody() {
        // Outside of a request there is nothing to pass on.
        let _ = ASKED.try_with(|asked| asked.notes().of_anybody = true);
    }

    /// Whether another node passed it on.
    pub(super) const fn is_by_node(&self) -> bool {
        self.from_node
    }

    /// Whether it can still be passed on as a whole.
    pub(super) fn may_go(&self) -> bool {
        !self.from_node && !self.stays && !self.is_here()
    }

    /// Nodes that did not make the sandbox that this asks for.
    pub(super) fn tried(&self) -> Vec<NodeId> {
        self.notes().tried.clone()
    }

    /// Notes that this node does not do what another gave it.
    pub(super) fn refuse(&self) {
        self.notes().refused = true;
    }

    /// Whether this node does not do what another gave it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.notes().refused
    }

    /// Notes which node was chosen.
    pub(super) fn choose(&self, node: NodeId, underway: Underway) {
        self.notes().node = Some((node, Some(underway)));
    }

    /// Whether what it is about was here when the request came, and has gone to another node since.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// What was not found here.
    pub(crate) fn missing(&self) -> Vec<Whereabouts> {
        self.notes().missing.clone()
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a task that belongs to the same request, if this belongs to one.
pub fn spawn<F>(work: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Asked::current() {
        None => tokio::spawn(work),
        Some(asked) => tokio::spawn(asked.scope(work)),
    }
}

/// Notes that something was not found here.
pub(crate) fn missing(what: Whereabouts) {
    // Outside of a request there is nothing to pass on.
    let _ = ASKED.try_with(|asked| {
        let mut notes = asked.notes();
        if notes.missing.len() < MISSING_MAX_COUNT && !notes.missing.contains(&what) {
            notes.missing.push(what);
        }
    });
}

/// Notes whose key the request came with.
pub(crate) fn came_with(key: &KeyId) {
    let _ = ASKED.try_with(|asked| {
        asked.notes().key.get_or_insert_with(|| key.clone());
    });
}

/// Notes that what the request is about is here, and that it may go on.
pub(crate) fn here() {
    let _ = ASKED.try_with(|asked| asked.here.store(true, Ordering::Release));
}

/// Notes that what the request is about has gone to another node while it waited.
pub(crate) fn left() {
    let _ = ASKED.try_with(|asked| asked.left.store(true, Ordering::Release));
}

/// Notes on which node the request should be answered.
pub(crate) fn elsewhere(node: NodeId) {
    let _ = ASKED.try_with(|asked| {
        asked.notes().node.get_or_insert((node, None));
    });
}

impl Engine {
    /// The node that has what a request did not find here, if another has it.
    ///
    /// # Errors
    /// [`atoll_core::Code::NodeUnavailable`] when that node does not live; [`atoll_core::Code::StoreUnavailable`].
    #[boxed]
    pub async fn elsewhere(&self, asked: &Asked) -> Result<Option<Route>> {
        let Some(cluster) = &self.inner.cluster else { return Ok(None) };
        let (missing, chosen) = {
            let mut notes = asked.notes();
            (notes.missing.clone(), notes.node.take())
        };
        if let Some((id, underway)) = chosen {
            let node = self.living(cluster, &id).await?;
            return Ok(Some(Route { node, is_sure: underway.is_none(), what: None, _underway: underway }));
        }
        for what in missing {
            // A node that passed the request on must be told what is so now: its question goes to the database.
            let known = (!asked.from_node).then(|| cluster.known.get(&what)).flatten();
            if let Some(node) = known.and_then(|id| cluster.other(&id)).filter(|node| node.is_alive) {
                return Ok(Some(Route { node, is_sure: false, what: Some(what), _underway: None }));
            }
            let found = self.inner.store.whereabouts(&what).await.map_err(store_error)?;
            let Some(id) = found else { continue };
            if id == *cluster.id() {
                return Ok(None);
            }
            let node = self.living(cluster, &id).await?;
            cluster.known.put(what.clone(), id);
            return Ok(Some(Route { node, is_sure: true, what: Some(what), _underway: None }));
        }
        Ok(None)
    }

    /// The node that a request was passed on to does not have what it is about, or did not make what it asks for.
    pub fn not_there(&self, asked: &Asked, route: Route) {
        let Some(cluster) = &self.inner.cluster else { return };
        match &route.what {
            Some(what) => cluster.known.forget(what),
            None => asked.notes().tried.push(route.node.id.clone()),
        }
    }

    /// Waits, not for long, for a node that could not be reached while its lease lives: a server that is started anew is soon
    /// back. Says whether it has started anew since it was looked at: then it is somewhere else now.
    #[boxed]
    pub async fn has_come_back(&self, node: &NodeRecord) -> bool {
        let Some(cluster) = &self.inner.cluster else { return false };
        let Ok(now) = self.inner.store.some_nodes(std::slice::from_ref(&node.id)).await else { return false };
        cluster.update_nodes(now);
        let end = tokio::time::Instant::now() + RETURN_MAX;
        // The node's row is read again all the time; many requests that wait here ask the database nothing.
        while let Some(now) = cluster.other(&node.id).filter(|now| now.is_alive) {
            if now.epoch != node.epoch {
                return true;
            }
            if tokio::time::Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(RETURN_LOOK).await;
        }
        false
    }

    async fn living(&self, cluster: &Cluster, id: &NodeId) -> Result<Arc<NodeRecord>> {
        if let Some(node) = cluster.other(id).filter(|node| node.is_alive) {
            return Ok(node);
        }
        // It has come since the last look.
        let all = self.inner.store.nodes().await.map_err(store_error)?;
        let node = all.into_iter().find(|node| node.id == *id).ok_or_else(|| node_away(id.as_str()))?;
        if node.is_alive { Ok(Arc::new(node)) } else { Err(node_away(&node.name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_comes_to_a_port_is_not_the_key_behind_it() {
        let key = KeyId::from_parts(1, 1);
        let (to_port, to_api) = (Arc::new(Asked::default()), Arc::new(Asked::default()));
        Arc::clone(&to_port)
            .scope(async {
                Asked::of_anybody();
                came_with(&key);
            })
            .await;
        assert_eq!(to_port.key(), None);
        Arc::clone(&to_api).scope(async { came_with(&key) }).await;
        assert_eq!(to_api.key(), Some(key));
    }
}
