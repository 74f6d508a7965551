//! What an agent is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ModelBudget, ModelUsage};
use crate::build::CommandText;
use crate::error::Result;
use crate::spec::{self, ExecDraft};

/// The protocol that an agent's process speaks on its standard input and output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Adapter {
    /// One JSON object for each line.
    #[default]
    Jsonl,
    /// The Agent Client Protocol: JSON-RPC, one message for each line.
    Acp,
}

impl std::str::FromStr for Adapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "jsonl" => Ok(Self::Jsonl),
            "acp" => Ok(Self::Acp),
            _ => Err("one of jsonl, acp".to_owned()),
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
        }
    }
}

/// What an agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// What runs, once for each session.
    pub command: CommandText,
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
        spec::command("argv", &self.command.to_command())?;
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

    /// The exec of one process, which is told whose it is.
    #[must_use]
    pub fn to_exec(&self, agent: &str, session: &str, idempotency_key: String) -> ExecDraft {
        let mut env = self.env.clone();
        env.insert("ATOLL_AGENT".to_owned(), agent.to_owned());
        env.insert("ATOLL_AGENT_SESSION".to_owned(), session.to_owned());
        ExecDraft {
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            profile: self.profile.clone(),
            stdin: true,
            idempotency_key: Some(idempotency_key),
            ..ExecDraft::new(self.command.to_command())
        }
    }
}
