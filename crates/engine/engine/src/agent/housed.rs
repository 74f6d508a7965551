//! An agent and a sandbox of its own, made together: none is left without the other.
//!
//! A task makes both, and goes on when the caller stops waiting. Until its agent is recorded the sandbox has an end: a
//! sandbox whose agent never came, because the server was killed in between, is deleted then.

use atoll_core::agent::AgentSpec;
use atoll_core::id::SandboxId;
use atoll_core::spec::{self, SandboxDraft, SandboxUpdate};
use atoll_core::{Code, Error, Result};
use atoll_store::AgentRecord;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;

use super::{AgentDraft, name_taken};

/// How long a sandbox lives whose agent is not there yet, milliseconds: longer than what it starts may take to be ready.
pub(super) const UNINHABITED_MS: u64 = 15 * 60_000;

impl Engine {
    /// Makes a sandbox, and the agent that lives in it and is deleted with it.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`] and [`Self::create_agent`]. Then there is neither.
    #[boxed]
    pub async fn create_agent_with_sandbox(
        &self,
        name: String,
        spec: AgentSpec,
        sandbox: SandboxDraft,
        caller: &Caller,
    ) -> Result<AgentRecord> {
        spec::name("name", &name)?;
        spec.validate()?;
        self.forget_gone_agents();
        if self.inner.agents.get(&caller.kept(&name)).is_some() {
            return Err(name_taken(&name));
        }
        let template = match &sandbox.template {
            Some(template) => self.find_template(template).await?.spec.ttl_ms,
            None => None,
        };
        let of_project = self.settings_of(caller.project())?.and_then(|project| project.defaults.ttl_ms);
        let ttl_ms = sandbox.ttl_ms.or(template).or(of_project);
        let (engine, caller) = (self.clone(), caller.clone());
        let making = async move {
            let draft = SandboxDraft { ttl_ms: Some(UNINHABITED_MS), ..sandbox };
            let sandbox = engine.create_sandbox(draft, &caller).await?.id;
            engine.inhabit(name, sandbox, spec, ttl_ms).await
        };
        let made = self.inner.tracker.spawn(making).await;
        made.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "making an agent broke off")))
    }

    /// Declares the agent of a sandbox that was made for it, and from then on lives for `ttl_ms`, or without an end. When that
    /// cannot be done the sandbox goes.
    pub(super) async fn inhabit(
        &self,
        name: String,
        sandbox: SandboxId,
        spec: AgentSpec,
        ttl_ms: Option<u64>,
    ) -> Result<AgentRecord> {
        atoll_failpoint::fail_point!("engine.agent.housed");
        let made = async {
            let spec = AgentSpec { own_sandbox: true, ..spec };
            let agent = self.create_agent(AgentDraft { name, sandbox: sandbox.clone(), spec }).await?;
            atoll_failpoint::fail_point!("engine.agent.recorded");
            let stays = SandboxUpdate { ttl_ms: Some(ttl_ms), ..SandboxUpdate::default() };
            self.update_sandbox(&sandbox, stays).await?;
            Ok(agent)
        };
        let made = made.await;
        if made.is_err()
            && let Err(left) = self.delete_sandbox(&sandbox).await
            && left.code != Code::SandboxNotFound
        {
            tracing::error!(%sandbox, error = %left, "the sandbox of an agent that was not made stays until its end");
        }
        made
    }
}
