//! Sandboxes: `/v2/sandboxes/boxes`.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::sandbox::SandboxState;
use atoll_core::spec::{ResourcesDraft, SandboxDraft, SandboxUpdate};
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, SandboxQuery};
use atoll_server::dialect::Host;
use atoll_store::SandboxRecord;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};
use crate::extras::{self, Extras, RunConfig};
use crate::ids;
use crate::proxy;
use crate::request::{Caller, Exec, Json, Manage, Name, Query, Read, Root};
use crate::snapshots;
use crate::view::{self, Sandbox};

/// How long a creation may take when the client does not say.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that a client may ask a creation to take.
const CREATE_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Calls that may take long answer within this and go on: the clients wait for ten seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Template of sandboxes that are asked for without a snapshot, if somebody made one of this name.
const DEFAULT_TEMPLATE: &str = "langsmith";
/// Characters of a name that is made up.
const NAME_RANDOM_CHARS: usize = 12;

/// Limits, as the clients write them.
#[derive(Debug, Default, Deserialize)]
struct Size {
    vcpus: Option<f64>,
    cpu_millicores: Option<u32>,
    mem_bytes: Option<u64>,
    fs_capacity_bytes: Option<u64>,
}

impl Size {
    fn resources(&self) -> Result<ResourcesDraft> {
        let cpu_millis = match (self.cpu_millicores, self.vcpus) {
            (Some(millis), _) => Some(millis),
            (None, Some(vcpus)) => Some(millis_of(vcpus)?),
            (None, None) => None,
        };
        Ok(ResourcesDraft {
            cpu_millis,
            memory_bytes: self.mem_bytes,
            pids: None,
            disk_bytes: self.fs_capacity_bytes,
        })
    }
}

fn millis_of(vcpus: f64) -> Result<u32> {
    const VCPUS_MAX: f64 = 1024.0;
    if !(vcpus > 0.0 && vcpus <= VCPUS_MAX) {
        return Err(Failure::field("vcpus", "must be more than 0 and at most 1024"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1,024,000")]
    Ok((vcpus * 1000.0).ceil() as u32)
}

/// A creation. Fields that are not named here are ignored, as the clients' users expect.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Create {
    timeout: Option<u64>,
    snapshot_id: Option<String>,
    snapshot: Option<String>,
    snapshot_name: Option<String>,
    name: Option<String>,
    #[serde(flatten)]
    size: Size,
    labels: Option<BTreeMap<String, String>>,
    run_config: Option<RunConfig>,
    env_vars: Option<BTreeMap<String, String>>,
    idle_ttl_seconds: Option<u64>,
    delete_after_stop_seconds: Option<u64>,
    persistent: Option<bool>,
    preserve_memory_on_stop: Option<bool>,
    proxy_config: Option<Value>,
    mount_config: Option<Value>,
    volumes: Option<Vec<Value>>,
    access_delegation: Option<Value>,
    tag_value_ids: Option<Value>,
}

impl Create {
    fn draft(&self) -> Result<SandboxDraft> {
        if self.mount_config.as_ref().is_some_and(|config| !is_nothing(config)) {
            return Err(Failure::field("mount_config", "mounts are not supported by this server"));
        }
        if self.volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()) {
            return Err(Failure::field("volumes", "volumes are not supported over this protocol"));
        }
        ttl("idle_ttl_seconds", self.idle_ttl_seconds)?;
        ttl("delete_after_stop_seconds", self.delete_after_stop_seconds)?;
        let mut run_config = self.run_config.clone().unwrap_or_default();
        if let Some(vars) = &self.env_vars {
            run_config.env_vars.get_or_insert_default().extend(vars.clone());
        }
        let extras = Extras {
            run_config,
            idle_ttl_seconds: self.idle_ttl_seconds,
            delete_after_stop_seconds: self.delete_after_stop_seconds,
            persistent: self.persistent,
            preserve_memory_on_stop: self.preserve_memory_on_stop,
            proxy_config: self.proxy_config.as_ref().map(proxy::redacted),
            access_delegation: self.access_delegation.clone(),
            tag_value_ids: self.tag_value_ids.clone(),
            ..Extras::default()
        };
        let run = &extras.run_config;
        Ok(SandboxDraft {
            name: Some(match &self.name {
                Some(name) => name.clone(),
                None => made_up_name()?,
            }),
            resources: self.size.resources()?,
            env: run.env_vars.clone().unwrap_or_default(),
            labels: self.labels.clone().unwrap_or_default(),
            user: run.user.clone(),
            workdir: run.work_dir.clone(),
            annotations: BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]),
            ..SandboxDraft::default()
        })
    }

    fn time(&self) -> Duration {
        let asked = self.timeout.map(Duration::from_secs);
        asked.unwrap_or(CREATE_TIMEOUT).clamp(Duration::from_secs(1), CREATE_TIMEOUT_MAX)
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn ttl(field: &str, seconds: Option<u64>) -> Result<()> {
    match seconds {
        Some(seconds) if seconds % 60 != 0 => Err(Failure::field(field, "must be a multiple of 60")),
        _ => Ok(()),
    }
}

/// A name that is recognised in messages: `sb-` and letters and digits.
fn made_up_name() -> Result<String> {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut random = [0_u8; NAME_RANDOM_CHARS];
    getrandom::fill(&mut random).map_err(|error| {
        tracing::error!(%error, "no randomness for a name");
        Failure::control(&Error::new(Code::Internal, "the host's random generator failed"))
    })?;
    let chars = random.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)]));
    Ok(std::iter::once("sb-".to_owned()).chain(chars.map(String::from)).collect())
}

