//! Files that clients send to the server, and not into a sandbox.

use std::path::Path;

use atoll_core::{Code, Error};
use atoll_server::dialect::Pieces;
use axum::body::Body;
use tokio::io::AsyncWriteExt as _;

/// Writes the body of a request into a new file, and makes the file's directory. Returns its size, bytes. When it
/// fails, the caller must remove what was written so far.
///
/// # Errors
/// [`Code::TooLarge`] beyond `max_bytes`; the error of a body that breaks off; [`Code::Internal`] when the disk fails.
pub async fn receive(path: &Path, body: Body, max_bytes: u64) -> Result<u64, Error> {
    receive_with(path, body, max_bytes, |_| {}).await
}

/// The same; calls `seen` with each piece as it comes.
///
/// # Errors
/// As [`receive`].
pub async fn receive_with(
    path: &Path,
    body: Body,
    max_bytes: u64,
    mut seen: impl FnMut(&[u8]),
) -> Result<u64, Error> {
    let seen = |piece: &[u8]| {
        seen(piece);
        Ok(())
    };
    receive_if(path, body, max_bytes, seen).await
}

/// The same; asks with each piece as it comes whether it may be kept.
///
/// # Errors
/// As [`receive`]; the error of `may`.
pub async fn receive_if(
    path: &Path,
    body: Body,
    max_bytes: u64,
    mut may: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<u64, Error> {
    let broken = |error: std::io::Error| {
        tracing::error!(%error, "what a client sent cannot be kept");
        Error::new(Code::Internal, "what was sent cannot be kept")
    };
    if let Some(dir) = path.parent() {
        tokio::fs::create_dir_all(dir).await.map_err(broken)?;
    }
    let mut file = tokio::fs::File::create(path).await.map_err(broken)?;
    let mut pieces = Pieces::new(body);
    let mut taken = 0_u64;
    while let Some(piece) = pieces.next().await? {
        taken += piece.len() as u64;
        if taken > max_bytes {
            return Err(Error::new(
                Code::TooLarge,
                format!("what was sent is larger than {max_bytes} bytes"),
            ));
        }
        may(&piece)?;
        file.write_all(&piece).await.map_err(broken)?;
    }
    file.flush().await.map_err(broken)?;
    Ok(taken)
}
