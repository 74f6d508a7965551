//! Takes up the sandboxes that came to this node: those that another gave away, and those that a dead one had put to disk and copied.
//!
//! That a sandbox came is a row, which goes when the sandbox is taken up and, if it ran before, woken: what a crash
//! cuts off is done again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Result};
use atoll_store::{Arrival, Whereabouts};
use tokio::time::Instant;

use crate::boxed;
use crate::cluster::Asked;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::sandbox::{self, Message};

/// How often this node looks whether something came, if it is not told so.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How long a request waits for a sandbox that is this node's and was not taken up yet.
const WAIT_MAX: Duration = Duration::from_secs(20);
const WAIT_LOOK: Duration = Duration::from_millis(20);

pub(super) async fn keep(engine: Engine) {
    let Some(travel) = engine.inner.travel.clone() else { return };
    let mut not_before = BTreeMap::new();
    loop {
        if let Err(error) = engine.look_for_arrivals(&mut not_before).await {
            tracing::warn!(%error, "what came to this node cannot be looked for");
        }
        tokio::select! {
            () = travel.arrivals.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

impl Engine {
    async fn look_for_arrivals(&self, not_before: &mut BTreeMap<SandboxId, Instant>) -> Result<()> {
        if self.has_dead_nodes() {
            let (levels, theirs) = (self.isolation_levels(), self.machines_elsewhere());
            let taken = self.inner.store.take_kept(&levels, &theirs, super::MEMORY_USED).await;
            let taken = taken.map_err(store_error)?;
            if taken > 0 {
                tracing::info!(sandboxes = taken, "what a dead node had in the object store is this one's");
            }
        }
        not_before.retain(|_, at| *at > Instant::now());
        let mut after = None;
        loop {
            // In batches, each behind the last: sandboxes that fail again and again hold up no others.
            let arrivals = self.inner.store.arrivals(after.as_ref()).await.map_err(store_error)?;
            let Some(last) = arrivals.last() else { return Ok(()) };
            after = Some(last.sandbox.clone());
            for arrival in arrivals {
                if not_before.contains_key(&arrival.sandbox) {
                    continue;
                }
                if let Err(error) = self.take_up_arrival(&arrival).await {
                    tracing::error!(sandbox = %arrival.sandbox, %error, "a sandbox that came is not taken up yet");
                    not_before.insert(arrival.sandbox, Instant::now() + RETRY);
                }
            }
        }
    }

    async fn take_up_arrival(&self, arrival: &Arrival) -> Result<()> {
        let id = &arrival.sandbox;
        // It is just going: the node that takes it wakes it.
        if self.inner.find(id).is_some_and(|sandbox| sandbox.is_leaving()) {
            return Ok(());
        }
        if self.inner.find(id).is_none() {
            let record = self.inner.store.sandbox(id).await.map_err(store_error)?;
            let Some(record) = record else { return Ok(()) };
            // Of an earlier stay something may be left.
            sandbox::destroy(self.inner.driver(record.spec.isolation)?.as_ref(), id).await?;
            sandbox::remove_logs(&self.inner, id).await?;
            Box::pin(self.take_up_journal(&record)).await?;
            self.inner.reload_acl(std::slice::from_ref(id)).await?;
            self.inner.reload_secrets().await?;
            self.inner.share_links.reload(&self.inner.store, id).await?;
            self.recover_one(record, None).await?;
            self.recover_services_of(Some(id)).await?;
            self.recover_agents_of(Some(id)).await?;
            self.enter_schedules(Some(id)).await?;
            tracing::info!(sandbox = %id, "a sandbox came to this node");
        }
        // That it came is in its journal, and there before anything else of it can be recorded: a node that has it next knows
        // whether something is missing.
        Box::pin(self.send_journal(id)).await?;
        atoll_failpoint::fail_point!("engine.travel.arrived");
        if arrival.wake {
            self.wake_arrival(id);
            return Ok(());
        }
        self.inner.store.arrived(id).await.map_err(store_error)
    }

    /// Wakes a sandbox that ran before it came, in the background.
    fn wake_arrival(&self, id: &SandboxId) {
        let Some(travel) = self.inner.travel.clone() else { return };
        if !travel.waking.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone()) {
            return;
        }
        let (engine, id) = (self.clone(), id.clone());
        self.inner.tracker.spawn(async move {
            let shutdown = engine.inner.shutdown.clone();
            shutdown.run_until_cancelled(engine.wake_until_done(&id)).await;
            travel.waking.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
    }

    async fn wake_until_done(&self, id: &SandboxId) {
        loop {
            // Deleted meanwhile, and its row with it.
            let Some(sandbox) = self.inner.find(id) else { return };
            sandbox.settled().await;
            let passing = match sandbox.ask(Message::Resume).await {
                Ok(_awake) => false,
                // It went to yet another node, which wakes it.
                Err(error) if error.code == Code::NodeUnavailable => return,
                Err(error) => {
                    tracing::warn!(sandbox = %id, %error, "a sandbox that ran before it came is not woken");
                    // Any other error does not pass: a caller that uses the sandbox is told the same.
                    let passing = [
                        Code::ObjectsUnavailable,
                        Code::StoreUnavailable,
                        Code::HostDiskFull,
                        Code::RegistryUnavailable,
                    ];
                    passing.contains(&error.code)
                }
            };
            if !passing {
                match self.inner.store.arrived(id).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(sandbox = %id, %error, "that it came is not written down yet");
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Waits for a sandbox that a request did not find although it is this node's: it is just coming. Says whether it is there now.
    #[boxed]
    pub async fn has_arrived(&self, asked: &Asked) -> bool {
        let Some(travel) = &self.inner.travel else { return false };
        let Some(here) = self.node_id() else { return false };
        for what in asked.missing() {
            let Whereabouts::Sandbox(text) = &what else { continue };
            if !matches!(self.inner.store.whereabouts(&what).await, Ok(Some(node)) if node == here) {
                continue;
            }
            let deadline = Instant::now() + WAIT_MAX;
            while Instant::now() < deadline {
                if let Ok(found) = self.inner.resolve(text) {
                    drop(tokio::time::timeout_at(deadline, found.settled()).await);
                    return true;
                }
                travel.arrivals.notify_one();
                tokio::time::sleep(WAIT_LOOK).await;
            }
        }
        false
    }
}

/// The sandboxes that are being woken because they ran before they came.
pub(super) type Waking = std::sync::Mutex<BTreeSet<SandboxId>>;
