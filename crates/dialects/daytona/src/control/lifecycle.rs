//! From start to delete. Every call answers when it is done.

use atoll_core::idle::OnIdle;
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::{IsolationLevel, SandboxUpdate};
use atoll_core::{Code, Error};
use atoll_engine::Engine;
use atoll_store::SandboxRecord;
use axum::extract::State;
use serde_json::Value;

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Json, Root};
use crate::view;
use crate::who::{Exec, Manage, On};

/// Runs work to its end once it has begun, whether the client waits or not.
async fn to_the_end<T: Send + 'static>(
    doing: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T> {
    let done = tokio::spawn(doing).await;
    Ok(done.unwrap_or_else(|_panic| Err(Error::new(Code::Internal, "the call failed")))?)
}

/// Changes a sandbox's extras.
pub(super) async fn note(
    engine: &Engine,
    record: &SandboxRecord,
    change: impl FnOnce(&mut Extras),
) -> Result<SandboxRecord> {
    let mut extras = Extras::of(record);
    let before = extras.clone();
    change(&mut extras);
    if extras == before {
        return Ok(record.clone());
    }
    let annotations = [(extras::KEY.to_owned(), Some(extras.text()?))].into();
    let update = SandboxUpdate { annotations, ..SandboxUpdate::default() };
    Ok(engine.update_sandbox(&record.id, update).await?)
}

/// Starts a sandbox that was stopped.
pub(super) async fn start(on: On<Exec>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let record = app.host.engine().sandbox(&on.id)?;
    let record = started(app.host.engine(), record).await?;
    Ok(Json(view::in_state(&record, &root, "started")))
}

async fn started(engine: &Engine, record: SandboxRecord) -> Result<SandboxRecord> {
    let record = note(engine, &record, |extras| extras.archived = false).await?;
    let engine = engine.clone();
    to_the_end(async move { engine.resume_sandbox(&record.id).await }).await
}

/// Stops a sandbox: its files stay. A sandbox that is to be deleted when it stops is deleted.
pub(super) async fn stop(on: On<Manage>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let engine = app.host.engine().clone();
    let record = engine.sandbox(&on.id)?;
    if Extras::of(&record).ephemeral || record.spec.idle.on_idle == OnIdle::Delete {
        to_the_end(async move { engine.delete_sandbox(&on.id).await }).await?;
        return Ok(Json(view::in_state(&record, &root, "destroyed")));
    }
    let stopping = async move { engine.pause_sandbox(&on.id, PauseMode::Filesystem).await };
    let record = to_the_end(stopping).await?;
    Ok(Json(view::in_state(&record, &root, "stopped")))
}

/// How a sandbox of a level is paused with its memory: to disk where the level can do that, else frozen in memory.
const fn full_pause(level: IsolationLevel) -> PauseMode {
    match level {
        IsolationLevel::Microvm => PauseMode::Memory,
        IsolationLevel::Container | IsolationLevel::Gvisor => PauseMode::Frozen,
    }
}

/// Pauses a sandbox with its processes.
pub(super) async fn pause(on: On<Manage>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let engine = app.host.engine().clone();
    let mode = full_pause(engine.sandbox(&on.id)?.spec.isolation);
    let record = to_the_end(async move { engine.pause_sandbox(&on.id, mode).await }).await?;
    Ok(Json(view::sandbox(&record, &root)))
}

/// A sandbox that failed cannot be recovered: the answer says why it failed.
pub(super) async fn recover(on: On<Manage>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let record = app.host.engine().sandbox(&on.id)?;
    if record.state == SandboxState::Failed {
        let why = record.reason.as_deref().unwrap_or("no reason was recorded");
        return Err(Failure::bad(format!(
            "the sandbox cannot be recovered: {why}; make a new one, from a snapshot if there is one"
        )));
    }
    started(app.host.engine(), record).await.map(|record| Json(view::in_state(&record, &root, "started")))
}

/// Archives a sandbox that is stopped. Its files stay where they are: only its state changes.
pub(super) async fn archive(on: On<Manage>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = engine.sandbox(&on.id)?;
    match view::state(&record) {
        "stopped" | "archived" => {}
        _ => return Err(Failure::bad("Sandbox is not stopped")),
    }
    let record = note(engine, &record, |extras| extras.archived = true).await?;
    Ok(Json(view::sandbox(&record, &root)))
}

/// Ends a sandbox.
pub(super) async fn remove(on: On<Manage>, root: Root, State(app): State<App>) -> Result<Json<Value>> {
    let engine = app.host.engine().clone();
    let record = engine.sandbox(&on.id)?;
    to_the_end(async move { engine.delete_sandbox(&on.id).await }).await?;
    Ok(Json(view::in_state(&record, &root, "destroyed")))
}
