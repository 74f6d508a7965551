//! A command in one request and one answer: `execute`.

use atoll_core::exec::OutputStream;
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{Counting, Event, Feed, Offsets};
use atoll_server::dialect::ClientGone;
use axum::Extension;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;

use super::{Outcome, Output, Request, get_or_create, outcome};
use crate::App;
use crate::boxes;
use crate::error::{Failure, Result};
use crate::request::{Caller, Exec, Json};

/// Most output that one answer carries, bytes.
const OUTPUT_MAX_BYTES: usize = 64 << 20;
/// Timeout of a command whose client gives none, seconds.
const TIMEOUT_S: f64 = 60.0;

/// The result of a command.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Answer {
    stdout: String,
    stderr: String,
    exit_code: i32,
}

fn failure(error: &Error) -> Failure {
    Failure::data("CommandError", error)
}

/// The error of output that does not come. A command here ends with its client, so it does not outlast a stop.
fn stopped(error: &Error) -> Failure {
    match error.code {
        Code::InvalidState => {
            Failure::new(StatusCode::GONE, "CommandError", "the sandbox was stopped under the command")
        }
        _ => failure(error),
    }
}

/// Runs a command and answers with its output when it has ended. A client that does not wait for the
/// answer ends the command.
pub(crate) async fn execute(
    caller: Caller<Exec>,
    State(app): State<App>,
    Extension(client): Extension<ClientGone>,
    Json(mut request): Json<Request>,
) -> Result<Json<Answer>> {
    request.close_stdin = true;
    request.kill_on_disconnect = true;
    request.timeout_seconds.get_or_insert(TIMEOUT_S);
    let engine = app.host.engine();
    let sandbox = caller.sandbox().map_err(|error| failure(&error))?;
    drop(boxes::awake(engine, sandbox).await.map_err(|error| failure(&error))?);
    let view =
        get_or_create(engine, sandbox, request, caller.engine()).await.map_err(|error| failure(&error))?;
    let feed = Feed::open(engine, &view, &app.marks, Counting::Text, Offsets::default()).await;
    let feed = feed.map_err(|error| failure(&error))?.read_by(caller.engine().key());
    let mut output = Output::new(engine, sandbox, feed);
    let mut answer = Answer::default();
    let exit = loop {
        let event = tokio::select! {
            event = client.unless_gone(output.next()) => event.flatten(),
            () = app.host.draining() => Err(Error::new(Code::Timeout, "the server is shutting down")),
        };
        match event.map_err(|error| stopped(&error))? {
            Event::Text { stream: OutputStream::Stdout, text, .. } => answer.stdout.push_str(&text),
            Event::Text { text, .. } => answer.stderr.push_str(&text),
            Event::Raw { .. } => {}
            Event::End(exit) => break exit,
        }
        if answer.stdout.len() + answer.stderr.len() > OUTPUT_MAX_BYTES {
            let error = Error::new(Code::InvalidArgument, "the command wrote more than 64 MiB")
                .hint("write to a file, or run it over the WebSocket");
            return Err(failure(&error));
        }
    };
    match outcome(&exit) {
        Outcome::Exit(code) => Ok(Json(Answer { exit_code: code, ..answer })),
        // Never a status that the client retries: the command would run again.
        Outcome::Error("CommandTimeout", message) => {
            Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "CommandError", message))
        }
        Outcome::Error(kind, message) => Err(Failure::new(StatusCode::GONE, kind, message)),
    }
}
