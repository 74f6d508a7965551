//! What `atoll doctor` prints about a host.

use serde::{Deserialize, Serialize};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Status {
    /// Enforced or usable, verified by trying.
    Ok,
    /// Works with a restriction that the detail names.
    Limited,
    /// Not there. Whoever asks for it is refused.
    Missing,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Check {
    /// Stable name: `user_namespaces`, `limit_memory`, …
    pub name: String,
    /// How it came out.
    pub status: Status,
    /// One sentence: what was tried and seen.
    pub detail: String,
    /// What to do when it is not [`Status::Ok`].
    pub hint: Option<String>,
}

impl Check {
    /// A check without a hint.
    #[must_use]
    pub fn new(name: &str, status: Status, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), status, detail: detail.into(), hint: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
