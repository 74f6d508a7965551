//! The exec WebSocket: `execute/ws`.
//!
//! ```text
//! upgrade ─ only when the sandbox can be used: a client retries a refused handshake, not a socket that
//!   │       was accepted and dies
//!   ▼
//! first message ─ execute: get or create the command ─┐
//!               ─ reconnect: find it                  ├─▶ `started`, output from the client's offsets, `exit`
//! later messages ─▶ stdin, kill, resize ◀─────────────┘
//! ```
//!
//! Only the socket buffers output: a slow client stops only its own reader of the log.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::sharing::Needs;
use atoll_core::spec::TtySize;
use atoll_core::{Code, Error};
use atoll_dialect_kit::exec::{Counting, Event, Feed};
use atoll_engine::{Caller as EngineCaller, Engine, ExecView, Grant};
use atoll_server::dialect::Held;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, Stream, StreamExt as _};
use http::StatusCode;

use super::frames::{self, First, Later};
use super::{Outcome, Output, by_id, get_or_create, outcome};
use crate::App;
use crate::boxes;
use crate::error::{Failure, Result, sentence};
use crate::request::{Caller, Exec};

/// How long a client may take to send its first message.
const FIRST_WAIT: Duration = Duration::from_secs(30);
/// Pause after which the server pings an idle connection, so that proxies in between keep it.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a client may take to answer the closing of the socket.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// Longest message of a client, bytes: a command of 768 KiB in JSON escapes.
const MESSAGE_MAX_BYTES: usize = 8 << 20;
/// Messages that may come before the one that names their command, and their bytes: they wait for it in memory.
const EARLY_MAX_COUNT: usize = 16;
const EARLY_MAX_BYTES: usize = MESSAGE_MAX_BYTES;
/// Output that is passed to the socket before it is flushed, bytes.
const FLUSH_BYTES: usize = 512 << 10;

/// Runs commands over a WebSocket.
pub(crate) async fn attach(
    caller: Caller<Exec>,
    State(app): State<App>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: http::Extensions,
) -> Result<Response> {
    let upgrade = upgrade.map_err(|rejection| {
        Failure::new(StatusCode::BAD_REQUEST, "InvalidRequest", format!("not a WebSocket: {rejection}"))
    })?;
    // Wakes the sandbox if need be.
    let engine = app.host.engine().clone();
    let sandbox = caller.sandbox().map_err(|error| Failure::data("CommandError", &error))?.clone();
    drop(boxes::awake(&engine, &sandbox).await.map_err(|error| Failure::data("CommandError", &error))?);
    let held = app.host.hold(&request);
    let session = Session {
        app,
        engine,
        grant: caller.grant().clone(),
        caller: caller.engine().clone(),
        sandbox,
        _held: held,
    };
    Ok(upgrade.max_message_size(MESSAGE_MAX_BYTES).max_frame_size(MESSAGE_MAX_BYTES).on_upgrade(
        move |socket| async move {
            let (engine, grant) = (session.engine.clone(), session.grant.clone());
            tokio::select! {
                () = session.run(socket) => {}
                // The connection is cut, not closed: a client that comes back is told why.
                () = engine.until_revoked(&grant) => {}
            }
        },
    ))
}

type Sink = SplitSink<WebSocket, Message>;

/// The socket broke, or the client closed it: no further message reaches the client.
struct Gone;

impl From<axum::Error> for Gone {
    fn from(error: axum::Error) -> Self {
        tracing::debug!(%error, "a WebSocket ended");
        Self
    }
}

/// The reason to close the socket.
enum End {
    /// The command has ended: its last message.
    Said(String),
    /// The server stops.
    Away,
    /// The client sent a message that is too large.
    TooLarge,
}

struct Session {
    app: App,
    engine: Engine,
    grant: Grant,
    caller: EngineCaller,
    sandbox: SandboxId,
    _held: Held,
}

impl Session {
    async fn run(self, socket: WebSocket) {
        let (mut sink, mut stream) = socket.split();
        let Ok(end) = self.converse(&mut sink, &mut stream).await else { return };
        if matches!(end, End::TooLarge) {
            // Nothing more can be read from the stream. A client that does not read is not told.
            drop(tokio::time::timeout(CLOSE_WAIT, close(&mut sink, end)).await);
        } else if close(&mut sink, end).await.is_ok() {
            // The client answers; its messages meanwhile are ignored.
            let answered = async { while let Some(Ok(_)) = stream.next().await {} };
            drop(tokio::time::timeout(CLOSE_WAIT, answered).await);
        }
    }

