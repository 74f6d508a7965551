//! Stopping and starting.
//!
//! A stop is the engine's pause: only the disk is kept, or, for a sandbox that is to keep its memory, it is frozen.
//! Every client that uses a stopped sandbox wakes it, and `start` is such a use.

use atoll_core::idle::OnIdle;
use atoll_core::sandbox::PauseMode;
use atoll_dialect_kit::pending::within;
use atoll_server::dialect::Host;
use axum::extract::State;
use http::StatusCode;

use super::{ANSWER_WITHIN, find};
use crate::error::{Failure, Result};
use crate::request::{Caller, Exec, Json, Manage, Root};
use crate::view::Sandbox;

/// Makes sure that a sandbox can be used. Answers when it can, or after a few seconds: the client polls the status.
pub(crate) async fn start(
    caller: Caller<Exec>,
    root: Root,
    State(host): State<Host>,
) -> Result<(StatusCode, Json<Sandbox>)> {
    let id = find(&host, &caller)?.id;
    let (engine, sandbox) = (host.engine().clone(), id.clone());
    let starting = async move { engine.guest(&sandbox).await.map(drop) };
    let status = match within(ANSWER_WITHIN, starting).await {
        Some(Err(error)) => return Err(Failure::control(&error)),
        Some(Ok(())) => StatusCode::OK,
        None => StatusCode::ACCEPTED,
    };
    Ok((status, Json(Sandbox::new(find(&host, &caller)?, &root))))
}

/// Stops a sandbox; a stopped sandbox stays so. Answers when the sandbox has stopped, or after a few seconds: the
/// engine goes on.
pub(crate) async fn stop(caller: Caller<Manage>, State(host): State<Host>) -> Result<StatusCode> {
    let record = find(&host, &caller)?;
    let mode = match record.spec.idle.on_idle {
        OnIdle::Freeze => PauseMode::Frozen,
        OnIdle::Delete | OnIdle::Hibernate => PauseMode::Filesystem,
    };
    let (engine, id) = (host.engine().clone(), record.id);
    match within(ANSWER_WITHIN, async move { engine.pause_sandbox(&id, mode).await }).await {
        Some(Err(error)) => Err(Failure::control(&error)),
        Some(Ok(_)) | None => Ok(StatusCode::NO_CONTENT),
    }
}
