//! Tags: names for versions of a template.
//!
//! A build of `name:tag` points the tag to what it makes, one of `name` alone the tag `default`. A reference without a
//! tag means `default`; where nothing has that tag, as with templates that other clients made, the newest version.

use atoll_core::{Code, spec};
use atoll_engine::Engine;
use atoll_store::TemplateRecord;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{build_id, record};
use super::{DEFAULT_TAG, no_template};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Manage, Query, Read};
use crate::time::of_ms;

/// Tags as they are kept: in lower case, each once; [`DEFAULT_TAG`] when there are none.
pub(super) fn checked(tags: &[&str]) -> Result<Vec<String>> {
    let mut kept: Vec<String> = tags.iter().map(|tag| tag.to_ascii_lowercase()).collect();
    if kept.is_empty() {
        kept.push(DEFAULT_TAG.to_owned());
    }
    kept.sort_unstable();
    kept.dedup();
    spec::template_tags("tags", &kept).map_err(|error| Failure::of(&error))?;
    Ok(kept)
}

/// The version of the template `name` that a tag means, if there is one.
pub(super) async fn tagged(engine: &Engine, name: &str, tag: Option<&str>) -> Result<Option<TemplateRecord>> {
    let tag = tag.unwrap_or(DEFAULT_TAG).to_ascii_lowercase();
    let found = match engine.tagged_template(name, &tag).await {
        Err(error) if error.code == Code::TemplateNotFound && tag == DEFAULT_TAG => {
            engine.template(name, None).await
        }
        found => found,
    };
    match found {
        Ok(record) => Ok(Some(record)),
        Err(error) if matches!(error.code, Code::TemplateNotFound | Code::InvalidArgument) => Ok(None),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// A tag, and the version that it means.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) tag: String,
    pub(super) record: TemplateRecord,
    pub(super) set_ms: u64,
}

/// The tags of the template that a reference means, by name.
pub(super) async fn of(caller: &Caller<Read>, app: &App, reference: &str) -> Result<Vec<Assigned>> {
    let engine = app.host.engine();
    let meant = record(caller, engine, reference).await?;
    let fail = |error| Failure::of(&error);
    let tags = engine.template_tags(&meant.name).await.map_err(fail)?;
    let mut found = Vec::new();
    if tags.iter().all(|tag| tag.tag != DEFAULT_TAG) {
        let newest = engine.template(&meant.name, None).await.map_err(fail)?;
        let set_ms = newest.created_ms;
        found.push(Assigned { tag: DEFAULT_TAG.to_owned(), record: newest, set_ms });
    }
    for tag in tags {
        let version = engine.template(&meant.name, Some(tag.version)).await.map_err(fail)?;
        found.push(Assigned { tag: tag.tag, record: version, set_ms: tag.set_ms });
    }
    found.sort_by(|one, other| one.tag.cmp(&other.tag));
    Ok(found)
}

/// `GET /templates/{template}/tags`.
pub(super) async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(reference): Path<String>,
) -> Result<axum::Json<Vec<Value>>> {
    let item = |one: &Assigned| json!({"tag": one.tag, "buildID": build_id(&one.record), "createdAt": of_ms(one.set_ms)});
    Ok(axum::Json(of(&caller, &app, &reference).await?.iter().map(item).collect()))
}

/// `GET /templates/{template}/tags/count`.
pub(super) async fn count(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(reference): Path<String>,
) -> Result<axum::Json<Value>> {
    Ok(axum::Json(json!({"total": of(&caller, &app, &reference).await?.len()})))
}

/// Which tag is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Which {
    tag: String,
}

/// `GET /templates/{template}/tags/exists`.
pub(super) async fn exists(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(reference): Path<String>,
    Query(which): Query<Which>,
) -> Result<axum::Json<Value>> {
    let tag = named(&[which.tag])?.remove(0);
    let exists = of(&caller, &app, &reference).await?.iter().any(|one| one.tag == tag);
    Ok(axum::Json(json!({"exists": exists, "normalizedTag": tag})))
}

/// Tags that a template is to have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Assign {
    target: String,
    tags: Vec<String>,
}

/// `POST /templates/tags`: points tags to the version that another reference means.
pub(super) async fn assign(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(asked): Json<Assign>,
) -> Result<(StatusCode, axum::Json<Value>)> {
    let engine = app.host.engine();
    let tags = named(&asked.tags)?;
    if let Some(tag) = super::tag_of(&asked.target) {
        checked(&[tag])?;
    }
    let meant = record(&caller, engine, &asked.target).await?;
    let done = engine.tag_template(&meant.name, Some(meant.version), &tags, caller.engine()).await;
    done.map_err(|error| Failure::of(&error))?;
    Ok((StatusCode::CREATED, axum::Json(json!({"tags": tags, "buildID": build_id(&meant)}))))
}

/// Tags that a template is to lose.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Remove {
    name: String,
    tags: Vec<String>,
}

/// `DELETE /templates/tags`.
pub(super) async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(asked): Json<Remove>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let tags = named(&asked.tags)?;
    let name = record(&caller, engine, super::name_of(&asked.name)).await?.name;
    match engine.untag_template(&name, &tags, caller.engine()).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) if error.code == Code::TemplateNotFound => {
            Err(no_template(&format!("{name}:{}", tags.join(","))))
        }
        Err(error) => Err(Failure::of(&error)),
    }
}

/// Tags that a call must name.
fn named(tags: &[String]) -> Result<Vec<String>> {
    if tags.is_empty() {
        return Err(Failure::bad("tags: are missing"));
    }
    checked(&tags.iter().map(String::as_str).collect::<Vec<_>>())
}
