//! Running commands, and waiting for them.

use std::time::Duration;

use atoll_core::Code;
use atoll_core::exec::ExecState;
use atoll_core::id::SandboxId;
use atoll_dialect_kit::exec as kit;
use atoll_engine::{Engine, ExecView};
use atoll_server::dialect::ClientGone;
use axum::Extension;
use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::shell;
use super::view::{exit_status, lines, status, view};
use crate::App;
use crate::devboxes::usable;
use crate::error::{Failure, Result};
use crate::once;
use crate::request::{self, Caller, Exec, Json, Path, Query, Read};

/// Longest wait of one request, seconds; the clients ask again.
const WAIT_MAX_S: f64 = 25.0;
/// Length of one wait; a wait without an end is made of several.
const WAIT: Duration = Duration::from_secs(60);

/// The command that a client asks to run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    command: Option<String>,
    command_id: Option<String>,
    shell_name: Option<String>,
    attach_stdin: Option<bool>,
    optimistic_timeout: Option<f64>,
}

/// How much of the output the client wants.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shown {
    last_n: Option<String>,
}

async fn start<S>(
    app: &App,
    caller: &Caller<S>,
    id: &str,
    asked: &Asked,
    key: Option<String>,
) -> Result<ExecView> {
    let record = usable(app, caller, id)?;
    let line = asked.command.as_deref().filter(|line| !line.is_empty());
    let line = line.ok_or_else(|| Failure::bad("command: is missing"))?;
    let draft = shell::draft(line, asked.shell_name.as_deref().filter(|name| !name.is_empty()))?;
    let stdin = asked.attach_stdin.unwrap_or_default();
    let draft = move |shell: &str| draft(shell).map(|draft| atoll_core::spec::ExecDraft { stdin, ..draft });
    let engine = app.host.engine();
    let view = kit::get_or_create(engine, &record.id, key.as_deref(), None, draft, caller.engine()).await;
    view.map_err(|error| match error.code {
        Code::SandboxNotFound => Failure::no_devbox(id),
        _ => Failure::of(&error),
    })
}

/// The key of an exec that is found by its request's idempotency key.
fn key_of(headers: &HeaderMap) -> Option<String> {
    once::id(headers).map(|id| format!("request/{}", blake3::hash(id.as_bytes()).to_hex()))
}

/// `execute`: answers when the command has ended, or after a while with its state.
pub(super) async fn execute(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(shown): Query<Shown>,
    headers: HeaderMap,
    Extension(client): Extension<ClientGone>,
    Json(asked): Json<Asked>,
) -> Result<Json<Value>> {
    let last = lines(shown.last_n.as_deref())?;
    let key = asked.command_id.clone().filter(|id| !id.is_empty()).or_else(|| key_of(&headers));
    let exec = start(&app, &caller, &id, &asked, key).await?;
    let most = crate::devboxes::duration(asked.optimistic_timeout, WAIT_MAX_S);
    let exec = ended(&app, &client, exec, Some(most)).await?;
    view(&app, &exec, last).await.map(Json)
}

