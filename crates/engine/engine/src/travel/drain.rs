//! The sandboxes of a node that takes no new ones go to other nodes.
//!
//! A sandbox in which a command runs for longer than a move waits goes when that has ended, or after half a minute; one that
//! goes with its memory goes at once, and the command with it.
//! The disk of each is sent while it still runs. Then it is put to disk, copied, given to another node in one statement, and
//! taken apart here; the other wakes it if it ran. What cannot go stays, and why is written down. The sandbox's actor does
//! all that begins with putting it to disk, so that nothing else happens to it meanwhile: see `sandbox/actor/travel.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{NodeId, SandboxId};
use atoll_core::sandbox::SandboxState;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::send::Upload;
use super::{AGENTS, bound_here};
use crate::engine::Engine;
use crate::sandbox::{Message, SETTLE_MAX, SandboxShared};

/// How often a node that is drained looks what it still has.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For how many looks nothing takes a sandbox before it is said that nothing does: a node that starts is there soon.
const NOWHERE_LOOKS: u32 = 5;
/// How long commands may take to end, from when the node is drained; then they are ended.
const COMMANDS_MAX: Duration = Duration::from_secs(30);
/// Sandboxes that move at the same time.
const AT_ONCE_MAX_COUNT: usize = 4;

pub(super) async fn keep(engine: Engine) {
    let mut seen = Seen::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if engine.is_draining() {
            engine.move_away(&mut seen).await;
        } else {
            seen = Seen::default();
        }
    }
}

/// What is known of the sandboxes that did not go.
#[derive(Default)]
struct Seen {
    /// Since when the node is drained.
    since: Option<Instant>,
    /// Why each stays, as it is written down.
    said: BTreeMap<SandboxId, String>,
    /// For how many looks no node took one.
    nowhere: BTreeMap<SandboxId, u32>,
    /// Those that were sent ahead, and did not go. They are not sent again before they do: what keeps them here for a moment,
    /// again and again, would have all of each sent, and left in the object store, each time.
    sent: BTreeSet<SandboxId>,
}

/// What a look at a sandbox came to.
struct Looked {
    id: SandboxId,
    outcome: Outcome,
    /// It was sent ahead, now or before.
    sent: bool,
}

impl Seen {
    /// Takes in what became of all of them; gives those that stay for a reason that is not written down.
    fn look(&mut self, all: Vec<Looked>) -> Vec<(SandboxId, String)> {
        let before = std::mem::take(&mut self.nowhere);
        self.sent.clear();
        let mut reasons = BTreeMap::new();
        for Looked { id, outcome, sent } in all {
            if sent && !matches!(outcome, Outcome::Went) {
                self.sent.insert(id.clone());
            }
            match outcome {
                Outcome::Stays(why) => drop(reasons.insert(id, why)),
                Outcome::Nowhere => {
                    let looks = before.get(&id).unwrap_or(&0).saturating_add(1);
                    if looks >= NOWHERE_LOOKS {
                        reasons.insert(id.clone(), "no other node can take it".to_owned());
                    }
                    self.nowhere.insert(id, looks);
                }
                Outcome::Went | Outcome::Later | Outcome::Busy => {}
            }
        }
        self.said.retain(|id, _| reasons.contains_key(id));
        reasons.into_iter().filter(|(id, why)| self.said.get(id) != Some(why)).collect()
    }
}

/// What became of a sandbox.
enum Outcome {
    /// It is another node's, or gone.
    Went,
    /// No node can take it at this moment.
    Nowhere,
    Stays(String),
    /// It is being made or taken apart: that ends first. Or the node is drained no more.
    Later,
    /// A command runs in it for longer than a move waits, and may end by itself.
    Busy,
}

impl Engine {
    async fn move_away(&self, seen: &mut Seen) {
        let all = self.inner.all_sandboxes();
        let clock = &self.inner.clock;
        let since = *seen.since.get_or_insert_with(|| clock.instant());
        let sent = &seen.sent;
        let looked: Vec<Looked> = futures::stream::iter(all)
            .map(|sandbox| async move {
                let was_sent = sent.contains(&sandbox.id);
                let (outcome, sent) = self.move_one(&sandbox, since, was_sent).await;
                Looked { id: sandbox.id.clone(), outcome, sent }
            })
            .buffer_unordered(AT_ONCE_MAX_COUNT)
            .collect()
            .await;
        for (id, why) in seen.look(looked) {
            match self.inner.store.set_stays(&id, Some(&why)).await {
                Ok(()) => drop(seen.said.insert(id, why)),
                Err(error) => tracing::warn!(sandbox = %id, %error, "why it stays is not written down"),
            }
        }
    }

