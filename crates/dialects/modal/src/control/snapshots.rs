//! Snapshots: of disks, as images, and of memory, to go on from.

use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::sharing::Needs;
use atoll_core::snapshot::{Purpose, SnapshotKind};
use atoll_core::spec::SandboxDraft;
use atoll_dialect_kit::sandboxes::{finish, make_once};
use atoll_engine::SnapshotOrder;
use atoll_failpoint::fail_point;
use std::collections::BTreeMap;

use super::create::Answered;
use super::ended::status;
use super::once::Call;
use super::{images, lifecycle, once, tunnels};
use crate::auth::{self, Asker};
use crate::extras::{self, Extras};
use crate::grpc::{Fault, Result};
use crate::ids::{self, Generation};
use crate::wire::common::GenericResult;
use crate::wire::sandboxes::{
    CommandRouterAccess, SandboxHandleMetadata, SandboxRestoreRequest, SandboxRestoreResponse,
    SandboxRestoreV2Request, SandboxRestoreV2Response, SandboxSnapshotFsRequest, SandboxSnapshotFsResponse,
    SandboxSnapshotGetRequest, SandboxSnapshotGetResponse, SandboxSnapshotHandleMetadata,
    SandboxSnapshotRequest, SandboxSnapshotResponse, SandboxSnapshotWaitRequest, SandboxSnapshotWaitResponse,
};

/// Prefix of the ids of snapshots of memory.
const MEMORY: &str = "sn";
/// Prefix of the ids of images.
const IMAGE: &str = "im";

/// Takes a snapshot once for a key of the client; gives its id in the protocol's form.
///
/// # Errors
/// The engine's errors: `FAILED_PRECONDITION` where an isolation level keeps no memory.
pub(crate) async fn take(
    asker: &Asker,
    sandbox: &SandboxId,
    kind: SnapshotKind,
    key: &str,
    comment: Option<String>,
) -> Result<String> {
    asker.may(sandbox, Scope::Manage).await?;
    let (owned, id) = (asker.clone(), sandbox.clone());
    let prefix = if kind == SnapshotKind::Memory { MEMORY } else { IMAGE };
    let asked = [prefix.as_bytes(), comment.as_deref().unwrap_or_default().as_bytes()];
    let call = Call::with_key(&format!("snapshot {sandbox}"), key, &asked);
    let of = call.clone();
    // Boxed: it is a large future, and is moved several times before it runs.
    let taking = Box::pin(async move {
        let (engine, by) = (owned.engine(), owned.caller());
        let promise = owned.app.control.once.promise(owned.key(), &of).await?;
        let promised = promise.snapshot();
        // An earlier server took the snapshot, and was killed before it answered.
        if promise.renewed && engine.usable_snapshot(promised.as_str(), Needs::READ, by).await.is_ok() {
            return Ok(ids::snapshot(prefix, &promised));
        }
        let order = SnapshotOrder {
            purpose: Purpose::Snapshot,
            tags: Vec::new(),
            comment,
            id: Some(promised),
            begin: Default::default(),
            kind,
        };
        let taken = engine.create_snapshot(&id, order, by).await;
        if taken.is_err() {
            owned.app.control.once.forget(owned.key(), &of).await;
        }
        let record = taken?;
        fail_point!("modal.snapshot.taken");
        Ok(ids::snapshot(prefix, &record.id))
    });
    asker.app.control.once.make(asker.key(), &call, taking).await
}

/// The result of a snapshot that was taken.
fn success() -> GenericResult {
    GenericResult { status: status::SUCCESS, ..GenericResult::default() }
}

/// `SandboxSnapshot`: of the memory.
pub(super) async fn memory(
    asker: &Asker,
    request: SandboxSnapshotRequest,
) -> Result<SandboxSnapshotResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Manage).await?;
    let key = asker.head.text(once::HEADER).unwrap_or_default().to_owned();
    Ok(SandboxSnapshotResponse { snapshot_id: take(asker, &id, SnapshotKind::Memory, &key, None).await? })
}

/// `SandboxSnapshotFs`: of the disk.
pub(super) async fn disk(
    asker: &Asker,
    request: SandboxSnapshotFsRequest,
) -> Result<SandboxSnapshotFsResponse> {
    let (id, _) = auth::sandbox(asker, &request.sandbox_id, Scope::Manage).await?;
    let key = asker.head.text(once::HEADER).unwrap_or_default().to_owned();
    let image_id = take(asker, &id, SnapshotKind::Disk, &key, None).await?;
    Ok(SandboxSnapshotFsResponse {
        image_id,
        result: Some(success()),
        image_metadata: Some(images::metadata()),
    })
}

async fn find(asker: &Asker, text: &str) -> Result<atoll_store::SnapshotRecord> {
    let missing = || Fault::not_found(format!("snapshot '{}' not found", atoll_core::error::shorten(text)));
    let id = ids::parse_snapshot(MEMORY, text).ok_or_else(missing)?;
    let found = asker.engine().usable_snapshot(id.as_str(), Needs::READ, asker.caller()).await;
    found.map_err(|_missing| missing())
}

