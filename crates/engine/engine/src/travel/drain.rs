//! The sandboxes of a node that takes no new ones go to other nodes.
//!
//! A sandbox in which a command runs for longer than a move waits goes when that has ended, or after half a minute; one that
//! goes with its memory goes at once, and the command with it.
//! The disk of each is sent while it still runs. Then it is put to disk, copied, given to another node in one statement, and
//! taken apart here; the other wakes it if it ran. What cannot go stays, and why is written down. The sandbox's actor does
//! all that begins with putting it to disk, so that nothing else happens to it meanwhile: see `sandbox/actor/travel.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::bound_here;
use crate::engine::Engine;
use crate::sandbox::{Message, SETTLE_MAX, SandboxShared};

/// How often a node that is drained looks what it still has.
const LOOK_EVERY: Duration = Duration::from_secs(1);
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
}

impl Seen {
    /// Takes in what became of all of them; gives those that stay for a reason that is not written down.
    fn look(&mut self, all: Vec<(SandboxId, Outcome)>) -> Vec<(SandboxId, String)> {
        let before = std::mem::take(&mut self.nowhere);
        let mut reasons = BTreeMap::new();
        for (id, outcome) in all {
            match outcome {
                Outcome::Stays(why) => drop(reasons.insert(id, why)),
                Outcome::Nowhere => {
                    let looks = before.get(&id).unwrap_or(&0).saturating_add(1);
                    if looks >= NOWHERE_LOOKS {
                        reasons.insert(id.clone(), "no other node can take it".to_owned());
                    }
                    self.nowhere.insert(id, looks);
                }
                Outcome::Went | Outcome::Later => {}
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
    /// It is being made or taken apart, or a command runs: that ends first.
    Later,
}

impl Engine {
    async fn move_away(&self, seen: &mut Seen) {
        let all = self.inner.all_sandboxes();
        let clock = &self.inner.clock;
        let since = *seen.since.get_or_insert_with(|| clock.instant());
        let said = &seen.said;
        let outcomes: Vec<(SandboxId, Outcome)> = futures::stream::iter(all)
            .map(|sandbox| async move {
                let failed = said.contains_key(&sandbox.id);
                (sandbox.id.clone(), self.move_one(&sandbox, since, failed).await)
            })
            .buffer_unordered(AT_ONCE_MAX_COUNT)
            .collect()
            .await;
        for (id, why) in seen.look(outcomes) {
            match self.inner.store.set_stays(&id, Some(&why)).await {
                Ok(()) => drop(seen.said.insert(id, why)),
                Err(error) => tracing::warn!(sandbox = %id, %error, "why it stays is not written down"),
            }
        }
    }

    /// Of one that has `failed` to go nothing is sent ahead again: what fails each second would send all of it each time.
    async fn move_one(&self, sandbox: &Arc<SandboxShared>, since: Instant, failed: bool) -> Outcome {
        let patient = || self.inner.clock.since(since) < COMMANDS_MAX;
        if !self.is_draining() {
            return Outcome::Later;
        }
        if let Some(outcome) = self.why_not(sandbox) {
            return outcome;
        }
        let record = sandbox.record();
        let to = self.place_away(&record);
        let with_memory = matches!(&to, Ok(Some(node)) if self.keeps_memory_at(&record, node));
        if patient() && !with_memory && self.runs_for_long(sandbox) {
            return Outcome::Later;
        }
        let ahead = match &to {
            Ok(Some(_)) if !failed => self.send_ahead(sandbox).await,
            _ => None,
        };
        // That may have taken long.
        while ahead.is_some() && patient() && !with_memory && self.runs_for_long(sandbox) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let to = if ahead.is_some() { self.place_away(&sandbox.record()) } else { to };
        if !self.is_draining() {
            return Outcome::Later;
        }
        let to = match to {
            Ok(Some(node)) => node,
            Ok(None) => return Outcome::Nowhere,
            Err(error) => return Outcome::Stays(error.message),
        };
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
            return stays("agents live in it, whose sessions do not move yet");
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
        let mut look = |outcome| seen.look(vec![(id.clone(), outcome)]);
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
}
