//! How much of what a sandbox does is recorded.

use serde::{Deserialize, Serialize};

/// How much is recorded. Ordered: a later one records no less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TraceMode {
    /// Nothing.
    Off,
    /// Everything; what cannot be written is a gap that says so.
    #[default]
    On,
    /// Everything, or the sandbox stands still.
    Strict,
}

impl TraceMode {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Strict => "strict",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Off, Self::On, Self::Strict].into_iter().find(|mode| mode.as_str() == text)
    }
}

impl std::fmt::Display for TraceMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
