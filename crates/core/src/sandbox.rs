//! The sandbox state machine and admission: given a state, may this be done?
//!
//! ```text
//!            create saga               delete
//! creating ───────────────▶ running ───────────▶ deleting ──▶ (gone)
//!     │                        │                   ▲  ▲
//!     │ undo                   │ died              │  │ delete, TTL
//!     └─▶ (gone)               └───▶ failed ───────┼──┘
//!     └────────────────── crash while creating ────┘
//! ```
//!
//! A sandbox that cannot be made leaves nothing, not even a record: its caller has the error. One
//! that died keeps its record with the reason, its execs and their output, as `failed`, until
//! somebody deletes it or its time to live ends.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SandboxState {
    /// The creation saga is under way.
    Creating,
    /// It works and takes execs.
    Running,
    /// It is being taken apart.
    Deleting,
    /// It died or could not be made. Nothing of it runs.
    Failed,
}

impl SandboxState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Creating, Self::Running, Self::Deleting, Self::Failed];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Deleting => "deleting",
            Self::Failed => "failed",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl std::fmt::Display for SandboxState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What somebody wants of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Run commands, touch files: anything that needs a live guest.
    Use,
    /// Change labels, lifetime or limits.
    Update,
    /// Take it apart.
    Delete,
}

/// What admission says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Do it.
    Proceed,
    /// It is under way already: wait for that instead of starting again.
    Join,
}

/// Decides whether `wish` may be done to a sandbox in `state`. `reason` is why it failed, if it did.
///
/// # Errors
/// [`Code::InvalidState`] or [`Code::SandboxFailed`], with what to do.
pub fn admit(state: SandboxState, wish: Wish, reason: Option<&str>) -> Result<Admission> {
    match (state, wish) {
        (SandboxState::Running, _)
        | (SandboxState::Creating | SandboxState::Failed, Wish::Delete)
        | (SandboxState::Creating | SandboxState::Failed, Wish::Update) => Ok(Admission::Proceed),
        (SandboxState::Deleting, Wish::Delete) | (SandboxState::Creating, Wish::Use) => Ok(Admission::Join),
        (SandboxState::Deleting, _) => Err(Error::new(Code::InvalidState, "the sandbox is being deleted")),
        (SandboxState::Failed, Wish::Use) => Err(Error::new(
            Code::SandboxFailed,
            format!("the sandbox has failed: {}", reason.unwrap_or("no reason was recorded")),
        )
        .hint("create a new one; this one's execs and output stay readable until it is deleted")),
    }
}

/// Whether a sandbox may go from `from` to `to`. The engine asserts this on every change.
#[must_use]
pub const fn may_follow(from: SandboxState, to: SandboxState) -> bool {
    matches!(
        (from, to),
        (SandboxState::Creating, SandboxState::Running | SandboxState::Deleting)
            | (SandboxState::Running, SandboxState::Failed | SandboxState::Deleting)
            | (SandboxState::Failed, SandboxState::Deleting)
    )
}

/// When a sandbox ends by itself, from what is known about it. Times are milliseconds since the epoch.
///
/// The earlier of the end of its time to live and, while nothing runs in it, the end of its idle time.
#[must_use]
pub fn ends_at(
    expires_at_ms: Option<u64>,
    idle_timeout_ms: Option<u64>,
    last_active_ms: u64,
    busy: bool,
) -> Option<u64> {
    let idle =
        if busy { None } else { idle_timeout_ms.map(|timeout| last_active_ms.saturating_add(timeout)) };
    match (expires_at_ms, idle) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for state in SandboxState::ALL {
            assert_eq!(SandboxState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
        }
    }

    #[test]
    fn delete_is_always_possible_and_final() {
        for state in SandboxState::ALL {
            assert!(admit(state, Wish::Delete, None).is_ok());
            assert!(!may_follow(SandboxState::Deleting, state));
        }
    }

    #[test]
    fn a_failed_sandbox_says_why() {
        let error = admit(SandboxState::Failed, Wish::Use, Some("out of memory")).unwrap_err();
        assert_eq!(error.code, Code::SandboxFailed);
        assert!(error.message.contains("out of memory"));
    }

    #[test]
    fn the_earlier_end_wins_and_busy_is_not_idle() {
        assert_eq!(ends_at(Some(100), Some(10), 50, false), Some(60));
        assert_eq!(ends_at(Some(100), Some(10), 50, true), Some(100));
        assert_eq!(ends_at(None, Some(10), 50, true), None);
        assert_eq!(ends_at(None, None, 50, false), None);
        assert_eq!(ends_at(None, Some(u64::MAX), 50, false), Some(u64::MAX));
    }
}
