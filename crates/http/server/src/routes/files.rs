//! Files in a sandbox: reading, looking, changing.

use atoll_api::{Chmod, FileEntry, FileList, Mkdir, MoveFile};
use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result, spec};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::messages;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Exec, OnSandbox, Read};
use crate::bounds::{self, DEPTH, ENTRIES};
use crate::convert;
use crate::error::{ApiError, ApiResult};
use crate::extract::{Json, Query, octal};
use crate::shared::App;
use crate::transfer::{self, OpenFile, Wanted};

/// Checks a path from a query or a body.
pub(super) fn path(field: &str, text: String) -> Result<String> {
    spec::path(field, &text)?;
    Ok(text)
}

/// The owner of what is made: as asked, else the sandbox's default user.
pub(super) fn owner(app: &App, sandbox: &SandboxId, user: Option<String>) -> Result<String> {
    match user {
        None => Ok(app.engine.sandbox(sandbox)?.spec.user),
        Some(user) => checked_user(user),
    }
}

fn checked_user(user: String) -> Result<String> {
    spec::user("user", &user)?;
    Ok(user)
}

/// Which file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfFile {
    /// Absolute path in the sandbox.
    path: String,
}

/// The bytes of a file. Takes `Range` with one range.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files", tag = "files", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), OfFile),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "It has the `If-None-Match` tag"),
    ))]
pub(crate) async fn read_file(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Query(query): Query<OfFile>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let path = path("path", query.path)?;
    read_path(app.engine.guest(caller.sandbox()).await?, path, &headers).await
}

/// Answers with the bytes of a file, whole or as the head asks for.
pub(crate) async fn read_path(lease: GuestLease, path: String, headers: &HeaderMap) -> ApiResult<Response> {
    let look = headers.contains_key(RANGE) || headers.contains_key(IF_NONE_MATCH);
    let mut file = OpenFile::open(lease, path, look).await?;
    let tag = etag(file.info());
    if headers.get(IF_NONE_MATCH).is_some_and(|known| *known == tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response());
    }
    let size = file.size().await?;
    // Our tags are weak, and a weak tag never satisfies `If-Range`: then the whole file is the answer.
    let (part, length) = match size.map(|size| (size, transfer::wanted(headers, size, None))) {
        Some((size, Wanted::Nothing)) => return Ok(unsatisfiable(size)),
        Some((_, Wanted::Part(first, last))) => (Some((first, last)), Some(last - first + 1)),
        Some((_, Wanted::All)) | None => (None, size),
    };
    let mut response = file.body(part).await?.into_response();
    let head = response.headers_mut();
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    head.insert(ETAG, tag);
    if let Some(length) = length {
        head.insert(CONTENT_LENGTH, length.into());
    }
    if let (Some((first, last)), Some(size)) = (part, size) {
        head.insert(CONTENT_RANGE, ascii(format!("bytes {first}-{last}/{size}")));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

fn etag(info: &messages::FileInfo) -> HeaderValue {
    ascii(format!("W/\"{:x}-{:x}\"", info.size, info.modified_ns))
}

/// Header text that we made of numbers.
fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

fn unsatisfiable(size: u64) -> Response {
    let error = Error::new(
        Code::OffsetOutOfRange,
        format!("the range lies outside the file, which has {size} bytes"),
    )
    .hint("ask for a range inside it");
    let mut response = ApiError(error).into_response();
    response.headers_mut().insert(CONTENT_RANGE, ascii(format!("bytes */{size}")));
    response
}

/// What to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveFile {
    /// Absolute path in the sandbox.
    path: String,
    /// With everything below.
    #[serde(default)]
    recursive: bool,
}

/// Removes a file or directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/files", tag = "files", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), RemoveFile),
    responses((status = 204)))]
pub(crate) async fn remove_file(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Query(query): Query<RemoveFile>,
) -> ApiResult<StatusCode> {
    let request = messages::Remove { path: path("path", query.path)?, recursive: query.recursive };
    app.engine.guest(caller.sandbox()).await?.remove(request).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// What to describe.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatFile {
    /// Absolute path in the sandbox.
    path: String,
    /// Describe what a symbolic link points to, rather than the link itself.
    #[serde(default)]
    follow: bool,
}

