//! Volumes, and files in them without a sandbox.

use atoll_api::{CreateVolume, FileEntry, FileList, FileWritten, Volume, VolumeList};
use atoll_engine::VolumeWrite;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use crate::auth::{Caller, Exec, Manage, OnVolume, Read};
use crate::body;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Query, octal};
use crate::shared::App;

/// Most entries of one listing.
const LIST_MAX_COUNT: usize = 10_000;
/// Bytes read from a file at once.
const PIECE_BYTES: usize = 128 << 10;

/// Makes a volume, empty or as a copy of another at this moment.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", security(("key" = ["manage"])),
    request_body = CreateVolume, responses((status = 201, body = Volume)))]
pub(crate) async fn create_volume(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<CreateVolume>,
) -> ApiResult<(StatusCode, Json<Volume>)> {
    let view = app.engine.create_volume(request.into(), caller.engine()).await?;
    Ok((StatusCode::CREATED, Json(convert::volume(view))))
}

/// Lists volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", security(("key" = ["read"])),
    responses((status = 200, body = VolumeList)))]
pub(crate) async fn list_volumes(caller: Caller<Read>, State(app): State<App>) -> Json<VolumeList> {
    Json(VolumeList { items: app.engine.volumes(caller.engine()).into_iter().map(convert::volume).collect() })
}

/// One volume, with its space.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes", security(("key" = ["read"])),
    params(("volume" = String, Path, description = "Id or name")), responses((status = 200, body = Volume)))]
pub(crate) async fn get_volume(caller: OnVolume<Read>, State(app): State<App>) -> ApiResult<Json<Volume>> {
    Ok(Json(convert::volume(app.engine.volume(caller.volume(), caller.engine()).await?)))
}

/// Deletes a volume with everything in it. Refused with `volume_busy` while a sandbox has it.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", security(("key" = ["manage"])),
    params(("volume" = String, Path, description = "Id or name")), responses((status = 204)))]
pub(crate) async fn delete_volume(caller: OnVolume<Manage>, State(app): State<App>) -> ApiResult<StatusCode> {
    app.engine.delete_volume(caller.volume(), caller.engine()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfVolume {
    /// Path from the volume's root.
    path: String,
}

/// The bytes of a file in a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files", tag = "volumes", security(("key" = ["read"])),
    params(("volume" = String, Path, description = "Id or name"), OfVolume),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>)))]
pub(crate) async fn read_volume_file(
    caller: OnVolume<Read>,
    State(app): State<App>,
    Query(query): Query<OfVolume>,
) -> ApiResult<Response> {
    let file = tokio::fs::File::from_std(app.engine.read_in_volume(caller.volume(), &query.path).await?);
    let length = file.metadata().await.map(|meta| meta.len()).unwrap_or_default();
    // The answer is as long as the file was when it was opened, even if the file grows meanwhile.
    let bytes = ReaderStream::with_capacity(tokio::io::AsyncReadExt::take(file, length), PIECE_BYTES);
    let mut response = Body::from_stream(bytes).into_response();
    let head = response.headers_mut();
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(CONTENT_LENGTH, length.into());
    Ok(response)
}

/// Which file, and how to make it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteVolumeFile {
    /// Path from the volume's root.
    path: String,
    /// Permissions in octal; `0644` when absent.
    mode: Option<String>,
    /// Owner, by number; root when absent.
    #[serde(default)]
    uid: u16,
    /// Group, by number; root when absent.
    #[serde(default)]
    gid: u16,
    /// Make missing directories.
    #[serde(default)]
    parents: bool,
}

/// Writes a file in a volume, whole or not at all.
#[utoipa::path(put, path = "/v1/volumes/{volume}/files", tag = "volumes", security(("key" = ["exec"])),
    params(("volume" = String, Path, description = "Id or name"), WriteVolumeFile),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileWritten)))]
pub(crate) async fn write_volume_file(
    caller: OnVolume<Exec>,
    State(app): State<App>,
    Query(query): Query<WriteVolumeFile>,
    body: Body,
) -> ApiResult<Json<FileWritten>> {
    let mode = query.mode.as_deref().map_or(Ok(0o644), |text| octal("mode", text))?;
    let (uid, gid) = (query.uid.into(), query.gid.into());
    let write = VolumeWrite { mode, uid, gid, parents: query.parents, replace: true };
    let content = Box::new(body::reader(body));
    let bytes = app.engine.write_in_volume(caller.volume(), &query.path, write, content).await?;
    Ok(Json(FileWritten { bytes }))
}

/// Which file to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveVolumeFile {
    /// Path from the volume's root.
    path: String,
    /// A directory with everything in it.
    #[serde(default)]
    recursive: bool,
}

/// Removes a file or directory in a volume.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/files", tag = "volumes", security(("key" = ["exec"])),
    params(("volume" = String, Path, description = "Id or name"), RemoveVolumeFile),
    responses((status = 204)))]
pub(crate) async fn remove_volume_file(
    caller: OnVolume<Exec>,
    State(app): State<App>,
    Query(query): Query<RemoveVolumeFile>,
) -> ApiResult<StatusCode> {
    app.engine.remove_in_volume(caller.volume(), &query.path, query.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a path in a volume is. A symbolic link is not followed.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/stat", tag = "volumes", security(("key" = ["read"])),
    params(("volume" = String, Path, description = "Id or name"), OfVolume),
    responses((status = 200, body = FileEntry)))]
pub(crate) async fn stat_volume_file(
    caller: OnVolume<Read>,
    State(app): State<App>,
    Query(query): Query<OfVolume>,
) -> ApiResult<Json<FileEntry>> {
    Ok(Json(convert::volume_file(app.engine.stat_in_volume(caller.volume(), &query.path).await?)))
}

/// Entries of a directory in a volume, by name; at most 10,000.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files/list", tag = "volumes", security(("key" = ["read"])),
    params(("volume" = String, Path, description = "Id or name"), OfVolume),
    responses((status = 200, body = FileList)))]
pub(crate) async fn list_volume_files(
    caller: OnVolume<Read>,
    State(app): State<App>,
    Query(query): Query<OfVolume>,
) -> ApiResult<Json<FileList>> {
    let (files, truncated) = app.engine.list_in_volume(caller.volume(), &query.path, LIST_MAX_COUNT).await?;
    Ok(Json(FileList { items: files.into_iter().map(convert::volume_file).collect(), truncated }))
}
