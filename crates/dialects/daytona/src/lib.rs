//! The Daytona protocol over Atoll's engine: Daytona's SDKs, and programs built on them, run on Atoll unmodified.
//!
//! # How a request flows
//!
//! ```text
//! server ─ below /daytona, or <port>-<uuid>.<domain> ─▶ lib
//!    /api                 control plane: /sandbox, /snapshots, /volumes, …      control
//!    /api/socket.io       changes of sandboxes, told as they happen            events
//!    /toolbox/{sandbox}   what happens inside: /process, /files, /git, …        toolbox
//!    /storage             files of the client for builds, as S3                 objects
//!    host names           ports, with Daytona's tokens                          preview
//! ```
//!
//! The clients append their routes to `DAYTONA_API_URL`, and find the toolbox at the address in each sandbox's answer
//! (`toolboxProxyUrl`). Generated clients check the exact status of an answer and every field's type: the handlers give
//! what they expect.
//!
//! # What has no equal in the engine
//!
//! Nothing here has a table, and the only files on the host are the archives that wait for a build. Values that the
//! protocol wants to be told back and the engine does not know (see [`extras`]) live in an annotation of the sandbox. A
//! sandbox's UUID is its Atoll id written in another way. A process of the toolbox (a command of a session, a terminal,
//! an interpreter) is an exec with a tag that says so, and a session is a directory inside the sandbox: all of it is
//! there after a restart of the server.

mod control;
mod error;
mod events;
mod extras;
mod mac;
mod objects;
mod preview;
mod request;
mod toolbox;
mod view;
mod who;

use std::convert::Infallible;

use atoll_core::Error;
use atoll_dialect_kit::Protocol;
use atoll_dialect_kit::memory::Memory;
use atoll_dialect_kit::turns::Turns;
use atoll_server::dialect::{Arrival, Asked, Dialect, Host, Mount, credentials};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, RawPathParams, Request};
use axum::response::Response;
use axum::routing::any;
use http::request::Parts;
use tower::ServiceExt as _;

use crate::error::{Failure, Source};

/// The dialect, for the server to mount.
pub const DIALECT: Dialect = Dialect {
    name: "daytona",
    mounts: &[Mount::Prefix(PREFIX), Mount::Host(preview::is_ours)],
    router,
    credential: credentials::bearer,
    refuse,
};

/// The path of the dialect.
const PREFIX: &str = "/daytona";

/// An error of the server, for requests that do not reach a handler.
fn refuse(error: &Error, asked: &Asked) -> Response {
    Failure::of(error).response(&asked.method, asked.uri.path())
}

/// Memory for all outputs, and answers of programs inside, that are held as a whole.
const OUTPUTS_MAX_BYTES: usize = 4 << 30;

/// The state of the routers.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) turns: Turns,
    pub(crate) sizes: toolbox::Sizes,
    /// For outputs, and answers of programs inside, that are held as a whole.
    pub(crate) outputs: Memory,
}

impl Protocol for App {
    type Failure = Failure;

    fn host(&self) -> &Host {
        &self.host
    }

    fn refused(error: &Error) -> Failure {
        Failure::of(error)
    }

    fn sandbox(_: &str, params: &RawPathParams, _: &Parts) -> Option<String> {
        who::named(params)
    }

    fn missing(named: &str) -> Option<Failure> {
        Some(who::missing(named))
    }
}

impl FromRef<App> for Host {
    fn from_ref(app: &App) -> Self {
        app.host.clone()
    }
}

/// Takes every request for this dialect, by whichever mount it arrived.
fn router(host: Host) -> Router {
    let app = App {
        host,
        turns: Turns::default(),
        sizes: toolbox::Sizes::default(),
        outputs: Memory::new(OUTPUTS_MAX_BYTES),
    };
    let inner = Router::new()
        .route("/api/socket.io/", any(events::serve))
        .nest("/api", control::routes())
        .nest("/toolbox/{sandbox}", toolbox::routes())
        .merge(objects::routes())
        .fallback(error::route_not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(axum::middleware::from_fn(error::dress))
        .layer(DefaultBodyLimit::disable())
        .with_state(app.clone());
    Router::new().fallback(move |request: Request| {
        let (app, inner) = (app.clone(), inner.clone());
        async move {
            let arrival = request.extensions().get::<Arrival>().cloned().unwrap_or_default();
            if let Some(label) = arrival.label {
                return preview::serve(&app, &label, request).await;
            }
            let answered: Result<Response, Infallible> = inner.oneshot(request).await;
            answered.unwrap_or_else(|never| match never {})
        }
    })
}

/// The answer for a request that this server does not support, in the protocol's words.
pub(crate) fn unsupported(what: &str, instead: &str) -> Failure {
    let why = format!("{what} is not supported by this server; {instead}");
    Failure::new(http::StatusCode::NOT_IMPLEMENTED, "NOT_IMPLEMENTED", why).from(Source::Api)
}
