//! From connect to kill.

use atoll_core::id::SandboxId;
use atoll_core::idle::IdleUpdate;
use atoll_core::limits::DURATION_MAX_MS;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error};
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;

use super::create::full_pause;
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::Extras;
use crate::request::{Caller, Domain, Exec, Id, Json, Manage};
use crate::view::Sandbox;

/// Life of a sandbox that a client connects to, when the client gives none, seconds.
const CONNECT_S: u64 = 300;
/// The same, for `resume` of older clients.
const RESUME_S: u64 = 15;
/// Shortest extension, seconds.
const REFRESH_S: u64 = 15;
/// Shortest life of a sandbox that traffic woke, seconds.
const WOKEN_S: u64 = 300;

/// Checks a number of seconds that a sandbox may live.
pub(super) fn limit_s(seconds: i64, least: u64) -> Result<u64> {
    const MAX_S: u64 = DURATION_MAX_MS / 1000;
    match u64::try_from(seconds) {
        Ok(seconds) if seconds > MAX_S => {
            Err(Failure::bad(format!("Timeout cannot be greater than {} hours", MAX_S / 3600)))
        }
        Ok(seconds) if seconds >= least => Ok(seconds),
        _ => Err(Failure::bad(format!("Timeout must be at least {least} seconds"))),
    }
}

fn find(engine: &Engine, id: &SandboxId) -> Result<SandboxRecord> {
    let gone = || Failure::no_sandbox(id.as_str());
    let record = engine.sandbox(id).map_err(|_missing| gone())?;
    match record.state {
        SandboxState::Failed | SandboxState::Deleting => Err(gone()),
        _ => Ok(record),
    }
}

/// The engine's error about a sandbox that was there a moment ago.
fn told(id: &SandboxId, error: &Error) -> Failure {
    match error.code {
        Code::SandboxNotFound | Code::SandboxFailed => Failure::no_sandbox(id.as_str()),
        _ => Failure::of(error),
    }
}

