//! Snapshots.

use atoll_api::{CreateSnapshot, RemovedSnapshot, Snapshot, SnapshotList, TagSnapshot};
use atoll_core::Result;
use atoll_core::snapshot::{Reference, SnapshotKind};
use atoll_engine::{Begin, SnapshotOrder, SnapshotQuery};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Caller, Manage, OnSandbox, OnSnapshot, Read};
use crate::bounds;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;

/// Reads references.
pub(super) fn references(texts: &[String]) -> Result<Vec<Reference>> {
    texts.iter().map(|text| text.parse()).collect()
}

/// Takes a snapshot of a sandbox's disk. The sandbox goes on: it cannot write for some milliseconds, however
/// much is on its disk, where the host can clone files (see `method`).
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/snapshots", tag = "snapshots",
    security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = CreateSnapshot, responses((status = 201, body = Snapshot)))]
pub(crate) async fn create_snapshot(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Json(request): Json<CreateSnapshot>,
) -> ApiResult<(StatusCode, Json<Snapshot>)> {
    let order = SnapshotOrder {
        tags: references(&request.tags)?,
        comment: request.comment,
        begin: Begin { env: request.env, user: request.user, workdir: request.workdir },
        kind: if request.memory { SnapshotKind::Memory } else { SnapshotKind::Disk },
        ..SnapshotOrder::unnamed()
    };
    let record = app.engine.create_snapshot(caller.sandbox(), order, caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(convert::snapshot(record))))
}

/// Which snapshots to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListSnapshots {
    /// Taken of this sandbox: its id, or its name while it lives.
    sandbox: Option<String>,
    /// With a reference of this name.
    name: Option<String>,
    /// Most items: 1 to 1000, 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

/// Lists snapshots, newest first. Checkpoints are listed with their sandbox.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", security(("key" = ["read"])),
    params(ListSnapshots), responses((status = 200, body = SnapshotList)))]
pub(crate) async fn list_snapshots(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<ListSnapshots>,
) -> ApiResult<Json<SnapshotList>> {
    let query = SnapshotQuery {
        sandbox: query.sandbox,
        name: query.name,
        checkpoints: false,
        cursor: query.cursor,
        limit: query.limit,
    };
    Ok(Json(convert::snapshots(app.engine.snapshots(&query, caller.engine()).await?)))
}

/// One snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", tag = "snapshots", security(("key" = ["read"])),
    params(("snapshot" = String, Path, description = "Id, `name` or `name:tag`")),
    responses((status = 200, body = Snapshot)))]
pub(crate) async fn get_snapshot(
    caller: OnSnapshot<Read>,
    State(app): State<App>,
) -> ApiResult<Json<Snapshot>> {
    Ok(Json(convert::snapshot(app.engine.snapshot(&caller.snapshot().id).await?)))
}

/// Makes a reference point to a snapshot; it leaves what it points to now.
#[utoipa::path(post, path = "/v1/snapshots/{snapshot}/tags", tag = "snapshots", security(("key" = ["manage"])),
    params(("snapshot" = String, Path, description = "Id, `name` or `name:tag`")),
    request_body = TagSnapshot, responses((status = 200, body = Snapshot)))]
pub(crate) async fn tag_snapshot(
    caller: OnSnapshot<Manage>,
    State(app): State<App>,
    Json(request): Json<TagSnapshot>,
) -> ApiResult<Json<Snapshot>> {
    let record =
        app.engine.tag_snapshot(&caller.snapshot().id, &request.tag.parse()?, caller.engine()).await?;
    Ok(Json(convert::snapshot(record)))
}

/// Removes a snapshot with all its references, by its id; or one reference, and the snapshot with its last one.
/// Sandboxes made from it go on. Refused while a template stands on it.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", tag = "snapshots", security(("key" = ["manage"])),
    params(("snapshot" = String, Path, description = "Id, `name` or `name:tag`")),
    responses((status = 200, body = RemovedSnapshot)))]
pub(crate) async fn delete_snapshot(
    caller: OnSnapshot<Manage>,
    State(app): State<App>,
) -> ApiResult<Json<RemovedSnapshot>> {
    let found = caller.snapshot();
    let removed = app.engine.delete_snapshot(&found.id, found.reference.as_ref(), caller.engine()).await?;
    Ok(Json(RemovedSnapshot {
        tags: removed.tags.iter().map(ToString::to_string).collect(),
        snapshot: removed.snapshot.map(Into::into),
    }))
}
