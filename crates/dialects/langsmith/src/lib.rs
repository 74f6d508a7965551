//! The LangSmith sandbox protocol over Atoll's engine: LangSmith's SDKs, Deep Agents and programs built on them run on
//! Atoll unmodified.
//!
//! # How a request flows
//!
//! ```text
//! server ─ Mounts ─ below /langsmith ─▶ lib     one spelling of every path: no `/api`, no double slashes
//!                                        ─▶ router
//!    control plane  /v2/sandboxes/boxes, /snapshots, /registries     boxes, snapshots, registries
//!    data plane     /v2/sandboxes/{id}/execute/ws, /upload, …        exec, files, tunnel
//!    tracing        /runs, /info                                     traces
//! ```
//!
//! Each handler authenticates, parses, calls the engine and converts, as the native API's do. It differs in what the
//! clients expect: unknown fields are ignored, because the clients send more than they document; errors have the bodies
//! and statuses that the clients turn into the right exception ([`error`]); and once a call has done any work, it never
//! answers with a status that a client retries.
//!
//! # What has no equal in the engine
//!
//! Nothing here has a table or a file. Values that the protocol wants to be told back and the engine does not know (see
//! [`extras`]) live in an annotation of the sandbox. A sandbox's UUID is its Atoll id written in another way ([`ids`]).
//! A command id is an exec's idempotency key. Offsets of output count the text that the server sends, for each stream
//! by itself, while the engine's log counts bytes of both together: [`atoll_dialect_kit::exec::Feed`] translates
//! between the two. That crate also has the other parts that several protocols need.

mod boxes;
mod error;
mod exec;
mod extras;
mod files;
mod proxy;
mod registries;
mod request;
mod services;
mod snapshots;
mod traces;
mod tunnel;
mod view;

use std::convert::Infallible;

use atoll_core::Error;
use atoll_dialect_kit::Protocol;
use atoll_dialect_kit::exec::Bookmarks;
use atoll_dialect_kit::pending::Works;
pub(crate) use atoll_dialect_kit::{time, uuid as ids};
use atoll_server::dialect::{Dialect, Host, Mount, credentials};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, RawPathParams, Request};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use http::Uri;
use http::request::Parts;
use http::uri::PathAndQuery;
use tower::ServiceExt as _;

use crate::error::Failure;
use crate::snapshots::Snapshot;

/// The dialect, for the server to mount.
pub const DIALECT: Dialect = Dialect {
    name: "langsmith",
    mounts: &[Mount::Prefix(PREFIX)],
    router,
    credential: credentials::bearer_or_api_key,
    refuse: |error, _| Failure::control(error).into_response(),
};

/// The path of the dialect.
const PREFIX: &str = "/langsmith";

/// The state of the router.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) marks: Bookmarks,
    pub(crate) builds: Works<Snapshot>,
}

impl Protocol for App {
    type Failure = Failure;

    fn host(&self) -> &Host {
        &self.host
    }

    fn refused(error: &Error) -> Failure {
        Failure::control(error)
    }

    fn sandbox(route: &str, params: &RawPathParams, _: &Parts) -> Option<String> {
        let param = if route.contains("/boxes/{name}") { "name" } else { "id" };
        params.iter().find(|(name, _)| *name == param).map(|(_, value)| ids::sandbox(value))
    }
}

impl FromRef<App> for Host {
    fn from_ref(app: &App) -> Self {
        app.host.clone()
    }
}

/// The router: takes every path below the prefix, however a client spells it.
fn router(host: Host) -> Router {
    let inner = routes(host);
    Router::new().fallback(move |mut request: Request| {
        let inner = inner.clone();
        async move {
            if let Some(uri) = one_spelling(request.uri()) {
                *request.uri_mut() = uri;
            }
            let answered: Result<Response, Infallible> = inner.oneshot(request).await;
            answered.unwrap_or_else(|never| match never {})
        }
    })
}

fn routes(host: Host) -> Router {
    let control = Router::new()
        .route("/boxes", post(boxes::create).get(boxes::list))
        .route("/boxes/{name}", get(boxes::read).patch(boxes::update).delete(boxes::remove))
        .route("/boxes/{name}/status", get(boxes::status))
        .route("/boxes/{name}/start", post(boxes::start))
        .route("/boxes/{name}/stop", post(boxes::stop))
        .route("/boxes/{name}/snapshot", post(snapshots::capture))
        .route("/boxes/{name}/service-url", post(services::service))
        .route("/boxes/{name}/service-urls", get(services::services).delete(services::revoke))
        .route("/boxes/{name}/download-url", post(services::download))
        .route("/snapshots", post(snapshots::build::create).get(snapshots::list))
        .route("/snapshots/{name}", get(snapshots::read).delete(snapshots::remove))
        .route("/snapshots-by-name/{name}", get(snapshots::tags))
        .route("/registries", post(registries::create).get(registries::list))
        .route(
            "/registries/{name}",
            get(registries::read).patch(registries::update).delete(registries::remove),
        );
    let data = Router::new()
        .route("/{id}/execute/ws", any(exec::ws::attach))
        .route("/{id}/execute", post(exec::blocking::execute))
        .route("/{id}/execute/stream/start", post(exec::sse::start))
        .route("/{id}/execute/stream/resume", post(exec::sse::resume))
        .route("/{id}/upload", post(files::upload::upload))
        .route("/{id}/download", get(files::download::download))
        .route("/{id}/glob", post(files::search::glob))
        .route("/{id}/grep", post(files::search::grep))
        .route("/{id}/tunnel", any(tunnel::attach))
        .route("/{id}/services/{port}", any(services::forward))
        .route("/{id}/services/{port}/", any(services::forward))
        .route("/{id}/services/{port}/{*path}", any(services::forward));
    Router::new()
        .nest("/v2/sandboxes", control.merge(data))
        .merge(traces::routes())
        .fallback(error::route_not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(DefaultBodyLimit::disable())
        .with_state(App { host, marks: Bookmarks::default(), builds: Works::default() })
}

/// `//api/v2/x`, `/api/v2/x` and `/v2//x` become `/v2/x`. `None` when the path has this form already.
fn one_spelling(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let mut tidy = String::with_capacity(path.len());
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        tidy.push('/');
        tidy.push_str(segment);
    }
    let tidy =
        tidy.strip_prefix("/api/v2").map_or(tidy.as_str(), |rest| &tidy[tidy.len() - rest.len() - 3..]);
    if tidy == path {
        return None;
    }
    let tidy = if tidy.is_empty() { "/" } else { tidy };
    let text = match uri.query() {
        Some(query) => format!("{tidy}?{query}"),
        None => tidy.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_spelling() {
        let of = |text: &str| one_spelling(&text.parse::<Uri>().unwrap()).map(|uri| uri.to_string());
        assert_eq!(of("/v2/sandboxes/boxes"), None);
        assert_eq!(
            of("/api/v2/sandboxes/boxes?a=b%2F%2Fc").as_deref(),
            Some("/v2/sandboxes/boxes?a=b%2F%2Fc")
        );
        assert_eq!(of("//api//v2/sandboxes/boxes/").as_deref(), Some("/v2/sandboxes/boxes"));
        assert_eq!(of("//v2/sandboxes/boxes/a%2Fb").as_deref(), Some("/v2/sandboxes/boxes/a%2Fb"));
    }
}
