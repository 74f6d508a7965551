//! The sandbox state machine and admission: given a state, may this be done?
//!
//! ```text
//!            create saga               delete
//! creating ───────────────▶ running ───────────▶ deleting ──▶ (gone)
//!     │                     │  ▲ │                 ▲  ▲
//!     │ undo       pausing ◀┘  │ │ died            │  │ delete, TTL
//!     └─▶ (gone)      │        │ └───▶ failed ─────┼──┘
//!                     ▼        │                   │
//!                  paused ─▶ resuming              │
//!     └────────────────── crash while creating ────┘
//! ```
//!
//! How a paused sandbox is paused is its [`PauseMode`]. A request that uses a paused sandbox wakes it:
//! it waits for the resume, together with all other requests that came meanwhile.
//!
//! A sandbox that cannot be made leaves nothing, not even a record: its caller has the error. One
//! that died keeps its record with the reason, its execs and their output, as `failed`, until a caller
//! deletes it or its time to live ends.

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
    /// It is being stopped where it is, or put to disk.
    Pausing,
    /// It stands still and costs no CPU. The next use resumes it.
    Paused,
    /// It is being started again.
    Resuming,
    /// It is being taken apart.
    Deleting,
    /// It died or could not be made. Nothing of it runs.
    Failed,
}

impl SandboxState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Creating,
        Self::Running,
        Self::Pausing,
        Self::Paused,
        Self::Resuming,
        Self::Deleting,
        Self::Failed,
    ];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Resuming => "resuming",
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

/// What of a paused sandbox is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum PauseMode {
    /// Everything, where it is: processes stand still and their memory stays in the host's. Resuming takes
    /// microseconds and nothing inside notices.
    Frozen,
    /// Everything, on disk: processes and their memory are written out, and nothing stays in the host's memory.
    Memory,
    /// The disk. Processes are ended, and a resume boots the sandbox anew on the same files.
    Filesystem,
}

impl PauseMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Frozen, Self::Memory, Self::Filesystem];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Memory => "memory",
            Self::Filesystem => "filesystem",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// Whether processes outlive the pause.
    #[must_use]
    pub const fn keeps_processes(self) -> bool {
        !matches!(self, Self::Filesystem)
    }
}

impl std::fmt::Display for PauseMode {
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
    /// Make it stand still.
    Pause,
    /// Let it go on.
    Resume,
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
    /// It is paused, or about to be: resume it first.
    Wake,
}

/// Decides whether `wish` may be done to a sandbox in `state`. `reason` is why it failed, if it did.
///
/// # Errors
/// [`Code::InvalidState`] or [`Code::SandboxFailed`], with what to do.
pub fn admit(state: SandboxState, wish: Wish, reason: Option<&str>) -> Result<Admission> {
    use SandboxState as State;
    match (state, wish) {
        (State::Deleting, Wish::Delete) | (State::Creating, Wish::Use) => Ok(Admission::Join),
        (State::Deleting, _) => Err(Error::new(Code::InvalidState, "the sandbox is being deleted")),
        (_, Wish::Delete | Wish::Update)
        | (State::Running, _)
        | (State::Pausing | State::Paused | State::Resuming, Wish::Pause | Wish::Resume) => {
            Ok(Admission::Proceed)
        }
        (State::Pausing | State::Paused | State::Resuming, Wish::Use) => Ok(Admission::Wake),
        (State::Creating, Wish::Pause | Wish::Resume) => {
            Err(Error::new(Code::InvalidState, "the sandbox is still being made")
                .hint("try again in a moment"))
        }
        (State::Failed, Wish::Use | Wish::Pause | Wish::Resume) => Err(Error::new(
            Code::SandboxFailed,
            format!("the sandbox has failed: {}", reason.unwrap_or("no reason was recorded")),
        )
        .hint("create a new one; this one's execs and output stay readable until it is deleted")),
    }
}

/// Whether a sandbox may go from `from` to `to`. The engine asserts this on every change.
#[must_use]
pub const fn may_follow(from: SandboxState, to: SandboxState) -> bool {
    use SandboxState as State;
    matches!(
        (from, to),
        (State::Creating, State::Running | State::Deleting)
            | (State::Running, State::Pausing | State::Failed | State::Deleting)
            | (
                State::Pausing,
                State::Paused | State::Running | State::Resuming | State::Failed | State::Deleting
            )
            | (State::Paused, State::Pausing | State::Resuming | State::Failed | State::Deleting)
            | (
                State::Resuming,
                State::Running | State::Pausing | State::Paused | State::Failed | State::Deleting
            )
            | (State::Failed, State::Deleting)
    )
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
    fn whoever_uses_a_paused_sandbox_wakes_it() {
        for state in [SandboxState::Pausing, SandboxState::Paused, SandboxState::Resuming] {
            assert_eq!(admit(state, Wish::Use, None), Ok(Admission::Wake));
            assert_eq!(admit(state, Wish::Pause, None), Ok(Admission::Proceed));
            assert_eq!(admit(state, Wish::Resume, None), Ok(Admission::Proceed));
            assert!(may_follow(state, SandboxState::Failed));
        }
        assert_eq!(admit(SandboxState::Creating, Wish::Pause, None).unwrap_err().code, Code::InvalidState);
        assert_eq!(admit(SandboxState::Failed, Wish::Resume, None).unwrap_err().code, Code::SandboxFailed);
        for mode in PauseMode::ALL {
            assert_eq!(PauseMode::parse(mode.as_str()), Some(mode));
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
}
