//! The driver: one task that owns a session.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::agent::{EventKind, Input, NewEvent, SessionStatus, TurnEnd};
use atoll_core::limits::{
    AGENT_EVENTS_KEPT_MAX_BYTES, AGENT_EVENTS_KEPT_MAX_COUNT, AGENT_MESSAGES_WAITING_MAX_COUNT,
};
use atoll_core::{Code, Error, Result};
use atoll_store::{EventRecord, StoreError};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::errors::{chain, store_error};
use crate::sandbox::{InUse, SandboxShared};

use super::{AgentShared, SessionShared, Wish};

/// Pause before something is tried again that failed for no fault of the agent.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// The time that an agent has to end its work when that is cancelled; then its process is killed.
pub(super) const CANCEL_WAIT: Duration = Duration::from_secs(10);
/// Events that are stored at once.
const BATCH_MAX_COUNT: usize = 500;
/// Old events are pruned each time that so many have come.
const PRUNE_EVERY_COUNT: u64 = 256;

/// Starts the task that owns a session.
pub(super) fn spawn(
    engine: &Engine,
    agent: &Arc<AgentShared>,
    session: &Arc<SessionShared>,
    sandbox: &Arc<SandboxShared>,
    inbox: mpsc::Receiver<Wish>,
) {
    let mut driver = Driver {
        engine: engine.clone(),
        agent: Arc::clone(agent),
        session: Arc::clone(session),
        sandbox: Arc::clone(sandbox),
        status: session.record.borrow().status.clone(),
        inbox,
        using: None,
        cancel_at: None,
        unpruned: 0,
    };
    let (shutdown, dead) = (engine.inner.shutdown.clone(), sandbox.dead.clone());
    engine.inner.tracker.spawn(async move {
        // To be dropped in the middle is what a `kill -9` does, too: what is kept is enough to go on.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = dead.cancelled() => driver.sandbox_gone().await,
            () = driver.drive() => {}
        }
    });
}

pub(super) struct Driver {
    pub(super) engine: Engine,
    pub(super) agent: Arc<AgentShared>,
    pub(super) session: Arc<SessionShared>,
    pub(super) sandbox: Arc<SandboxShared>,
    /// The driver's own copy; what it stores.
    pub(super) status: SessionStatus,
    pub(super) inbox: mpsc::Receiver<Wish>,
    /// Keeps the sandbox awake while a message is worked on.
    pub(super) using: Option<InUse>,
    /// When a process is killed that does not end its work.
    pub(super) cancel_at: Option<Instant>,
    /// Events since the last pruning.
    unpruned: u64,
}

impl Driver {
    async fn drive(&mut self) {
        self.sandbox.settled().await;
        self.look_back().await;
        loop {
            let flow = match &self.agent.record.spec.serves {
                _ if !self.status.live => self.rest().await,
                None => self.attend().await,
                Some(serves) => self.attend_served(&serves.clone()).await,
            };
            if flow.is_break() {
                return;
            }
        }
    }

    /// Messages that came and were not taken up before this task began.
    async fn look_back(&self) {
        let limit = u32::try_from(AGENT_MESSAGES_WAITING_MAX_COUNT).unwrap_or(u32::MAX);
        let last = self.messages(limit).await.last().map_or(0, |message| message.number);
        self.session.message.send_modify(|known| *known = (*known).max(last));
    }

    /// There is no process: until there is a message for one.
    async fn rest(&mut self) -> ControlFlow<()> {
        if let Some(message) = self.next_message().await {
            self.begin_run(&message).await;
            return ControlFlow::Continue(());
        }
        match self.inbox.recv().await {
            Some(wish) => self.obey(wish, None).await,
            None => ControlFlow::Break(()),
        }
    }