    /// From the first message to the reason to close the socket.
    async fn converse(
        &self,
        sink: &mut Sink,
        stream: &mut SplitStream<WebSocket>,
    ) -> std::result::Result<End, Gone> {
        let opening = tokio::time::timeout(FIRST_WAIT, Opening::read(stream)).await.unwrap_or(Err(Gone))?;
        let Opening { first, early } = match opening {
            Ok(opening) => opening,
            Err(end) => return Ok(end),
        };
        let begun = self.begin(&first).await;
        // A command may run for days.
        drop(first);
        match begun {
            Ok((view, output, command_id)) => {
                let exec = Arc::<str>::from(view.record.id.as_str());
                let started = frames::started(&command_id, view.record.pid);
                self.live(sink, stream, &exec, started, output, early).await
            }
            Err((kind, message)) => Ok(End::Said(frames::error(kind, &message))),
        }
    }

    /// Does what the first message asks for. The error is a type and a sentence.
    async fn begin(
        &self,
        first: &str,
    ) -> std::result::Result<(ExecView, Output, String), (&'static str, String)> {
        let first: First = serde_json::from_str(first)
            .map_err(|error| ("InvalidRequest", format!("the first message is not understood: {error}")))?;
        let from = first.offsets();
        let may = || self.engine.recheck(&self.grant, Needs::EXEC).map_err(|error| refused(&error));
        let found = match first {
            First::Execute(mut request) => {
                // The handshake may have been a while ago.
                may()?;
                if request.command_id.is_none() {
                    request.command_id =
                        Some(made_up_id().map_err(|error| ("CommandError", sentence(&error)))?);
                }
                let id = request.command_id.clone().unwrap_or_default();
                get_or_create(&self.engine, &self.sandbox, *request, &self.caller)
                    .await
                    .map(|view| (view, id))
            }
            First::Reconnect { command_id, .. } => {
                by_id(&self.engine, &self.sandbox, &command_id).await.map(|view| (view, command_id))
            }
        };
        let (view, id) = found.map_err(|error| refused(&error))?;
        let feed = Feed::open(&self.engine, &view, &self.app.marks, Counting::Text, from).await;
        let feed = feed.map_err(|error| refused(&error))?.read_by(self.caller.key());
        Ok((view, Output::new(&self.engine, &self.sandbox, feed), id))
    }

    async fn live(
        &self,
        sink: &mut Sink,
        stream: &mut SplitStream<WebSocket>,
        exec: &str,
        started: String,
        mut output: Output,
        early: Vec<String>,
    ) -> std::result::Result<End, Gone> {
        sink.feed(Message::text(started)).await?;
        tokio::select! {
            ended = self.outgoing(sink, &mut output) => ended,
            ended = self.incoming(stream, exec, early) => ended,
        }
    }

    /// Sends output until the end.
    async fn outgoing(&self, sink: &mut Sink, output: &mut Output) -> std::result::Result<End, Gone> {
        loop {
            let mut fed = 0;
            // Output that is there already goes out together.
            while fed < FLUSH_BYTES {
                match output.next_now().await {
                    Ok(Some(Event::End(exit))) => return Ok(End::Said(last(&outcome(&exit)))),
                    Ok(Some(event)) => fed += self.send(sink, event).await?,
                    Ok(None) => break,
                    Err(error) => return Ok(failed(&error)),
                }
            }
            sink.flush().await?;
            let event = tokio::select! {
                event = output.next() => event,
                () = tokio::time::sleep(PING_EVERY) => {
                    sink.send(Message::Ping(Bytes::new())).await?;
                    continue;
                }
                () = self.app.host.draining() => return Ok(End::Away),
            };
            match event {
                Ok(Event::End(exit)) => return Ok(End::Said(last(&outcome(&exit)))),
                Ok(event) => drop(self.send(sink, event).await?),
                Err(error) => return Ok(failed(&error)),
            }
        }
    }

    async fn send(&self, sink: &mut Sink, event: Event) -> std::result::Result<usize, Gone> {
        let Event::Text { stream, offset, text } = event else { return Ok(0) };
        let mut sent = 0;
        for frame in frames::output(stream, offset, &text) {
            sent += frame.len();
            sink.feed(Message::text(frame)).await?;
        }
        self.app.host.count(0, sent);
        Ok(sent)
    }

