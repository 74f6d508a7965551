//! `/mcp`: the Model Context Protocol on the one port. Its tools are clients of the native API, with the caller's key: see
//! `atoll_mcp`. Not part of the OpenAPI document, as its messages are described elsewhere.

use atoll_core::secret::Secret;
use atoll_core::{Code, Error};
use axum::extract::{Request, State};
use axum::response::Response;

use crate::auth::{Caller, Read, presented, unauthorized};
use crate::error::{ApiError, ApiResult};
use crate::shared::App;

/// A request of a session, or the first of one. What is checked here is whose it is; what its tools may do is decided when they
/// ask, with the same key.
pub(crate) async fn mcp(_: Caller<Read>, State(app): State<App>, request: Request) -> ApiResult<Response> {
    let off = || {
        Error::new(Code::InvalidState, "this server does not speak the Model Context Protocol")
            .hint("it listens with TLS on one address alone, where its tools cannot ask it: let it listen on 0.0.0.0")
    };
    let door = app.mcp.get().ok_or_else(|| ApiError(off()))?.clone();
    // Who is signed in to the dashboard shows no key.
    let key = presented(request.headers()).map(Secret::new).ok_or_else(|| ApiError(unauthorized(&app)))?;
    (door.0)(key, request).await.map_err(ApiError)
}
