//! Turns a kernel's refusal into the driver's error, naming the step; and an error into one text.

use std::io;

use crate::IsolationError;

/// Names what was being done when something failed.
pub trait Step<T> {
    /// `what` completes "failed to …".
    fn step(self, what: impl Into<String>) -> Result<T, IsolationError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: impl Into<String>) -> Result<T, IsolationError> {
        self.map_err(|error| failed(what.into(), error.into()))
    }
}

/// An error with all its causes.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The error of a failed step: tells an exhausted host ([`IsolationError::HostFull`]) from a refusal of the kernel.
pub fn failed(step: String, source: io::Error) -> IsolationError {
    let exhausted = match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Some("the host's disk is full"),
        Some(libc::EMFILE | libc::ENFILE) => Some("the host has no file descriptors left"),
        Some(libc::ENOMEM) => Some("the host has no memory left"),
        _ => None,
    };
    match exhausted {
        Some(what) => IsolationError::HostFull { what: format!("{what}: failed to {step}"), source },
        None => IsolationError::Kernel { step, source },
    }
}
