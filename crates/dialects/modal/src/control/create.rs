//! Making a sandbox.

use std::collections::BTreeMap;

use atoll_core::Code;
use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::spec::{RequestKey, ResourcesDraft, SandboxDraft};
use atoll_dialect_kit::sandboxes::{finish, make_once};
use atoll_dialect_kit::status::Status;
use atoll_server::dialect::Undo;
use atoll_store::SandboxRecord;
use prost::Message as _;

use super::once::Call;
use super::{first, images, lifecycle, network, once, secrets, tunnels, volumes};
use crate::auth::Asker;
use crate::extras::{self, Extras, Port, Probe};
use crate::grpc::{Fault, Result};
use crate::ids::{self, Generation};
use crate::task;
use crate::wire::common::SecretSource;
use crate::wire::sandboxes::{
    CommandRouterAccess, Probe as WireProbe, Resources, Sandbox, SandboxCreateRequest, SandboxCreateResponse,
    SandboxCreateV2Request, SandboxCreateV2Response, SandboxHandleMetadata, SandboxTag,
};

const MIB: u64 = 1 << 20;
/// Most tags of a sandbox.
const TAGS_MAX: usize = 128;
/// Pause between two looks whether a sandbox is ready, when its client gives none, milliseconds.
const PROBE_INTERVAL_MS: u64 = 100;

/// The answer of a call that makes a sandbox, and what deletes the sandbox when the client is gone.
pub(super) type Answered<A> = Result<(A, Option<Undo>)>;

/// `SandboxCreate`.
pub(super) async fn v1(asker: &Asker, request: SandboxCreateRequest) -> Answered<SandboxCreateResponse> {
    let definition = request.definition.unwrap_or_default();
    let (id, app, undo) = Box::pin(create(asker, definition, request.app_id, &request.tags, &[])).await?;
    let answer = SandboxCreateResponse {
        sandbox_id: ids::sandbox(&id, Generation::V1),
        metadata: Some(SandboxHandleMetadata { result: None, app_id: app }),
    };
    Ok((answer, undo))
}

/// `SandboxCreateV2`.
pub(super) async fn v2(asker: &Asker, request: SandboxCreateV2Request) -> Answered<SandboxCreateV2Response> {
    let definition = request.definition.unwrap_or_default();
    let mut sources = request.secret_sources;
    if let Some(env) = request.ephemeral_secrets {
        sources.push(SecretSource { secret_id: None, env: Some(env) });
    }
    let (id, app, undo) =
        Box::pin(create(asker, definition, request.app_id, &request.tags, &sources)).await?;
    let record = asker.engine().sandbox(&id)?;
    let (url, jwt) = lifecycle::access(asker, &id);
    let answer = SandboxCreateV2Response {
        sandbox_id: ids::sandbox(&id, Generation::V2),
        task_id: ids::task(&id, Generation::V2),
        tunnels: tunnels::of(asker, &id, &Extras::of(&record))?,
        metadata: Some(SandboxHandleMetadata { result: None, app_id: app }),
        command_router_access: Some(CommandRouterAccess { jwt, url }),
        sandbox_token: String::new(),
    };
    Ok((answer, undo))
}

async fn create(
    asker: &Asker,
    definition: Sandbox,
    app: String,
    tags: &[SandboxTag],
    sources: &[SecretSource],
) -> Result<(SandboxId, String, Option<Undo>)> {
    asker.needs(Scope::Manage)?;
    let plan = plan(asker, &definition, &app, tags, sources).await?;
    let mut asked = vec![definition.encode_to_vec(), app.clone().into_bytes()];
    asked.extend(tags.iter().map(prost::Message::encode_to_vec));
    asked.extend(sources.iter().map(prost::Message::encode_to_vec));
    let asked: Vec<&[u8]> = asked.iter().map(Vec::as_slice).collect();
    let call = Call::of(asker, "sandbox", &asked);
    let (owned, request) = (asker.clone(), call.kept());
    let making = async move { make(&owned, plan, request).await.map(|record| record.id.to_string()) };
    let id = Box::pin(asker.app.control.once.make(asker.key(), &call, making)).await?;
    let id: SandboxId = id.parse().map_err(|_never| Fault::not_found("the sandbox is gone"))?;
    let undo = once::undo(asker, &call, &id);
    // A retry with another key would be another call: this key made the sandbox.
    asker.may(&id, Scope::Read).await?;
    Ok((id, app, undo))
}

