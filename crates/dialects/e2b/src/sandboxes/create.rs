//! Making a sandbox.

use std::collections::BTreeMap;

use atoll_core::access::Target;
use atoll_core::idle::IdlePolicy;
use atoll_core::limits::JSON_BODY_MAX_BYTES;
use atoll_core::sandbox::PauseMode;
use atoll_core::spec::{IsolationLevel, RequestKey, SandboxDraft};
use atoll_core::volume::VolumeMountDraft;
use atoll_core::{Code, Error};
use atoll_dialect_kit::sandboxes::{finish, make_once, open};
use atoll_engine::{Caller as EngineCaller, Engine, Made};
use atoll_server::dialect::read_all;
use atoll_store::SandboxRecord;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lifecycle::limit_s;
use super::network::{self, Network};
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Caller, Domain, Manage, parse};
use crate::secrets;
use crate::templates;
use crate::view::Sandbox;

/// Time to live when the client gives none, seconds: of the two generations.
const TIMEOUT_V1_S: u64 = 15;
const TIMEOUT_V2_S: u64 = 300;
/// Name of the accesses that let every client reach ports.
const ANYBODY: &str = "e2b public traffic";
/// The user that runs commands where the template names none.
const USER: &str = "user";

/// A creation. Fields that are not named here are ignored.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Create {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<i64>,
    #[serde(rename = "autoPause")]
    auto_pause: Option<bool>,
    #[serde(rename = "autoPauseMemory")]
    auto_pause_memory: Option<bool>,
    #[serde(rename = "autoResume")]
    auto_resume: Option<AutoResume>,
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    metadata: Option<BTreeMap<String, String>>,
    #[serde(rename = "envVars")]
    env_vars: Option<BTreeMap<String, String>>,
    iam: Option<Value>,
    #[serde(rename = "volumeMounts")]
    volume_mounts: Option<Vec<VolumeMount>>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
struct VolumeMount {
    name: String,
    path: String,
}

/// `POST /sandboxes`.
pub(super) async fn v1(
    caller: Caller<Manage>,
    State(app): State<App>,
    uri: Uri,
    headers: HeaderMap,
    domain: Domain,
    body: Body,
) -> Response {
    create(&caller, &app, &uri, &headers, domain, body, TIMEOUT_V1_S).await
}

/// `POST /v2/sandboxes`.
pub(super) async fn v2(
    caller: Caller<Manage>,
    State(app): State<App>,
    uri: Uri,
    headers: HeaderMap,
    domain: Domain,
    body: Body,
) -> Response {
    create(&caller, &app, &uri, &headers, domain, body, TIMEOUT_V2_S).await
}

async fn create(
    caller: &Caller<Manage>,
    app: &App,
    uri: &Uri,
    headers: &HeaderMap,
    domain: Domain,
    body: Body,
    timeout_s: u64,
) -> Response {
    let asked = async {
        let bytes = read_all(body, JSON_BODY_MAX_BYTES).await.map_err(|error| Failure::of(&error))?;
        let key = super::idempotency::key(headers)?;
        Ok::<(Create, _), Failure>((parse(&bytes)?, key))
    };
    let (request, key) = match asked.await {
        Ok(asked) => asked,
        Err(failure) => return failure.into_response(),
    };
    let Some(key) = key else { return made(app, caller, domain, request, timeout_s, None).await };
    // The parsed body, so that a retry may spell it in another way.
    let print = serde_json::to_string(&(uri.path(), &request)).unwrap_or_default();
    let kept = super::idempotency::kept(&key, &print);
    let (app_in, caller_in) = (app.clone(), caller.clone());
    let making = async move { made(&app_in, &caller_in, domain, request, timeout_s, Some(kept)).await };
    app.answers.once(&caller.key(), &key, &print, making).await
}

async fn made(
    app: &App,
    caller: &Caller<Manage>,
    domain: Domain,
    request: Create,
    timeout_s: u64,
    kept: Option<RequestKey>,
) -> Response {
    let (engine, key) = (app.host.engine().clone(), caller.key());
    let by = caller.engine().clone();
    // If the client goes away half-way, the sandbox is made all the same: the client may ask for it by its key. Without
    // a key it cannot.
    let host = kept.is_none().then(|| app.host.clone());
    let making = atoll_engine::spawn(async move {
        let record = make(&engine, &by, request, timeout_s, kept).await?;
        let undo = host.map(|host| Extension(host.undo(vec![record.id.clone()])));
        Ok::<_, Failure>((undo, Sandbox::new(&engine, &record, &key, domain)))
    });
    match making.await {
        Ok(Ok((undo, sandbox))) => (StatusCode::CREATED, undo, axum::Json(sandbox)).into_response(),
        Ok(Err(failure)) => failure.into_response(),
        Err(_panicked) => {
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the creation failed").into_response()
        }
    }
}

async fn make(
    engine: &Engine,
    by: &EngineCaller,
    request: Create,
    timeout_s: u64,
    kept: Option<RequestKey>,
) -> Result<SandboxRecord> {
    let (draft, extras) = draft(engine, by, request, timeout_s).await?;
    let public = !extras.private_ports;
    let made = make_once(engine, draft, kept, by).await.map_err(|error| refused(&error))?;
    let finished = finish(engine, by, made, |record| async move {
        if public {
            open_ports(engine, &record, by).await?;
        }
        Ok::<_, Failure>(record)
    });
    finished.await.map(Made::into_record)
}

