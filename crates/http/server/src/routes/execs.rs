//! Execs: start, look, signal, kill.

use std::time::Duration;

use atoll_api::{CreateExec, Exec, ExecList, ExecWithOutput, Resize, SignalExec};
use atoll_core::exec::ExecState;
use atoll_core::id::SandboxId;
use atoll_core::spec::{ExecDraft, IdempotencyKey};
use atoll_core::{Code, Result};
use atoll_engine::{ExecQuery, ExecView};
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{output, wait};
use crate::auth::{self, OnSandbox, Read};
use crate::bounds;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::{App, Shared};
use crate::trace::traceparent;

/// Output up to this size comes with the answer to a create that waited, bytes.
const INLINE_OUTPUT_MAX_BYTES: u64 = 1 << 20;

/// Runs a command. Answers when it runs, or with `wait_ms` when it has ended.
///
/// A command that cannot be found or executed is an exec that ended with code 127 or 126.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs", tag = "execs", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"),
        ("traceparent" = Option<String>, Header, description = "The caller's span (W3C Trace Context), of which the exec's is a child; what is malformed counts as absent")),
    request_body = CreateExec, responses((status = 201, body = ExecWithOutput)))]
pub(crate) async fn create_exec(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    headers: HeaderMap,
    Json(request): Json<CreateExec>,
) -> ApiResult<(StatusCode, Json<ExecWithOutput>)> {
    let wait = wait(request.wait_ms)?;
    let draft = ExecDraft { traceparent: traceparent(&headers), ..request.into_draft()? };
    let mut view = app.engine.create_exec(caller.sandbox(), draft, caller.engine()).await?;
    let mut output = None;
    if !wait.is_zero() {
        let (sandbox, exec) = (view.record.sandbox.clone(), view.record.id.clone());
        if !view.record.state.is_final() {
            view = wait_for_end(&app, &sandbox, exec.as_str(), wait).await?;
        }
        if view.record.state.is_final() && view.extent.end <= INLINE_OUTPUT_MAX_BYTES {
            output = Some(output::all(&app, &sandbox, exec.as_str(), view.extent).await?);
        }
    }
    Ok((StatusCode::CREATED, Json(ExecWithOutput { exec: convert::exec(view), output })))
}

/// Waits for an exec's end, at most `wait`, and not when the server stops.
async fn wait_for_end(app: &Shared, sandbox: &SandboxId, exec: &str, wait: Duration) -> Result<ExecView> {
    match app.unless_draining(app.engine.wait_exec(sandbox, exec, wait)).await {
        Some(view) => view,
        None => app.engine.exec(sandbox, exec).await,
    }
}

/// Which execs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListExecs {
    /// In this state; may be repeated.
    #[serde(default)]
    state: Vec<ExecState>,
    /// Most items: 1 to 1000, 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
    /// The one that was made with this idempotency key, if there is one.
    idempotency_key: Option<String>,
}

/// Lists a sandbox's execs, newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs", tag = "execs", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ListExecs),
    responses((status = 200, body = ExecList)))]
pub(crate) async fn list_execs(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Query(query): Query<ListExecs>,
) -> ApiResult<Json<ExecList>> {
    if let Some(key) = query.idempotency_key {
        let items = match app.engine.exec_by_key(caller.sandbox(), &IdempotencyKey::client(key)?).await {
            Ok(view) => vec![convert::exec(view)],
            Err(error) if error.code == Code::ExecNotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        return Ok(Json(ExecList { items, next_cursor: None }));
    }
    let query = ExecQuery { states: query.state, cursor: query.cursor, limit: query.limit };
    let (views, next_cursor) = app.engine.execs(caller.sandbox(), &query).await?;
    Ok(Json(ExecList { items: views.into_iter().map(convert::exec).collect(), next_cursor }))
}

/// Whether to wait for the end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetExec {
    /// Wait up to this long for the exec to end (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
}

/// One exec.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}", tag = "execs", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path), GetExec),
    responses((status = 200, body = Exec)))]
pub(crate) async fn get_exec(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Query(query): Query<GetExec>,
) -> ApiResult<Json<Exec>> {
    let view = wait_for_end(&app, caller.sandbox(), &exec, wait(query.wait_ms)?).await?;
    Ok(Json(convert::exec(view)))
}

/// Kills an exec's whole process tree; answers when it has ended. Does nothing to one that has.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/execs/{exec}", tag = "execs",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn kill_exec(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.kill_exec(caller.sandbox(), &exec).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to an exec's process group, or to its whole tree.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs/{exec}/signal", tag = "execs",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path)),
    request_body = SignalExec, responses((status = 204)))]
pub(crate) async fn signal_exec(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Json(request): Json<SignalExec>,
) -> ApiResult<StatusCode> {
    app.engine.signal_exec(caller.sandbox(), &exec, &request.signal, request.tree).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the size of an exec's terminal.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs/{exec}/resize", tag = "execs",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path)),
    request_body = atoll_core::spec::TtySize, responses((status = 204)))]
pub(crate) async fn resize_exec(
    caller: OnSandbox<auth::Exec>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Json(size): Json<Resize>,
) -> ApiResult<StatusCode> {
    app.engine.resize_exec(caller.sandbox(), &exec, size).await?;
    Ok(StatusCode::NO_CONTENT)
}
