//! Ports of sandboxes, from outside.
//!
//! ```text
//! request ─ address     for a port? by host name, headers or path
//!         ─ credential  API key, token, cookie, public: taken out of the request
//!         ─ forward     lease (wakes the sandbox) ─ pool ─ connection ─ head cleaned ─▶ server inside
//!         ◀─ answer     head cleaned, body streamed; the lease ends with it, the connection waits in the pool
//!                       101: bytes both ways until one side ends
//! ```
//!
//! This stands before the router and everything around it: a request to a server inside is no call of the API. The
//! server inside is treated as hostile: the head of its answer is bounded, its cookies are confined, and the text about
//! a failure is ours. In the form with a path its pages share the server's address with the API, so they are given an
//! opaque origin; browsers are meant to use host names.
//!
//! Dialects have ways of their own to name a port and to let people in: they call [`Ingress::forward`].

pub(crate) mod address;
mod answer;
mod cookies;
mod credential;
mod download;
mod forward;
mod headers;
mod pages;
mod pool;
mod tls;
pub(crate) mod tunnel;
mod upstream;
pub(crate) mod urls;

use std::time::Instant;

use atoll_core::id::SandboxId;
use atoll_core::{Error, Result};
use atoll_engine::{Access, Asked, Grant};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{ACCEPT, CACHE_CONTROL, LOCATION, REFERRER_POLICY, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tracing::Instrument as _;

use self::address::{Address, Form};
pub(crate) use self::credential::TOKEN_HEADER;
pub(crate) use self::credential::shows_credential;
use self::credential::{Admitted, Shown};
pub use self::forward::Forward;
pub(crate) use self::forward::relay;
pub(crate) use self::pool::Pool;
use crate::middleware::request_id;
use crate::shared::App;

/// Label of these requests in the metrics: their paths belong to the servers inside.
const ROUTE: &str = "port";

/// Ports of sandboxes, for dialects. Clones share it.
#[derive(Debug, Clone)]
pub struct Ingress {
    pub(crate) app: App,
}

impl Ingress {
    /// Passes a request on to a port. The dialect that calls this decides before whether the client may, and takes
    /// secrets out of the request's head.
    ///
    /// # Errors
    /// [`atoll_core::Code::PortClosed`], [`atoll_core::Code::PortBroken`], [`atoll_core::Code::Timeout`], or what
    /// waking the sandbox gives. [`Self::page`] makes an answer of it, if the protocol has none of its own.
    pub async fn forward(&self, request: Request, to: Forward) -> Result<Response> {
        forward::forward(&self.app, request, to).await
    }

    /// What people see in a browser, and programs as JSON, when [`Self::forward`] fails. `headers` are the
    /// request's.
    #[must_use]
    pub fn page(&self, error: Error, headers: &HeaderMap) -> Response {
        pages::error(error, wants_html(headers), &request_id(headers).0)
    }

    /// As [`Self::forward`], for a dialect that renders errors in its own words.
    ///
    /// # Errors
    /// [`atoll_core::Code::PortClosed`], [`atoll_core::Code::PortBroken`], and what waking the sandbox gives.
    pub async fn try_forward(&self, request: Request, to: Forward) -> Result<Response> {
        forward::forward(&self.app, request, to).await
    }

    /// Serves a tunnel over a byte stream until it ends, or the right by which it was opened does: yamux, the
    /// client opening a stream for each connection. See `docs/ports.md` for what travels.
    pub async fn tunnel<S>(&self, stream: S, sandbox: SandboxId, grant: Grant)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        tunnel::serve(&self.app, stream, tunnel::Ends { sandbox, grant, listeners: Vec::new() }).await;
    }

    /// As [`Self::tunnel`], over the binary messages of a WebSocket.
    pub async fn tunnel_websocket(
        &self,
        socket: axum::extract::ws::WebSocket,
        sandbox: SandboxId,
        grant: Grant,
    ) {
        self.tunnel(tunnel::bytes_of(socket, self.app.clone()), sandbox, grant).await;
    }

    /// Takes everything out of a request's head that is a secret of this server's: keys, tokens and cookies of ours
    /// in any of the places where they may stand. For dialects that pass a request on.
    pub fn strip_credentials(&self, parts: &mut Parts) {
        drop(Shown::take(parts, |text| self.app.engine.verify_key(text).is_ok()));
    }

    /// Answers a `GET` or `HEAD` with the file that an access is to. Takes `Range` with one range.
    ///
    /// # Errors
    /// [`atoll_core::Code::Unauthorized`] when the token is not for a file, and what reading gives.
    pub async fn download(&self, token: &str, headers: &HeaderMap) -> Result<Response> {
        download::download(&self.app, token, headers).await
    }

    /// The address of a port for a client that reached this server under `host` (the request's `Host`).
    ///
    /// # Errors
    /// [`atoll_core::Code::SandboxNotFound`].
    pub fn port_url(&self, sandbox: &SandboxId, port: u16, host: Option<&str>) -> Result<String> {
        Ok(urls::port(&self.app, &self.app.engine.sandbox(sandbox)?, port, host))
    }

    /// The domain below which ports are, as `localhost:4600`, for the client that sent a request with this head: its
    /// `PORT-SANDBOX.DOMAIN` is a port. `None` when the client reached this server in a way that says nothing about where
    /// such names lead it.
    #[must_use]
    pub fn domain(&self, parts: &Parts) -> Option<String> {
        urls::domain(&self.app, address::host(&parts.uri, &parts.headers))
    }

    /// The address under which an access is used, without its token.
    ///
    /// # Errors
    /// [`atoll_core::Code::SandboxNotFound`].
    pub fn access_url(&self, access: &Access, host: Option<&str>) -> Result<String> {
        urls::access(&self.app, access, host)
    }
}

