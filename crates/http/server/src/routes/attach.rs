//! The WebSocket of an exec: output out, input in, at the pace of the slower.
//!
//! ```text
//! log ─▶ OutputReader ─▶ outgoing ─▶ socket ─▶ incoming ─▶ engine: stdin, resize, signal
//!                           ▲                     │
//!                           └── errors, bounded ──┘
//! ```
//!
//! Nothing is queued but what the socket itself buffers. A client that does not read stops only its own
//! reader: the log goes on. An exec that does not read its input stops `incoming`, and so the client.

use std::time::Duration;

use atoll_api::{AttachClientMessage, AttachServerMessage, OutputFrame};
use atoll_core::id::SandboxId;
use atoll_core::key::Scope;
use atoll_core::limits::STDIN_CHUNK_MAX_BYTES;
use atoll_core::sharing::Needs;
use atoll_core::spec::TtySize;
use atoll_core::{Code, Error, Result};
use atoll_engine::{OutputEvent, OutputReader, Piece};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use crate::auth::{OnSandbox, Read};
use crate::convert;
use crate::error::{ApiError, ApiResult, body_of, json};
use crate::extract::{Path, Query, parse_json};
use crate::revocation::revoked;
use crate::serve::Slot;
use crate::shared::{App, shutting_down};

/// Pause after which an idle connection is shown to be alive, for proxies in between.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a client may take to answer the closing of the socket.
pub(super) const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// Errors that wait to be sent; a client that makes more of them than it reads loses some.
const ERRORS_MAX_COUNT: usize = 16;
/// Output that is read at once and passed to the socket before it is flushed, bytes. The log on disk is the buffer of
/// a client that reads slowly; what is in memory for it is this.
const PIECE_MAX_BYTES: usize = 64 << 10;
const FLUSH_BYTES: usize = PIECE_MAX_BYTES;
/// Bytes that are read from a client at once.
pub(super) const RECEIVE_BYTES: usize = 8 << 10;

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttachExec {
    /// First output byte wanted.
    #[serde(default)]
    offset: u64,
}

/// Attaches to an exec over a WebSocket. Any number of clients may, each at its own offset.
///
/// The server sends `AttachServerMessage` as text: first `attached`, last `exit`; output comes as binary
/// messages: one byte stream (1 stdout, 2 stderr), eight bytes big-endian offset, the bytes. The client
/// sends `AttachClientMessage` as text, and standard input as binary messages of at most 1 MiB. Reading
/// needs the scope `read`, sending needs `exec`.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/attach", tag = "execs",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path), AttachExec),
    responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn attach_exec(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Query(query): Query<AttachExec>,
    slot: Option<Extension<Slot>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let upgrade = upgrade.map_err(|rejection| not_a_websocket(&rejection, "read …/output or …/events"))?;
    let view = app.engine.exec(caller.sandbox(), &exec).await?;
    let (sandbox, exec) = (view.record.sandbox.clone(), view.record.id.to_string());
    // Only a client that may kill the exec counts as one whose leaving may kill it.
    let reader = app.engine.output(caller.sandbox(), &exec, query.offset, caller.has(Scope::Exec)).await?;
    let reader = reader.read_by(Some(&caller.key().id));
    let hello = AttachServerMessage::Attached { exec: convert::exec(view), offset: query.offset };
    let session = Session { app, caller, sandbox, exec, _slot: slot };
    Ok(upgrade
        .max_message_size(STDIN_CHUNK_MAX_BYTES)
        .max_frame_size(STDIN_CHUNK_MAX_BYTES)
        .read_buffer_size(RECEIVE_BYTES)
        .write_buffer_size(0)
        .on_upgrade(move |socket| session.run(socket, reader, hello)))
}

pub(super) fn not_a_websocket(rejection: &WebSocketUpgradeRejection, instead: &str) -> ApiError {
    Error::new(Code::InvalidArgument, format!("not a WebSocket request: {rejection}"))
        .hint(format!("connect with a WebSocket client, or {instead}"))
        .into()
}

