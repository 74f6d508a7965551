//! Time and randomness: the engine takes them here and nowhere else.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_core::{Code, Error, Result};

/// Milliseconds since the epoch. A clock before 1970 counts as 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Random bits for an id.
///
/// # Errors
/// [`Code::Internal`] when the kernel gives no randomness.
pub(crate) fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        tracing::error!(%error, "the kernel gave no randomness");
        Error::new(Code::Internal, "the host's random generator failed")
    })
}
