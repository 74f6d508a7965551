//! Volumes. They are Atoll's: real file systems with a size, which several sandboxes can use at once.

use atoll_core::id::VolumeId;
use atoll_core::sharing::Needs;
use atoll_core::volume::{VolumeDraft, VolumeState};
use atoll_core::{Code, Error};
use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::time;
use atoll_engine::{Resource, Target, VolumeView};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Path};
use crate::view::ORGANIZATION;
use crate::who::{Manage, Read};

fn shown(view: &VolumeView) -> Value {
    let record = &view.record;
    let state = match record.state {
        VolumeState::Creating => "creating",
        VolumeState::Ready => "ready",
        VolumeState::Deleting => "deleting",
    };
    json!({
        "id": record.id,
        "name": record.name,
        "organizationId": ORGANIZATION,
        "state": state,
        "createdAt": time::iso(record.created_ms),
        "updatedAt": time::iso(record.created_ms),
        "lastUsedAt": null,
        "errorReason": null,
    })
}

fn missing(error: Error, name: &str) -> Failure {
    match error.code {
        Code::VolumeNotFound | Code::InvalidArgument => {
            Failure::not_found(format!("Volume {} not found", atoll_core::error::shorten(name)))
        }
        _ => Failure::of(&error),
    }
}

/// All of them.
pub(super) async fn list(caller: Caller<Read>, State(app): State<App>) -> Json<Vec<Value>> {
    Json(app.host.engine().volumes(caller.engine()).iter().map(shown).collect())
}

/// The volume that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Create {
    name: String,
}

/// Makes a volume; it can be used when the answer comes.
pub(super) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(Create { name }): Json<Create>,
) -> Result<Json<Value>> {
    let draft = VolumeDraft { name, size_bytes: None, from: None, read_only: false };
    Ok(Json(shown(&app.host.engine().create_volume(draft, caller.engine()).await?)))
}

/// The volume that a text names, if the caller may do with it what `needs` says.
async fn find<S>(app: &App, caller: &Caller<S>, needs: Needs, name: &str) -> Result<VolumeId> {
    let grant = app.host.engine().authorize(caller.engine(), needs, Target::Volume(name)).await;
    match grant.map_err(|error| missing(error, name))?.resource() {
        Resource::Volume(id) => Ok(id.clone()),
        _ => Err(Failure::not_found(format!("Volume {} not found", atoll_core::error::shorten(name)))),
    }
}

/// One of them, by id or name.
pub(super) async fn read(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let id = find(&app, &caller, Needs::READ, &name).await?;
    let view = app.host.engine().volume(&id, caller.engine()).await.map_err(|error| missing(error, &name))?;
    Ok(Json(shown(&view)))
}

/// Removes a volume with all files in it.
pub(super) async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode> {
    let id = find(&app, &caller, Needs::MANAGE, &name).await?;
    app.host.engine().delete_volume(&id, caller.engine()).await.map_err(|error| missing(error, &name))?;
    Ok(StatusCode::OK)
}
