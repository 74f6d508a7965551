//! Sandboxes: `/v2/sandboxes/boxes`.

mod create;
mod lifecycle;
mod list;
mod update;

use std::time::Duration;

use atoll_core::Code;
use atoll_core::spec::ResourcesDraft;
use atoll_dialect_kit::pending::within;
use atoll_server::dialect::Host;
use atoll_store::SandboxRecord;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, Result};
use crate::request::{Caller, Json, Manage, Read, Root};
use crate::view::{self, Sandbox};

pub(crate) use atoll_dialect_kit::sandboxes::awake;
pub(crate) use create::create;
pub(crate) use lifecycle::{start, stop};
pub(crate) use list::list;
pub(crate) use update::update;

/// Calls that may take longer answer after this time, and the work goes on: the clients wait for ten seconds.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Limits, as the clients write them.
#[derive(Debug, Default, Deserialize)]
struct Size {
    vcpus: Option<f64>,
    cpu_millicores: Option<u32>,
    mem_bytes: Option<u64>,
    fs_capacity_bytes: Option<u64>,
}

impl Size {
    fn resources(&self) -> Result<ResourcesDraft> {
        let cpu_millis = match (self.cpu_millicores, self.vcpus) {
            (Some(millis), _) => Some(millis),
            (None, Some(vcpus)) => Some(millis_of(vcpus)?),
            (None, None) => None,
        };
        Ok(ResourcesDraft {
            cpu_millis,
            memory_bytes: self.mem_bytes,
            pids: None,
            disk_bytes: self.fs_capacity_bytes,
            ..ResourcesDraft::default()
        })
    }
}

fn millis_of(vcpus: f64) -> Result<u32> {
    const VCPUS_MAX: f64 = 1024.0;
    if !(vcpus > 0.0 && vcpus <= VCPUS_MAX) {
        return Err(Failure::field("vcpus", "must be more than 0 and at most 1024"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1,024,000")]
    Ok((vcpus * 1000.0).ceil() as u32)
}

/// A time to live in milliseconds. Zero means "never".
fn ttl_ms(field: &str, seconds: u64) -> Result<Option<u64>> {
    if !seconds.is_multiple_of(60) {
        return Err(Failure::field(field, "must be a multiple of 60"));
    }
    Ok((seconds > 0).then(|| seconds.saturating_mul(1000)))
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The sandbox that the path names.
fn find<S>(host: &Host, caller: &Caller<S>) -> Result<SandboxRecord> {
    let found = caller.sandbox().and_then(|id| host.engine().sandbox(id));
    found.map_err(|error| Failure::control(&error))
}

/// One sandbox.
pub(crate) async fn read(
    caller: Caller<Read>,
    root: Root,
    State(host): State<Host>,
) -> Result<Json<Sandbox>> {
    Ok(Json(Sandbox::new(find(&host, &caller)?, &root)))
}

/// The answer for a client that polls.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    status: &'static str,
    status_message: Option<String>,
}

/// The state of one sandbox.
pub(crate) async fn status(caller: Caller<Read>, State(host): State<Host>) -> Result<Json<Status>> {
    let (status, status_message) = view::status(&find(&host, &caller)?);
    Ok(Json(Status { status, status_message }))
}

/// Deletes a sandbox. Answers when it is marked for deletion, or after a few seconds: the engine goes on.
pub(crate) async fn remove(caller: Caller<Manage>, State(host): State<Host>) -> Result<StatusCode> {
    let id = find(&host, &caller)?.id;
    let engine = host.engine().clone();
    match within(ANSWER_WITHIN, async move { engine.delete_sandbox(&id).await }).await {
        Some(Err(error)) if error.code != Code::SandboxNotFound => Err(Failure::control(&error)),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
