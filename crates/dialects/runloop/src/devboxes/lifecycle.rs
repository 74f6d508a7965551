//! From keep-alive to shutdown.

use std::time::Duration;

use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error};
use atoll_dialect_kit::pending::within;
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use axum::extract::State;
use serde_json::{Value, json};

use super::{look, status, view};
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::Extras;
use crate::request::{self, Caller, Exec, Json, Manage, Path};

/// How long a call waits for the work that it began; the clients wait for the rest of the time.
const WAIT: Duration = Duration::from_secs(20);

/// The engine's error about a devbox that was there a moment ago.
fn told(id: &str, error: &Error) -> Failure {
    match error.code {
        Code::SandboxNotFound | Code::SandboxFailed => Failure::no_devbox(id),
        _ => Failure::of(error),
    }
}

/// `POST …/shutdown`: ends a devbox. For a devbox that ended already, the answer is its last state.
pub(super) async fn shutdown(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine().clone();
    let Ok(record) = request::record(&engine, &caller, &id) else {
        return look(&app, &caller, &id).map(Json);
    };
    let mut last = view(&app, &record);
    let sandbox = record.id.clone();
    app.ended.shut(&sandbox, app.host.engine().now_ms());
    // Once it has begun, it runs to its end, whether the client waits or not.
    match within(WAIT, async move { engine.delete_sandbox(&sandbox).await }).await {
        Some(Err(error)) if error.code != Code::SandboxNotFound => return Err(told(&id, &error)),
        Some(_) | None => {}
    }
    if let Some(ended) = app.ended.find(record.id.as_str(), None, app.host.engine().now_ms()) {
        last = ended;
    }
    Ok(Json(last))
}

/// `POST …/suspend`: keeps the disk, ends the processes. The clients wait for `suspended`.
pub(super) async fn suspend(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine().clone();
    let record = request::record(&engine, &caller, &id)?;
    match status(&app, &record) {
        "suspended" => return Ok(Json(view(&app, &record))),
        "suspending" | "running" => {}
        other => return Err(Failure::bad(format!("Devbox {id} cannot be suspended while it is {other}"))),
    }
    let sandbox = record.id.clone();
    let pausing = async move {
        let paused = engine.pause_sandbox(&sandbox, PauseMode::Filesystem).await?;
        // A suspended devbox has no end: a resume gives it another.
        match paused.expires_ms {
            Some(_) => ttl(&engine, &paused, None).await,
            None => Ok(paused),
        }
    };
    if let Some(Err(error)) = within(WAIT, pausing).await {
        return Err(told(&id, &error));
    }
    let record = request::record(app.host.engine(), &caller, &id)?;
    Ok(Json(view(&app, &record)))
}

async fn ttl(engine: &Engine, record: &SandboxRecord, ms: Option<u64>) -> Result<SandboxRecord, Error> {
    let update = SandboxUpdate { ttl_ms: Some(ms), ..SandboxUpdate::default() };
    engine.update_sandbox(&record.id, update).await
}

/// Starts a suspended devbox again, and starts its time anew: an end in the past would end it at once.
///
/// # Errors
/// As [`Engine::resume_sandbox`].
pub(crate) async fn wake(engine: &Engine, record: &SandboxRecord) -> Result<SandboxRecord, Error> {
    if let Some(seconds) = Extras::of(record).keep_alive_s {
        ttl(engine, record, Some(seconds.saturating_mul(1000))).await?;
    }
    engine.resume_sandbox(&record.id).await
}

/// `POST …/resume`: starts a suspended devbox again. The clients wait for `running`.
pub(super) async fn resume(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine().clone();
    let record = request::record(&engine, &caller, &id)?;
    match record.state {
        SandboxState::Paused | SandboxState::Pausing | SandboxState::Resuming => {}
        SandboxState::Running => return Ok(Json(view(&app, &record))),
        _ => {
            let status = status(&app, &record);
            return Err(Failure::bad(format!("Devbox {id} cannot be resumed while it is {status}")));
        }
    }
    let resuming = async move { wake(&engine, &record).await };
    if let Some(Err(error)) = within(WAIT, resuming).await {
        return Err(told(&id, &error));
    }
    let record = request::record(app.host.engine(), &caller, &id)?;
    Ok(Json(view(&app, &record)))
}

/// `POST …/keep_alive`: the devbox's time begins again.
pub(super) async fn keep_alive(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = super::usable(&app, &caller, &id)?;
    match Extras::of(&record).keep_alive_s {
        Some(seconds) => {
            ttl(engine, &record, Some(seconds.saturating_mul(1000)))
                .await
                .map_err(|error| told(&id, &error))?;
        }
        // The devbox ends when it idles: this call counts as use.
        None => drop(engine.guest(&record.id).await.map_err(|error| told(&id, &error))?),
    }
    Ok(Json(json!({})))
}