/// Whether a browser asks for a page.
fn wants_html(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().windows(9).any(|part| part == b"text/html"))
}

/// Serves requests for ports; passes all others on to the router.
pub(crate) async fn intercept(State(app): State<App>, request: Request, next: Next) -> Response {
    let address = address::parse(request.uri(), request.headers(), &app.config.ports_domain);
    let address = match address {
        Ok(None) => return next.run(request).await,
        Ok(Some(address)) => Ok(address),
        Err(error) => Err(error),
    };
    let started = Instant::now();
    let id = request_id(request.headers());
    let html = wants_html(request.headers());
    let method = request.method().clone();
    let span = tracing::info_span!("port", id = %id.0, %method);
    let serve = async {
        let result = match address {
            Ok(address) => serve(&app, request, address).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(response) => response,
            Err(error) => {
                tracing::info!(code = %error.code, %error, "request refused");
                pages::error(error, html, &id.0)
            }
        }
    };
    let response = serve.instrument(span).await;
    app.metrics.request(&method, ROUTE, response.status().as_u16(), started.elapsed());
    response
}

async fn serve(app: &App, request: Request, address: Address) -> Result<Response> {
    Asked::of_anybody();
    let (mut parts, body) = request.into_parts();
    let shown = Shown::take(&mut parts, |text| app.engine.verify_key(text).is_ok());
    let domain = &app.config.ports_domain;
    let (sandbox, port) = match &address {
        Address::Port { sandbox, port, form: _ } => (sandbox, Some(*port)),
        Address::Page { sandbox } => (sandbox, None),
    };
    let found = app.engine.resolve_sandbox(sandbox);
    let foreign =
        || found.as_ref().is_none_or(|id| credential::is_foreign(&parts.headers, &app.engine, id, domain));
    let admitted = shown.admit(&app.engine, sandbox, found.as_ref(), port, foreign).await?;
    // Only now: a client that may not come in does not learn whether the sandbox is there.
    let id = admitted.sandbox().cloned().ok_or_else(|| SandboxId::not_found(sandbox))?;
    let by_name = matches!(address, Address::Port { form: Form::Host, .. } | Address::Page { .. });
    if let Admitted::Link(access, token) = &admitted
        && by_name
        && parts.method == Method::GET
        && wants_html(&parts.headers)
    {
        return keep_token(app, &parts, access.expires_ms(), token);
    }
    match address {
        Address::Page { .. } => {
            let host = address::host(&parts.uri, &parts.headers);
            pages::ports(app, &id, host, shown.token(), parts.uri.query()).await
        }
        Address::Port { port, form, .. } => {
            let prefix = match form {
                Form::Path { prefix } => Some(prefix),
                Form::Host | Form::Headers => None,
            };
            let grant = admitted.grant();
            let to = Forward { sandbox: id, port, prefix, keep_host: by_name, tls: false, grant };
            forward::forward(app, Request::from_parts(parts, body), to).await
        }
    }
}

/// Puts the token of a link into a cookie and goes on to the same page without it.
fn keep_token(app: &App, parts: &Parts, expires_ms: Option<u64>, token: &str) -> Result<Response> {
    let max_age_s = expires_ms.map(|end| end.saturating_sub(app.engine.now_ms()) / 1000);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // Two slashes would lead to another host.
    let path = format!("/{}", path.trim_start_matches(['/', '\\']));
    let cookie = cookies::for_token(token, max_age_s, app.config.is_https());
    let location = HeaderValue::try_from(path).ok();
    let (Some(cookie), Some(location)) = (cookie, location) else {
        return Err(Error::invalid("atoll_token", "cannot be kept in a cookie"));
    };
    let mut response = Response::new(axum::body::Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(LOCATION, location);
    headers.insert(SET_COOKIE, cookie);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}
