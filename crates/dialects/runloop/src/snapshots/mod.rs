//! Snapshots of disks: `/v1/devboxes/disk_snapshots`.
//!
//! A snapshot's name, message and metadata are in its comment, which is short: if they do not fit, they are refused.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::limits::{PAGE_MAX_COUNT, SNAPSHOT_COMMENT_MAX_BYTES};
use atoll_core::sharing::Needs;
use atoll_core::snapshot::SnapshotState;
use atoll_core::{Code, Error};
use atoll_dialect_kit::pending::Pending;
use atoll_dialect_kit::promise::Promise;
use atoll_engine::{Engine, SnapshotOrder, SnapshotQuery};
use atoll_store::SnapshotRecord;
use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::App;
use crate::devboxes::{limit, usable};
use crate::error::{Failure, Result};
use crate::extras::Extras;
use crate::ids;
use crate::once::{self, Promised};
use crate::request::{self, Caller, Json, Manage, Path, Query, Read};

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/devboxes/{devbox}/snapshot_disk", post(take))
        .route("/v1/devboxes/{devbox}/snapshot_disk_async", post(begin))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/devboxes/disk_snapshots", get(list))
        .route("/v1/devboxes/disk_snapshots/{snapshot}", post(update))
        .route("/v1/devboxes/disk_snapshots/{snapshot}/status", get(status))
        .route("/v1/devboxes/disk_snapshots/{snapshot}/delete", post(remove))
}

/// The message about a snapshot that an earlier server began to take.
const NOT_THERE: &str = "the server was started anew, and the snapshot is not there";

/// The name, message and metadata that a client gives a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Noted {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit_message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<BTreeMap<String, String>>,
    /// The blueprint of the devbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_blueprint_id: Option<String>,
}

impl Noted {
    fn of(record: &SnapshotRecord) -> Self {
        let Some(text) = &record.comment else { return Self::default() };
        // A comment of another API is taken for the message.
        serde_json::from_str(text)
            .unwrap_or_else(|_| Self { commit_message: Some(text.clone()), ..Self::default() })
    }

    fn comment(&self) -> Result<Option<String>> {
        if *self == Self::default() {
            return Ok(None);
        }
        let text = atoll_dialect_kit::annotation::text(self).map_err(|error| Failure::of(&error))?;
        if text.len() > SNAPSHOT_COMMENT_MAX_BYTES {
            return Err(Failure::bad(format!(
                "name, commit_message and metadata of a snapshot together: at most {SNAPSHOT_COMMENT_MAX_BYTES} bytes as JSON on this server, not {}",
                text.len()
            )));
        }
        Ok(Some(text))
    }
}

/// A snapshot that is being taken, or that failed.
#[derive(Debug, Clone)]
pub(crate) struct Taking {
    id: String,
    view: Value,
    failure: Option<String>,
}

impl Pending for Taking {
    fn id(&self) -> &str {
        &self.id
    }

    fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }
}

fn view(record: &SnapshotRecord) -> Value {
    let noted = Noted::of(record);
    json!({
        "id": ids::of_snapshot(&record.id),
        "name": noted.name,
        "commit_message": noted.commit_message,
        "metadata": noted.metadata.unwrap_or_default(),
        "create_time_ms": record.created_ms,
        "source_devbox_id": record.sandbox.as_ref().map(ids::of_sandbox).unwrap_or_default(),
        "source_blueprint_id": noted.source_blueprint_id,
        "size_bytes": record.stored_bytes,
    })
}

/// The snapshot to take of a devbox.
struct Order {
    sandbox: atoll_core::id::SandboxId,
    id: SnapshotId,
    order: SnapshotOrder,
    noted: Noted,
}

/// The snapshot that an earlier server took for this request, before it was killed without an answer.
async fn made<S>(app: &App, caller: &Caller<S>, promise: &Promise) -> Option<Json<Value>> {
    if !promise.renewed {
        return None;
    }
    let id = promise.snapshot();
    let found = app.host.engine().usable_snapshot(id.as_str(), Needs::READ, caller.engine());
    found.await.ok().map(|record| Json(view(&record)))
}

