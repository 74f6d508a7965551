//! Reasons of the lower crates become the one error of the product here, and only here. What the
//! caller may not know (paths of the host, the kernel's words) is logged with its whole chain.

use std::error::Error as _;

use atoll_core::{Code, Error};
use atoll_guest_protocol::client::GuestError;
use atoll_guest_protocol::messages::Reason;
use atoll_isolation::IsolationError;
use atoll_store::{StoreError, Unwritable};

use crate::database::remedy;
use crate::engine::Inner;

/// The chain of causes in one line, for the log.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

pub(crate) fn store_error(error: StoreError) -> Error {
    let internal = |error: &StoreError| {
        tracing::error!(error = chain(error), "the store failed");
        Error::new(Code::Internal, "the database holds something unexpected")
    };
    match &error {
        StoreError::NameTaken => Error::new(Code::NameTaken, "another sandbox has this name")
            .hint("choose another name, or delete the sandbox that has it"),
        StoreError::Quota { error } => Error::clone(error),
        StoreError::Nul => Error::new(Code::InvalidArgument, "a text contains a NUL byte"),
        StoreError::Conflict => {
            Error::new(Code::InvalidState, "it was changed by somebody else at the same time")
                .hint("try again")
        }
        StoreError::Unavailable { .. } => unavailable(&error),
        StoreError::Claimed => Error::new(Code::StoreUnavailable, "another node has taken this one's place")
            .hint("ask another node; this one ends, and starts anew"),
        StoreError::Corrupt { .. } => {
            tracing::error!(error = chain(&error), "a row cannot be read");
            unreadable(&error)
        }
        // What was there when the request began was removed by another since.
        StoreError::NotFound => {
            tracing::info!(error = chain(&error), "a row is gone");
            Error::new(Code::InvalidState, "it was removed by somebody else at the same time")
                .hint("look what is there, then try again")
        }
        StoreError::AlreadyExists | StoreError::Schema { .. } => internal(&error),
    }
}

/// What a client is told of the database is what an administrator can act on, and which of the two disks it is.
fn unavailable(error: &StoreError) -> Error {
    let Some(why) = error.unwritable() else {
        tracing::error!(error = chain(error), "the database does not answer");
        return Error::new(Code::StoreUnavailable, "the database does not answer");
    };
    tracing::error!(error = chain(error), "nothing can be stored");
    let code = if why == Unwritable::DiskFull { Code::HostDiskFull } else { Code::StoreUnavailable };
    Error::new(code, why.to_string()).hint(remedy(why))
}

/// What is in the database, but cannot be read, is not absent: its name is not free, and nothing follows from it.
fn unreadable(error: &StoreError) -> Error {
    Error::new(Code::RecordUnreadable, error.to_string())
        .hint("an administrator sees in 'atoll doctor' what else is unreadable; a newer version may be able to read it")
}

impl Inner {
    /// The error for what was looked for and not found, by its id or its name as the database keeps it: `missing`, unless
    /// there is an unreadable row of it. The caller may know of what is there.
    pub(crate) fn absent(&self, table: &str, kept: &str, missing: Error) -> Error {
        self.store.unreadable_named(table, kept).map_or(missing, |row| unreadable(&row.into()))
    }
}

/// For limits that were checked before anything was done.
pub(crate) fn limit_error(error: &IsolationError) -> Error {
    isolation_error(error).hint("use the isolation level 'microvm', or leave the limit out")
}

pub(crate) fn isolation_error(error: &IsolationError) -> Error {
    let detail = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    match error {
        IsolationError::Gone => Error::new(Code::SandboxFailed, "the sandbox is not alive"),
        IsolationError::BadArtifact(why) => {
            Error::new(Code::SnapshotInvalid, format!("the snapshot cannot be used: {why}"))
        }
        IsolationError::NoArtifact => {
            Error::new(Code::SnapshotNotFound, "the snapshot's data is not there any more")
        }
        IsolationError::Unavailable(why) => Error::new(
            Code::IsolationUnavailable,
            format!("this host cannot run this isolation level: {why}"),
        )
        .hint("'atoll doctor' says what is missing"),
        IsolationError::Unenforceable(why) => {
            Error::new(Code::LimitUnenforceable, format!("a limit cannot be enforced on this host: {why}"))
                .hint("'atoll doctor' says what is missing")
        }
        IsolationError::UnenforceablePolicy(why) => {
            Error::new(Code::Unenforceable, why.clone()).hint("'atoll doctor' says what this host can do")
        }
        IsolationError::BadPolicy(why) => Error::new(Code::InvalidArgument, why.clone()),
        IsolationError::CannotPause(why) => {
            Error::new(Code::PauseUnavailable, why.clone()).hint("pause it as 'frozen' or 'filesystem'")
        }
        IsolationError::HostFull { what, .. } => {
            tracing::error!(error = chain(error), "the host is full");
            Error::new(Code::HostDiskFull, what.clone()).hint("free some, then try again")
        }
        IsolationError::BadRoot(why) => {
            Error::new(Code::ImageInvalid, format!("the image cannot be used as a root: {why}"))
        }
        IsolationError::Kernel { step, .. } => {
            tracing::error!(error = chain(error), "the kernel refused");
            Error::new(Code::Internal, format!("failed to {step}{detail}"))
                .hint("'atoll doctor' may say why; the server's log has the details")
        }
    }
}

