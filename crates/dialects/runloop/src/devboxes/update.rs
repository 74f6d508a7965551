//! Changing the name and the metadata of a devbox.

use std::collections::BTreeMap;

use atoll_core::spec::SandboxUpdate;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;

use super::{create, view};
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{self, Caller, Json, Manage, Path};

/// The new values. A value that is absent stays.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Update {
    name: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
}

/// `POST /v1/devboxes/{devbox}`.
pub(super) async fn update(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(asked): Json<Update>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = request::record(engine, &caller, &id)?;
    let mut extras = Extras::of(&record);
    let labels = asked.metadata.as_ref().map(create::labels);
    extras.name = asked.name.or(extras.name);
    extras.metadata = asked.metadata.or(extras.metadata);
    let update = SandboxUpdate {
        labels,
        annotations: BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]),
        ..SandboxUpdate::default()
    };
    let record = engine.update_sandbox(&record.id, update).await;
    Ok(Json(view(&app, &record.map_err(|error| Failure::of(&error))?)))
}
