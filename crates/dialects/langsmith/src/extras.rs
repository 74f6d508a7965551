//! Values that a sandbox's answer must say back and the engine has no field for. They are kept as JSON in one
//! annotation of the sandbox, so that they live and die with it.

use std::collections::BTreeMap;

use atoll_core::policy::Internet;
use atoll_dialect_kit::annotation;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};

/// Key of the annotation.
pub(crate) const KEY: &str = "langsmith";
const _: () = assert!(!atoll_core::spec::is_own_annotation(KEY), "it is shown to clients");

/// User, directory and variables of commands, as the clients write them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) work_dir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) env_vars: Option<BTreeMap<String, String>>,
}

impl RunConfig {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How `proxy_config` changed the policy's internet setting, so that the change can be taken back with the
/// configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) before: Internet,
    pub(crate) after: Internet,
}

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    #[serde(skip_serializing_if = "RunConfig::is_empty")]
    pub(crate) run_config: RunConfig,
    /// Without the values of secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_config: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opened: Option<Opened>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) access_delegation: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag_value_ids: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) updated_ms: Option<u64>,
    /// The creation that made the sandbox: a random number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) creation: Option<u64>,
}

impl Extras {
    /// The extras of a sandbox. An annotation that cannot be parsed was written through another API: it counts as none.
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        annotation::read(record, KEY)
    }

    /// The annotation's text.
    ///
    /// # Errors
    /// When the value cannot be written as JSON, which does not happen with these types.
    pub(crate) fn text(&self) -> Result<String> {
        annotation::text(self).map_err(|error| Failure::control(&error))
    }
}
