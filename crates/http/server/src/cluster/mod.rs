//! Any node answers for all: a node passes a request on to the node that has what the request is about.
//!
//! ```text
//! client ─▶ node A ─ pass_on ─ all other layers ─▶ handler: "no such sandbox", noted in the request's slot
//!                       │                                     │
//!                       │  ◀── the error, and what was missed ┘
//!                       └─ the same request ─ mutual TLS ─▶ node B ─ all layers ─▶ handler
//! ```
//!
//! The layer is around everything, so that it serves every protocol; it knows none. A request is passed on as it came,
//! with its credentials: the node that has the sandbox or other object decides whether the client may use it. Nothing
//! was done before that, as every handler first asks whether the caller may. What a handler had read of the body is
//! sent again ([`replay`]). A node does not pass on what another node passed on to it, unless the object went to
//! another node while the request waited: it answers that the object is not here, and the node that passed the request
//! on begins anew. A request that arrives before its object does waits, and is handled once more.

mod gather;
mod merge;
mod peers;
mod replay;
mod ssh;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use atoll_core::id::KeyId;
use atoll_core::{Code, Error};
use atoll_dashboard::{CSRF, Session};
use atoll_engine::Asked;
use atoll_store::NodeRecord;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{COOKIE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;

use crate::dialect::Refused;
use crate::error::{ApiError, with_body};
use crate::ingress::address;
use crate::middleware::request_id;
use crate::routes::{healthz, readyz};
use crate::serve::{Encrypted, Peer, Slot};
use crate::shared::App;
use crate::streams::{Elsewhere, Turn};
pub(crate) use gather::{from_others, streams_of_others};
pub(crate) use merge::{data, merged};
pub(crate) use peers::{CONNECTION_WINDOW_BYTES, Peers, STREAM_WINDOW_BYTES};
use peers::{Held, Unsent};
use replay::Replay;
pub(crate) use ssh::{of_nodes, ssh_elsewhere};

/// The address of the client that sent a request to the node which passed it on. Read only of nodes.
const CLIENT: HeaderName = HeaderName::from_static("atoll-node-client");
/// Whether that client's connection is encrypted. Read only of nodes.
const CLIENT_ENCRYPTED: HeaderName = HeaderName::from_static("atoll-node-client-encrypted");
/// The key of the dashboard's session by which a request came; the other node's dashboard has checked it. Read only of
/// nodes.
const SESSION: HeaderName = HeaderName::from_static("atoll-node-session");
/// In an answer: the thing is not on this node either. Taken away before a client sees it.
const NOT_HERE: HeaderName = HeaderName::from_static("atoll-node-not-here");

/// Nodes that one request is passed on to at most, one after the other.
const TURNS_MAX: u32 = 4;

/// The request came from another node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassedOn;

/// The request came by a session of another node's dashboard, which has checked it. Holds the key behind that session.
#[derive(Debug, Clone)]
pub(crate) struct OfSession(pub(crate) KeyId);

/// The dashboard notes here the session by which it let a request through. Only then is the request passed on as that
/// session's.
#[derive(Debug, Clone, Default)]
pub(crate) struct LetThrough(Arc<OnceLock<Session>>);

impl LetThrough {
    pub(crate) fn note(&self, session: &Session) {
        // The first note stays.
        drop(self.0.set(session.clone()));
    }

    fn session(&self) -> Option<&Session> {
        self.0.get()
    }
}

/// The layer around all others, on a node of a cluster.
pub(crate) async fn pass_on(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers()).0;
    let refused = |error| with_body(ApiError(error).into_response(), &id);
    if !app.engine.may_serve() {
        // These two are answered at once, under any host name. No other request is answered now.
        match request.uri().path() {
            "/healthz" => return healthz().await.into_response(),
            "/readyz" => return readyz(State(app)).await.into_response(),
            _ => {}
        }
        if let Err(error) = app.engine.until_may_serve().await {
            return refused(error);
        }
    }
    let host = address::host(request.uri(), request.headers()).unwrap_or_default();
    if app.console.is_named(host) || request.extensions().get::<OfSession>().is_some() {
        request.extensions_mut().insert(LetThrough::default());
    }
    match here_or_there(&app, request, next).await {
        Ok(response) => response,
        Err(error) => refused(error),
    }
}

