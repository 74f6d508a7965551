//! Work on files, on threads beside the tasks that answer.

use std::io;

use http::StatusCode;

use crate::error::{Failure, Result};

pub(crate) use atoll_dialect_kit::disk::{flush_dir, random, save};

/// The answer to a client when the disk fails.
pub(crate) fn broken(error: &dyn std::fmt::Display) -> Failure {
    tracing::error!(%error, "what clients gave cannot be kept or read");
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "it cannot be kept or read")
}

/// Does work on files on a thread beside the tasks that answer.
pub(crate) async fn work<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| broken(&error))?;
    done.map_err(|error| broken(&error))
}