/// `SandboxSnapshotWait`: a snapshot is complete when the client learns its id.
pub(super) async fn wait(
    asker: &Asker,
    request: SandboxSnapshotWaitRequest,
) -> Result<SandboxSnapshotWaitResponse> {
    asker.needs(Scope::Read)?;
    find(asker, &request.snapshot_id).await?;
    Ok(SandboxSnapshotWaitResponse { result: Some(success()) })
}

/// `SandboxSnapshotGet`.
pub(super) async fn get(
    asker: &Asker,
    request: SandboxSnapshotGetRequest,
) -> Result<SandboxSnapshotGetResponse> {
    asker.needs(Scope::Read)?;
    find(asker, &request.snapshot_id).await?;
    let is_v2 = asker.head.text("x-modal-client-version").is_some_and(is_new);
    Ok(SandboxSnapshotGetResponse {
        snapshot_id: request.snapshot_id,
        handle_metadata: Some(SandboxSnapshotHandleMetadata { is_v2 }),
    })
}

/// Whether a client's version has sandboxes of the second generation. Clients of JavaScript say 1.0.0.
fn is_new(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let version = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    version >= (1, 6) || version == (1, 0)
}

/// `SandboxRestore`.
pub(super) async fn restore_v1(
    asker: &Asker,
    request: SandboxRestoreRequest,
) -> Answered<SandboxRestoreResponse> {
    let (id, undo) = Box::pin(restore(asker, &request.snapshot_id, request.sandbox_name_override)).await?;
    Ok((SandboxRestoreResponse { sandbox_id: ids::sandbox(&id, Generation::V1) }, undo))
}

/// `SandboxRestoreV2`.
pub(super) async fn restore_v2(
    asker: &Asker,
    request: SandboxRestoreV2Request,
) -> Answered<SandboxRestoreV2Response> {
    let (id, undo) = Box::pin(restore(asker, &request.snapshot_id, request.sandbox_name_override)).await?;
    let extras = Extras::of(&asker.engine().sandbox(&id)?);
    let (url, jwt) = lifecycle::access(asker, &id);
    let answer = SandboxRestoreV2Response {
        sandbox_id: ids::sandbox(&id, Generation::V2),
        task_id: ids::task(&id, Generation::V2),
        tunnels: tunnels::of(asker, &id, &extras)?,
        metadata: Some(SandboxHandleMetadata { result: None, app_id: extras.app }),
        command_router_access: Some(CommandRouterAccess { jwt, url }),
    };
    Ok((answer, undo))
}

/// Makes a sandbox that goes on from a snapshot of memory. It does not get the name of the snapshot's sandbox.
async fn restore(asker: &Asker, snapshot: &str, name: String) -> Answered<SandboxId> {
    asker.needs(Scope::Manage)?;
    let record = find(asker, snapshot).await?;
    let engine = asker.engine();
    // While the snapshot's sandbox is there, the server takes its settings from that sandbox.
    let origin = match &record.sandbox {
        Some(id) if asker.may(id, Scope::Read).await.is_ok() => engine.sandbox(id).ok(),
        _ => None,
    };
    let extras =
        Extras { command: false, over: false, ..origin.as_ref().map(Extras::of).unwrap_or_default() };
    let call = Call::of(asker, "restore", &[snapshot.as_bytes(), name.as_bytes()]);
    let draft = SandboxDraft {
        name: Some(name).filter(|name| !name.is_empty()),
        snapshot: Some(record.id.to_string()),
        memory: true,
        ttl_ms: extras.timeout_s.filter(|s| *s > 0).map(|s| u64::from(s) * 1000),
        annotations: BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]),
        ..SandboxDraft::default()
    };
    let (owned, request) = (asker.clone(), call.kept());
    let making = async move {
        let (engine, by) = (owned.engine(), owned.caller());
        let made = make_once(engine, draft, request, by).await?;
        let extras = &extras;
        let finished = finish(engine, by, made, |record| async move {
            tunnels::open(engine, &record.id, &extras.ports, by).await?;
            Ok::<_, Fault>(record)
        });
        let record = Box::pin(finished).await?.into_record();
        owned.app.control.ended.note(&record, &extras.app);
        Ok::<_, Fault>(record.id.to_string())
    };
    let id = Box::pin(asker.app.control.once.make(asker.key(), &call, making)).await?;
    let id: SandboxId = id.parse().map_err(|_never| Fault::not_found("the sandbox is gone"))?;
    let undo = once::undo(asker, &call, &id);
    asker.may(&id, Scope::Read).await?;
    Ok((id, undo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert!(is_new("1.6.4") && is_new("1.0.0") && is_new("2.0"));
        assert!(!is_new("1.5.5") && !is_new("") && !is_new("0.73"));
    }
}