/// The sandbox that is to be made.
struct Plan {
    draft: SandboxDraft,
    extras: Extras,
    /// Files that are put into the sandbox.
    mounts: Vec<String>,
    /// The first command.
    command: Option<task::First>,
}

/// Makes the sandbox with all that belongs to it, or nothing. One that an earlier server made with this key stays as it is.
async fn make(asker: &Asker, plan: Plan, request: Option<RequestKey>) -> Result<SandboxRecord> {
    let (engine, by) = (asker.engine(), asker.caller());
    let Plan { draft, extras, mounts, command } = plan;
    let named = extras.name.clone().unwrap_or_default();
    let made = make_once(engine, draft, request, by).await.map_err(|error| match error.code {
        // The clients' users know this text.
        Code::NameTaken => {
            Fault::new(Status::AlreadyExists, format!("Sandbox with name '{named}' already exists"))
        }
        _ => Fault::of(&error),
    })?;
    let (extras, mounts) = (&extras, &mounts);
    let finished = finish(engine, by, made, |record| async move {
        tunnels::open(engine, &record.id, &extras.ports, by).await?;
        images::put_mounts(asker, &record.id, mounts).await?;
        if let Some(command) = command {
            task::start_first(asker, &record.id, command).await?;
        }
        if extras.command {
            first::follow(&asker.app, record.id.clone());
        }
        Ok::<_, Fault>(record)
    });
    let record = Box::pin(finished).await?.into_record();
    asker.app.control.ended.note(&record, &extras.app);
    Ok(record)
}

async fn plan(
    asker: &Asker,
    wanted: &Sandbox,
    app: &str,
    tags: &[SandboxTag],
    sources: &[SecretSource],
) -> Result<Plan> {
    check(wanted)?;
    let given = secrets::given(asker, &wanted.secret_ids, sources)?;
    let mut env = given.env.clone();
    env.extend(wanted.environment_variables.iter().flat_map(|env| env.contents.clone()));
    let tags = read_tags(tags)?;
    let ports = ports(wanted)?;
    let name = wanted.name.clone().filter(|name| !name.is_empty());
    let mut draft = SandboxDraft {
        name: name.as_deref().map(extras::label).transpose()?,
        env,
        workdir: wanted.workdir.clone().filter(|dir| !dir.is_empty()),
        ttl_ms: (wanted.timeout_secs > 0).then(|| u64::from(wanted.timeout_secs) * 1000),
        idle_timeout_ms: wanted.idle_timeout_secs.filter(|s| *s > 0).map(|s| u64::from(s) * 1000),
        resources: resources(wanted.resources.as_ref())?,
        labels: labels(&tags),
        egress: network::policy(wanted.network_access.as_ref(), wanted.block_network)?,
        volumes: volumes::mounts(&wanted.volume_mounts)?,
        ..SandboxDraft::default()
    };
    images::apply(asker, &wanted.image_id, &mut draft).await?;
    draft.egress = given.egress(asker, draft.egress.take(), draft.template.as_deref()).await?;
    let command = (!wanted.entrypoint_args.is_empty()).then(|| task::First {
        argv: wanted.entrypoint_args.clone(),
        tty: wanted.pty_info.as_ref().filter(|pty| pty.enabled).map(task::size),
    });
    let extras = Extras {
        app: app.to_owned(),
        name,
        image: wanted.image_id.clone(),
        tags: Some(tags),
        command: command.is_some(),
        over: false,
        ports,
        probe: wanted.readiness_probe.as_ref().map(probe).transpose()?,
        timeout_s: Some(wanted.timeout_secs),
    };
    draft.annotations = BTreeMap::from([(extras::KEY.to_owned(), extras.text()?)]);
    Ok(Plan { draft, extras, mounts: wanted.mount_ids.clone(), command })
}

/// A setting that this server does not support is refused, not ignored.
fn check(wanted: &Sandbox) -> Result<()> {
    let gpu = wanted.resources.as_ref().and_then(|resources| resources.gpu_config.as_ref());
    let refused = [
        (gpu.is_some_and(|gpu| gpu.count > 0), "gpu"),
        (!wanted.nfs_mounts.is_empty(), "network_file_systems"),
        (!wanted.cloud_bucket_mounts.is_empty(), "CloudBucketMount"),
        (wanted.proxy_id.as_ref().is_some_and(|id| !id.is_empty()), "proxy"),
        (wanted.i6pn_enabled, "i6pn"),
        (!wanted.custom_domain.is_empty(), "custom_domain"),
        (wanted.include_oidc_identity_token, "include_oidc_identity_token"),
        (!wanted.inbound_cidr_allowlist.is_empty(), "inbound_cidr_allowlist"),
        (
            wanted.experimental_outbound_policy.is_some() || wanted.outbound_policy.is_some(),
            "outbound_policy",
        ),
    ];
    match refused.iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(Fault::unsupported(format!("{what}: not supported by this server"))),
        None => Ok(()),
    }
}

