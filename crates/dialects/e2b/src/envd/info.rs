//! The small questions: is it there, what does it use, what is its environment.

use std::collections::BTreeMap;

use atoll_core::Error;
use atoll_store::SandboxRecord;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};

use super::Envd;
use crate::App;
use crate::error::{Failure, Result};
use crate::extras::Extras;

const MIB: u64 = 1 << 20;

/// Whoever gets here has a sandbox that runs; the proxy answers for the others.
pub(crate) async fn health(State(_): State<App>) -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// What the sandbox uses now.
pub(crate) async fn metrics(envd: Envd) -> Result<Response> {
    let sample = crate::sandboxes::metrics::sample(envd.engine(), envd.id()).await;
    let sample = sample.map_err(|error: Error| Failure::of_file(&error))?;
    Ok(axum::Json(json!({
        "ts": envd.engine().now_ms() / 1000,
        "cpu_count": sample.cpu_count,
        "cpu_used_pct": sample.cpu_used_pct,
        "mem_total_mib": sample.mem_total / MIB,
        "mem_used_mib": sample.mem_used / MIB,
        "mem_total": sample.mem_total,
        "mem_used": sample.mem_used,
        "mem_cache": sample.mem_cache,
        "disk_used": sample.disk_used,
        "disk_total": sample.disk_total,
    }))
    .into_response())
}

/// The variables that every process gets that names none.
pub(crate) async fn envs(envd: Envd) -> Result<axum::Json<Value>> {
    let record = envd.engine().sandbox(envd.id()).map_err(|error| Failure::of_file(&error))?;
    let mut env = record.spec.exec_env();
    env.extend(variables(&record));
    Ok(axum::Json(json!(env)))
}

/// What E2B's documentation says that programs find in their environment; nothing in place of what the sandbox was
/// given.
pub(super) fn variables(record: &SandboxRecord) -> BTreeMap<String, String> {
    let mut own = BTreeMap::from([
        ("E2B_SANDBOX".to_owned(), "true".to_owned()),
        ("E2B_SANDBOX_ID".to_owned(), record.id.to_string()),
    ]);
    own.extend(Extras::of(record).template_id.map(|id| ("E2B_TEMPLATE_ID".to_owned(), id)));
    let given = record.spec.exec_env();
    own.retain(|name, _| !given.contains_key(name));
    own
}
