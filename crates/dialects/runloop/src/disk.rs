//! What is kept in files: work beside the tasks that answer, files that are whole or not there, random names.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use http::StatusCode;

use crate::error::{Failure, Result};

/// What a client is told when the disk fails.
pub(crate) fn broken(error: &dyn std::fmt::Display) -> Failure {
    tracing::error!(%error, "what clients gave cannot be kept or read");
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "it cannot be kept or read")
}

/// Work on files, beside the tasks that answer.
pub(crate) async fn work<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| broken(&error))?;
    done.map_err(|error| broken(&error))
}

/// 64 random hexadecimal digits.
pub(crate) fn random() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(blake3::Hash::from_bytes(bytes).to_hex().to_string())
}

/// Makes names in a directory survive a power cut.
pub(crate) fn flush_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Puts a file in place, or in the place of an older one: at no time half of it.
pub(crate) fn save(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let beside = dir.join(format!("{name}.part"));
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(beside, dir.join(name))?;
    flush_dir(dir)
}