fn order<S>(
    app: &App,
    caller: &Caller<S>,
    devbox: &str,
    mut noted: Noted,
    promise: &Promise,
) -> Result<Order> {
    let record = usable_or_suspended(app, caller, devbox)?;
    noted.source_blueprint_id = Extras::of(&record).blueprint_id;
    let id = promise.snapshot();
    let comment = noted.comment()?;
    let order = SnapshotOrder { id: Some(id.clone()), comment, ..SnapshotOrder::unnamed() };
    Ok(Order { sandbox: record.id, id, order, noted })
}

/// A devbox that has a disk, also when it is suspended.
fn usable_or_suspended<S>(app: &App, caller: &Caller<S>, devbox: &str) -> Result<atoll_store::SandboxRecord> {
    let record = request::record(app.host.engine(), caller, devbox)?;
    if crate::devboxes::status(app, &record) == "suspended" {
        Ok(record)
    } else {
        usable(app, caller, devbox)
    }
}

/// `snapshot_disk`: answers when the snapshot is there.
async fn take(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(devbox): Path<String>,
    Promised(promise): Promised,
    Json(noted): Json<Noted>,
) -> Result<Json<Value>> {
    if let Some(made) = made(&app, &caller, &promise).await {
        return Ok(made);
    }
    let Order { sandbox, order, .. } = order(&app, &caller, &devbox, noted, &promise)?;
    let taken = app.host.engine().create_snapshot(&sandbox, order, caller.engine()).await;
    taken.map(|record| Json(view(&record))).map_err(|error| Failure::of(&error))
}

/// `snapshot_disk_async`: answers at once; the clients ask for the snapshot's status.
async fn begin(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(devbox): Path<String>,
    Promised(promise): Promised,
    Json(noted): Json<Noted>,
) -> Result<Json<Value>> {
    if let Some(made) = made(&app, &caller, &promise).await {
        return Ok(made);
    }
    let Order { sandbox, id, order, noted } = order(&app, &caller, &devbox, noted, &promise)?;
    let view = json!({
        "id": ids::of_snapshot(&id),
        "name": noted.name,
        "commit_message": noted.commit_message,
        "metadata": noted.metadata.unwrap_or_default(),
        "create_time_ms": app.host.engine().now_ms(),
        "source_devbox_id": ids::of_sandbox(&sandbox),
        "source_blueprint_id": noted.source_blueprint_id,
    });
    let taking = Taking { id: id.to_string(), view: view.clone(), failure: None };
    let (engine, by) = (app.host.engine().clone(), caller.engine().clone());
    let making = async move { engine.create_snapshot(&sandbox, order, &by).await.map(drop) };
    let begun = app.taking.run(taking, caller.key(), Duration::ZERO, making).await;
    begun.map_err(|error| Failure::of(&error))?;
    Ok(Json(view))
}

/// A snapshot that is ready, if the caller may do with it what `needs` says.
///
/// # Errors
/// 404, also for a snapshot that the caller may not know of; 403.
pub(crate) async fn find<S>(
    engine: &Engine,
    caller: &Caller<S>,
    needs: Needs,
    text: &str,
) -> Result<SnapshotRecord> {
    let none = || Failure::not_found(format!("Snapshot {} not found", atoll_core::error::shorten(text)));
    let id = ids::snapshot(text).ok_or_else(none)?;
    let told = |error: Error| match error.code {
        Code::SnapshotNotFound => none(),
        _ => Failure::of(&error),
    };
    engine.usable_snapshot(id.as_str(), needs, caller.engine()).await.map_err(told)
}

/// The state of a snapshot that is being taken.
async fn status(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(text): Path<String>,
) -> Result<Json<Value>> {
    let taking = ids::snapshot(&text).and_then(|id| app.taking.find(id.as_str(), caller.sees()));
    if let Some(Taking { view, failure, .. }) = taking {
        let status = if failure.is_some() { "error" } else { "in_progress" };
        return Ok(Json(json!({"status": status, "error_message": failure, "snapshot": view})));
    }
    let record = match find(app.host.engine(), &caller, Needs::READ, &text).await {
        Ok(record) => record,
        Err(failure) => {
            let gone = ids::snapshot(&text).and_then(|id| app.gone.find(id.as_str(), caller.sees()));
            if let Some(view) = gone {
                return Ok(Json(json!({"status": "deleted", "snapshot": view})));
            }
            // There is a promise and no snapshot: taking it broke off with the server, or it was deleted before that
            // ended.
            let view = app.answers.told(&caller.key(), &text).ok_or(failure)?;
            return Ok(Json(json!({"status": "error", "error_message": NOT_THERE, "snapshot": view})));
        }
    };
    let status = match record.state {
        SnapshotState::Creating => "in_progress",
        SnapshotState::Ready => "complete",
        SnapshotState::Deleting => "deleted",
    };
    Ok(Json(json!({"status": status, "snapshot": view(&record)})))
}

