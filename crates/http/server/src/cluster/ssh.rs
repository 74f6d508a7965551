//! SSH clients of one node whose sandbox is on another.
//!
//! The node that the client reached says what the client has shown: the name, with a password or the fingerprint of a
//! key that the client has proven to have. The node that has the sandbox looks these up itself and lets the client in,
//! or not; then the connection carries bytes both ways, on which the two servers speak SSH.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::secret::Secret;
use atoll_engine::Asked;
use atoll_store::NodeRecord;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::{HeaderName, HeaderValue, StatusCode};
use hyper_util::rt::TokioIo;

use super::{CLIENT, NOT_HERE, PassedOn, TURNS_MAX, Unsent, not_here};
use crate::dashboard::{SESSIONS, session_of_node};
use crate::serve::{Peer, Slot};
use crate::shared::App;
use crate::ssh::{Duplex, SshClient, SshElsewhere, SshPlaces, SshServed};

/// The path at which other nodes ask. Served only on the port for nodes.
const PATH: &str = "/nodes/ssh";
/// The login that the client has shown.
const CLAIM: HeaderName = HeaderName::from_static("atoll-node-ssh");
/// The protocol to which the connection switches.
const PROTOCOL: HeaderValue = HeaderValue::from_static("atoll-ssh");
/// How long another node may take to let a client in: the sandbox may be on its way there.
const TIMEOUT: Duration = Duration::from_secs(45);

/// The answer of another node for a client.
enum Answer {
    Open(Box<dyn Duplex>),
    NotHere,
    Refused,
}

/// Leads SSH clients to other nodes, where this server is a node of a cluster.
pub(crate) fn ssh_elsewhere(app: &App, peer: Option<SocketAddr>) -> Option<SshElsewhere> {
    app.peers.as_ref()?;
    let app = app.clone();
    Some(Arc::new(move |asked, claim| {
        let app = app.clone();
        Box::pin(async move { find(&app, &asked, &claim, peer).await })
    }))
}

async fn find(app: &App, asked: &Asked, claim: &Secret, peer: Option<SocketAddr>) -> Option<Box<dyn Duplex>> {
    for _ in 0..TURNS_MAX {
        let route = match app.engine.elsewhere(asked).await {
            Ok(route) => route?,
            Err(error) => {
                tracing::info!(%error, "an SSH login to another node");
                return None;
            }
        };
        let asking = ask(app, &route.node, claim, peer);
        match tokio::time::timeout(TIMEOUT, asking).await {
            Ok(Ok(Answer::Open(stream))) => return Some(stream),
            Ok(Ok(Answer::NotHere)) => {}
            Ok(Err(Unsent::NotReached(_)))
                if !route.is_sure || app.engine.has_come_back(&route.node).await => {}
            Ok(Ok(Answer::Refused)) => return None,
            Ok(Err(Unsent::NotReached(error) | Unsent::Unknown(error))) => {
                tracing::info!(%error, "an SSH login to another node");
                return None;
            }
            Err(_late) => {
                tracing::info!(node = route.node.name, "another node takes too long to let an SSH client in");
                return None;
            }
        }
        app.engine.not_there(asked, route);
    }
    None
}

async fn ask(
    app: &App,
    node: &NodeRecord,
    claim: &Secret,
    peer: Option<SocketAddr>,
) -> Result<Answer, Unsent> {
    let Some(peers) = &app.peers else { return Ok(Answer::Refused) };
    // A login with bytes that no header can carry cannot succeed.
    let Ok(mut claim) = HeaderValue::from_bytes(claim.reveal().as_bytes()) else {
        return Ok(Answer::Refused);
    };
    claim.set_sensitive(true);
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static(PATH);
    let headers = request.headers_mut();
    headers.insert(http::header::HOST, HeaderValue::from_static("node"));
    headers.insert(CLAIM, claim);
    let client = peer.and_then(|peer| HeaderValue::from_str(&peer.to_string()).ok());
    headers.extend(client.map(|client| (CLIENT, client)));
    atoll_hop::set_upgrade(headers, PROTOCOL);
    let (response, _sender) = peers.ask_to_switch(node, request).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let stream =
                hyper::upgrade::on(response).await.map_err(|error| super::peers::broken(node, &error))?;
            Ok(Answer::Open(Box::new(TokioIo::new(stream))))
        }
        _ if response.headers().contains_key(NOT_HERE) => Ok(Answer::NotHere),
        _ => Ok(Answer::Refused),
    }
}

/// The routes that only other nodes may use, and all others.
pub(crate) fn of_nodes(app: &App, router: Router) -> Router {
    let own = Router::new().route(PATH, any(ssh_of_node)).route(SESSIONS, any(session_of_node));
    own.with_state(app.clone()).fallback_service(router)
}

async fn ssh_of_node(State(app): State<App>, mut request: Request) -> Response {
    let asked = Arc::new(Asked::by_node());
    let claim = shown(&request);
    let Some(served) = admit(&app, claim, &asked).await else {
        let refused = StatusCode::UNAUTHORIZED.into_response();
        return match app.engine.elsewhere(&asked).await {
            Ok(None) => refused,
            Ok(Some(_)) | Err(_) => not_here(refused),
        };
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let peer = request.extensions().get::<Peer>().map(|Peer(address)| *address);
    let slot = request.extensions().get::<Slot>().cloned();
    let (places, stop) = (SshPlaces::new(&app), app.draining.clone());
    app.tasks.spawn(async move {
        let _held = slot;
        match upgrade.await {
            Ok(stream) => {
                let stream = Box::new(TokioIo::new(stream));
                served(SshClient { stream, peer, elsewhere: None, places, stop }).await;
            }
            Err(error) => tracing::debug!(%error, "a connection for SSH did not come about"),
        }
    });
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    atoll_hop::set_upgrade(response.headers_mut(), PROTOCOL);
    response
}

/// The login that a client of another node has shown there.
fn shown(request: &Request) -> Option<Secret> {
    request.extensions().get::<PassedOn>()?;
    let claim = request.headers().get(&CLAIM)?;
    Some(Secret::new(std::str::from_utf8(claim.as_bytes()).ok()?))
}

async fn admit(app: &App, claim: Option<Secret>, asked: &Arc<Asked>) -> Option<SshServed> {
    (app.ssh.get()?.of_nodes)(Arc::clone(asked), claim?).await
}
