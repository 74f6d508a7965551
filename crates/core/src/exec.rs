//! The exec state machine, and how an exit is told apart.

use serde::{Deserialize, Serialize};

use crate::error::Code;

/// Where an exec is in its life: `starting → running → exited`, or `lost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ExecState {
    /// Journalled; the guest has not confirmed it yet.
    Starting,
    /// The guest runs it.
    Running,
    /// It ended and its [`Exit`] is known.
    Exited,
    /// The sandbox died under it. How it would have ended is not known.
    Lost,
}

impl ExecState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Running, Self::Exited, Self::Lost];

    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Lost => "lost",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether nothing will change any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Exited | Self::Lost)
    }
}

impl std::fmt::Display for ExecState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ExitReason {
    /// It returned by itself.
    Exited,
    /// A signal that Atoll was not asked to send ended it.
    Signaled,
    /// The kernel ended it because the sandbox's memory limit was reached.
    OutOfMemory,
    /// Its timeout passed.
    TimedOut,
    /// It wrote nothing for its idle timeout.
    IdleTimedOut,
    /// A request killed it.
    Killed,
    /// Its last client went away and it had asked to be killed then.
    Disconnected,
    /// Its sandbox was paused without its memory, which ended it.
    SandboxPaused,
    /// A hard budget of its sandbox was used up.
    BudgetExhausted,
    /// The sandbox was put back to an earlier state under it.
    RolledBack,
    /// It could not be started; see [`Exit::error`].
    NotStarted,
    /// The sandbox died under it.
    SandboxDied,
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Exit {
    /// Why.
    pub reason: ExitReason,
    /// Exit code as a shell would see it: the process's own, 128 + signal, 126 or 127 when it could
    /// not be started. `None` when the sandbox died or was paused under it.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Why it could not be started: [`Code::CommandNotFound`] or [`Code::CommandNotExecutable`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
}

impl Exit {
    /// The exec of a sandbox that died.
    #[must_use]
    pub const fn sandbox_died() -> Self {
        Self { reason: ExitReason::SandboxDied, code: None, signal: None, error: None }
    }

    /// The exec of a sandbox that was paused without its memory before the exec could tell how it ended.
    #[must_use]
    pub const fn sandbox_paused() -> Self {
        Self { reason: ExitReason::SandboxPaused, code: None, signal: None, error: None }
    }

    /// The exec of a sandbox that was put back to an earlier state.
    #[must_use]
    pub const fn rolled_back() -> Self {
        Self { reason: ExitReason::RolledBack, code: None, signal: None, error: None }
    }

    /// A command that could not be started, with shell semantics for the code.
    #[must_use]
    pub const fn not_started(error: Code) -> Self {
        let code = if matches!(error, Code::CommandNotFound) { 127 } else { 126 };
        Self { reason: ExitReason::NotStarted, code: Some(code), signal: None, error: Some(error) }
    }
}

/// What the host knew when the exit arrived: it decides the reason, the guest only reports the facts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExitContext {
    /// Why Atoll itself ended the exec, if it did.
    pub ended_by: Option<ExitReason>,
    /// The sandbox's count of kernel out-of-memory kills rose while the exec ran.
    pub oom_killed: bool,
}

/// Tells the reasons apart. `code` and `signal` are what `wait` gave in the guest.
#[must_use]
pub fn classify(code: Option<i32>, signal: Option<i32>, context: ExitContext) -> Exit {
    const SIGKILL: i32 = 9;
    let killed = signal == Some(SIGKILL) || (signal.is_none() && code == Some(128 + SIGKILL));
    let reason = match (context.ended_by, signal) {
        (Some(reason), _) => reason,
        (None, _) if killed && context.oom_killed => ExitReason::OutOfMemory,
        (None, Some(_)) => ExitReason::Signaled,
        (None, None) => ExitReason::Exited,
    };
    let shell_code = signal.map_or(code, |signal| Some(128_i32.saturating_add(signal)));
    Exit { reason, code: shell_code, signal, error: None }
}

/// Which of the two outputs a piece belongs to. A terminal has only [`OutputStream::Stdout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum OutputStream {
    /// Standard output, or everything a terminal shows.
    Stdout,
    /// Standard error.
    Stderr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_told_apart() {
        let plain = ExitContext::default();
        let oom = ExitContext { oom_killed: true, ..plain };
        let timed_out = ExitContext { ended_by: Some(ExitReason::TimedOut), ..oom };
        assert_eq!(classify(Some(3), None, plain).reason, ExitReason::Exited);
        assert_eq!(classify(Some(1), None, oom).reason, ExitReason::Exited);
        assert_eq!(classify(None, Some(15), plain).reason, ExitReason::Signaled);
        assert_eq!(classify(None, Some(9), plain).reason, ExitReason::Signaled);
        assert_eq!(classify(None, Some(9), oom).reason, ExitReason::OutOfMemory);
        assert_eq!(classify(Some(137), None, oom).reason, ExitReason::OutOfMemory);
        assert_eq!(classify(None, Some(9), timed_out).reason, ExitReason::TimedOut);
        assert_eq!(classify(None, Some(9), plain).code, Some(137));
    }

    #[test]
    fn texts_round_trip() {
        for state in ExecState::ALL {
            assert_eq!(ExecState::parse(state.as_str()), Some(state));
        }
    }

    #[test]
    fn shell_codes_for_what_cannot_start() {
        assert_eq!(Exit::not_started(Code::CommandNotFound).code, Some(127));
        assert_eq!(Exit::not_started(Code::CommandNotExecutable).code, Some(126));
    }
}
