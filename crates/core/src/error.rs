//! The one error that Atoll shows to its users.
//!
//! Lower crates have small enums of their own, named for the reason. Where the engine handles such
//! a reason it becomes an [`Error`]: a [`Code`] for machines, a message that says what is wrong and
//! where, and a hint that says what to do. Each API maps [`Code`] to its wire in one place.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shorthand used across the workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $retryable:literal;)*) => {
        /// Machine-readable reason of an [`Error`]. The text form is stable and part of the API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// Every code, for tables in tests and documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The stable text form.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Whether the same request may succeed later without being changed.
            #[must_use]
            pub const fn retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)* }
            }
        }
    };
}

codes! {
    /// The body is not well-formed JSON.
    InvalidJson = "invalid_json", false;
    /// A field has the wrong type, form or range; the message names it.
    InvalidArgument = "invalid_argument", false;
    /// A body or a field is larger than its limit.
    TooLarge = "too_large", false;
    /// No key, or one that is not valid.
    Unauthorized = "unauthorized", false;
    /// The key is valid but lacks the scope.
    Forbidden = "forbidden", false;
    /// No such route.
    RouteNotFound = "route_not_found", false;
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", false;
    /// No such sandbox.
    SandboxNotFound = "sandbox_not_found", false;
    /// No such node.
    NodeNotFound = "node_not_found", false;
    /// No such exec.
    ExecNotFound = "exec_not_found", false;
    /// No such service of this sandbox.
    ServiceNotFound = "service_not_found", false;
    /// No such agent.
    AgentNotFound = "agent_not_found", false;
    /// No such session with this agent.
    SessionNotFound = "session_not_found", false;
    /// No such schedule of this agent.
    ScheduleNotFound = "schedule_not_found", false;
    /// No such context of this sandbox's code interpreter.
    ContextNotFound = "context_not_found", false;
    /// The sandbox has no code interpreter.
    InterpreterMissing = "interpreter_missing", false;
    /// The sandbox's code interpreter failed, or makes no sense.
    InterpreterFailed = "interpreter_failed", true;
    /// No such template or version.
    TemplateNotFound = "template_not_found", false;
    /// No such volume.
    VolumeNotFound = "volume_not_found", false;
    /// The volume is mounted in a sandbox; the message names it.
    VolumeBusy = "volume_busy", false;
    /// No such warm pool.
    PoolNotFound = "pool_not_found", false;
    /// A warm pool would need more memory than all pools may use.
    PoolTooLarge = "pool_too_large", false;
    /// No such snapshot, checkpoint or tag.
    SnapshotNotFound = "snapshot_not_found", false;
    /// No such image here; it may have to be pulled.
    ImageNotFound = "image_not_found", false;
    /// No such API key.
    KeyNotFound = "key_not_found", false;
    /// No such project.
    ProjectNotFound = "project_not_found", false;
    /// Keys or other things belong to the project; the message counts them.
    ProjectInUse = "project_in_use", false;
    /// No such access to a port or file.
    AccessNotFound = "access_not_found", false;
    /// No such SSH key.
    SshKeyNotFound = "ssh_key_not_found", false;
    /// No stored credentials for this registry.
    RegistryNotFound = "registry_not_found", false;
    /// No such secret, or not this version of it.
    SecretNotFound = "secret_not_found", false;
    /// Another thing has this name.
    NameTaken = "name_taken", false;
    /// The sandbox is not in a state in which this can be done.
    InvalidState = "invalid_state", false;
    /// The sandbox died or could not be made; the message has the reason.
    SandboxFailed = "sandbox_failed", false;
    /// Another key has a lease on the sandbox; the message names the holder.
    SandboxLeased = "sandbox_leased", true;
    /// This isolation level, or this host, cannot pause in the way that was asked for; the message says what is in the way.
    PauseUnavailable = "pause_unavailable", false;
    /// A hard budget of the sandbox is used up; it does nothing more until the budget is raised.
    BudgetExhausted = "budget_exhausted", false;
    /// The idempotency key was used before with a different request.
    IdempotencyMismatch = "idempotency_mismatch", false;
    /// A limit on how many or how much is reached.
    LimitExceeded = "limit_exceeded", true;
    /// The project may not have, or run, more; the message says of what.
    QuotaExceeded = "quota_exceeded", true;
    /// The image is for another processor architecture.
    ImagePlatformMismatch = "image_platform_mismatch", false;
    /// The image, or a layer of it, is malformed or hostile.
    ImageInvalid = "image_invalid", false;
    /// The image is used by a sandbox or template.
    ImageInUse = "image_in_use", false;
    /// Something stands on the snapshot.
    SnapshotInUse = "snapshot_in_use", false;
    /// The snapshot does not fit: another format, isolation level or image.
    SnapshotIncompatible = "snapshot_incompatible", false;
    /// The snapshot's data is damaged or malformed.
    SnapshotInvalid = "snapshot_invalid", false;
    /// The object store says no: credentials are missing or wrong.
    ObjectsDenied = "objects_denied", false;
    /// The object store cannot be reached, or broke off.
    ObjectsUnavailable = "objects_unavailable", true;
    /// Bytes do not have the digest they should have.
    DigestMismatch = "digest_mismatch", true;
    /// The issuer of identities cannot be reached, or broke off.
    IssuerUnavailable = "issuer_unavailable", true;
    /// The issuer of identities says something that makes no sense, or that is not to be believed.
    IssuerInvalid = "issuer_invalid", false;
    /// The registry says no: credentials are missing or wrong.
    RegistryDenied = "registry_denied", false;
    /// The registry cannot be reached, or broke off.
    RegistryUnavailable = "registry_unavailable", true;
    /// The registry's answer makes no sense.
    RegistryInvalid = "registry_invalid", false;
    /// The registry does not have this repository, tag or digest.
    RegistryImageNotFound = "registry_image_not_found", false;
    /// The command does not exist in the sandbox (exit code 127).
    CommandNotFound = "command_not_found", false;
    /// The command exists but cannot be executed (exit code 126).
    CommandNotExecutable = "command_not_executable", false;
    /// The working directory does not exist in the sandbox.
    CwdNotFound = "cwd_not_found", false;
    /// The user does not exist in the sandbox.
    UserNotFound = "user_not_found", false;
    /// The exec has ended.
    ExecEnded = "exec_ended", false;
    /// The exec has no standard input, or it is closed.
    StdinClosed = "stdin_closed", false;
    /// The exec has no terminal.
    NotATerminal = "not_a_terminal", false;
    /// The output offset lies beyond the end.
    OffsetOutOfRange = "offset_out_of_range", false;
    /// No such file or directory in the sandbox.
    FileNotFound = "file_not_found", false;
    /// The file is there already.
    FileExists = "file_exists", false;
    /// A directory is wanted, this is none.
    NotADirectory = "not_a_directory", false;
    /// A file is wanted, this is a directory.
    IsADirectory = "is_a_directory", false;
    /// The directory is not empty.
    DirectoryNotEmpty = "directory_not_empty", false;
    /// The sandbox's own permissions forbid it.
    PermissionDenied = "permission_denied", false;
    /// The sandbox's disk is full.
    DiskFull = "disk_full", false;
    /// A path or archive member is malformed or leads outside.
    PathInvalid = "path_invalid", false;
    /// Nothing listens on this port inside the sandbox.
    PortClosed = "port_closed", true;
    /// Something listens on this port inside the sandbox already.
    PortTaken = "port_taken", false;
    /// What listens on the port broke off, or its answer is no HTTP.
    PortBroken = "port_broken", true;
    /// The host's own disk is full.
    HostDiskFull = "host_disk_full", true;
    /// The isolation level cannot be had on this host.
    IsolationUnavailable = "isolation_unavailable", false;
    /// A limit that was asked for cannot be enforced on this host.
    LimitUnenforceable = "limit_unenforceable", false;
    /// A policy that was asked for cannot be enforced at this isolation level or on this host; the message says which, and why.
    Unenforceable = "unenforceable", false;
    /// The guest agent does not answer or breaks the protocol.
    GuestUnavailable = "guest_unavailable", true;
    /// No such build.
    BuildNotFound = "build_not_found", false;
    /// The Dockerfile or step list is wrong; the message says where.
    BuildFileInvalid = "build_file_invalid", false;
    /// The Dockerfile asks for something that builds do not do; the message says where.
    InstructionUnsupported = "instruction_unsupported", false;
    /// The context is malformed, or leads outside of itself.
    BuildContextInvalid = "build_context_invalid", false;
    /// A file to copy is not in the context, stage or image.
    BuildFileNotFound = "build_file_not_found", false;
    /// A command of the build failed; the message names the step.
    BuildStepFailed = "build_step_failed", false;
    /// The build was cancelled.
    BuildCancelled = "build_cancelled", false;
    /// The server ended while the build ran.
    BuildInterrupted = "build_interrupted", true;
    /// The start command of the template ended, or the sandbox was not ready in time.
    StartFailed = "start_failed", false;
    /// It took too long.
    Timeout = "timeout", true;
    /// The server is shutting down.
    ShuttingDown = "shutting_down", true;
    /// The database does not answer.
    StoreUnavailable = "store_unavailable", true;
    /// The node that has what is asked for does not answer, or is none any more.
    NodeUnavailable = "node_unavailable", true;
    /// The record is in the database, but its row cannot be read: it is damaged, or a newer version wrote it.
    RecordUnreadable = "record_unreadable", false;
    /// A bug in Atoll.
    Internal = "internal", true;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, for the caller: reason, sentence, and what to do about it.
///
/// The message is external: it holds nothing that the caller may not know. The chain of internal
/// causes is logged where the error is made, not carried here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Why, for machines.
    pub code: Code,
    /// What is wrong and where: a lower-case fragment.
    pub message: String,
    /// What to do, if there is something to do.
    pub hint: Option<String>,
}

impl Error {
    /// An error without a hint.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A field of a request is wrong: `field` is its path, such as `env.PATH`.
    #[must_use]
    pub fn invalid(field: &str, why: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, format!("{}: {why}", shorten(field)))
    }
}

/// Cuts text that came from outside so that it can stand in a message: at most 80 characters, no
/// control characters.
#[must_use]
pub fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut out: String =
        text.chars().take(MAX_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_match_serde() {
        let texts: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{code}\""));
        }
    }

    #[test]
    fn shorten_bounds_and_cleans() {
        assert_eq!(shorten("a\nb"), "a\u{fffd}b");
        assert_eq!(shorten(&"x".repeat(500)).chars().count(), 81);
    }
}
