//! Listing blueprints.

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Parameters, all, view};
use crate::App;
use crate::devboxes::limit;
use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{Caller, Json, Query, Read};

/// The blueprints that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    name: Option<String>,
    status: Option<String>,
    limit: Option<i64>,
    starting_after: Option<String>,
    include_total_count: Option<bool>,
}

/// `GET /v1/blueprints`, newest first.
pub(super) async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let limit = limit(query.limit)?;
    let engine = app.host.engine();
    let mut records = all(engine, &caller, &[]).await.map_err(|error| Failure::of(&error))?;
    // Ids sort by age, but not quite as the times do: a build has its id before it is begun. The next page begins after an id.
    records.sort_unstable_by(|one, other| other.id.cmp(&one.id));
    let name = query.name.as_deref().filter(|name| !name.is_empty());
    let status = query.status.as_deref().filter(|status| !status.is_empty());
    records.retain(|record| {
        name.is_none_or(|name| Parameters::of(record).name == name)
            && status.is_none_or(|status| view::status(record) == status)
    });
    let mut views = Vec::with_capacity(records.len());
    for record in &records {
        let view = view::view(engine, record).await;
        if view["state"] == "created" {
            views.push((record.id.clone(), view));
        }
    }
    let total = views.len();
    if let Some(after) = query.starting_after.as_deref().and_then(ids::blueprint) {
        views.retain(|(id, _)| *id < after);
    }
    let more = views.len() > limit;
    let items: Vec<Value> = views.into_iter().take(limit).map(|(_, view)| view).collect();
    let mut answer = json!({"blueprints": items, "has_more": more});
    if query.include_total_count.unwrap_or(true) {
        answer["total_count"] = total.into();
    }
    Ok(Json(answer))
}

/// `GET /v1/blueprints/list_public`: there are none.
pub(super) async fn list_public(_: Caller<Read>) -> Result<Json<Value>> {
    Ok(Json(json!({"blueprints": [], "has_more": false, "total_count": 0})))
}
