//! Warm pools: Atoll's pools of templates, as the protocol has them. Listings show the pools that a call set up, by
//! this API or another; a pool's id names its template.

use atoll_core::limits::POOL_MAX_COUNT;
use atoll_core::pool::PoolSpec;
use atoll_dialect_kit::request::Caller;
use atoll_dialect_kit::time;
use atoll_engine::{Engine, PoolName, PoolView};
use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::origin::{self, Origin};
use super::snapshots;
use crate::App;
use crate::error::{Failure, Result};
use crate::request::{Json, Path};
use crate::view::{ORGANIZATION, TARGET};
use crate::who::{Manage, Read};

/// Changes of pools happen one after the other.
const TURN: &str = "warm pools";
/// The user that runs programs where the template names none.
const ROOT: &str = "root";

/// The pool that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Create {
    snapshot: String,
    pool: f64,
}

/// The new size of a pool.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Update {
    pool: f64,
}

/// A pool that always has so many sandboxes.
fn size(pool: f64) -> Result<PoolSpec> {
    let whole = (1..=POOL_MAX_COUNT).find(|count| (f64::from(*count) - pool).abs() < f64::EPSILON);
    let bad = || Failure::bad(format!("pool: must be a whole number from 1 to {POOL_MAX_COUNT}"));
    whole.map(PoolSpec::fixed).ok_or_else(bad)
}

/// Names of templates can stand in paths. There is one pool of an image here, and none that the server made by itself.
fn id(name: &PoolName) -> String {
    match name {
        PoolName::Template(name) => format!("template-{name}"),
        PoolName::Image(_) | PoolName::Demand(_) => "image".to_owned(),
    }
}

async fn shown(engine: &Engine, view: &PoolView, set_ms: u64) -> Result<Value> {
    let template = match &view.name {
        PoolName::Template(name) => origin::template(engine, name).await?,
        PoolName::Image(_) | PoolName::Demand(_) => None,
    };
    let snapshot = match &template {
        Some(record) => snapshots::of_template(record),
        None => snapshots::of_image(&engine.default_image()),
    };
    let (user, env) = template.map(|record| (record.spec.user, record.spec.env)).unwrap_or_default();
    Ok(json!({
        "id": id(&view.name),
        "organizationId": ORGANIZATION,
        "snapshot": snapshot["name"],
        "target": TARGET,
        "pool": view.spec.min,
        "currentSize": view.ready,
        "cpu": snapshot["cpu"],
        "mem": snapshot["mem"],
        "disk": snapshot["disk"],
        "osUser": user.as_deref().unwrap_or(ROOT),
        "env": env,
        "errorReason": view.problem,
        "createdAt": time::iso(set_ms),
        "updatedAt": time::iso(set_ms),
    }))
}

/// The pools whose templates or images are snapshots in this protocol.
async fn all(engine: &Engine) -> Result<Vec<(PoolView, u64)>> {
    let mut all = engine.set_pools().await?;
    let default = PoolName::Image(engine.default_image());
    all.retain(|(view, _)| matches!(view.name, PoolName::Template(_)) || view.name == default);
    Ok(all)
}

async fn find(engine: &Engine, text: &str) -> Result<PoolName> {
    let found = all(engine).await?.into_iter().map(|(view, _)| view.name).find(|name| id(name) == text);
    found.ok_or_else(|| {
        Failure::not_found(format!("Warm pool {} not found", atoll_core::error::shorten(text)))
    })
}

/// `GET /warm-pools`.
pub(super) async fn list(_: Caller<Read>, State(app): State<App>) -> Result<Json<Vec<Value>>> {
    let engine = app.host.engine();
    let mut items = Vec::new();
    for (view, set_ms) in all(engine).await? {
        items.push(shown(engine, &view, set_ms).await?);
    }
    Ok(Json(items))
}

/// `POST /warm-pools`.
pub(super) async fn create(
    caller: Caller<Manage>,
    State(app): State<App>,
    Json(asked): Json<Create>,
) -> Result<(StatusCode, Json<Value>)> {
    let engine = app.host.engine();
    engine.check_common(caller.engine())?;
    let spec = size(asked.pool)?;
    if asked.snapshot.is_empty() {
        return Err(Failure::bad("snapshot: is missing"));
    }
    let name = match origin::find(engine, caller.engine(), Some(&asked.snapshot)).await? {
        Origin::Template(record) => PoolName::Template(record.name),
        Origin::Image => PoolName::Image(engine.default_image()),
        Origin::Snapshot(_) => {
            return Err(Failure::bad(
                "snapshot: a warm pool is of a snapshot that was built of an image, not of one that was taken of a sandbox",
            ));
        }
    };
    let _turn = app.turns.take(TURN).await;
    if all(engine).await?.iter().any(|(view, _)| view.name == name) {
        let snapshot = atoll_core::error::shorten(&asked.snapshot);
        return Err(Failure::conflict(format!("there is a warm pool of the snapshot {snapshot} already")));
    }
    let view = engine.put_pool(name, spec).await?;
    Ok((StatusCode::CREATED, Json(shown(engine, &view, engine.now_ms()).await?)))
}

/// `PATCH /warm-pools/{id}`.
pub(super) async fn update(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(text): Path<String>,
    Json(asked): Json<Update>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    engine.check_common(caller.engine())?;
    let spec = size(asked.pool)?;
    let _turn = app.turns.take(TURN).await;
    let view = engine.put_pool(find(engine, &text).await?, spec).await?;
    Ok(Json(shown(engine, &view, engine.now_ms()).await?))
}

/// `DELETE /warm-pools/{id}`.
pub(super) async fn remove(
    caller: Caller<Manage>,
    State(app): State<App>,
    Path(text): Path<String>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    engine.check_common(caller.engine())?;
    let _turn = app.turns.take(TURN).await;
    engine.delete_pool(&find(engine, &text).await?).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size(1.0).unwrap(), PoolSpec::fixed(1));
        assert_eq!(size(f64::from(POOL_MAX_COUNT)).unwrap().min, POOL_MAX_COUNT);
        for bad in [0.0, -1.0, 1.5, f64::NAN, f64::INFINITY, 1e300, f64::from(POOL_MAX_COUNT) + 1.0] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
