//! The WebSocket of a session: events out from any number on, messages, answers and cancellations in.
//!
//! ```text
//! events in the database ─▶ outgoing ─▶ socket ─▶ incoming ─▶ engine: message, answer, cancel
//!                              ▲                     │
//!                              └── replies, bounded ─┘
//! ```
//!
//! Events are read a few at a time, when those before were sent: a reader that is slow holds no more than these, and
//! one that takes nothing for a minute is let go. It comes back with the number of the last event that it has. From a
//! client that sends without reading the replies the server does not read either.

use std::time::Duration;

use atoll_api::{SessionClientMessage, SessionServerMessage};
use atoll_core::id::AgentId;
use atoll_core::limits::{JSON_BODY_MAX_BYTES, WAIT_MAX_MS};
use atoll_core::sharing::Needs;
use atoll_core::{Code, Error, Result};
use atoll_engine::{EventPage, SessionView};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::SplitStream;
use futures::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::agent_sessions::{event, session};
use super::attach::{
    CLOSE_WAIT, Gone, PING_EVERY, RECEIVE_BYTES, Sink, message_size, not_a_websocket, refuse_messages,
};
use crate::auth::{OnAgent, Read};
use crate::error::{ApiResult, body_of, json};
use crate::extract::{Path, Query, parse_json};
use crate::revocation::revoked;
use crate::serve::Slot;
use crate::shared::{App, shutting_down};

/// Events that are read at once: of the largest messages, 2 MiB.
const PAGE_COUNT: u32 = 8;
/// Replies that wait to be sent.
const REPLIES_MAX_COUNT: usize = 16;
/// How long a reader may take for one message.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Longest `id` of a client's message, bytes.
const ID_MAX_BYTES: usize = 128;

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttachAgentSession {
    /// After this event.
    #[serde(default)]
    after: u64,
}

/// Attaches to a session over a WebSocket. Any number of clients may, each from any event on.
///
/// All messages are text: the server sends `SessionServerMessage`, first `attached`, then the events in order; the client sends
/// `SessionClientMessage`, of at most 1 MiB. Reading needs the scope `read`, sending needs `exec`. A client that takes nothing for
/// a minute is let go.
#[utoipa::path(get, path = "/v1/agents/{agent}/sessions/{session}/attach", tag = "agents",
    security(("key" = ["read"])),
    params(("agent" = String, Path, description = "Id or name"), ("session" = String, Path, description = "Id or thread"),
        AttachAgentSession),
    responses((status = 101, description = "A WebSocket")))]
pub(crate) async fn attach_agent_session(
    caller: OnAgent<Read>,
    State(app): State<App>,
    Path((_agent, text)): Path<(String, String)>,
    Query(query): Query<AttachAgentSession>,
    slot: Option<Extension<Slot>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let upgrade = upgrade.map_err(|rejection| not_a_websocket(&rejection, "read …/events or …/stream"))?;
    let agent = caller.agent().id.clone();
    let view = app.engine.session(&agent, &text)?;
    // By its id from here on: a session that is begun later under the same thread is another one.
    let id = view.record.id.to_string();
    // An error in the request is answered before the stream begins.
    app.engine.session_events(&agent, &id, query.after, 1, Duration::ZERO).await?;
    let attached = Attached { app, caller, agent, session: id, _slot: slot };
    Ok(upgrade
        .max_message_size(JSON_BODY_MAX_BYTES)
        .max_frame_size(JSON_BODY_MAX_BYTES)
        .read_buffer_size(RECEIVE_BYTES)
        .write_buffer_size(0)
        .on_upgrade(move |socket| attached.run(socket, view, query.after)))
}

struct Attached {
    app: App,
    caller: OnAgent<Read>,
    agent: AgentId,
    session: String,
    _slot: Option<Extension<Slot>>,
}

