//! Agents that live in sandboxes, and sessions with them.

use std::collections::BTreeMap;

use atoll_core::agent::{Adapter, AgentSpec, EventKind, ModelBudget, ModelUsage, Serves, SessionState};
use atoll_core::build::CommandText;
use atoll_core::policy::EgressPolicy;
use atoll_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Declares an agent. Give one of `argv`, `shell` and `service`, and either `sandbox` or `template`.
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
    /// What that may reach; the template's, or the server's default, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// Delete that, and the agent with it, this long after it was made; the template's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Program and arguments, run once for each session when there is a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A line for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// The service of the sandbox that is the agent's server, for the adapters `opencode` and `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Where that listens on the sandbox's loopback; the port on which the service is ready when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What it speaks: on its standard input and output, or over HTTP; `jsonl` when absent.
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
    /// The profile of its sandbox that its processes begin in; the sandbox's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The agent layer that its program is in, which is mounted at `/opt/agents/LAYER`. Needs the scope `manage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// The version of that; when absent the one that the sandbox has, or else the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What all of its sessions together may ask of models, also those that were deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<ModelBudget>,
    /// What each of its sessions may ask of models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_budget: Option<ModelBudget>,
}

impl CreateAgent {
    /// The spec that this request means.
    ///
    /// # Errors
    /// [`atoll_core::Code::InvalidArgument`] unless exactly one of `argv`, `shell` and `service` is given.
    pub fn spec(&self) -> Result<AgentSpec> {
        let command = match (&self.argv, &self.shell, &self.service) {
            (Some(argv), None, None) => Some(CommandText::Argv(argv.clone())),
            (None, Some(line), None) => Some(CommandText::Shell(line.clone())),
            (None, None, Some(_)) => None,
            _ => return Err(Error::invalid("argv", "give exactly one of 'argv', 'shell' and 'service'")),
        };
        let serves = match (&self.service, self.port) {
            (Some(_), Some(0)) => return Err(Error::invalid("port", "must be 1 to 65535")),
            (Some(service), port) => {
                Some(Serves { service: service.clone(), port: port.unwrap_or_default() })
            }
            (None, Some(_)) => return Err(Error::invalid("port", "is that of a 'service'")),
            (None, None) => None,
        };
        Ok(AgentSpec {
            command,
            serves,
            adapter: self.adapter.unwrap_or_default(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            profile: self.profile.clone(),
            layer: self.layer.clone(),
            own_sandbox: self.template.is_some(),
            budget: self.budget,
            session_budget: self.session_budget,
            spent: ModelUsage::default(),
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
    /// The name of the agent that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork_of: Option<String>,
    /// What runs: a line for the shell, or program and arguments. Nothing of one that is a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandText>,
    /// The service of its sandbox that is its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Where that listens on the sandbox's loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What it speaks.
    pub adapter: Adapter,
    /// The profile of its sandbox that its processes begin in, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The agent layer that its program is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// The version of that which its sandbox has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it asked of models, with all of its sessions.
    #[serde(default)]
    pub usage: ModelUsage,
    /// What all of its sessions together may ask of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ModelBudget>,
    /// What each of its sessions may ask of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_budget: Option<ModelBudget>,
    /// When it was asked for.
    pub created_at_ms: u64,
}

/// Puts another version of an agent's program in its sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateAgent {
    /// Which; the latest when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Makes forks of an agent: the same agent, each in a sandbox that goes on from where its own is and is deleted with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkAgent {
    /// How many: 1 to 256.
    pub count: u32,
    /// The point to go on from: the number of a checkpoint of its sandbox, or a snapshot. Now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The sandbox's processes go on in each fork, with their memory, too: at the isolation level `microvm`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// What the names of forks and their sandboxes begin with: `name-1`, `name-2`, …; the agent's and `-fork` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// One fork, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedAgent {
    /// The fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::ErrorBody>,
}

/// What became of each fork, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedAgents {
    /// All of them.
    pub results: Vec<ForkedAgent>,
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
    /// What it asked of models.
    #[serde(default)]
    pub usage: ModelUsage,
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

/// Message of the server on the WebSocket of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionServerMessage {
    /// First: what you are attached to, and where the events that follow begin.
    Attached {
        /// The session.
        session: AgentSession,
        /// Number of the event before the first that follows.
        after: u64,
    },
    /// The next event.
    Event {
        /// What was said or happened.
        event: AgentEvent,
    },
    /// Events before the next are not kept any more.
    Gap {},
    /// What a message of the client asked for was done.
    Taken {
        /// The `id` of that message.
        id: String,
        /// The number of what was sent; absent for `answer` and `cancel`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// What a message of the client asked for was refused, or why the server closes the socket.
    Error {
        /// The `id` of that message, where it had one that could be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Why.
        error: crate::ErrorBody,
        /// The server closes the socket.
        last: bool,
    },
}

/// Message of the client on the WebSocket of a session. One with an `id` is answered by `taken` or `error` with the same; one
/// without only by `error`. An `id` has at most 128 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SessionClientMessage {
    /// Says something to the agent.
    Message {
        /// Names this in the server's answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// What to say: at most 256 KiB.
        text: String,
        /// Sent again with the same key, also on another connection, the message is the one that was taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// Answers an approval.
    Answer {
        /// Names this in the server's answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The id of the approval.
        approval: String,
        /// The id of one of its options.
        option: String,
    },
    /// Asks the agent to end the work on its message.
    Cancel {
        /// Names this in the server's answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
}

impl SessionClientMessage {
    /// What names it in the server's answer.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Message { id, .. } | Self::Answer { id, .. } | Self::Cancel { id } => id.as_deref(),
        }
    }
}
