//! Building images.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Code;
use atoll_core::build::{BuildEvent, BuildSpec, BuildState, SNAPSHOT_SCHEME, StepState, TEMPLATE_SCHEME};
use atoll_core::id::{BuildId, KeyId};
use atoll_core::key::Scope;
use atoll_core::secret::Secret;
use atoll_core::service::Services;
use atoll_core::sharing::Needs;
use atoll_core::spec::ResourcesDraft;
use atoll_dialect_kit::kept::Kept;
use atoll_dialect_kit::once::Limits;
use atoll_engine::{BuildLog, BuildSecrets, ImageLogin};
use atoll_store::TemplateRecord;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::recipe::{Content, File, Layer, Recipe, is_debian_slim};
use super::{Found, context, no_image, ready, recipe, success, template_of};
use crate::auth::Asker;
use crate::control::ended::status;
use crate::control::secrets;
use crate::grpc::{Fault, Result};
use crate::wire::common::{GenericResult, TaskLogs};
use crate::wire::images::{
    Image, ImageGetOrCreateRequest, ImageGetOrCreateResponse, ImageJoinStreamingRequest,
    ImageJoinStreamingResponse,
};

/// Images that are remembered, with their recipes, for the layers on top of them.
const LIMITS: Limits =
    Limits { kept_ms: u64::MAX, of_key: 1024, all: 4096, bytes_of_key: 16 << 20, bytes_all: 128 << 20 };
/// The purpose of the tokens that tell the images of one key from those of others.
const OF_KEY: &str = "modal images";
/// Bytes of a log that are read at once.
const LOG_BYTES: usize = 256 << 10;
/// How often the server looks at a build that writes nothing.
const LOOK: Duration = Duration::from_secs(2);
/// Longest that one call follows a build; clients go on with another.
const FOLLOW_MAX_S: f32 = 55.0;
/// `FILE_DESCRIPTOR_STDOUT`.
const STDOUT: i32 = 1;
/// `REGISTRY_AUTH_TYPE_…`.
const REGISTRY_AWS: i32 = 1;
const REGISTRY_GCP: i32 = 2;
const REGISTRY_PUBLIC: i32 = 3;
/// The advice to a client that gives secrets of the installation.
const OF_BUILD: &str = "values of those enter no build; give it with Secret.from_dict";
const OF_REGISTRY: &str =
    "credentials of a registry are stored with 'atoll registry login', or given with Secret.from_dict";

/// An image that a client asked for in this run of the server.
#[derive(Debug, Clone)]
struct Known {
    /// Absent if the steps need a login or secrets, which the server does not keep, or if it is too large.
    recipe: Option<Arc<Recipe>>,
    build: Option<BuildId>,
}

/// Images that clients asked for, each for the key that did. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Builds(Kept<Known>);

impl Default for Builds {
    fn default() -> Self {
        Self(Kept::new(LIMITS))
    }
}

impl Builds {
    fn find(&self, key: &KeyId, id: &str) -> Option<Known> {
        self.0.get(key, id)
    }

    fn enter(&self, key: &KeyId, id: &str, known: Known) {
        let bytes = size_of::<Known>() + known.recipe.as_ref().map_or(0, |recipe| recipe.weight());
        let build = known.build.clone();
        if !self.0.put(key, id, bytes, known) {
            // Layers on top begin with the image that was built.
            let known = Known { recipe: None, build };
            let _ = self.0.put(key, id, size_of::<Known>(), known);
        }
    }
}

/// `ImageGetOrCreate`.
pub(in crate::control) async fn get_or_create(
    asker: &Asker,
    request: ImageGetOrCreateRequest,
) -> Result<ImageGetOrCreateResponse> {
    asker.needs(Scope::Manage)?;
    if !request.build_function_id.is_empty() {
        return Err(crate::grpc::unimplemented("Image.run_function"));
    }
    let image = request.image.unwrap_or_default();
    if is_debian_slim(&image.dockerfile_commands) {
        return Ok(ready(super::DEBIAN_SLIM.to_owned()));
    }
    let given = Given::of(asker, &image)?;
    let recipe = recipe(asker, &image, &given).await?;
    let id = recipe.id(asker.engine().key_token(OF_KEY, asker.key()).reveal());
    let name = template_of(&id).ok_or_else(|| no_image(&id))?;
    let builds = &asker.app.control.builds;
    let again = request.force_build || request.ignore_cache;
    // A version that another key made may have any content.
    let is_ours = |made: TemplateRecord| made.created_by.as_ref() == Some(asker.key());
    if !again && asker.engine().template(&name, None).await.is_ok_and(is_ours) {
        let build = builds.find(asker.key(), &id).and_then(|known| known.build);
        let recipe = given.is_empty().then(|| Arc::new(recipe));
        builds.enter(asker.key(), &id, Known { recipe, build });
        return Ok(ready(id));
    }
    // One build of an image at a time: a client that asks later follows it.
    if let Some(build) = builds.find(asker.key(), &id).and_then(|known| known.build)
        && let Ok(view) = asker.engine().build(&build).await
        && !view.record.state.is_final()
    {
        return Ok(ImageGetOrCreateResponse { image_id: id, result: None, metadata: None });
    }
    let open = given.is_empty();
    let build = begin(asker, &recipe, name, &image, given, again).await?;
    let recipe = open.then(|| Arc::new(recipe));
    builds.enter(asker.key(), &id, Known { recipe, build: Some(build) });
    Ok(ImageGetOrCreateResponse { image_id: id, result: None, metadata: None })
}

