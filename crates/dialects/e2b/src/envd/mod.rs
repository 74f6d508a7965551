//! The data plane: envd, which the clients believe to run in every sandbox, and the ports beside it.
//!
//! No such program runs inside. The server answers from the engine's own execs and files, so that a process outlives
//! the connection and the server, and a client that connects later still gets its output.

mod auth;
pub(crate) mod files;
pub(crate) mod filesystem;
mod info;
mod paths;
pub(crate) mod process;
pub(crate) mod proxy;

use atoll_core::id::SandboxId;
use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http::StatusCode;
use http::request::Parts;

use crate::App;
use crate::connect::{Fault, Kind};
use crate::error::Failure;

pub(crate) use auth::{Envd, Sandboxed, token as access_token, traffic_token};

/// The port that the clients believe envd to listen on.
pub(crate) const PORT: u16 = 49_983;
/// The version of envd that this server behaves like.
pub(crate) const VERSION: &str = "0.6.13";

/// The routes of envd. Requests carry the [`Sandboxed`] that they are for.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/process.Process/{method}", post(rpc_process))
        .route("/filesystem.Filesystem/{method}", post(rpc_filesystem))
        .route("/files", get(files::download::download).post(files::upload::upload))
        .route("/files/compose", post(files::compose::compose))
        .route("/health", get(info::health))
        .route("/metrics", get(info::metrics))
        .route("/envs", get(info::envs))
        .fallback(|| async { Failure::new(StatusCode::NOT_FOUND, "envd has no such route").into_response() })
}

async fn rpc_process(
    State(app): State<App>,
    axum::extract::Path(method): axum::extract::Path<String>,
    request: Request,
) -> Response {
    match admitted(&app, request).await {
        Ok((envd, request)) => process::call(envd, &method, request).await,
        Err(response) => response,
    }
}

async fn rpc_filesystem(
    State(app): State<App>,
    axum::extract::Path(method): axum::extract::Path<String>,
    request: Request,
) -> Response {
    match admitted(&app, request).await {
        Ok((envd, request)) => filesystem::call(envd, &method, request).await,
        Err(response) => response,
    }
}

/// The caller of an RPC. If it may not call at all, the answer is plain HTTP, as the true envd's is.
async fn admitted(app: &App, request: Request) -> Result<(Envd, Request), Response> {
    let (mut parts, body) = request.into_parts();
    let envd = Envd::from_request_parts(&mut parts, app)
        .await
        .map_err(axum::response::IntoResponse::into_response)?;
    Ok((envd, Request::from_parts(parts, body)))
}

fn no_such_method(method: &str) -> Response {
    let method: String = method.chars().take(64).collect();
    Fault::new(Kind::Unimplemented, format!("no method '{method}'")).into_response()
}

/// The sandbox that a request is for; `None` outside of the data plane.
fn sandbox_of(parts: &Parts) -> Option<SandboxId> {
    parts.extensions.get::<Sandboxed>().map(|sandboxed| sandboxed.0.clone())
}
