//! Warm pools.

use atoll_api::{Pool, PoolList, PutPool};
use atoll_core::{Error, Result};
use atoll_engine::{PoolName, PoolOrigin};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{Caller, ManageCommon, Read};
use crate::convert;
use crate::error::ApiResult;
use crate::extract::{Json, Query};
use crate::shared::App;

/// Which pool.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Of {
    /// The one of this template.
    template: Option<String>,
    /// The one of this image.
    image: Option<String>,
}

fn name(template: Option<String>, image: Option<String>) -> Result<PoolName> {
    match (template, image) {
        (Some(template), None) => Ok(PoolName::Template(template)),
        (None, Some(image)) => Ok(PoolName::Image(image)),
        _ => Err(Error::invalid("template", "give either 'template' or 'image'")),
    }
}

/// Lists pools. Those that the server keeps by demand are shown to admins.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", security(("key" = ["read"])),
    responses((status = 200, body = PoolList)))]
pub(crate) async fn list_pools(caller: Caller<Read>, State(app): State<App>) -> Json<PoolList> {
    let mut view = app.engine.pools();
    if !caller.engine().is_admin() {
        // Pools by demand tell what other keys ask for, those of all projects.
        view.pools.retain(|pool| pool.origin != PoolOrigin::Demand);
    }
    Json(convert::pools(view))
}

/// Sets a pool up, or changes its size. It holds until it is removed, whatever the template says.
#[utoipa::path(put, path = "/v1/pools", tag = "pools", security(("key" = ["manage"])),
    request_body = PutPool, responses((status = 200, body = Pool)))]
pub(crate) async fn put_pool(
    _: Caller<ManageCommon>,
    State(app): State<App>,
    Json(request): Json<PutPool>,
) -> ApiResult<Json<Pool>> {
    let spec = request.spec();
    let view = app.engine.put_pool(name(request.template, request.image)?, spec).await?;
    Ok(Json(convert::pool(view)))
}

/// Forgets what a call set: the template's own pool, or the server's, is back, or there is none.
#[utoipa::path(delete, path = "/v1/pools", tag = "pools", security(("key" = ["manage"])),
    params(Of), responses((status = 204)))]
pub(crate) async fn delete_pool(
    _: Caller<ManageCommon>,
    State(app): State<App>,
    Query(of): Query<Of>,
) -> ApiResult<StatusCode> {
    app.engine.delete_pool(&name(of.template, of.image)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
