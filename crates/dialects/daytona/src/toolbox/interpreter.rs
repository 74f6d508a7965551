//! Contexts of a Python interpreter: one that all clients of a sandbox share, and those that clients make.
//!
//! A context is an exec (`guest/interpreter.py`) that gets code and reports its results. It is found by its tag, and
//! begins when it is first used. The pieces of code of one context run one after the other.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::Error;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::spec::{Command, ExecDraft};
use atoll_dialect_kit::time;
use atoll_engine::ExecView;
use axum::extract::Request;
use axum::extract::ws::{Message, WebSocket, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::answers::{Answer, Answers, NoAnswer};
use super::files::paths;
use super::socket::{self, Left, Sink};
use crate::error::{Failure, Result, Source};
use crate::request::{Json, Path};
use crate::who::Inside;

/// The script that runs the code.
const SCRIPT: &str = include_str!("../../guest/interpreter.py");
/// Every tag of a context begins with it.
const TAG: &str = "daytona interpreter ";
/// The context of clients that name none.
const DEFAULT: &str = "default";
/// Time limit of a piece of code when the client gives none, seconds.
const TIMEOUT_S: u64 = 600;
/// The socket is closed with this code when the time is over.
const TIMED_OUT: u16 = 4008;
/// How long code may take to end after an interruption.
const HEED_WAIT: Duration = Duration::from_secs(3);
/// How long a client may take to send its code.
const FIRST_WAIT: Duration = Duration::from_secs(30);
/// Longest line that an interpreter may write, bytes: it has at most 32 KiB of output, and each byte takes at most six.
const LINE_MAX_BYTES: usize = 1 << 20;

fn fail(error: Error) -> Failure {
    Failure::of_daemon(&error)
}

pub(super) fn random() -> Result<String> {
    let random = getrandom::u64().map_err(|error| {
        tracing::error!(%error, "no randomness for a context");
        Failure::internal("the host's random generator failed")
    })?;
    Ok(format!("{random:016x}"))
}

fn id_of(view: &ExecView) -> Option<&str> {
    view.record.spec.tag.as_deref()?.strip_prefix(TAG)
}

async fn running(inside: &Inside) -> Result<Vec<ExecView>> {
    let mut running = inside.engine().running_execs(inside.id()).await.map_err(fail)?;
    running.retain(|view| id_of(view).is_some());
    running.sort_unstable_by(|one, other| one.record.id.cmp(&other.record.id));
    Ok(running)
}

async fn find(inside: &Inside, id: &str) -> Result<Option<ExecView>> {
    Ok(running(inside).await?.into_iter().find(|view| id_of(view) == Some(id)))
}

fn missing(id: &str) -> Failure {
    Failure::not_found(format!("context {} not found", atoll_core::error::shorten(id))).from(Source::Daemon)
}

async fn start(inside: &Inside, id: &str, cwd: Option<&str>) -> Result<ExecView> {
    let cwd = match cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => paths::absolute(inside, cwd).await,
        None => paths::base(inside).await,
    };
    let argv = ["python3", "-u", "-c", SCRIPT].map(str::to_owned).to_vec();
    let draft = ExecDraft {
        cwd: Some(cwd.map_err(fail)?),
        stdin: true,
        tag: Some(format!("{TAG}{id}")),
        ..ExecDraft::new(Command::Argv(argv))
    };
    let view = inside.engine().create_exec(inside.id(), draft, inside.recorded()).await.map_err(fail)?;
    if view.record.exit.as_ref().is_some_and(|exit| exit.error.is_some()) {
        return Err(Failure::internal("this sandbox has no python3").from(Source::Daemon));
    }
    Ok(view)
}

fn shown(view: &ExecView) -> Value {
    json!({
        "id": id_of(view),
        "active": !view.record.state.is_final(),
        "cwd": view.record.spec.cwd.as_deref().unwrap_or_default(),
        "language": "python",
        "createdAt": time::iso(view.record.created_ms),
    })
}

/// The context that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Create {
    cwd: Option<String>,
    language: Option<String>,
}

/// Makes a context.
pub(super) async fn create(inside: Inside, Json(asked): Json<Create>) -> Result<Json<Value>> {
    if asked.language.as_deref().is_some_and(|language| !matches!(language, "" | "python")) {
        return Err(Failure::bad_daemon("language: contexts are of python"));
    }
    let view = start(&inside, &random()?, asked.cwd.as_deref()).await?;
    Ok(Json(shown(&view)))
}

/// The contexts that clients made.
pub(super) async fn list(inside: Inside) -> Result<Json<Value>> {
    let all = running(&inside).await?;
    let made = all.iter().filter(|view| id_of(view) != Some(DEFAULT));
    Ok(Json(json!({"contexts": made.map(shown).collect::<Vec<_>>()})))
}

/// Ends a context.
pub(super) async fn remove(inside: Inside, Path((_, id)): Path<(String, String)>) -> Result<Json<Value>> {
    if id == DEFAULT {
        return Err(Failure::bad_daemon("the default context cannot be deleted"));
    }
    let view = find(&inside, &id).await?.ok_or_else(|| missing(&id))?;
    inside.engine().kill_exec(inside.id(), view.record.id.as_str()).await.map_err(fail)?;
    Ok(Json(json!({"message": "context deleted"})))
}

