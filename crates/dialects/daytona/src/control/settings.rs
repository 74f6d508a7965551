//! Labels, size, and the settings for a sandbox that no client uses.

use std::collections::BTreeMap;

use atoll_core::idle::{IdleUpdate, OnIdle};
use atoll_core::spec::SandboxUpdate;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::create::{Size, minutes};
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Json, Path, Root};
use crate::view;
use crate::who::{Exec, Manage, On};

/// Labels of a sandbox.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Labels {
    labels: BTreeMap<String, String>,
}

/// Replaces the labels.
pub(super) async fn labels(
    on: On<Manage>,
    State(app): State<App>,
    Json(Labels { labels }): Json<Labels>,
) -> Result<Json<Labels>> {
    let engine = app.host.engine();
    let mut extras = Extras::of(&engine.sandbox(&on.id)?);
    extras.labels = Some(labels.clone());
    let update = SandboxUpdate {
        labels: Some(extras::fitting(&labels)),
        annotations: [(extras::KEY.to_owned(), Some(extras.text()?))].into(),
        ..SandboxUpdate::default()
    };
    engine.update_sandbox(&on.id, update).await?;
    Ok(Json(Labels { labels }))
}

/// Changes the resources that a sandbox may use. Its disk keeps the size that it was made with.
pub(super) async fn resize(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Json(size): Json<Size>,
) -> Result<Json<Value>> {
    if size.has_disk() {
        return Err(Failure::bad(
            "disk: the size of a disk cannot change; make a sandbox with a larger one from a snapshot",
        ));
    }
    let update = SandboxUpdate { resources: size.resources()?, ..SandboxUpdate::default() };
    let record = app.host.engine().update_sandbox(&on.id, update).await?;
    Ok(Json(view::sandbox(&record, &root)))
}

async fn update(app: &App, on: &On<Manage>, root: &Root, update: SandboxUpdate) -> Result<Json<Value>> {
    let record = app.host.engine().update_sandbox(&on.id, update).await?;
    Ok(Json(view::sandbox(&record, root)))
}

/// After so many minutes without use, the sandbox does this.
fn when_idle(interval: i64, on_idle: OnIdle) -> Result<SandboxUpdate> {
    let after = minutes("interval", Some(interval).filter(|minutes| *minutes != 0))?;
    Ok(SandboxUpdate {
        idle_timeout_ms: Some(after),
        idle: IdleUpdate { on_idle: Some(on_idle), ..IdleUpdate::default() },
        ..SandboxUpdate::default()
    })
}

/// Stops the sandbox when no client used it for so long; 0 is never.
pub(super) async fn auto_stop(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, interval)): Path<(String, i64)>,
) -> Result<Json<Value>> {
    let ephemeral = Extras::of(&app.host.engine().sandbox(&on.id)?).ephemeral;
    let on_idle = if ephemeral { OnIdle::Delete } else { OnIdle::Hibernate };
    update(&app, &on, &root, when_idle(interval, on_idle)?).await
}

/// Pauses the sandbox with its processes when no client used it for so long; 0 is never.
pub(super) async fn auto_pause(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, interval)): Path<(String, i64)>,
) -> Result<Json<Value>> {
    update(&app, &on, &root, when_idle(interval, OnIdle::Freeze)?).await
}

/// Lets the sandbox count as archived after it was stopped for so many minutes.
pub(super) async fn auto_archive(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, interval)): Path<(String, i64)>,
) -> Result<Json<Value>> {
    minutes("interval", Some(interval))?;
    // In the protocol, 0 means the longest time.
    let after = u64::try_from(interval)
        .ok()
        .filter(|minutes| *minutes > 0)
        .unwrap_or(super::other::MAX_AUTO_ARCHIVE_MIN);
    let engine = app.host.engine();
    let record = engine.sandbox(&on.id)?;
    let record = super::lifecycle::note(engine, &record, |extras| extras.auto_archive = Some(after)).await?;
    Ok(Json(view::sandbox(&record, &root)))
}

/// Deletes the sandbox so many minutes after it stopped; 0 is at once, a negative number is never.
pub(super) async fn auto_delete(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, interval)): Path<(String, i64)>,
) -> Result<Json<Value>> {
    let after = minutes("interval", Some(interval).filter(|minutes| *minutes > 0))?;
    let record = app.host.engine().sandbox(&on.id)?;
    let mut extras = Extras::of(&record);
    extras.ephemeral = interval == 0;
    let on_idle = match (interval, record.spec.idle.on_idle) {
        (0, _) => OnIdle::Delete,
        (_, OnIdle::Delete) => OnIdle::Hibernate,
        (_, other) => other,
    };
    let changes = SandboxUpdate {
        idle: IdleUpdate {
            on_idle: Some(on_idle),
            delete_paused_after_ms: Some(after),
            ..IdleUpdate::default()
        },
        annotations: [(extras::KEY.to_owned(), Some(extras.text()?))].into(),
        ..SandboxUpdate::default()
    };
    update(&app, &on, &root, changes).await
}

/// Ends the sandbox so many minutes from now; 0 is never.
pub(super) async fn ttl(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Path((_, interval)): Path<(String, i64)>,
) -> Result<Json<Value>> {
    let ttl_ms = Some(minutes("ttl", Some(interval).filter(|minutes| *minutes != 0))?);
    update(&app, &on, &root, SandboxUpdate { ttl_ms, ..SandboxUpdate::default() }).await
}

/// Counts as use of the sandbox, so that it is not idle.
pub(super) async fn touch(on: On<Exec>, State(app): State<App>) -> Result<StatusCode> {
    drop(app.host.engine().guest(&on.id).await?);
    Ok(StatusCode::CREATED)
}
