//! The network of a sandbox.

use atoll_core::network::NetworkView;
use axum::extract::State;

use crate::auth::{OnSandbox, Read};
use crate::error::ApiResult;
use crate::extract::Json;
use crate::shared::App;

/// Open connections, bytes by destination, and what was refused, with the reason.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/network", tag = "sandboxes", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name")),
    responses((status = 200, body = NetworkView)))]
pub(crate) async fn get_network(
    caller: OnSandbox<Read>,
    State(app): State<App>,
) -> ApiResult<Json<NetworkView>> {
    Ok(Json(app.engine.network(caller.sandbox()).await?))
}
