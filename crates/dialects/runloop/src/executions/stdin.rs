//! Standard input of a command.

use atoll_core::Code;
use axum::extract::State;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::ids;
use crate::request::{self, Caller, Exec, Json, Path};

/// The signal of a terminal's interrupt key.
const INTERRUPT: &str = "SIGINT";

/// A text, or a signal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Input {
    text: Option<String>,
    signal: Option<String>,
}

/// `send_std_in`.
pub(super) async fn send(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path((id, execution)): Path<(String, String)>,
    Json(input): Json<Input>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let sandbox = request::record(engine, &caller, &id)?.id;
    let exec = request::execution(engine, &sandbox, &execution).await?.record.id;
    let write = async |text: String, close| {
        engine.write_stdin(&sandbox, exec.as_str(), Bytes::from(text), close).await.map(drop)
    };
    let closes = input.text.is_none() && input.signal.as_deref() == Some("EOF");
    let sent = match (input.text, input.signal.as_deref()) {
        (Some(text), None) => write(text, false).await,
        (text, Some("EOF")) => write(text.unwrap_or_default(), true).await,
        (None, Some("INTERRUPT")) => engine.signal_exec(&sandbox, exec.as_str(), INTERRUPT, true).await,
        (_, Some(_)) => return Err(Failure::bad("signal: must be EOF or INTERRUPT")),
        (None, None) => return Err(Failure::bad("give a text or a signal")),
    };
    // A command that has ended reads no more: there is nothing left to close.
    let sent = match sent {
        Err(error) if error.code == Code::ExecEnded && closes => Ok(()),
        sent => sent,
    };
    sent.map_err(|error| match error.code {
        Code::StdinClosed => Failure::bad(format!(
            "the standard input of execution {execution} is not open: start it with attach_stdin"
        )),
        Code::ExecEnded => Failure::bad(format!("execution {execution} has ended")),
        _ => Failure::of(&error),
    })?;
    let (devbox, execution) = (ids::of_sandbox(&sandbox), ids::of_exec(&exec));
    Ok(Json(json!({"devbox_id": devbox, "execution_id": execution, "success": true})))
}
