//! Making a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::idle::{IdlePolicy, OnIdle};
use atoll_core::sharing::Needs;
use atoll_core::spec::SandboxDraft;
use atoll_core::volume::VolumeMountDraft;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine};
use atoll_server::dialect::{Host, Undo, delete_untold};
use atoll_store::SandboxRecord;
use axum::Extension;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::{Size, is_nothing, ttl_ms};
use crate::error::{Failure, Result};
use crate::extras::{self, Extras, RunConfig};
use crate::proxy;
use crate::request::{Caller, Json, Manage, Root};
use crate::snapshots;
use crate::view::Sandbox;

/// How long a creation may take when the client gives no time.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that a client may ask a creation to take.
const CREATE_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Template of sandboxes whose client names no snapshot, if there is a template of this name.
const DEFAULT_TEMPLATE: &str = "langsmith";
/// Characters of a name that is made up.
const NAME_RANDOM_CHARS: usize = 12;
/// Idle time after which a sandbox stops when the client gives none: ten minutes, as the clients document it.
const IDLE_TTL_MS: u64 = 600 * 1000;
/// Time after which a stopped sandbox is deleted when the client gives none: fourteen days.
const DELETE_AFTER_STOP_MS: u64 = 14 * 24 * 3600 * 1000;

/// A creation. Fields that are not named here are ignored, as the clients' users expect.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Create {
    timeout: Option<u64>,
    snapshot_id: Option<String>,
    snapshot: Option<String>,
    snapshot_name: Option<String>,
    restore_memory: Option<bool>,
    name: Option<String>,
    #[serde(flatten)]
    size: Size,
    labels: Option<BTreeMap<String, String>>,
    run_config: Option<RunConfig>,
    env_vars: Option<BTreeMap<String, String>>,
    idle_ttl_seconds: Option<u64>,
    delete_after_stop_seconds: Option<u64>,
    preserve_memory_on_stop: Option<bool>,
    proxy_config: Option<Value>,
    mount_config: Option<Value>,
    volumes: Option<Vec<Volume>>,
    access_delegation: Option<Value>,
    tag_value_ids: Option<Value>,
}

/// A volume of this server, and the path at which the client wants it.
#[derive(Debug, Clone, Deserialize)]
struct Volume {
    volume: String,
    mount_path: String,
    #[serde(default)]
    read_only: bool,
}

impl Create {
    fn check(&self) -> Result<()> {
        if is_dockerfile_builder(self) {
            let why = "building a Dockerfile inside a sandbox needs Docker and BuildKit there, which container \
                       isolation cannot host; build the image elsewhere and make the snapshot with \
                       docker_image, or build a template with 'atoll template build'";
            return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "SandboxConfig", why));
        }
        if self.mount_config.as_ref().is_some_and(|config| !is_nothing(config)) {
            let why = "mounts of buckets and repositories are not supported by this server; 'volumes' are";
            return Err(Failure::field("mount_config", why));
        }
        if self.restore_memory == Some(true) {
            let why = "snapshots have no memory in them on this server; leave it out to boot from the disk";
            return Err(Failure::field("restore_memory", why));
        }
        Ok(())
    }

    /// The draft, without its origin and its network policy.
    fn draft(&self, extras: &Extras) -> Result<SandboxDraft> {
        let run = &extras.run_config;
        let volumes = self.volumes.iter().flatten().cloned();
        let volumes = volumes.map(|Volume { volume, mount_path, read_only }| VolumeMountDraft {
            volume,
            path: mount_path,
            read_only,
            subpath: None,
        });
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
            volumes: volumes.collect(),
            ..SandboxDraft::default()
        })
    }

    fn extras(&self) -> Extras {
        let mut run_config = self.run_config.clone().unwrap_or_default();
        if let Some(vars) = &self.env_vars {
            run_config.env_vars.get_or_insert_default().extend(vars.clone());
        }
        Extras {
            run_config,
            proxy_config: self.proxy_config.as_ref().map(proxy::redacted),
            access_delegation: self.access_delegation.clone(),
            tag_value_ids: self.tag_value_ids.clone(),
            ..Extras::default()
        }
    }

    /// When the sandbox stops by itself and is deleted; `template` is its template's idle time.
    fn rest(&self, draft: &mut SandboxDraft, template: Option<u64>) -> Result<()> {
        draft.idle_timeout_ms = match self.idle_ttl_seconds {
            Some(seconds) => ttl_ms("idle_ttl_seconds", seconds)?,
            None => template.or(Some(IDLE_TTL_MS)),
        };
        draft.idle = IdlePolicy {
            on_idle: on_idle(self.preserve_memory_on_stop.unwrap_or_default()),
            delete_paused_after_ms: match self.delete_after_stop_seconds {
                Some(seconds) => ttl_ms("delete_after_stop_seconds", seconds)?,
                None => Some(DELETE_AFTER_STOP_MS),
            },
            ..IdlePolicy::default()
        };
        Ok(())
    }

    /// The origin of the sandbox: a snapshot by UUID or name, in any of the three fields; a template of that name; when
    /// the client names none, the template [`DEFAULT_TEMPLATE`] if there is one.
    async fn base(&self, engine: &Engine, caller: &EngineCaller) -> std::result::Result<Base, Error> {
        let fields = [&self.snapshot_id, &self.snapshot, &self.snapshot_name];
        let mut given = fields.into_iter().flatten().filter(|text| !text.is_empty());
        let wanted = given.next();
        if given.next().is_some() {
            return Err(Error::invalid("snapshot", "give one of snapshot_id, snapshot and snapshot_name"));
        }
        let (name, missing) = match wanted {
            Some(text) => match snapshots::find(engine, text, Needs::READ, caller).await {
                Ok(found) => return Ok(Base::Snapshot(found.id)),
                Err(error) => (text.as_str(), Some(error)),
            },
            None => (DEFAULT_TEMPLATE, None),
        };
        match (engine.template(name, None).await, missing) {
            (Ok(found), _) => {
                Ok(Base::Template { name: name.to_owned(), idle_ms: found.spec.idle_timeout_ms })
            }
            (Err(error), None) if error.code == Code::TemplateNotFound => Ok(Base::Default),
            (Err(_), Some(missing)) => Err(missing),
            (Err(error), None) => Err(error),
        }
    }

    fn time(&self) -> Duration {
        let asked = self.timeout.map(Duration::from_secs);
        asked.unwrap_or(CREATE_TIMEOUT).clamp(Duration::from_secs(1), CREATE_TIMEOUT_MAX)
    }
}