    /// Handles the client's messages, one after the other, until it goes. Messages that it sent early come first.
    async fn incoming(
        &self,
        stream: &mut SplitStream<WebSocket>,
        exec: &str,
        early: Vec<String>,
    ) -> std::result::Result<End, Gone> {
        for text in early {
            self.command(exec, &text).await;
        }
        while let Some(message) = stream.next().await {
            match message {
                Ok(Message::Text(text)) => {
                    self.app.host.count(text.len(), 0);
                    self.command(exec, &text).await;
                }
                Ok(Message::Close(_)) => return Err(Gone),
                Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_)) => {}
                Err(error) => return Ok(not_taken(&error)),
            }
        }
        Err(Gone)
    }

    /// The protocol has no answer to these but the end of the command, so errors are only logged.
    async fn command(&self, exec: &str, text: &str) {
        // The right is checked each time: while the socket is open, the key's role may be taken away, or another client
        // may lease the sandbox.
        if let Err(error) = self.engine.recheck(&self.grant, Needs::EXEC) {
            tracing::debug!(%error, exec, "a client's message was refused");
            return;
        }
        let done = match serde_json::from_str(text) {
            Ok(Later::Input { data }) => self.input(exec, Bytes::from(data)).await,
            Ok(Later::CloseStdin) => {
                self.engine.write_stdin(&self.sandbox, exec, Bytes::new(), true).await.map(drop)
            }
            Ok(Later::Kill) => self.engine.signal_exec(&self.sandbox, exec, "KILL", true).await,
            Ok(Later::Resize { cols, rows }) => {
                self.engine.resize_exec(&self.sandbox, exec, TtySize { cols, rows }).await
            }
            Err(error) => Err(Error::invalid("message", error)),
        };
        if let Err(error) = done {
            tracing::debug!(%error, exec, "a client's message came to nothing");
        }
    }

    async fn input(&self, exec: &str, mut bytes: Bytes) -> std::result::Result<(), Error> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(STDIN_CHUNK_MAX_BYTES));
            self.engine.write_stdin(&self.sandbox, exec, piece, false).await?;
        }
        Ok(())
    }
}

/// The beginning of a connection.
struct Opening {
    /// The message that names the command.
    first: String,
    /// Messages for that command that came before it was named: clients that reconnect send their waiting messages
    /// first.
    early: Vec<String>,
}

impl Opening {
    /// Reads until the message that names the command; or gives the reason to close the socket before that.
    async fn read(
        stream: &mut (impl Stream<Item = std::result::Result<Message, axum::Error>> + Unpin),
    ) -> std::result::Result<std::result::Result<Self, End>, Gone> {
        let (mut early, mut bytes) = (Vec::new(), 0);
        while let Some(message) = stream.next().await {
            match message {
                Ok(Message::Text(text))
                    if early.len() < EARLY_MAX_COUNT
                        && bytes + text.len() <= EARLY_MAX_BYTES
                        && frames::is_later(&text) =>
                {
                    bytes += text.len();
                    early.push(text.to_string());
                }
                Ok(Message::Text(text)) => return Ok(Ok(Self { first: text.to_string(), early })),
                Ok(Message::Close(_)) => return Err(Gone),
                Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_)) => {}
                Err(error) => return Ok(Err(not_taken(&error))),
            }
        }
        Err(Gone)
    }
}

/// Either the connection broke, and the client does not get this, or a message is too large.
fn not_taken(error: &axum::Error) -> End {
    tracing::debug!(%error, "a client's message was not taken");
    End::TooLarge
}

/// An id for clients that make up none.
fn made_up_id() -> std::result::Result<String, Error> {
    let random = getrandom::u64().map_err(|error| {
        tracing::error!(%error, "no randomness for a command id");
        Error::new(Code::Internal, "the host's random generator failed")
    })?;
    Ok(format!("{:016x}{random:016x}", crate::time::now_ms()))
}

fn refused(error: &Error) -> (&'static str, String) {
    let kind = match error.code {
        Code::ExecNotFound => "CommandNotFound",
        _ => "CommandError",
    };
    (kind, sentence(error))
}

fn failed(error: &Error) -> End {
    if error.code == Code::ShuttingDown {
        return End::Away;
    }
    End::Said(frames::error("CommandError", &sentence(error)))
}

fn last(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exit(code) => frames::exit(*code),
        Outcome::Error(kind, message) => frames::error(kind, message),
    }
}

/// The last message and the close go out in one write: a client waits for the close.
async fn close(sink: &mut Sink, end: End) -> std::result::Result<(), axum::Error> {
    let (code, reason) = match end {
        End::Said(frame) => {
            sink.feed(Message::text(frame)).await?;
            (close_code::NORMAL, "")
        }
        End::Away => (close_code::AWAY, "the server is shutting down"),
        End::TooLarge => (close_code::SIZE, "a message is larger than 8 MiB; send input in smaller pieces"),
    };
    sink.feed(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await?;
    sink.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first message, and how many came before it.
    async fn read(messages: Vec<String>) -> (String, usize) {
        let messages = messages.into_iter().map(|text| Ok::<_, axum::Error>(Message::text(text)));
        let Ok(Ok(Opening { first, early })) = Opening::read(&mut futures::stream::iter(messages)).await
        else {
            panic!("no message names a command");
        };
        (first, early.len())
    }

    #[tokio::test]
    async fn what_comes_early_has_so_many_bytes_together() {
        let input = |bytes: usize| format!(r#"{{"type":"input","data":"{}"}}"#, "x".repeat(bytes));
        let named = r#"{"type":"reconnect","command_id":"a"}"#.to_owned();
        assert_eq!(read(vec![input(3), input(3 << 20), named.clone()]).await, (named.clone(), 2));
        let (first, early) = read(vec![input(3 << 20), input(3 << 20), input(3 << 20), named]).await;
        assert!(early == 2 && first.starts_with(r#"{"type":"input""#), "the third is refused as the first");
    }
}
