//! `/mcp`: the Model Context Protocol on the one port. Its tools are clients of the native API, with the caller's key: see
//! `atoll_mcp`. Not part of the OpenAPI document, as its messages are described elsewhere.

use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use axum::extract::{Request, State};
use axum::response::Response;

use crate::auth::{Caller, Read, presented, unauthorized};
use crate::error::{ApiError, ApiResult};
use crate::shared::App;

/// A request of a session, or the first of one. This handler checks only the API key; what the session's tools may do
/// is decided when they call the API, with the same key.
pub(crate) async fn mcp(_: Caller<Read>, State(app): State<App>, request: Request) -> ApiResult<Response> {
    let off = || {
        Error::new(Code::InvalidState, "this server does not speak the Model Context Protocol")
            .hint("it listens with TLS on one address alone, where its tools cannot ask it: let it listen on 0.0.0.0")
    };
    let door = app.mcp.get().ok_or_else(|| ApiError(off()))?.clone();
    // A request by a session of the dashboard shows no key.
    let key = presented(request.headers()).map(Secret::new).ok_or_else(|| ApiError(unauthorized(&app)))?;
    (door.0)(key, request).await.map_err(ApiError)
}
