//! Templates: their names, and what a creation that names one begins with.
//!
//! A template of the engine has a name; its id here is made from that name, so that the server need not store it. A
//! snapshot can stand wherever a template can.

mod archives;
mod build;
mod groups;
mod list;
mod status;
mod tags;
mod translate;

use atoll_core::id::SnapshotId;
use atoll_core::sharing::Needs;
use atoll_core::snapshot::{Manifest, SnapshotKind};
use atoll_core::spec::{IsolationLevel, SandboxDraft};
use atoll_core::{Code, Error};
use atoll_engine::{Caller as EngineCaller, Engine};
use atoll_store::TemplateRecord;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, patch, post, put};
use http::StatusCode;
use serde_json::json;

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Manage, Path, Read};

pub(crate) use archives::Addresses;
pub(crate) use build::Orders;

/// The template of clients that name none: a template of this name, or else the server's default image.
pub(crate) const BASE: &str = "base";
/// The tag of a reference that has none.
pub(crate) const DEFAULT_TAG: &str = "default";
/// Characters of an id.
const ID_CHARS: usize = 20;

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/templates/aliases/{alias}", get(exists))
        .route("/v3/templates", post(build::order))
        .route("/templates", get(list::all))
        .route("/v2/templates", get(list::page))
        .route("/default-templates", get(list::defaults))
        .route("/templates/{template}", get(list::one).delete(remove).patch(list::publish))
        .route("/v2/templates/{template}", patch(list::publish))
        .route("/templates/{template}/files/{hash}", get(archives::link))
        .route("/uploads", put(archives::upload))
        .route("/v2/templates/{template}/builds/{build}", post(build::begin))
        .route("/templates/{template}/builds/{build}/status", get(status::status))
        .route("/templates/{template}/builds/{build}/logs", get(status::logs_of))
        .route("/templates/tags", post(tags::assign).delete(tags::remove))
        .route("/templates/{template}/tags", get(tags::list))
        .route("/templates/{template}/tags/count", get(tags::count))
        .route("/templates/{template}/tags/exists", get(tags::exists))
        .route("/templates/{template}/tags/groups", get(groups::all))
        .route("/templates/{template}/tags/{tag}/assignments", get(groups::assignments))
        .route("/teams", get(list::teams))
}

/// The id of the template of this name.
pub(crate) fn id_of(name: &str) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let hash = blake3::derive_key("atoll e2b template id", name.as_bytes());
    hash.iter().take(ID_CHARS).map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

/// The name in `namespace/name:tag`: all namespaces share the same names.
pub(crate) fn name_of(reference: &str) -> &str {
    let bare = reference.rsplit('/').next().unwrap_or(reference);
    bare.split(':').next().unwrap_or(bare)
}

/// The tag in a reference, if it has one.
fn tag_of(reference: &str) -> Option<&str> {
    reference.rsplit('/').next()?.split_once(':').map(|(_, tag)| tag)
}

/// What a creation begins with: a template, a snapshot, or the default image.
#[derive(Debug)]
pub(crate) enum Found {
    Template(Box<TemplateRecord>),
    Snapshot {
        id: SnapshotId,
        memory: bool,
        isolation: IsolationLevel,
        user: String,
        workdir: Option<String>,
        told: String,
    },
    Base,
}

/// What the client is told about the beginning, and the settings that the draft gets from it.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) id: String,
    pub(crate) alias: Option<String>,
    pub(crate) isolation: Option<IsolationLevel>,
    /// No template or snapshot names the user that runs commands.
    pub(crate) default_user: bool,
}

impl Found {
    /// Makes a draft begin with it.
    pub(crate) fn apply(self, draft: &mut SandboxDraft) -> Origin {
        match self {
            Self::Template(record) => {
                draft.template = Some(format!("{}:{}", record.name, record.version));
                Origin {
                    id: id_of(&record.name),
                    default_user: record.spec.user.is_none(),
                    isolation: record.spec.isolation,
                    alias: Some(record.name),
                }
            }
            Self::Snapshot { id, memory, isolation, told, .. } => {
                draft.snapshot = Some(id.to_string());
                draft.memory = memory;
                Origin { id: told, alias: None, isolation: Some(isolation), default_user: false }
            }
            Self::Base => {
                Origin { id: id_of(BASE), alias: Some(BASE.to_owned()), isolation: None, default_user: true }
            }
        }
    }
}

/// Templates that E2B has for everybody. Here the operator makes them.
const DEFAULTS: [&str; 2] = ["code-interpreter-v1", "desktop"];

