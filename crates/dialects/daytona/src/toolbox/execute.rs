//! One command and its output.

use std::collections::BTreeMap;

use atoll_core::exec::{Exit, ExitReason};
use atoll_core::{Code, Error};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::output::{self, exit_code};
use super::shell::Line;
use crate::error::{Failure, Result, Source};
use crate::request::Json;
use crate::who::Inside;

/// A command.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Execute {
    command: String,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    timeout: Option<i64>,
}

/// Seconds that a command may take; none and zero are no limit.
pub(super) fn seconds(timeout: Option<i64>) -> Option<u64> {
    timeout.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0)
}

/// Runs a command to its end.
pub(super) async fn execute(inside: Inside, Json(request): Json<Execute>) -> Result<Response> {
    if request.command.trim().is_empty() {
        let failure = Failure::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", "command: is required");
        return Err(failure.from(Source::Daemon));
    }
    let line = Line {
        // Both streams go through one pipe, so that the text that the client gets has one order.
        command: format!("exec 2>&1; {}", request.command),
        cwd: request.cwd,
        env: request.envs.unwrap_or_default(),
        timeout_s: seconds(request.timeout),
    };
    let view = match line.start(&inside).await {
        Ok(view) => view,
        // A missing directory or user is a failure of the command, not of the request.
        Err(error) if matches!(error.code, Code::CwdNotFound | Code::UserNotFound) => {
            return Ok(Json(json!({"exitCode": -1, "result": error.message})).into_response());
        }
        Err(error) => return Err(Failure::of_daemon(&error)),
    };
    let (output, exit) = ended(&inside, view.record.id.as_str()).await?;
    let said = json!({"exitCode": exit_code(&exit), "result": output.both()});
    Ok(output.answer(&said))
}

/// Waits for the end of a command.
///
/// # Errors
/// 408 when the command was killed at its time limit; an error when the sandbox ended it.
pub(super) async fn ended(inside: &Inside, exec: &str) -> Result<(output::Output, Exit)> {
    let fail = |error: Error| Failure::of_daemon(&error);
    let reader = inside.engine().output_whole(inside.id(), exec).await.map_err(fail)?;
    let (reader, held) =
        (reader.read_by(inside.recorded().key()), inside.app.outputs.hold(inside.recorded()));
    let (output, exit) = output::whole(reader, held).await.map_err(fail)?;
    match exit.reason {
        ExitReason::TimedOut | ExitReason::IdleTimedOut => {
            let why = "command execution timeout";
            let failure = Failure::new(StatusCode::REQUEST_TIMEOUT, "PROCESS_EXECUTION_TIMEOUT", why);
            Err(failure.from(Source::Daemon))
        }
        ExitReason::SandboxDied => Err(Failure::internal("the sandbox died").from(Source::Daemon)),
        ExitReason::SandboxPaused | ExitReason::RolledBack => {
            Err(Failure::conflict("the sandbox was stopped meanwhile").from(Source::Daemon))
        }
        ExitReason::BudgetExhausted => {
            Err(Failure::conflict("the sandbox's budget is used up").from(Source::Daemon))
        }
        _ => Ok((output, exit)),
    }
}
