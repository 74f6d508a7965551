//! Writing a file: the body streams into the guest, and the file appears when all of it is there.

use atoll_api::FileWritten;
use atoll_core::Result;
use atoll_engine::{FileWriter, GuestLease, guest_error};
use atoll_guest_protocol::messages;
use axum::body::Body;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::files::{mode, owner, path};
use crate::auth::{Exec, OnSandbox};
use crate::body::Pieces;
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;

/// Which file, and how to make it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteFile {
    /// Absolute path in the sandbox.
    path: String,
    /// Permissions in octal; `0644` for a new file, unchanged for an old one, when absent.
    mode: Option<String>,
    /// Owner of what is made: name or id, optionally `:group`; the sandbox's default user when absent.
    user: Option<String>,
    /// Make missing directories.
    #[serde(default)]
    parents: bool,
}

/// Writes a file, whole or not at all.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files", tag = "files", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), WriteFile),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileWritten)))]
pub(crate) async fn write_file(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Query(query): Query<WriteFile>,
    body: Body,
) -> ApiResult<Json<FileWritten>> {
    let request = messages::Write {
        path: path("path", query.path)?,
        mode: mode(query.mode.as_deref())?.unwrap_or_default(),
        user: owner(&app, caller.sandbox(), query.user)?,
        parents: query.parents,
        in_place: false,
    };
    let lease = app.engine.guest(caller.sandbox()).await?;
    let writer = lease.write(request).await.map_err(guest_error)?;
    Ok(Json(FileWritten { bytes: copy(&lease, body, writer).await? }))
}

/// Moves a request's body into the guest, at the pace of the slower. Giving up on the way drops the
/// writer, which undoes a file. The lease is held meanwhile: the sandbox is not idle.
///
/// # Errors
/// What the guest refuses; what is wrong with the body.
pub(crate) async fn copy(_lease: &GuestLease, body: Body, mut writer: FileWriter) -> Result<u64> {
    let mut pieces = Pieces::new(body);
    while let Some(piece) = pieces.next().await? {
        writer.send(piece).await.map_err(guest_error)?;
    }
    writer.finish().await.map_err(guest_error)
}
