//! Commands over server-sent events: `execute/stream/start` and `/resume`.
//!
//! Output travels as bytes in base64. After [`UNACKED_MAX_BYTES`] the answer ends with `ack_required`, and the client
//! resumes with the offsets that it has: that is the protocol's flow control. The server forgets nothing on an
//! acknowledgement: the log has its own limits.

use std::time::Duration;

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use atoll_engine::ExecView;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Outcome, Output, Request, by_id, get_or_create, outcome};
use crate::App;
use crate::boxes;
use crate::error::{Failure, Result, sentence};
use crate::request::{Caller, Exec, Json};

/// Output in one answer, bytes, after which the client has to acknowledge what it has.
const UNACKED_MAX_BYTES: usize = 1 << 20;
/// Pause after which an idle stream sends a comment; the clients give up after a minute.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);

fn failure(error: &Error) -> Failure {
    Failure::data("CommandError", error)
}

/// Starts a command, or attaches to the one with its id, and streams it.
pub(crate) async fn start(
    caller: Caller<Exec>,
    State(app): State<App>,
    Json(mut request): Json<Request>,
) -> Result<Response> {
    // This transport has no way to send input.
    request.close_stdin = true;
    let command_id = request.command_id.clone();
    let engine = app.host.engine();
    let sandbox = caller.sandbox().map_err(|error| failure(&error))?;
    drop(boxes::awake(engine, sandbox).await.map_err(|error| failure(&error))?);
    let view =
        get_or_create(engine, sandbox, request, caller.engine()).await.map_err(|error| failure(&error))?;
    let command_id = command_id.unwrap_or_else(|| view.record.id.to_string());
    stream(&app, &caller, &view, command_id, Offsets::default()).await
}

/// The command and the offsets to go on from.
#[derive(Debug, Deserialize)]
pub(crate) struct Resume {
    command_id: String,
    #[serde(default)]
    stdout_offset: u64,
    #[serde(default)]
    stderr_offset: u64,
}

/// Goes on with a command where the client left off.
pub(crate) async fn resume(
    caller: Caller<Exec>,
    State(app): State<App>,
    Json(request): Json<Resume>,
) -> Result<Response> {
    let engine = app.host.engine();
    let sandbox = caller.sandbox().map_err(|error| failure(&error))?;
    let found = match by_id(engine, sandbox, &request.command_id).await {
        // A client that made up no command id was told the exec's.
        Err(error) if error.code == Code::ExecNotFound => engine.exec(sandbox, &request.command_id).await,
        found => found,
    };
    let view = found.map_err(|error| failure(&error))?;
    // The output of one that has ended is read without waking the sandbox.
    if !view.record.state.is_final() {
        drop(boxes::awake(engine, sandbox).await.map_err(|error| failure(&error))?);
    }
    let from = Offsets { stdout: request.stdout_offset, stderr: request.stderr_offset };
    stream(&app, &caller, &view, request.command_id, from).await
}

/// The state of the stream.
struct Source {
    app: App,
    output: Output,
    /// Output that was sent, bytes.
    sent: usize,
    hello: Option<String>,
    over: bool,
}

async fn stream(
    app: &App,
    caller: &Caller<Exec>,
    view: &ExecView,
    command_id: String,
    from: Offsets,
) -> Result<Response> {
    let engine = app.host.engine();
    let feed = Feed::open(engine, view, &app.marks, Counting::Raw, from).await;
    let feed = feed.map_err(|error| failure(&error))?.read_by(caller.engine().key());
    let output = Output::new(engine, &view.record.sandbox, feed);
    let hello = event("started", &json!({"command_id": command_id, "pid": view.record.pid}));
    let source = Source { app: app.clone(), output, sent: 0, hello: Some(hello), over: false };
    let events = stream::unfold(source, |mut source| async move {
        let text = source.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), source))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

impl Source {
    async fn next(&mut self) -> Option<String> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        if self.over {
            return None;
        }
        if self.sent >= UNACKED_MAX_BYTES {
            self.over = true;
            let Offsets { stdout, stderr } = self.output.offsets();
            return Some(event("ack_required", &json!({"stdout_offset": stdout, "stderr_offset": stderr})));
        }
        let next = tokio::select! {
            next = self.output.next() => next,
            () = tokio::time::sleep(HEARTBEAT_EVERY) => return Some(": alive\n\n".to_owned()),
            () = self.app.host.draining() => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
        };
        Some(match next {
            Ok(Event::Raw { stream, offset, bytes }) => {
                self.sent += bytes.len();
                let name = match stream {
                    OutputStream::Stdout => "stdout",
                    OutputStream::Stderr => "stderr",
                };
                event(name, &json!({"offset": offset, "data": STANDARD.encode(&bytes)}))
            }
            Ok(Event::Text { .. }) => String::new(),
            Ok(Event::End(exit)) => {
                self.over = true;
                self.last(&outcome(&exit))
            }
            Err(error) => {
                self.over = true;
                let stops = error.code == Code::ShuttingDown;
                let kind = if stops { "ServerShuttingDown" } else { "CommandError" };
                event("error", &json!({"error_type": kind, "error": sentence(&error)}))
            }
        })
    }

    fn last(&self, outcome: &Outcome) -> String {
        let Offsets { stdout, stderr } = self.output.offsets();
        let ends = event("stream_end", &json!({"stream": "stdout", "offset": stdout}))
            + &event("stream_end", &json!({"stream": "stderr", "offset": stderr}));
        ends + &match outcome {
            Outcome::Exit(code) => event("exit", &json!({"exit_code": code})),
            Outcome::Error(kind, message) => event("error", &json!({"error_type": kind, "error": message})),
        }
    }
}