/// Removes a snapshot.
async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(text): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    if let Some(id) = ids::snapshot(&text)
        && app.taking.forget(id.as_str(), caller.sees()) == Some(true)
    {
        return Ok(Json(json!({})));
    }
    let record = find(engine, &caller, Needs::MANAGE, &text).await?;
    engine.delete_snapshot(&record.id, None, caller.engine()).await.map_err(|error| Failure::of(&error))?;
    app.gone.note(record.id.to_string(), &caller.key(), view(&record));
    Ok(Json(json!({})))
}

/// The name, message and metadata of a snapshot cannot change.
async fn update(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(text): Path<String>,
) -> Result<Json<Value>> {
    find(app.host.engine(), &caller, Needs::MANAGE, &text).await?;
    Err(Failure::bad(
        "changing a snapshot is not supported by this server: give name, commit_message and metadata when it is taken",
    ))
}

/// The snapshots that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    devbox_id: Option<String>,
    source_blueprint_id: Option<String>,
    limit: Option<i64>,
    starting_after: Option<String>,
    include_total_count: Option<bool>,
    /// `metadata[KEY]=VALUE`.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl List {
    /// The pairs that metadata must have.
    fn metadata(&self) -> Vec<(&str, &str)> {
        self.others
            .iter()
            .filter_map(|(name, value)| {
                let key = name.strip_prefix("metadata[")?.strip_suffix(']')?;
                Some((key, value.as_str()?))
            })
            .collect()
    }
}

/// `GET /v1/devboxes/disk_snapshots`, newest first.
async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let limit = limit(query.limit)?;
    let devbox = query.devbox_id.as_deref().filter(|id| !id.is_empty()).map(ids::sandbox);
    let mut asked = SnapshotQuery { limit: Some(PAGE_MAX_COUNT), ..SnapshotQuery::default() };
    let mut all: Vec<SnapshotRecord> = Vec::new();
    loop {
        let page = app
            .host
            .engine()
            .snapshots(&asked, caller.engine())
            .await
            .map_err(|error| Failure::of(&error))?;
        all.extend(page.items);
        asked.cursor = page.next.map(|next| next.to_string());
        if asked.cursor.is_none() {
            break;
        }
    }
    let pairs = query.metadata();
    let blueprint = query.source_blueprint_id.as_deref().filter(|id| !id.is_empty());
    all.retain(|record| {
        let noted = Noted::of(record);
        let has = |(key, value): &(&str, &str)| {
            noted.metadata.as_ref().and_then(|all| all.get(*key)).is_some_and(|known| known == value)
        };
        record.state == SnapshotState::Ready
            && devbox.as_ref().is_none_or(|id| record.sandbox.as_ref().is_some_and(|of| of.as_str() == id))
            && blueprint.is_none_or(|id| noted.source_blueprint_id.as_deref() == Some(id))
            && pairs.iter().all(has)
    });
    // Ids sort by age.
    all.sort_unstable_by(|one, other| other.id.cmp(&one.id));
    let total = all.len();
    if let Some(after) = query.starting_after.as_deref().and_then(ids::snapshot) {
        all.retain(|record| record.id < after);
    }
    let more = all.len() > limit;
    let items: Vec<Value> = all.iter().take(limit).map(view).collect();
    let mut answer = json!({"snapshots": items, "has_more": more});
    if query.include_total_count.unwrap_or(true) {
        answer["total_count"] = total.into();
    }
    Ok(Json(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_must_fit() {
        let noted = |text: &str| Noted { commit_message: Some(text.to_owned()), ..Noted::default() };
        assert_eq!(Noted::default().comment().unwrap(), None);
        let text = noted("why").comment().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Noted>(&text).unwrap(), noted("why"));
        assert!(noted(&"x".repeat(SNAPSHOT_COMMENT_MAX_BYTES)).comment().is_err());
    }

    #[test]
    fn metadata_in_queries() {
        let query: List =
            serde_json::from_value(json!({"metadata[a]": "b", "other": "c", "limit": 1})).unwrap();
        assert_eq!(query.metadata(), [("a", "b")]);
    }
}