fn no_template(reference: &str) -> Failure {
    let name = name_of(reference);
    let hint = if DEFAULTS.contains(&name) && tag_of(reference).is_none() {
        format!(": 'atoll template build-defaults {name}' makes it")
    } else {
        String::new()
    };
    let reference: String = reference.chars().take(128).collect();
    Failure::not_found(format!("template '{reference}' not found{hint}"))
}

/// The version of a template that a reference means: its name or its id, and maybe a tag.
async fn template(engine: &Engine, reference: &str) -> Result<Option<TemplateRecord>> {
    let (name, tag) = (name_of(reference).to_ascii_lowercase(), tag_of(reference));
    let found = tags::tagged(engine, &name, tag).await?;
    if found.is_some() || name.len() != ID_CHARS {
        return Ok(found);
    }
    let all = engine.templates().await.map_err(|error| Failure::of(&error))?;
    match all.into_iter().find(|record| id_of(&record.name) == name) {
        Some(record) => tags::tagged(engine, &record.name, tag).await,
        None => Ok(None),
    }
}

/// The snapshot that a reference means, if the caller may do with it what `needs` says; `None` if it may not know of
/// it.
async fn snapshot(
    engine: &Engine,
    reference: &str,
    needs: Needs,
    caller: &EngineCaller,
) -> Result<Option<atoll_store::SnapshotRecord>> {
    let name = name_of(reference).to_ascii_lowercase();
    let text = if name.parse::<SnapshotId>().is_ok() {
        name
    } else {
        format!("{name}:{}", tag_of(reference).unwrap_or(DEFAULT_TAG))
    };
    match engine.usable_snapshot(&text, needs, caller).await {
        Ok(record) => Ok(Some(record)),
        Err(error) if matches!(error.code, Code::SnapshotNotFound | Code::InvalidArgument) => Ok(None),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// What a creation with this reference begins with.
///
/// # Errors
/// 404.
pub(crate) async fn find(engine: &Engine, reference: &str, caller: &EngineCaller) -> Result<Found> {
    if reference.is_empty() {
        return Err(Failure::bad("templateID: is missing"));
    }
    if let Some(record) = template(engine, reference).await? {
        return Ok(Found::Template(Box::new(record)));
    }
    if let Some(record) = snapshot(engine, reference, Needs::READ, caller).await? {
        let memory = record.manifest.kind == SnapshotKind::Memory;
        let told = reference.to_owned();
        let Manifest { isolation, user, workdir, .. } = record.manifest;
        return Ok(Found::Snapshot { id: record.id, memory, isolation, user, workdir, told });
    }
    let name = name_of(reference);
    if name == BASE || name == id_of(BASE) { Ok(Found::Base) } else { Err(no_template(reference)) }
}

/// Whether a template or snapshot with this name exists.
async fn exists(caller: Caller<Read>, State(app): State<App>, Path(alias): Path<String>) -> Result<Response> {
    let id = match find(app.host.engine(), &alias, caller.engine()).await? {
        Found::Template(record) => id_of(&record.name),
        Found::Snapshot { told, .. } => told,
        Found::Base => id_of(BASE),
    };
    Ok(axum::Json(json!({"templateID": id, "public": false})).into_response())
}

/// Removes a template with all its versions, the version that a tag means, or a snapshot.
async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(reference): Path<String>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let gone = |error: Error| match error.code {
        Code::TemplateNotFound | Code::SnapshotNotFound => no_template(&reference),
        _ => Failure::of(&error),
    };
    if let Some(record) = template(engine, &reference).await? {
        let version = tag_of(&reference).map(|_| record.version);
        engine.delete_template(&record.name, version, caller.engine()).await.map_err(gone)?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let found = snapshot(engine, &reference, Needs::MANAGE, caller.engine())
        .await?
        .ok_or_else(|| no_template(&reference))?;
    engine.delete_snapshot(&found.id, None, caller.engine()).await.map_err(gone)?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        assert_eq!(name_of("ns/my:tag"), "my");
        assert_eq!((name_of("my"), tag_of("my"), tag_of("ns/my:v1")), ("my", None, Some("v1")));
        let id = id_of("base");
        assert_eq!(id.len(), ID_CHARS);
        assert!(id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
        assert_ne!(id, id_of("other"));
    }

    #[test]
    fn templates_that_e2b_has_are_made_by_a_command() {
        let said = |reference: &str| no_template(reference).message;
        let hint = "'atoll template build-defaults code-interpreter-v1' makes it";
        assert_eq!(said("code-interpreter-v1"), format!("template 'code-interpreter-v1' not found: {hint}"));
        assert_eq!(said("desktop:v2"), "template 'desktop:v2' not found");
        assert_eq!(said("mine"), "template 'mine' not found");
    }
}
