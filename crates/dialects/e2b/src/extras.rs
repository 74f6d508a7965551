//! What a sandbox's answers must say back and the engine has no field for. It is kept as JSON in one annotation of
//! the sandbox, so that it lives and dies with it.

use std::collections::BTreeMap;

use atoll_core::id::SandboxId;
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};

/// Key of the annotation.
pub(crate) const KEY: &str = "e2b";

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    /// What it was made from, as its client is told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alias: Option<String>,
    /// Texts of any kind; labels of the engine are more narrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Traffic wakes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) auto_resume: bool,
    /// How long it was given, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    /// The network's configuration as it was asked for, without what is secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_internet_access: Option<bool>,
    /// Its ports want a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) private_ports: bool,
}

impl Extras {
    /// Those of a sandbox. What does not read is somebody else's annotation: as if there were none.
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        let text = record.annotations.get(KEY);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Whether a sandbox may have them: it was made by a client of this protocol, or there is none any more, which its
    /// clients are told in words that they look for. By id alone: a name may pass to another.
    pub(crate) fn may_be_at(engine: &Engine, sandbox: &str) -> bool {
        let Ok(id) = sandbox.parse::<SandboxId>() else { return false };
        engine.sandbox(&id).map_or(true, |record| record.annotations.contains_key(KEY))
    }

    /// The annotation's text.
    ///
    /// # Errors
    /// When it cannot be written, which these types do not do.
    pub(crate) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Failure::bad(error.to_string()))
    }
}

/// The metadata of a sandbox: as it was given, or what another API labelled it with.
pub(crate) fn metadata(record: &SandboxRecord) -> BTreeMap<String, String> {
    Extras::of(record).metadata.unwrap_or_else(|| record.labels.clone())
}