    async fn messages(&self, limit: u32) -> Vec<EventRecord> {
        let (store, id) = (&self.engine.inner.store, self.session.id());
        loop {
            match store.agent_messages(&id, self.status.delivered, limit).await {
                Ok(messages) => return messages,
                Err(error) => {
                    tracing::error!(session = %id, error = chain(&error), "messages cannot be read, trying again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// The next message that was not taken up.
    pub(super) async fn next_message(&self) -> Option<EventRecord> {
        if *self.session.message.borrow() <= self.status.delivered {
            return None;
        }
        self.messages(1).await.into_iter().next()
    }

    /// Does what a wish asks for.
    pub(super) async fn obey(&mut self, wish: Wish, exec: Option<&str>) -> ControlFlow<()> {
        match wish {
            Wish::Look => {}
            Wish::Renew => {
                if self.status.live {
                    self.status.renew = true;
                    self.commit(Vec::new()).await;
                }
            }
            Wish::Counted => {
                self.heed();
                self.commit(Vec::new()).await;
            }
            Wish::Cancel(reply) => {
                if self.status.turn.is_some() && !self.status.cancelling {
                    self.status.cancelling = true;
                    self.cancel_at = Some(Instant::now() + CANCEL_WAIT);
                    let output = self.status.adapter.step(Input::Cancel);
                    let events = self.status.take(output);
                    self.commit(events).await;
                }
                drop(reply.send(Ok(())));
            }
            Wish::Answer(id, option, reply) => {
                let answered = self.answer(&id, &option).await;
                drop(reply.send(answered));
            }
            Wish::Remove(reply) => {
                if let Some(exec) = exec {
                    self.kill(exec).await;
                }
                let id = self.session.id();
                self.agent.inherit(&self.engine, &self.session).await;
                let removed = self.engine.inner.store.delete_agent_session(&id).await.map_err(store_error);
                let gone = removed.is_ok();
                if gone {
                    self.agent.leave(&id);
                }
                drop(reply.send(removed.map(drop)));
                if gone {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    async fn answer(&mut self, id: &str, option: &str) -> Result<()> {
        let waits = self.status.adapter.approvals().iter().find(|approval| approval.id == id);
        let Some(waits) = waits else {
            return Err(Error::new(Code::InvalidState, "no approval with this id waits for an answer")
                .hint("events of the kind 'approval' have the ids; each takes one answer"));
        };
        if !waits.options.iter().any(|known| known == option) {
            return Err(Error::invalid(
                "option",
                format_args!("must be one of {}", waits.options.join(", ")),
            ));
        }
        let mut events = vec![NewEvent::new(EventKind::Answer, json!({ "id": id, "option": option }))];
        let output = self.status.adapter.step(Input::Answer(id, option));
        events.extend(self.status.take(output));
        self.commit(events).await;
        Ok(())
    }

    /// Ends a process; the code that reads its output sees its end.
    pub(super) async fn kill(&self, exec: &str) {
        if let Err(error) = self.engine.kill_exec(&self.sandbox.id, exec).await {
            tracing::warn!(sandbox = %self.sandbox.id, exec, %error, "an agent's process could not be killed");
        }
    }

    /// Takes over what the gateway has counted of this session, and whether it refused something.
    pub(super) fn heed(&mut self) {
        let (usage, refused) = {
            let mut spending = self.session.spending();
            (spending.usage, spending.refused.take())
        };
        self.status.usage = usage;
        if let Some(why) = refused.filter(|_| self.status.turn.is_some()) {
            self.status.over_budget = Some(why);
            // It may try for ever.
            self.cancel_at.get_or_insert_with(|| Instant::now() + CANCEL_WAIT);
        }
    }

    /// Ends a message that cannot be given to the agent.
    pub(super) async fn refuse(&mut self, message: u64, error: &Error) {
        self.status.begin_turn(message);
        let end = TurnEnd::Failed(error.code.as_str().to_owned(), error.message.clone());
        let events = self.status.end_turn(end).into_iter().collect();
        self.commit(events).await;
    }

    /// The sandbox is not alive, and the process with it.
    async fn sandbox_gone(&mut self) {
        self.status.end_run();
        let why = self.sandbox.record().reason.unwrap_or_else(|| "it was deleted".to_owned());
        let end = TurnEnd::Failed("sandbox_gone".to_owned(), format!("the sandbox is not alive: {why}"));
        let mut events: Vec<NewEvent> = self.status.end_turn(end).into_iter().collect();
        events.extend(self.status.settle());
        // What was deleted has no events any more.
        if let Err(error) = self.store(&events).await
            && !matches!(error, StoreError::NotFound)
        {
            tracing::error!(session = %self.session.id(), error = chain(&error), "the end of an agent was not recorded");
        }
    }

    // === what is kept and told ===

    /// Stores what has happened with where the session is, then tells it.
    pub(super) async fn commit(&mut self, mut events: Vec<NewEvent>) {
        events.extend(self.status.settle());
        let mut rest = events.as_slice();
        loop {
            let (now, later) = rest.split_at(rest.len().min(BATCH_MAX_COUNT));
            while let Err(error) = self.store(now).await {
                if matches!(error, StoreError::NotFound) {
                    // Removed with its agent, or with the sandbox, which is not kept awake for it.
                    (self.using, self.cancel_at) = (None, None);
                    return;
                }
                let id = self.session.id();
                tracing::error!(session = %id, error = chain(&error), "a session cannot be recorded, trying again");
                tokio::time::sleep(RETRY).await;
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        if self.status.turn.is_none() {
            (self.using, self.cancel_at) = (None, None);
        }
        self.unpruned += events.len() as u64;
        if self.unpruned >= PRUNE_EVERY_COUNT {
            self.unpruned = 0;
            self.prune().await;
        }
    }

    async fn store(&self, events: &[NewEvent]) -> Result<(), StoreError> {
        let id = self.session.id();
        let store = &self.engine.inner.store;
        let last = store.append_agent_events(&id, events, &self.status, self.engine.now_ms()).await?;
        self.session.record.send_modify(|record| {
            record.events = record.events.max(last);
            record.status.clone_from(&self.status);
        });
        Ok(())
    }

    async fn prune(&self) {
        let (count, bytes) = (AGENT_EVENTS_KEPT_MAX_COUNT, AGENT_EVENTS_KEPT_MAX_BYTES);
        let id = self.session.id();
        let store = &self.engine.inner.store;
        if let Err(error) = store.prune_agent_events(&id, count, bytes, self.status.delivered).await {
            tracing::warn!(session = %id, error = chain(&error), "old events of a session could not be pruned");
        }
    }
}
