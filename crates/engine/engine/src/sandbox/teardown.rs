//! Taking a sandbox apart. Idempotent from any state: the same code undoes a creation, deletes, and
//! finishes a deletion that a crash interrupted.

use std::io::ErrorKind;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_isolation::Isolation;

use crate::engine::Inner;
use crate::errors::{isolation_error, store_error};

/// Attempts at removing what resists (a process that takes its time to die), and the pause between.
const ATTEMPTS_MAX_COUNT: u32 = 50;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// Removes everything a driver has for an id.
pub(crate) async fn destroy(driver: &dyn Isolation, id: &SandboxId) -> Result<()> {
    let mut attempt = 1;
    loop {
        match driver.destroy(id).await {
            Ok(()) => return Ok(()),
            Err(error) if attempt == ATTEMPTS_MAX_COUNT => return Err(isolation_error(&error)),
            Err(error) => tracing::debug!(sandbox = %id, %error, "taking a sandbox apart again"),
        }
        attempt += 1;
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }
}

/// Removes instance, checkpoints, logs and row, in this order: while the row is there a crash is made good.
pub(crate) async fn remove(inner: &Inner, driver: &dyn Isolation, id: &SandboxId) -> Result<()> {
    destroy(driver, id).await?;
    atoll_failpoint::fail_point!("engine.delete.destroyed");
    inner.remove_checkpoints(id).await?;
    atoll_failpoint::fail_point!("engine.delete.checkpoints_removed");
    remove_logs(inner, id).await?;
    atoll_failpoint::fail_point!("engine.delete.logs_removed");
    inner.store.delete_sandbox(id).await.map_err(store_error)?;
    atoll_failpoint::fail_point!("engine.delete.unrecorded");
    Ok(())
}

/// Removes the output of its execs.
pub(crate) async fn remove_logs(inner: &Inner, id: &SandboxId) -> Result<()> {
    let removed = tokio::fs::remove_dir_all(inner.logs_dir(id)).await;
    inner.logs.forget(id);
    match removed {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => {
            tracing::error!(sandbox = %id, %error, "failed to remove output logs");
            Err(Error::new(Code::Internal, "failed to remove the sandbox's output logs"))
        }
    }
}