/// A piece of code.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Run {
    code: String,
    context_id: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    timeout: Option<i64>,
}

impl Run {
    /// The end of its time; `None` is never.
    fn until(&self) -> Option<Instant> {
        let seconds = self.timeout.map_or(TIMEOUT_S, |seconds| u64::try_from(seconds).unwrap_or_default());
        (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds.min(365 * 24 * 3600)))
    }

    /// The line that tells the interpreter.
    fn line(&self, id: &str) -> String {
        json!({"id": id, "code": self.code, "envs": self.envs}).to_string() + "\n"
    }
}

/// Runs code that comes over a WebSocket.
pub(super) async fn execute(inside: Inside, request: Request) -> Result<Response> {
    let of_task = inside.clone();
    socket::open(&inside, request, move |socket, draining| async move {
        serve(of_task, socket, draining).await;
    })
    .await
}

async fn serve(inside: Inside, socket: WebSocket, draining: CancellationToken) {
    let (mut sink, mut stream) = socket.split();
    let first = async {
        loop {
            match stream.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                Some(Ok(Message::Binary(bytes))) => {
                    return String::from_utf8(bytes.into()).map_err(|_no_text| Left::Gone);
                }
                Some(Ok(Message::Close(_))) | None => return Err(Left::Gone),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(error)) => return Err(Left::Refused(error)),
            }
        }
    };
    let first = match tokio::time::timeout(FIRST_WAIT, first).await {
        Ok(Ok(first)) => first,
        Ok(Err(left)) => return left.tell(&mut sink).await,
        Err(_elapsed) => return,
    };
    let ended = tokio::select! {
        ended = run(&inside, &mut sink, &first) => ended,
        // A client that has gone gets nothing more; the code goes on.
        left = socket::gone(&mut stream) => return left.tell(&mut sink).await,
        () = draining.cancelled() => (close_code::AWAY, String::new()),
    };
    socket::close(&mut sink, &mut stream, ended.0, &ended.1).await;
}

/// Runs one piece of code. Gives the code and reason to close the socket with.
async fn run(inside: &Inside, sink: &mut Sink, text: &str) -> (u16, String) {
    let refused =
        |failure: Failure| (close_code::POLICY, atoll_core::error::shorten(&failure.message).to_string());
    let request: Run = match serde_json::from_str(text) {
        Ok(request) => request,
        Err(error) => return refused(Failure::bad_daemon(format!("the request is not understood: {error}"))),
    };
    let id = request.context_id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| DEFAULT.to_owned());
    let _turn = inside.app.turns.take(&format!("interpreter {}/{id}", inside.id())).await;
    // Other code may have had its turn for long: another may have the sandbox now, or the key may be gone.
    if let Err(error) = inside.recheck() {
        return refused(fail(error));
    }
    let context = match find(inside, &id).await {
        Ok(Some(view)) => Ok(view),
        Ok(None) if id == DEFAULT => start(inside, DEFAULT, None).await,
        Ok(None) => Err(missing(&id)),
        Err(failure) => Err(failure),
    };
    let begun = match context {
        Ok(context) => begin(inside, &context, &request).await.map(|begun| (context, begun)),
        Err(failure) => Err(failure),
    };
    let (context, mut answers) = match begun {
        Ok(begun) => begun,
        Err(failure) => return refused(failure),
    };
    match pass_on(&mut answers, sink, request.until()).await {
        Outcome::Done => (close_code::NORMAL, String::new()),
        Outcome::TimedOut => {
            interrupt(inside, &context, answers).await;
            (TIMED_OUT, "Execution timed out".to_owned())
        }
        Outcome::Ended => {
            let told = json!({"type": "error", "name": "InterpreterExited", "value": "the interpreter ended", "traceback": ""});
            drop(sink.send(Message::text(told.to_string())).await);
            (close_code::NORMAL, String::new())
        }
        Outcome::Broken => (close_code::ERROR, "the interpreter cannot be understood".to_owned()),
        Outcome::Gone => (close_code::NORMAL, String::new()),
    }
}

/// Sends code to its context.
async fn begin(inside: &Inside, context: &ExecView, request: &Run) -> Result<Answers> {
    let (engine, exec) = (inside.engine(), context.record.id.as_str());
    let now = engine.exec(inside.id(), exec).await.map_err(fail)?;
    let reader = engine.output(inside.id(), exec, now.extent.end, false).await.map_err(fail)?;
    let id = random()?;
    let mut bytes = Bytes::from(request.line(&id));
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(STDIN_CHUNK_MAX_BYTES));
        engine.write_stdin(inside.id(), exec, piece, false).await.map_err(fail)?;
    }
    let held = inside.app.outputs.hold(inside.recorded());
    Ok(Answers::new(reader.read_by(inside.recorded().key()), id, LINE_MAX_BYTES, held))
}