/// A login and secrets for one build. The server does not keep them: layers on top begin with the image that was built.
struct Given {
    login: Option<ImageLogin>,
    secrets: BuildSecrets,
}

impl Given {
    fn of(asker: &Asker, image: &Image) -> Result<Self> {
        let variables = secrets::given(asker, &image.secret_ids, &[])?.plain(OF_BUILD)?;
        let secrets = variables.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
        Ok(Self { login: login(asker, image)?, secrets })
    }

    fn is_empty(&self) -> bool {
        self.login.is_none() && self.secrets.is_empty()
    }
}

/// The login for the registry of the build's image. Source of the name of Google's user: their documentation of
/// Docker's authentication with a service account key.
fn login(asker: &Asker, image: &Image) -> Result<Option<ImageLogin>> {
    let Some(config) = image.image_registry_config.as_ref().filter(|config| !config.secret_id.is_empty())
    else {
        return Ok(None);
    };
    let mut values =
        secrets::given(asker, std::slice::from_ref(&config.secret_id), &[])?.plain(OF_REGISTRY)?;
    let mut value = |name: &str| {
        let missing = || Fault::invalid(format!("secret: it has no {name}"));
        values.remove(name).ok_or_else(missing)
    };
    let (username, password) = match config.registry_auth_type {
        REGISTRY_PUBLIC => return Ok(None),
        REGISTRY_AWS => {
            return Err(Fault::unsupported(
                "keys of AWS are not taken; use Image.from_registry with REGISTRY_USERNAME 'AWS' and as REGISTRY_PASSWORD what 'aws ecr get-login-password' prints",
            ));
        }
        REGISTRY_GCP => ("_json_key".to_owned(), value("SERVICE_ACCOUNT_JSON")?),
        _ => (value("REGISTRY_USERNAME")?, value("REGISTRY_PASSWORD")?),
    };
    let named = recipe::registry_image(&image.dockerfile_commands);
    let image = named.ok_or_else(|| Fault::invalid("secret: the image names no registry to log in to"))?;
    Ok(Some(ImageLogin { image, username, password: Secret::new(password) }))
}

async fn recipe(asker: &Asker, image: &Image, given: &Given) -> Result<Recipe> {
    let mut files: Vec<File> = context::mounted(asker, &image.context_mount_id)?;
    for file in &image.context_files {
        files.push(File {
            path: context::relative(&file.filename)?,
            // A copy: what was received is one piece of memory with all of the message.
            content: Content::Here(Bytes::copy_from_slice(&file.data)),
            mode: 0o644,
        });
    }
    let base = match image.base_images.as_slice() {
        [] => None,
        [base] => Some((base.docker_tag.as_str(), below(asker, &base.image_id).await?)),
        _ => {
            return Err(Fault::unsupported("images of more than one image are not supported by this server"));
        }
    };
    let commands = recipe::with_secrets(&image.dockerfile_commands, given.secrets.keys())?;
    Recipe::of(Layer { commands: &commands, base, files: files.into() })
}

/// The recipe of the image below a layer: its lines, or where the server does not know them any more, the built image.
async fn below(asker: &Asker, id: &str) -> Result<Recipe> {
    let known = asker.app.control.builds.find(asker.key(), id);
    if let Some(recipe) = known.and_then(|known| known.recipe) {
        return Ok(Recipe::clone(&recipe));
    }
    let engine = asker.engine();
    match super::find(asker, id, Needs::MANAGE).await? {
        // On the image that the template was built on, so that the engine finds its steps again.
        Found::DebianSlim => Ok(match engine.template(super::DEBIAN_SLIM_TEMPLATE, None).await {
            Ok(template) => Recipe::debian_slim(&template.spec.image),
            Err(_none) => Recipe::debian_slim(&engine.default_image()),
        }),
        Found::Template(name) => {
            let version = engine.template(&name, None).await?.version;
            Ok(Recipe::on(&format!("{TEMPLATE_SCHEME}{name}:{version}")))
        }
        Found::Snapshot(id) => Ok(Recipe::on(&format!("{SNAPSHOT_SCHEME}{id}"))),
        Found::Directory(..) => Err(Fault::unsupported(
            "the image is a directory of a sandbox: it has nothing to run commands with",
        )),
    }
}

