//! Language servers of the image: `pylsp`, `typescript-language-server`.
//!
//! Each is an exec (`guest/lsp.py`) that speaks with the language server and answers each question with one line. It is
//! found by its tag, which names language and project, and goes on when this server restarts. Questions to one of them
//! are asked one after the other.

use std::time::Duration;

use atoll_core::Error;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::spec::{Command, ExecDraft};
use atoll_dialect_kit::memory::Held;
use atoll_engine::{ExecView, OutputReader};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answers::{Answer, Answers, NoAnswer};
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
    answer(&inside, reader, "start".to_owned()).await?;
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
pub(super) async fn document_symbols(inside: Inside, Query(asked): Query<Asked>) -> Result<Found> {
    question(&inside, &asked, json!({"op": "symbols", "uri": &asked.uri})).await
}

/// The symbols of a project that match.
pub(super) async fn workspace_symbols(inside: Inside, Query(asked): Query<Asked>) -> Result<Found> {
    question(&inside, &asked, json!({"op": "workspace", "query": &asked.query})).await
}

/// The completions at a position.
pub(super) async fn completions(inside: Inside, Json(asked): Json<Asked>) -> Result<Found> {
    let asking = json!({"op": "completions", "uri": &asked.uri, "position": &asked.position, "context": &asked.context});
    question(&inside, &asked, asking).await
}

fn not_started() -> Failure {
    let why = "the language server is not initialized: start it first";
    Failure::new(StatusCode::BAD_REQUEST, "LSP_SERVER_NOT_INITIALIZED", why).from(Source::Daemon)
}

/// What a language server found, as JSON.
pub(super) struct Found {
    text: Bytes,
    /// For the text, until the client has it.
    held: Held,
}

impl IntoResponse for Found {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(CONTENT_TYPE, json)], self.held.body(self.text)).into_response()
    }
}

async fn question(inside: &Inside, asked: &Asked, asking: Value) -> Result<Found> {
    let server = Server::of(inside, asked).await?;
    let exec = server.exec.ok_or_else(not_started)?;
    ask(inside, &exec, asking).await
}

async fn ask(inside: &Inside, exec: &ExecView, mut asking: Value) -> Result<Found> {
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
    answer(inside, reader, id).await
}

/// The answer to a question.
async fn answer(inside: &Inside, reader: OutputReader, id: String) -> Result<Found> {
    let (reader, held) =
        (reader.read_by(inside.recorded().key()), inside.app.outputs.hold(inside.recorded()));
    let mut answers = Answers::new(reader, id, LINE_MAX_BYTES, held);
    let said = tokio::time::timeout(WAIT, answers.next()).await;
    let said = said.map_err(|_elapsed| broken("the language server does not answer"))?.map_err(none)?;
    let text = found(&said)?;
    let mut held = answers.into_held();
    held.keep(text.len());
    Ok(Found { text, held })
}

/// What the script says: a result, or why there is none.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The result in an answer.
fn found(answer: &Answer) -> Result<Bytes> {
    let said: Said<'_> = answer.read().unwrap_or_default();
    if let Some(error) = said.error.and_then(|error| serde_json::from_str::<String>(error.get()).ok()) {
        return Err(Failure::bad_daemon(atoll_core::error::shorten(&error)));
    }
    let result = said.result.map_or("null", RawValue::get);
    Ok(Bytes::from(result.to_owned()))
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
