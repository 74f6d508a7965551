//! Snapshots of a sandbox, which goes on; a snapshot is usable as a template.

use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::sandbox::SandboxState;
use atoll_core::snapshot::{Reference, SnapshotKind, SnapshotState};
use atoll_core::spec::IsolationLevel;
use atoll_core::{Code, Error};
use atoll_engine::{SnapshotOrder, SnapshotQuery};
use atoll_store::SnapshotRecord;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::list::{NEXT, limit};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Id, Json, Manage, Query, Read};
use crate::templates::DEFAULT_TAG;

/// The snapshot that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Order {
    name: Option<String>,
    memory: Option<bool>,
}

/// A snapshot as the clients read it.
#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    #[serde(rename = "snapshotID")]
    id: String,
    names: Vec<String>,
}

impl Snapshot {
    fn new(record: &SnapshotRecord) -> Self {
        let names: Vec<String> = record.tags.iter().map(ToString::to_string).collect();
        let own = || format!("{}:{DEFAULT_TAG}", record.id);
        Self { id: names.first().cloned().unwrap_or_else(own), names }
    }
}

/// `name`, `name:tag`, `namespace/name:tag`: all namespaces share the same names.
fn reference(text: &str) -> Result<Reference> {
    let bare = text.rsplit('/').next().unwrap_or(text).to_ascii_lowercase();
    let full = if bare.contains(':') { bare } else { format!("{bare}:{DEFAULT_TAG}") };
    full.parse().map_err(|error: Error| Failure::bad(format!("name: {}", error.message)))
}

/// Takes a snapshot.
pub(super) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Id(id): Id,
    Json(request): Json<Order>,
) -> Result<Response> {
    let engine = app.host.engine();
    let record = engine.sandbox(&id).map_err(|_missing| Failure::no_sandbox(id.as_str()))?;
    match record.state {
        SandboxState::Running => {}
        SandboxState::Creating | SandboxState::Pausing | SandboxState::Resuming => {
            return Err(Failure::conflict(format!("Sandbox '{id}' is changing its state; try again")));
        }
        SandboxState::Paused | SandboxState::Deleting | SandboxState::Failed => {
            return Err(Failure::not_found(format!("Sandbox '{id}' is not running")));
        }
    }
    let mut order = SnapshotOrder::unnamed();
    if request.memory.unwrap_or(true) && record.spec.isolation == IsolationLevel::Microvm {
        order.kind = SnapshotKind::Memory;
    }
    if let Some(name) = request.name.filter(|name| !name.is_empty()) {
        order.tags.push(reference(&name)?);
    }
    let taken = engine.create_snapshot(&id, order, caller.engine()).await;
    let taken = taken.map_err(|error| match error.code {
        Code::SandboxNotFound | Code::SandboxFailed => Failure::no_sandbox(id.as_str()),
        _ => Failure::of(&error),
    })?;
    Ok((StatusCode::CREATED, axum::Json(Snapshot::new(&taken))).into_response())
}

/// The snapshots that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    #[serde(rename = "sandboxID")]
    sandbox: Option<String>,
    name: Option<String>,
    limit: Option<i64>,
    #[serde(rename = "nextToken")]
    next_token: Option<String>,
}

/// Lists snapshots, newest first.
pub(super) async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Response> {
    let limit = limit(query.limit)?;
    let name = query.name.filter(|name| !name.is_empty());
    let wanted = match name.as_deref().map(reference) {
        // No snapshot has a name that is not valid.
        Some(Err(_)) => return Ok(axum::Json(Vec::<Snapshot>::new()).into_response()),
        wanted => wanted.transpose()?,
    };
    let mut wanted_query = SnapshotQuery {
        sandbox: query.sandbox.filter(|sandbox| !sandbox.is_empty()),
        name: wanted.as_ref().map(|reference| reference.name.clone()),
        limit: Some(PAGE_MAX_COUNT),
        ..SnapshotQuery::default()
    };
    // A tag narrows it down only when the client gave one.
    let tag = name.as_ref().filter(|name| name.contains(':')).and(wanted.map(|reference| reference.tag));
    let mut all: Vec<SnapshotRecord> = Vec::new();
    loop {
        let page = match app.host.engine().snapshots(&wanted_query, caller.engine()).await {
            // A sandbox that never existed has none.
            Err(error) if error.code == Code::SandboxNotFound => break,
            page => page.map_err(|error| Failure::of(&error))?,
        };
        all.extend(page.items);
        wanted_query.cursor = page.next.map(|next| next.to_string());
        if wanted_query.cursor.is_none() {
            break;
        }
    }
    all.retain(|record| {
        record.state == SnapshotState::Ready
            && tag.as_ref().is_none_or(|tag| record.tags.iter().any(|reference| reference.tag == *tag))
    });
    // Ids sort by age.
    all.sort_unstable_by(|one, other| other.id.cmp(&one.id));
    if let Some(after) = query.next_token.filter(|token| !token.is_empty()) {
        all.retain(|record| record.id.as_str() < after.as_str());
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| more).and_then(|last| last.id.as_str().parse().ok());
    let items: Vec<Snapshot> = all.iter().map(Snapshot::new).collect();
    let mut response = axum::Json(items).into_response();
    if let Some(next) = next {
        response.headers_mut().insert(NEXT, next);
    }
    Ok(response)
}
