//! The E2B protocol over Atoll's engine: E2B's SDKs, and programs built on them, run on Atoll unmodified.
//!
//! # How a request flows
//!
//! ```text
//! server ─ below /e2b, or by header, host name, service ─▶ lib: control plane or data plane?
//!    control plane   /sandboxes, /v2/sandboxes, /templates, /snapshots    sandboxes, templates
//!                    /volumes, /volumecontent, /secrets                   volumes, secrets
//!    data plane      E2b-Sandbox-Id, <port>-<id>.<domain>, a signature    envd::proxy
//!                      49983: /process.Process/…, /filesystem.…, /files   envd
//!                      others: the server inside
//! ```
//!
//! # What has no equal in the engine
//!
//! Nothing here has a table, and the only files are the archives that wait for a build. Values that the protocol wants
//! to be told back and the engine does not know (see [`extras`]) live in an annotation of the sandbox. The access token
//! of a sandbox stands for the API key that asked for it ([`envd`]): it allows what that key may do, as long as the key
//! may do it. The same is true of a volume's token.

mod connect;
mod envd;
mod error;
mod extras;
mod logs;
mod request;
mod sandboxes;
mod secrets;
mod templates;
mod time;
mod view;
mod volumes;
mod wire;

use std::convert::Infallible;

use atoll_core::Error;
use atoll_core::secret::Secret;
use atoll_dialect_kit::Protocol;
use atoll_server::dialect::{Arrival, Asked, Dialect, Host, Mount, Named, below, credentials};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, RawPathParams, Request};
use axum::middleware::from_fn;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use tower::ServiceExt as _;

use crate::connect::Fault;
use crate::envd::filesystem::Watchers;
use crate::envd::process::Delivered;
use crate::envd::proxy;
use crate::error::Failure;
use crate::extras::Extras;
use crate::sandboxes::idempotency::Answers;
use crate::sandboxes::metrics::Samples;
use crate::templates::{Addresses, Orders};

/// The dialect, for the server to mount.
pub const DIALECT: Dialect = Dialect {
    name: "e2b",
    mounts: &[
        Mount::Prefix(CONTROL),
        Mount::Header("e2b-sandbox-id"),
        Mount::Host(is_ours),
        Mount::Prefix(FILES),
    ],
    router,
    credential,
    refuse,
};

/// Path of the signed addresses that clients without host names make: they name no sandbox.
const FILES: &str = "/files";

/// The control plane lies below it.
const CONTROL: &str = "/e2b";

/// Host names of the control plane, of envd, and of other ports of sandboxes that this protocol's clients made or that
/// are gone. The links and cookies of the native API open those other ports, too.
fn is_ours(named: &Named<'_>) -> bool {
    let Some(to) = proxy::by_host(named.label) else { return named.label == "api" };
    to.port == envd::PORT
        || (!named.shows_native_credential() && Extras::may_be_at(named.engine, &to.sandbox))
}

/// The key of a request to the control plane.
fn credential(headers: &HeaderMap) -> Option<Secret> {
    credentials::header(headers, "x-api-key").or_else(|| credentials::bearer(headers))
}

/// An error of the server, in the form of the protocol that the request speaks: Connect or plain JSON.
fn refuse(error: &Error, asked: &Asked) -> Response {
    let kind = asked.content_type.as_ref().map_or(&b""[..], |kind| kind.as_bytes());
    if kind.starts_with(b"application/connect") || kind.starts_with(b"application/proto") {
        return Fault::of(error).into_response();
    }
    Failure::of(error).into_response()
}

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

impl Protocol for App {
    type Failure = Failure;
    const BY_ID_ALONE: bool = true;

    fn host(&self) -> &Host {
        &self.host
    }

    fn refused(error: &Error) -> Failure {
        Failure::of(error)
    }

    fn sandbox(_: &str, params: &RawPathParams, _: &Parts) -> Option<String> {
        let named = params.iter().find(|(name, _)| *name == request::SANDBOX);
        named.map(|(_, value)| request::bare(value).to_owned())
    }

    fn missing(named: &str) -> Option<Failure> {
        Some(Failure::no_sandbox(named))
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
        .merge(volumes::routes())
        .merge(secrets::routes())
        .fallback(error::route_not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(volumes::answer))
        .with_state(app.clone());
    Router::new().fallback(move |request: Request| {
        let (app, envd, control) = (app.clone(), envd.clone(), control.clone());
        async move { Box::pin(answer(&app, &envd, control, request)).await }
    })
}

async fn answer(app: &App, envd: &Router, control: Router, mut request: Request) -> Response {
    let arrival = request.extensions().get::<Arrival>().cloned().unwrap_or_default();
    if arrival.prefix == FILES
        && let Some(uri) = files_again(request.uri())
    {
        *request.uri_mut() = uri;
    }
    // The host name counts before headers: a page in a sandbox can choose only headers.
    if let Some(to) = arrival.label.as_deref().and_then(proxy::by_host) {
        return proxy::serve(app, envd, to, request).await;
    }
    match proxy::by_headers(request.headers()) {
        Some(Ok(to)) if to.port == envd::PORT && below(request.uri(), CONTROL).is_some() => {
            // Clients up to 2.20 send this header also to the control plane, when they ask it to connect.
            *request.uri_mut() = below(request.uri(), CONTROL).unwrap_or_default();
        }
        Some(Ok(to)) => return proxy::serve(app, envd, to, request).await,
        Some(Err(failure)) => return failure.into_response(),
        None => {}
    }
    if let Some(to) = proxy::by_signature(app, &request) {
        return proxy::serve(app, envd, to, request).await;
    }
    if arrival.prefix == FILES {
        let why = "no sandbox is named: send E2b-Sandbox-Id, or a signature that one of them made";
        return Failure::new(http::StatusCode::UNAUTHORIZED, why).into_response();
    }
    let answered: Result<Response, Infallible> = control.oneshot(request).await;
    answered.unwrap_or_else(|never| match never {})
}

/// The address, with the prefix that the server took off.
fn files_again(uri: &Uri) -> Option<Uri> {
    let rest = uri.path().trim_start_matches('/');
    let path = if rest.is_empty() { FILES.to_owned() } else { format!("{FILES}/{rest}") };
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_addresses_keep_their_query() {
        let of = |text: &str| files_again(&text.parse().unwrap()).unwrap().to_string();
        assert_eq!(of("/?path=a&signature=v1_x%2B"), "/files?path=a&signature=v1_x%2B");
        assert_eq!(of("/compose"), "/files/compose");
    }
}
