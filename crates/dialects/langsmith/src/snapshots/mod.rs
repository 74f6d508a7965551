//! Snapshots: `/v2/sandboxes/snapshots`, and capturing a sandbox.
//!
//! The engine has one kind for both kinds of the protocol: a capture is a snapshot of a sandbox; a snapshot of a Docker
//! image is a snapshot of a sandbox that was made from the image for that and is deleted again ([`build`]).

pub(crate) mod build;

use std::collections::BTreeSet;

use atoll_core::id::SnapshotId;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::sharing::Needs;
use atoll_core::snapshot::{DEFAULT_TAG, Reference, SnapshotState};
use atoll_core::{Code, Error};
use atoll_dialect_kit::pending::Pending;
use atoll_engine::{
    Begin, Caller as EngineCaller, Engine, Resource, SnapshotGrant, SnapshotOrder, SnapshotQuery, Target,
};
use atoll_store::SnapshotRecord;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::App;
use crate::boxes::ANSWER_WITHIN;
use crate::error::{Failure, Result};
use crate::extras::RunConfig;
use crate::ids;
use crate::request::{Caller, Json, Manage, Name, Query, Read};
use crate::time::{iso, now_ms};

/// Snapshots of one page when the client gives no number.
const PAGE_DEFAULT: usize = 500;

/// A snapshot as the clients read it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) status: &'static str,
    pub(crate) status_message: Option<String>,
    pub(crate) fs_capacity_bytes: u64,
    pub(crate) fs_used_bytes: u64,
    pub(crate) docker_image: Option<String>,
    pub(crate) image_digest: Option<String>,
    pub(crate) source_sandbox_id: Option<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) run_config: RunConfig,
    pub(crate) created_by: Option<String>,
    pub(crate) created_at: String,
    pub(crate) updated_at: String,
}

impl Pending for Snapshot {
    fn id(&self) -> &str {
        &self.id
    }

    fn fail(&mut self, why: String) {
        self.status = "failed";
        self.status_message = Some(why);
    }
}

impl Snapshot {
    /// A snapshot that is going to be made.
    fn building(id: &SnapshotId, tag: &Reference) -> Self {
        let now = iso(now_ms());
        Self {
            id: ids::of_snapshot(id),
            name: tag.name.clone(),
            status: "building",
            status_message: None,
            fs_capacity_bytes: 0,
            fs_used_bytes: 0,
            docker_image: None,
            image_digest: None,
            source_sandbox_id: None,
            tags: vec![tag.tag.clone()],
            run_config: RunConfig::default(),
            created_by: None,
            created_at: now.clone(),
            updated_at: now,
        }
    }

    pub(crate) fn new(record: SnapshotRecord) -> Self {
        let time = iso(record.created_ms);
        // If all tags of a snapshot have moved on, its comment still has the name that it was made under.
        let first = record.tags.first().map(|tag| tag.name.clone());
        let name = first.or_else(|| record.comment.clone()).unwrap_or_default();
        let tags = record.tags.into_iter().filter(|tag| tag.name == name).map(|tag| tag.tag).collect();
        Self {
            id: ids::of_snapshot(&record.id),
            name,
            status: match record.state {
                SnapshotState::Creating => "building",
                SnapshotState::Ready => "ready",
                SnapshotState::Deleting => "deleting",
            },
            status_message: None,
            fs_capacity_bytes: record.manifest.resources.disk_bytes,
            fs_used_bytes: record.stored_bytes,
            docker_image: Some(record.manifest.image),
            image_digest: record.manifest.image_digest,
            source_sandbox_id: record.sandbox.as_ref().map(ids::of_sandbox),
            tags,
            run_config: RunConfig {
                user: Some(record.manifest.user),
                work_dir: record.manifest.workdir,
                env_vars: None,
            },
            created_by: record.created_by.map(Into::into),
            created_at: time.clone(),
            updated_at: time,
        }
    }
}

fn fail(error: &Error) -> Failure {
    Failure::control(error)
}

