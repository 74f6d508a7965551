//! The E2B protocol over Atoll's engine: E2B's SDKs and what is built on them run on Atoll unmodified.
//!
//! # How a request flows
//!
//! ```text
//! server ─ below /e2b, or by header, host name, service ─▶ lib: control plane or data plane?
//!    control plane   /sandboxes, /v2/sandboxes, /templates, /snapshots    sandboxes, templates
//!    data plane      E2b-Sandbox-Id, <port>-<id>.<domain>, a signature    envd::proxy
//!                      49983: /process.Process/…, /filesystem.…, /files   envd
//!                      others: the server inside
//! ```
//!
//! # What has no equal in the engine
//!
//! Nothing here has a table or a file. What the protocol wants to be told back and the engine does not know (see
//! [`extras`]) lives in an annotation of the sandbox. The access token of a sandbox stands for the API key that asked
//! for it ([`envd`]), so that it may do what that key may, as long as that key may.

mod connect;
mod envd;
mod error;
mod extras;
mod request;
mod sandboxes;
mod templates;
mod time;
mod view;
mod wire;

use std::convert::Infallible;

use atoll_server::dialect::{Dialect, Host};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, Request};
use axum::response::{IntoResponse as _, Response};
use tower::ServiceExt as _;

use crate::envd::filesystem::Watchers;
use crate::envd::process::Delivered;
use crate::envd::proxy;
use crate::sandboxes::idempotency::Answers;
use crate::sandboxes::metrics::Samples;
use crate::templates::{Addresses, Orders};

/// What to mount.
pub const DIALECT: Dialect = Dialect { prefix: "/e2b", router };

/// The state of the routers.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) delivered: Delivered,
    pub(crate) watchers: Watchers,
    pub(crate) answers: Answers,
    pub(crate) samples: Samples,
    pub(crate) orders: Orders,
    pub(crate) addresses: Addresses,
}

impl FromRef<App> for Host {
    fn from_ref(app: &App) -> Self {
        app.host.clone()
    }
}

/// Takes every request for this dialect, however it got here.
fn router(host: Host) -> Router {
    let app = App {
        host,
        delivered: Delivered::default(),
        watchers: Watchers::default(),
        answers: Answers::default(),
        samples: Samples::default(),
        orders: Orders::default(),
        addresses: Addresses::default(),
    };
    let envd = envd::routes().layer(DefaultBodyLimit::disable()).with_state(app.clone());
    let control = Router::new()
        .merge(sandboxes::routes())
        .merge(templates::routes())
        .fallback(error::route_not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(DefaultBodyLimit::disable())
        .with_state(app.clone());
    Router::new().fallback(move |request: Request| {
        let (app, envd, control) = (app.clone(), envd.clone(), control.clone());
        async move { answer(&app, &envd, control, request).await }
    })
}

async fn answer(app: &App, envd: &Router, control: Router, request: Request) -> Response {
    match proxy::by_headers(request.headers()) {
        Some(Ok(to)) => return proxy::serve(app, envd, to, request).await,
        Some(Err(failure)) => return failure.into_response(),
        None => {}
    }
    if let Some(to) = proxy::by_signature(app, &request) {
        return proxy::serve(app, envd, to, request).await;
    }
    let answered: Result<Response, Infallible> = control.oneshot(request).await;
    answered.unwrap_or_else(|never| match never {})
}