/// Interrupts code whose time is over. A context whose code does not end then is killed.
async fn interrupt(inside: &Inside, context: &ExecView, mut answers: Answers) {
    let (engine, exec) = (inside.engine(), context.record.id.as_str());
    let interrupted = engine.signal_exec(inside.id(), exec, "INT", false).await;
    let heeded = async { while answers.next().await.is_ok_and(|answer| !Frame::of(&answer).is_done()) {} };
    let heeded = tokio::time::timeout(HEED_WAIT, heeded).await;
    if (interrupted.is_err() || heeded.is_err())
        && let Err(error) = engine.kill_exec(inside.id(), exec).await
    {
        tracing::debug!(%error, "an interpreter could not be ended");
    }
}

/// What an interpreter says of code that runs: all but the kind is passed on as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Frame<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    #[serde(borrow)]
    traceback: Option<&'a RawValue>,
}

/// The same as clients read it.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Told<'a> {
    Stdout { text: Option<&'a RawValue> },
    Stderr { text: Option<&'a RawValue> },
    Error { name: Option<&'a RawValue>, value: Option<&'a RawValue>, traceback: Option<&'a RawValue> },
}

impl<'a> Frame<'a> {
    /// An answer of another form is none of the kinds.
    fn of(answer: &'a Answer) -> Self {
        answer.read().unwrap_or_default()
    }

    fn is_done(&self) -> bool {
        self.kind == "done"
    }

    /// `None` for what clients are not told.
    fn told(&self) -> Option<Told<'a>> {
        let Self { text, name, value, traceback, .. } = *self;
        match &*self.kind {
            "stdout" => Some(Told::Stdout { text }),
            "stderr" => Some(Told::Stderr { text }),
            "error" => Some(Told::Error { name, value, traceback }),
            _ => None,
        }
    }
}

enum Outcome {
    Done,
    TimedOut,
    /// The interpreter has ended.
    Ended,
    /// The interpreter's output is no answer.
    Broken,
    /// The client has gone.
    Gone,
}

/// Passes an interpreter's answers about the code on to the client.
async fn pass_on(answers: &mut Answers, sink: &mut Sink, until: Option<Instant>) -> Outcome {
    loop {
        let next = answers.next();
        let answer = match until {
            Some(until) => match timeout_at(until, next).await {
                Ok(answer) => answer,
                Err(_elapsed) => return Outcome::TimedOut,
            },
            None => next.await,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(NoAnswer::Ended) => return Outcome::Ended,
            Err(NoAnswer::ShuttingDown) => return Outcome::Gone,
            Err(NoAnswer::TooLong | NoAnswer::Failed(_)) => return Outcome::Broken,
        };
        let frame = Frame::of(&answer);
        if frame.is_done() {
            return Outcome::Done;
        }
        let Some(told) = frame.told() else { continue };
        let told = match serde_json::to_string(&told) {
            Ok(told) => told,
            Err(error) => {
                tracing::error!(%error, "what an interpreter said cannot be written");
                return Outcome::Broken;
            }
        };
        if sink.send(Message::text(told)).await.is_err() {
            return Outcome::Gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interpreter_says_is_passed_on_as_it_is() {
        let told = |line: &str| {
            let told = serde_json::from_str::<Frame<'_>>(line).unwrap().told()?;
            Some(serde_json::to_string(&told).unwrap())
        };
        let said = r#"{"id": "1", "type": "stdout", "text": "a\n", "name": 1}"#;
        assert_eq!(told(said), Some(r#"{"type":"stdout","text":"a\n"}"#.into()));
        let said = r#"{"type": "error", "name": [[]], "traceback": "t"}"#;
        let error = r#"{"type":"error","name":[[]],"value":null,"traceback":"t"}"#;
        assert_eq!(told(said), Some(error.into()));
        assert_eq!(told(r#"{"type": "other", "text": "x"}"#), None);
        assert!(serde_json::from_str::<Frame<'_>>(r#"{"type": "done"}"#).unwrap().is_done());
    }

    /// A client's message is one line to the interpreter, which says what the message says: nothing in it passes for a message
    /// of another client.
    #[test]
    fn a_message_is_one_line() {
        bolero::check!().for_each(|text: &[u8]| {
            let Ok(run) = serde_json::from_slice::<Run>(text) else { return };
            let line = run.line("0123456789abcdef");
            let ends = line.bytes().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
            assert!(line.ends_with('\n') && ends == 1, "{line:?}");
            let told: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(told["id"], "0123456789abcdef");
            // The message as any other parser of JSON reads it; a list of the fields in their order is one, too.
            if let Ok(Value::Object(said)) = serde_json::from_slice(text) {
                let said = |field: &str| said.get(field).cloned().unwrap_or_default();
                assert_eq!(told["code"], if said("code").is_null() { Value::from("") } else { said("code") });
                assert_eq!(told["envs"], said("envs"));
            }
            let year = Duration::from_secs(365 * 24 * 3600);
            assert!(run.until().is_none_or(|until| until <= Instant::now() + year));
        });
    }
}
