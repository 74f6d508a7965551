//! Commands. A client makes up the id of each: it is the exec's idempotency key, so that a start that the client sends
//! again starts nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::exec::{Exit, ExitReason};
use atoll_core::id::SandboxId;
use atoll_core::spec::{Command, ExecDraft, IdempotencyKey, TtySize};
use atoll_core::{Code, Error};
use atoll_dialect_kit::status::Status;
use atoll_engine::{Engine, ExecView};

use super::{Inside, tool};
use crate::auth::Asker;
use crate::control;
use crate::grpc::{Fault, Result};
use crate::wire::common::PTYInfo;
use crate::wire::router::{
    TaskExecPollRequest, TaskExecPollResponse, TaskExecStartRequest, TaskExecStartResponse,
    TaskExecWaitRequest, TaskExecWaitResponse,
};

/// The advice to a client that gives secrets of the installation.
const OF_COMMAND: &str = "give it to Sandbox.create, whose commands have it";

/// The server's name for the first command of a sandbox.
const FIRST: &str = "modal/first-command";
/// Ids have this many bytes at most.
const ID_MAX_BYTES: usize = 128;
/// How long one call waits for an end; clients give up a little later, and ask again.
const WAIT: Duration = Duration::from_secs(50);
/// `TASK_EXEC_STDERR_CONFIG_STDOUT`: both streams are one.
const STDERR_TO_STDOUT: i32 = 2;
/// Tag of execs whose streams are read as one.
pub(super) const MERGED: &str = "modal-merged";

/// The first command of a sandbox.
#[derive(Debug)]
pub(crate) struct First {
    pub(crate) argv: Vec<String>,
    pub(crate) tty: Option<TtySize>,
}

/// Size of a terminal.
pub(crate) fn size(pty: &PTYInfo) -> TtySize {
    let edge = |asked: u32, default: u16| match asked {
        0 => default,
        asked => u16::try_from(asked).unwrap_or(u16::MAX),
    };
    TtySize { cols: edge(pty.winsz_cols, 80), rows: edge(pty.winsz_rows, 24) }
}

/// Starts the first command.
///
/// # Errors
/// As [`Engine::create_exec`].
pub(crate) async fn start_first(asker: &Asker, sandbox: &SandboxId, first: First) -> Result<()> {
    let draft = ExecDraft {
        tty: first.tty,
        stdin: true,
        idempotency_key: Some(IdempotencyKey::server(FIRST)),
        ..ExecDraft::new(Command::Argv(first.argv))
    };
    asker.engine().create_exec(sandbox, draft, asker.caller()).await?;
    Ok(())
}

/// The first command.
///
/// # Errors
/// [`Code::ExecNotFound`] when the client gave none.
pub(crate) async fn first(engine: &Engine, sandbox: &SandboxId) -> Result<ExecView, Error> {
    engine.exec_by_key(sandbox, &IdempotencyKey::server(FIRST)).await
}

/// The key that a client's id is.
fn check_id(id: &str) -> Result<IdempotencyKey> {
    let fits = (1..=ID_MAX_BYTES).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let key = IdempotencyKey::client(id).ok().filter(|_| fits);
    key.ok_or_else(|| Fault::invalid("exec_id: must have 1 to 128 letters, digits, hyphens"))
}

/// The exec with a client's id.
///
/// # Errors
/// `NOT_FOUND`.
pub(super) async fn find(inside: &Inside, id: &str) -> Result<ExecView> {
    let key = check_id(id)?;
    let found = inside.asker.engine().exec_by_key(inside.id(), &key).await;
    found.map_err(|error| match error.code {
        Code::ExecNotFound => {
            Fault::not_found(format!("exec '{}' not found", atoll_core::error::shorten(id)))
        }
        _ => Fault::of(&error),
    })
}