/// `execute_async`: answers when the command has begun.
pub(super) async fn execute_async(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> Result<Json<Value>> {
    let exec = start(&app, &caller, &id, &asked, key_of(&headers)).await?;
    view(&app, &exec, None).await.map(Json)
}

/// `execute_sync`: answers when the command has ended, however long that takes.
pub(super) async fn execute_sync(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Extension(client): Extension<ClientGone>,
    Json(asked): Json<Asked>,
) -> Result<Json<Value>> {
    if asked.attach_stdin == Some(true) {
        return Err(Failure::bad("attach_stdin: is for execute_async"));
    }
    let exec = start(&app, &caller, &id, &asked, key_of(&headers)).await?;
    let exec = ended(&app, &client, exec, None).await?;
    let all = view(&app, &exec, None).await?;
    Ok(Json(json!({
        "devbox_id": all["devbox_id"],
        "exit_status": exit_status(&exec),
        "stdout": all["stdout"],
        "stderr": all["stderr"],
        "shell_name": asked.shell_name,
    })))
}

/// Waits until a command has ended: for at most this time, or without a limit.
async fn ended(
    app: &App,
    client: &ClientGone,
    mut exec: ExecView,
    most: Option<Duration>,
) -> Result<ExecView> {
    let engine = app.host.engine();
    let is_over = |exec: &ExecView| matches!(exec.record.state, ExecState::Exited | ExecState::Lost);
    let (sandbox, id) = (exec.record.sandbox.clone(), exec.record.id.clone());
    loop {
        if is_over(&exec) {
            return Ok(exec);
        }
        let next = engine.wait_exec(&sandbox, id.as_str(), most.unwrap_or(WAIT));
        exec = tokio::select! {
            next = client.unless_gone(next) => next.flatten().map_err(|error| Failure::of(&error))?,
            // When the client sends the request again, it finds the same command.
            () = app.host.draining() => {
                let error = atoll_core::Error::new(Code::ShuttingDown, "the server is shutting down");
                return if most.is_some() { Ok(exec) } else { Err(Failure::of(&error)) };
            }
        };
        if most.is_some() {
            return Ok(exec);
        }
    }
}

async fn find<S>(
    engine: &Engine,
    caller: &Caller<S>,
    id: &str,
    execution: &str,
) -> Result<(SandboxId, ExecView)> {
    let record = request::record(engine, caller, id)?;
    let exec = request::execution(engine, &record.id, execution).await?;
    Ok((record.id, exec))
}

/// One execution.
pub(super) async fn read(
    caller: Caller<Read>,
    State(app): State<App>,
    Path((id, execution)): Path<(String, String)>,
    Query(shown): Query<Shown>,
) -> Result<Json<Value>> {
    let last = lines(shown.last_n.as_deref())?;
    let (_, exec) = find(app.host.engine(), &caller, &id, &execution).await?;
    view(&app, &exec, last).await.map(Json)
}

/// The statuses to wait for, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wait {
    statuses: Vec<String>,
    timeout_seconds: Option<f64>,
}

/// `wait_for_status`: 408 when none of the statuses is reached in time.
pub(super) async fn wait(
    caller: Caller<Read>,
    State(app): State<App>,
    Path((id, execution)): Path<(String, String)>,
    Query(shown): Query<Shown>,
    Extension(client): Extension<ClientGone>,
    Json(wait): Json<Wait>,
) -> Result<Json<Value>> {
    let last = lines(shown.last_n.as_deref())?;
    let is_known = |word: &String| matches!(word.as_str(), "queued" | "running" | "completed");
    if wait.statuses.is_empty() || !wait.statuses.iter().all(is_known) {
        return Err(Failure::bad("statuses: name at least one of queued, running and completed"));
    }
    let reached = |exec: &ExecView| wait.statuses.iter().any(|word| word == status(exec));
    let (_, mut exec) = find(app.host.engine(), &caller, &id, &execution).await?;
    if !reached(&exec) {
        let most = crate::devboxes::duration(wait.timeout_seconds, WAIT_MAX_S);
        exec = ended(&app, &client, exec, Some(most)).await?;
    }
    if !reached(&exec) {
        return Err(Failure::not_yet());
    }
    view(&app, &exec, last).await.map(Json)
}

/// `kill`: ends a command with all its processes. For a command that has ended already, the answer is its state.
pub(super) async fn kill(
    caller: Caller<Exec>,
    State(app): State<App>,
    Path((id, execution)): Path<(String, String)>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let (sandbox, exec) = find(engine, &caller, &id, &execution).await?;
    let killed = match engine.kill_exec(&sandbox, exec.record.id.as_str()).await {
        Err(error) if error.code == Code::ExecEnded => exec,
        killed => killed.map_err(|error| Failure::of(&error))?,
    };
    view(&app, &killed, None).await.map(Json)
}
