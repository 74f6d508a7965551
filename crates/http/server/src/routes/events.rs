//! Output as server-sent events: any `EventSource` can follow an exec and go on where it stopped.

use std::convert::Infallible;

use atoll_api::{AttachServerMessage, OutputChunk};
use atoll_core::key::Scope;
use atoll_core::{Code, Error, Result};
use atoll_engine::{OutputEvent, OutputReader, Piece};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use http::{HeaderMap, HeaderName};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::{OnSandbox, Read};
use crate::error::{ApiResult, body_of, json};
use crate::extract::{Path, Query};
use crate::shared::{App, shutting_down};

/// Where a client that comes back stopped.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Most output in one event, bytes.
const EVENT_MAX_BYTES: usize = 32 << 10;

/// From where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamOutput {
    /// First byte wanted. The header `Last-Event-ID`, which browsers send when they come back, wins.
    #[serde(default)]
    offset: u64,
}

/// Follows an exec's output as server-sent events.
///
/// Events: `output` (`OutputChunk`), `gap` (`from`, `to`), `exit` (`state`,
/// `exit`, `offset`; the last), `error` (`ErrorBody`; the last). The id of an
/// event is the offset after it.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/events", tag = "execs",
    security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), ("exec" = String, Path), StreamOutput),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn stream_output(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Path((_sandbox, exec)): Path<(String, String)>,
    Query(query): Query<StreamOutput>,
    headers: HeaderMap,
) -> ApiResult<impl IntoResponse> {
    let offset = last_event_id(&headers)?.unwrap_or(query.offset);
    // Only a client that may kill the exec counts as one whose leaving may kill it.
    let reader = app.engine.output(caller.sandbox(), &exec, offset, caller.has(Scope::Exec)).await?;
    let reader = reader.read_by(Some(&caller.key().id));
    Ok(Sse::new(events(app, reader, caller.request_id().to_owned())).keep_alive(KeepAlive::default()))
}

/// Where a client that comes back stopped.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    // The standard library also takes a sign.
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let offset = digits.and_then(|text| text.parse().ok());
    offset.map(Some).ok_or_else(|| {
        Error::new(Code::InvalidArgument, "Last-Event-ID: not an offset")
            .hint("send the id of the last event")
    })
}

fn events(
    app: App,
    reader: OutputReader,
    request_id: String,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    stream::unfold(Some(reader), move |reader| {
        let app = app.clone();
        let request_id = request_id.clone();
        async move {
            let mut reader = reader?;
            let next = app.unless_draining(reader.next(EVENT_MAX_BYTES)).await;
            let (event, last) = match next.unwrap_or_else(|| Err(shutting_down())) {
                Ok(next) => event(next),
                Err(error) => {
                    (Event::default().event("error").data(json(&body_of(error, &request_id))), true)
                }
            };
            Some((Ok(event), (!last).then_some(reader)))
        }
    })
}

/// The event, and whether it is the last.
fn event(next: OutputEvent) -> (Event, bool) {
    let new = |name: &str, id: u64, data: String| Event::default().event(name).id(id.to_string()).data(data);
    match next {
        OutputEvent::Piece(Piece::Output { offset, stream, bytes }) => {
            let end = offset + bytes.len() as u64;
            let chunk = OutputChunk::new(offset, stream, &bytes);
            (new("output", end, json(&chunk)), false)
        }
        OutputEvent::Piece(Piece::Gap { from, to }) => {
            (new("gap", to, json(&AttachServerMessage::Gap { from, to })), false)
        }
        OutputEvent::End { state, exit, offset } => {
            (new("exit", offset, json(&AttachServerMessage::Exit { state, exit, offset })), true)
        }
    }
}
