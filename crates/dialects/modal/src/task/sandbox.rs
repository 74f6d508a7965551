//! Calls about the sandbox as a whole: whether it is ready, its network, its snapshots.

use std::time::Duration;

use atoll_core::key::Scope;
use atoll_core::policy::EgressPolicy;
use atoll_core::snapshot::SnapshotKind;
use atoll_core::spec::{Command, ExecDraft, SandboxUpdate};
use atoll_dialect_kit::status::Status;

use super::Inside;
use crate::control;
use crate::extras::{Extras, Probe};
use crate::grpc::{Fault, Result};
use crate::wire::router::{
    SandboxWaitUntilReadyTcrRequest, SandboxWaitUntilReadyTcrResponse, TaskReloadVolumesRequest,
    TaskReloadVolumesResponse, TaskSetNetworkAccessRequest, TaskSetNetworkAccessResponse,
    TaskSnapshotFilesystemRequest, TaskSnapshotFilesystemResponse, TaskSnapshotMemoryRequest,
    TaskSnapshotMemoryResponse,
};

/// Longest that one call waits, seconds.
const READY_MAX_S: f32 = 600.0;
/// Longest that one look at a sandbox lasts.
const LOOK: Duration = Duration::from_secs(10);
/// Time limit of a command that looks whether a sandbox is ready, milliseconds.
const LOOK_MS: u64 = 10_000;

pub(super) fn no_container(id: &str) -> Result<()> {
    if id.is_empty() {
        return Ok(());
    }
    Err(Fault::unsupported("sidecar containers are not supported by this server"))
}

/// `SandboxWaitUntilReady`.
pub(super) async fn wait_until_ready(
    inside: &Inside,
    request: SandboxWaitUntilReadyTcrRequest,
) -> Result<SandboxWaitUntilReadyTcrResponse> {
    inside.is(&request.task_id)?;
    let record = inside.asker.engine().sandbox(inside.id())?;
    let Some(probe) = Extras::of(&record).probe else {
        return Err(Fault::unsupported("the sandbox was made without a readiness probe"));
    };
    let looking = async {
        while !is_ready(inside, &probe).await? {
            tokio::time::sleep(Duration::from_millis(probe.interval_ms)).await;
            inside.asker.recheck()?;
        }
        Ok::<_, Fault>(())
    };
    let limit = control::seconds(request.timeout, READY_MAX_S);
    let ready = Box::pin(inside.asker.head.gone.unless_gone(tokio::time::timeout(limit, looking))).await?;
    ready.map_err(|_elapsed| Fault::new(Status::DeadlineExceeded, "the sandbox is not ready yet"))??;
    let ready_at = Duration::from_millis(inside.asker.engine().now_ms()).as_secs_f64();
    Ok(SandboxWaitUntilReadyTcrResponse { ready_at })
}

async fn is_ready(inside: &Inside, probe: &Probe) -> Result<bool> {
    let engine = inside.asker.engine();
    if let Some(port) = probe.port {
        engine.sandbox(inside.id())?;
        return Ok(engine.connect_port(inside.id(), port).await.is_ok());
    }
    let draft = ExecDraft { timeout_ms: Some(LOOK_MS), ..ExecDraft::new(Command::Argv(probe.argv.clone())) };
    let view = engine.create_exec(inside.id(), draft, inside.asker.caller()).await?;
    let view = engine.wait_exec(inside.id(), view.record.id.as_str(), LOOK).await?;
    Ok(view.record.exit.is_some_and(|exit| exit.code == Some(0)))
}

/// `TaskSetNetworkAccess`.
pub(super) async fn set_network_access(
    inside: &Inside,
    request: TaskSetNetworkAccessRequest,
) -> Result<TaskSetNetworkAccessResponse> {
    inside.is(&request.task_id)?;
    inside.asker.may(&inside.sandbox, Scope::Manage).await?;
    let engine = inside.asker.engine();
    let record = engine.sandbox(inside.id())?;
    let egress = match control::policy(request.network_access.as_ref(), false)? {
        Some(policy) => policy,
        // Open means the policy that the sandbox would have if its client had asked for none.
        None => engine.egress_unless_told(record.project.as_ref(), record.spec.template.as_deref()).await?,
    };
    // The rules that stand for secrets stay.
    let egress = EgressPolicy { inject: record.spec.egress.inject, ..egress };
    let update = SandboxUpdate {
        egress: Some(egress),
        asked_by: Some(inside.asker.key().clone()),
        ..SandboxUpdate::default()
    };
    engine.update_sandbox(inside.id(), update).await?;
    Ok(TaskSetNetworkAccessResponse {})
}

/// `TaskReloadVolumes`: volumes are up to date anyway.
pub(super) async fn reload_volumes(
    inside: &Inside,
    request: TaskReloadVolumesRequest,
) -> Result<TaskReloadVolumesResponse> {
    inside.is(&request.task_id)?;
    no_container(&request.container_id)?;
    Ok(TaskReloadVolumesResponse {})
}

/// `TaskSnapshotFilesystem`. The server ignores the time to live: the snapshot stays until it is deleted.
pub(super) async fn snapshot_filesystem(
    inside: &Inside,
    request: TaskSnapshotFilesystemRequest,
) -> Result<TaskSnapshotFilesystemResponse> {
    inside.is(&request.task_id)?;
    no_container(&request.container_id)?;
    if request.customer_supplied_encryption_key.is_some() {
        return Err(Fault::unsupported("encryption keys of snapshots are not supported by this server"));
    }
    let (kind, key) = (SnapshotKind::Disk, &request.snapshot_id);
    let taken = control::snapshot(&inside.asker, &inside.sandbox, kind, key, None);
    Ok(TaskSnapshotFilesystemResponse { image_id: taken.await? })
}

/// `TaskSnapshotMemory`.
pub(super) async fn snapshot_memory(
    inside: &Inside,
    request: TaskSnapshotMemoryRequest,
) -> Result<TaskSnapshotMemoryResponse> {
    inside.is(&request.task_id)?;
    let key = &request.idempotency_key;
    let taken = control::snapshot(&inside.asker, &inside.sandbox, SnapshotKind::Memory, key, None);
    Ok(TaskSnapshotMemoryResponse { snapshot_id: taken.await? })
}
