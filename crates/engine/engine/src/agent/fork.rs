//! Forks of agents: the same agent in sandboxes that go on from where its own is.
//!
//! Files go along, and processes and memory if they are asked for, as in any fork of a sandbox; sessions do not. The
//! sandboxes carry a label that says what they are of, and go if the server dies before the agents are there.

use std::collections::BTreeMap;

use atoll_core::agent::{AgentSpec, ModelUsage};
use atoll_core::id::AgentId;
use atoll_core::limits::FORK_MAX_COUNT;
use atoll_core::{Code, Error, Result, spec};
use atoll_store::AgentRecord;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::Engine;
use crate::snapshot::{ForkOrder, life};

use super::housed::UNINHABITED_MS;

/// The label of the sandbox of a fork: the name of the agent that it is of.
pub const FORK_LABEL: &str = "atoll-agent-fork-of";

/// Forks of an agent that a caller wants.
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
    #[boxed]
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
            ttl_ms: Some(UNINHABITED_MS),
            ..ForkOrder::default()
        };
        let ttl_ms = life(&self.sandbox(&sandbox)?);
        let (engine, caller) = (self.clone(), caller.clone());
        let making = async move {
            let children = engine.fork_sandbox(&sandbox, &fork, &caller).await?;
            let mut forks = Vec::new();
            for (name, child) in names.into_iter().zip(children) {
                let spec = AgentSpec { spent: ModelUsage::default(), ..spec.clone() };
                forks.push(match child {
                    Ok(child) => engine.inhabit(name, child.id, spec, ttl_ms).await,
                    Err(error) => Err(error),
                });
            }
            Ok(forks)
        };
        let made = self.inner.tracker.spawn(making).await;
        made.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "the fork broke off")))
    }
}
