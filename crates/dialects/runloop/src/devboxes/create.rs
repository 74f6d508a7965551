//! Making a devbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Code;
use atoll_core::sharing::Needs;
use atoll_core::spec::{RequestKey, SandboxDraft};
use atoll_dialect_kit::pending::within;
use atoll_dialect_kit::sandboxes::{finish, keep_larger_disk, make_once};
use atoll_engine::{Asked, Caller as EngineCaller, Engine, Target};
use atoll_server::dialect::Undo;
use atoll_store::SandboxRecord;
use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;

use super::launch::{Launch, says};
use super::reach;
use super::setup::{self, CodeMount, Plan};
use super::view;
use crate::App;
use crate::agents::AgentMount;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras, Phase};
use crate::objects::Opened;
use crate::request::{Caller, Json, Manage};
use crate::tunnel::Tunnel;
use crate::{blueprints, ids, once, snapshots, tunnel};

/// The template of devboxes whose client names none; without such a template, the server's default image.
pub(crate) const DEFAULT_TEMPLATE: &str = "runloop";
/// The user that runs commands where the template names none.
pub(crate) const USER: &str = "user";
/// How long a creation waits until its devbox is set up; the clients wait for the rest of the time.
const WAIT: Duration = Duration::from_secs(20);

/// A creation. Fields that are not named here are ignored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Create {
    name: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    environment_variables: Option<BTreeMap<String, String>>,
    launch_parameters: Option<Value>,
    blueprint_id: Option<String>,
    blueprint_name: Option<String>,
    snapshot_id: Option<String>,
    file_mounts: Option<BTreeMap<String, String>>,
    code_mounts: Option<Vec<CodeMount>>,
    mounts: Option<Vec<Mount>>,
    secrets: Option<BTreeMap<String, String>>,
    tunnel: Option<tunnel::Asked>,
    entrypoint: Option<String>,
    gateways: Option<BTreeMap<String, reach::GatewaySpec>>,
    mcp: Option<Value>,
}

/// A file, repository, object or agent that is put into a devbox before it runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type")]
enum Mount {
    #[serde(rename = "file_mount")]
    File { target: String, content: String },
    #[serde(rename = "code_mount")]
    Code(CodeMount),
    #[serde(rename = "object_mount")]
    Object { object_id: String, object_path: String },
    #[serde(rename = "broker_mount")]
    Broker {},
    #[serde(rename = "agent_mount")]
    Agent(AgentMount),
}

impl Create {
    /// Refuses settings that this server does not support: they are not ignored.
    fn check(&self) -> Result<()> {
        let unsupported = |what: &str, hint: &str| {
            Err(Failure::bad(format!("{what}: not supported by this server; {hint}")))
        };
        if self.entrypoint.as_ref().is_some_and(|text| !text.is_empty()) {
            return unsupported(
                "entrypoint",
                "run it with execute_async and shut the devbox down when it ends",
            );
        }
        if says(self.mcp.as_ref()) {
            return unsupported("mcp", "run the MCP server in the devbox");
        }
        let origins = [&self.blueprint_id, &self.blueprint_name, &self.snapshot_id];
        let named = origins.iter().filter(|origin| origin.as_ref().is_some_and(|text| !text.is_empty()));
        if named.count() > 1 {
            return Err(Failure::bad("give only one of snapshot_id, blueprint_id and blueprint_name"));
        }
        Ok(())
    }

    /// Whether the request names things that this node keeps for itself: then the devbox is made here.
    fn is_bound(&self) -> bool {
        let policy = |launch: &Value| launch.get("network_policy_id").is_some_and(|id| !id.is_null());
        let kept = |mount: &Mount| matches!(mount, Mount::Object { .. } | Mount::Agent(_));
        self.launch_parameters.as_ref().is_some_and(policy)
            || self.gateways.as_ref().is_some_and(|gateways| !gateways.is_empty())
            || self.mounts.iter().flatten().any(kept)
    }

