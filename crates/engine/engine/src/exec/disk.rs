//! Output logs from async tasks: their calls block, so they run on threads of their own.

use std::io;

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use bytes::Bytes;

use crate::log::LogWriter;

/// Appends what of `pieces` the log does not have yet; they begin at `base`.
pub(super) fn append_from(log: &mut LogWriter, base: u64, pieces: &[(bool, Bytes)]) -> io::Result<()> {
    let mut at = base;
    for (stderr, bytes) in pieces {
        let have =
            usize::try_from(log.extent().end.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
        let stream = if *stderr { OutputStream::Stderr } else { OutputStream::Stdout };
        log.append(stream, &bytes[have..])?;
        at += bytes.len() as u64;
    }
    Ok(())
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => Err(io::Error::other(error)),
        // The runtime ends, and this task with it: nothing failed that could be recorded as an end.
        Err(_cancelled) => std::future::pending().await,
    }
}

/// Lends a writer to a blocking thread.
pub(super) async fn blocking_with(
    mut log: LogWriter,
    work: impl FnOnce(&mut LogWriter) -> io::Result<()> + Send + 'static,
) -> (LogWriter, io::Result<()>) {
    let done = tokio::task::spawn_blocking(move || {
        let outcome = work(&mut log);
        (log, outcome)
    });
    match done.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(_cancelled) => std::future::pending().await,
        },
    }
}

pub(super) fn host_error(error: &io::Error) -> Error {
    tracing::error!(%error, "an output log cannot be opened");
    Error::new(Code::Internal, "the host cannot keep the output log")
}
