//! What sessions spend on models, as the gateway counts it, and whether they may spend more.

use std::sync::{Arc, MutexGuard, PoisonError};

use atoll_core::agent::ModelUsage;
use atoll_core::id::{SandboxId, SessionId};
use atoll_egress::intercept::{ModelTokens, Tally};

use super::{AgentShared, SessionShared, Wish};
use crate::engine::{Engine, Inner};
use crate::errors::chain;

impl AgentShared {
    fn spent(&self) -> MutexGuard<'_, ModelUsage> {
        // Numbers: a panic leaves them usable as they are.
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it asked of models, with all of its sessions.
    pub(super) fn usage(&self) -> ModelUsage {
        let beside = *self.spent();
        self.with_sessions(beside)
    }

    fn with_sessions(&self, beside: ModelUsage) -> ModelUsage {
        self.all().iter().fold(beside, |all, session| all.plus(session.spending().usage))
    }

    /// Keeps what a session has spent, which is going to be deleted: a budget is not won back that way.
    pub(super) async fn inherit(&self, engine: &Engine, session: &SessionShared) {
        let usage = std::mem::take(&mut session.spending().usage);
        if !usage.is_nothing() {
            self.add(usage);
            self.keep(&engine.inner).await;
        }
    }

    fn add(&self, usage: ModelUsage) {
        let mut spent = self.spent();
        *spent = spent.plus(usage);
    }

    /// Stores what was spent by no session that is there.
    async fn keep(&self, inner: &Inner) {
        let mut record = self.record.clone();
        record.spec.spent = *self.spent();
        if let Err(error) = inner.store.update_agent(&record).await {
            tracing::error!(
                agent = record.name,
                error = chain(&error),
                "what an agent spent is not recorded"
            );
        }
    }

    /// Counts a request, if it may be sent.
    fn count(&self, session: Option<&SessionShared>) -> Result<(), String> {
        let one = ModelUsage { requests: 1, ..ModelUsage::default() };
        // Held until it is counted: of two that ask for the last one, one gets it.
        let mut spent = self.spent();
        let spec = &self.record.spec;
        if let Some(why) = spec.budget.and_then(|budget| budget.used_up(self.with_sessions(*spent))) {
            return Err(format!("the budget of the agent '{}' is used up: {why}", self.record.name));
        }
        let Some(session) = session else {
            *spent = spent.plus(one);
            return Ok(());
        };
        let mut spending = session.spending();
        if let Some(why) = spec.session_budget.and_then(|budget| budget.used_up(spending.usage)) {
            return Err(format!(
                "the budget of this session with the agent '{}' is used up: {why}",
                self.record.name
            ));
        }
        spending.usage = spending.usage.plus(one);
        Ok(())
    }
}

impl SessionShared {
    /// Tells the driver that something was counted. When its inbox is full it looks anyway.
    fn counted(&self) {
        drop(self.wishes.try_send(Wish::Counted));
    }
}

impl Inner {
    /// Counts a request of a sandbox to a model, for the session that its credential is marked with, or else for the one that
    /// works in the sandbox, if that is the only one.
    ///
    /// # Errors
    /// When a budget is used up: in words for the client that sent the request.
    pub(crate) fn ask_model(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        marked: Option<&SessionId>,
    ) -> Result<Option<Tally>, String> {
        let Some((agent, session)) = self.whose(sandbox, marked) else { return Ok(None) };
        if let Err(why) = agent.count(session.as_deref()) {
            if let Some(session) = session {
                session.spending().refused = Some(why.clone());
                session.counted();
            }
            return Err(why);
        }
        let inner = Arc::downgrade(self);
        Ok(Some(Box::new(move |told: ModelTokens| {
            let usage = ModelUsage {
                requests: 0,
                input_tokens: told.input,
                output_tokens: told.output,
                untold: u64::from(told.guessed),
            };
            if let Some(session) = session {
                let mut spending = session.spending();
                spending.usage = spending.usage.plus(usage);
                drop(spending);
                session.counted();
                return;
            }
            agent.add(usage);
            if let Some(inner) = inner.upgrade() {
                inner.tracker.clone().spawn(async move { agent.keep(&inner).await });
            }
        })))
    }

    /// On whose account a request goes.
    fn whose(
        &self,
        sandbox: &SandboxId,
        marked: Option<&SessionId>,
    ) -> Option<(Arc<AgentShared>, Option<Arc<SessionShared>>)> {
        let mut agents = self.agents.all();
        agents.retain(|agent| agent.sandbox() == sandbox);
        let mut all = Vec::new();
        for agent in &agents {
            all.extend(agent.all().into_iter().map(|session| (agent, session)));
        }
        let known = marked.and_then(|id| all.iter().find(|(_, session)| session.id() == *id));
        let mut working = all.iter().filter(|(_, session)| session.record.borrow().status.turn.is_some());
        let only = match (working.next(), working.next()) {
            (Some(one), None) => Some(one),
            _ => None,
        };
        match known.or(only) {
            Some((agent, session)) => Some((Arc::clone(agent), Some(Arc::clone(session)))),
            None => agents.first().map(|agent| (Arc::clone(agent), None)),
        }
    }
}
