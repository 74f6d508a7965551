//! Terminals: execs on a terminal that a client finds again by its own id.
//!
//! ```text
//! server  {"type":"control","status":"connected"}                 text
//!         output                                                  binary
//! client  input                                                   binary, or text
//! server  {"type":"control","status":"exited","exitCode":0}       text, for clients that know of it
//!         close, with {"exitCode":0} as its reason
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::exec::Exit;
use atoll_core::id::ExecId;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::spec::{Command, ExecDraft, TtySize};
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::get_or_create;
use atoll_dialect_kit::time;
use atoll_engine::{ExecView, OutputEvent, OutputReader, Piece};
use axum::extract::Request;
use axum::extract::ws::{Message, WebSocket, close_code};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::files::paths;
use super::output::exit_code;
use super::socket::{self, Left, Sink, Stream};
use crate::error::{Failure, Result, Source};
use crate::request::{Json, Path, Query};
use crate::who::Inside;

/// The subprotocol of a client that understands how an exit is told.
const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// Prefix of the variables among the subprotocols.
const ENVS: &str = "X-Daytona-Pty-Envs~";
/// Every tag of a terminal begins with it.
const TAG: &str = "daytona pty ";
/// Longest id of a terminal, bytes.
const ID_MAX_BYTES: usize = 256;
/// Earlier output that a client gets when it connects, bytes.
const SHOWN_BYTES: u64 = 64 << 10;
/// Bytes of output in one message.
const CHUNK_BYTES: usize = 32 << 10;
/// Most sizes that are remembered.
const SIZES_MAX_COUNT: usize = 4096;

fn fail(error: Error) -> Failure {
    Failure::of_daemon(&error)
}

/// Sizes that clients gave terminals after their start. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sizes(Arc<Mutex<HashMap<ExecId, TtySize>>>);

impl Sizes {
    fn of(&self, view: &ExecView) -> TtySize {
        // The map stays usable when a task panics while it holds the lock.
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = view.record.spec.tty.unwrap_or(TtySize { cols: 80, rows: 24 });
        known.get(&view.record.id).copied().unwrap_or(begun)
    }

    fn note(&self, exec: &ExecId, size: TtySize) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SIZES_MAX_COUNT
            // Ids sort by age.
            && let Some(oldest) = known.keys().min().cloned()
        {
            known.remove(&oldest);
        }
        known.insert(exec.clone(), size);
    }
}

/// The terminal that a client asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Create {
    id: Option<String>,
    cols: Option<u16>,
    rows: Option<u16>,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
}

fn id_of(view: &ExecView) -> Option<&str> {
    view.record.spec.tag.as_deref()?.strip_prefix(TAG)
}

/// The terminals that run.
async fn running(inside: &Inside) -> Result<Vec<ExecView>> {
    let mut running = inside.engine().running_execs(inside.id()).await.map_err(fail)?;
    running.retain(|view| id_of(view).is_some());
    running.sort_unstable_by(|one, other| one.record.id.cmp(&other.record.id));
    Ok(running)
}

async fn find(inside: &Inside, id: &str) -> Result<ExecView> {
    let found = running(inside).await?.into_iter().find(|view| id_of(view) == Some(id));
    found.ok_or_else(|| {
        let id = atoll_core::error::shorten(id);
        Failure::no_process(format!("PTY session {id} not found"))
    })
}

/// A signal by its usual name.
fn signal_name(number: i32) -> String {
    const NAMES: [(i32, &str); 9] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

fn shown(inside: &Inside, view: &ExecView) -> Value {
    let (spec, size) = (&view.record.spec, inside.app.sizes.of(view));
    json!({
        "id": id_of(view),
        "active": !view.record.state.is_final(),
        "cols": size.cols,
        "rows": size.rows,
        "cwd": spec.cwd.as_deref().unwrap_or_default(),
        // The sandbox's variables are not the terminal's own, and a client that may see the terminal knows them.
        "envs": {"TERM": spec.env.get("TERM")},
        "lazyStart": false,
        "createdAt": time::iso(view.record.created_ms),
    })
}

async fn start(inside: &Inside, asked: Create) -> Result<ExecView> {
    let id = match asked.id.filter(|id| !id.is_empty()) {
        Some(id) if id.len() <= ID_MAX_BYTES => id,
        Some(_) => return Err(Failure::bad_daemon(format!("id: must have at most {ID_MAX_BYTES} bytes"))),
        None => return Err(Failure::bad_daemon("PTY session ID is required")),
    };
    // Two requests at once would both find that there is no such terminal.
    let _turn = inside.app.turns.take(&format!("pty {}", inside.id())).await;
    if find(inside, &id).await.is_ok() {
        return Err(Failure::conflict(format!("PTY session {id} already exists")).from(Source::Daemon));
    }
    let cwd = match asked.cwd.as_deref().filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(paths::absolute(inside, cwd).await.map_err(fail)?),
        None => None,
    };
    let size = TtySize { cols: asked.cols.unwrap_or(80), rows: asked.rows.unwrap_or(24) };
    let env = asked.envs.unwrap_or_default();
    let draft = |shell: &str| {
        Ok(ExecDraft {
            env: env.clone(),
            cwd: cwd.clone(),
            tty: Some(size),
            tag: Some(format!("{TAG}{id}")),
            ..ExecDraft::new(Command::Argv(vec![shell.to_owned()]))
        })
    };
    get_or_create(inside.engine(), inside.id(), None, None, draft, inside.recorded()).await.map_err(fail)
}