/// What a refusal or failure of the guest means for the caller.
#[must_use]
pub fn guest_error(error: GuestError) -> Error {
    let (reason, message) = match error {
        GuestError::Failure { reason, message } => (reason, message),
        GuestError::Closed => {
            return Error::new(Code::GuestUnavailable, "the connection to the sandbox broke off");
        }
        GuestError::Timeout => return Error::new(Code::Timeout, "the sandbox did not answer in time"),
        GuestError::StoodStill => {
            return Error::new(Code::Timeout, "the sandbox was paused meanwhile, and did not go on in time")
                .hint("resume it, and begin again");
        }
        GuestError::NoRoom => {
            let message =
                "downloads of files and archives hold all the memory that those of this sandbox may have";
            return Error::new(Code::LimitExceeded, message).hint("read or close some, then try again");
        }
        GuestError::Protocol(why) => {
            tracing::warn!(%why, "a guest broke the protocol");
            return Error::new(Code::GuestUnavailable, "the sandbox's guest agent broke the protocol");
        }
    };
    let code = match reason {
        Reason::Other => Code::Internal,
        Reason::NotFound => Code::FileNotFound,
        Reason::Exists => Code::FileExists,
        Reason::NotADirectory => Code::NotADirectory,
        Reason::IsADirectory => Code::IsADirectory,
        Reason::NotEmpty => Code::DirectoryNotEmpty,
        Reason::Denied => Code::PermissionDenied,
        Reason::NoSpace => Code::DiskFull,
        Reason::Invalid => Code::PathInvalid,
        Reason::NoSuchExec => Code::ExecNotFound,
        Reason::ExecEnded => Code::ExecEnded,
        Reason::StdinClosed => Code::StdinClosed,
        Reason::NotATerminal => Code::NotATerminal,
        Reason::CwdNotFound => Code::CwdNotFound,
        Reason::UserNotFound => Code::UserNotFound,
        Reason::CommandNotFound => Code::CommandNotFound,
        Reason::CommandNotExecutable => Code::CommandNotExecutable,
        Reason::PortClosed => Code::PortClosed,
        Reason::PortTaken => Code::PortTaken,
        Reason::NoProcesses | Reason::NoMemory => Code::LimitExceeded,
        Reason::Conflict => Code::IdempotencyMismatch,
    };
    let message = if message.is_empty() { format!("{reason:?}") } else { message };
    let error = Error::new(code, message);
    match reason {
        Reason::NoSpace => error.hint("delete files in the sandbox, or create one with a larger disk"),
        Reason::NoProcesses => {
            error.hint("end some processes, or create a sandbox with a larger 'pids' limit")
        }
        Reason::NoMemory => error.hint("end some processes, or raise the sandbox's memory limit"),
        Reason::CwdNotFound => error.hint("create the directory first, or leave 'cwd' out"),
        Reason::UserNotFound => error.hint("name a user of the image, or a numeric id"),
        Reason::Other
        | Reason::NotFound
        | Reason::Exists
        | Reason::NotADirectory
        | Reason::IsADirectory
        | Reason::NotEmpty
        | Reason::Denied
        | Reason::Invalid
        | Reason::NoSuchExec
        | Reason::ExecEnded
        | Reason::StdinClosed
        | Reason::NotATerminal
        | Reason::CommandNotFound
        | Reason::CommandNotExecutable
        | Reason::PortClosed
        | Reason::PortTaken
        | Reason::Conflict => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_too_late_is_refused_not_failed() {
        for error in [StoreError::NotFound, StoreError::Conflict] {
            assert_eq!(store_error(error).code, Code::InvalidState);
        }
        assert_eq!(store_error(StoreError::AlreadyExists).code, Code::Internal);
    }
}
