//! Values that a sandbox's answers must say back and the engine has no field for. They are kept as JSON in one
//! annotation of the sandbox, so that they live and die with it.

use std::collections::BTreeMap;

use atoll_dialect_kit::annotation;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Key of the annotation.
pub(crate) const KEY: &str = "daytona";
const _: () = assert!(!atoll_core::spec::is_own_annotation(KEY), "it is shown to clients");

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    /// The snapshot that the sandbox was made from, as its client named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<String>,
    /// The variables that its client gave.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Labels as the client gave them; the engine's labels allow fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// Whether its ports are open without a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) public: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) network_block_all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network_allow_list: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain_allow_list: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Minutes after which it counts as archived when it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) auto_archive: Option<u64>,
    /// Whether a client archived it while it was stopped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) archived: bool,
    /// Whether it is deleted when it stops.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ephemeral: bool,
    /// How often its signing keys were replaced.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) signing: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Extras {
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        annotation::read(record, KEY)
    }

    /// The annotation's text.
    ///
    /// # Errors
    /// As [`annotation::text`].
    pub(crate) fn text(&self) -> Result<String> {
        Ok(annotation::text(self)?)
    }
}

/// The labels of a sandbox: as the client gave them, or the labels that another API gave the sandbox.
pub(crate) fn labels(record: &SandboxRecord) -> BTreeMap<String, String> {
    Extras::of(record).labels.unwrap_or_else(|| record.labels.clone())
}

/// The labels that have the form of the engine's.
pub(crate) fn fitting(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let one = |(key, value): (&String, &String)| BTreeMap::from([(key.clone(), value.clone())]);
    let fits = |pair: &(&String, &String)| atoll_core::spec::labels("labels", &one(*pair)).is_ok();
    let fitting = labels.iter().filter(fits).take(atoll_core::limits::LABELS_MAX_COUNT);
    fitting.map(|(key, value)| (key.clone(), value.clone())).collect()
}
