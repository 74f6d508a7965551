//! Who may use a sandbox, and leases.

use atoll_api::{Lease, LeaseStatus, PutGrant, SandboxAccess, SetVisibility, TakeLease};
use atoll_core::key::Scope;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Exec, Manage, OnSandbox, Read, Release, forbidden};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::App;

/// Who may use a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/sharing", tag = "access", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = SandboxAccess)))]
pub(crate) async fn get_sharing(
    caller: OnSandbox<Read>,
    State(app): State<App>,
) -> ApiResult<Json<SandboxAccess>> {
    Ok(Json(convert::access(app.engine.access(caller.sandbox())?)))
}

/// Sets whether keys without a role see a sandbox.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/sharing", tag = "access", security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = SetVisibility, responses((status = 200, body = SandboxAccess)))]
pub(crate) async fn set_visibility(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Json(request): Json<SetVisibility>,
) -> ApiResult<Json<SandboxAccess>> {
    Ok(Json(convert::access(app.engine.set_visibility(caller.sandbox(), request.visibility).await?)))
}

/// Gives a key a role on a sandbox, in place of the one it had.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/sharing/{key}", tag = "access",
    security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("key" = String, Path, description = "Id of a key")),
    request_body = PutGrant, responses((status = 200, body = SandboxAccess)))]
pub(crate) async fn put_grant(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Path((_sandbox, key)): Path<(String, String)>,
    Json(request): Json<PutGrant>,
) -> ApiResult<Json<SandboxAccess>> {
    Ok(Json(convert::access(app.engine.grant(caller.sandbox(), &key, request.role).await?)))
}

/// Takes a key's role on a sandbox away.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/sharing/{key}", tag = "access",
    security(("key" = ["manage"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("key" = String, Path, description = "Id of a key")),
    responses((status = 200, body = SandboxAccess)))]
pub(crate) async fn delete_grant(
    caller: OnSandbox<Manage>,
    State(app): State<App>,
    Path((_sandbox, key)): Path<(String, String)>,
) -> ApiResult<Json<SandboxAccess>> {
    Ok(Json(convert::access(app.engine.revoke(caller.sandbox(), &key).await?)))
}

/// Who has a sandbox for itself.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/lease", tag = "access", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = LeaseStatus)))]
pub(crate) async fn get_lease(
    caller: OnSandbox<Read>,
    State(app): State<App>,
) -> ApiResult<Json<LeaseStatus>> {
    Ok(Json(LeaseStatus { lease: app.engine.lease(caller.sandbox())?.map(convert::lease) }))
}

/// Takes a sandbox for oneself, or goes on having it. Until it ends, commands and changes of other keys,
/// and of requests with another name in `X-Atoll-Holder`, are refused with `sandbox_leased`.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/lease", tag = "access", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    request_body = TakeLease, responses((status = 200, body = Lease)))]
pub(crate) async fn take_lease(
    caller: OnSandbox<Exec>,
    State(app): State<App>,
    Json(request): Json<TakeLease>,
) -> ApiResult<Json<Lease>> {
    let holder = request.holder.or_else(|| caller.engine().holder().map(str::to_owned));
    let who = caller.engine().clone().working_as(holder);
    Ok(Json(convert::lease(app.engine.take_lease(caller.sandbox(), &who, request.ttl_ms).await?)))
}

/// Whose lease.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReleaseLease {
    /// Also one that another key has; needs `manage` on the sandbox.
    #[serde(default)]
    force: bool,
}

/// Gives a lease back.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/lease", tag = "access", security(("key" = ["exec"])),
    params(("sandbox" = String, Path, description = "Id or name"), ReleaseLease),
    responses((status = 204)))]
pub(crate) async fn release_lease(
    caller: OnSandbox<Release>,
    State(app): State<App>,
    Query(query): Query<ReleaseLease>,
) -> ApiResult<StatusCode> {
    if query.force && !caller.has(Scope::Manage) {
        return Err(forbidden().into());
    }
    app.engine.release_lease(caller.sandbox(), caller.engine(), query.force).await?;
    Ok(StatusCode::NO_CONTENT)
}
