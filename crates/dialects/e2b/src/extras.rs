//! Values that a sandbox's answers must say back and the engine has no field for. They are kept as JSON in one
//! annotation of the sandbox, so that they live and die with it.

use std::collections::BTreeMap;

use atoll_core::id::SandboxId;
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};

/// Key of the annotation.
pub(crate) const KEY: &str = "e2b";
const _: () = assert!(!atoll_core::spec::is_own_annotation(KEY), "it is shown to clients");

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    /// The template that the sandbox was made from, as its client is told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alias: Option<String>,
    /// Texts of any kind; the engine's labels allow fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Whether traffic wakes the sandbox.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) auto_resume: bool,
    /// Time to live that the client gave it, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    /// The network's configuration as the client asked for it, without secret values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_internet_access: Option<bool>,
    /// Whether its ports need a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) private_ports: bool,
}

impl Extras {
    /// The extras of a sandbox. An annotation that cannot be parsed was written through another API: it counts as none.
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        let text = record.annotations.get(KEY);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Whether a sandbox may have extras: it was made by a client of this protocol, or it is gone, and its clients look
    /// for this protocol's words about that. By id alone: a name may pass to another sandbox.
    pub(crate) fn may_be_at(engine: &Engine, sandbox: &str) -> bool {
        let Ok(id) = sandbox.parse::<SandboxId>() else { return false };
        engine.sandbox(&id).map_or(true, |record| record.annotations.contains_key(KEY))
    }

    /// The annotation's text.
    ///
    /// # Errors
    /// When the value cannot be written as JSON, which does not happen with these types.
    pub(crate) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Failure::bad(error.to_string()))
    }
}

/// The metadata of a sandbox: as the client gave it, or the labels that another API gave the sandbox.
pub(crate) fn metadata(record: &SandboxRecord) -> BTreeMap<String, String> {
    Extras::of(record).metadata.unwrap_or_else(|| record.labels.clone())
}