/// Ends a sandbox.
pub(super) async fn kill(_: Caller<Manage>, State(app): State<App>, Id(id): Id) -> Result<StatusCode> {
    let engine = app.host.engine().clone();
    if engine.sandbox(&id).is_ok_and(|record| record.state == SandboxState::Deleting) {
        return Err(Failure::no_sandbox(id.as_str()));
    }
    let of_task = id.clone();
    // Once it has begun, it runs to its end, whether the client waits or not.
    let killing = tokio::spawn(async move { engine.delete_sandbox(&of_task).await });
    let killed = killing.await.unwrap_or_else(|_panic| Err(Error::new(Code::Internal, "the kill failed")));
    killed.map_err(|error| told(&id, &error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// How long the sandbox lives from now on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Timeout {
    timeout: Option<i64>,
    memory: Option<bool>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
}

async fn end_in(engine: &Engine, id: &SandboxId, seconds: u64) -> Result<SandboxRecord> {
    // A time to live of 0 becomes one millisecond.
    let ttl_ms = Some(Some((seconds * 1000).max(1)));
    let update = SandboxUpdate { ttl_ms, ..SandboxUpdate::default() };
    engine.update_sandbox(id, update).await.map_err(|error| told(id, &error))
}

/// Sets the end, sooner or later than before.
pub(super) async fn timeout(
    _: Caller<Exec>,
    State(app): State<App>,
    Id(id): Id,
    Json(request): Json<Timeout>,
) -> Result<StatusCode> {
    let seconds = request.timeout.ok_or_else(|| Failure::bad("timeout: is missing"))?;
    let seconds = limit_s(seconds.max(0), 0)?;
    let engine = app.host.engine();
    running(engine, &id)?;
    end_in(engine, &id, seconds).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A sandbox that runs. A paused sandbox has no end: the clients are told that it is not there.
fn running(engine: &Engine, id: &SandboxId) -> Result<SandboxRecord> {
    let record = find(engine, id)?;
    match record.state {
        SandboxState::Running | SandboxState::Creating | SandboxState::Resuming => Ok(record),
        SandboxState::Pausing => Err(Failure::conflict(format!("Sandbox '{id}' is being paused"))),
        SandboxState::Paused | SandboxState::Deleting | SandboxState::Failed => {
            Err(Failure::not_found(format!("Sandbox '{id}' is not running")))
        }
    }
}

/// By how many seconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refresh {
    duration: Option<i64>,
}

/// Moves the end away, never nearer.
pub(super) async fn refresh(
    _: Caller<Exec>,
    State(app): State<App>,
    Id(id): Id,
    Json(request): Json<Refresh>,
) -> Result<StatusCode> {
    let seconds = limit_s(request.duration.unwrap_or_default().max(0), 0)?.max(REFRESH_S);
    let engine = app.host.engine();
    let record = running(engine, &id)?;
    extend(engine, &record, seconds).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Moves the end to so many seconds from now, unless it is later already.
async fn extend(engine: &Engine, record: &SandboxRecord, seconds: u64) -> Result<SandboxRecord> {
    let later = record.expires_ms.is_none_or(|end| end >= engine.now_ms().saturating_add(seconds * 1000));
    if later { Ok(record.clone()) } else { end_in(engine, &record.id, seconds).await }
}

/// `connect`: makes sure that the sandbox runs, and tells how to reach it.
pub(super) async fn connect(
    caller: Caller<Exec>,
    State(app): State<App>,
    domain: Domain,
    Id(id): Id,
    Json(request): Json<Timeout>,
) -> Result<Response> {
    let seconds = request.timeout.map_or(Ok(CONNECT_S), |seconds| limit_s(seconds, 0))?;
    let engine = app.host.engine();
    let record = find(engine, &id)?;
    let (status, record) = match record.state {
        SandboxState::Paused | SandboxState::Pausing => {
            (StatusCode::CREATED, wake(engine, &id, seconds, request.memory).await?)
        }
        _ => (StatusCode::OK, extend(engine, &record, seconds).await?),
    };
    Ok((status, axum::Json(Sandbox::new(engine, &record, &caller.key(), domain))).into_response())
}

/// `resume`, as older clients do it: a sandbox that runs is an error.
pub(super) async fn resume(
    caller: Caller<Exec>,
    State(app): State<App>,
    domain: Domain,
    Id(id): Id,
    Json(request): Json<Timeout>,
) -> Result<Response> {
    let seconds = request.timeout.map_or(Ok(RESUME_S), |seconds| limit_s(seconds, 0))?;
    let engine = app.host.engine();
    let record = find(engine, &id)?;
    if !matches!(record.state, SandboxState::Paused | SandboxState::Pausing) {
        return Err(Failure::conflict(format!("Sandbox '{id}' is running already")));
    }
    if let Some(pause) = request.auto_pause {
        let mode = pause.then(|| full_pause(record.spec.isolation));
        let idle = IdleUpdate { pause_at_end: Some(mode), ..IdleUpdate::default() };
        let update = SandboxUpdate { idle, ..SandboxUpdate::default() };
        engine.update_sandbox(&id, update).await.map_err(|error| told(&id, &error))?;
    }
    let record = wake(engine, &id, seconds, request.memory).await?;
    let answer = axum::Json(Sandbox::new(engine, &record, &caller.key(), domain));
    Ok((StatusCode::CREATED, answer).into_response())
}

/// Resumes a paused sandbox, for so long; without its memory when the client does not want it.
async fn wake(engine: &Engine, id: &SandboxId, seconds: u64, memory: Option<bool>) -> Result<SandboxRecord> {
    if memory == Some(false) {
        engine.pause_sandbox(id, PauseMode::Filesystem).await.map_err(|error| told(id, &error))?;
    }
    // The end is set first: an end in the past would pause the sandbox again at once.
    end_in(engine, id, seconds.max(1)).await?;
    engine.resume_sandbox(id).await.map_err(|error| told(id, &error))
}

/// Wakes a sandbox whose client asked for it to wake on traffic.
///
/// # Errors
/// As [`Engine::resume_sandbox`].
pub(crate) async fn resume_on_traffic(
    engine: &Engine,
    id: &SandboxId,
    record: &SandboxRecord,
) -> Result<SandboxRecord, Error> {
    if record.state != SandboxState::Resuming {
        let seconds = Extras::of(record).timeout_s.unwrap_or(WOKEN_S).max(WOKEN_S);
        let update = SandboxUpdate { ttl_ms: Some(Some(seconds * 1000)), ..SandboxUpdate::default() };
        engine.update_sandbox(id, update).await?;
    }
    engine.resume_sandbox(id).await
}

/// The way to pause.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pause {
    memory: Option<bool>,
}

/// Pauses a sandbox; answers 409 if it is paused already.
pub(super) async fn pause(
    _: Caller<Manage>,
    State(app): State<App>,
    Id(id): Id,
    Json(request): Json<Pause>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let record = find(engine, &id)?;
    if matches!(record.state, SandboxState::Paused | SandboxState::Pausing) {
        return Err(Failure::conflict(format!("Sandbox '{id}' is already paused")));
    }
    let mode = if request.memory.unwrap_or(true) {
        full_pause(record.spec.isolation)
    } else {
        PauseMode::Filesystem
    };
    let (engine, of_task) = (engine.clone(), id.clone());
    // Once it has begun, it runs to its end, whether the client waits or not.
    let pausing = tokio::spawn(async move {
        let paused = engine.pause_sandbox(&of_task, mode).await?;
        // A paused sandbox has no end: the client that connects gives it another.
        let update = SandboxUpdate { ttl_ms: Some(None), ..SandboxUpdate::default() };
        match paused.expires_ms {
            Some(_) => engine.update_sandbox(&of_task, update).await.map(drop),
            None => Ok(()),
        }
    });
    let paused = pausing.await.unwrap_or_else(|_panic| Err(Error::new(Code::Internal, "the pause failed")));
    paused.map_err(|error| told(&id, &error))?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_have_limits() {
        assert_eq!(limit_s(1, 1).unwrap(), 1);
        assert!(limit_s(0, 1).is_err() && limit_s(-1, 0).is_err());
        assert_eq!(limit_s(0, 0).unwrap(), 0);
        let long = limit_s(i64::MAX, 1).unwrap_err();
        assert_eq!(long.message, "Timeout cannot be greater than 8760 hours");
    }
}