/// Answers a request whose object is here, and passes others on. When the node that was asked neither has the object
/// nor makes it, the request is begun anew: this node forgets what it remembered about the object, and does not try
/// that node again.
async fn here_or_there(app: &App, request: Request, next: Next) -> Result<Response, Error> {
    let by_node = request.extensions().get::<PassedOn>().is_some();
    let asked = Arc::new(if by_node { Asked::by_node() } else { Asked::default() });
    let (parts, mut body) = request.into_parts();
    let mut has_waited = false;
    for turn in 1.. {
        let (reading, replay) = Replay::new(body, &asked);
        let request = Request::from_parts(parts.clone(), reading);
        let response = Arc::clone(&asked).scope(next.clone().run(request)).await;
        // The object is here, so the refusal is the answer and no other node is asked: the handler may have done
        // something.
        if !is_refusal(&response) || asked.is_here() {
            replay.forget();
            return Ok(response);
        }
        let route = match app.engine.elsewhere(&asked).await {
            // The object is on its way to this node: the request waits for it, and is handled again once the object is
            // here.
            Ok(None) if !has_waited && app.engine.has_arrived(&asked).await => {
                has_waited = true;
                body = replay.again().ok_or_else(|| read_too_much(None))?;
                continue;
            }
            Ok(None) if by_node && asked.is_refused() => return Ok(not_here(response)),
            Ok(None) => return Ok(response),
            // A request is passed on only once, except after its object left this node while the request waited for it.
            Ok(Some(_)) | Err(_) if by_node && !asked.has_left() => return Ok(not_here(response)),
            Ok(Some(route)) => route,
            // Only the object's node could say whether it is there, and whether the client may know of it. This node
            // knows that it is not here, so its own refusal is the answer.
            Err(error) if response.status() == StatusCode::UNAUTHORIZED => {
                tracing::debug!(%error, "not looked for elsewhere");
                return Ok(response);
            }
            Err(error) => return Err(error),
        };
        drop(response);
        let whole = replay.again().ok_or_else(|| read_too_much(Some(&route.node)))?;
        let (sending, replay) = Replay::new(whole, &asked);
        let counted = Turn::elsewhere(app, &parts, asked.key())?;
        let answered = send(app, &route.node, &parts, counted.as_ref(), sending).await;
        match answered {
            Ok(response) if !response.headers().contains_key(NOT_HERE) => {
                replay.forget();
                return match counted {
                    Some(counted) => counted.answered(response),
                    None => Ok(response),
                };
            }
            Ok(_) if turn < TURNS_MAX => {}
            Err(Unsent::NotReached(_))
                if turn < TURNS_MAX && (!route.is_sure || app.engine.has_come_back(&route.node).await) => {}
            Ok(_) => return Err(not_there()),
            Err(Unsent::NotReached(error) | Unsent::Unknown(error)) => return Err(error),
        }
        tracing::debug!(node = route.node.name, "it is not there: begun anew");
        app.engine.not_there(&asked, route);
        body = replay.again().ok_or_else(not_there)?;
    }
    Err(not_there())
}

/// Tells the node which passed a request on that the request's object is not here either.
fn not_here(mut response: Response) -> Response {
    response.headers_mut().insert(NOT_HERE, HeaderValue::from_static("1"));
    response
}

fn read_too_much(node: Option<&NodeRecord>) -> Error {
    let why = "too much of the request was read before it was clear that another node has what it is about";
    let error = Error::new(Code::NodeUnavailable, why);
    match node {
        Some(node) => error.hint(format!("send it to the node '{}'", node.name)),
        None => error.hint("try again"),
    }
}

fn not_there() -> Error {
    Error::new(Code::NodeUnavailable, "the nodes that should have it, or make it, do not").hint("try again")
}

/// Whether a handler refused: only then may another node be asked, as nothing was done.
fn is_refusal(response: &Response) -> bool {
    let status = response.status();
    if response.extensions().get::<Refused>().is_some() {
        return true;
    }
    let grpc = response.headers().get("grpc-status").is_some_and(|status| status != "0");
    status.is_client_error() || status.is_server_error() || grpc
}

