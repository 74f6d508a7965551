//! Snapshots as streams of bytes.

use atoll_api::{PullSnapshot, PushSnapshot, PushedSnapshot, Snapshot};
use atoll_core::sharing::Visibility;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use utoipa::IntoParams;

use super::snapshots::references;
use crate::auth::{Caller, Manage, OnSnapshot};
use crate::body::reader;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;

/// A snapshot as a file, to be imported elsewhere. It holds what is in the disk and the environment of the
/// sandbox, but not the image below it.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}/export", tag = "snapshots", security(("key" = ["manage"])),
    params(("snapshot" = String, Path, description = "Id, `name` or `name:tag`")),
    responses((status = 200, content_type = "application/zstd", body = Vec<u8>)))]
pub(crate) async fn export_snapshot(
    caller: OnSnapshot<Manage>,
    State(app): State<App>,
) -> ApiResult<Response> {
    let (_record, stream) = app.engine.export_snapshot(&caller.snapshot().id, caller.engine()).await?;
    Ok(([(CONTENT_TYPE, "application/zstd")], Body::from_stream(stream)).into_response())
}

/// Sends a snapshot to the server's object store. What is there already is not sent again.
#[utoipa::path(post, path = "/v1/snapshots/{snapshot}/push", tag = "snapshots", security(("key" = ["manage"])),
    params(("snapshot" = String, Path, description = "Id, `name` or `name:tag`")),
    request_body = PushSnapshot, responses((status = 200, body = PushedSnapshot)))]
pub(crate) async fn push_snapshot(
    caller: OnSnapshot<Manage>,
    State(app): State<App>,
    Json(request): Json<PushSnapshot>,
) -> ApiResult<Json<PushedSnapshot>> {
    let pushed =
        app.engine.push_snapshot(&caller.snapshot().id, references(&request.tags)?, caller.engine()).await?;
    Ok(Json(PushedSnapshot {
        digest: pushed.digest,
        tags: pushed.tags.iter().map(ToString::to_string).collect(),
        sent_bytes: pushed.sent_bytes,
    }))
}

/// Fetches a snapshot from the server's object store, by its digest or by a reference there.
#[utoipa::path(post, path = "/v1/snapshots/pull", tag = "snapshots", security(("key" = ["manage"])),
    request_body = PullSnapshot, responses((status = 201, body = Snapshot)))]
pub(crate) async fn pull_snapshot(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<PullSnapshot>,
) -> ApiResult<(StatusCode, Json<Snapshot>)> {
    let tags = references(&request.tags)?;
    let record = app.engine.pull_snapshot(&request.from, tags, request.visibility, caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(convert::snapshot(record))))
}

/// How to call it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportSnapshot {
    /// A reference that shall point to it; may be repeated.
    #[serde(default)]
    tag: Vec<String>,
    /// Who sees it: `private` is you and administrators. The server's default when absent.
    visibility: Option<Visibility>,
}

/// Makes a snapshot of an exported one. What is damaged, or does not fit this server, is refused with the reason.
#[utoipa::path(post, path = "/v1/snapshots/import", tag = "snapshots", security(("key" = ["manage"])),
    params(ImportSnapshot), request_body(content = Vec<u8>, content_type = "application/zstd"),
    responses((status = 201, body = Snapshot)))]
pub(crate) async fn import_snapshot(
    caller: Caller<Manage>,
    State(app): State<App>,
    Query(query): Query<ImportSnapshot>,
    body: Body,
) -> ApiResult<(StatusCode, Json<Snapshot>)> {
    let tags = references(&query.tag)?;
    let record = app.engine.import_snapshot(reader(body), tags, query.visibility, caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(convert::snapshot(record))))
}