fn read_tags(tags: &[SandboxTag]) -> Result<BTreeMap<String, String>> {
    if tags.len() > TAGS_MAX {
        return Err(Fault::invalid(format!("tags: more than {TAGS_MAX}")));
    }
    Ok(tags.iter().map(|tag| (tag.tag_name.clone(), tag.tag_value.clone())).collect())
}

/// The tags that have the form of labels, as labels: the native API shows those.
pub(super) fn labels(tags: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    use atoll_core::limits::{LABEL_KEY_MAX_BYTES, LABEL_VALUE_MAX_BYTES, LABELS_MAX_COUNT};
    let fits = |(key, value): &(&String, &String)| {
        (1..=LABEL_KEY_MAX_BYTES).contains(&key.len())
            && key.bytes().all(|b| b.is_ascii_graphic() && b != b'=' && b != b',')
            && value.len() <= LABEL_VALUE_MAX_BYTES
            && !value.chars().any(char::is_control)
    };
    let fitting = tags.iter().filter(fits).take(LABELS_MAX_COUNT);
    fitting.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// A request is the least that a sandbox gets, a limit the most: the engine has one number, so it gets the larger.
fn resources(asked: Option<&Resources>) -> Result<ResourcesDraft> {
    let Some(asked) = asked else { return Ok(ResourcesDraft::default()) };
    let larger = |request: u32, limit: u32| Some(request.max(limit)).filter(|number| *number > 0);
    Ok(ResourcesDraft {
        cpu_millis: larger(asked.milli_cpu, asked.milli_cpu_max),
        memory_bytes: larger(asked.memory_mb, asked.memory_mb_max).map(|mb| u64::from(mb) * MIB),
        ..ResourcesDraft::default()
    })
}

fn ports(wanted: &Sandbox) -> Result<Vec<Port>> {
    let asked = wanted.open_ports.iter().flat_map(|ports| &ports.ports);
    let port = |asked: &crate::wire::sandboxes::PortSpec| {
        let port = u16::try_from(asked.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| Fault::invalid(format!("'{}' is not a port", asked.port)))?;
        Ok(Port { port, plain: asked.unencrypted })
    };
    asked.map(port).collect()
}

fn probe(asked: &WireProbe) -> Result<Probe> {
    let port = asked.tcp_port.map(u16::try_from).transpose();
    let port = port.map_err(|_large| Fault::invalid("readiness_probe: is not a port"))?;
    let argv = asked.exec_command.as_ref().map(|command| command.argv.clone()).unwrap_or_default();
    if port.is_none() && argv.is_empty() {
        return Err(Fault::invalid("readiness_probe: names neither a port nor a command"));
    }
    let interval_ms = asked.interval_ms.map_or(PROBE_INTERVAL_MS, u64::from).clamp(10, 60_000);
    Ok(Probe { port, argv, interval_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused() {
        assert!(check(&Sandbox::default()).is_ok());
        assert!(check(&Sandbox { i6pn_enabled: true, ..Sandbox::default() }).is_err());
        let gpu = crate::wire::sandboxes::GPUConfig { count: 1 };
        let resources = Some(Resources { gpu_config: Some(gpu), ..Resources::default() });
        let fault = check(&Sandbox { resources, ..Sandbox::default() }).unwrap_err();
        assert!(fault.message.starts_with("gpu"), "{}", fault.message);
    }

    #[test]
    fn limits_are_the_larger_number() {
        let asked = Resources { memory_mb: 512, milli_cpu: 500, milli_cpu_max: 2000, ..Resources::default() };
        let draft = resources(Some(&asked)).unwrap();
        assert_eq!((draft.memory_bytes, draft.cpu_millis), (Some(512 * MIB), Some(2000)));
        assert_eq!(resources(Some(&Resources::default())).unwrap().memory_bytes, None);
    }
}
