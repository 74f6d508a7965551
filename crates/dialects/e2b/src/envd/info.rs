//! The small questions: whether the sandbox is there, what it uses, its environment.

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

/// Only requests to a running sandbox get here; for all other sandboxes the proxy answers.
pub(crate) async fn health(State(_): State<App>) -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// The resources that the sandbox uses now.
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

/// The variables of a process that names none itself.
pub(crate) async fn envs(envd: Envd) -> Result<axum::Json<Value>> {
    let record = envd.engine().sandbox(envd.id()).map_err(|error| Failure::of_file(&error))?;
    let mut env = record.spec.exec_env();
    env.extend(variables(&record));
    Ok(axum::Json(json!(env)))
}

/// Variables that E2B's documentation promises to programs; none of them replaces a variable that the sandbox was
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
