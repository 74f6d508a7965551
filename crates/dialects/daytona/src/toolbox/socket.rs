//! WebSockets of the toolbox.

use std::time::Duration;

use atoll_core::limits::JSON_BODY_MAX_BYTES;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{FromRequestParts as _, Request};
use axum::response::Response;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::header::UPGRADE;
use http::{HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;

use crate::error::{Failure, Result};
use crate::who::Inside;

/// Pause after which the server pings an idle connection, so that proxies in between keep it.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a client may take to take the closing of the socket and to answer it.
pub(crate) const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// Longest message of a client, bytes.
const MESSAGE_MAX_BYTES: usize = 2 * JSON_BODY_MAX_BYTES;

pub(super) type Sink = SplitSink<WebSocket, Message>;
pub(super) type Stream = SplitStream<WebSocket>;

/// Whether a request wants to become a WebSocket.
pub(super) fn is_wanted(request: &Request) -> bool {
    request.headers().get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// The subprotocols that a client offers.
pub(super) fn protocols(headers: &HeaderMap) -> Vec<String> {
    let lists = headers.get_all("sec-websocket-protocol").iter();
    let lists = lists.filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(|name| name.trim().to_owned()).collect()
}

/// The one that the server takes of the subprotocols that a client offers: some clients break off when it takes none.
pub(super) fn chosen(offered: &[String]) -> Option<HeaderValue> {
    let chosen = offered.iter().find(|name| !name.contains('~')).or(offered.first())?;
    HeaderValue::try_from(chosen.as_str()).ok()
}

/// Makes a request a WebSocket and lets `serve` have it, as long as the caller has its right.
pub(super) async fn open<F>(
    inside: &Inside,
    request: Request,
    serve: impl FnOnce(WebSocket, CancellationToken) -> F + Send + 'static,
) -> Result<Response>
where
    F: Future<Output = ()> + Send,
{
    let chosen = chosen(&protocols(request.headers()));
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &inside.app).await;
    let mut upgrade =
        upgrade.map_err(|rejection| Failure::bad_daemon(format!("not a WebSocket: {rejection}")))?;
    if let Some(chosen) = chosen {
        upgrade.set_selected_protocol(chosen);
    }
    let held = inside.app.host.hold(&parts.extensions);
    let (engine, grant, draining) =
        (inside.engine().clone(), inside.grant().clone(), inside.app.host.draining_token());
    Ok(upgrade.max_message_size(MESSAGE_MAX_BYTES).max_frame_size(MESSAGE_MAX_BYTES).on_upgrade(
        move |socket| async move {
            let _held = held;
            tokio::select! {
                () = serve(socket, draining) => {}
                // The connection is cut, not closed: a client that comes back is told why.
                () = engine.until_revoked(&grant) => {}
            }
        },
    ))
}

/// Why no more comes from a client.
pub(super) enum Left {
    /// It has gone.
    Gone,
    /// A message of it was not taken.
    Refused(axum::Error),
}

impl Left {
    /// Tells a client that is still there.
    pub(super) async fn tell(self, sink: &mut Sink) {
        if let Self::Refused(error) = self {
            refuse_messages(sink, &error, MESSAGE_MAX_BYTES).await;
        }
    }
}

/// Waits until no more comes from the client; its messages are ignored.
pub(super) async fn gone(stream: &mut Stream) -> Left {
    loop {
        match stream.next().await {
            Some(Ok(Message::Close(_))) | None => return Left::Gone,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Left::Refused(error),
        }
    }
}

/// Closes a socket from which no more messages are taken. Either one was larger than `max_bytes`, or the connection is
/// broken, and the client does not get this. A client that does not read is not told.
pub(crate) async fn refuse_messages(
    sink: &mut (impl futures::Sink<Message> + Unpin),
    error: &axum::Error,
    max_bytes: usize,
) {
    tracing::debug!(%error, "a client's message was not taken");
    let reason = format!("a message is larger than {} KiB", max_bytes >> 10);
    let frame = CloseFrame { code: close_code::SIZE, reason: reason.into() };
    drop(tokio::time::timeout(CLOSE_WAIT, sink.send(Message::Close(Some(frame)))).await);
}

/// Closes a socket, and waits a moment for the client to do the same.
pub(super) async fn close(sink: &mut Sink, stream: &mut Stream, code: u16, reason: &str) {
    let frame = CloseFrame { code, reason: reason.into() };
    let closing = async {
        if sink.send(Message::Close(Some(frame))).await.is_ok() {
            drop(gone(stream).await);
        }
    };
    // A client that does not read is not told, either.
    drop(tokio::time::timeout(CLOSE_WAIT, closing).await);
}