/// Every snapshot that was made for users and that a caller may know of, the newest first.
async fn all(
    engine: &Engine,
    name: Option<String>,
    caller: &EngineCaller,
) -> Result<Vec<SnapshotRecord>, Error> {
    let mut query = SnapshotQuery { name, limit: Some(PAGE_MAX_COUNT), ..SnapshotQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = engine.snapshots(&query, caller).await?;
        found.extend(page.items);
        match page.next {
            Some(next) => query.cursor = Some(next.to_string()),
            None => return Ok(found),
        }
    }
}

/// The snapshot that a client means, if the client may do with it what `needs` says: by UUID, by `name:tag`, or by
/// name, which means its `latest` or else its newest. With it comes the reference that named it, if there is one.
pub(crate) async fn find(
    engine: &Engine,
    text: &str,
    needs: Needs,
    caller: &EngineCaller,
) -> Result<SnapshotGrant, Error> {
    let by_id = ids::snapshot(text).map(|id| id.to_string());
    let named = by_id.as_deref().unwrap_or(text);
    match authorized(engine, named, needs, caller).await {
        Err(error) if error.code == Code::SnapshotNotFound && by_id.is_none() && !text.contains(':') => {
            let newest = all(engine, Some(text.to_owned()), caller).await?.into_iter().next();
            authorized(engine, newest.ok_or(error)?.id.as_str(), needs, caller).await
        }
        found => found,
    }
}

async fn authorized(
    engine: &Engine,
    text: &str,
    needs: Needs,
    caller: &EngineCaller,
) -> Result<SnapshotGrant, Error> {
    match engine.authorize(caller, needs, Target::Snapshot(text)).await?.resource() {
        Resource::Snapshot(found) => Ok(found.clone()),
        _ => Err(Error::new(Code::Internal, "a snapshot was asked for")),
    }
}

/// A capture.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Capture {
    name: String,
    tag: Option<String>,
    docker_image: Option<String>,
    run_config: Option<RunConfig>,
    include_memory: bool,
}

/// The reference of a new snapshot.
pub(crate) fn reference(name: &str, tag: Option<&str>) -> Result<Reference> {
    let text = format!("{name}:{}", tag.unwrap_or(DEFAULT_TAG));
    text.parse().map_err(|error: Error| Failure::field("name", crate::error::sentence(&error)))
}

/// A snapshot for users. The comment keeps the name that it was made under.
fn order(id: SnapshotId, tag: Reference, begin: Begin) -> SnapshotOrder {
    let comment = Some(tag.name.clone());
    SnapshotOrder { id: Some(id), comment, tags: vec![tag], begin, ..SnapshotOrder::unnamed() }
}

/// Takes a snapshot of a sandbox. Answers when the snapshot is there, or after a few seconds.
pub(crate) async fn capture(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(request): Json<Capture>,
) -> Result<(StatusCode, Json<Snapshot>)> {
    if request.docker_image.as_ref().is_some_and(|image| !image.is_empty()) {
        let why = "exporting an image from inside a sandbox needs Docker there, which container isolation \
                   cannot host; leave it out to capture the disk, or make the snapshot from the image";
        return Err(Failure::field("docker_image", why));
    }
    if request.include_memory {
        return Err(Failure::field("include_memory", "snapshots have no memory in them on this server"));
    }
    let tag = reference(&request.name, request.tag.as_deref())?;
    let engine = app.host.engine().clone();
    let source = caller.sandbox().and_then(|id| engine.sandbox(id)).map_err(|error| fail(&error))?;
    let id = engine.new_snapshot_id().map_err(|error| fail(&error))?;
    let run = request.run_config.unwrap_or_default();
    let building = Snapshot {
        fs_capacity_bytes: source.spec.resources.disk_bytes,
        source_sandbox_id: Some(ids::of_sandbox(&source.id)),
        run_config: run.clone(),
        ..Snapshot::building(&id, &tag)
    };
    let begin = Begin { env: run.env_vars.unwrap_or_default(), user: run.user, workdir: run.work_dir };
    let (owner, caller) = (caller.key(), caller.engine().clone());
    let making = async move { engine.create_snapshot(&source.id, order(id, tag, begin), &caller).await };
    let made = app.builds.run(building.clone(), owner, ANSWER_WITHIN, making).await;
    match made.map_err(|error| fail(&error))? {
        Some(Ok(record)) => Ok((StatusCode::CREATED, Json(Snapshot::new(record)))),
        Some(Err(error)) => Err(fail(&error)),
        None => Ok((StatusCode::ACCEPTED, Json(building))),
    }
}

