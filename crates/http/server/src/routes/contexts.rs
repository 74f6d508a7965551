//! Contexts of a sandbox's code interpreter.

use atoll_api::{Context, ContextList, CreateContext};
use atoll_engine::ContextDraft;
use atoll_store::ContextRecord;
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Exec, OnSandbox, Read};
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

fn convert(record: ContextRecord) -> Context {
    let ContextRecord { id, sandbox, name, spec, created_ms } = record;
    Context {
        id: id.into(),
        sandbox: sandbox.into(),
        name,
        language: spec.language,
        cwd: spec.cwd,
        created_at_ms: created_ms,
    }
}

/// Makes a context: a kernel that remembers what its cells did. Answers when the kernel has started.
///
/// Needs a sandbox with a code interpreter, such as one of the template `code-interpreter-v1`.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts", tag = "code", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")), request_body = CreateContext,
    responses((status = 200, description = "The one of that name", body = Context), (status = 201, body = Context)))]
pub(crate) async fn create_context(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Json(request): Json<CreateContext>,
) -> ApiResult<(StatusCode, Json<Context>)> {
    let (name, spec) = request.into_spec();
    let draft = ContextDraft { name, spec };
    let (record, new) = app.engine.create_context(caller.sandbox(), draft, caller.engine()).await?;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Json(convert(record))))
}

/// Lists the contexts of a sandbox, the oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts", tag = "code", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = ContextList)))]
pub(crate) async fn list_contexts(
    caller: OnSandbox<Read>,
    State(app): State<App>,
) -> ApiResult<Json<ContextList>> {
    let records = app.engine.contexts(caller.sandbox()).await?;
    Ok(Json(ContextList { items: records.into_iter().map(convert).collect() }))
}

/// One context.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/contexts/{context}", tag = "code", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name")),
    responses((status = 200, body = Context)))]
pub(crate) async fn get_context(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, context)): Path<(String, String)>,
) -> ApiResult<Json<Context>> {
    Ok(Json(convert(app.engine.context(caller.sandbox(), &context).await?)))
}

/// Gives a context a new kernel, without what was in the old one. Cells that run in it end.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts/{context}/restart", tag = "code",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name")),
    responses((status = 204)))]
pub(crate) async fn restart_context(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, context)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.restart_context(caller.sandbox(), &context, caller.engine()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Interrupts the cells of a context that run or wait. What the context remembers stays.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/contexts/{context}/interrupt", tag = "code",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name")),
    responses((status = 204)))]
pub(crate) async fn interrupt_context(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, context)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.interrupt_context(caller.sandbox(), &context).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a context and its kernel. Cells that run in it end; what they said stays readable as output of their execs.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/contexts/{context}", tag = "code",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("context" = String, Path, description = "Id or name")),
    responses((status = 204)))]
pub(crate) async fn delete_context(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, context)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.remove_context(caller.sandbox(), &context, caller.engine()).await?;
    Ok(StatusCode::NO_CONTENT)
}
