//! The names of what happens, on the wire.

use super::What;

impl What {
    /// As `kind` names it on the wire.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ProcessStarted(_) => "process_started",
            Self::ProcessForked { .. } => "process_forked",
            Self::ProcessExited(_) => "process_exited",
            Self::Connect(_) => "connect",
            Self::Accept(_) => "accept",
            Self::Listen(_) => "listen",
            Self::File(_) => "file",
            Self::Dns(_) => "dns",
            Self::Http(_) => "http",
            Self::Connection(_) => "connection",
            Self::Policy(_) => "policy",
            Self::Call(_) => "call",
            Self::TerminalInput { .. } => "terminal_input",
            Self::Created(_) => "created",
            Self::State { .. } => "state",
            Self::Snapshot { .. } => "snapshot",
            Self::Forked { .. } => "forked",
            Self::RolledBack { .. } => "rolled_back",
            Self::Limits { .. } => "limits",
            Self::OutOfMemory => "out_of_memory",
            Self::BudgetExhausted { .. } => "budget_exhausted",
            Self::ExecStarted(_) => "exec_started",
            Self::ExecEnded(_) => "exec_ended",
            Self::Lost(_) => "lost",
            Self::Recorder(_) => "recorder",
        }
    }
}

/// Every [`What::kind`].
pub const KINDS: [&str; 25] = [
    "process_started",
    "process_forked",
    "process_exited",
    "connect",
    "accept",
    "listen",
    "file",
    "dns",
    "http",
    "connection",
    "policy",
    "call",
    "terminal_input",
    "created",
    "state",
    "snapshot",
    "forked",
    "rolled_back",
    "limits",
    "out_of_memory",
    "budget_exhausted",
    "exec_started",
    "exec_ended",
    "lost",
    "recorder",
];