async fn begin(
    asker: &Asker,
    recipe: &Recipe,
    name: String,
    image: &Image,
    given: Given,
    no_cache: bool,
) -> Result<BuildId> {
    let spec = BuildSpec {
        name,
        tags: Vec::new(),
        dockerfile: Some(recipe.text.clone()),
        steps: None,
        // All files that the client sent belong to the context.
        ignore: Some(String::new()),
        args: image.build_args.clone(),
        target: None,
        no_cache,
        start: None,
        ready: None,
        restart: None,
        verify: false,
        memory: false,
        isolation: None,
        resources: ResourcesDraft::default(),
        labels: std::collections::BTreeMap::new(),
        egress: None,
        template_egress: None,
        ttl_ms: None,
        idle_timeout_ms: None,
        timeout_ms: None,
        services: Services::new(),
    };
    let (tar, held) = context::tar(asker, recipe).await?;
    let engine = asker.engine().clone();
    let Given { login, secrets } = given;
    let made = engine.create_build_with(spec, login, secrets, asker.caller()).await;
    let view = made.map_err(|error| match error.code {
        Code::BuildFileInvalid => Fault::invalid(atoll_dialect_kit::sentence(&error)),
        _ => Fault::of(&error),
    })?;
    let build = view.record.id.clone();
    if view.needs_context {
        let id = build.clone();
        tokio::spawn(async move {
            let _held = held;
            if let Err(error) = engine.put_build_context(&id, tar).await {
                tracing::info!(%error, build = %id, "the files of an image could not be read");
                drop(engine.cancel_build(&id).await);
            }
        });
    }
    Ok(build)
}

/// `ImageJoinStreaming`: the log of a build as it comes, and how it ended.
pub(in crate::control) async fn join(
    asker: &Asker,
    request: ImageJoinStreamingRequest,
) -> Result<BoxStream<'static, Result<ImageJoinStreamingResponse>>> {
    asker.needs(Scope::Manage)?;
    let known = asker.app.control.builds.find(asker.key(), &request.image_id);
    let Some(build) = known.and_then(|known| known.build) else {
        super::find(asker, &request.image_id, Needs::READ).await?;
        let over = ImageJoinStreamingResponse { result: Some(success()), ..Default::default() };
        return Ok(stream::iter([Ok(over)]).boxed());
    };
    let offset = request.last_entry_id.parse().unwrap_or_default();
    let log = asker.engine().build_log(&build, offset).await?;
    let until = tokio::time::Instant::now() + crate::control::seconds(request.timeout, FOLLOW_MAX_S);
    Ok(stream::unfold(Some((log, until)), follow).boxed())
}

type Following = (BuildLog, tokio::time::Instant);

async fn follow(state: Option<Following>) -> Option<(Result<ImageJoinStreamingResponse>, Option<Following>)> {
    let (mut log, until) = state?;
    loop {
        let page = match log.now(LOG_BYTES).await {
            Ok(page) => page,
            Err(error) => return Some((Err(error.into()), None)),
        };
        let mut answer = ImageJoinStreamingResponse::default();
        for entry in &page.entries {
            answer.entry_id = entry.next_offset.to_string();
            answer.task_logs.extend(shown(&entry.event));
        }
        if page.entries.is_empty() && page.record.state.is_final() {
            answer.result = Some(result(&page.record));
            answer.metadata = Some(super::metadata());
            return Some((Ok(answer), None));
        }
        if !page.entries.is_empty() {
            return Some((Ok(answer), Some((log, until))));
        }
        if tokio::time::Instant::now() >= until {
            return None;
        }
        drop(tokio::time::timeout(LOOK, log.changed()).await);
    }
}

/// An entry of a log, as text for people.
fn shown(event: &BuildEvent) -> Option<TaskLogs> {
    let (at_ms, data) = match event {
        BuildEvent::Note { at_ms, text } => (*at_ms, format!("{text}\n")),
        BuildEvent::Output { at_ms, text, .. } => (*at_ms, text.clone()),
        BuildEvent::Step { at_ms, text, state: StepState::Started, .. } => (*at_ms, format!("=> {text}\n")),
        BuildEvent::Step { at_ms, text, state: StepState::Cached, .. } => {
            (*at_ms, format!("=> CACHED {text}\n"))
        }
        BuildEvent::Step { .. } | BuildEvent::End { .. } => return None,
    };
    let timestamp = Duration::from_millis(at_ms).as_secs_f64();
    Some(TaskLogs { data, file_descriptor: STDOUT, timestamp })
}

fn result(record: &atoll_store::BuildRecord) -> GenericResult {
    if record.state == BuildState::Succeeded {
        return success();
    }
    let failure = record.failure.as_ref();
    GenericResult {
        status: status::FAILURE,
        exception: failure.map_or_else(
            || "the build was cancelled".to_owned(),
            |failure| match &failure.hint {
                Some(hint) => format!("{}; {hint}", failure.message),
                None => failure.message.clone(),
            },
        ),
        exitcode: failure.and_then(|failure| failure.exit_code).unwrap_or(1),
    }
}
