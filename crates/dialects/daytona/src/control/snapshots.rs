//! Daytona's snapshots: templates that are built from an image, and snapshots of sandboxes.

use atoll_core::build::{BuildSpec, BuildState, CommandText, StartFrom};
use atoll_core::sharing::Needs;
use atoll_core::snapshot::{Reference, SnapshotKind};
use atoll_core::spec::{self, IsolationLevel};
use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::{time, uuid};
use atoll_engine::{Engine, SnapshotOrder, SnapshotQuery};
use atoll_store::{BuildRecord, SnapshotRecord, TemplateRecord};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::builds;
use super::create::{GIB, Size};
use super::origin::{self, TAG};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Path, Query, Root};
use crate::view::{self, ORGANIZATION};
use crate::who::{Manage, On, Read};

/// Items of a page when the client gives no number.
const PAGE: usize = 100;
/// Most items of a page.
const PAGE_MAX: usize = 200;

/// The snapshot that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Order {
    name: String,
    image_name: Option<String>,
    entrypoint: Option<Vec<String>>,
    #[serde(flatten)]
    size: Size,
    build_info: Option<builds::BuildInfo>,
}

/// The fields that all snapshots have.
struct Shown<'a> {
    id: String,
    name: String,
    state: &'a str,
    image: Option<&'a str>,
    entrypoint: Option<Vec<String>>,
    bytes: Option<u64>,
    resources: (Option<u32>, Option<u64>, Option<u64>),
    created_ms: u64,
    source: Option<String>,
    why: Option<String>,
}

impl Shown<'_> {
    fn json(self) -> Value {
        let defaults = spec::Resources::default();
        let (cpu, memory, disk) = self.resources;
        json!({
            "id": self.id,
            "name": self.name,
            "organizationId": ORGANIZATION,
            "general": false,
            "imageName": self.image,
            "state": self.state,
            "size": self.bytes.map(|bytes| bytes.div_ceil(GIB)),
            "entrypoint": self.entrypoint,
            "cpu": cpu.unwrap_or(defaults.cpu_millis).div_ceil(1000),
            "gpu": 0,
            "mem": memory.unwrap_or(defaults.memory_bytes).div_ceil(GIB),
            "disk": disk.unwrap_or(defaults.disk_bytes).div_ceil(GIB),
            "errorReason": self.why,
            "createdAt": time::iso(self.created_ms),
            "updatedAt": time::iso(self.created_ms),
            "lastUsedAt": null,
            "sourceSandboxId": self.source,
        })
    }
}

pub(super) fn of_template(record: &TemplateRecord) -> Value {
    let spec = &record.spec;
    let entrypoint = match &spec.start {
        Some(CommandText::Argv(argv)) => Some(argv.clone()),
        Some(CommandText::Shell(line)) => Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]),
        None => None,
    };
    let resources = (spec.resources.cpu_millis, spec.resources.memory_bytes, spec.resources.disk_bytes);
    Shown {
        id: record.name.clone(),
        name: record.name.clone(),
        state: "active",
        image: Some(&spec.image),
        entrypoint,
        bytes: None,
        resources,
        created_ms: record.created_ms,
        source: None,
        why: None,
    }
    .json()
}

/// The default: the template of that name, or else the server's default image.
async fn of_default(engine: &Engine) -> Result<Value> {
    if let Some(record) = origin::template(engine, origin::DEFAULT).await? {
        return Ok(of_template(&record));
    }
    Ok(of_image(&engine.default_image()))
}

/// The server's default image.
pub(super) fn of_image(image: &str) -> Value {
    let shown = Shown {
        id: origin::DEFAULT.to_owned(),
        name: origin::DEFAULT.to_owned(),
        state: "active",
        image: Some(image),
        entrypoint: None,
        bytes: None,
        resources: (None, None, None),
        created_ms: 0,
        source: None,
        why: None,
    };
    let mut json = shown.json();
    // No client owns it.
    json["general"] = true.into();
    json
}

