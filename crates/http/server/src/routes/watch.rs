//! Changes of files, as server-sent events.

use std::convert::Infallible;

use atoll_core::{Code, Error, Result};
use atoll_engine::{GuestLease, guest_error};
use atoll_guest_protocol::client::WatchStream;
use atoll_guest_protocol::messages;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use super::files::path;
use crate::auth::{OnSandbox, Read};
use crate::convert;
use crate::error::{ApiResult, body_of, json};
use crate::extract::Query;
use crate::shared::{App, shutting_down};

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchFiles {
    /// Absolute path of a file or directory.
    path: String,
    /// With everything below, also what appears later.
    #[serde(default)]
    recursive: bool,
}

/// Watches a path as server-sent events.
///
/// Events: `ready` (first: changes from here on are reported), `change` (`WatchMessage`), `error`
/// (`ErrorBody`; the last).
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/watch", tag = "files", security(("key" = ["read"])),
    params(("sandbox" = String, Path, description = "Id or name"), WatchFiles),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn watch_files(
    caller: OnSandbox<Read>,
    State(app): State<App>,
    Query(query): Query<WatchFiles>,
) -> ApiResult<impl IntoResponse> {
    let request =
        messages::Watch { path: path("path", query.path)?, recursive: query.recursive, marks: false };
    let lease = app.engine.guest(caller.sandbox()).await?;
    let watch = lease.watch(request).await.map_err(guest_error)?;
    let ready = stream::iter([Ok(Event::default().event("ready").data("{}"))]);
    let changes = changes(app, lease, watch, caller.request_id().to_owned());
    Ok(Sse::new(ready.chain(changes)).keep_alive(KeepAlive::default()))
}

fn changes(
    app: App,
    lease: GuestLease,
    watch: WatchStream,
    request_id: String,
) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    stream::unfold(Some((lease, watch)), move |state| {
        let app = app.clone();
        let request_id = request_id.clone();
        async move {
            let (lease, mut watch) = state?;
            let (event, state) = match next(&app, &lease, &mut watch).await {
                Ok(change) => {
                    let text = json(&convert::watch(change));
                    (Event::default().event("change").data(text), Some((lease, watch)))
                }
                Err(error) => {
                    (Event::default().event("error").data(json(&body_of(error, &request_id))), None)
                }
            };
            Some((Ok(event), state))
        }
    })
}

async fn next(app: &App, lease: &GuestLease, watch: &mut WatchStream) -> Result<messages::WatchEvent> {
    tokio::select! {
        change = watch.next() => change
            .map_err(guest_error)?
            .ok_or_else(|| Error::new(Code::GuestUnavailable, "the watch ended").hint("watch again, and look again")),
        () = lease.dead() => Err(Error::new(Code::SandboxFailed, "the sandbox died")),
        () = app.draining.cancelled() => Err(shutting_down()),
    }
}
