//! Services of a sandbox.

use std::time::Duration;

use atoll_api::{CreateService, Service, ServiceList, ServiceLogChunk, ServiceLogPage};
use atoll_engine::ServiceView;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::wait;
use crate::auth::{Exec, OnSandbox, Read};
use crate::bounds::{self, OUTPUT};
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::App;

fn convert(view: ServiceView) -> Service {
    let ServiceView { record, state, reason, exec, next_start_ms } = view;
    let spec = record.spec;
    Service {
        id: record.id.into(),
        name: record.name,
        sandbox: record.sandbox.into(),
        command: spec.command,
        user: spec.user,
        cwd: spec.cwd,
        restart: spec.restart,
        backoff_ms: spec.backoff_ms,
        backoff_max_ms: spec.backoff_max_ms,
        give_up_after: spec.give_up_after,
        stop_timeout_ms: spec.stop_timeout_ms,
        ready: spec.ready,
        health: spec.health,
        after: spec.after,
        state,
        reason,
        run: record.status.runs.last().map_or(0, |run| run.number),
        exec: exec.map(Into::into),
        last_exit: record.status.last_exit,
        next_start_at_ms: next_start_ms,
        created_at_ms: record.created_ms,
    }
}

/// Declares a service: a command that should always run. It starts at once, and from then on whenever its sandbox does:
/// after a pause that kept only the disk, a rollback, and a restart of the server.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/services", tag = "services", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = CreateService, responses((status = 201, body = Service)))]
pub(crate) async fn create_service(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Json(request): Json<CreateService>,
) -> ApiResult<(StatusCode, Json<Service>)> {
    let (name, spec) = request.into_spec()?;
    let view = app.engine.create_service(caller.sandbox(), &name, spec).await?;
    Ok((StatusCode::CREATED, Json(convert(view))))
}

/// Lists the services of a sandbox, by name.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/services", tag = "services", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = ServiceList)))]
pub(crate) async fn list_services(
    caller: OnSandbox<Read>,
    State(app): State<App>,
) -> ApiResult<Json<ServiceList>> {
    let views = app.engine.services(caller.sandbox())?;
    Ok(Json(ServiceList { items: views.into_iter().map(convert).collect() }))
}

/// Whether to wait until it has settled.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetService {
    /// Wait up to this long for it to be ready, stopped, or to have ended for good (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
}

/// One service.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/services/{service}", tag = "services",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("service" = String, Path), GetService),
    responses((status = 200, body = Service)))]
pub(crate) async fn get_service(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, service)): Path<(String, String)>,
    Query(query): Query<GetService>,
) -> ApiResult<Json<Service>> {
    let waited = app.engine.service(caller.sandbox(), &service, wait(query.wait_ms)?);
    let view = match app.unless_draining(waited).await {
        Some(view) => view?,
        None => app.engine.service(caller.sandbox(), &service, Duration::ZERO).await?,
    };
    Ok(Json(convert(view)))
}

/// Ends a service's run, if there is one, and begins another: also of one that was stopped, has ended or was given up.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/services/{service}/restart", tag = "services",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("service" = String, Path)),
    responses((status = 200, body = Service)))]
pub(crate) async fn restart_service(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, service)): Path<(String, String)>,
) -> ApiResult<Json<Service>> {
    Ok(Json(convert(app.engine.restart_service(caller.sandbox(), &service).await?)))
}

/// Ends a service's run with `SIGTERM`, and kills it after `stop_timeout_ms`. It stays stopped until it is restarted.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/services/{service}/stop", tag = "services",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("service" = String, Path)),
    responses((status = 200, body = Service)))]
pub(crate) async fn stop_service(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, service)): Path<(String, String)>,
) -> ApiResult<Json<Service>> {
    Ok(Json(convert(app.engine.stop_service(caller.sandbox(), &service).await?)))
}

/// Ends a service as `stop` does, and forgets it.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/services/{service}", tag = "services",
    security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("service" = String, Path)),
    responses((status = 204)))]
pub(crate) async fn delete_service(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Path((_sandbox, service)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    app.engine.remove_service(caller.sandbox(), &service).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which part of the log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetServiceLog {
    /// First byte wanted: 0, or `next_offset` of the last page.
    #[serde(default)]
    offset: u64,
    /// Wait up to this long when there is nothing yet (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
    /// Most bytes: 1 to 1,048,576; 262,144 when absent.
    #[param(schema_with = bounds::output)]
    max_bytes: Option<usize>,
}

/// What a service wrote from an offset on, over all its runs. Waits, if asked, while there is nothing.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/services/{service}/logs", tag = "services",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("service" = String, Path), GetServiceLog),
    responses((status = 200, body = ServiceLogPage)))]
pub(crate) async fn get_service_log(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, service)): Path<(String, String)>,
    Query(query): Query<GetServiceLog>,
) -> ApiResult<Json<ServiceLogPage>> {
    let wait = wait(query.wait_ms)?;
    let max = OUTPUT.of(query.max_bytes)?;
    let read = |wait| app.engine.service_log(caller.sandbox(), &service, query.offset, max, wait);
    let log = match app.unless_draining(read(wait)).await {
        Some(log) => log?,
        None => read(Duration::ZERO).await?,
    };
    let chunks = log.pieces.iter();
    let chunks =
        chunks.map(|piece| ServiceLogChunk::new(piece.run, piece.offset, piece.stream, &piece.bytes));
    Ok(Json(ServiceLogPage {
        chunks: chunks.collect(),
        gap_until: log.gap_until,
        next_offset: log.next_offset,
        state: log.view.state,
    }))
}
