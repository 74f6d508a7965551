//! The state of a build, and its log.

use std::collections::VecDeque;

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
/// Most bytes of a log that are read, and of those that are in memory at once.
const LOG_MAX_BYTES: usize = 16 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// The first entry that the client wants, and how many.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct From {
    #[serde(rename = "logsOffset")]
    offset: usize,
    limit: Option<usize>,
    level: Option<String>,
}

/// One entry of a log. A command may write millions of empty lines: only those entries are kept that an answer has.
#[derive(Debug, Clone, Copy)]
struct Said<'a> {
    at_ms: u64,
    level: &'static str,
    message: &'a str,
    step: Option<&'a str>,
}

impl Said<'_> {
    /// As the client reads it.
    fn told(&self) -> Value {
        let mut told = json!({"timestamp": of_ms(self.at_ms), "level": self.level, "message": self.message});
        if let Some(step) = self.step {
            told["step"] = step.into();
        }
        told
    }
}

/// The entries of one answer, as they come.
#[derive(Debug)]
struct Page {
    /// Entries that are still to be passed over.
    skip: usize,
    limit: usize,
    /// Place of the least level among all.
    least: usize,
    entries: Vec<Value>,
}

impl Page {
    fn take(&mut self, said: Said<'_>) {
        if logs::rank(said.level) < self.least {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
        } else if self.entries.len() < self.limit {
            self.entries.push(said.told());
        }
    }
}

/// The log of a build, as its client reads it, on the way from its beginning to its end.
#[derive(Debug)]
struct Log<'l> {
    lines: &'l [Line],
    /// The first line that was not met yet.
    next: usize,
    current: Option<&'l Line>,
    /// The line that failed.
    failed: Option<&'l Line>,
    /// Whether a step was begun.
    has_begun: bool,
}

impl<'l> Log<'l> {
    const fn new(lines: &'l [Line]) -> Self {
        Self { lines, next: 0, current: None, failed: None, has_begun: false }
    }