    /// What became of it, and whether it was sent ahead, now or before.
    async fn move_one(
        &self,
        sandbox: &Arc<SandboxShared>,
        since: Instant,
        was_sent: bool,
    ) -> (Outcome, bool) {
        let to = match self.destination(sandbox, since) {
            Ok(node) => node,
            Err(outcome) => return (outcome, was_sent),
        };
        if was_sent {
            return (self.have_leave(sandbox, to, None).await, true);
        }
        let ahead = self.send_ahead(sandbox).await;
        // That may have taken long: everything is looked at anew.
        let mut to = self.destination(sandbox, since);
        while ahead.is_some() && matches!(to, Err(Outcome::Busy)) {
            tokio::time::sleep(LOOK_EVERY).await;
            to = self.destination(sandbox, since);
        }
        let outcome = match to {
            Ok(node) => self.have_leave(sandbox, node, ahead).await,
            Err(outcome) => {
                self.give_ahead_up(sandbox, ahead).await;
                outcome
            }
        };
        (outcome, true)
    }

    /// Where a sandbox can go at this moment, or what becomes of it.
    fn destination(&self, sandbox: &SandboxShared, since: Instant) -> Result<NodeId, Outcome> {
        if !self.is_draining() {
            return Err(Outcome::Later);
        }
        if let Some(outcome) = self.why_not(sandbox) {
            return Err(outcome);
        }
        let record = sandbox.record();
        let to = self.place_away(&record);
        let with_memory = matches!(&to, Ok(Some(node)) if self.keeps_memory_at(&record, node));
        let is_patient = self.inner.clock.since(since) < COMMANDS_MAX;
        if is_patient && !with_memory && self.runs_for_long(sandbox) {
            return Err(Outcome::Busy);
        }
        match to {
            Ok(Some(node)) => Ok(node),
            Ok(None) => Err(Outcome::Nowhere),
            Err(error) => Err(Outcome::Stays(error.message)),
        }
    }

    /// Has its actor give it to another node, with what was sent ahead.
    async fn have_leave(&self, sandbox: &SandboxShared, to: NodeId, ahead: Option<Box<Upload>>) -> Outcome {
        match sandbox.ask(|reply| Message::Leave(to.clone(), ahead, reply)).await {
            Ok(()) => {
                tracing::info!(sandbox = %sandbox.id, node = %to, "a sandbox went to another node");
                Outcome::Went
            }
            // Deleted meanwhile, or the server stops.
            Err(_) if self.inner.find(&sandbox.id).is_none() || self.inner.shutdown.is_cancelled() => {
                Outcome::Went
            }
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "a sandbox did not go to another node");
                Outcome::Stays(error.message)
            }
        }
    }

    /// Whether a command runs in it for longer than a move waits.
    fn runs_for_long(&self, sandbox: &SandboxShared) -> bool {
        let settling = u64::try_from(SETTLE_MAX.as_millis()).unwrap_or(u64::MAX);
        let long_ago = self.inner.now_ms().saturating_sub(settling);
        sandbox.commands().iter().any(|exec| exec.created_ms() < long_ago)
    }

    /// Why a sandbox cannot go anywhere, or not now.
    fn why_not(&self, sandbox: &SandboxShared) -> Option<Outcome> {
        let record = sandbox.record();
        let stays = |why: &str| Some(Outcome::Stays(why.to_owned()));
        match record.state {
            SandboxState::Creating | SandboxState::Deleting => return Some(Outcome::Later),
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
            return stays(AGENTS);
        }
        if record.spec.build.is_some() {
            return stays("a template is built in it: that ends first");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_cannot_be_found_for_a_moment_is_no_reason_to_stay() {
        let id = SandboxId::from_parts(1, 1);
        let mut seen = Seen::default();
        let mut look = |outcome| seen.look(vec![Looked { id: id.clone(), outcome, sent: false }]);
        for _ in 1..NOWHERE_LOOKS {
            assert!(look(Outcome::Nowhere).is_empty());
        }
        assert!(look(Outcome::Later).is_empty());
        for _ in 1..NOWHERE_LOOKS {
            assert!(look(Outcome::Nowhere).is_empty(), "counted from anew");
        }
        assert_eq!(look(Outcome::Nowhere), [(id.clone(), "no other node can take it".to_owned())]);
        assert_eq!(look(Outcome::Stays("bound".to_owned())), [(id.clone(), "bound".to_owned())]);
    }

    #[test]
    fn what_was_sent_ahead_and_did_not_go_is_not_sent_again() {
        let id = SandboxId::from_parts(1, 1);
        let looked = |outcome, sent| vec![Looked { id: id.clone(), outcome, sent }];
        let mut seen = Seen::default();
        seen.look(looked(Outcome::Busy, false));
        assert!(!seen.sent.contains(&id));
        // Why it stays may change with each look.
        for outcome in [Outcome::Nowhere, Outcome::Later, Outcome::Stays("bound".to_owned())] {
            seen.look(looked(outcome, true));
            assert!(seen.sent.contains(&id));
        }
        seen.look(looked(Outcome::Went, true));
        assert!(seen.sent.is_empty());
    }
}
