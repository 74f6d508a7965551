//! What an agent is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ModelBudget, ModelUsage};
use crate::build::CommandText;
use crate::error::{Error, Result};
use crate::spec::{self, ExecDraft, IdempotencyKey};

/// The protocol that an agent speaks: its process on its standard input and output, or its server over HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Adapter {
    /// One JSON object for each line.
    #[default]
    Jsonl,
    /// The Agent Client Protocol: JSON-RPC, one message for each line.
    Acp,
    /// The HTTP server of OpenCode, which is a service of the sandbox.
    Opencode,
    /// JSON lines over HTTP, from a service of the sandbox.
    Http,
}

impl std::str::FromStr for Adapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "jsonl" => Ok(Self::Jsonl),
            "acp" => Ok(Self::Acp),
            "opencode" => Ok(Self::Opencode),
            "http" => Ok(Self::Http),
            _ => Err("one of jsonl, acp, opencode, http".to_owned()),
        }
    }
}

impl Adapter {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Acp => "acp",
            Self::Opencode => "opencode",
            Self::Http => "http",
        }
    }

    /// Whether it is spoken to a server, rather than to a process for each session.
    #[must_use]
    pub const fn is_served(self) -> bool {
        matches!(self, Self::Opencode | Self::Http)
    }
}

/// A server that an agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serves {
    /// The service of the sandbox that runs it.
    pub service: String,
    /// Where it listens on the sandbox's loopback.
    pub port: u16,
}

/// What an agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// What runs, once for each session; nothing of an agent that is a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandText>,
    /// The server that it is, when it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Serves>,
    /// What it speaks.
    pub adapter: Adapter,
    /// Variables on top of the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or id, optionally `:group`; the sandbox's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The profile of its sandbox that its processes begin in; the sandbox's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The agent layer of its sandbox that its program is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Its sandbox was made for it, and goes with it.
    #[serde(default)]
    pub own_sandbox: bool,
    /// What all of its sessions together may ask of models, also those that were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ModelBudget>,
    /// What each of its sessions may ask of models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_budget: Option<ModelBudget>,
    /// What was asked of models by sessions that were deleted, and by no session that is known.
    #[serde(default, skip_serializing_if = "ModelUsage::is_nothing")]
    pub spent: ModelUsage,
}

impl AgentSpec {
    /// Checks form and range.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] or [`crate::Code::PathInvalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        match (&self.command, &self.serves) {
            (Some(command), None) if !self.adapter.is_served() => {
                spec::command("argv", &command.to_command())?;
            }
            (None, Some(serves)) if self.adapter.is_served() => {
                spec::name("service", &serves.service)?;
                if !self.env.is_empty() || self.user.is_some() {
                    let why = "an agent that is a service has the variables and the user of the service";
                    return Err(Error::invalid("service", why).hint("declare them with the service"));
                }
            }
            _ => {
                let why = format_args!(
                    "the adapter '{}' needs {}",
                    self.adapter.as_str(),
                    if self.adapter.is_served() {
                        "'service', and no command"
                    } else {
                        "a command, and no 'service'"
                    }
                );
                return Err(Error::invalid("adapter", why));
            }
        }
        spec::env("env", &self.env)?;
        if let Some(cwd) = &self.cwd {
            spec::path("cwd", cwd)?;
        }
        if let Some(user) = &self.user {
            spec::user("user", user)?;
        }
        if let Some(profile) = &self.profile {
            spec::name("profile", profile)?;
        }
        if let Some(layer) = &self.layer {
            spec::name("layer", layer)?;
        }
        for (field, budget) in [("budget", &self.budget), ("session_budget", &self.session_budget)] {
            if let Some(budget) = budget {
                budget.validate(field)?;
            }
        }
        Ok(())
    }

    /// The exec of one process, which is told whose it is. None for a server.
    #[must_use]
    pub fn to_exec(&self, agent: &str, session: &str, idempotency_key: IdempotencyKey) -> Option<ExecDraft> {
        let command = self.command.as_ref()?.to_command();
        let mut env = self.env.clone();
        env.insert("ATOLL_AGENT".to_owned(), agent.to_owned());
        env.insert("ATOLL_AGENT_SESSION".to_owned(), session.to_owned());
        Some(ExecDraft {
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            profile: self.profile.clone(),
            stdin: true,
            idempotency_key: Some(idempotency_key),
            ..ExecDraft::new(command)
        })
    }
}
