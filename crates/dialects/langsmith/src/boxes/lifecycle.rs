//! Stopping and starting.
//!
//! A stop is the engine's pause: of the disk alone, or, for a sandbox that is to keep its memory, where it is.
//! Whoever uses a stopped sandbox wakes it, so `start` is a wish like any other.

use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::idle::OnIdle;
use atoll_core::sandbox::PauseMode;
use atoll_core::{Code, Error};
use atoll_engine::{Engine, GuestLease};
use atoll_server::dialect::Host;
use axum::extract::State;
use http::StatusCode;

use super::{ANSWER_WITHIN, find};
use crate::error::{Failure, Result};
use crate::request::{Caller, Exec, Json, Manage, Root};
use crate::view::Sandbox;

/// How long a call waits for a sandbox to wake. The clients wait for a handshake for thirty seconds, and come
/// again when they are told that it takes longer.
const WAKE_WAIT: Duration = Duration::from_secs(20);

/// The guest of a sandbox, which is woken if need be.
///
/// # Errors
/// As the engine's; [`Code::GuestUnavailable`], so that the client comes again, when it takes too long.
pub(crate) async fn awake(engine: &Engine, sandbox: &SandboxId) -> Result<GuestLease, Error> {
    tokio::time::timeout(WAKE_WAIT, engine.guest(sandbox)).await.unwrap_or_else(|_| {
        Err(Error::new(Code::GuestUnavailable, format!("sandbox '{sandbox}' is still waking up")))
    })
}

/// Makes sure that a sandbox can be used. Answers when it can, at the latest after a few seconds: the client
/// polls the status.
pub(crate) async fn start(
    caller: Caller<Exec>,
    root: Root,
    State(host): State<Host>,
) -> Result<(StatusCode, Json<Sandbox>)> {
    let id = find(&host, &caller)?.id;
    let (engine, sandbox) = (host.engine().clone(), id.clone());
    let starting = tokio::spawn(async move { engine.guest(&sandbox).await.map(drop) });
    let status = match tokio::time::timeout(ANSWER_WITHIN, starting).await {
        Ok(Ok(Err(error))) => return Err(Failure::control(&error)),
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::ACCEPTED,
    };
    Ok((status, Json(Sandbox::new(find(&host, &caller)?, &root))))
}

/// Stops a sandbox; one that is stopped stays so. Answers when it is done, at the latest after a few seconds:
/// the engine goes on.
pub(crate) async fn stop(caller: Caller<Manage>, State(host): State<Host>) -> Result<StatusCode> {
    let record = find(&host, &caller)?;
    let mode = match record.spec.idle.on_idle {
        OnIdle::Freeze => PauseMode::Frozen,
        OnIdle::Delete | OnIdle::Hibernate => PauseMode::Filesystem,
    };
    let (engine, id) = (host.engine().clone(), record.id);
    let stopping = tokio::spawn(async move { engine.pause_sandbox(&id, mode).await });
    match tokio::time::timeout(ANSWER_WITHIN, stopping).await {
        Ok(Ok(Err(error))) => Err(Failure::control(&error)),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
