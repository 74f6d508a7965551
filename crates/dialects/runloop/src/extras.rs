//! Values that a devbox's answers must say back and the engine has no field for: JSON in one annotation of the sandbox.

use std::collections::BTreeMap;

use atoll_dialect_kit::annotation;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};
use crate::tunnel::Tunnel;

/// Key of the annotation.
pub(crate) const KEY: &str = "runloop";
const _: () = assert!(!atoll_core::spec::is_own_annotation(KEY), "it is shown to clients");

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    /// The name that the user chose: two devboxes may have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Texts of any kind; the engine's labels allow fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// The parameters that the client gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) launch_parameters: Option<Value>,
    /// How long each keep-alive lasts, seconds; absent where the devbox ends after being idle, or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_alive_s: Option<u64>,
    /// The blueprint that the devbox was made from, as its client named it.
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
    /// Why setting it up failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

/// How far the setup of a devbox has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Files are put into it, and commands run.
    Initializing,
    /// One of them failed.
    Failed,
}

impl Extras {
    /// The extras of a sandbox.
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        annotation::read(record, KEY)
    }

    /// The annotation's text.
    pub(crate) fn text(&self) -> Result<String> {
        annotation::text(self).map_err(|error| Failure::of(&error))
    }
}

/// The metadata of a sandbox: as the client gave it, or the labels that another API gave the sandbox.
pub(crate) fn metadata(record: &SandboxRecord) -> BTreeMap<String, String> {
    Extras::of(record).metadata.unwrap_or_else(|| record.labels.clone())
}