fn of_build(record: &BuildRecord) -> Value {
    let state = match record.state {
        // Clients read the log only of builds that are not told to be pending.
        BuildState::Waiting | BuildState::Queued | BuildState::Running => "building",
        BuildState::Succeeded => "active",
        BuildState::Failed | BuildState::Cancelled => "build_failed",
    };
    let resources = &record.spec.resources;
    Shown {
        id: record.spec.name.clone(),
        name: record.spec.name.clone(),
        state,
        image: None,
        entrypoint: None,
        bytes: None,
        resources: (resources.cpu_millis, resources.memory_bytes, resources.disk_bytes),
        created_ms: record.created_ms,
        source: None,
        why: builds::why(record),
    }
    .json()
}

fn of_snapshot(record: &SnapshotRecord) -> Value {
    let resources = &record.manifest.resources;
    let id = uuid::of_snapshot(&record.id);
    let named =
        record.tags.first().map(|tag| if tag.tag == TAG { tag.name.clone() } else { tag.to_string() });
    Shown {
        name: named.unwrap_or_else(|| id.clone()),
        id,
        state: "active",
        image: Some(&record.manifest.image),
        entrypoint: None,
        bytes: Some(record.stored_bytes),
        resources: (Some(resources.cpu_millis), Some(resources.memory_bytes), Some(resources.disk_bytes)),
        created_ms: record.created_ms,
        source: record.sandbox.as_ref().map(uuid::of_sandbox),
        why: None,
    }
    .json()
}

/// Makes a snapshot from an image or a Dockerfile. It is built in the background: the client asks for its state.
pub(super) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(order): Json<Order>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    spec::recipe_name("name", &order.name)?;
    if origin::template(engine, &order.name).await?.is_some()
        || origin::snapshot(engine, Needs::READ, caller.engine(), &order.name).await?.is_some()
        || builds::latest(engine, caller.engine(), &order.name)
            .await?
            .is_some_and(|build| !build.state.is_final())
    {
        return Err(Failure::conflict(format!("Snapshot with name \"{}\" already exists", order.name)));
    }
    let dockerfile = match (&order.image_name, &order.build_info) {
        (_, Some(info)) => info.dockerfile()?,
        (Some(image), None) => {
            spec::image_reference("imageName", image)?;
            format!("FROM {image}\n")
        }
        (None, None) => return Err(Failure::bad("give imageName or buildInfo")),
    };
    let entrypoint = order.entrypoint.filter(|argv| !argv.is_empty());
    let described = builds::spec(order.name, dockerfile);
    let start =
        entrypoint.map(|argv| StartFrom::Command(CommandText::Argv(argv))).or(described.start.clone());
    let spec = BuildSpec { start, resources: order.size.resources()?, ..described };
    let context = order.build_info.unwrap_or_default().context(engine, &caller.key()).await?;
    Ok(Json(of_build(&builds::begin(engine, caller.engine(), spec, context).await?)))
}

/// The template, snapshot or build that a name or an id means now.
async fn find(engine: &Engine, caller: &Caller<Read>, name: &str) -> Result<Value> {
    if origin::is_default(name) {
        return of_default(engine).await;
    }
    if let Some(record) = origin::template(engine, name).await? {
        return Ok(of_template(&record));
    }
    if let Some(record) = origin::snapshot(engine, Needs::READ, caller.engine(), name).await? {
        return Ok(of_snapshot(&record));
    }
    let build = builds::latest(engine, caller.engine(), name)
        .await?
        .filter(|build| build.state != BuildState::Succeeded);
    build.as_ref().map(of_build).ok_or_else(|| origin::missing(name))
}

/// One snapshot.
pub(super) async fn read(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    Ok(Json(find(app.host.engine(), &caller, &name).await?))
}

/// Every snapshot that is there can be used at once.
pub(super) async fn activate(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    if origin::is_default(&name) {
        return Ok(Json(of_default(engine).await?));
    }
    if let Some(record) = origin::template(engine, &name).await? {
        return Ok(Json(of_template(&record)));
    }
    let found = origin::snapshot(engine, Needs::READ, caller.engine(), &name).await?;
    found.as_ref().map(|record| Json(of_snapshot(record))).ok_or_else(|| origin::missing(&name))
}

