//! Executions: a command that a client asks to run becomes an exec of the engine.
//!
//! | call | the server finds the same one again by |
//! |---|---|
//! | `execute` | `command_id`, which the client makes up |
//! | `execute_async`, `execute_sync` | the request's idempotency key |
//!
//! So a request that the client sends again runs nothing twice, also after a restart of the server.

mod run;
mod shell;
mod stdin;
mod stream;
mod view;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::App;
use crate::once;
use crate::request::Exec;

pub(crate) use shell::line;

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let done_once = Router::new()
        .route("/v1/devboxes/{devbox}/executions/{execution}/send_std_in", post(stdin::send))
        .layer(from_fn_with_state(app.clone(), once::layer::<Exec>));
    Router::new()
        .merge(done_once)
        .route("/v1/devboxes/{devbox}/execute", post(run::execute))
        .route("/v1/devboxes/{devbox}/execute_async", post(run::execute_async))
        .route("/v1/devboxes/{devbox}/execute_sync", post(run::execute_sync))
        .route("/v1/devboxes/{devbox}/executions/{execution}", get(run::read))
        .route("/v1/devboxes/{devbox}/executions/{execution}/wait_for_status", post(run::wait))
        .route("/v1/devboxes/{devbox}/executions/{execution}/kill", post(run::kill))
        .route("/v1/devboxes/{devbox}/executions/{execution}/stream_stdout_updates", get(stream::stdout))
        .route("/v1/devboxes/{devbox}/executions/{execution}/stream_stderr_updates", get(stream::stderr))
}
