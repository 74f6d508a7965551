//! Journals: pages, server-sent events, WebSockets, and whether they are whole.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use atoll_api::{TraceEvent, TraceFinding, TraceGap, TracePage, TraceReport};
use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_engine::{EventReader, Grant, TraceFilter, TracedEvent};
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::HeaderMap;
use http::header::ACCEPT;
use http::request::Parts;
use serde::Deserialize;
use utoipa::IntoParams;

use super::events::last_event_id;
use super::wait;
use crate::auth::{Caller, Read, ReadJournal};
use crate::bounds::{self, EVENTS};
use crate::cluster::{data, merged, streams_of_others};
use crate::error::{ApiResult, body_of, json};
use crate::extract::{Json, Query};
use crate::serve::Slot;
use crate::shared::{App, shutting_down};
use crate::trace::Unrecorded;

/// Pause after which an idle WebSocket is shown to be alive.
const PING_EVERY: Duration = Duration::from_secs(20);
/// What a client may send over the WebSocket: nothing but control messages.
const RECEIVE_MAX_BYTES: usize = 1 << 10;
/// A stream that comes back begins so long before the event that it saw last: journals are not one sequence.
const OVERLAP_US: u64 = 10_000_000;

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GetEvents {
    /// Number of the first event wanted: 1, or `next` of the last page. The header `Last-Event-ID` of a stream that
    /// comes back wins.
    #[serde(default)]
    from: u64,
    /// Of this kind, such as `exec_started`; may be repeated.
    #[serde(default)]
    kind: Vec<String>,
    /// Of this exec.
    exec: Option<String>,
    /// Not older than this, milliseconds since the epoch.
    #[serde(default)]
    since_ms: u64,
    /// For pages: wait up to this long when there is nothing yet (at most 60,000).
    #[param(schema_with = bounds::wait_ms)]
    wait_ms: Option<u64>,
    /// For pages: most events, 1 to 10,000; 1,000 when absent.
    #[param(schema_with = bounds::events)]
    limit: Option<u32>,
}

/// Which events of many sandboxes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamAll {
    /// Of this kind; may be repeated.
    #[serde(default)]
    kind: Vec<String>,
    /// Of sandboxes of this project: id or name.
    project: Option<String>,
    /// Not older than this, milliseconds since the epoch.
    #[serde(default)]
    since_ms: u64,
}

/// What a sandbox did and what was done with it, also of one that is gone.
///
/// A page of JSON; with `Accept: text/event-stream` server-sent events (`event`: `TraceEvent`, its id the number after
/// which to go on; `error`: `ErrorBody`, the last); over a WebSocket the same objects as text messages.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/events", tag = "trace", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name; the id of one that is gone"), GetEvents),
    responses((status = 200, body = TracePage)))]
pub(crate) async fn get_events(
    caller: Caller<ReadJournal>,
    State(app): State<App>,
    Query(query): Query<GetEvents>,
    headers: HeaderMap,
    slot: Option<Extension<Slot>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let sandbox = whose(&caller)?;
    let filter = TraceFilter {
        kinds: query.kind.into_iter().collect(),
        exec: query.exec.as_deref().map(str::parse).transpose()?,
        since_us: query.since_ms.saturating_mul(1000),
    };
    let (limit, wait) = (EVENTS.of(query.limit)?, wait(query.wait_ms)?);
    let from = last_event_id(&headers)?.map_or(query.from, |last| last.saturating_add(1));
    let reader = app.engine.events(sandbox, from, filter)?;
    if let Ok(upgrade) = upgrade {
        return Ok(over_websocket(upgrade, app, caller.grant().clone(), reader, slot));
    }
    if wants_events(&headers) {
        return Ok(over_sse(app, reader, caller.request_id().to_owned(), |event| event.event.number));
    }
    let page = Json(page(&app, reader, from, limit as usize, wait).await?);
    // The first page that a caller reads is recorded, and not each page after that.
    Ok(if from > 1 { (Extension(Unrecorded), page).into_response() } else { page.into_response() })
}

