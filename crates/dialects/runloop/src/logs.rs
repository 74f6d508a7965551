//! The commands of a devbox and their output (`logs`), and the resources that it took (`usage`).

use atoll_core::exec::OutputStream;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use atoll_engine::{ExecQuery, ExecView};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::executions;
use crate::ids;
use crate::request::{self, Caller, Json, Path, Query, Read};

/// Most bytes of output in one answer.
const OUTPUT_MAX_BYTES: usize = 4 << 20;
/// What a line takes of that besides its text: each is an object of its own in the answer.
const LINE_BYTES: usize = 64;
const GIB: u64 = 1 << 30;

/// The routes.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/devboxes/{devbox}/logs", get(list))
        .route("/v1/devboxes/{devbox}/usage", get(usage))
}

/// The execution that the client asks for; all when it names none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    execution_id: Option<String>,
}

/// The commands of a devbox, oldest first, with their output. Lines have the time at which their command began: the
/// time at which each line was written is not known.
async fn list(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(query): Query<List>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let sandbox = request::record(engine, &caller, &id)?.id;
    let execs = match query.execution_id.as_deref().filter(|id| !id.is_empty()) {
        Some(execution) => vec![request::execution(engine, &sandbox, execution).await?],
        None => {
            let newest = ExecQuery { limit: Some(PAGE_MAX_COUNT), ..ExecQuery::default() };
            let (mut execs, _) =
                engine.execs(&sandbox, &newest).await.map_err(|error| Failure::of(&error))?;
            execs.reverse();
            execs
        }
    };
    let (mut told, mut left) = (Vec::new(), OUTPUT_MAX_BYTES);
    for exec in &execs {
        tell(&app, exec, &mut told, &mut left).await?;
    }
    Ok(Json(json!({"logs": told})))
}

/// Takes a line of so many bytes of what is left in an answer. When it does not fit, nothing is left.
pub(crate) fn fits(left: &mut usize, bytes: usize) -> bool {
    let after = left.checked_sub(bytes.saturating_add(LINE_BYTES));
    *left = after.unwrap_or_default();
    after.is_some()
}

async fn tell(app: &App, exec: &ExecView, told: &mut Vec<Value>, left: &mut usize) -> Result<()> {
    let record = &exec.record;
    let id = ids::of_exec(&record.id);
    let entry = |at_ms: u64, level: &str| json!({"source": "exec", "level": level, "timestamp_ms": at_ms, "cmd_id": id});
    let mut began = entry(record.created_ms, "info");
    let command = executions::line(&record.spec.argv);
    let fits_whole = fits(left, command.len());
    began["cmd"] = if fits_whole { command.into() } else { atoll_core::error::shorten(command).into() };
    told.push(began);
    let fail = |error: atoll_core::Error| Failure::of(&error);
    let feed = Feed::open(app.host.engine(), exec, &app.marks, Counting::Text, Offsets::default());
    let mut feed = feed.await.map_err(fail)?;
    while *left > 0
        && let Some(event) = feed.next_now().await.map_err(fail)?
    {
        let (stream, text) = match event {
            Event::Text { stream, text, .. } => (stream, text),
            Event::Raw { .. } => continue,
            Event::End(_) => break,
        };
        let level = if stream == OutputStream::Stderr { "error" } else { "info" };
        told.extend(text.lines().take_while(|line| fits(left, line.len())).map(|line| {
            let mut entry = entry(record.created_ms, level);
            entry["message"] = line.into();
            entry
        }));
    }
    if let Some(exit) = &record.exit {
        let mut ended = entry(record.ended_ms.unwrap_or(record.created_ms), "info");
        ended["exit_code"] = exit.code.into();
        told.push(ended);
    }
    Ok(())
}

/// The resources that a devbox took so far: its limits, for as long as it ran.
async fn usage(caller: Caller<Read>, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>> {
    let record = request::record(app.host.engine(), &caller, &id)?;
    let now = app.host.engine().now_ms();
    let paused = record.pauses_ms + record.paused_ms.map_or(0, |since| now.saturating_sub(since));
    let elapsed_s = now.saturating_sub(record.created_ms) / 1000;
    let active_s = now.saturating_sub(record.created_ms).saturating_sub(paused) / 1000;
    let resources = record.spec.resources;
    let gib_seconds = |bytes: u64, seconds: u64| {
        u64::try_from(u128::from(bytes) * u128::from(seconds) / u128::from(GIB)).unwrap_or(u64::MAX)
    };
    Ok(Json(json!({
        "id": ids::of_sandbox(&record.id),
        "status": crate::devboxes::status(&app, &record),
        "start_time_ms": record.created_ms,
        "end_time_ms": null,
        "total_elapsed_seconds": elapsed_s,
        "total_active_seconds": active_s,
        "vcpu_seconds": u64::from(resources.cpu_millis) * active_s / 1000,
        "memory_gb_seconds": gib_seconds(resources.memory_bytes, active_s),
        "disk_gb_seconds": gib_seconds(resources.disk_bytes, elapsed_s),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_text_take_of_an_answer_too() {
        let mut left = OUTPUT_MAX_BYTES;
        let empty = "\n".repeat(OUTPUT_MAX_BYTES);
        let told = empty.lines().take_while(|line| fits(&mut left, line.len())).count();
        assert_eq!((told, left), (OUTPUT_MAX_BYTES / LINE_BYTES, 0));
        assert!(!fits(&mut left, 0));
        let mut left = LINE_BYTES + 5;
        assert!(fits(&mut left, 5) && left == 0);
    }
}
