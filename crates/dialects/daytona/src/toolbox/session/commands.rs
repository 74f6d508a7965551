//! Commands of a session.

use std::fmt::Write as _;
use std::time::Duration;

use atoll_core::limits::ARG_MAX_BYTES;
use atoll_core::spec::{Command, ExecDraft, IdempotencyKey};
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{by_id, get_or_create};
use atoll_dialect_kit::sandboxes;
use atoll_engine::{ExecView, guest_error};
use atoll_guest_protocol::messages::Write;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::entrypoint;
use super::{existing, fail, missing, tag};
use crate::error::{Failure, Result};
use crate::request::{Json, Path};
use crate::toolbox::execute::ended;
use crate::toolbox::output::exit_code;
use crate::who::Inside;

/// The script that runs a command.
const SCRIPT: &str = include_str!("../../../guest/session.sh");
/// Place of the command among the arguments of its exec.
const COMMAND_ARG: usize = 5;
/// Longer commands are read from a file, bytes.
const LINE_MAX_BYTES: usize = ARG_MAX_BYTES - 1024;
/// How long a command waits for asynchronous commands that run.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a request for a command waits for its end: clients ask again every 0.1 s, and give up after one second.
const READ_WAIT: Duration = Duration::from_millis(400);

/// A command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    command: String,
    #[serde(rename = "runAsync")]
    run_async: Option<bool>,
    #[serde(rename = "async")]
    is_async: Option<bool>,
}

impl Run {
    fn is_async(&self) -> bool {
        self.run_async.or(self.is_async).unwrap_or_default()
    }
}

/// A command, as its session shows it.
pub(super) fn shown(view: &ExecView) -> Value {
    let record = &view.record;
    let id = record.idempotency_key.as_ref().and_then(IdempotencyKey::as_client).unwrap_or_default();
    // The exec in a plain shell has an id of its own; the client knows the first part.
    let id = id.split('/').next().unwrap_or_default();
    let command = record.spec.argv.get(COMMAND_ARG).map_or("", String::as_str);
    with_exit(json!({"id": id, "command": command}), view)
}

/// A command with its exit code, when it has ended.
pub(super) fn with_exit(mut shown: Value, view: &ExecView) -> Value {
    let record = &view.record;
    if let Some(exit) = record.exit.as_ref().filter(|_| record.state.is_final()) {
        shown["exitCode"] = exit_code(exit).into();
    }
    shown
}

/// Runs a command: to its end, or only until it has started.
pub(crate) async fn run(
    inside: Inside,
    Path((_, session)): Path<(String, String)>,
    Json(request): Json<Run>,
) -> Result<Response> {
    if request.command.trim().is_empty() {
        return Err(Failure::bad_daemon("command cannot be empty"));
    }
    let dir = existing(&inside, &session).await?;
    let turn = inside.app.turns.take(&format!("session {}/{session}", inside.id())).await;
    patient(&inside, &session).await?;
    // Another command may have had its turn for long: another may have the sandbox now, or the key may be gone.
    inside.recheck().map_err(fail)?;
    let id = random_id()?;
    let view = start(&inside, &dir, &session, &id, &request).await?;
    if request.is_async() {
        return Ok((StatusCode::ACCEPTED, Json(json!({"cmdId": id}))).into_response());
    }
    let (output, exit) = ended(&inside, view.record.id.as_str()).await?;
    drop(turn);
    let said = json!({
        "cmdId": id,
        "exitCode": exit_code(&exit),
        "output": output.both(),
        "stdout": output.stdout(),
        "stderr": output.stderr(),
    });
    Ok(output.answer(&said))
}

