//! Connections to other nodes.
//!
//! Requests share HTTP/2 connections; a request that asks for another protocol has an HTTP/1.1 connection of its own, on
//! which bytes are passed both ways from then on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::id::NodeId;
use atoll_core::{Code, Error};
use atoll_store::NodeRecord;
use atoll_tls::NodeTls;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{EXPECT, HOST};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::ingress::relay;
use crate::serve::Slot;
use crate::shared::App;

/// How long a connection to another node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Connections that one request is tried on, as long as none of them took it.
const CONNECTIONS_MAX_TRIED: u32 = 3;
/// Requests at once on one connection; more open another.
const STREAMS_MAX_COUNT: usize = 128;
/// Bytes that may be under way in one answer before the client has taken them, and in all of one connection: an answer
/// that its client does not read must not hold up the others.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// The latter.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 2 * 128 * STREAM_WINDOW_BYTES;
/// A connection on which the other node does not answer a ping for so long is given up.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Why a request has no answer.
pub(super) enum Unsent {
    /// The other node knows nothing of the request.
    NotReached(Error),
    /// The other node may have done what was asked.
    Unknown(Error),
}

impl From<Error> for Unsent {
    /// The error of a request that cannot be sent at all.
    fn from(error: Error) -> Self {
        Self::Unknown(error)
    }
}

/// Held by a connection on which bytes are passed on: its slot, and the token that ends it.
pub(super) struct Held {
    pub(super) slot: Option<Slot>,
    pub(super) ended: CancellationToken,
}

#[derive(Debug, Clone)]
struct Shared {
    sender: http2::SendRequest<Body>,
    used: Arc<AtomicUsize>,
}

/// The connections to all other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    tls: Arc<NodeTls>,
    shared: Mutex<HashMap<(NodeId, String), Vec<Shared>>>,
}

/// One of the requests that a connection has.
struct Use(Arc<AtomicUsize>);