impl Attached {
    async fn run(self, socket: WebSocket, view: SessionView, after: u64) {
        let app = self.app.clone();
        let _counted = app.tasks.token();
        let (mut sink, stream) = socket.split();
        let (replies, replied) = mpsc::channel(REPLIES_MAX_COUNT);
        let mut incoming = Box::pin(self.incoming(stream, replies));
        let ended = tokio::select! {
            ended = self.outgoing(&mut sink, view, after, replied) => ended,
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

    /// Sends events until there can be none any more; gives what to close the socket with.
    async fn outgoing(
        &self,
        sink: &mut Sink,
        view: SessionView,
        mut after: u64,
        mut replied: mpsc::Receiver<SessionServerMessage>,
    ) -> std::result::Result<CloseFrame, Gone> {
        self.tell(sink, &SessionServerMessage::Attached { session: session(view), after }).await?;
        let wait = Duration::from_millis(WAIT_MAX_MS);
        loop {
            let read = self.app.engine.session_events(&self.agent, &self.session, after, PAGE_COUNT, wait);
            // The read goes on while replies are sent: a client that asks for many of them does not have the same
            // events read again and again.
            let mut read = std::pin::pin!(read);
            let page = loop {
                tokio::select! {
                    page = &mut read => break page,
                    Some(reply) = replied.recv() => self.tell(sink, &reply).await?,
                    () = tokio::time::sleep(PING_EVERY) => {
                        self.send(sink, Message::Ping(Bytes::new())).await?;
                    }
                    () = self.app.draining.cancelled() => break Err(shutting_down()),
                }
            };
            match page {
                Ok(page) => after = self.tell_page(sink, page, after).await?,
                Err(error) => return self.refuse(sink, error).await,
            }
        }
    }

    /// Sends a page; gives the number of its last event.
    async fn tell_page(
        &self,
        sink: &mut Sink,
        page: EventPage,
        after: u64,
    ) -> std::result::Result<u64, Gone> {
        if page.gap {
            self.tell(sink, &SessionServerMessage::Gap {}).await?;
        }
        let last = page.events.last().map_or(after, |event| event.number);
        for record in page.events {
            self.tell(sink, &SessionServerMessage::Event { event: event(record) }).await?;
        }
        Ok(last)
    }

    async fn tell(&self, sink: &mut Sink, message: &SessionServerMessage) -> std::result::Result<(), Gone> {
        self.send(sink, Message::text(json(message))).await
    }

    async fn send(&self, sink: &mut Sink, message: Message) -> std::result::Result<(), Gone> {
        self.app.metrics.sent(message_size(&message));
        match tokio::time::timeout(STALL_MAX, sink.send(message)).await {
            Ok(sent) => Ok(sent?),
            Err(_late) => {
                tracing::debug!("a reader of a session takes nothing");
                Err(Gone)
            }
        }
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
        self.tell(sink, &self.error(None, error, true)).await?;
        Ok(CloseFrame { code, reason })
    }

    fn error(&self, id: Option<String>, error: Error, last: bool) -> SessionServerMessage {
        SessionServerMessage::Error { id, error: body_of(error, self.caller.request_id()), last }
    }

    /// Does what the client sends, one after the other, until it closes, or a message is not taken.
    async fn incoming(
        &self,
        mut stream: SplitStream<WebSocket>,
        replies: mpsc::Sender<SessionServerMessage>,
    ) -> std::result::Result<(), axum::Error> {
        while let Some(message) = stream.next().await {
            let message = message?;
            self.app.metrics.received(message_size(&message));
            let reply = match message {
                Message::Text(text) => self.obey(text.as_bytes()).await,
                Message::Binary(_) => {
                    let why = Error::invalid("message", "must be text").hint("send JSON in text messages");
                    Some(self.error(None, why, false))
                }
                Message::Ping(_) | Message::Pong(_) => None,
                Message::Close(_) => return Ok(()),
            };
            if let Some(reply) = reply
                && replies.send(reply).await.is_err()
            {
                tracing::debug!("a reply is not sent: the socket is being closed");
            }
        }
        Ok(())
    }

    /// Does what one message asks for; gives what to answer.
    async fn obey(&self, text: &[u8]) -> Option<SessionServerMessage> {
        let message = match read(text) {
            Ok(message) => message,
            Err(error) => return Some(self.error(None, error, false)),
        };
        let id = message.id().map(str::to_owned);
        match self.act(message).await {
            Ok(number) => id.map(|id| SessionServerMessage::Taken { id, number }),
            Err(error) => Some(self.error(id, error, false)),
        }
    }

    async fn act(&self, message: SessionClientMessage) -> Result<Option<u64>> {
        // Checked each time: a role may be taken away, and a lease be taken, while the socket is open.
        self.app.engine.recheck(self.caller.grant(), Needs::EXEC)?;
        let (engine, agent, session) = (&self.app.engine, &self.agent, &self.session);
        match message {
            SessionClientMessage::Message { text, key, .. } => {
                let (record, _new) = engine.send_message(agent, session, &text, key.as_deref()).await?;
                return Ok(Some(record.number));
            }
            SessionClientMessage::Answer { approval, option, .. } => {
                engine.answer_approval(agent, session, &approval, &option).await?;
            }
            SessionClientMessage::Cancel { .. } => engine.cancel_session(agent, session).await?,
        }
        Ok(None)
    }
}

/// Reads a client's message.
///
/// # Errors
/// As [`parse_json`], and [`Code::InvalidArgument`] for an `id` that is too long to stand in an answer.
pub(super) fn read(text: &[u8]) -> Result<SessionClientMessage> {
    let message: SessionClientMessage = parse_json(text)?;
    if message.id().is_some_and(|id| id.len() > ID_MAX_BYTES) {
        return Err(Error::invalid("id", format_args!("must have at most {ID_MAX_BYTES} bytes")));
    }
    Ok(message)
}
