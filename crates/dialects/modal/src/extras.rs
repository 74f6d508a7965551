//! Values that a sandbox's answers must say again and the engine has no field for: JSON in one annotation of the
//! sandbox.

use std::collections::BTreeMap;

use atoll_core::Error;
use atoll_dialect_kit::annotation;
use atoll_store::SandboxRecord;
use serde::{Deserialize, Serialize};

/// Key of the annotation.
pub(crate) const KEY: &str = "modal";
const _: () = assert!(!atoll_core::spec::is_own_annotation(KEY), "it is shown to clients");

/// The annotation. Everything is optional: the sandbox may come from another API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Extras {
    /// The app it belongs to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) app: String,
    /// The client's name for it, where the engine's name had to be another: see [`label`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The image it was made from, as its client named it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) image: String,
    /// Texts of any kind; the engine's labels allow fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tags: Option<BTreeMap<String, String>>,
    /// Whether the client gave a first command: the sandbox is over when that command is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) command: bool,
    /// That command has ended, and the sandbox was given the time of its own end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) over: bool,
    /// Ports that are reached from outside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<Port>,
    /// How to find out whether it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probe: Option<Probe>,
    /// Time to live that the client gave it, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u32>,
}

/// Longest name of a sandbox, characters, as the clients know it.
const NAME_MAX_CHARS: usize = 64;

/// The engine's name for a sandbox to which a client gave this name.
///
/// # Errors
/// When it is not a valid name of Modal's: letters, digits, `-`, `_`, `.`.
pub(crate) fn label(name: &str) -> Result<String, Error> {
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !is_name || name.is_empty() || name.len() > NAME_MAX_CHARS {
        return Err(Error::invalid(
            "name",
            format_args!("'{}' is not a name", atoll_core::error::shorten(name)),
        )
        .hint("use 1 to 64 letters, digits, '-', '_' and '.'"));
    }
    Ok(atoll_dialect_kit::names::label(name, "atoll modal sandbox name", "sandbox"))
}

/// The name of a sandbox.
pub(crate) fn name(record: &SandboxRecord) -> Option<String> {
    // The engine's name may have been changed over another API since.
    let given =
        Extras::of(record).name.filter(|given| label(given).is_ok_and(|label| Some(label) == record.name));
    given.or_else(|| record.name.clone())
}

/// A port that is reached from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) port: u16,
    /// The client wants it without TLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) plain: bool,
}

/// How to find out whether a sandbox is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probe {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) argv: Vec<String>,
    pub(crate) interval_ms: u64,
}

impl Extras {
    /// The extras of a sandbox.
    pub(crate) fn of(record: &SandboxRecord) -> Self {
        annotation::read(record, KEY)
    }

    /// The annotation's text.
    ///
    /// # Errors
    /// When the value cannot be written as JSON, which does not happen with these types.
    pub(crate) fn text(&self) -> Result<String, Error> {
        annotation::text(self)
    }
}

/// The tags of a sandbox: as the client gave them, or the labels that another API gave the sandbox.
pub(crate) fn tags(record: &SandboxRecord) -> BTreeMap<String, String> {
    Extras::of(record).tags.unwrap_or_else(|| record.labels.clone())
}