async fn page(
    app: &App,
    mut reader: EventReader,
    from: u64,
    limit: usize,
    wait: Duration,
) -> Result<TracePage> {
    let first = app.unless_draining(tokio::time::timeout(wait, reader.next())).await;
    // A cancelled wait loses nothing.
    let mut events = match first {
        // The sandbox has just gone to another node: that is asked for the next page.
        Some(Ok(Err(error))) if error.code == Code::NodeUnavailable => Vec::new(),
        Some(Ok(events)) => events?,
        Some(Err(_)) | None => reader.next_now().await?,
    };
    while events.len() < limit {
        let more = reader.next_now().await?;
        if more.is_empty() {
            break;
        }
        events.extend(more);
    }
    let next = match events.get(limit) {
        Some(beyond) => beyond.event.number,
        None => reader.position().max(from).max(1),
    };
    events.truncate(limit);
    Ok(TracePage { items: events.into_iter().map(convert).collect::<Result<_>>()?, next })
}

/// Streams the events of all sandboxes that this key made, also of those that it makes from now on; an administrator's
/// key gets those of all.
///
/// Server-sent events or a WebSocket, as for one sandbox. The id of an event is its time: a stream that comes back
/// begins some seconds before it, so that events may come twice; `sandbox` and `number` tell. Of a cluster those of all living
/// nodes; when a node comes or goes the stream ends, and a client that asks again gets those of all nodes that there are then.
#[utoipa::path(get, path = "/v1/events", tag = "trace", security(("key" = ["read"])), params(StreamAll),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn stream_all(
    caller: Caller<Read>,
    State(app): State<App>,
    Query(query): Query<StreamAll>,
    parts: Parts,
    slot: Option<Extension<Slot>>,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let since_us = match last_event_id(&parts.headers)? {
        Some(last) => last.saturating_sub(OVERLAP_US),
        None => query.since_ms.saturating_mul(1000),
    };
    let filter = TraceFilter { kinds: query.kind.into_iter().collect(), exec: None, since_us };
    let reader = app.engine.events_of(caller.engine(), query.project.as_deref(), filter).await?;
    let mut others = streams_of_others(&app, &parts).await?;
    if others.is_empty()
        && let Ok(upgrade) = upgrade
    {
        return Ok(over_websocket(upgrade, app, caller.grant().clone(), reader, slot));
    }
    let own = over_sse(app.clone(), reader, caller.request_id().to_owned(), |event| event.event.event.at_us);
    if others.is_empty() {
        return Ok(own);
    }
    let (head, body) = own.into_parts();
    others.push(body);
    let all = merged(app.clone(), others);
    let Ok(upgrade) = upgrade else {
        return Ok(Response::from_parts(head, Body::from_stream(all.map(Ok::<_, Infallible>))));
    };
    let grant = caller.grant().clone();
    Ok(limited(upgrade).on_upgrade(move |socket| async move {
        let _slot = slot;
        let _counted = app.tasks.token();
        let engine = app.engine.clone();
        tokio::select! {
            () = pass_events(socket, Box::pin(all)) => {}
            () = engine.until_revoked(&grant) => {}
        }
    }))
}

/// Whether a sandbox's journal is as the recorder wrote it. The server verifies what it wrote itself: who does not trust
/// its host verifies the files elsewhere, with the key and a head that was kept.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/events/verify", tag = "trace", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name; the id of one that is gone")),
    responses((status = 200, body = TraceReport)))]
pub(crate) async fn verify_events(
    caller: Caller<ReadJournal>,
    State(app): State<App>,
) -> ApiResult<Json<TraceReport>> {
    let sandbox = whose(&caller)?;
    let report = app.engine.verify_trace(sandbox).await?;
    let key = app.engine.recorder().map(|recorder| recorder.public_key().to_string());
    let finding = |finding: atoll_recorder::Finding| TraceFinding {
        segment: finding.segment,
        offset: finding.offset,
        after: finding.after,
        what: finding.what,
    };
    Ok(Json(TraceReport {
        sandbox: sandbox.to_string(),
        key: key.unwrap_or_default(),
        events: report.events,
        first: report.first,
        last: report.last,
        signed: report.signed,
        ended: report.ended,
        head: report.head.map(|head| head.to_string()),
        gaps: report.gaps.into_iter().map(|(number, what)| TraceGap { number, what }).collect(),
        findings: report.findings.into_iter().map(finding).collect(),
    }))
}

