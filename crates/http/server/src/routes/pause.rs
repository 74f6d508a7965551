//! Pausing and resuming.

use atoll_api::{PauseSandbox, Sandbox};
use atoll_core::sandbox::PauseMode;
use axum::extract::State;

use crate::auth::{Exec, Manage, OnSandbox};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::Json;
use crate::shared::App;

/// Pauses a sandbox; answers when it stands still. The next use resumes it.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/pause", tag = "sandboxes", security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = PauseSandbox, responses((status = 200, body = Sandbox)))]
pub(crate) async fn pause_sandbox(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Json(request): Json<PauseSandbox>,
) -> ApiResult<Json<Sandbox>> {
    let mode = request.mode.unwrap_or(PauseMode::Frozen);
    Ok(Json(convert::sandbox(app.engine.pause_sandbox(caller.sandbox(), mode).await?)))
}

/// Resumes a sandbox; answers when it runs. A key that may use a sandbox may wake it.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/resume", tag = "sandboxes", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn resume_sandbox(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(convert::sandbox(app.engine.resume_sandbox(caller.sandbox()).await?)))
}
