//! Language servers of the image: `pylsp`, `typescript-language-server`.
//!
//! Each is an exec (`guest/lsp.py`) that speaks with the language server and answers each question with one line. It is
//! found by its tag, which names language and project, and goes on when this server restarts. Questions to one of them
//! are asked one after the other.

use std::time::Duration;

use atoll_core::Error;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::spec::{Command, ExecDraft};
use atoll_engine::{ExecView, OutputReader};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{Answers, NoAnswer};
use super::files::paths;
use crate::error::{Failure, Result, Source};
use crate::request::{Json, Query};
use crate::who::Inside;

/// The script that speaks with the language server.
const SCRIPT: &str = include_str!("../../guest/lsp.py");
/// Every tag of a language server begins with it.
const TAG: &str = "daytona lsp ";
/// How long an answer may take: the script gives up after a minute.
const WAIT: Duration = Duration::from_secs(70);
/// Longest answer, bytes.
const LINE_MAX_BYTES: usize = 16 << 20;
/// Most language servers of one sandbox.
const SERVERS_MAX: usize = 16;

/// The question of a client, in a body or a query.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    language_id: String,
    path_to_project: String,
    uri: String,
    query: String,
    position: Option<Value>,
    context: Option<Value>,
}

fn fail(error: Error) -> Failure {
    Failure::of_daemon(&error)
}

async fn running(inside: &Inside) -> Result<Vec<ExecView>> {
    let mut running = inside.engine().running_execs(inside.id()).await.map_err(fail)?;
    running.retain(|view| view.record.spec.tag.as_deref().is_some_and(|tag| tag.starts_with(TAG)));
    Ok(running)
}

/// One language server.
struct Server {
    tag: String,
    project: String,
    exec: Option<ExecView>,
}

impl Server {
    async fn of(inside: &Inside, asked: &Asked) -> Result<Self> {
        if !matches!(asked.language_id.as_str(), "python" | "typescript" | "javascript") {
            return Err(Failure::bad_daemon("languageId: must be python, typescript or javascript"));
        }
        if asked.path_to_project.is_empty() {
            return Err(Failure::bad_daemon("pathToProject is required"));
        }
        let project = paths::absolute(inside, &asked.path_to_project).await.map_err(fail)?;
        let tag = format!("{TAG}{} {project}", asked.language_id);
        let found =
            running(inside).await?.into_iter().find(|view| view.record.spec.tag.as_deref() == Some(&tag));
        Ok(Self { tag, project, exec: found })
    }
}

/// Starts the server of a language and a project, unless it runs.
pub(super) async fn start(inside: Inside, Json(asked): Json<Asked>) -> Result<StatusCode> {
    let _turn = inside.app.turns.take(&format!("lsp start {}", inside.id())).await;
    let server = Server::of(&inside, &asked).await?;
    if server.exec.is_some() {
        return Ok(StatusCode::OK);
    }
    if running(&inside).await?.len() >= SERVERS_MAX {
        let why = format!("more than {SERVERS_MAX} language servers run in this sandbox: stop one");
        return Err(Failure::conflict(why).from(Source::Daemon));
    }
    let argv =
        ["python3", "-u", "-c", SCRIPT, &asked.language_id, &server.project].map(str::to_owned).to_vec();
    let draft = ExecDraft {
        cwd: Some(paths::base(&inside).await.map_err(fail)?),
        stdin: true,
        tag: Some(server.tag),
        ..ExecDraft::new(Command::Argv(argv))
    };
    let engine = inside.engine();
    let view = engine.create_exec(inside.id(), draft, inside.recorded()).await.map_err(fail)?;
    if view.record.exit.as_ref().is_some_and(|exit| exit.error.is_some()) {
        return Err(Failure::internal("this sandbox has no python3").from(Source::Daemon));
    }
    let reader = engine.output(inside.id(), view.record.id.as_str(), 0, false).await.map_err(fail)?;
    answer(reader.read_by(inside.recorded().key()), "start".to_owned()).await?;
    Ok(StatusCode::OK)
}

