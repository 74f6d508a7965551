//! The log of a sandbox: the processes that began and ended, without their output.

use atoll_core::id::SandboxId;
use atoll_core::limits::PAGE_MAX_COUNT;
use atoll_core::spec;
use atoll_engine::{Engine, ExecQuery, ExecView};
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::logs::Wanted;
use crate::request::{Caller, Id, Query, Read};
use crate::time::of_ms;

/// Most entries of one answer.
const LIMIT: usize = 1000;
/// Characters of a command that are shown.
const COMMAND_CHARS: usize = 200;

struct Entry {
    at_ms: u64,
    level: &'static str,
    message: &'static str,
    fields: Value,
}

impl Entry {
    fn line(&self) -> String {
        let mut line = json!({"level": self.level, "logger": "process", "message": self.message,
            "timestamp": of_ms(self.at_ms)});
        if let (Some(line), Some(fields)) = (line.as_object_mut(), self.fields.as_object()) {
            line.extend(fields.clone());
        }
        line.to_string()
    }

    fn entry(&self) -> Value {
        let mut fields = self.fields.clone();
        fields["logger"] = "process".into();
        json!({"timestamp": of_ms(self.at_ms), "level": self.level, "message": self.message, "fields": fields})
    }
}

fn entries(view: &ExecView) -> impl Iterator<Item = Entry> {
    let record = &view.record;
    let command: String = spec::shown(&record.spec.argv).chars().take(COMMAND_CHARS).collect();
    let mut fields = json!({"command": command, "process": record.id.to_string()});
    if let Some(pid) = record.pid {
        fields["pid"] = pid.to_string().into();
    }
    let began =
        Entry { at_ms: record.created_ms, level: "info", message: "process started", fields: fields.clone() };
    let ended = record.ended_ms.map(|at_ms| {
        let code = record.exit.as_ref().and_then(|exit| exit.code);
        if let Some(code) = code {
            fields["exit_code"] = code.to_string().into();
        }
        let level = if code == Some(0) { "info" } else { "warn" };
        Entry { at_ms, level, message: "process ended", fields }
    });
    std::iter::once(began).chain(ended)
}

/// The newest entries, the oldest of them first.
async fn all(engine: &Engine, id: &SandboxId) -> Result<Vec<Entry>> {
    let query = ExecQuery { limit: Some(PAGE_MAX_COUNT), ..ExecQuery::default() };
    let (views, _) = engine.execs(id, &query).await.map_err(|error| Failure::of(&error))?;
    let mut all: Vec<Entry> = views.iter().flat_map(entries).collect();
    all.sort_by_key(|entry| entry.at_ms);
    Ok(all)
}

/// The entries that the client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Since {
    start: Option<u64>,
    limit: Option<usize>,
}

/// `GET /sandboxes/{id}/logs`.
pub(super) async fn v1(
    _: Caller<Read>,
    State(app): State<App>,
    Id(id): Id,
    Query(since): Query<Since>,
) -> Result<axum::Json<Value>> {
    let mut entries = all(app.host.engine(), &id).await?;
    entries.retain(|entry| entry.at_ms >= since.start.unwrap_or_default());
    entries.truncate(since.limit.unwrap_or(LIMIT).min(LIMIT));
    let lines: Vec<Value> =
        entries.iter().map(|entry| json!({"timestamp": of_ms(entry.at_ms), "line": entry.line()})).collect();
    let entries: Vec<Value> = entries.iter().map(Entry::entry).collect();
    Ok(axum::Json(json!({"logs": lines, "logEntries": entries})))
}

/// `GET /v2/sandboxes/{id}/logs`.
pub(super) async fn v2(
    _: Caller<Read>,
    State(app): State<App>,
    Id(id): Id,
    Query(wanted): Query<Wanted>,
) -> Result<axum::Json<Value>> {
    let wanted = wanted.check(LIMIT)?;
    let mut entries = all(app.host.engine(), &id).await?;
    entries.retain(|entry| wanted.takes(entry.at_ms, entry.level, || entry.line()));
    let entries: Vec<Value> = wanted.page(entries).iter().map(Entry::entry).collect();
    Ok(axum::Json(json!({"logs": entries})))
}
