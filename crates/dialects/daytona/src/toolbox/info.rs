//! The small questions: the home, the open ports, the used resources.

use atoll_core::Error;
use std::collections::BTreeMap;

use atoll_core::access::parse_port;
use atoll_core::spec::SandboxUpdate;
use atoll_dialect_kit::{sandboxes, time};
use atoll_engine::guest_error;
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::paths;
use crate::error::{Failure, Result};
use crate::request::{Json, Path};
use crate::view;
use crate::who::Inside;

fn fail(error: Error) -> Failure {
    Failure::of_daemon(&error)
}

/// The home of the sandbox's user.
pub(super) async fn home(inside: Inside) -> Result<Json<Value>> {
    Ok(Json(json!({"dir": paths::home(&inside).await.map_err(fail)?})))
}

/// The directory in which commands run, and at which relative paths begin.
pub(super) async fn work_dir(inside: Inside) -> Result<Json<Value>> {
    Ok(Json(json!({"dir": paths::base(&inside).await.map_err(fail)?})))
}

/// The version by which clients choose what to ask.
pub(super) async fn version(_: Inside) -> Json<Value> {
    Json(json!({"version": view::DAEMON_VERSION}))
}

async fn listening(inside: &Inside) -> Result<Vec<u16>> {
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    guest.ports().await.map_err(|error| fail(guest_error(error)))
}

/// The ports that programs listen on.
pub(super) async fn ports(inside: Inside) -> Result<Json<Value>> {
    Ok(Json(json!({"ports": listening(&inside).await?})))
}

/// Whether a program listens on a port.
pub(super) async fn in_use(inside: Inside, Path((_, port)): Path<(String, String)>) -> Result<Json<Value>> {
    let port =
        parse_port(&port).ok_or_else(|| Failure::bad_daemon("port must be a number between 1 and 65535"))?;
    Ok(Json(json!({"isInUse": listening(&inside).await?.contains(&port)})))
}

/// Variables of later commands.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Environment {
    set: Option<BTreeMap<String, String>>,
    unset: Option<Vec<String>>,
    unset_value_prefix: Option<String>,
}

/// Changes the environment of later commands.
pub(super) async fn set_env(inside: Inside, Json(asked): Json<Environment>) -> Result<Json<Value>> {
    let known = inside.record()?.spec.env;
    let prefix = asked.unset_value_prefix.filter(|prefix| !prefix.is_empty());
    let by_value =
        known.iter().filter(|(_, value)| prefix.as_ref().is_some_and(|prefix| value.starts_with(prefix)));
    let gone = asked.unset.into_iter().flatten().chain(by_value.map(|(name, _)| name.clone()));
    let mut env: BTreeMap<String, Option<String>> = gone.map(|name| (name, None)).collect();
    env.extend(asked.set.into_iter().flatten().map(|(name, value)| (name, Some(value))));
    let update = SandboxUpdate { env, ..SandboxUpdate::default() };
    inside.engine().update_sandbox(inside.id(), update).await.map_err(fail)?;
    Ok(Json(json!({"message": "environment updated"})))
}

/// The resources that the sandbox uses now.
pub(super) async fn metrics(inside: Inside) -> Result<Json<Value>> {
    let (record, used) = (inside.record()?, inside.engine().metrics(inside.id()).await.map_err(fail)?);
    let now = inside.engine().now_ms();
    let alive_us = now.saturating_sub(record.created_ms).saturating_sub(record.pauses_ms) * 1000;
    let total = match used.guest.disk_total_bytes {
        0 => record.spec.resources.disk_bytes,
        bytes => bytes,
    };
    let disk = used.guest.disk_used_bytes.max(used.usage.disk_bytes);
    Ok(Json(json!({
        "cpuCount": record.spec.resources.cpu_millis.div_ceil(1000).max(1),
        "cpuUsedPct": percent(used.usage.cpu_us, alive_us),
        "memTotal": used.memory_limit_bytes,
        "memUsed": used.usage.memory_bytes,
        // The kernel counts the cache with the memory; it is not told apart.
        "memCache": 0,
        "diskTotal": total,
        "diskUsed": disk,
        "diskFree": total.saturating_sub(disk),
        "timestamp": time::iso(now),
        "timestampUnix": now / 1000,
    })))
}

/// The used share of the passed time, in percent.
#[expect(clippy::cast_precision_loss, reason = "a rounded share is wanted")]
fn percent(used_us: u64, passed_us: u64) -> f64 {
    if passed_us == 0 { 0.0 } else { (used_us as f64 / passed_us as f64 * 10_000.0).round() / 100.0 }
}