    /// The work that has to be done in the devbox before it runs.
    async fn plan<S>(&mut self, launch: &Launch, app: &App, caller: &Caller<S>) -> Result<Plan> {
        let (mut plan, mut commands) = (Plan::default(), Vec::new());
        plan.files.extend(self.file_mounts.take().unwrap_or_default());
        for code in self.code_mounts.take().unwrap_or_default() {
            plan.code.push(code.checkout()?);
        }
        for mount in self.mounts.take().unwrap_or_default() {
            match mount {
                Mount::File { target, content } => plan.files.push((target, content)),
                Mount::Code(code) => plan.code.push(code.checkout()?),
                Mount::Object { object_id, object_path } => {
                    plan.objects.push((Opened::new(app, caller, &object_id).await?, object_path));
                }
                Mount::Broker {} => {
                    return Err(Failure::bad(
                        "mounts: broker_mount is not supported by this server: it has no axons",
                    ));
                }
                Mount::Agent(agent) => agent.plan(app, caller, &mut plan, &mut commands).await?,
            }
        }
        commands.extend(launch.launch_commands.clone().unwrap_or_default());
        plan.commands = commands;
        plan.user = launch.user_parameters.clone().filter(|user| user.username != USER);
        plan.check()?;
        Ok(plan)
    }
}

/// `POST /v1/devboxes` and `/v1/devboxes/create_and_await_running`: answers when the devbox runs, or when its setup
/// takes long.
pub(super) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    key: Option<Extension<RequestKey>>,
    Json(request): Json<Create>,
) -> Result<(Option<Extension<Undo>>, Json<Value>)> {
    let engine = app.host.engine();
    let by = caller.engine();
    let is_bound = request.is_bound();
    let (draft, plan, tunnel) = draft(&app, &caller, request).await?;
    let found_again = key.is_some();
    let making = make_once(engine, draft, key.map(|Extension(key)| key), by);
    let made = if is_bound { Arc::new(Asked::part()).scope(making).await } else { making.await };
    let made = made.map_err(|error| match error.code {
        // A thing that the body names is missing: 404 would be about the path.
        Code::VolumeNotFound | Code::SecretNotFound => Failure::bad(error.message),
        Code::IdempotencyMismatch => once::mismatch(),
        _ => Failure::of(&error),
    })?;
    let finished = finish(engine, by, made, |record| async move {
        if let Some(tunnel) = tunnel {
            tunnel.open(engine, &record.id, by).await.map_err(|error| Failure::of(&error))?;
        }
        Ok::<_, Failure>(record)
    });
    let made = finished.await?;
    let (is_new, record) = (made.is_new(), made.into_record());
    let waits = Extras::of(&record).phase == Some(Phase::Initializing) && !app.setups.is_live(&record.id);
    if !plan.is_empty() && waits {
        if !is_new {
            // The setup broke off with an earlier server, and is done again: by a caller that may do all of it.
            let may = engine.authorize(by, Needs::MANAGE, Target::Sandbox(record.id.as_str())).await;
            may.map_err(|error| Failure::of(&error))?;
        }
        set_up(&app, &record, plan, by.clone()).await;
    }
    let record = engine.sandbox(&record.id).map_err(|error| Failure::of(&error))?;
    let mut view = view(&app, &record);
    if let Some(tunnel) = Extras::of(&record).tunnel {
        view["tunnel"] = tunnel.view(engine, &record.id, Some(&caller.key()));
    }
    // A client that sent no id of its request and left has lost the devbox.
    let undo = (!found_again).then(|| Extension(app.host.undo(vec![record.id])));
    Ok((undo, Json(view)))
}

/// Starts a task that sets the devbox up, and waits for it a while.
async fn set_up(app: &App, record: &SandboxRecord, plan: Plan, by: EngineCaller) {
    let live = app.setups.begin(&record.id);
    let (engine, id) = (app.host.engine().clone(), record.id.clone());
    let task = async move {
        setup::run(&engine, &id, plan, &by).await;
        drop(live);
    };
    // The task notes its outcome in the sandbox's annotation.
    within(WAIT, task).await;
}

