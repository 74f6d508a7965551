//! A blueprint as the clients read it, and its log.

use atoll_core::Code;
use atoll_core::build::{BuildEvent, BuildState, StepState};
use atoll_core::exec::OutputStream;
use atoll_core::sharing::Needs;
use atoll_engine::Engine;
use atoll_store::BuildRecord;
use axum::extract::State;
use serde_json::{Value, json};

use super::{ARG, Parameters, find};
use crate::App;
use crate::error::{Failure, Result};
use crate::ids;
use crate::logs::fits;
use crate::request::{Caller, Json, Path, Read};

/// Most bytes of a log in one answer.
const LOG_MAX_BYTES: usize = 4 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

pub(super) const fn status(record: &BuildRecord) -> &'static str {
    match record.state {
        // This server is about to send the files to the engine. The clients know a state in which they would have to
        // send them themselves, and take it for an end.
        BuildState::Waiting | BuildState::Queued => "queued",
        BuildState::Running => "building",
        BuildState::Succeeded => "build_complete",
        BuildState::Failed | BuildState::Cancelled => "failed",
    }
}

/// The whole answer about one blueprint.
pub(super) async fn view(engine: &Engine, record: &BuildRecord) -> Value {
    let parameters = Parameters::of(record);
    let deleted = match record.template_version {
        Some(version) => engine.template(&record.spec.name, Some(version)).await.is_err(),
        None => record.state == BuildState::Cancelled,
    };
    let mut view = json!({
        "id": ids::of_build(&record.id),
        "name": parameters.name,
        "status": status(record),
        "state": if deleted { "deleted" } else { "created" },
        "create_time_ms": record.created_ms,
        "build_finish_time_ms": record.ended_ms,
        "metadata": parameters.metadata,
        "base_blueprint_id": parameters.base_blueprint_id,
        "parameters": parameters,
        "is_public": false,
        "devbox_capabilities": [],
    });
    if status(record) == "failed" {
        let why = record.failure.as_ref().map(|failure| failure.code);
        let reason = if why == Some(Code::DiskFull) { "out_of_disk" } else { "build_failed" };
        view["failure_reason"] = reason.into();
    }
    view
}

fn line(at_ms: u64, level: &str, message: &str) -> Value {
    json!({"timestamp_ms": at_ms, "level": level, "message": message})
}

/// The lines of an event, those that fit.
fn lines(event: BuildEvent, left: &mut usize) -> Vec<Value> {
    match event {
        // A note that no Dockerfile uses this dialect's own argument is left out.
        BuildEvent::Note { text, .. } if text.contains(ARG) => Vec::new(),
        BuildEvent::Note { at_ms, text } => vec![line(at_ms, "info", &text)],
        BuildEvent::Step { at_ms, step, total, text, state, .. } => {
            let end = match state {
                StepState::Started => "",
                StepState::Cached => " (cached)",
                StepState::Failed => " failed",
                StepState::Done => return Vec::new(),
            };
            vec![line(at_ms, "info", &format!("[{step}/{total}] {text}{end}"))]
        }
        BuildEvent::Output { at_ms, stream, text, .. } => {
            let level = if stream == OutputStream::Stderr { "warn" } else { "info" };
            text.lines()
                .take_while(|text| fits(left, text.len()))
                .map(|text| line(at_ms, level, text))
                .collect()
        }
        BuildEvent::End { at_ms, failure: Some(failure), .. } => {
            vec![line(at_ms, "error", &failure.message)]
        }
        BuildEvent::End { at_ms, state, .. } => {
            vec![line(at_ms, "info", &format!("build {}", state.as_str()))]
        }
    }
}

/// `GET /v1/blueprints/{blueprint}/logs`.
pub(super) async fn logs(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = find(engine, &caller, Needs::READ, &id).await?;
    let mut log = engine.build_log(&record.id, 0).await.map_err(|error| Failure::of(&error))?;
    let mut told: Vec<Value> = Vec::new();
    let mut left = LOG_MAX_BYTES;
    while left > 0 {
        let page = log.now(READ_BYTES).await.map_err(|error| Failure::of(&error))?;
        if page.entries.is_empty() {
            break;
        }
        told.extend(page.entries.into_iter().flat_map(|entry| lines(entry.event, &mut left)));
    }
    Ok(Json(json!({"blueprint_id": ids::of_build(&record.id), "logs": told})))
}