/// Describes a file, directory or link.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/stat", tag = "files", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), StatFile),
    responses((status = 200, body = FileEntry)))]
pub(crate) async fn stat_file(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Query(query): Query<StatFile>,
) -> ApiResult<Json<FileEntry>> {
    let request = messages::Stat { path: path("path", query.path)?, no_follow: !query.follow };
    let info = app.engine.guest(caller.sandbox()).await?.stat(request).await.map_err(guest_error)?;
    Ok(Json(convert::file(info)))
}

/// What to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListFiles {
    /// Absolute path of the directory.
    path: String,
    /// Levels below it: 1 (the default) is its own entries, at most 64.
    #[param(schema_with = bounds::depth)]
    depth: Option<u32>,
    /// Most entries: 1 to 100,000; 10,000 when absent. What is more is cut and said so.
    #[param(schema_with = bounds::entries)]
    limit: Option<u32>,
}

/// Lists a directory. Symbolic links are not followed.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/list", tag = "files", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ListFiles),
    responses((status = 200, body = FileList)))]
pub(crate) async fn list_files(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Query(query): Query<ListFiles>,
) -> ApiResult<Json<FileList>> {
    let directory = path("path", query.path)?;
    let request = messages::List {
        path: directory.clone(),
        depth: DEPTH.of(query.depth)?,
        max_entries: ENTRIES.of(query.limit)?,
    };
    let guest = app.engine.guest(caller.sandbox()).await?;
    let (entries, truncated) = guest.list(request).await.map_err(guest_error)?;
    // The guest names them from the directory on.
    let full = |mut info: messages::FileInfo| {
        info.path = format!("{}/{}", directory.trim_end_matches('/'), info.path);
        convert::file(info)
    };
    Ok(Json(FileList { items: entries.into_iter().map(full).collect(), truncated }))
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/mkdir", tag = "files", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = Mkdir, responses((status = 204)))]
pub(crate) async fn make_directory(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Json(request): Json<Mkdir>,
) -> ApiResult<StatusCode> {
    let request = messages::Mkdir {
        path: path("path", request.path)?,
        mode: mode(request.mode.as_deref())?.unwrap_or_default(),
        user: owner(&app, caller.sandbox(), request.user)?,
        parents: request.parents,
    };
    app.engine.guest(caller.sandbox()).await?.mkdir(request).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A mode, if one was given. Zero would mean "the default" further down.
pub(super) fn mode(text: Option<&str>) -> Result<Option<u32>> {
    match text.map(|text| octal("mode", text)).transpose()? {
        Some(0) => Err(Error::invalid("mode", "a mode of 0 lets nobody in")),
        mode => Ok(mode),
    }
}

/// Renames a file or directory.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/move", tag = "files", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = MoveFile, responses((status = 204)))]
pub(crate) async fn move_file(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Json(request): Json<MoveFile>,
) -> ApiResult<StatusCode> {
    let request = messages::Rename {
        from: path("from", request.from)?,
        to: path("to", request.to)?,
        no_replace: request.no_replace,
    };
    app.engine.guest(caller.sandbox()).await?.rename(request).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes permissions, owner or both.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/chmod", tag = "files", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = Chmod, responses((status = 204)))]
pub(crate) async fn change_mode(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Json(request): Json<Chmod>,
) -> ApiResult<StatusCode> {
    if request.mode.is_none() && request.user.is_none() {
        return Err(Error::invalid("mode", "give 'mode', 'user' or both").into());
    }
    let request = messages::Chmod {
        path: path("path", request.path)?,
        mode: request.mode.as_deref().map(|text| octal("mode", text)).transpose()?,
        user: request.user.map(checked_user).transpose()?.unwrap_or_default(),
    };
    app.engine.guest(caller.sandbox()).await?.chmod(request).await.map_err(guest_error)?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_of_zero_is_refused_where_it_would_mean_the_default() {
        assert!(mode(Some("0000")).is_err());
        assert_eq!(mode(Some("0755")), Ok(Some(0o755)));
        assert_eq!(mode(None), Ok(None));
    }
}