/// `TaskExecStart`.
pub(super) async fn start(inside: &Inside, request: TaskExecStartRequest) -> Result<TaskExecStartResponse> {
    inside.is(&request.task_id)?;
    let key = check_id(&request.exec_id)?;
    if !request.container_id.is_empty() {
        return Err(Fault::unsupported("sidecar containers are not supported by this server"));
    }
    if request.command_args.is_empty() {
        return Err(Fault::invalid("command_args: is empty"));
    }
    if request.command_args[0] == tool::PATH {
        let argument = request.command_args.get(1).map(String::as_str);
        tool::start(inside, &request.exec_id, argument).await?;
        return Ok(TaskExecStartResponse {});
    }
    let tty = request.pty_info.as_ref().filter(|pty| pty.enabled);
    let mut env: BTreeMap<String, String> = request.env;
    env.extend(
        control::given(&inside.asker, &request.secret_ids, &request.secret_sources)?.plain(OF_COMMAND)?,
    );
    if let Some(term) = tty.map(|pty| &pty.env_term).filter(|term| !term.is_empty()) {
        env.entry("TERM".to_owned()).or_insert_with(|| term.clone());
    }
    let merged = request.stderr_config == STDERR_TO_STDOUT;
    let draft = ExecDraft {
        env,
        cwd: request.workdir.filter(|dir| !dir.is_empty()),
        tty: tty.map(size),
        stdin: true,
        timeout_ms: request.timeout_secs.filter(|s| *s > 0).map(|s| u64::from(s) * 1000),
        idempotency_key: Some(key),
        tag: merged.then(|| MERGED.to_owned()),
        ..ExecDraft::new(Command::Argv(request.command_args))
    };
    let started = inside.asker.engine().create_exec(inside.id(), draft, inside.asker.caller()).await;
    match started {
        Ok(_) => Ok(TaskExecStartResponse {}),
        // The sandbox's environment changed between the client's two requests: it is still the same command.
        Err(error) if error.code == Code::IdempotencyMismatch => {
            find(inside, &request.exec_id).await?;
            Ok(TaskExecStartResponse {})
        }
        Err(error) => Err(Fault::of(&error)),
    }
}

/// Code and signal of an exit; a client gets one of the two.
fn end(exit: &Exit) -> (Option<i32>, Option<i32>) {
    match (exit.signal, exit.code) {
        // The client's own clock tells it about the time limit; if that clock is behind, the client gets this code.
        _ if exit.reason == ExitReason::TimedOut => (Some(-1), None),
        (Some(signal), _) => (None, Some(signal)),
        (None, Some(code)) => (Some(code), None),
        // The command ended with its sandbox.
        (None, None) => (None, Some(9)),
    }
}

/// `TaskExecPoll`.
pub(super) async fn poll(inside: &Inside, request: TaskExecPollRequest) -> Result<TaskExecPollResponse> {
    inside.is(&request.task_id)?;
    if let Some(tool) = inside.tool(&request.exec_id) {
        return Ok(TaskExecPollResponse { code: tool.code(), signal: None });
    }
    let view = find(inside, &request.exec_id).await?;
    let (code, signal) = view.record.exit.as_ref().map(end).unwrap_or_default();
    Ok(TaskExecPollResponse { code, signal })
}

/// `TaskExecWait`.
pub(super) async fn wait(inside: &Inside, request: TaskExecWaitRequest) -> Result<TaskExecWaitResponse> {
    inside.is(&request.task_id)?;
    if let Some(tool) = inside.tool(&request.exec_id) {
        let code = inside.asker.head.gone.unless_gone(tool.wait()).await??;
        return Ok(TaskExecWaitResponse { code: Some(code), signal: None });
    }
    let view = find(inside, &request.exec_id).await?;
    let engine = inside.asker.engine();
    let waiting = engine.wait_exec(inside.id(), view.record.id.as_str(), WAIT);
    let view = inside.asker.head.gone.unless_gone(waiting).await??;
    let exit = view
        .record
        .exit
        .as_ref()
        .ok_or_else(|| Fault::new(Status::DeadlineExceeded, "the command still runs: ask again"))?;
    let (code, signal) = end(exit);
    Ok(TaskExecWaitResponse { code, signal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        let of = |reason, code, signal| end(&Exit { reason, code, signal, error: None });
        assert_eq!(of(ExitReason::Exited, Some(3), None), (Some(3), None));
        assert_eq!(of(ExitReason::Signaled, Some(137), Some(9)), (None, Some(9)));
        assert_eq!(of(ExitReason::TimedOut, Some(137), Some(9)), (Some(-1), None));
        assert_eq!(end(&Exit::sandbox_died()), (None, Some(9)));
    }

    #[test]
    fn ids_are_bounded() {
        assert!(check_id("6b1f0a4e-0000-4000-8000-000000000000").is_ok());
        for bad in ["", FIRST, "a\n", &"x".repeat(200)] {
            assert!(check_id(bad).is_err(), "{bad}");
        }
    }
}
