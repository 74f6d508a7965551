//! Agents that live in sandboxes, and sessions with them.

use std::collections::BTreeMap;

use atoll_core::agent::{Adapter, AgentSpec, EventKind, SessionState};
use atoll_core::build::CommandText;
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Declares an agent. Give either `argv` or `shell`, and either `sandbox` or `template`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateAgent {
    /// Its name, unique among agents: 1 to 63 lower-case letters, digits and hyphens.
    #[schema(required)]
    pub name: String,
    /// The sandbox it lives in, by id or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Makes a sandbox of this template for it, with its name, which is deleted with it. Needs the scope `manage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Program and arguments, run once for each session when there is a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A line for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// What it speaks on its standard input and output; `jsonl` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Variables on top of the sandbox's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`; the sandbox's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl CreateAgent {
    /// The spec that this request means.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] unless exactly one of `argv` and `shell` is given.
    pub fn spec(&self) -> Result<AgentSpec> {
        let command = match (&self.argv, &self.shell) {
            (Some(argv), None) => CommandText::Argv(argv.clone()),
            (None, Some(line)) => CommandText::Shell(line.clone()),
            _ => return Err(Error::invalid("argv", "give exactly one of 'argv' and 'shell'")),
        };
        Ok(AgentSpec {
            command,
            adapter: self.adapter.unwrap_or_default(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            own_sandbox: self.template.is_some(),
        })
    }
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The sandbox it lives in.
    pub sandbox: String,
    /// That was made for it, and is deleted with it.
    pub own_sandbox: bool,
    /// What runs: a line for the shell, or program and arguments.
    pub command: CommandText,
    /// What it speaks.
    pub adapter: Adapter,
    /// When it was asked for.
    pub created_at_ms: u64,
}

/// Agents, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentList {
    /// All that the key may know of.
    pub items: Vec<Agent>,
}

/// Begins a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateAgentSession {
    /// A name of yours for it: at most 128 printable ASCII characters. If the agent has a session with it, that is the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentSession {
    /// Its id.
    pub id: String,
    /// The name that it was begun with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Where it is.
    pub state: SessionState,
    /// Number of the message that is worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// Number of its last event.
    pub last_event: u64,
    /// When it was asked for.
    pub created_at_ms: u64,
}

/// The sessions of an agent, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentSessionList {
    /// All of them.
    pub items: Vec<AgentSession>,
}

/// Sends a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendAgentMessage {
    /// What to say: at most 256 KiB.
    pub text: String,
    /// Sent again with the same key, the message is the one that was taken: at most 128 printable ASCII characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Something that was said or happened in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentEvent {
    /// Counts from 1 in its session.
    pub number: u64,
    /// What it is about.
    pub kind: EventKind,
    /// What it says: an object whose fields depend on the kind.
    #[schema(value_type = Object)]
    pub data: Value,
    /// When that was.
    pub at_ms: u64,
}

/// Events of a session after a number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentEventPage {
    /// The events, in order.
    pub items: Vec<AgentEvent>,
    /// Events before the first of these are not kept any more.
    #[serde(default)]
    pub gap: bool,
    /// Ask after this number next.
    pub next_after: u64,
    /// Where the session is.
    pub state: SessionState,
}

/// Answers an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerApproval {
    /// The id of one of its options.
    pub option: String,
}
