//! Finding files by pattern, and lines in them.

use atoll_api::{FindFiles, FoundFile, FoundFiles};
use atoll_engine::guest_error;
use atoll_guest_protocol::messages;
use axum::extract::State;

use super::files::path;
use crate::auth::{OnSandbox, Read};
use crate::bounds::FOUND;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::Json;
use crate::shared::App;

/// Finds files below a directory by the pattern of their path, or lines in them.
///
/// Symbolic links are not followed; `/proc` and `/sys` are not entered. What is more than the limit is cut
/// and said so.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/find", tag = "files", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = FindFiles, responses((status = 200, body = FoundFiles)))]
pub(crate) async fn find_files(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Json(request): Json<FindFiles>,
) -> ApiResult<Json<FoundFiles>> {
    let directory = path("path", request.path)?;
    let find = messages::Find {
        path: directory.clone(),
        pattern: request.pattern.unwrap_or_default(),
        text: request.text.unwrap_or_default(),
        max_count: FOUND.of(request.limit)?,
    };
    let guest = app.engine.guest(caller.sandbox()).await?;
    let (found, truncated) = guest.find(find).await.map_err(guest_error)?;
    let items = found.into_iter().filter_map(|one| {
        let mut info = one.info?;
        info.path = format!("{}/{}", directory.trim_end_matches('/'), info.path);
        let is_line = one.line > 0;
        Some(FoundFile {
            file: convert::file(info),
            line: is_line.then_some(one.line),
            text: is_line.then_some(one.text),
        })
    });
    Ok(Json(FoundFiles { items: items.collect(), truncated }))
}
