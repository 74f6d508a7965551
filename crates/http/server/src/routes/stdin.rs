//! Standard input of an exec, in pieces.

use atoll_api::StdinWritten;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use axum::body::Body;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{self, OnSandbox};
use crate::body::read_all;
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::App;

/// What to do after the bytes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteStdin {
    /// End standard input after these bytes.
    #[serde(default)]
    close: bool,
}

/// Writes standard input, at most 1 MiB; answers when the sandbox has it.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs/{exec}/stdin", tag = "execs",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path), WriteStdin),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = StdinWritten)))]
pub(crate) async fn write_stdin(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Query(query): Query<WriteStdin>,
    body: Body,
) -> ApiResult<Json<StdinWritten>> {
    let bytes = read_all(body, STDIN_CHUNK_MAX_BYTES).await?;
    let (by, sandbox) = (caller.grant().caller(), caller.sandbox());
    let bytes = app.engine.write_stdin_by(by, sandbox, &exec, bytes, query.close).await?;
    Ok(Json(StdinWritten { bytes }))
}
