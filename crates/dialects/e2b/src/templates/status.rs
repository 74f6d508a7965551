//! The state of a build, and its log.

use atoll_core::build::{BuildEvent, BuildState, StepState};
use atoll_core::exec::OutputStream;
use atoll_engine::Engine;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::build::{Begun, Order};
use super::translate::{FINALIZE, Line};
use crate::App;
use crate::error::{Failure, Result};
use crate::logs;
use crate::request::{Caller, Path, Query, Read};
use crate::time::{now_ms, of_ms};

/// Most entries of one answer.
const ENTRIES_MAX: usize = 100;
/// Most bytes of a log that are read.
const LOG_MAX_BYTES: usize = 16 << 20;

/// The first entry that the client wants, and how many.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct From {
    #[serde(rename = "logsOffset")]
    offset: usize,
    limit: Option<usize>,
    level: Option<String>,
}

/// One entry, as the client reads it.
#[derive(Debug)]
struct Entry {
    at_ms: u64,
    level: &'static str,
    told: Value,
}

impl Entry {
    fn message(&self) -> &Value {
        &self.told["message"]
    }
}

/// The log of a build, as its client reads it.
#[derive(Debug, Default)]
struct Log {
    entries: Vec<Entry>,
    /// The line that failed.
    failed: Option<Line>,
    /// Whether a step was begun.
    has_begun: bool,
}

impl Log {
    fn push(&mut self, at_ms: u64, level: &'static str, message: &str, step: Option<&str>) {
        let mut told = json!({"timestamp": of_ms(at_ms), "level": level, "message": message});
        if let Some(step) = step {
            told["step"] = step.into();
        }
        self.entries.push(Entry { at_ms, level, told });
    }

    /// Reads events. An instruction is found by its text; one that occurs more than once, in the order of the lines.
    fn read(events: impl Iterator<Item = BuildEvent>, lines: &[Line]) -> Self {
        let mut log = Self::default();
        let mut next = 0;
        let mut current: Option<Line> = None;
        for event in events {
            match event {
                BuildEvent::Note { at_ms, text } => log.push(at_ms, "info", &text, None),
                BuildEvent::Step { at_ms, text, state, .. } => {
                    log.has_begun = true;
                    if matches!(state, StepState::Started | StepState::Cached) {
                        let found = lines.iter().skip(next).position(|line| is_text(&line.text, &text));
                        if let Some(at) = found {
                            next += at + 1;
                            current = lines.get(next - 1).cloned();
                        }
                    }
                    let step = current.as_ref().map(|line| line.step.clone());
                    let place = match step.as_deref() {
                        Some("base") | None => "[base]".to_owned(),
                        Some(FINALIZE) => format!("[{FINALIZE}]"),
                        Some(number) => format!("[builder {number}]"),
                    };
                    match state {
                        StepState::Started => {
                            log.push(at_ms, "info", &format!("{place} {text}"), step.as_deref());
                        }
                        StepState::Cached => {
                            log.push(at_ms, "info", &format!("CACHED {place} {text}"), step.as_deref());
                        }
                        StepState::Failed => log.failed = current.clone(),
                        StepState::Done => {}
                    }
                }
                BuildEvent::Output { at_ms, stream, text, .. } => {
                    let level = if stream == OutputStream::Stderr { "warn" } else { "info" };
                    let step = current.as_ref().map(|line| line.step.clone());
                    for line in text.lines() {
                        log.push(at_ms, level, line, step.as_deref());
                    }
                }
                BuildEvent::End { at_ms, state, .. } => {
                    let message =
                        if state == BuildState::Succeeded { "Build finished" } else { "Build failed" };
                    log.push(at_ms, "info", message, None);
                }
            }
        }
        log
    }
}

/// Whether the engine's text, which may be shortened, is that of a line.
fn is_text(line: &str, shown: &str) -> bool {
    let first = |text: &str| text.split_whitespace().take(8).collect::<Vec<_>>().join(" ");
    let shown = shown.trim_end_matches('…').trim_end_matches("...");
    !line.is_empty() && (line.starts_with(shown) || first(line).starts_with(&first(shown)))
}

async fn events(engine: &Engine, begun: &Begun) -> Result<(Vec<BuildEvent>, atoll_store::BuildRecord)> {
    let mut log = engine.build_log(&begun.build, 0).await.map_err(|error| Failure::of(&error))?;
    let mut events = Vec::new();
    let mut left = LOG_MAX_BYTES;
    loop {
        let before = events.len();
        let page = log.now(left.min(1 << 20)).await.map_err(|error| Failure::of(&error))?;
        left = left.saturating_sub(1 << 20);
        events.extend(page.entries.into_iter().map(|entry| entry.event));
        if events.len() == before || left == 0 {
            return Ok((events, page.record));
        }
    }
}

