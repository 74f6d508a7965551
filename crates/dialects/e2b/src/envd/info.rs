//! The small questions: is it there, what does it use, what is its environment.

use atoll_core::Error;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::{Value, json};

use super::Envd;
use crate::App;
use crate::error::{Failure, Result};
use crate::time::now_ms;

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
        "ts": now_ms() / 1000,
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
    Ok(axum::Json(json!(record.spec.exec_env())))
}
