//! Checkpoints of a sandbox, and forks.

use atoll_api::{
    BatchResult, BatchResults, CreateCheckpoint, ForkSandbox, RollbackSandbox, RolledBack, Snapshot,
    SnapshotList,
};
use atoll_core::snapshot::Comparison;
use atoll_core::spec::RequestKey;
use atoll_engine::ForkOrder;
use axum::Extension;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::sandboxes::unless_answered;
use crate::auth::{Manage, OnSandbox, Read};
use crate::convert;
use crate::error::{ApiResult, body_of};
use crate::extract::{Json, Path, Query};
use crate::hangup::Undo;
use crate::shared::App;

/// Takes a checkpoint: a snapshot that belongs to the sandbox, has a number in it, and goes with it.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/checkpoints", tag = "snapshots",
    security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = CreateCheckpoint, responses((status = 201, body = Snapshot)))]
pub(crate) async fn create_checkpoint(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Json(request): Json<CreateCheckpoint>,
) -> ApiResult<(StatusCode, Json<Snapshot>)> {
    let record = app.engine.create_checkpoint(caller.sandbox(), request.comment, caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(convert::snapshot(record))))
}

/// Lists the checkpoints of a sandbox, newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/checkpoints", tag = "snapshots",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = SnapshotList)))]
pub(crate) async fn list_checkpoints(
    caller: OnSandbox<Read>,
    State(app): State<App>,
) -> ApiResult<Json<SnapshotList>> {
    let found = app.engine.checkpoints(caller.sandbox()).await?;
    Ok(Json(SnapshotList { items: found.into_iter().map(convert::snapshot).collect(), next_cursor: None }))
}

/// Removes a checkpoint.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/checkpoints/{number}", tag = "snapshots",
    security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("number" = u32, Path)),
    responses((status = 204)))]
pub(crate) async fn delete_checkpoint(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Path((_sandbox, number)): Path<(String, u32)>,
) -> ApiResult<StatusCode> {
    app.engine.delete_checkpoint(caller.sandbox(), number).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Puts a sandbox back to a checkpoint, under the same id. What runs in it ends with the reason `rolled_back`;
/// connections are cut. Its checkpoints stay. Until the old disk is replaced nothing of it is touched.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/rollback", tag = "snapshots",
    security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = RollbackSandbox, responses((status = 200, body = RolledBack)))]
pub(crate) async fn rollback_sandbox(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Json(request): Json<RollbackSandbox>,
) -> ApiResult<Json<RolledBack>> {
    let (sandbox, to) = app.engine.rollback(caller.sandbox(), request.to.as_deref(), caller.engine()).await?;
    Ok(Json(RolledBack { sandbox: convert::sandbox(sandbox), to: convert::snapshot(to) }))
}

/// Which points to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffPoints {
    /// The number of a checkpoint, a snapshot on the same image, or `now`. The image when absent.
    from: Option<String>,
    /// The same. Now when absent.
    to: Option<String>,
    /// Also show the difference of small texts.
    #[serde(default)]
    text: bool,
}

/// What was added, changed and removed between two points of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/diff", tag = "snapshots", security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name"), DiffPoints),
    responses((status = 200, body = Comparison)))]
pub(crate) async fn diff_sandbox(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Query(query): Query<DiffPoints>,
) -> ApiResult<Json<Comparison>> {
    let (from, to) = (query.from.as_deref(), query.to.as_deref());
    Ok(Json(app.engine.compare(caller.sandbox(), from, to, query.text, caller.engine()).await?))
}

/// Makes sandboxes that go on from where this one is, or from one of its checkpoints. It goes on itself.
///
/// Files go along; processes do with `memory`, and do not without. Each child has an outcome of its own: a sandbox with a new identity, or an
/// error. When the client leaves before the answer of a request without `name` and `Idempotency-Key`, the children are deleted.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/fork", tag = "sandboxes", security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = ForkSandbox, responses((status = 200, body = BatchResults)))]
pub(crate) async fn fork_sandbox(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    key: Option<Extension<RequestKey>>,
    Json(request): Json<ForkSandbox>,
) -> ApiResult<(Option<Extension<Undo>>, Json<BatchResults>)> {
    let order = ForkOrder {
        count: request.count,
        at: request.at,
        memory: request.memory,
        name: request.name,
        labels: request.labels,
        env: request.env,
        ttl_ms: request.ttl_ms,
    };
    let children = app.engine.fork_sandbox(caller.sandbox(), &order, caller.engine()).await?;
    let may_be_found = key.is_some() || order.name.is_some();
    let lost = children.iter().flatten().filter(|_| !may_be_found).map(|child| child.id.clone());
    let undo = unless_answered(&app, lost.collect());
    let results = children.into_iter().map(|child| match child {
        Ok(record) => BatchResult { sandbox: Some(convert::sandbox(record)), error: None },
        Err(error) => BatchResult { sandbox: None, error: Some(body_of(error, caller.request_id())) },
    });
    Ok((undo, Json(BatchResults { results: results.collect() })))
}