struct Session {
    app: App,
    caller: OnSandbox<Read>,
    sandbox: SandboxId,
    exec: String,
    _slot: Option<Extension<Slot>>,
}

/// The socket broke, or the client closed it: nobody is there to be told more.
pub(super) struct Gone;

impl From<axum::Error> for Gone {
    fn from(error: axum::Error) -> Self {
        tracing::debug!(%error, "a WebSocket ended");
        Self
    }
}

pub(super) type Sink = SplitSink<WebSocket, Message>;

/// Closes a socket from which no more messages are taken. Either one was too large, or the connection is broken, and
/// the client does not get this. A client that does not read is not told.
pub(super) async fn refuse_messages(sink: &mut Sink, ended: std::result::Result<(), axum::Error>) {
    let Err(error) = ended else { return };
    tracing::debug!(%error, "a client's message was not taken");
    let frame = CloseFrame { code: close_code::SIZE, reason: Code::TooLarge.as_str().into() };
    if let Ok(Err(error)) = tokio::time::timeout(CLOSE_WAIT, sink.send(Message::Close(Some(frame)))).await {
        tracing::debug!(%error, "a WebSocket ended");
    }
}

impl Session {
    async fn run(self, socket: WebSocket, reader: OutputReader, hello: AttachServerMessage) {
        let app = self.app.clone();
        let _counted = app.tasks.token();
        let (mut sink, stream) = socket.split();
        let (failures, failed) = mpsc::channel(ERRORS_MAX_COUNT);
        let mut incoming = Box::pin(self.incoming(stream, failures));
        let ended = tokio::select! {
            ended = self.outgoing(&mut sink, reader, hello, failed) => ended,
            ended = &mut incoming => return refuse_messages(&mut sink, ended).await,
            () = app.engine.until_revoked(self.caller.grant()) => self.turn_out(&mut sink).await,
        };
        let Ok(frame) = ended else { return };
        if sink.send(Message::Close(Some(frame))).await.is_ok()
            && tokio::time::timeout(CLOSE_WAIT, incoming).await.is_err()
        {
            tracing::debug!("a client did not answer the closing of its WebSocket");
        }
    }

    /// Sends output until the end; gives what to close the socket with.
    async fn outgoing(
        &self,
        sink: &mut Sink,
        mut reader: OutputReader,
        hello: AttachServerMessage,
        mut failed: mpsc::Receiver<Error>,
    ) -> std::result::Result<CloseFrame, Gone> {
        sink.send(text(&hello)).await?;
        loop {
            let next = tokio::select! {
                next = reader.next(PIECE_MAX_BYTES) => next,
                Some(error) = failed.recv() => {
                    sink.send(self.error(error)).await?;
                    continue;
                }
                () = tokio::time::sleep(PING_EVERY) => {
                    sink.send(Message::Ping(Bytes::new())).await?;
                    continue;
                }
                () = self.app.draining.cancelled() => Err(shutting_down()),
            };
            let more = match next {
                Ok(event) => self.send_batch(sink, &mut reader, event).await,
                Err(error) => Ok(Err(error)),
            };
            match more? {
                Ok(true) => {}
                Ok(false) => return Ok(CloseFrame { code: close_code::NORMAL, reason: "exit".into() }),
                Err(error) => return self.refuse(sink, error).await,
            }
        }
    }

    /// Sends an event and what else is there already; flushes once. `false` after the last.
    async fn send_batch(
        &self,
        sink: &mut Sink,
        reader: &mut OutputReader,
        first: OutputEvent,
    ) -> std::result::Result<Result<bool>, Gone> {
        let mut fed = 0;
        let mut next = Some(first);
        let mut last = false;
        while let Some(event) = next {
            let message;
            (message, last) = self::message(event);
            fed += message_size(&message);
            sink.feed(message).await?;
            next = if last || fed >= FLUSH_BYTES {
                None
            } else {
                match reader.next_now(PIECE_MAX_BYTES).await {
                    Ok(next) => next,
                    Err(error) => return Ok(Err(error)),
                }
            };
        }
        self.app.metrics.sent(fed);
        sink.flush().await?;
        Ok(Ok(!last))
    }

