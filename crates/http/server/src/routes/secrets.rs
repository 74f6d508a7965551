//! Secrets: values come in and never go out.

use atoll_api::{PutSecret, Secret, SecretList, SecretUseList, VaultRotated};
use atoll_engine::{SecretDraft, UseQuery};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Admin, Caller, Manage};
use crate::bounds;
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path, Query};
use crate::shared::App;

/// Whose secrets.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Of {
    /// Of this project: id or name. When absent, of the key's project, or else of none.
    project: Option<String>,
}

/// Lists secrets, without their values.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", security(("key" = ["manage"])),
    params(Of), responses((status = 200, body = SecretList)))]
pub(crate) async fn list_secrets(
    caller: Caller<Manage>,
    State(app): State<App>,
    Query(of): Query<Of>,
) -> ApiResult<Json<SecretList>> {
    let project = app.engine.project_for(of.project.as_deref(), caller.engine())?;
    let items = app.engine.secrets(project.as_ref()).into_iter().map(convert::secret).collect();
    Ok(Json(SecretList { items }))
}

/// One secret, without its value.
#[utoipa::path(get, path = "/v1/secrets/{name}", tag = "secrets", security(("key" = ["manage"])),
    params(("name" = String, Path), Of), responses((status = 200, body = Secret)))]
pub(crate) async fn get_secret(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(of): Query<Of>,
) -> ApiResult<Json<Secret>> {
    let project = app.engine.project_for(of.project.as_deref(), caller.engine())?;
    Ok(Json(convert::secret(app.engine.secret(project.as_ref(), &name)?)))
}

/// Makes a secret, gives it a new value (the next version), or changes its scope or note.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "secrets", security(("key" = ["admin"])),
    params(("name" = String, Path), Of), request_body = PutSecret, responses((status = 200, body = Secret)))]
pub(crate) async fn put_secret(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(of): Query<Of>,
    Json(request): Json<PutSecret>,
) -> ApiResult<Json<Secret>> {
    let project = app.engine.project_for(of.project.as_deref(), caller.engine())?;
    let draft = SecretDraft {
        value: request.value,
        scope: request.scope,
        note: request.note,
        ..SecretDraft::default()
    };
    let put = app.engine.put_secret(project.as_ref(), &name, draft, caller.engine());
    Ok(Json(convert::secret(put.await?)))
}

/// Deletes a secret with all its versions. Rules that name it fail from now on.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "secrets", security(("key" = ["admin"])),
    params(("name" = String, Path), Of), responses((status = 204)))]
pub(crate) async fn delete_secret(
    caller: Caller<Admin>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(of): Query<Of>,
) -> ApiResult<StatusCode> {
    let project = app.engine.project_for(of.project.as_deref(), caller.engine())?;
    app.engine.delete_secret(project.as_ref(), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which uses.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListUses {
    /// Of this secret.
    secret: Option<String>,
    /// By this sandbox: id (it may be gone) or name.
    sandbox: Option<String>,
    /// Most items: 1 to 1000, 100 when absent.
    #[param(schema_with = bounds::page)]
    limit: Option<u32>,
}

/// Uses of secrets, newest first: who, when, where to. Kept when secret and sandbox are gone.
#[utoipa::path(get, path = "/v1/secret-uses", tag = "secrets", security(("key" = ["admin"])),
    params(ListUses), responses((status = 200, body = SecretUseList)))]
pub(crate) async fn list_secret_uses(
    _: Caller<Admin>,
    State(app): State<App>,
    Query(query): Query<ListUses>,
) -> ApiResult<Json<SecretUseList>> {
    let query = UseQuery { secret: query.secret, sandbox: query.sandbox, limit: query.limit };
    let uses = app.engine.secret_uses(&query).await?;
    Ok(Json(SecretUseList { items: uses.into_iter().map(convert::secret_use).collect() }))
}

/// Changes the vault's key: everything sealed is sealed anew, then the old key is forgotten.
#[utoipa::path(post, path = "/v1/vault/rotate", tag = "secrets", security(("key" = ["admin"])),
    responses((status = 200, body = VaultRotated)))]
pub(crate) async fn rotate_vault_key(
    _: Caller<Admin>,
    State(app): State<App>,
) -> ApiResult<Json<VaultRotated>> {
    Ok(Json(VaultRotated { resealed: app.engine.rotate_vault_key().await? }))
}
