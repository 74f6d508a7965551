//! API keys.

use atoll_api::{CreateKey, KeyCreated, KeyList};
use axum::extract::State;
use http::StatusCode;

use crate::auth::{Admin, Caller};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Path};
use crate::shared::App;

/// Makes a key. The answer holds its secret, this once.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", security(("key" = ["admin"])),
    request_body = CreateKey, responses((status = 201, body = KeyCreated)))]
pub(crate) async fn create_key(
    _: Caller<Admin>,
    State(app): State<App>,
    Json(request): Json<CreateKey>,
) -> ApiResult<(StatusCode, Json<KeyCreated>)> {
    let CreateKey { name, scope, ttl_ms, format, project } = request;
    let new = app.engine.create_key_as(format, &name, scope, ttl_ms, project.as_deref()).await?;
    let right = app.engine.right_of_key(&new.record);
    let key = convert::key(new.record, right);
    let created = KeyCreated { key, secret: new.secret };
    Ok((StatusCode::CREATED, Json(created)))
}

/// Lists keys, without their secrets; also people who log in, who have none.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", security(("key" = ["admin"])),
    responses((status = 200, body = KeyList)))]
pub(crate) async fn list_keys(_: Caller<Admin>, State(app): State<App>) -> ApiResult<Json<KeyList>> {
    let records = app.engine.keys().await?;
    let key = |record| {
        let right = app.engine.right_of_key(&record);
        convert::key(record, right)
    };
    Ok(Json(KeyList { items: records.into_iter().map(key).collect() }))
}

/// Deletes a key: it stops working at once. A person who is still let in comes back as a new one.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", security(("key" = ["admin"])),
    params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn delete_key(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    app.engine.delete_key(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends all logins of a person at once, what is open by them too. Who is still let in may log in again, and has what they had.
#[utoipa::path(delete, path = "/v1/keys/{id}/logins", tag = "keys", security(("key" = ["admin"])),
    params(("id" = String, Path)), responses((status = 204)))]
pub(crate) async fn end_logins(
    _: Caller<Admin>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    app.engine.end_logins_of(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