async fn draft(
    app: &App,
    caller: &Caller<Manage>,
    mut request: Create,
) -> Result<(SandboxDraft, Plan, Option<Tunnel>)> {
    request.check()?;
    let engine = app.host.engine();
    let shown = request.launch_parameters.take().filter(|value| says(Some(value)));
    let launch = shown.clone().map_or(Ok(Launch::default()), Launch::read)?;
    let mut draft = SandboxDraft {
        env: request.environment_variables.take().unwrap_or_default(),
        ..SandboxDraft::default()
    };
    let mut extras = Extras {
        name: request.name.take().filter(|name| !name.is_empty()),
        launch_parameters: shown,
        ..Extras::default()
    };
    // The template of a blueprint has the blueprint's policy already.
    let policy = launch.network_policy_id.clone();
    let launch = launch.over(begin_with(engine, caller, &request, &mut draft, &mut extras).await?);
    let asked = reach::Asked {
        policy,
        secrets: request.secrets.take().unwrap_or_default(),
        gateways: request.gateways.take().unwrap_or_default(),
    };
    let reach = asked.reach(app, caller, draft.template.as_deref()).await?;
    draft.egress = reach.egress;
    draft.env.extend(reach.env);
    extras.gateway_specs = reach.gateway_specs;
    extras.tunnel = request.tunnel.as_ref().map(|asked| asked.tunnel(launch.wakes_on_http())).transpose()?;
    extras.keep_alive_s = launch.apply(&mut draft)?;
    if !launch.is_custom() {
        // The disk of a named size is a minimum.
        keep_larger_disk(engine, &mut draft).await.map_err(|error| Failure::of(&error))?;
    }
    let plan = request.plan(&launch, app, caller).await?;
    if plan.user.as_ref().is_some_and(|user| user.username == "root") {
        draft.user = Some("root".to_owned());
    }
    let metadata = request.metadata.take().unwrap_or_default();
    draft.labels = labels(&metadata);
    extras.metadata = Some(metadata);
    extras.phase = (!plan.is_empty()).then_some(Phase::Initializing);
    draft.annotations = BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]);
    Ok((draft, plan, extras.tunnel))
}

/// Makes the draft begin with the snapshot or blueprint of the request. Gives the blueprint's launch parameters.
async fn begin_with(
    engine: &Engine,
    caller: &Caller<Manage>,
    request: &Create,
    draft: &mut SandboxDraft,
    extras: &mut Extras,
) -> Result<Launch> {
    let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(text) = named(&request.snapshot_id) {
        let found = snapshots::find(engine, caller, Needs::READ, &text).await?;
        extras.snapshot_id = Some(ids::of_snapshot(&found.id));
        draft.snapshot = Some(found.id.to_string());
        return Ok(Launch::default());
    }
    let origin = match (named(&request.blueprint_id), named(&request.blueprint_name)) {
        (Some(id), _) => blueprints::by_id(engine, caller, &id).await?,
        (None, Some(name)) => blueprints::by_name(engine, caller, &name).await?,
        (None, None) => {
            default(engine, draft).await?;
            return Ok(Launch::default());
        }
    };
    draft.template = Some(origin.template);
    extras.blueprint_id = origin.id;
    Ok(origin.launch)
}

/// The beginning of a devbox whose client names none.
async fn default(engine: &Engine, draft: &mut SandboxDraft) -> Result<()> {
    match engine.template(DEFAULT_TEMPLATE, None).await {
        Ok(record) => {
            if record.spec.user.is_none() && record.spec.snapshot.is_none() {
                draft.user = Some(USER.to_owned());
            }
            draft.template = Some(record.name);
        }
        Err(error) if error.code == Code::TemplateNotFound => draft.user = Some(USER.to_owned()),
        Err(error) => return Err(Failure::of(&error)),
    }
    Ok(())
}

/// The metadata that have the form of labels, as labels: the native API shows those.
pub(super) fn labels(metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    use atoll_core::limits::{LABEL_KEY_MAX_BYTES, LABEL_VALUE_MAX_BYTES, LABELS_MAX_COUNT};
    let fits = |(key, value): &(&String, &String)| {
        (1..=LABEL_KEY_MAX_BYTES).contains(&key.len())
            && key.bytes().all(|b| b.is_ascii_graphic() && b != b'=' && b != b',')
            && value.len() <= LABEL_VALUE_MAX_BYTES
            && !value.chars().any(char::is_control)
    };
    let fitting = metadata.iter().filter(fits).take(LABELS_MAX_COUNT);
    fitting.map(|(key, value)| (key.clone(), value.clone())).collect()
}