/// Whose journal the path names.
fn whose(caller: &Caller<ReadJournal>) -> Result<&SandboxId> {
    caller.grant().sandbox().ok_or_else(|| SandboxId::not_found(""))
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}

/// As it travels.
fn convert(event: TracedEvent) -> Result<TraceEvent> {
    let broken = |error: serde_json::Error| {
        tracing::error!(%error, "an event cannot be written as JSON");
        Error::new(Code::Internal, "the journal cannot be read")
    };
    let mut value = serde_json::to_value(&event.event).map_err(broken)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("sandbox".to_owned(), event.sandbox.to_string().into());
    }
    serde_json::from_value(value).map_err(broken)
}

// === streams ===

/// Events that are about to be sent, one by one.
struct Feed {
    app: App,
    reader: EventReader,
    ready: std::vec::IntoIter<TracedEvent>,
}

impl Feed {
    async fn next(&mut self) -> Result<TracedEvent> {
        loop {
            if let Some(event) = self.ready.next() {
                return Ok(event);
            }
            let next = self.app.unless_draining(self.reader.next()).await;
            self.ready = next.unwrap_or_else(|| Err(shutting_down()))?.into_iter();
        }
    }
}

fn over_sse(app: App, reader: EventReader, request_id: String, id: fn(&TracedEvent) -> u64) -> Response {
    let feed = Feed { app, reader, ready: Vec::new().into_iter() };
    Sse::new(sse_events(feed, request_id, id)).keep_alive(KeepAlive::default()).into_response()
}

fn sse_events(
    feed: Feed,
    request_id: String,
    id: fn(&TracedEvent) -> u64,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    stream::unfold(Some(feed), move |feed| {
        let request_id = request_id.clone();
        async move {
            let mut feed = feed?;
            let next = match feed.next().await {
                Ok(event) => {
                    let id = id(&event).to_string();
                    convert(event).map(|event| Event::default().event("event").id(id).data(json(&event)))
                }
                Err(error) => Err(error),
            };
            Some(match next {
                Ok(event) => (Ok(event), Some(feed)),
                Err(error) => {
                    (Ok(Event::default().event("error").data(json(&body_of(error, &request_id)))), None)
                }
            })
        }
    })
}

fn limited(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade.max_message_size(RECEIVE_MAX_BYTES).max_frame_size(RECEIVE_MAX_BYTES)
}

/// Sends what server-sent events carry, as [`serve_websocket`] does events.
async fn pass_events(mut socket: WebSocket, mut events: Pin<Box<impl Stream<Item = Bytes> + Send>>) {
    loop {
        let message = tokio::select! {
            event = events.next() => match event.as_deref().map(data) {
                Some(Some(text)) => Message::text(text.to_owned()),
                Some(None) => continue,
                None => {
                    drop(socket.send(Message::Close(None)).await);
                    return;
                }
            },
            received = socket.next() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => continue,
            },
            () = tokio::time::sleep(PING_EVERY) => Message::Ping(Bytes::new()),
        };
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

fn over_websocket(
    upgrade: WebSocketUpgrade,
    app: App,
    grant: Grant,
    reader: EventReader,
    slot: Option<Extension<Slot>>,
) -> Response {
    limited(upgrade).on_upgrade(move |socket| async move {
        let _slot = slot;
        let _counted = app.tasks.token();
        let engine = app.engine.clone();
        tokio::select! {
            () = serve_websocket(socket, Feed { app: app.clone(), reader, ready: Vec::new().into_iter() }) => {}
            () = engine.until_revoked(&grant) => {}
        }
    })
}

/// Sends events until one side ends it. What the client says is only read for its closing.
async fn serve_websocket(mut socket: WebSocket, mut feed: Feed) {
    loop {
        let message = tokio::select! {
            event = feed.next() => match event.and_then(convert) {
                Ok(event) => Message::text(json(&event)),
                Err(error) => {
                    tracing::debug!(%error, "a stream of events ends");
                    drop(socket.send(Message::Close(None)).await);
                    return;
                }
            },
            received = socket.next() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => continue,
            },
            () = tokio::time::sleep(PING_EVERY) => Message::Ping(Bytes::new()),
        };
        if socket.send(message).await.is_err() {
            return;
        }
    }
}
