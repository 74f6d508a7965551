//! Forks of agents: the same agent in sandboxes that go on from where its own is.
//!
//! Files go along, and processes and memory if they are asked for, as in any fork of a sandbox; sessions do not. The
//! sandboxes carry a label that says what they are of, so that they are found whoever dies in between.

use std::collections::BTreeMap;

use atoll_core::agent::{AgentSpec, ModelUsage};
use atoll_core::id::{AgentId, SandboxId};
use atoll_core::limits::FORK_MAX_COUNT;
use atoll_core::{Code, Error, Result, spec};
use atoll_store::AgentRecord;

use crate::authorize::Caller;
use crate::engine::Engine;
use crate::snapshot::ForkOrder;

use super::AgentDraft;

/// The label of the sandbox of a fork: the name of the agent that it is of.
pub const FORK_LABEL: &str = "atoll-agent-fork-of";

/// Forks of an agent that somebody wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentForkOrder {
    /// How many.
    pub count: u32,
    /// The point of its sandbox to go on from, as in [`ForkOrder::at`].
    pub at: Option<String>,
    /// What their names begin with, and those of their sandboxes: `name-1`, `name-2`, …. When absent, the agent's and `-fork`.
    pub name: Option<String>,
    /// With the sandbox's processes and memory.
    pub memory: bool,
}

impl Engine {
    /// Makes forks of an agent, each in a sandbox of its own, which is deleted with it. Each or its error, in order.
    ///
    /// # Errors
    /// [`Code::AgentNotFound`], [`Code::InvalidArgument`], and as [`Self::fork_sandbox`].
    pub async fn fork_agent(
        &self,
        agent: &AgentId,
        order: &AgentForkOrder,
        caller: &Caller,
    ) -> Result<Vec<Result<AgentRecord>>> {
        let AgentRecord { name, sandbox, spec, .. } = self.agent(agent)?;
        if !(1..=FORK_MAX_COUNT).contains(&order.count) {
            let why = format_args!("{} is not between 1 and {FORK_MAX_COUNT}", order.count);
            return Err(Error::invalid("count", why));
        }
        let prefix = order.name.clone().unwrap_or_else(|| format!("{name}-fork"));
        let names: Vec<String> = (1..=order.count).map(|number| format!("{prefix}-{number}")).collect();
        names.iter().try_for_each(|name| spec::name("name", name))?;
        let fork = ForkOrder {
            count: order.count,
            at: order.at.clone(),
            // Of one the sandbox's name is the given one; of several they are numbered.
            name: if order.count == 1 { names.first().cloned() } else { Some(prefix) },
            memory: order.memory,
            labels: BTreeMap::from([(FORK_LABEL.to_owned(), name)]),
            ..ForkOrder::default()
        };
        let children = self.fork_sandbox(&sandbox, &fork, caller).await?;
        let mut forks = Vec::new();
        for (name, child) in names.into_iter().zip(children) {
            forks.push(match child {
                Ok(child) => self.agent_in_fork(name, child.id, &spec).await,
                Err(error) => Err(error),
            });
        }
        Ok(forks)
    }

    /// The agent of a child; when it cannot be made the child goes.
    async fn agent_in_fork(&self, name: String, sandbox: SandboxId, spec: &AgentSpec) -> Result<AgentRecord> {
        let spec = AgentSpec { own_sandbox: true, spent: ModelUsage::default(), ..spec.clone() };
        let made = self.create_agent(AgentDraft { name, sandbox: sandbox.clone(), spec }).await;
        if made.is_err()
            && let Err(left) = self.delete_sandbox(&sandbox).await
            && left.code != Code::SandboxNotFound
        {
            tracing::error!(%sandbox, error = %left, "the sandbox of a fork that was not made stays");
        }
        made
    }
}
