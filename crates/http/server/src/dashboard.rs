//! The dashboard on the server's port.
//!
//! ```text
//! request ─ intercept  under a name of the dashboard? all others never see it, nor its sessions
//!         ─ /login     a link's token becomes a session: a cookie; a person comes back from the issuer of identities
//!         ─ /session   the session's CSRF token; DELETE signs out
//!         ─ /v1/…      gate: origin, session, CSRF token ─▶ the native API, as the session's key
//!         ─ all else   files of the frontend
//! ```
//!
//! Under its names there is nothing else: no ports of sandboxes by path or headers, no dialects, no downloads by link.
//! Pages that a sandbox serves never have the dashboard's origin.
//!
//! On a node of a cluster, once the gate let a request through, the node passes it on to the node that has what the
//! request is about, as the session's key; and a session of one node counts at all ([`nodes`]).

mod login;
mod nodes;
mod people;

use atoll_core::{Code, Error};
use atoll_dashboard::{Session, Sessions, Site, Sites, check_csrf, check_origin, sessions_of};
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tower::ServiceExt as _;

use crate::auth::{SignedIn, presents_key};
use crate::cluster::{LetThrough, OfSession};
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::ingress::address;
use crate::origin;
use crate::serve::{Encrypted, Peer};
use crate::shared::App;
use crate::trace::Unrecorded;
pub(crate) use nodes::{PATH as SESSIONS, session_of_node, text as link_text};

/// Where the native API is.
const API: &str = "/v1/";
/// Files of sandboxes that anyone with a link may download: not under this origin.
const DOWNLOADS: &str = "/v1/download/";
/// What the page asks for every few seconds while a user looks at it. Such a request makes no entry in the sandbox's
/// journal: it would bury all other entries.
const POLLED: [&str; 6] = [
    "/v1/sandboxes/{sandbox}",
    "/v1/sandboxes/{sandbox}/checkpoints",
    "/v1/sandboxes/{sandbox}/execs",
    "/v1/sandboxes/{sandbox}/metrics",
    "/v1/sandboxes/{sandbox}/network",
    "/v1/sandboxes/{sandbox}/ports",
];
/// The headers in which a proxy names the client that it asks for.
const PASSED_ON: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];
/// The headers of answers that are no pages. Such an answer may hold text that a sandbox wrote: if a browser showed it
/// as a page, the page could do nothing.
const INERT: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; sandbox"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The dashboard's host names, and its sessions.
#[derive(Debug)]
pub(crate) struct Console {
    sites: Sites,
    sessions: Sessions,
    /// All names of the server under which a page may ask it for something, the dashboard's included.
    own_names: Vec<String>,
}

impl Console {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let own = std::iter::once(&config.ports_domain).chain(&config.hosts).map(String::as_str);
        let public = config.public_url.as_ref().filter(|_| config.is_proxied());
        let public = public.and_then(|url| url.authority()).map(http::uri::Authority::as_str);
        let sites = Sites::new(own, public);
        let mut own_names = config.hosts.clone();
        if config.dashboard {
            own_names.extend(sites.hosts());
        }
        Self { sites, sessions: Sessions::default(), own_names }
    }

    /// Whether a host name is one of the dashboard's.
    pub(crate) fn is_named(&self, host: &str) -> bool {
        self.sites.is_named(host)
    }

    /// See [`Console::own_names`]'s field.
    pub(crate) fn own_names(&self) -> &[String] {
        &self.own_names
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Where the dashboard is for a client that reached the server under `host`.
    ///
    /// # Errors
    /// [`Code::InvalidState`] when that client cannot reach the dashboard, or when the server serves none.
    pub(crate) fn site_for(
        &self,
        host: Option<&str>,
        encrypted: bool,
        config: &ServerConfig,
    ) -> Result<Site, Error> {
        let found = self.sites.for_client(host, encrypted).filter(|_| config.dashboard);
        found.ok_or_else(|| {
            Error::new(Code::InvalidState, "there is no dashboard here").hint(if config.dashboard {
                "it is served to the server's own machine (through 'ssh -L 4600:localhost:4600 HOST', too), and over HTTPS below \
                 its --domain"
            } else {
                "the server was started with --no-dashboard"
            })
        })
    }

    /// The server's own name beside one of the dashboard's; others as they are.
    pub(crate) fn beside<'a>(&self, host: &'a str) -> &'a str {
        if self.sites.is_named(host) { host.split_once('.').map_or(host, |(_, rest)| rest) } else { host }
    }
}

