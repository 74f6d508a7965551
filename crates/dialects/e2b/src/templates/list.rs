//! Listing templates.

use atoll_core::spec::Resources;
use atoll_engine::Engine;
use atoll_store::TemplateRecord;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{BASE, Found, find, id_of, no_template};
use crate::App;
use crate::envd;
use crate::error::{Failure, Result};
use crate::request::{Caller, Manage, Read};
use crate::time::of_ms;

const MIB: u64 = 1 << 20;

/// A build id in the form that the clients read, made from a template's version: what built it is not remembered.
pub(super) fn build_id(record: &TemplateRecord) -> String {
    let hash = blake3::derive_key("atoll e2b build id", record.id.as_str().as_bytes());
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

/// `GET /default-templates`: what has the names that the clients begin with.
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

/// `GET /templates/{template}`.
pub(super) async fn one(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(reference): Path<String>,
) -> Result<axum::Json<Value>> {
    let engine = app.host.engine();
    let record = record(&caller, engine, &reference).await?;
    let mut item = item(&record);
    item["builds"] = json!([{
        "buildID": item["buildID"], "status": "ready", "createdAt": item["createdAt"],
        "updatedAt": item["updatedAt"], "cpuCount": item["cpuCount"], "memoryMB": item["memoryMB"],
        "finishedAt": item["updatedAt"],
    }]);
    Ok(axum::Json(item))
}

/// `PATCH /templates/{template}`: who may use a template is the server's matter; there is nothing to publish.
pub(super) async fn publish(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(reference): Path<String>,
) -> Result<axum::Json<Value>> {
    let record = record(&caller, app.host.engine(), &reference).await?;
    Ok(axum::Json(json!({"names": [record.name]})))
}

/// `GET /teams`: there is one.
pub(super) async fn teams(_: Caller<Read>) -> axum::Json<Value> {
    axum::Json(json!([{"teamID": "atoll", "name": "atoll", "apiKey": "", "isDefault": true}]))
}