/// The snapshots that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    page: Option<usize>,
    limit: Option<usize>,
    name: Option<String>,
    #[serde(rename = "sourceSandboxId")]
    source: Option<String>,
}

/// All snapshots that the key may see, templates first.
pub(super) async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let (page, limit) = (query.page.unwrap_or(1), query.limit.unwrap_or(PAGE));
    if page == 0 || !(1..=PAGE_MAX).contains(&limit) {
        return Err(Failure::bad(format!("page must be at least 1, limit between 1 and {PAGE_MAX}")));
    }
    let mut all = Vec::new();
    if query.source.is_none() {
        let mut templates = engine.templates().await?;
        // The newest version of each template.
        templates.sort_unstable_by(|one, other| (&one.name, other.version).cmp(&(&other.name, one.version)));
        templates.dedup_by(|later, first| later.name == first.name);
        all.extend(templates.iter().map(of_template));
        if templates.iter().all(|one| one.name != origin::DEFAULT) {
            all.push(of_default(engine).await?);
        }
    }
    let source = query.source.as_deref().map(uuid::sandbox);
    let mut wanted = SnapshotQuery { sandbox: source, ..SnapshotQuery::default() };
    loop {
        let found = engine.snapshots(&wanted, caller.engine()).await?;
        all.extend(found.items.iter().map(of_snapshot));
        wanted.cursor = found.next.map(|next| next.to_string());
        if wanted.cursor.is_none() {
            break;
        }
    }
    if let Some(name) = query.name.filter(|name| !name.is_empty()) {
        all.retain(|one| one["name"].as_str().is_some_and(|own| own.contains(&name)));
    }
    let total = all.len();
    let items: Vec<Value> = all.into_iter().skip((page - 1).saturating_mul(limit)).take(limit).collect();
    Ok(Json(json!({"items": items, "total": total, "page": page, "totalPages": total.div_ceil(limit)})))
}

/// Removes a template with all its versions, or a snapshot, or a build that made nothing.
pub(super) async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    if let Some(record) = origin::template(engine, &name).await? {
        engine.delete_template(&record.name, None, caller.engine()).await?;
        return Ok(StatusCode::OK);
    }
    if let Some(found) = origin::snapshot(engine, Needs::MANAGE, caller.engine(), &name).await? {
        engine.delete_snapshot(&found.id, None, caller.engine()).await?;
        return Ok(StatusCode::OK);
    }
    match builds::latest(engine, caller.engine(), &name).await? {
        Some(build) if !build.state.is_final() => {
            engine.cancel_build(&build.id).await?;
            Ok(StatusCode::OK)
        }
        // A failed build is only a record: there is nothing to remove.
        Some(build) if build.state != BuildState::Succeeded => Ok(StatusCode::OK),
        _ => Err(origin::missing(&name)),
    }
}

/// The name of the new snapshot, and whether the client wants the memory, too.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OfSandbox {
    name: String,
    include_memory: Option<bool>,
}

/// Takes a snapshot of a sandbox, which goes on.
pub(super) async fn of_sandbox(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Json(asked): Json<OfSandbox>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    spec::recipe_name("name", &asked.name)?;
    if origin::template(engine, &asked.name).await?.is_some()
        || origin::snapshot(engine, Needs::READ, on.caller.engine(), &asked.name).await?.is_some()
    {
        return Err(Failure::conflict(format!("Snapshot with name \"{}\" already exists", asked.name)));
    }
    let record = engine.sandbox(&on.id)?;
    let mut order = SnapshotOrder::unnamed();
    order.tags.push(format!("{}:{TAG}", asked.name).parse::<Reference>()?);
    if asked.include_memory == Some(true) {
        if record.spec.isolation != IsolationLevel::Microvm {
            return Err(Failure::bad(
                "includeMemory: only sandboxes in virtual machines have memory that can be kept",
            ));
        }
        order.kind = SnapshotKind::Memory;
    }
    engine.create_snapshot(&on.id, order, on.caller.engine()).await?;
    Ok(Json(view::sandbox(&engine.sandbox(&on.id)?, &root)))
}
