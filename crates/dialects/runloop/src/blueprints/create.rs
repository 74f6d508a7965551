//! Building a blueprint.

use std::collections::BTreeMap;

use atoll_core::Error;
use atoll_core::build::{BuildSpec, BuildState, TEMPLATE_SCHEME};
use atoll_core::service::Services;
use atoll_core::sharing::Needs;
use atoll_dialect_kit::promise::Promise;
use atoll_engine::Engine;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ARG, Parameters, recipe, slug, view};
use crate::devboxes::launch::{Launch, says};
use crate::error::{Failure, Result};
use crate::objects::Opened;
use crate::once::Promised;
use crate::policies;
use crate::request::{Caller, Json, Manage, Read};
use crate::{App, disk};

/// The blueprint that a client asks for. Fields that are not named here are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Create {
    #[serde(flatten)]
    parameters: Parameters,
    build_context: Option<Context>,
    code_mounts: Option<Value>,
    secrets: Option<Value>,
    services: Option<Value>,
}

/// The files of a build: an object that is an archive.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Context {
    Object { object_id: String },
}

impl Create {
    /// Opens the files of the build.
    async fn context<S>(&self, app: &App, caller: &Caller<S>) -> Result<Option<Opened>> {
        match &self.build_context {
            Some(Context::Object { object_id }) => Opened::new(app, caller, object_id).await.map(Some),
            None => Ok(None),
        }
    }

    fn check(&self) -> Result<()> {
        let unsupported = |what: &str, hint: &str| {
            Err(Failure::bad(format!("{what}: not supported by this server; {hint}")))
        };
        if self.parameters.name.is_empty() {
            return Err(Failure::bad("name: is missing"));
        }
        if says(self.code_mounts.as_ref()) {
            return unsupported("code_mounts", "clone in the Dockerfile, or give them to the devbox");
        }
        if says(self.secrets.as_ref()) {
            return unsupported("secrets", "values of secrets never enter a build");
        }
        if says(self.services.as_ref()) {
            return unsupported("services", "start them with launch_commands");
        }
        Ok(())
    }

    /// The image or template that the build begins with, where its Dockerfile does not say.
    async fn base<S>(&self, caller: &Caller<S>, engine: &Engine) -> Result<String> {
        let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let asked = (named(&self.parameters.base_blueprint_id), named(&self.parameters.base_blueprint_name));
        let has_dockerfile =
            self.parameters.dockerfile.as_deref().is_some_and(|text| !text.trim().is_empty());
        let origin = match asked {
            (None, None) => return Ok(engine.default_image()),
            _ if has_dockerfile => {
                return Err(Failure::bad("dockerfile: give it or a base blueprint, not both"));
            }
            (Some(id), _) => super::by_id(engine, caller, &id).await?,
            (None, Some(name)) => super::by_name(engine, caller, &name).await?,
        };
        // The base may have been deleted since it was built.
        engine.find_template(&origin.template).await.map_err(|error| Failure::of(&error))?;
        Ok(format!("{TEMPLATE_SCHEME}{}", origin.template))
    }

    async fn spec<S>(self, image: &str, app: &App, caller: &Caller<S>) -> Result<BuildSpec> {
        self.check()?;
        let parameters = self.parameters;
        let launch = match &parameters.launch_parameters {
            Some(value) if says(Some(value)) => Launch::read(value.clone())?,
            Some(_) | None => Launch::default(),
        };
        launch.check()?;
        let steps = policies::find(app, caller, parameters.network_policy_id.as_ref()).await?;
        let devboxes = policies::find(app, caller, launch.network_policy_id.as_ref()).await?;
        let dockerfile = recipe::dockerfile(&parameters, image)?;
        let mut args = parameters.build_args.clone().unwrap_or_default();
        let told = serde_json::to_string(&parameters).map_err(|error| Failure::bad(error.to_string()))?;
        args.insert(ARG.to_owned(), told);
        Ok(BuildSpec {
            name: slug(&parameters.name),
            tags: Vec::new(),
            dockerfile: Some(dockerfile),
            steps: None,
            ignore: None,
            args,
            target: None,
            no_cache: false,
            start: None,
            ready: None,
            restart: None,
            verify: false,
            memory: false,
            isolation: None,
            resources: launch.resources()?,
            labels: BTreeMap::new(),
            egress: steps.map(|policy| policy.egress()).transpose()?,
            template_egress: devboxes.map(|policy| policy.egress()).transpose()?,
            ttl_ms: None,
            idle_timeout_ms: None,
            timeout_ms: None,
            services: Services::new(),
        })
    }
}

/// `POST /v1/blueprints`.
pub(super) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Promised(promise): Promised,
    Json(asked): Json<Create>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let mut id = promise.build();
    if promise.renewed
        && let Ok(made) = super::find(engine, &caller, Needs::READ, id.as_str()).await
    {
        // An earlier server began the build, and was killed before it answered. A build that failed is begun again.
        if made.state != BuildState::Failed {
            return Ok(Json(view::view(engine, &made).await));
        }
        id = Promise::new().map_err(|error| disk::broken(&error))?.build();
    }
    let base = asked.base(&caller, engine).await?;
    let context = asked.context(&app, &caller).await?;
    let spec = asked.spec(&base, &app, &caller).await?;
    let made =
        engine.create_build_as(id, spec, caller.engine()).await.map_err(|error| Failure::of(&error))?;
    if made.needs_context {
        let sent = match context {
            Some(context) => engine.put_build_context(&made.record.id, context.into_tar()).await,
            None => Err(Error::invalid("build_context", "the Dockerfile copies files, and there are none")),
        };
        if let Err(error) = sent {
            drop(engine.cancel_build(&made.record.id).await);
            return Err(Failure::of(&error));
        }
    }
    Ok(Json(view::view(engine, &made.record).await))
}

/// `POST /v1/blueprints/preview`: the Dockerfile that would be built.
pub(super) async fn preview(
    caller: Caller<Read>,
    State(app): State<App>,
    Json(asked): Json<Create>,
) -> Result<Json<Value>> {
    let base = asked.base(&caller, app.host.engine()).await?;
    let spec = asked.spec(&base, &app, &caller).await?;
    Ok(Json(json!({"dockerfile": spec.dockerfile})))
}