/// Makes a sandbox and answers when it is ready. A client that asked not to wait gets the same, sooner
/// than it expects.
pub(crate) async fn create(
    caller: Caller<Manage>,
    root: Root,
    State(host): State<Host>,
    Json(request): Json<Create>,
) -> Result<(StatusCode, Json<Sandbox>)> {
    if is_dockerfile_builder(&request) {
        let why = "building a Dockerfile inside a sandbox needs Docker and BuildKit there, which container \
                   isolation cannot host; build the image elsewhere and make the snapshot with docker_image, \
                   or build a template with 'atoll template build'";
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "SandboxConfig", why));
    }
    let mut draft = request.draft()?;
    let base = request.base(host.engine()).await.map_err(|error| Failure::create(&error))?;
    base.apply(&mut draft)?;
    let record = within(&host, draft, caller.engine(), request.time()).await?;
    Ok((StatusCode::CREATED, Json(Sandbox::new(record, &root))))
}

/// The SDK's `create_snapshot_from_dockerfile` works inside a sandbox that it gives such a name.
fn is_dockerfile_builder(request: &Create) -> bool {
    let random = request.name.as_deref().and_then(|name| name.strip_prefix("snapshot-builder-"));
    random.is_some_and(|random| random.len() == 12 && random.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// What a sandbox is made from.
enum Base {
    Snapshot(SnapshotId),
    Template(String),
    Default,
}

impl Base {
    fn apply(self, draft: &mut SandboxDraft) -> Result<()> {
        match self {
            Self::Snapshot(id) => {
                let mut extras = Extras::default();
                if let Some(text) = draft.annotations.get(extras::KEY) {
                    extras = serde_json::from_str(text).unwrap_or_default();
                }
                extras.snapshot_id = Some(ids::of_snapshot(&id));
                draft.annotations.insert(extras::KEY.to_owned(), extras.text()?);
                draft.snapshot = Some(id.into());
            }
            Self::Template(name) => draft.template = Some(name),
            Self::Default => {}
        }
        Ok(())
    }
}

impl Create {
    /// What the sandbox is to be made from: a snapshot by UUID or name, in whichever field it stands; a
    /// template of that name; without any, the template [`DEFAULT_TEMPLATE`] if there is one.
    async fn base(&self, engine: &Engine) -> std::result::Result<Base, Error> {
        let fields = [&self.snapshot_id, &self.snapshot, &self.snapshot_name];
        let mut given = fields.into_iter().flatten().filter(|text| !text.is_empty());
        let wanted = given.next();
        if given.next().is_some() {
            return Err(Error::invalid("snapshot", "give one of snapshot_id, snapshot and snapshot_name"));
        }
        let (name, missing) = match wanted {
            Some(text) => match snapshots::find(engine, text).await {
                Ok(found) => return Ok(Base::Snapshot(found.id)),
                Err(error) => (text.as_str(), Some(error)),
            },
            None => (DEFAULT_TEMPLATE, None),
        };
        match (engine.template(name, None).await, missing) {
            (Ok(_), _) => Ok(Base::Template(name.to_owned())),
            (Err(error), None) if error.code == Code::TemplateNotFound => Ok(Base::Default),
            (Err(_), Some(missing)) => Err(missing),
            (Err(error), None) => Err(error),
        }
    }
}

/// Makes a sandbox within `time`. One that takes longer is deleted when it is there: nobody knows of it.
async fn within(
    host: &Host,
    draft: SandboxDraft,
    caller: EngineCaller,
    time: Duration,
) -> Result<SandboxRecord> {
    let engine = host.engine().clone();
    let mut making = tokio::spawn(async move { engine.create_sandbox(draft, &caller).await });
    if let Ok(made) = tokio::time::timeout(time, &mut making).await {
        let made = made.unwrap_or_else(|_panic| Err(Error::new(Code::Internal, "the creation failed")));
        return made.map_err(|error| Failure::create(&error));
    }
    let engine = host.engine().clone();
    tokio::spawn(async move {
        if let Ok(Ok(record)) = making.await
            && let Err(error) = engine.delete_sandbox(record.id.as_str()).await
        {
            tracing::warn!(sandbox = %record.id, %error, "a sandbox that took too long could not be deleted");
        }
    });
    let message =
        format!("the sandbox did not become ready within {} s; last status: provisioning", time.as_secs());
    Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message))
}

