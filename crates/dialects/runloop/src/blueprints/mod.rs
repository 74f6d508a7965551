//! Blueprints: builds of the engine, and the template versions that they made.
//!
//! A blueprint is a build, with its id. Names of blueprints are any text; the template's name is made from it
//! ([`slug`]). The parameters that answers must say back, and that devboxes begin with, go along as an argument of the
//! build that no Dockerfile uses ([`Parameters`]).

mod create;
mod list;
mod recipe;
mod view;

use std::collections::BTreeMap;

use atoll_core::build::BuildState;
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine, Target};
use atoll_store::BuildRecord;
use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::App;
use crate::devboxes::launch::Launch;
use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Manage, Path, Read};
use crate::{ids, once};

/// The argument that holds a blueprint's parameters.
const ARG: &str = "RUNLOOP_BLUEPRINT";
/// Builds that are read at once: each may have a megabyte.
const READ_COUNT: u32 = 16;

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/blueprints", post(create::create))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/blueprints", get(list::list))
        .route("/v1/blueprints/list_public", get(list::list_public))
        .route("/v1/blueprints/preview", post(create::preview))
        .route("/v1/blueprints/{blueprint}", get(read))
        .route("/v1/blueprints/{blueprint}/logs", get(view::logs))
        .route("/v1/blueprints/{blueprint}/delete", post(remove))
}

/// The parameters that a client gave a blueprint, as answers say them back.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Parameters {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dockerfile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_setup_commands: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_mounts: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_args: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch_parameters: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_policy_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_blueprint_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_blueprint_name: Option<String>,
}

impl Parameters {
    fn of(record: &BuildRecord) -> Self {
        let text = record.spec.args.get(ARG);
        let mut parameters: Self = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if parameters.name.is_empty() {
            parameters.name.clone_from(&record.spec.name);
            parameters.dockerfile.clone_from(&record.spec.dockerfile);
        }
        parameters
    }
}

/// The name of the template of a blueprint: the blueprint's where it has the form of one, else one made from it.
fn slug(name: &str) -> String {
    atoll_dialect_kit::names::label(name, "atoll runloop blueprint name", "blueprint")
}

/// The builds that a key may know of, newest first, a few at a time.
struct Builds<'a> {
    engine: &'a Engine,
    caller: &'a EngineCaller,
    states: &'a [BuildState],
    cursor: Option<String>,
    is_over: bool,
}

impl<'a> Builds<'a> {
    fn new<S>(engine: &'a Engine, caller: &'a Caller<S>, states: &'a [BuildState]) -> Self {
        Self { engine, caller: caller.engine(), states, cursor: None, is_over: false }
    }

    /// The next few; `None` when there are no more.
    async fn next(&mut self) -> Result<Option<Vec<BuildRecord>>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let cursor = self.cursor.as_deref();
        let page = self.engine.builds(self.states, cursor, Some(READ_COUNT), self.caller).await?;
        self.cursor = page.next.map(|next| next.to_string());
        self.is_over = self.cursor.is_none();
        Ok(Some(page.items))
    }
}

/// The build of a blueprint that the caller may know of.
async fn find<S>(engine: &Engine, caller: &Caller<S>, needs: Needs, text: &str) -> Result<BuildRecord> {
    let none = || Failure::not_found(format!("Blueprint {} not found", atoll_core::error::shorten(text)));
    let id = ids::blueprint(text).ok_or_else(none)?;
    let told = |error: Error| match error.code {
        Code::BuildNotFound => none(),
        _ => Failure::of(&error),
    };
    engine.authorize(caller.engine(), needs, Target::Build(id.as_str())).await.map_err(told)?;
    Ok(engine.build(&id).await.map_err(told)?.record)
}

/// The template and parameters of a devbox that names a blueprint.
#[derive(Debug)]
pub(crate) struct Origin {
    /// `name:version`.
    pub(crate) template: String,
    pub(crate) id: Option<String>,
    pub(crate) launch: Launch,
}

fn origin(record: &BuildRecord) -> Result<Origin> {
    let id = ids::of_build(&record.id);
    let Some(version) = record.template_version.filter(|_| record.state == BuildState::Succeeded) else {
        return Err(Failure::bad(format!(
            "Blueprint {id} is not built: its status is {}",
            view::status(record)
        )));
    };
    let parameters = Parameters::of(record).launch_parameters.unwrap_or_default();
    let launch = if parameters.is_null() { Launch::default() } else { Launch::read(parameters)? };
    Ok(Origin { template: format!("{}:{version}", record.spec.name), id: Some(id), launch })
}

/// The blueprint with this id.
///
/// # Errors
/// 404; 400 when it is not built.
pub(crate) async fn by_id<S>(engine: &Engine, caller: &Caller<S>, text: &str) -> Result<Origin> {
    origin(&find(engine, caller, Needs::READ, text).await?)
}

/// The newest blueprint of this name that is built; also a template of this name that another API made.
///
/// # Errors
/// 404.
pub(crate) async fn by_name<S>(engine: &Engine, caller: &Caller<S>, name: &str) -> Result<Origin> {
    let slug = slug(name);
    let mut built = Builds::new(engine, caller, &[BuildState::Succeeded]);
    while let Some(few) = built.next().await.map_err(|error| Failure::of(&error))? {
        for record in few.iter().filter(|record| record.spec.name == slug) {
            if engine.template(&slug, record.template_version).await.is_ok() {
                return origin(record);
            }
        }
    }
    match engine.template(&slug, None).await {
        Ok(record) => {
            let template = format!("{}:{}", record.name, record.version);
            Ok(Origin { template, id: None, launch: Launch::default() })
        }
        Err(error) if error.code == Code::TemplateNotFound => {
            let name = atoll_core::error::shorten(name);
            Err(Failure::not_found(format!("no blueprint named '{name}' is built")))
        }
        Err(error) => Err(Failure::of(&error)),
    }
}

/// One blueprint.
async fn read(caller: Caller<Read>, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = find(engine, &caller, Needs::READ, &id).await?;
    Ok(Json(view::view(engine, &record).await))
}

/// Removes the template that was built. Devboxes that were made from it go on.
async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = find(engine, &caller, Needs::MANAGE, &id).await?;
    let removed = match (record.state, record.template_version) {
        (BuildState::Waiting | BuildState::Queued | BuildState::Running, _) => {
            engine.cancel_build(&record.id).await.map(drop)
        }
        (_, Some(version)) => engine.delete_template(&record.spec.name, Some(version), caller.engine()).await,
        (_, None) => Ok(()),
    };
    match removed {
        Err(error) if error.code != Code::TemplateNotFound => Err(Failure::of(&error)),
        Ok(()) | Err(_) => Ok(Json(json!({}))),
    }
}
