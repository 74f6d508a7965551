//! Listing blueprints.

use atoll_store::BuildRecord;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Builds, Parameters, view};
use crate::App;
use crate::devboxes::limit;
use crate::error::{Failure, Result};
use crate::ids;
use crate::newest::Newest;
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
    let name = query.name.as_deref().filter(|name| !name.is_empty());
    let status = query.status.as_deref().filter(|status| !status.is_empty());
    let after = query.starting_after.as_deref().and_then(ids::blueprint);
    let is_wanted = |record: &BuildRecord| {
        name.is_none_or(|name| Parameters::of(record).name == name)
            && status.is_none_or(|status| view::status(record) == status)
    };
    // Ids sort by age, but not quite as the times do: a build has its id before it is begun. The next page begins after an id.
    let (mut newest, mut total) = (Newest::new(limit), 0_usize);
    let mut builds = Builds::new(engine, &caller, &[]);
    while let Some(few) = builds.next().await.map_err(|error| Failure::of(&error))? {
        for record in &few {
            if !is_wanted(record) {
                continue;
            }
            let view = view::view(engine, record).await;
            if view["state"] == "created" {
                total += 1;
                if after.as_ref().is_none_or(|after| record.id < *after) {
                    newest.take(record.id.clone(), view);
                }
            }
        }
    }
    let (items, more) = newest.page();
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
