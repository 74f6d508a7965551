//! Taking up the execs of a sandbox that outlived the server.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::ExecState;
use atoll_core::id::ExecId;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::{GuestClient, GuestError};
use atoll_guest_protocol::messages::{ExecInfo, SignalExec};
use atoll_store::ExecRecord;

use crate::engine::Inner;
use crate::errors::{chain, guest_error, store_error};
use crate::log;
use crate::sandbox::{SandboxShared, wait_for_guest};

use super::disk::{blocking, host_error};
use super::session::{SIGKILL, spawn_taken_up};
use super::shared::{ExecShared, Started};

/// Connections on which it is tried, and the pause between.
const TRIES_MAX_COUNT: u32 = 16;
const PAUSE: Duration = Duration::from_millis(100);
/// How long a guest may take for all that it is asked on one of them.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// How long execs that the guest does not list may take to vanish. One whose stream the guest serves all the same never
/// does, and it is no reason to wait with the sandbox.
const VANISH_WITHIN: Duration = Duration::from_secs(30);

/// Starts the session of every exec that has not ended. Each waits for a connection; one that the guest never
/// heard of vanishes then. Gives their ids.
pub(crate) async fn enter_open(inner: &Arc<Inner>, sandbox: &Arc<SandboxShared>) -> Result<Vec<ExecId>> {
    let open = inner.store.open_execs(&sandbox.id).await.map_err(store_error)?;
    let ids = ids_of(&open);
    for record in open {
        // Its start was counted in a process that could not record it any more.
        if sandbox.meter.is_after_mark(record.created_ms) {
            sandbox.meter.count_exec(record.started_by.as_ref());
        }
        enter_started(inner, sandbox, record).await?;
    }
    Ok(ids)
}

fn ids_of(execs: &[ExecRecord]) -> Vec<ExecId> {
    execs.iter().map(|exec| exec.id.clone()).collect()
}

/// Starts the session of an exec that is recorded and runs already: started by an earlier server, or before its sandbox
/// had an owner.
pub(crate) async fn enter_started(
    inner: &Arc<Inner>,
    sandbox: &Arc<SandboxShared>,
    mut record: ExecRecord,
) -> Result<()> {
    record.state = ExecState::Running;
    // Readers that come back before its session has begun find the output where it was.
    let dir = inner.log_dir(&sandbox.id, &record.id);
    let extent = blocking(move || log::extent(&dir)).await.map_err(|error| host_error(&error))?;
    let exec = ExecShared::new(record, extent, Some(Started::Yes), &inner.clock);
    sandbox.enter_exec(&exec, usize::MAX)?;
    spawn_taken_up(inner, sandbox, &exec);
    Ok(())
}

/// Tells the guest what it need not know any more: ends that are recorded, and starts that were given up. A
/// connection that breaks meanwhile is no reason to give the sandbox up.
pub(crate) async fn tidy_up(inner: &Inner, sandbox: &SandboxShared) -> Result<()> {
    let open = inner.store.open_execs(&sandbox.id).await.map_err(store_error)?;
    tidy_up_but(sandbox, &ids_of(&open)).await
}

/// The same, where it is known which execs are recorded as open. One that ended since is left to its session.
///
/// The guest ends what is not among these: while nothing can begin in the sandbox. It may stand still with all others
/// meanwhile.
pub(crate) async fn tidy_up_but(sandbox: &SandboxShared, open: &[ExecId]) -> Result<()> {
    for _ in 0..TRIES_MAX_COUNT {
        let client = wait_for_guest(sandbox).await?;
        match sandbox.freezer.ask_awake(|| compare_on(&client, open)).await {
            Ok(known) => {
                until_vanished(sandbox, &known).await;
                return Ok(());
            }
            Err(GuestError::Closed | GuestError::Protocol(_)) => tokio::time::sleep(PAUSE).await,
            Err(
                error @ (GuestError::Failure { .. }
                | GuestError::Timeout
                | GuestError::StoodStill
                | GuestError::NoRoom),
            ) => {
                return Err(guest_error(error));
            }
        }
    }
    Err(Error::new(Code::GuestUnavailable, "the connection to the sandbox breaks off again and again"))
}

/// What the guest never heard of is gone when this returns: a retry of it begins anew.
async fn until_vanished(sandbox: &SandboxShared, known: &[ExecInfo]) {
    let unknown = |exec: &Arc<ExecShared>| !known.iter().any(|info| info.exec_id == exec.id().as_str());
    let vanished = async {
        for exec in sandbox.live_execs().iter().filter(|exec| unknown(exec)) {
            exec.over().await;
        }
    };
    if tokio::time::timeout(VANISH_WITHIN, vanished).await.is_err() {
        tracing::warn!(sandbox = %sandbox.id, "execs that the guest does not list do not vanish; going on without");
    }
}

async fn compare_on(client: &GuestClient, open: &[ExecId]) -> Result<Vec<ExecInfo>, GuestError> {
    tokio::time::timeout(ANSWERS_WITHIN, compare(client, open)).await.unwrap_or(Err(GuestError::Timeout))
}

async fn compare(client: &GuestClient, open: &[ExecId]) -> Result<Vec<ExecInfo>, GuestError> {
    let known = client.list_execs().await?;
    for info in &known {
        if open.iter().any(|exec| exec.as_str() == info.exec_id) {
            continue;
        }
        // Its end is recorded and the guest had not been told; or its start was given up, and it runs although no row
        // says so.
        let told = if info.exited {
            client.forget_exec(&info.exec_id).await
        } else {
            let exec_id = info.exec_id.clone();
            client.signal_exec(SignalExec { exec_id, signal: SIGKILL, tree: true }).await
        };
        match told {
            Err(error @ GuestError::Failure { .. }) => {
                tracing::debug!(exec = info.exec_id, error = chain(&error), "a guest keeps an unknown exec");
            }
            told => told?,
        }
    }
    Ok(known)
}
