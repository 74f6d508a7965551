//! The toolbox: work inside a sandbox, at `/toolbox/{sandbox}`.

mod answers;
mod code;
mod desktop;
mod execute;
mod files;
mod git;
mod info;
mod interpreter;
mod lsp;
mod output;
mod pty;
mod session;
mod shell;
pub(crate) mod socket;

use axum::Router;
use axum::routing::{any, delete, get, post};

use crate::App;

pub(crate) use pty::Sizes;

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .merge(processes())
        .merge(files::routes())
        .merge(git::routes())
        .merge(desktop::routes())
        .merge(others())
}

fn processes() -> Router<App> {
    Router::new()
        .route("/process/execute", post(execute::execute))
        .route("/process/code-run", post(code::run))
        .route("/process/session", post(session::create).get(session::list))
        .route("/process/session/entrypoint", get(session::entrypoint::read))
        .route("/process/session/entrypoint/logs", any(session::entrypoint::logs))
        .route("/process/session/{session}", get(session::read).delete(session::remove))
        .route("/process/session/{session}/exec", post(session::commands::run))
        .route("/process/session/{session}/command/{command}", get(session::commands::read))
        .route("/process/session/{session}/command/{command}/logs", any(session::logs::logs))
        .route("/process/session/{session}/command/{command}/input", post(session::commands::input))
        .route("/process/pty", post(pty::create).get(pty::list))
        .route("/process/pty/create-connect", any(pty::create_and_connect))
        .route("/process/pty/{id}", get(pty::read).delete(pty::remove))
        .route("/process/pty/{id}/connect", any(pty::connect))
        .route("/process/pty/{id}/resize", post(pty::resize))
        .route("/process/interpreter/execute", any(interpreter::execute))
        .route("/process/interpreter/context", post(interpreter::create).get(interpreter::list))
        .route("/process/interpreter/context/{id}", delete(interpreter::remove))
}

fn others() -> Router<App> {
    Router::new()
        .route("/user-home-dir", get(info::home))
        .route("/work-dir", get(info::work_dir))
        .route("/version", get(info::version))
        .route("/port", get(info::ports))
        .route("/port/{port}/in-use", get(info::in_use))
        .route("/system/metrics", get(info::metrics))
        .route("/env", post(info::set_env))
        .route("/lsp/start", post(lsp::start))
        .route("/lsp/stop", post(lsp::stop))
        .route("/lsp/did-open", post(lsp::did_open))
        .route("/lsp/did-close", post(lsp::did_close))
        .route("/lsp/document-symbols", get(lsp::document_symbols))
        .route("/lsp/workspacesymbols", get(lsp::workspace_symbols))
        .route("/lsp/completions", post(lsp::completions))
}