/// Sends a request to another node as it came here. A client's is counted as open as long as its connection goes on.
async fn send(
    app: &App,
    node: &NodeRecord,
    parts: &Parts,
    counted: Option<&Elsewhere>,
    body: Body,
) -> Result<Response, Unsent> {
    let Some(peers) = &app.peers else {
        let error = Error::new(Code::NodeUnavailable, "this node has no way to others");
        return Err(Unsent::NotReached(error));
    };
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.version_mut() = parts.version;
    *request.headers_mut() = parts.headers.clone();
    say_who(request.headers_mut(), parts);
    // A clone waits for the same connection.
    let upgrade = parts.extensions.get::<OnUpgrade>().cloned();
    let session = parts.extensions.get::<LetThrough>().and_then(LetThrough::session);
    let ended = session.map(|session| session.ended().clone()).unwrap_or_default();
    let slot = parts.extensions.get::<Slot>().cloned();
    let slot = slot.map(|slot| counted.map_or_else(|| slot.clone(), |counted| slot.with(counted.turn())));
    let held = Held { slot, ended: ended.clone() };
    let response = peers.send(app, node, request, upgrade, held).await?;
    if session.is_none() {
        return Ok(response);
    }
    // The answer ends with the session, which only this node knows.
    Ok(response.map(|body| {
        Body::from_stream(futures::StreamExt::take_until(body.into_data_stream(), ended.cancelled_owned()))
    }))
}

/// Asks another node something for this node itself.
pub(crate) async fn ask_node(
    app: &App,
    node: &NodeRecord,
    request: http::Request<()>,
) -> Result<Response, Error> {
    let (parts, ()) = request.into_parts();
    let answered = send(app, node, &parts, None, Body::empty()).await;
    answered.map_err(|(Unsent::NotReached(error) | Unsent::Unknown(error))| error)
}

/// Whether another node answers, on the connections by which requests are passed on.
pub(crate) async fn reach(app: &App, node: &NodeRecord) -> Result<(), Error> {
    let request = Request::builder().uri("/healthz").body(()).map_err(|_never| not_there())?;
    match ask_node(app, node, request).await? {
        response if response.status().is_success() => Ok(()),
        response => Err(Error::new(Code::NodeUnavailable, format!("it answers {}", response.status()))),
    }
}

/// Tells the other node who the client is. Headers of these names that the client itself sent are removed.
fn say_who(headers: &mut HeaderMap, parts: &Parts) {
    headers.remove(&CLIENT);
    headers.remove(&CLIENT_ENCRYPTED);
    if let Some(Peer(address)) = parts.extensions.get::<Peer>()
        && let Ok(value) = HeaderValue::from_str(&address.to_string())
    {
        headers.insert(CLIENT, value);
    }
    if parts.extensions.get::<Encrypted>().is_some() {
        headers.insert(CLIENT_ENCRYPTED, HeaderValue::from_static("1"));
    }
    headers.remove(&SESSION);
    let session = parts.extensions.get::<LetThrough>().and_then(LetThrough::session);
    if let Some(key) = session.and_then(|session| HeaderValue::from_str(session.key().as_str()).ok()) {
        // The browser's cookie, origin and CSRF token are for the dashboard of this node, which has checked them.
        for header in [COOKIE, ORIGIN, CSRF] {
            headers.remove(header);
        }
        headers.insert(SESSION, key);
    }
}

/// Takes what another node says about the client out of a request, and notes it.
pub(crate) fn take_who<B>(request: &mut http::Request<B>, from: SocketAddr) {
    let client = request.headers_mut().remove(&CLIENT);
    let client = client.and_then(|value| value.to_str().ok()?.parse::<SocketAddr>().ok());
    let encrypted = request.headers_mut().remove(&CLIENT_ENCRYPTED).is_some();
    let session = request.headers_mut().remove(&SESSION);
    let session = session.and_then(|key| key.to_str().ok()?.parse().ok());
    let extensions = request.extensions_mut();
    extensions.insert(PassedOn);
    extensions.insert(Peer(client.unwrap_or(from)));
    if encrypted {
        extensions.insert(Encrypted);
    }
    if let Some(key) = session {
        extensions.insert(OfSession(key));
    }
}
