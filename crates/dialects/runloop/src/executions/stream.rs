//! Output as it comes, as server-sent events.
//!
//! The `offset` of each event is where the *next* one begins, in bytes of the text of its stream. A client that comes
//! back sends the last offset that it saw, and goes on there without a gap and without reading anything twice.

use std::time::Duration;

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::Deserialize;
use serde_json::json;

use crate::App;
use crate::error::{Failure, Result};
use crate::request::{self, Caller, Path, Query, Read};

/// Pause after which an idle stream sends a comment; the clients give up after half a minute.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);

/// The offset to begin at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct From {
    offset: Option<String>,
}

/// `stream_stdout_updates`.
pub(super) async fn stdout(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(path): Path<(String, String)>,
    Query(from): Query<From>,
) -> Result<Response> {
    follow(app, &caller, &path, OutputStream::Stdout, &from).await
}

/// `stream_stderr_updates`.
pub(super) async fn stderr(
    caller: Caller<Read>,
    State(app): State<App>,
    Path(path): Path<(String, String)>,
    Query(from): Query<From>,
) -> Result<Response> {
    follow(app, &caller, &path, OutputStream::Stderr, &from).await
}

struct Source {
    app: App,
    feed: Feed,
    wanted: OutputStream,
    over: bool,
}

async fn follow(
    app: App,
    caller: &Caller<Read>,
    path: &(String, String),
    wanted: OutputStream,
    from: &From,
) -> Result<Response> {
    let text = from.offset.as_deref().filter(|text| !text.is_empty()).unwrap_or("0");
    let offset: u64 =
        text.parse().map_err(|_not_a_number| Failure::bad("offset: must be a number of bytes"))?;
    let engine = app.host.engine();
    let sandbox = request::record(engine, caller, &path.0)?.id;
    let view = request::execution(engine, &sandbox, &path.1).await?;
    // All of the other stream counts as known, so the feed sends nothing of it.
    let from = match wanted {
        OutputStream::Stdout => Offsets { stdout: offset, stderr: u64::MAX },
        OutputStream::Stderr => Offsets { stdout: u64::MAX, stderr: offset },
    };
    let feed = Feed::open(engine, &view, &app.marks, Counting::Text, from).await;
    let feed = feed.map_err(|error| Failure::of(&error))?.read_by(caller.engine().key());
    let source = Source { app, feed, wanted, over: false };
    let events = stream::unfold(source, |mut source| async move {
        let text = source.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), source))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

impl Source {
    async fn next(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        let next = tokio::select! {
            next = self.feed.next() => next,
            () = tokio::time::sleep(HEARTBEAT_EVERY) => return Some(": alive\n\n".to_owned()),
            () = self.app.host.draining() => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
        };
        Some(match next {
            Ok(Event::Text { stream, offset, text }) if stream == self.wanted => events(offset, &text),
            Ok(Event::Text { .. } | Event::Raw { .. }) => String::new(),
            Ok(Event::End(_)) => {
                self.over = true;
                return None;
            }
            Err(error) => {
                self.over = true;
                // After 408 the clients come back, and go on behind the output that they have.
                let stops = error.code == Code::ShuttingDown;
                let failure = if stops { Failure::not_yet() } else { Failure::of(&error) };
                format!("event: error\ndata: {}\n\n", failure.body())
            }
        })
    }
}

/// Most lines of one piece of output that are events of their own.
const LINES_MAX: usize = 100;

/// One event for each line: the clients hand each to a callback that takes a line. A line without an end goes out as it
/// is, so that the client need not wait for the rest. Many lines at once are one event, because the clients take long
/// for each event. Each offset is where the next event begins.
fn events(mut offset: u64, text: &str) -> String {
    let mut events = String::new();
    let lines: Vec<&str> = text.split_inclusive('\n').take(LINES_MAX + 1).collect();
    let pieces = if lines.len() > LINES_MAX { vec![text] } else { lines };
    for line in pieces {
        offset += line.len() as u64;
        let event = json!({"output": line, "offset": offset}).to_string();
        events.extend(["data: ", &event, "\n\n"]);
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_an_event() {
        assert_eq!(events(5, ""), "");
        let much = "x\n".repeat(LINES_MAX + 1);
        assert_eq!(events(0, &much).matches("data: ").count(), 1);
        let told: Vec<serde_json::Value> = events(5, "a\nb\nc")
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect();
        let is = |output: &str, offset: u64| json!({"output": output, "offset": offset});
        assert_eq!(told, [is("a\n", 7), is("b\n", 9), is("c", 10)]);
    }
}