/// Makes a terminal, to be connected to.
pub(super) async fn create(inside: Inside, Json(asked): Json<Create>) -> Result<(StatusCode, Json<Value>)> {
    let view = start(&inside, asked).await?;
    Ok((StatusCode::CREATED, Json(json!({"sessionId": id_of(&view)}))))
}

/// The terminals.
pub(super) async fn list(inside: Inside) -> Result<Json<Value>> {
    let all: Vec<Value> = running(&inside).await?.iter().map(|view| shown(&inside, view)).collect();
    Ok(Json(json!({"sessions": all})))
}

/// One terminal.
pub(super) async fn read(inside: Inside, Path((_, id)): Path<(String, String)>) -> Result<Json<Value>> {
    Ok(Json(shown(&inside, &find(&inside, &id).await?)))
}

/// Ends a terminal with all that runs in it.
pub(super) async fn remove(inside: Inside, Path((_, id)): Path<(String, String)>) -> Result<Json<Value>> {
    let view = find(&inside, &id).await?;
    inside.engine().kill_exec(inside.id(), view.record.id.as_str()).await.map_err(fail)?;
    Ok(Json(json!({"message": "PTY session deleted"})))
}

/// Changes the size of a terminal.
pub(super) async fn resize(
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
    Json(size): Json<TtySize>,
) -> Result<Json<Value>> {
    let view = find(&inside, &id).await?;
    let resized = inside.engine().resize_exec(inside.id(), view.record.id.as_str(), size).await;
    resized.map_err(|error| match error.code {
        Code::ExecEnded => Failure::gone("SESSION_ENDED", "the PTY session has ended"),
        _ => fail(error),
    })?;
    inside.app.sizes.note(&view.record.id, size);
    Ok(Json(shown(&inside, &view)))
}

/// Makes a terminal and connects to it.
pub(super) async fn create_and_connect(
    inside: Inside,
    Query(mut asked): Query<Create>,
    request: Request,
) -> Result<Response> {
    if let Some(envs) = envs(&socket::protocols(request.headers()))? {
        asked.envs = Some(envs);
    }
    let begun = start(&inside, asked).await;
    attach(&inside, begun, request).await
}

/// The variables among the subprotocols that a client offers, if there are any.
fn envs(offered: &[String]) -> Result<Option<BTreeMap<String, String>>> {
    let Some(envs) = offered.iter().find_map(|name| name.strip_prefix(ENVS)) else { return Ok(None) };
    let decoded = URL_SAFE_NO_PAD.decode(envs.trim_end_matches('=')).ok();
    let envs = decoded.and_then(|text| serde_json::from_slice(&text).ok());
    envs.map(Some).ok_or_else(|| Failure::bad_daemon("the variables among the subprotocols are malformed"))
}

