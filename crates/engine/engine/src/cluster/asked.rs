//! What a request asks for that is not on this node.
//!
//! Whoever looks something up notes what it did not find ([`missing`]), in the slot of the request for which it runs. When the
//! request fails, who received it asks [`Engine::elsewhere`] whether one of these things is on another node, and passes
//! the request on. So only what is not here costs anything, and nobody needs a list of everything that is elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::Result;
use atoll_core::id::NodeId;
use atoll_store::{NodeRecord, Whereabouts};

use super::node_away;
use crate::engine::Engine;
use crate::errors::store_error;

/// Things that one request may have missed; more are not noted.
const MISSING_MAX_COUNT: usize = 8;

tokio::task_local! {
    static ASKED: Arc<Asked>;
}

/// What one request asked for.
#[derive(Debug, Default)]
pub struct Asked {
    notes: Mutex<Notes>,
    here: AtomicBool,
    left: AtomicBool,
}

#[derive(Debug, Default)]
struct Notes {
    missing: Vec<Whereabouts>,
    node: Option<NodeId>,
}

impl Asked {
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
    // Outside of a request there is nobody to pass anything on.
    let _ = ASKED.try_with(|asked| {
        let mut notes = asked.notes();
        if notes.missing.len() < MISSING_MAX_COUNT && !notes.missing.contains(&what) {
            notes.missing.push(what);
        }
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
        asked.notes().node.get_or_insert(node);
    });
}

impl Engine {
    /// The node that has what a request did not find here, if another has it.
    ///
    /// # Errors
    /// [`atoll_core::Code::NodeUnavailable`] when that node does not live; [`atoll_core::Code::StoreUnavailable`].
    pub async fn elsewhere(&self, asked: &Asked) -> Result<Option<NodeRecord>> {
        let Some(cluster) = &self.inner.cluster else { return Ok(None) };
        let (missing, node) = {
            let mut notes = asked.notes();
            (notes.missing.clone(), notes.node.take())
        };
        let mut found = node;
        for what in missing {
            if found.is_some() {
                break;
            }
            found = self.inner.store.whereabouts(&what).await.map_err(store_error)?;
        }
        let Some(id) = found.filter(|id| id != cluster.id()) else { return Ok(None) };
        let known = cluster.other(&id).filter(|node| node.is_alive);
        let node = match known {
            Some(node) => node,
            // It has come since the last look.
            None => {
                let all = self.inner.store.nodes().await.map_err(store_error)?;
                let node = all.into_iter().find(|node| node.id == id);
                node.ok_or_else(|| node_away(id.as_str()))?
            }
        };
        if node.is_alive { Ok(Some(node)) } else { Err(node_away(&node.name)) }
    }
}