/// The routers behind the dashboard's names.
#[derive(Debug, Clone)]
pub(crate) struct Doors {
    app: App,
    api: Router,
    own: Router,
}

impl Doors {
    /// `native` are the routes of the native API without what is around them.
    pub(crate) fn new<L>(app: &App, native: &Router<App>, around: &L) -> Self
    where
        L: tower::Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
        L::Service: tower::Service<Request, Response = Response, Error = std::convert::Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as tower::Service<Request>>::Future: Send + 'static,
    {
        let gate = axum::middleware::from_fn_with_state(app.clone(), gate);
        let own = Router::new()
            .route("/login", any(login::login))
            .route("/login/with", any(people::with))
            .route("/login/oidc", any(people::begin))
            .route(people::BACK, any(people::finish))
            .route("/session", any(login::session))
            .fallback(file);
        Self {
            app: app.clone(),
            api: native.clone().layer(gate).layer(around.clone()).with_state(app.clone()),
            own: own.layer(around.clone()).with_state(app.clone()),
        }
    }
}

/// The layer around all others: a request under a name of the dashboard stays here.
pub(crate) async fn intercept(State(doors): State<Doors>, mut request: Request, next: Next) -> Response {
    let app = &doors.app;
    let host = address::host(request.uri(), request.headers()).unwrap_or_default();
    let encrypted = request.extensions().get::<Encrypted>().is_some();
    if request.extensions().get::<OfSession>().is_some() {
        // Whatever the host name is: another node's dashboard has checked the request.
        return inert(doors.api.clone().oneshot(request).await.unwrap_or_else(|never| match never {}));
    }
    if !app.config.dashboard {
        return next.run(request).await;
    }
    if !app.console.sites.is_named(host) {
        let entrance = entrance(app, &request, host, encrypted);
        return match entrance {
            Some(redirect) => redirect,
            None => next.run(request).await,
        };
    }
    let here = is_here(&request);
    let site = app.console.sites.find(host, encrypted).filter(|site| here || !site.local);
    let Some(site) = site else { return inert(unserved()) };
    request.extensions_mut().insert(site);
    let path = request.uri().path();
    let door = if path.starts_with(API) && !path.starts_with(DOWNLOADS) { &doors.api } else { &doors.own };
    // A router cannot fail.
    inert(door.clone().oneshot(request).await.unwrap_or_else(|never| match never {}))
}

/// Whether a request comes from the server's own machine, and no proxy passed it on for another client.
fn is_here(request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    peer.is_some_and(|Peer(address)| address.ip().to_canonical().is_loopback())
        && !PASSED_ON.iter().any(|name| request.headers().contains_key(*name))
}