/// The snapshots that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct List {
    name_contains: Option<String>,
    limit: Option<usize>,
    page_size: Option<usize>,
    offset: usize,
}

/// A listing, in both shapes.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    snapshots: Vec<Snapshot>,
    items: Vec<Snapshot>,
    next_cursor: Option<String>,
    offset: usize,
}

/// Lists snapshots, those that are being made first.
pub(crate) async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Page>> {
    let part = query.name_contains.unwrap_or_default().to_lowercase();
    let limit = query.limit.or(query.page_size).unwrap_or(PAGE_DEFAULT);
    let records = all(app.host.engine(), None, caller.engine()).await.map_err(|error| fail(&error))?;
    let under_way = app.builds.under_way(caller.sees());
    let listed = under_way.into_iter().chain(records.into_iter().map(Snapshot::new));
    let matching = listed.filter(|snapshot| snapshot.name.to_lowercase().contains(&part));
    let items: Vec<Snapshot> = matching.skip(query.offset).take(limit).collect();
    Ok(Json(Page { snapshots: items.clone(), items, next_cursor: None, offset: query.offset }))
}

/// One snapshot.
pub(crate) async fn read(
    caller: Caller<Read>,
    State(app): State<App>,
    Name(name): Name,
) -> Result<Json<Snapshot>> {
    if let Some(building) = app.builds.find(&name, caller.sees()) {
        return Ok(Json(building));
    }
    let engine = app.host.engine();
    let found = find(engine, &name, Needs::READ, caller.engine()).await.map_err(|error| fail(&error))?;
    let record = engine.snapshot(&found.id).await.map_err(|error| fail(&error))?;
    Ok(Json(Snapshot::new(record)))
}

/// Removes a snapshot, by its id or name; or removes one tag, and with the last tag the snapshot.
pub(crate) async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Name(name): Name,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    match app.builds.forget(&name, caller.sees()) {
        Some(true) => return Ok(StatusCode::NO_CONTENT),
        Some(false) => {
            let why = "the snapshot is still being made";
            return Err(fail(&Error::new(Code::InvalidState, why).hint("delete it when it is ready")));
        }
        None => {}
    }
    let found = find(engine, &name, Needs::MANAGE, caller.engine()).await.map_err(|error| fail(&error))?;
    // A bare name means the snapshot with all its tags; only a tag that the client writes means that one tag.
    let reference = found.reference.filter(|_| name.contains(':'));
    let removed = engine.delete_snapshot(&found.id, reference.as_ref(), caller.engine()).await;
    removed.map_err(|error| fail(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The tags of a name.
pub(crate) async fn tags(
    caller: Caller<Read>,
    State(app): State<App>,
    Name(name): Name,
) -> Result<Json<Value>> {
    let records =
        all(app.host.engine(), Some(name.clone()), caller.engine()).await.map_err(|error| fail(&error))?;
    let mut seen = BTreeSet::new();
    let tags: Vec<Value> = records
        .iter()
        .flat_map(|record| record.tags.iter().map(move |tag| (tag, &record.id)))
        .filter(|(tag, _)| tag.name == name && seen.insert(tag.tag.clone()))
        .map(|(tag, id)| json!({"tag": tag.tag, "snapshot_id": ids::of_snapshot(id)}))
        .collect();
    if tags.is_empty() {
        return Err(fail(&Error::new(Code::SnapshotNotFound, format!("snapshot '{name}' not found"))));
    }
    Ok(Json(json!({"name": name, "tags": tags})))
}