/// Which sandboxes to list, by any of the clients' ways to say so.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct List {
    cursor: Option<String>,
    limit: Option<u32>,
    page_size: Option<u32>,
    offset: Option<usize>,
    name_contains: Option<String>,
    label: Vec<String>,
    status: Option<String>,
}

/// A listing, in both shapes: hand-written clients read `sandboxes`, generated ones `items`.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    sandboxes: Vec<Value>,
    items: Vec<Value>,
    next_cursor: Option<String>,
    offset: usize,
}

impl List {
    fn states(&self) -> Result<Vec<SandboxState>> {
        Ok(match self.status.as_deref() {
            None => Vec::new(),
            Some("provisioning") => vec![SandboxState::Creating],
            Some("ready") => vec![SandboxState::Running],
            Some("failed") => vec![SandboxState::Failed],
            Some("deleting") => vec![SandboxState::Deleting],
            Some(other) => return Err(Failure::field("status", format_args!("no status '{other}'"))),
        })
    }

    fn matches(&self, record: &SandboxRecord) -> bool {
        let named = self
            .name_contains
            .as_ref()
            .is_none_or(|part| view::name(record).to_lowercase().contains(&part.to_lowercase()));
        named
            && self.label.iter().all(|wanted| match wanted.split_once('=') {
                Some((key, value)) => record.labels.get(key).is_some_and(|found| found == value),
                None => record.labels.contains_key(wanted),
            })
    }
}

/// Lists sandboxes. Everything, unless a page is asked for: that is all the hand-written clients see.
pub(crate) async fn list(
    caller: Caller<Read>,
    root: Root,
    State(host): State<Host>,
    Query(query): Query<List>,
) -> Result<Json<Page>> {
    let mut wanted = SandboxQuery {
        states: query.states()?,
        limit: Some(PAGE_MAX_COUNT),
        visible_to: caller.sees(),
        ..SandboxQuery::default()
    };
    let limit = query.limit.or(query.page_size).map_or(usize::MAX, |limit| limit.max(1) as usize);
    // Ids sort by age, as the listing does: the cursor is the last id of the page before.
    let after = query.cursor.as_deref().map(ids::sandbox);
    let mut left_to_skip = query.offset.unwrap_or_default();
    let mut found = Vec::new();
    let mut more = false;
    while !more {
        let page = host.engine().sandboxes(&wanted).await.map_err(|error| Failure::control(&error))?;
        let of_page = page.items.into_iter().filter(|record| {
            query.matches(record) && after.as_ref().is_none_or(|after| record.id.as_str() < after.as_str())
        });
        for record in of_page {
            match left_to_skip.checked_sub(1) {
                Some(left) => left_to_skip = left,
                None if found.len() < limit => found.push(record),
                None => more = true,
            }
        }
        wanted.cursor = page.next.map(|next| next.to_string());
        if wanted.cursor.is_none() {
            break;
        }
    }
    let next_cursor = found.last().filter(|_| more).map(|last| ids::of_sandbox(&last.id));
    let objects = found.into_iter().map(|record| serde_json::to_value(Sandbox::new(record, &root)));
    let items: Vec<Value> = objects.filter_map(std::result::Result::ok).collect();
    Ok(Json(Page { sandboxes: items.clone(), items, next_cursor, offset: query.offset.unwrap_or_default() }))
}

fn find(host: &Host, name: &str) -> Result<SandboxRecord> {
    host.engine().sandbox(&ids::sandbox(name)).map_err(|error| Failure::control(&error))
}