/// `GET /templates/{template}/builds/{build}/status`.
pub(super) async fn status(
    caller: Caller<Read>,
    State(app): State<App>,
    Path((template, id)): Path<(String, String)>,
    Query(from): Query<From>,
) -> Result<axum::Json<Value>> {
    let order = app.orders.find(&id, &caller.key())?;
    let least = logs::least(from.level.as_deref())?;
    let answer = |status: &str, entries: &[Entry], reason: Option<Value>| {
        let limit = from.limit.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
        let wanted = entries.iter().filter(|entry| logs::rank(entry.level) >= least);
        let page: Vec<&Entry> = wanted.skip(from.offset).take(limit).collect();
        let texts: Vec<&Value> = page.iter().map(|entry| entry.message()).collect();
        let told: Vec<&Value> = page.iter().map(|entry| &entry.told).collect();
        let mut answer = json!({
            "templateID": template, "buildID": id, "status": status, "logs": texts, "logEntries": told,
        });
        if let Some(reason) = reason {
            answer["reason"] = reason;
        }
        axum::Json(answer)
    };
    let Order { begun: Some(begun), .. } = order else { return Ok(answer("waiting", &[], None)) };
    let (events, record) = events(app.host.engine(), &begun).await?;
    let log = Log::read(events.into_iter(), &begun.lines);
    Ok(match record.state {
        BuildState::Waiting | BuildState::Queued | BuildState::Running => {
            answer("building", &log.entries, None)
        }
        BuildState::Succeeded => answer("ready", &log.entries, None),
        BuildState::Failed | BuildState::Cancelled => {
            let reason = reason(&record, log.failed.as_ref(), log.has_begun);
            answer("error", &log.entries, Some(reason))
        }
    })
}

/// Why a build failed, in the words that the clients look for.
fn reason(record: &atoll_store::BuildRecord, failed: Option<&Line>, has_begun: bool) -> Value {
    let failure = record.failure.as_ref();
    let said = failure.map_or("the build was cancelled", |failure| failure.message.as_str());
    let command = failed.and_then(|line| line.command.as_deref());
    let message = match (command, failure.and_then(|failure| failure.exit_code)) {
        (Some(command), Some(code)) => {
            format!("failed to run command '{command}': command failed: exit status {code}")
        }
        (Some(command), None) => {
            format!("failed to run command '{command}': command failed: {}", user_unknown(said))
        }
        // The hint holds the last output of the start command.
        (None, _) => match failure.and_then(|failure| failure.hint.as_deref()) {
            Some(hint) => format!("{said}; {hint}"),
            None => said.to_owned(),
        },
    };
    let output = failure.and_then(|failure| failure.output.as_deref()).unwrap_or_default();
    let at = of_ms(record.ended_ms.unwrap_or_else(now_ms));
    let entries: Vec<Value> =
        output.lines().map(|line| json!({"timestamp": at, "level": "error", "message": line})).collect();
    let mut reason = json!({"message": message, "logEntries": entries});
    // A failure before the first line is about the base of the build. Clients look for the line of their program there.
    let step = match failed {
        Some(line) => Some(line.step.as_str()),
        None if record.state == BuildState::Failed && !has_begun => Some("base"),
        None => None,
    };
    if let Some(step) = step {
        reason["step"] = step.into();
    }
    reason
}

/// A user that does not exist, in the words that the clients' users know.
fn user_unknown(said: &str) -> String {
    let name = said.split_once("no user '").and_then(|(_, rest)| rest.split_once('\''));
    name.map_or_else(|| said.to_owned(), |(name, _)| format!("unauthenticated: invalid username: '{name}'"))
}

/// `GET /templates/{template}/builds/{build}/logs`.
pub(super) async fn logs_of(
    caller: Caller<Read>,
    State(app): State<App>,
    Path((_, id)): Path<(String, String)>,
    Query(wanted): Query<logs::Wanted>,
) -> Result<axum::Json<Value>> {
    let wanted = wanted.check(ENTRIES_MAX)?;
    let order = app.orders.find(&id, &caller.key())?;
    let Some(begun) = order.begun else { return Ok(axum::Json(json!({"logs": []}))) };
    let (events, _) = events(app.host.engine(), &begun).await?;
    let mut entries = Log::read(events.into_iter(), &begun.lines).entries;
    entries.retain(|entry| wanted.takes(entry.at_ms, entry.level, || entry.message().to_string()));
    let told: Vec<Value> = wanted.page(entries).into_iter().map(|entry| entry.told).collect();
    Ok(axum::Json(json!({"logs": told})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, step: &str) -> Line {
        Line { text: text.to_owned(), step: step.to_owned(), command: Some(text.to_owned()) }
    }

    fn step(text: &str, state: StepState) -> BuildEvent {
        BuildEvent::Step {
            at_ms: 1,
            step: 1,
            total: 1,
            stage: None,
            text: text.to_owned(),
            state,
            took_ms: None,
        }
    }

    #[test]
    fn an_unknown_user_is_told_as_clients_know_it() {
        assert_eq!(user_unknown("step 7: no user 'r\u{e9}'"), "unauthenticated: invalid username: 'r\u{e9}'");
        assert_eq!(user_unknown("step 7: other"), "step 7: other");
    }

    #[test]
    fn the_failed_step_is_found() {
        let lines = [line("RUN a", "1"), line("RUN b", "2"), line("RUN a", "3")];
        let events = [
            step("RUN a", StepState::Cached),
            step("RUN b", StepState::Started),
            step("RUN b", StepState::Done),
            step("RUN a", StepState::Started),
            step("RUN a", StepState::Failed),
        ];
        let log = Log::read(events.into_iter(), &lines);
        assert_eq!(log.failed.unwrap().step, "3");
        assert_eq!(log.entries[0].message(), "CACHED [builder 1] RUN a");
    }
}