/// What happens to a sandbox that is idle: it is frozen with its memory, or only its disk is kept.
pub(super) const fn on_idle(preserve_memory: bool) -> OnIdle {
    if preserve_memory { OnIdle::Freeze } else { OnIdle::Hibernate }
}

/// The SDK's `create_snapshot_from_dockerfile` works inside a sandbox that it gives such a name.
fn is_dockerfile_builder(request: &Create) -> bool {
    let random = request.name.as_deref().and_then(|name| name.strip_prefix("snapshot-builder-"));
    random.is_some_and(|random| random.len() == 12 && random.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The origins of a sandbox.
enum Base {
    Snapshot(SnapshotId),
    Template { name: String, idle_ms: Option<u64> },
    Default,
}

/// A name that people recognise in messages: `sb-` and letters and digits.
fn made_up_name() -> Result<String> {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut random = [0_u8; NAME_RANDOM_CHARS];
    getrandom::fill(&mut random).map_err(no_randomness)?;
    let chars = random.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)]));
    Ok(std::iter::once("sb-".to_owned()).chain(chars.map(String::from)).collect())
}

fn no_randomness(error: getrandom::Error) -> Failure {
    tracing::error!(%error, "no randomness for a sandbox");
    Failure::control(&Error::new(Code::Internal, "the host's random generator failed"))
}

/// Makes a sandbox and answers when it is ready. A client that asked not to wait gets the same, sooner
/// than it expects.
pub(crate) async fn create(
    caller: Caller<Manage>,
    root: Root,
    State(host): State<Host>,
    Json(request): Json<Create>,
) -> Result<(StatusCode, Extension<Undo>, Json<Sandbox>)> {
    request.check()?;
    let engine = host.engine();
    let fail = |error: Error| Failure::create(&error);
    let mut extras = request.extras();
    let mut draft = request.draft(&extras)?;
    let base = request.base(engine, caller.engine()).await.map_err(fail)?;
    let mut template_idle_ms = None;
    match base {
        Base::Snapshot(id) => draft.snapshot = Some(id.into()),
        Base::Template { name, idle_ms } => {
            draft.template = Some(name);
            template_idle_ms = idle_ms;
        }
        Base::Default => {}
    }
    request.rest(&mut draft, template_idle_ms)?;
    if let Some(config) = &request.proxy_config {
        let reach = engine
            .egress_unless_told(caller.engine().project(), draft.template.as_deref())
            .await
            .map_err(fail)?;
        let plan = proxy::plan(config, &reach, None)?;
        extras.opened = plan.opened;
        draft.secrets = plan.secrets;
        draft.egress = Some(plan.policy);
    }
    let creation = getrandom::u64().map_err(no_randomness)?;
    extras.creation = Some(creation);
    draft.annotations = BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]);
    let record = within(&host, draft, creation, caller.engine().clone(), request.time()).await?;
    // The protocol has no key by which a retry finds the sandbox: a client that left has lost it.
    let undo = host.undo(vec![record.id.clone()]);
    Ok((StatusCode::CREATED, Extension(undo), Json(Sandbox::new(record, &root))))
}

/// Makes a sandbox within `time`. A sandbox that takes longer is deleted: the client was never told of it.
async fn within(
    host: &Host,
    draft: SandboxDraft,
    creation: u64,
    caller: EngineCaller,
    time: Duration,
) -> Result<SandboxRecord> {
    let (engine, name) = (host.engine().clone(), draft.name.clone().unwrap_or_default());
    let by = caller.clone();
    let mut making = atoll_engine::spawn(async move { engine.create_sandbox(draft, &by).await });
    if let Ok(made) = tokio::time::timeout(time, &mut making).await {
        let made = made.unwrap_or_else(|_panic| Err(Error::new(Code::Internal, "the creation failed")));
        return made.map_err(|error| Failure::create(&error));
    }
    let engine = host.engine().clone();
    tokio::spawn(async move {
        // The sandbox may need long to be ready. It is found by its name, and deleted if this creation made it.
        if let Some(id) = engine.sandbox_called(&caller, &name)
            && let Ok(record) = engine.sandbox(&id)
            && Extras::of(&record).creation == Some(creation)
        {
            delete_untold(&engine, &record.id).await;
        }
        // The sandbox may not have been there yet.
        if let Ok(Ok(record)) = making.await {
            delete_untold(&engine, &record.id).await;
        }
    });
    let message =
        format!("the sandbox did not become ready within {} s; last status: provisioning", time.as_secs());
    Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message))
}