/// One sandbox.
pub(crate) async fn read(
    _: Caller<Read>,
    root: Root,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<Json<Sandbox>> {
    Ok(Json(Sandbox::new(find(&host, &name)?, &root)))
}

/// What a client that waits polls.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    status: &'static str,
    status_message: Option<String>,
}

/// The state of one sandbox.
pub(crate) async fn status(
    _: Caller<Read>,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<Json<Status>> {
    let (status, status_message) = view::status(&find(&host, &name)?);
    Ok(Json(Status { status, status_message }))
}

/// Makes sure that a sandbox can be used: whoever uses it has it wake by the same.
pub(crate) async fn start(
    _: Caller<Exec>,
    root: Root,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<Json<Sandbox>> {
    let id = find(&host, &name)?.id.to_string();
    drop(host.engine().guest(&id).await.map_err(|error| Failure::control(&error))?);
    Ok(Json(Sandbox::new(find(&host, &id)?, &root)))
}

/// Refuses to stop a sandbox: what runs in it would go on.
pub(crate) async fn stop(
    _: Caller<Manage>,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<StatusCode> {
    let name = view::name(&find(&host, &name)?);
    let why =
        format!("sandbox '{name}' goes on: stopping is not supported by this server; delete it instead");
    Err(Failure::new(StatusCode::NOT_IMPLEMENTED, "NotSupported", why))
}

/// A change. Absent fields stay as they are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Update {
    name: Option<String>,
    #[serde(flatten)]
    size: Size,
    run_config: Option<RunConfig>,
    idle_ttl_seconds: Option<u64>,
    delete_after_stop_seconds: Option<u64>,
    proxy_config: Option<Value>,
    tag_value_ids: Option<Value>,
}

impl Update {
    fn apply(self, record: &SandboxRecord) -> Result<SandboxUpdate> {
        ttl("idle_ttl_seconds", self.idle_ttl_seconds)?;
        ttl("delete_after_stop_seconds", self.delete_after_stop_seconds)?;
        let mut extras = Extras::of(record);
        let before = extras.clone();
        if let Some(run_config) = self.run_config {
            extras.run_config = run_config;
        }
        extras.idle_ttl_seconds = self.idle_ttl_seconds.or(extras.idle_ttl_seconds);
        extras.delete_after_stop_seconds =
            self.delete_after_stop_seconds.or(extras.delete_after_stop_seconds);
        extras.proxy_config = self.proxy_config.as_ref().map(proxy::redacted).or(extras.proxy_config);
        extras.tag_value_ids = self.tag_value_ids.or(extras.tag_value_ids);
        extras.updated_ms = Some(crate::time::now_ms());
        let (old, new) = (before.run_config, &extras.run_config);
        let mut update = SandboxUpdate {
            name: self.name.filter(|name| record.name.as_ref() != Some(name)),
            env: difference(&old.env_vars.unwrap_or_default(), &new.env_vars.clone().unwrap_or_default()),
            user: new.user.clone(),
            workdir: new.work_dir.clone().map(Some),
            annotations: BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]),
            resources: self.size.resources()?,
            ..SandboxUpdate::default()
        };
        // The disk's size is the one limit that cannot change; saying the same is no change.
        if update.resources.disk_bytes == Some(record.spec.resources.disk_bytes) {
            update.resources.disk_bytes = None;
        }
        Ok(update)
    }
}

/// What makes `old` into `new`.
fn difference(
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), None));
    gone.chain(new.iter().map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

/// Changes a sandbox.
pub(crate) async fn update(
    _: Caller<Manage>,
    root: Root,
    State(host): State<Host>,
    Name(name): Name,
    Json(request): Json<Update>,
) -> Result<Json<Sandbox>> {
    let record = find(&host, &name)?;
    let id = record.id.to_string();
    let update = request.apply(&record)?;
    let record = host.engine().update_sandbox(&id, update).await.map_err(|error| Failure::control(&error))?;
    Ok(Json(Sandbox::new(record, &root)))
}

/// Deletes a sandbox. Answers when it is marked, at the latest after a few seconds: the engine goes on.
pub(crate) async fn remove(
    _: Caller<Manage>,
    State(host): State<Host>,
    Name(name): Name,
) -> Result<StatusCode> {
    let id = find(&host, &name)?.id.to_string();
    let engine = host.engine().clone();
    let removing = tokio::spawn(async move { engine.delete_sandbox(&id).await });
    match tokio::time::timeout(ANSWER_WITHIN, removing).await {
        Ok(Ok(Err(error))) if error.code != Code::SandboxNotFound => Err(Failure::control(&error)),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