    /// Reads one event, and says its entries.
    fn read(&mut self, event: &BuildEvent, say: &mut impl FnMut(Said<'_>)) {
        match event {
            BuildEvent::Note { at_ms, text } => {
                say(Said { at_ms: *at_ms, level: "info", message: text, step: None });
            }
            BuildEvent::Step { at_ms, text, state, .. } => self.step(*at_ms, text, *state, say),
            BuildEvent::Output { at_ms, stream, text, .. } => {
                let level = if *stream == OutputStream::Stderr { "warn" } else { "info" };
                let step = self.current.map(|line| line.step.as_str());
                for message in text.lines() {
                    say(Said { at_ms: *at_ms, level, message, step });
                }
            }
            BuildEvent::End { at_ms, state, .. } => {
                let succeeded = *state == BuildState::Succeeded;
                let message = if succeeded { "Build finished" } else { "Build failed" };
                say(Said { at_ms: *at_ms, level: "info", message, step: None });
            }
        }
    }

    /// An instruction is found by its text; one that occurs more than once, in the order of the lines.
    fn step(&mut self, at_ms: u64, text: &str, state: StepState, say: &mut impl FnMut(Said<'_>)) {
        self.has_begun = true;
        if matches!(state, StepState::Started | StepState::Cached) {
            let mut left = self.lines.iter().enumerate().skip(self.next);
            if let Some((at, line)) = left.find(|(_, line)| is_text(&line.text, text)) {
                self.next = at + 1;
                self.current = Some(line);
            }
        }
        let step = self.current.map(|line| line.step.as_str());
        let place = match step {
            Some("base") | None => "[base]".to_owned(),
            Some(FINALIZE) => format!("[{FINALIZE}]"),
            Some(number) => format!("[builder {number}]"),
        };
        let message = match state {
            StepState::Started => format!("{place} {text}"),
            StepState::Cached => format!("CACHED {place} {text}"),
            StepState::Failed => {
                self.failed = self.current;
                return;
            }
            StepState::Done => return,
        };
        say(Said { at_ms, level: "info", message: &message, step });
    }
}

/// Whether the engine's text, which may be shortened, is that of a line.
fn is_text(line: &str, shown: &str) -> bool {
    let first = |text: &str| text.split_whitespace().take(8).collect::<Vec<_>>().join(" ");
    let shown = shown.trim_end_matches('…').trim_end_matches("...");
    !line.is_empty() && (line.starts_with(shown) || first(line).starts_with(&first(shown)))
}

/// Reads the log of a build piece by piece, and says its entries.
async fn read<'l>(
    engine: &Engine,
    begun: &'l Begun,
    mut say: impl FnMut(Said<'_>) + Send,
) -> Result<(Log<'l>, atoll_store::BuildRecord)> {
    let mut pages = engine.build_log(&begun.build, 0).await.map_err(|error| Failure::of(&error))?;
    let mut log = Log::new(&begun.lines);
    let mut left = LOG_MAX_BYTES;
    loop {
        let page = pages.now(left.min(PIECE_BYTES)).await.map_err(|error| Failure::of(&error))?;
        left = left.saturating_sub(PIECE_BYTES);
        for entry in &page.entries {
            log.read(&entry.event, &mut say);
        }
        if page.entries.is_empty() || left == 0 {
            return Ok((log, page.record));
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
    let limit = from.limit.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
    let mut page = Page { skip: from.offset, limit, least, entries: Vec::new() };
    let answer = |status: &str, entries: &[Value], reason: Option<Value>| {
        let texts: Vec<&Value> = entries.iter().map(|told| &told["message"]).collect();
        let mut answer = json!({
            "templateID": template, "buildID": id, "status": status, "logs": texts, "logEntries": entries,
        });
        if let Some(reason) = reason {
            answer["reason"] = reason;
        }
        axum::Json(answer)
    };
    let Order { begun: Some(begun), .. } = order else { return Ok(answer("waiting", &[], None)) };
    let (log, record) = read(app.host.engine(), &begun, |said: Said<'_>| page.take(said)).await?;
    Ok(match record.state {
        BuildState::Waiting | BuildState::Queued | BuildState::Running => {
            answer("building", &page.entries, None)
        }
        BuildState::Succeeded => answer("ready", &page.entries, None),
        BuildState::Failed | BuildState::Cancelled => {
            let reason = reason(&record, log.failed, log.has_begun);
            answer("error", &page.entries, Some(reason))
        }
    })
}

/// Why a build failed, in the words that the clients look for.
fn reason(record: &atoll_store::BuildRecord, failed: Option<&Line>, has_begun: bool) -> Value {
    let failure = record.failure.as_ref();
    let said = failure.map_or("the build was cancelled", |failure| failure.message.as_str());
    let command = failed.and_then(|line| line.command.as_deref());
    let hint = failure.and_then(|failure| failure.hint.as_deref());
    let message = match (command, failure.and_then(|failure| failure.exit_code)) {
        (Some(command), Some(code)) => {
            let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
            format!("failed to run command '{command}': command failed: exit status {code}{hint}")
        }
        (Some(command), None) => {
            format!("failed to run command '{command}': command failed: {}", user_unknown(said))
        }
        // The hint holds the last output of the start command.
        (None, _) => match hint {
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
    let mut kept = VecDeque::new();
    let take = |said: Said<'_>| {
        if wanted.takes(said.at_ms, said.level, || Value::from(said.message).to_string()) {
            wanted.keep(&mut kept, || said.told());
        }
    };
    read(app.host.engine(), &begun, take).await?;
    let told: Vec<Value> = wanted.page(Vec::from(kept));
    Ok(axum::Json(json!({"logs": told})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, step: &str) -> Line {
        Line { text: text.to_owned(), step: step.to_owned(), command: Some(text.to_owned()) }
    }

    fn page(skip: usize, limit: usize) -> Page {
        Page { skip, limit, least: 0, entries: Vec::new() }
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
        let (mut log, mut page) = (Log::new(&lines), page(0, 100));
        events.iter().for_each(|event| log.read(event, &mut |said: Said<'_>| page.take(said)));
        assert_eq!(log.failed.unwrap().step, "3");
        assert_eq!(page.entries[0]["message"], "CACHED [builder 1] RUN a");
    }

    #[test]
    fn of_a_log_of_empty_lines_only_the_answer_is_kept() {
        let text = "\n".repeat(16 << 10);
        let output = BuildEvent::Output { at_ms: 1, step: 1, stream: OutputStream::Stdout, text };
        let last = BuildEvent::Note { at_ms: 2, text: "last".to_owned() };
        let (mut log, mut page) = (Log::new(&[]), page(100 * (16 << 10) - 9, 100));
        for event in std::iter::repeat_n(&output, 100).chain([&last]) {
            log.read(event, &mut |said: Said<'_>| page.take(said));
            assert!(page.entries.len() <= 10, "what comes before it is passed over");
        }
        assert_eq!((page.entries.len(), &page.entries[9]["message"]), (10, &json!("last")));
    }
}