/// Lets every client reach the ports of a sandbox, as E2B's clients expect it.
pub(super) async fn open_ports(engine: &Engine, record: &SandboxRecord, by: &EngineCaller) -> Result<()> {
    open(engine, &record.id, Target::Ports, ANYBODY, by).await.map_err(|error| Failure::of(&error))
}

/// The error of a creation, in the clients' terms.
fn refused(error: &Error) -> Failure {
    match error.code {
        // A thing that the body names is missing: 404 would be about the path.
        Code::VolumeNotFound | Code::SecretNotFound => Failure::bad(crate::error::sentence(error)),
        Code::IdempotencyMismatch => super::idempotency::mismatch(),
        // The template's start command fails: making another sandbox of the template changes nothing.
        Code::StartFailed => Failure::bad(crate::error::sentence(error)).with_code("start_failed"),
        Code::SandboxFailed => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, crate::error::sentence(error)),
        _ => Failure::of(error),
    }
}

async fn draft(
    engine: &Engine,
    by: &EngineCaller,
    request: Create,
    timeout_s: u64,
) -> Result<(SandboxDraft, Extras)> {
    if request.iam.as_ref().is_some_and(|iam| !iam.is_null()) {
        return Err(Failure::bad("iam: workload identity tokens are not supported by this server"));
    }
    let timeout_s = request.timeout.map_or(Ok(timeout_s), |seconds| limit_s(seconds, 1))?;
    let (pause, resume) = lifecycle(&request)?;
    let template = templates::find(engine, &request.template_id, by).await?;
    let mut draft = SandboxDraft {
        env: request.env_vars.unwrap_or_default(),
        ttl_ms: Some(timeout_s * 1000),
        ..SandboxDraft::default()
    };
    let found = template.apply(&mut draft);
    if found.default_user {
        draft.user = Some(USER.to_owned());
    }
    let level = found.isolation.unwrap_or_else(|| engine.default_isolation());
    draft.idle = IdlePolicy {
        pause_at_end: pause.map(|memory| if memory { full_pause(level) } else { PauseMode::Filesystem }),
        ..IdlePolicy::default()
    };
    let mounts = request.volume_mounts.unwrap_or_default().into_iter();
    draft.volumes = mounts
        .map(|mount| VolumeMountDraft {
            volume: mount.name,
            path: mount.path,
            read_only: false,
            subpath: None,
        })
        .collect();
    let metadata = request.metadata.unwrap_or_default();
    draft.labels = labels(&metadata);
    let network = request.network.unwrap_or_default();
    let meant = |name: &str| secrets::meant(engine, by, name);
    if let Some(plan) = network::plan(&network, request.allow_internet_access, meant)? {
        draft.egress = Some(plan.policy);
        draft.secrets = plan.secrets;
    }
    let extras = Extras {
        template_id: Some(found.id),
        alias: found.alias,
        metadata: Some(metadata),
        auto_resume: resume,
        timeout_s: Some(timeout_s),
        private_ports: network.allow_public_traffic == Some(false),
        network: network.shown(),
        allow_internet_access: request.allow_internet_access,
    };
    draft.annotations = BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]);
    Ok((draft, extras))
}

/// Whether the sandbox is paused at its end, and if so with its memory; and whether traffic wakes it.
fn lifecycle(request: &Create) -> Result<(Option<bool>, bool)> {
    let pause = request.auto_pause.unwrap_or_default();
    let memory = request.auto_pause_memory.unwrap_or(true);
    let resume = request.auto_resume.as_ref().is_some_and(|resume| resume.enabled);
    if !memory && !pause {
        return Err(Failure::bad("autoPauseMemory: false needs autoPause"));
    }
    if !memory && resume {
        return Err(Failure::bad("autoPauseMemory: false cannot be combined with autoResume"));
    }
    Ok((pause.then_some(memory), resume))
}

/// How a sandbox of a level is paused with its memory: to disk where the level can do that, else frozen in memory.
pub(super) const fn full_pause(level: IsolationLevel) -> PauseMode {
    match level {
        IsolationLevel::Microvm => PauseMode::Memory,
        IsolationLevel::Container | IsolationLevel::Gvisor => PauseMode::Frozen,
    }
}

/// The metadata that have the form of labels, as labels: the native API shows those.
fn labels(metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Create {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_the_clients_send() {
        let python = of(r#"{"templateID":"base","metadata":{},"envVars":{}}"#);
        assert_eq!((python.template_id.as_str(), python.timeout), ("base", None));
        let network = of(
            r#"{"templateID":"b","allow_internet_access":false,"network":{"allowPublicTraffic":false,
                "allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]},"autoPause":true,"autoResume":{"enabled":true}}"#,
        );
        assert_eq!(network.allow_internet_access, Some(false));
        assert_eq!(lifecycle(&network).unwrap(), (Some(true), true));
        let files = of(r#"{"templateID":"b","autoPause":true,"autoPauseMemory":false}"#);
        assert_eq!(lifecycle(&files).unwrap(), (Some(false), false));
        assert!(lifecycle(&of(r#"{"autoPauseMemory":false}"#)).is_err());
        let both = r#"{"autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}"#;
        assert!(lifecycle(&of(both)).is_err());
    }

    #[test]
    fn labels_are_what_fits() {
        let of = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let metadata = BTreeMap::from([of("a", "b c"), of("a b", "c"), of("c=d", "e"), of("f", "\n")]);
        assert_eq!(labels(&metadata), BTreeMap::from([of("a", "b c")]));
    }
}