/// Connects to a terminal.
pub(super) async fn connect(
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response> {
    let found = find(&inside, &id).await;
    attach(&inside, found, request).await
}

/// Connects a client to a terminal, or tells it on the socket why it cannot.
async fn attach(inside: &Inside, view: Result<ExecView>, request: Request) -> Result<Response> {
    let tells_exit = socket::protocols(request.headers()).iter().any(|name| name == EXIT_CONTROL);
    let terminal = match view {
        Ok(view) => {
            let from = view.extent.end.saturating_sub(SHOWN_BYTES).max(view.extent.first);
            let reader = inside.engine().output(inside.id(), view.record.id.as_str(), from, true).await;
            let terminal = Terminal { inside: inside.clone(), exec: view.record.id, tells_exit };
            Ok((terminal, reader.map_err(fail)?.read_by(inside.recorded().key())))
        }
        Err(failure) => Err(failure),
    };
    socket::open(inside, request, move |socket, draining| async move {
        match terminal {
            Ok((terminal, reader)) => terminal.serve(socket, reader, draining).await,
            Err(failure) => refuse(socket, &failure).await,
        }
    })
    .await
}

async fn refuse(socket: WebSocket, failure: &Failure) {
    let (mut sink, mut stream) = socket.split();
    let told = json!({"type": "control", "status": "error", "error": failure.message}).to_string();
    if sink.send(Message::text(told)).await.is_ok() {
        let reason = json!({"error": atoll_core::error::shorten(&failure.message)}).to_string();
        socket::close(&mut sink, &mut stream, close_code::NORMAL, &reason).await;
    }
}

/// How a connection ended.
enum End {
    Exited(Exit),
    Away,
    Broken,
    Left(Left),
}

struct Terminal {
    inside: Inside,
    exec: ExecId,
    tells_exit: bool,
}

impl Terminal {
    async fn serve(self, socket: WebSocket, reader: OutputReader, draining: CancellationToken) {
        let (mut sink, mut stream) = socket.split();
        let connected = json!({"type": "control", "status": "connected"}).to_string();
        if sink.send(Message::text(connected)).await.is_err() {
            return;
        }
        let end = tokio::select! {
            end = output(&mut sink, reader, draining) => end,
            left = self.input(&mut stream) => End::Left(left),
        };
        match end {
            End::Exited(exit) => self.exited(&mut sink, &mut stream, &exit).await,
            End::Away => socket::close(&mut sink, &mut stream, close_code::AWAY, "").await,
            End::Broken => socket::close(&mut sink, &mut stream, close_code::ERROR, "").await,
            End::Left(left) => left.tell(&mut sink).await,
        }
    }

    async fn exited(&self, sink: &mut Sink, stream: &mut Stream, exit: &Exit) {
        let code = exit_code(exit);
        let mut reason = json!({"exitCode": code});
        if let Some(signal) = exit.signal {
            reason["exitReason"] = signal_name(signal).into();
        }
        if self.tells_exit {
            let mut told = reason.clone();
            told["type"] = "control".into();
            told["status"] = "exited".into();
            if sink.send(Message::text(told.to_string())).await.is_err() {
                return;
            }
        }
        socket::close(sink, stream, close_code::NORMAL, &reason.to_string()).await;
    }

    /// Passes the client's input on, until no more comes.
    async fn input(&self, stream: &mut Stream) -> Left {
        loop {
            let mut bytes = match stream.next().await {
                Some(Ok(Message::Binary(bytes))) => bytes,
                Some(Ok(Message::Text(text))) => Bytes::from(text),
                Some(Ok(Message::Close(_))) | None => return Left::Gone,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Err(error)) => return Left::Refused(error),
            };
            if self.inside.recheck().is_err() {
                return Left::Gone;
            }
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(STDIN_CHUNK_MAX_BYTES));
                let engine = self.inside.engine();
                if let Err(error) =
                    engine.write_stdin(self.inside.id(), self.exec.as_str(), piece, false).await
                {
                    // The client learns of the command's end with the output.
                    tracing::debug!(%error, "input of a terminal came to nothing");
                    break;
                }
            }
        }
    }
}

/// Passes the terminal's output on, until its end.
async fn output(sink: &mut Sink, mut reader: OutputReader, draining: CancellationToken) -> End {
    loop {
        let event = tokio::select! {
            event = reader.next(CHUNK_BYTES) => event,
            () = tokio::time::sleep(socket::PING_EVERY) => {
                if sink.send(Message::Ping(Bytes::new())).await.is_err() { return End::Left(Left::Gone) }
                continue;
            }
            () = draining.cancelled() => return End::Away,
        };
        match event {
            Ok(OutputEvent::Piece(Piece::Output { bytes, .. })) => {
                if sink.send(Message::Binary(bytes)).await.is_err() {
                    return End::Left(Left::Gone);
                }
            }
            Ok(OutputEvent::Piece(Piece::Gap { .. })) => {}
            Ok(OutputEvent::End { exit, .. }) => return End::Exited(exit),
            Err(error) if error.code == Code::ShuttingDown => return End::Away,
            Err(_) => return End::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::SEC_WEBSOCKET_PROTOCOL;
    use http::{HeaderMap, HeaderValue};

    use super::*;

    /// Subprotocols are what stands between commas. The server takes one of them, and repeats variables only to a client that
    /// offers nothing else.
    #[test]
    fn subprotocols_of_clients() {
        bolero::check!().for_each(|text: &[u8]| {
            let Ok(value) = HeaderValue::from_bytes(text) else { return };
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, value)]);
            let offered = socket::protocols(&headers);
            assert!(offered.iter().all(|name| !name.contains(',') && name.trim() == name));
            if let Some(chosen) = socket::chosen(&offered) {
                let is = |name: &&String| name.as_bytes() == chosen.as_bytes();
                let chosen = offered.iter().find(is).expect("an offered one");
                assert!(
                    !chosen.contains('~') || offered.iter().all(|name| name.contains('~')),
                    "{offered:?}"
                );
            }
            let Ok(Some(envs)) = envs(&offered) else { return };
            let again = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&envs).unwrap());
            assert_eq!(super::envs(&[format!("{ENVS}{again}")]).ok().flatten(), Some(envs));
        });
    }
}
