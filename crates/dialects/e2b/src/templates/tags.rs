//! Tags: names for versions of a template.
//!
//! A build of `name:tag` points the tag to the version that it makes, a build of `name` alone the tag `default`. A
//! reference without a tag means `default`; where no version has that tag, as with templates that other clients made,
//! it means the newest version.

use std::iter;

use atoll_core::{Code, spec};
use atoll_engine::Engine;
use atoll_store::TemplateRecord;
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{build_id, record};
use super::{DEFAULT_TAG, no_template};
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Manage, Path, Query, Read};
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

/// A version that a tag means, or meant before.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) record: TemplateRecord,
    pub(super) set_ms: u64,
    /// How many newer assignments of the tag name the same version at the same time: tells them apart.
    pub(super) again: usize,
}

/// A tag, and the versions that it has meant.
#[derive(Debug)]
pub(super) struct Tag {
    pub(super) tag: String,
    /// The version that it means now.
    pub(super) now: Assigned,
    /// The versions that it meant before, the newest first.
    pub(super) before: Vec<Assigned>,
}

impl Tag {
    /// The version that it means, and those that it meant before, the newest first.
    pub(super) fn assignments(&self) -> impl Iterator<Item = &Assigned> {
        iter::once(&self.now).chain(&self.before)
    }
}

/// The tags of the template that a reference means, by name.
pub(super) async fn of(caller: &Caller<Read>, app: &App, reference: &str) -> Result<Vec<Tag>> {
    let engine = app.host.engine();
    let meant = record(caller, engine, reference).await?;
    let fail = |error| Failure::of(&error);
    let assignments = engine.template_tag_assignments(&meant.name).await.map_err(fail)?;
    let versions = engine.template_versions(&meant.name).await.map_err(fail)?;
    let mut found: Vec<Tag> = Vec::new();
    for one in assignments {
        // A version that was removed meanwhile took its tags along.
        let Some(record) = versions.iter().find(|version| version.version == one.version) else { continue };
        let mut assigned = Assigned { record: record.clone(), set_ms: one.set_ms, again: 0 };
        match found.last_mut().filter(|tag| tag.tag == one.tag) {
            Some(tag) => {
                let newer = tag.before.iter().rev().chain(iter::once(&tag.now));
                let of_that_time = newer.take_while(|newer| newer.set_ms == assigned.set_ms);
                assigned.again = of_that_time.filter(|newer| newer.record.id == assigned.record.id).count();
                tag.before.push(assigned);
            }
            None => found.push(Tag { tag: one.tag, now: assigned, before: Vec::new() }),
        }
    }
    if found.iter().all(|tag| tag.tag != DEFAULT_TAG) {
        let newest = engine.template(&meant.name, None).await.map_err(fail)?;
        let now = Assigned { set_ms: newest.created_ms, record: newest, again: 0 };
        found.push(Tag { tag: DEFAULT_TAG.to_owned(), now, before: Vec::new() });
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
    let item = |one: &Tag| json!({"tag": one.tag, "buildID": build_id(&one.now.record), "createdAt": of_ms(one.now.set_ms)});
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

/// The tag that the client asks for.
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

/// Tags that the client wants a template to have.
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

/// Tags that the client wants removed from a template.
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
