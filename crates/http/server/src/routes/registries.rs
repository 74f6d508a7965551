//! Credentials for registries. Passwords come in and never go out.

use atoll_api::{RegistryCredentials, RegistryEntry, RegistryList};
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Admin, Caller};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

/// Lists registries with stored credentials.
#[utoipa::path(get, path = "/v1/registries", tag = "images", security(("key" = ["admin"])),
    responses((status = 200, body = RegistryList)))]
pub(crate) async fn list_registries(
    _: Caller<Admin>,
    State(app): State<App>,
) -> ApiResult<Json<RegistryList>> {
    let records = app.engine.registries().await?;
    Ok(Json(RegistryList { items: records.into_iter().map(convert::registry).collect() }))
}

/// Stores credentials for a registry, replacing older ones.
#[utoipa::path(put, path = "/v1/registries/{host}", tag = "images", security(("key" = ["admin"])),
    params(("host" = String, Path, description = "Host, with `:port` if it has one")),
    request_body = RegistryCredentials, responses((status = 200, body = RegistryEntry)))]
pub(crate) async fn put_registry(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(host): Path<String>,
    Json(request): Json<RegistryCredentials>,
) -> ApiResult<Json<RegistryEntry>> {
    let record = app.engine.put_registry(&host, None, &request.username, &request.password).await?;
    Ok(Json(convert::registry(record)))
}

/// Forgets the credentials for a registry.
#[utoipa::path(delete, path = "/v1/registries/{host}", tag = "images", security(("key" = ["admin"])),
    params(("host" = String, Path, description = "Host, with `:port` if it has one")),
    responses((status = 204)))]
pub(crate) async fn delete_registry(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(host): Path<String>,
) -> ApiResult<StatusCode> {
    app.engine.delete_registry(&host).await?;
    Ok(StatusCode::NO_CONTENT)
}
