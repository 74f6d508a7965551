//! What a devbox's answers must say back and the engine has no field for: JSON in one annotation of the sandbox.

use std::collections::BTreeMap;

use atoll_dialect_kit::annotation;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};
use crate::tunnel::Tunnel;

/// Key of the annotation.
pub(crate) const KEY: &str = "runloop";

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    /// A devbox's name is its user's matter: two may have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Texts of any kind; labels of the engine are more narrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// As they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) launch_parameters: Option<Value>,
    /// How long it is kept alive each time, seconds; absent where it ends after being idle, or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_alive_s: Option<u64>,
    /// What it was made from, as its client named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blueprint_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_id: Option<String>,
    /// Its gateways, and the secrets for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gateway_specs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tunnel: Option<Tunnel>,
    /// Absent once it is set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Why it could not be set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

/// How far setting a devbox up has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Files are put into it, commands run.
    Initializing,
    /// One of them failed.
    Failed,
}

impl Extras {
    /// Those of a sandbox.
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        annotation::read(record, KEY)
    }

    /// The annotation's text.
    pub(crate) fn text(&self) -> Result<String> {
        annotation::text(self).map_err(|error| Failure::of(&error))
    }
}

/// The metadata of a sandbox: as it was given, or what another API labelled it with.
pub(crate) fn metadata(record: &SandboxRecord) -> BTreeMap<String, String> {
    Extras::of(record).metadata.unwrap_or_else(|| record.labels.clone())
}
