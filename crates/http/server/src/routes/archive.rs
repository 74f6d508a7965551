//! Directories as tar streams.

use atoll_api::FileWritten;
use atoll_engine::guest_error;
use atoll_guest_protocol::messages;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use utoipa::IntoParams;

use super::files::{owner, path};
use super::upload::copy;
use crate::auth::{Exec, OnSandbox, Read};
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;
use crate::transfer::{self, Source};

/// What to pack.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadArchive {
    /// Absolute path of a file or directory. Names in the archive begin with its last part.
    path: String,
}

/// A file or directory with everything below, as a tar stream.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/archive", tag = "files", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ReadArchive),
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>)))]
pub(crate) async fn read_archive(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Query(query): Query<ReadArchive>,
) -> ApiResult<Response> {
    let path = path("path", query.path)?;
    let lease = app.engine.guest(caller.sandbox()).await?;
    let mut source = Source::Archive(lease.pack(&path).await.map_err(guest_error)?);
    // With the first piece in hand it is known that there is something to send.
    let first = source.next().await?;
    let body = transfer::body(lease, source, first, None);
    Ok(([(CONTENT_TYPE, "application/x-tar")], body).into_response())
}

/// Where to unpack.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteArchive {
    /// Absolute path of the directory; made when it is absent.
    path: String,
    /// Owner of everything unpacked: name or id, optionally `:group`; the sandbox's default user when
    /// absent.
    user: Option<String>,
}

/// Unpacks a tar stream below a directory. Members that lead outside it are refused.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/archive", tag = "files", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), WriteArchive),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = FileWritten)))]
pub(crate) async fn write_archive(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Query(query): Query<WriteArchive>,
    body: Body,
) -> ApiResult<Json<FileWritten>> {
    let user = owner(&app, caller.sandbox(), query.user)?;
    let request = messages::Unpack { path: path("path", query.path)?, user };
    let lease = app.engine.guest(caller.sandbox()).await?;
    let writer = lease.unpack(request).await.map_err(guest_error)?;
    Ok(Json(FileWritten { bytes: copy(&lease, body, writer).await? }))
}
