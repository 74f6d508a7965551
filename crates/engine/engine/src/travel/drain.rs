//! What is on a node that takes no new sandboxes goes to others.
//!
//! Each sandbox is put to disk, copied, given to another node in one statement, and taken apart here; the other wakes it if it
//! ran. What cannot go stays, and why is written down. The sandbox's actor does all of it, so that nothing else happens to it
//! meanwhile: see `sandbox/actor/travel.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{NodeId, SandboxId};
use atoll_core::sandbox::SandboxState;
use futures::StreamExt as _;

use super::bound_here;
use crate::engine::Engine;
use crate::sandbox::{Message, SandboxShared};

/// How often a node that is drained looks what it still has.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Sandboxes that move at the same time.
const AT_ONCE_MAX_COUNT: usize = 4;

pub(super) async fn keep(engine: Engine) {
    let mut said = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if engine.is_draining() {
            engine.move_away(&mut said).await;
        } else {
            said.clear();
        }
    }
}

/// What is to become of a sandbox.
enum Way {
    To(NodeId),
    Stays(String),
    /// It is being made or taken apart: that ends first.
    Later,
}

impl Engine {
    async fn move_away(&self, said: &mut BTreeMap<SandboxId, String>) {
        let all = self.inner.all_sandboxes();
        let left: Vec<(SandboxId, Option<String>)> = futures::stream::iter(all)
            .map(|sandbox| async move { (sandbox.id.clone(), self.move_one(&sandbox).await) })
            .buffer_unordered(AT_ONCE_MAX_COUNT)
            .collect()
            .await;
        said.retain(|id, _| left.iter().any(|(one, why)| one == id && why.is_some()));
        for (id, why) in left {
            let Some(why) = why.filter(|why| said.get(&id) != Some(why)) else { continue };
            match self.inner.store.set_stays(&id, Some(&why)).await {
                Ok(()) => drop(said.insert(id, why)),
                Err(error) => tracing::warn!(sandbox = %id, %error, "why it stays is not written down"),
            }
        }
    }

    /// Moves a sandbox; gives why it stays.
    async fn move_one(&self, sandbox: &Arc<SandboxShared>) -> Option<String> {
        if !self.is_draining() {
            return None;
        }
        let to = match self.way_of(sandbox) {
            Way::To(node) => node,
            Way::Stays(why) => return Some(why),
            Way::Later => return None,
        };
        match sandbox.ask(|reply| Message::Leave(to.clone(), reply)).await {
            Ok(()) => {
                tracing::info!(sandbox = %sandbox.id, node = %to, "a sandbox went to another node");
                None
            }
            // Deleted meanwhile, or the server stops.
            Err(_) if self.inner.find(&sandbox.id).is_none() || self.inner.shutdown.is_cancelled() => None,
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "a sandbox did not go to another node");
                Some(error.message)
            }
        }
    }

    fn way_of(&self, sandbox: &SandboxShared) -> Way {
        let record = sandbox.record();
        let stays = |why: &str| Way::Stays(why.to_owned());
        match record.state {
            SandboxState::Creating | SandboxState::Deleting => return Way::Later,
            SandboxState::Failed => return stays("it has failed, and only its record is left: delete it"),
            SandboxState::Running | SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming => {
            }
        }
        if self.inner.travel.is_none() {
            return stays("this node has no object store: start it with --objects");
        }
        if let Some(why) = bound_here(&record) {
            return stays(why);
        }
        if self.inner.agents.are_in(&sandbox.id) {
            return stays("agents live in it, whose sessions do not move yet");
        }
        if record.spec.build.is_some() {
            return stays("a template is built in it: that ends first");
        }
        match self.place_away(&record) {
            Ok(Some(node)) => Way::To(node),
            Ok(None) => stays("no other node can take it"),
            Err(error) => Way::Stays(error.message),
        }
    }
}