/// Ends the language server.
pub(super) async fn stop(inside: Inside, Json(asked): Json<Asked>) -> Result<StatusCode> {
    let server = Server::of(&inside, &asked).await?;
    let exec = server.exec.ok_or_else(not_started)?;
    // If it does not stop, it is killed below.
    drop(ask(&inside, &exec, json!({"op": "stop"})).await);
    inside.engine().kill_exec(inside.id(), exec.record.id.as_str()).await.map_err(fail)?;
    Ok(StatusCode::OK)
}

/// The client opened a document.
pub(super) async fn did_open(inside: Inside, Json(asked): Json<Asked>) -> Result<StatusCode> {
    question(&inside, &asked, json!({"op": "open", "uri": &asked.uri})).await.map(|_| StatusCode::OK)
}

/// The client closed a document.
pub(super) async fn did_close(inside: Inside, Json(asked): Json<Asked>) -> Result<StatusCode> {
    question(&inside, &asked, json!({"op": "close", "uri": &asked.uri})).await.map(|_| StatusCode::OK)
}

/// The symbols of a document.
pub(super) async fn document_symbols(inside: Inside, Query(asked): Query<Asked>) -> Result<Json<Value>> {
    question(&inside, &asked, json!({"op": "symbols", "uri": &asked.uri})).await.map(Json)
}

/// The symbols of a project that match.
pub(super) async fn workspace_symbols(inside: Inside, Query(asked): Query<Asked>) -> Result<Json<Value>> {
    question(&inside, &asked, json!({"op": "workspace", "query": &asked.query})).await.map(Json)
}

/// The completions at a position.
pub(super) async fn completions(inside: Inside, Json(asked): Json<Asked>) -> Result<Json<Value>> {
    let asking = json!({"op": "completions", "uri": &asked.uri, "position": &asked.position, "context": &asked.context});
    question(&inside, &asked, asking).await.map(Json)
}

fn not_started() -> Failure {
    let why = "the language server is not initialized: start it first";
    Failure::new(StatusCode::BAD_REQUEST, "LSP_SERVER_NOT_INITIALIZED", why).from(Source::Daemon)
}

async fn question(inside: &Inside, asked: &Asked, asking: Value) -> Result<Value> {
    let server = Server::of(inside, asked).await?;
    let exec = server.exec.ok_or_else(not_started)?;
    ask(inside, &exec, asking).await
}

async fn ask(inside: &Inside, exec: &ExecView, mut asking: Value) -> Result<Value> {
    let (engine, exec) = (inside.engine(), exec.record.id.as_str());
    let _turn = inside.app.turns.take(&format!("lsp {}/{exec}", inside.id())).await;
    // Other questions may have had their turns for long: another may have the sandbox now, or the key may be gone.
    inside.recheck().map_err(fail)?;
    let id = super::interpreter::random()?;
    let now = engine.exec(inside.id(), exec).await.map_err(fail)?;
    let reader = engine.output(inside.id(), exec, now.extent.end, false).await.map_err(fail)?;
    asking["id"] = id.as_str().into();
    let mut bytes = Bytes::from(asking.to_string() + "\n");
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(STDIN_CHUNK_MAX_BYTES));
        engine.write_stdin(inside.id(), exec, piece, false).await.map_err(fail)?;
    }
    answer(reader.read_by(inside.recorded().key()), id).await
}

/// The answer to a question.
async fn answer(reader: OutputReader, id: String) -> Result<Value> {
    let mut answers = Answers::new(reader, id, LINE_MAX_BYTES);
    let said = tokio::time::timeout(WAIT, answers.next()).await;
    let mut said = said.map_err(|_elapsed| broken("the language server does not answer"))?.map_err(none)?;
    match said["error"].as_str() {
        Some(error) => Err(Failure::bad_daemon(atoll_core::error::shorten(error).to_string())),
        None => Ok(said["result"].take()),
    }
}

fn none(why: NoAnswer) -> Failure {
    match why {
        NoAnswer::Ended => broken("the language server has ended"),
        NoAnswer::TooLong => broken("the language server's answer is too long"),
        NoAnswer::ShuttingDown => broken("the server is shutting down"),
        NoAnswer::Failed(error) => fail(error),
    }
}

fn broken(why: &str) -> Failure {
    Failure::internal(why).from(Source::Daemon)
}