/// Waits a moment for the commands that run in a session already.
async fn patient(inside: &Inside, session: &str) -> Result<()> {
    let (tag, until) = (tag(session), Instant::now() + PATIENCE);
    for view in inside.engine().running_execs(inside.id()).await.map_err(fail)? {
        if view.record.spec.tag.as_ref() == Some(&tag) {
            let left = until.saturating_duration_since(Instant::now());
            match inside.engine().wait_exec(inside.id(), view.record.id.as_str(), left).await {
                Err(error) if error.code != Code::ExecNotFound => return Err(fail(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn random_id() -> Result<String> {
    let mut id = String::with_capacity(32);
    for _ in 0..2 {
        let random = getrandom::u64().map_err(|error| {
            tracing::error!(%error, "no randomness for a command");
            Failure::internal("the host's random generator failed")
        })?;
        let _ = write!(id, "{random:016x}");
    }
    Ok(id)
}

async fn start(inside: &Inside, dir: &str, session: &str, id: &str, request: &Run) -> Result<ExecView> {
    let command = match request.command.len() > LINE_MAX_BYTES {
        true => from_file(inside, dir, id, &request.command).await?,
        false => request.command.clone(),
    };
    let draft = |shell: &str| {
        let argv = [shell, "-c", SCRIPT, shell, dir, &command].map(str::to_owned).to_vec();
        Ok(ExecDraft {
            stdin: request.is_async(),
            tag: Some(tag(session)),
            ..ExecDraft::new(Command::Argv(argv))
        })
    };
    let made = get_or_create(inside.engine(), inside.id(), Some(id), None, draft, inside.recorded()).await;
    made.map_err(fail)
}

/// Writes a command to a file; gives the line that runs it.
async fn from_file(inside: &Inside, dir: &str, id: &str, command: &str) -> Result<String> {
    let guest = sandboxes::awake(inside.engine(), inside.id()).await.map_err(fail)?;
    let (path, user) = (format!("{dir}/{id}.sh"), inside.record()?.spec.user);
    let request = Write { path: path.clone(), mode: 0o600, user, parents: false, in_place: false };
    let mut writer = guest.write(request).await.map_err(|error| fail(guest_error(error)))?;
    for piece in command.as_bytes().chunks(256 << 10) {
        let piece = Bytes::copy_from_slice(piece);
        writer.send(piece).await.map_err(|error| fail(guest_error(error)))?;
    }
    writer.finish().await.map_err(|error| fail(guest_error(error)))?;
    Ok(format!("eval \"$(cat {path})\""))
}

/// The exec of a command, if it is one of this session.
pub(super) async fn find(inside: &Inside, session: &str, command: &str) -> Result<ExecView> {
    let unknown = || {
        let command = atoll_core::error::shorten(command);
        Failure::no_process(format!("command {command} not found"))
    };
    if session == entrypoint::SESSION && command == entrypoint::COMMAND {
        return entrypoint::exec(inside).await;
    }
    let view = match by_id(inside.engine(), inside.id(), command).await {
        Ok(view) => view,
        Err(Error { code: Code::ExecNotFound, .. }) => return Err(unknown()),
        Err(error) => return Err(fail(error)),
    };
    if view.record.spec.tag.as_deref() != Some(&tag(session)) {
        return Err(missing(session));
    }
    Ok(view)
}

/// The state of a command.
pub(crate) async fn read(
    inside: Inside,
    Path((_, session, command)): Path<(String, String, String)>,
) -> Result<Json<Value>> {
    if session == entrypoint::SESSION && command == entrypoint::COMMAND {
        return entrypoint::command(&inside).await;
    }
    let view = find(&inside, &session, &command).await?;
    let waited = inside.engine().wait_exec(inside.id(), view.record.id.as_str(), READ_WAIT).await;
    let mut shown = shown(&waited.map_err(fail)?);
    shown["id"] = command.into();
    Ok(Json(shown))
}

/// Input of a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Input {
    data: String,
}

/// Gives a command a line of input.
pub(crate) async fn input(
    inside: Inside,
    Path((_, session, command)): Path<(String, String, String)>,
    Json(Input { mut data }): Json<Input>,
) -> Result<StatusCode> {
    let view = find(&inside, &session, &command).await?;
    let over = || Failure::gone("COMMAND_ALREADY_COMPLETED", "the command has already completed");
    if view.record.state.is_final() {
        return Err(over());
    }
    if !data.ends_with('\n') {
        data.push('\n');
    }
    let exec = view.record.id.as_str();
    let written = inside.engine().write_stdin(inside.id(), exec, Bytes::from(data), false).await;
    written.map_err(|error| match error.code {
        Code::ExecEnded => over(),
        Code::StdinClosed => Failure::bad_daemon("the command takes no input: run it with runAsync"),
        _ => fail(error),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
