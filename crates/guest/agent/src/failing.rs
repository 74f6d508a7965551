//! From errno to the reasons of the protocol.

use std::io;

use atoll_guest_protocol::body::BodyError;
use atoll_guest_protocol::messages::{Failure, Reason};
use atoll_guest_protocol::server::{body_failure, failure};
use rustix::io::Errno;

/// Why an operation stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Told to the host.
    Failure(Failure),
    /// The host is gone and cannot be told.
    Gone,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<BodyError> for Stop {
    fn from(error: BodyError) -> Self {
        body_failure(error).map_or(Self::Gone, Self::Failure)
    }
}

/// A malformed request.
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    failure(Reason::Invalid, message)
}

/// The reason an errno stands for.
pub(crate) fn reason(errno: Errno) -> Reason {
    match errno {
        Errno::NOENT => Reason::NotFound,
        Errno::EXIST => Reason::Exists,
        Errno::NOTDIR => Reason::NotADirectory,
        Errno::ISDIR => Reason::IsADirectory,
        Errno::NOTEMPTY => Reason::NotEmpty,
        // Busy are `/`, what is mounted, and programs that run.
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::BUSY | Errno::TXTBSY => Reason::Denied,
        Errno::NOSPC | Errno::DQUOT => Reason::NoSpace,
        Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL | Errno::FBIG | Errno::NXIO | Errno::OPNOTSUPP => {
            Reason::Invalid
        }
        Errno::AGAIN => Reason::NoProcesses,
        Errno::NOMEM => Reason::NoMemory,
        _ => Reason::Other,
    }
}

/// The failure for a kernel error about `what` (a path, mostly).
pub(crate) fn errno(what: &str, errno: Errno) -> Failure {
    failure(reason(errno), format!("{what}: {}", io::Error::from(errno)))
}

/// As [`errno`], for errors of the standard library.
pub(crate) fn io_error(what: &str, error: &io::Error) -> Failure {
    let reason = match error.raw_os_error() {
        Some(raw) => reason(Errno::from_raw_os_error(raw)),
        None if error.kind() == io::ErrorKind::UnexpectedEof => Reason::Invalid,
        None => Reason::Other,
    };
    failure(reason, format!("{what}: {error}"))
}