    /// Says that the right by which the client is here has ended; one that does not read is not told.
    async fn turn_out(&self, sink: &mut Sink) -> std::result::Result<CloseFrame, Gone> {
        let told = tokio::time::timeout(CLOSE_WAIT, self.refuse(sink, revoked())).await;
        told.unwrap_or(Err(Gone))
    }

    /// Says why the stream cannot go on.
    async fn refuse(&self, sink: &mut Sink, error: Error) -> std::result::Result<CloseFrame, Gone> {
        let code = if error.code == Code::ShuttingDown { close_code::AWAY } else { close_code::ERROR };
        let reason = error.code.as_str().into();
        sink.send(self.error(error)).await?;
        Ok(CloseFrame { code, reason })
    }

    fn error(&self, error: Error) -> Message {
        text(&AttachServerMessage::Error { error: body_of(error, self.caller.request_id()) })
    }

    /// Does what the client sends, one after the other, until it closes, or a message is not taken.
    async fn incoming(
        &self,
        mut stream: SplitStream<WebSocket>,
        failures: mpsc::Sender<Error>,
    ) -> std::result::Result<(), axum::Error> {
        while let Some(message) = stream.next().await {
            let message = message?;
            self.app.metrics.received(message_size(&message));
            let done = match message {
                Message::Text(text) => self.command(text.as_bytes()).await,
                Message::Binary(bytes) => self.stdin(bytes, false).await,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
                Message::Close(_) => return Ok(()),
            };
            if let Err(error) = done
                && failures.try_send(error).is_err()
            {
                tracing::debug!("a client is not told of an error: it does not read");
            }
        }
        Ok(())
    }

    async fn command(&self, text: &[u8]) -> Result<()> {
        let message = parse_json(text)?;
        if matches!(message, AttachClientMessage::CloseStdin {}) {
            return self.stdin(Bytes::new(), true).await;
        }
        self.may_send()?;
        let (engine, sandbox, exec) = (&self.app.engine, &self.sandbox, &self.exec);
        match message {
            AttachClientMessage::CloseStdin {} => Ok(()),
            AttachClientMessage::Resize { cols, rows } => {
                engine.resize_exec(sandbox, exec, TtySize { cols, rows }).await
            }
            AttachClientMessage::Signal { signal, tree } => {
                engine.signal_exec(sandbox, exec, &signal, tree).await
            }
        }
    }

    async fn stdin(&self, bytes: Bytes, close: bool) -> Result<()> {
        self.may_send()?;
        let by = self.caller.grant().caller();
        self.app.engine.write_stdin_by(by, &self.sandbox, &self.exec, bytes, close).await.map(drop)
    }

    fn may_send(&self) -> Result<()> {
        // Checked each time: a role may be taken away, and a lease be taken, while the socket is open.
        self.app.engine.recheck(self.caller.grant(), Needs::EXEC)
    }
}

fn text(message: &AttachServerMessage) -> Message {
    Message::text(json(message))
}

/// The message for an event, and whether it is the last.
fn message(event: OutputEvent) -> (Message, bool) {
    match event {
        OutputEvent::Piece(Piece::Output { offset, stream, bytes }) => {
            // A message is one block of memory: this is the one copy.
            let mut message = BytesMut::with_capacity(OutputFrame::HEADER_BYTES + bytes.len());
            message.put_slice(&OutputFrame { stream, offset }.encode());
            message.put_slice(&bytes);
            (Message::Binary(message.freeze()), false)
        }
        OutputEvent::Piece(Piece::Gap { from, to }) => (text(&AttachServerMessage::Gap { from, to }), false),
        OutputEvent::End { state, exit, offset } => {
            (text(&AttachServerMessage::Exit { state, exit, offset }), true)
        }
    }
}

pub(super) fn message_size(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}