/// Redirects a browser that opens the server's own address to the dashboard.
fn entrance(app: &App, request: &Request, host: &str, encrypted: bool) -> Option<Response> {
    let page = request.headers().get(ACCEPT).is_some_and(|accept| {
        accept.to_str().is_ok_and(|accept| accept.split([',', ';']).any(|kind| kind.trim() == "text/html"))
    });
    let wanted = page && request.method() == Method::GET && request.uri().path() == "/";
    if !wanted || !origin::is_own_host(host, &app.config.hosts) {
        return None;
    }
    let site = app.console.site_for(Some(host), encrypted, &app.config).ok()?;
    let location = HeaderValue::try_from(format!("{}/", site.origin)).ok()?;
    Some(inert((StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()))
}

fn unserved() -> Response {
    let text = "The dashboard is served over HTTPS; without, only to the machine on which the server runs, as console.localhost.\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

/// Adds headers that keep an answer from doing anything in a browser, unless the answer has such headers itself.
fn inert(mut response: Response) -> Response {
    for (name, value) in INERT {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn file(request: Request) -> Response {
    atoll_dashboard::answer(request.method(), request.uri().path(), request.headers()).map(Body::from)
}

/// The session of a request, if it has one whose key works, and its token. None when cookies name several sessions:
/// another server may have set one of them.
async fn session<'a>(app: &App, site: &Site, headers: &'a HeaderMap) -> Option<(Session, &'a str)> {
    nodes::look_up(app, site, sessions_of(headers, site.secure)).await;
    let shown = sessions_of(headers, site.secure);
    let find = |token: &str| {
        let login = || {
            let login = app.engine.dashboard_login(token, site.local)?;
            Some(Session::of_login(login, token, site.local))
        };
        app.console.sessions.find(nodes::code(token), site.local).or_else(login)
    };
    let mut live = shown.filter_map(|token| Some((find(token)?, token)));
    let (session, token) = live.next()?;
    if live.any(|(_, other)| other != token) {
        return None;
    }
    if app.engine.key_behind(session.key()).is_err() {
        app.console.sessions.end(nodes::code(token));
        return None;
    }
    Some((session, token))
}

/// Ends a session, and the streams that were opened by it.
async fn end(app: &App, site: &Site, session: &Session, token: &str) -> Result<(), Error> {
    if session.is_login() {
        return app.engine.end_login(session.key()).await;
    }
    nodes::end(app, site, token).await
}

/// The error for a request without a session.
fn signed_out() -> Error {
    Error::new(Code::Unauthorized, "there is no session")
        .hint("'atoll dashboard' prints a link that signs you in")
}

fn forbidden(refusal: atoll_dashboard::Refusal) -> Error {
    Error::new(Code::Forbidden, refusal.message())
}

/// The layer between the dashboard's names and the native API.
async fn gate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admit(&app, &request).await {
        Ok(Some(session)) => {
            request.headers_mut().remove(COOKIE);
            if let Some(let_through) = request.extensions().get::<LetThrough>() {
                let_through.note(&session);
            }
            request.extensions_mut().insert(SignedIn(session));
            let is_look = is_look(&request);
            let mut response = next.run(request).await;
            if is_look && response.status().is_success() {
                response.extensions_mut().insert(Unrecorded);
            }
            response
        }
        Ok(None) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    }
}

/// Whether a request may go on: with a session, or without one because it brings a key, which no browser sends by
/// itself.
fn admit<'a>(
    app: &'a App,
    request: &Request,
) -> impl Future<Output = Result<Option<Session>, Error>> + Send + use<'a> {
    let of_node = request.extensions().get::<OfSession>().map(|OfSession(key)| Session::of_node(key.clone()));
    let site = request.extensions().get::<Site>().cloned();
    let (method, headers) = (request.method().clone(), request.headers().clone());
    async move {
        match (of_node, site) {
            (Some(session), _) => Ok(Some(session)),
            (None, Some(site)) => admit_browser(app, &site, &method, &headers).await,
            (None, None) => Err(signed_out()),
        }
    }
}

async fn admit_browser(
    app: &App,
    site: &Site,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Option<Session>, Error> {
    let with_key = presents_key(headers);
    if let Err(refusal) = check_origin(method, headers, site)
        && !(with_key && refusal == atoll_dashboard::Refusal::Anonymous)
    {
        return Err(forbidden(refusal));
    }
    if with_key {
        return Ok(None);
    }
    let (session, _) = session(app, site, headers).await.ok_or_else(signed_out)?;
    check_csrf(method, headers, session.csrf()).map_err(forbidden)?;
    Ok(Some(session))
}

fn is_look(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    *request.method() == Method::GET && route.is_some_and(|route| POLLED.contains(&route))
}