impl Use {
    fn begin(used: &Arc<AtomicUsize>) -> Self {
        used.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(used))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Peers {
    pub(crate) fn new(tls: Arc<NodeTls>) -> Self {
        Self { tls, shared: Mutex::default() }
    }

    pub(crate) const fn tls(&self) -> &Arc<NodeTls> {
        &self.tls
    }

    /// Sends a request to a node and gives its answer, streamed.
    pub(super) async fn send(
        &self,
        app: &App,
        node: &NodeRecord,
        request: Request,
        client: Option<OnUpgrade>,
        held: Held,
    ) -> Result<Response, Unsent> {
        let (mut parts, body) = request.into_parts();
        let upgrade = atoll_hop::strip_hop_by_hop(&mut parts.headers);
        // This node's connection to the client answers it, when the body is read.
        parts.headers.remove(EXPECT);
        if let Some((protocol, client)) = upgrade.zip(client) {
            atoll_hop::set_upgrade(&mut parts.headers, protocol);
            parts.version = Version::HTTP_11;
            parts.uri = origin_form(&parts.uri)?;
            return self.switch(app, node, Request::from_parts(parts, body), client, held).await;
        }
        parts.version = Version::HTTP_2;
        parts.uri = absolute(&parts.uri, &mut parts.headers)?;
        let (response, used) = self.share(node, Request::from_parts(parts, body)).await?;
        let response = response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                // Held as long as there are frames to come.
                let _one_of = &used;
                frame
            }))
        });
        Ok(to_client(response))
    }

    /// Sends a request on a connection that has room. One that had just ended gives the request back.
    async fn share(
        &self,
        node: &NodeRecord,
        mut request: Request,
    ) -> Result<(http::Response<Incoming>, Use), Unsent> {
        let mut tries = 0..CONNECTIONS_MAX_TRIED;
        loop {
            let mut shared = self.connection(node).await?;
            let used = Use::begin(&shared.used);
            let mut error = match shared.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, used)),
                Err(error) => error,
            };
            match error.take_message().filter(|_| tries.next().is_some()) {
                Some(unsent) => request = unsent,
                None => return Err(broken(node, error.error())),
            }
            self.forget(&shared);
        }
    }

    /// Uses a connection no more: requests that are under way on it go on.
    fn forget(&self, ended: &Shared) {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for list in all.values_mut() {
            list.retain(|one| !Arc::ptr_eq(&one.used, &ended.used));
        }
    }

    /// A connection that has room.
    async fn connection(&self, node: &NodeRecord) -> Result<Shared, Unsent> {
        // A node with another address counts as another node.
        let key = (node.id.clone(), node.address.clone());
        {
            let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, list| {
                list.retain(|one| !one.sender.is_closed());
                !list.is_empty()
            });
            let room = |one: &&Shared| one.used.load(Ordering::Acquire) < STREAMS_MAX_COUNT;
            if let Some(one) = all.get(&key).and_then(|list| list.iter().find(room)) {
                return Ok(one.clone());
            }
        }
        let stream = self.connect(node, true).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        let (sender, driver) = builder.handshake(stream).await.map_err(|error| broken(node, &error))?;
        tokio::spawn(async move { log_end(driver.await) });
        let shared = Shared { sender, used: Arc::default() };
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key).or_default().push(shared.clone());
        Ok(shared)
    }

    async fn connect(
        &self,
        node: &NodeRecord,
        http2: bool,
    ) -> Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>, Unsent> {
        let connecting = async {
            let stream = TcpStream::connect(node.address.as_str()).await?;
            stream.set_nodelay(true)?;
            self.tls.connect(stream, node.id.as_str(), http2).await
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => Ok(TokioIo::new(stream)),
            Ok(Err(error)) => Err(away(node, &error)),
            Err(late) => Err(away(node, &late)),
        }
    }

    /// Sends a request for another protocol, on a connection of its own; gives the answer, and what keeps the connection.
    pub(super) async fn ask_to_switch(
        &self,
        node: &NodeRecord,
        request: Request,
    ) -> Result<(http::Response<Incoming>, http1::SendRequest<Body>), Unsent> {
        let stream = self.connect(node, false).await?;
        let (mut sender, driver) = http1::handshake(stream).await.map_err(|error| broken(node, &error))?;
        tokio::spawn(async move { log_end(driver.with_upgrades().await) });
        let response = sender.send_request(request).await.map_err(|error| broken(node, &error))?;
        Ok((response, sender))
    }

    /// Sends a request for another protocol; when the node agrees, bytes are passed on both ways.
    async fn switch(
        &self,
        app: &App,
        node: &NodeRecord,
        request: Request,
        client: OnUpgrade,
        held: Held,
    ) -> Result<Response, Unsent> {
        let (mut response, sender) = self.ask_to_switch(node, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(to_client(response.map(move |body| {
                Body::new(body.map_frame(move |frame| {
                    let _open = &sender;
                    frame
                }))
            })));
        }
        let server = hyper::upgrade::on(&mut response);
        let protocol = atoll_hop::strip_hop_by_hop(response.headers_mut());
        if let Some(protocol) = protocol {
            atoll_hop::set_upgrade(response.headers_mut(), protocol);
        }
        let draining = app.draining.clone();
        app.tasks.spawn(async move {
            let Held { slot, ended } = held;
            let _held = (slot, sender);
            let passing = async {
                let (client, server) = tokio::try_join!(client, server).map_err(std::io::Error::other)?;
                relay(client, server).await
            };
            let passing = ended.run_until_cancelled(passing);
            if let Some(Some(Err(error))) = draining.run_until_cancelled(passing).await {
                tracing::debug!(%error, "a connection that was passed on ended");
            }
        });
        Ok(response.map(|_| Body::empty()))
    }
}

/// Makes the answer of another node fit for the client's connection.
fn to_client(mut response: Response) -> Response {
    drop(atoll_hop::strip_hop_by_hop(response.headers_mut()));
    *response.version_mut() = Version::default();
    response.extensions_mut().clear();
    response
}

fn origin_form(uri: &Uri) -> Result<Uri, Error> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().map_err(|_error| Error::invalid("path", "cannot be passed on"))
}

/// HTTP/2 has scheme and host in the address, and no `Host` beside it.
fn absolute(uri: &Uri, headers: &mut HeaderMap) -> Result<Uri, Error> {
    let host = headers.remove(HOST);
    let host = host.as_ref().and_then(|host: &HeaderValue| host.to_str().ok()).unwrap_or("localhost");
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("https://{host}{path}").parse().map_err(|_error| Error::invalid("host", "cannot be passed on"))
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to another node ended badly");
    }
}

fn away(node: &NodeRecord, error: &dyn std::error::Error) -> Unsent {
    tracing::warn!(node = node.name, address = node.address, %error, "another node is not reached");
    let why = format!("it is on the node '{}', which is not reached", node.name);
    Unsent::NotReached(
        Error::new(Code::NodeUnavailable, why).hint("try again; 'atoll node ls' shows the nodes"),
    )
}

pub(super) fn broken(node: &NodeRecord, error: &hyper::Error) -> Unsent {
    tracing::warn!(node = node.name, error = ?error, "another node did not answer");
    let why = format!("it is on the node '{}', which did not answer", node.name);
    Unsent::Unknown(
        Error::new(Code::NodeUnavailable, why).hint("try again; it is not known whether it was done"),
    )
}
