//! Listing templates.

use atoll_core::spec::Resources;
use atoll_engine::Engine;
use atoll_store::TemplateRecord;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BASE, Found, find, id_of, no_template};
use crate::App;
use crate::envd;
use crate::error::{Failure, Result};
use crate::request::{Caller, Manage, Path, Query, Read};
use crate::sandboxes::list::{NEXT, limit};
use crate::time::of_ms;

const MIB: u64 = 1 << 20;

/// A build id in the form that the clients read, made from a template's version: the build itself is not remembered.
pub(super) fn build_id(record: &TemplateRecord) -> String {
    uuid_of(record.id.as_str())
}

/// An id in the form that the clients read, made from a text.
pub(super) fn uuid_of(text: &str) -> String {
    let hash = blake3::derive_key("atoll e2b build id", text.as_bytes());
    let hex = blake3::Hash::from_bytes(hash).to_hex();
    let hex = hex.as_str();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

fn item(record: &TemplateRecord) -> Value {
    let resources = record.spec.resources.over(Resources::default());
    json!({
        "templateID": id_of(&record.name),
        "buildID": build_id(record),
        "cpuCount": resources.cpu_millis.div_ceil(1000).max(1),
        "memoryMB": resources.memory_bytes / MIB,
        "diskSizeMB": resources.disk_bytes / MIB,
        "public": false,
        "aliases": [record.name],
        "names": [record.name],
        "createdAt": of_ms(record.created_ms),
        "updatedAt": of_ms(record.created_ms),
        "createdBy": null,
        "lastSpawnedAt": null,
        "spawnCount": 0,
        "buildCount": record.version,
        "envdVersion": envd::VERSION,
        "buildStatus": "ready",
    })
}

/// `GET /templates`.
pub(super) async fn all(_: Caller<Read>, State(app): State<App>) -> Result<axum::Json<Vec<Value>>> {
    let engine = app.host.engine();
    let all = engine.templates().await.map_err(|error| Failure::of(&error))?;
    Ok(axum::Json(all.iter().map(item).collect()))
}

/// The page that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Paged {
    limit: Option<i64>,
    #[serde(rename = "nextToken")]
    after: Option<String>,
}

impl Paged {
    /// One page of records, in the order in which they come; `key` gives the token of the next page.
    fn cut<'r>(
        &self,
        all: &'r [TemplateRecord],
        key: impl Fn(&TemplateRecord) -> String,
    ) -> Result<(&'r [TemplateRecord], Option<HeaderValue>)> {
        let limit = limit(self.limit)?;
        let from = match self.after.as_deref().filter(|after| !after.is_empty()) {
            None => 0,
            Some(after) => {
                let last = all.iter().position(|record| key(record) == after);
                1 + last.ok_or_else(|| {
                    Failure::bad("nextToken: pass the x-next-token of the last page as it is")
                })?
            }
        };
        let page = all.get(from..).unwrap_or_default();
        let more = page.len() > limit;
        let page = page.get(..limit).unwrap_or(page);
        let next = page.last().filter(|_| more).and_then(|last| key(last).parse().ok());
        Ok((page, next))
    }
}

fn with_next(body: impl IntoResponse, next: Option<HeaderValue>) -> Response {
    let mut response = body.into_response();
    if let Some(next) = next {
        response.headers_mut().insert(NEXT, next);
    }
    response
}

/// `GET /v2/templates`.
pub(super) async fn page(
    _: Caller<Read>,
    State(app): State<App>,
    Query(paged): Query<Paged>,
) -> Result<Response> {
    let all = app.host.engine().templates().await.map_err(|error| Failure::of(&error))?;
    let (page, next) = paged.cut(&all, |record| record.name.clone())?;
    let items: Vec<Value> = page.iter().map(item).collect();
    Ok(with_next(axum::Json(items), next))
}

/// `GET /default-templates`: the templates with the names that the clients use by default.
pub(super) async fn defaults(_: Caller<Read>, State(app): State<App>) -> Result<axum::Json<Vec<Value>>> {
    let engine = app.host.engine();
    let all = engine.templates().await.map_err(|error| Failure::of(&error))?;
    let items = all.iter().filter(|record| record.name == BASE || record.name == "code-interpreter-v1");
    Ok(axum::Json(items.map(item).collect()))
}

pub(super) async fn record<S>(
    caller: &Caller<S>,
    engine: &Engine,
    reference: &str,
) -> Result<TemplateRecord> {
    match find(engine, reference, caller.engine()).await? {
        Found::Template(record) => Ok(*record),
        Found::Base | Found::Snapshot { .. } => Err(no_template(reference)),
    }
}

/// `GET /templates/{template}`: its builds are its versions, the newest first.
pub(super) async fn one(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(reference): Path<String>,
    Query(paged): Query<Paged>,
) -> Result<Response> {
    let engine = app.host.engine();
    let meant = record(&caller, engine, &reference).await?;
    let versions = engine.template_versions(&meant.name).await.map_err(|error| Failure::of(&error))?;
    let (page, next) = paged.cut(&versions, build_id)?;
    let builds: Vec<Value> = page
        .iter()
        .map(|version| {
            let told = item(version);
            json!({
                "buildID": told["buildID"], "status": "ready", "createdAt": told["createdAt"],
                "updatedAt": told["updatedAt"], "finishedAt": told["updatedAt"],
                "cpuCount": told["cpuCount"], "memoryMB": told["memoryMB"], "diskSizeMB": told["diskSizeMB"],
                "envdVersion": told["envdVersion"],
            })
        })
        .collect();
    let mut item = item(&meant);
    item["builds"] = builds.into();
    Ok(with_next(axum::Json(item), next))
}

/// `PATCH /templates/{template}`: the server decides which keys may use a template; there is nothing to publish.
pub(super) async fn publish(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(reference): Path<String>,
) -> Result<axum::Json<Value>> {
    let record = record(&caller, app.host.engine(), &reference).await?;
    Ok(axum::Json(json!({"names": [record.name]})))
}

/// `GET /teams`: there is one team.
pub(super) async fn teams(_: Caller<Read>) -> axum::Json<Value> {
    axum::Json(json!([{"teamID": "atoll", "name": "atoll", "apiKey": "", "isDefault": true}]))
}
