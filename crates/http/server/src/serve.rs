//! The listener: accepts, bounds, drains.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::secret::Secret;
use atoll_engine::Engine;
use atoll_hop::SendFirst;
use atoll_tls::NodeTls;
use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::closing::Closing;
use crate::cluster;
use crate::config::ServerConfig;
use crate::dialect::{Dialect, Mounts};
use crate::metrics::OpenConnection;
use crate::routes;
use crate::shared::{App, Shared};
use crate::ssh::{Duplex, Ssh, SshClient};
use crate::streams::Turn;

/// Time for a client to send the head of a request; also how long an idle connection is kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// Largest head of a request, bytes: a path of 4095 bytes, percent-encoded, with labels to spare.
const HEADER_MAX_BYTES: usize = 64 << 10;
/// The same for HTTP/2, which counts each header with 32 bytes more.
const HEADER_LIST_MAX_BYTES: u32 = 64 << 10;
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX_COUNT: u32 = 256;
/// Pause before the first bytes of a client that sends them in pieces are looked at again: doubles from the first to
/// the last, so that one which sends no more costs nothing.
const PEEK_PAUSE_FIRST: Duration = Duration::from_millis(1);
const PEEK_PAUSE_LAST: Duration = Duration::from_secs(5);
/// How long a client may take to answer a ping of its HTTP/2 connection.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The first bytes that a client of HTTP/2 sends.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a client that speaks TLS: a record of a handshake (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// Time for that handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// The answer to a client on another host that speaks plain HTTP to a server with TLS.
const TLS_REQUIRED: &str = "{\"code\":\"forbidden\",\"message\":\"this server speaks TLS\",\"hint\":\"use https:// instead of \
    http://\",\"retryable\":false}\n";
/// Bytes that wait for one client of HTTP/1, in each direction: the head of a request fits.
const BUFFER_MAX_BYTES: usize = HEADER_MAX_BYTES + (16 << 10);
/// Bytes of one answer over HTTP/2 that wait for its client, besides the piece that came last.
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// Pause when the kernel refuses a connection, as when file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a node that begins to stop keeps connections open that wait for a request.
const LET_GO_AFTER: Duration = Duration::from_secs(3);
/// A peer that is gone without a word is noticed after idle time, then this many probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Answers a request of the Model Context Protocol that came with a key of this installation.
#[derive(Clone)]
pub struct McpDoor(pub Arc<dyn Fn(Secret, axum::extract::Request) -> McpAnswer + Send + Sync>);

/// The answer of an [`McpDoor`], or the error with which the request failed.
pub type McpAnswer = BoxFuture<'static, Result<axum::response::Response, atoll_core::Error>>;

impl std::fmt::Debug for McpDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("McpDoor")
    }
}

/// The HTTP server over an engine.
#[derive(Debug, Clone)]
pub struct Server {
    router: Router,
    app: App,
}

impl Server {
    /// A server that is not listening yet.
    #[must_use]
    pub fn new(engine: Engine, config: ServerConfig, dialects: &[Dialect]) -> Self {
        let app = Shared::new(engine, config);
        let mounts = Mounts::new(&app, dialects);
        Self { router: routes::router(&app, mounts), app }
    }

    /// Lets SSH clients in, on the same port. To be called once.
    #[must_use]
    pub fn with_ssh(self, ssh: Ssh) -> Self {
        self.app.ssh.get_or_init(|| ssh);
        self
    }

    /// Serves the Model Context Protocol at `/mcp`. To be called once.
    #[must_use]
    pub fn with_mcp(self, door: McpDoor) -> Self {
        self.app.mcp.get_or_init(|| door);
        self
    }

    /// Fires when the server begins to stop.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.app.draining.clone()
    }

    /// What `/metrics` says now.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        routes::metrics_text(&self.app)
    }

    /// The routes, for a test or to be part of something larger.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Serves other nodes on a port of their own, until the server stops. Does nothing when this server is no node of a
    /// cluster.
    pub async fn serve_nodes(&self, listener: TcpListener) {
        let Some(tls) = self.app.peers.as_ref().map(|peers| Arc::clone(peers.tls())) else { return };
        let slots = Arc::new(Semaphore::new(self.app.config.connections_max));
        let router = cluster::of_nodes(&self.app, self.router.clone());
        while let Some(accepted) = self.app.draining.run_until_cancelled(accept(&listener, &slots)).await {
            match accepted {
                Ok((stream, peer, permit)) => {
                    let (tls, router, app) = (Arc::clone(&tls), router.clone(), self.app.clone());
                    self.app.tasks.spawn(node_connection(stream, peer, permit, tls, router, app));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a node was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves until `shutdown` resolves, then drains: no new connections, `/readyz` says 503, streams
    /// end, requests under way have [`ServerConfig::drain_timeout`] to finish. The engine goes on.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let slots = Arc::new(Semaphore::new(self.app.config.connections_max));
        let cut = CancellationToken::new();
        let mut shutdown = pin!(shutdown);
        let begin = |(stream, peer, slot)| {
            let connection = connection(stream, peer, slot, self.router.clone(), self.app.clone());
            let cut = cut.clone();
            self.app.tasks.spawn(async move { Box::pin(cut.run_until_cancelled(connection)).await });
        };
        let app = self.app.clone();
        self.app.tasks.spawn(async move {
            let giving_back = app.streams.give_memory_back(app.config.give_memory_back);
            app.draining.run_until_cancelled(giving_back).await
        });
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &slots) => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok(accepted) => begin(accepted),
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // Clients whose connections wait in the kernel's queue would be cut off when the listener closes.
        while let Some(Ok(accepted)) = accept(&listener, &slots).now_or_never() {
            begin(accepted);
        }
        drop(listener);
        self.app.draining.cancel();
        self.app.tasks.close();
        let drained = tokio::time::timeout(self.app.config.drain_timeout, self.app.tasks.wait()).await;
        if drained.is_err() {
            tracing::warn!(left = self.app.tasks.len(), "cutting connections that did not finish in time");
            cut.cancel();
        }
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, slot))
}

/// One of the connections that the server may have at once. A task that outlives the HTTP connection on its socket, as
/// that of a WebSocket does, keeps it, and with it the place that its request took.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    _held: Arc<(OwnedSemaphorePermit, OpenConnection)>,
    _turn: Option<Turn>,
}

impl Slot {
    /// The same for one request on the connection.
    pub(crate) fn with(&self, turn: Turn) -> Self {
        Self { _turn: Some(turn), ..self.clone() }
    }
}

/// The address of the client at the other end of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The connection is encrypted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Encrypted;

/// What a client speaks. All protocols of clients that speak first fit on one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
    Ssh,
    Tls,
}

/// Finds the protocol by the first bytes that the client sends.
async fn protocol(stream: &TcpStream) -> io::Result<Option<Protocol>> {
    let mut pause = PEEK_PAUSE_FIRST;
    loop {
        let mut first = [0; PREFACE.len()];
        let known = match stream.peek(&mut first).await? {
            0 => return Ok(None),
            len => &first[..len],
        };
        if known[0] == TLS_HANDSHAKE {
            return Ok(Some(Protocol::Tls));
        }
        if known == PREFACE {
            return Ok(Some(Protocol::Http2));
        }
        if known.starts_with(b"SSH-") {
            return Ok(Some(Protocol::Ssh));
        }
        if !PREFACE.starts_with(known) && !b"SSH-".starts_with(known) {
            return Ok(Some(Protocol::Http1));
        }
        // A few bytes of a beginning: there is no way to wait for more without taking these.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PEEK_PAUSE_LAST);
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
    router: Router,
    app: App,
) {
    let slot = Slot { _held: Arc::new((permit, app.metrics.connection())), _turn: None };
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "a connection's options could not be set");
    }
    let spoken = tokio::select! {
        spoken = tokio::time::timeout(HEADER_TIMEOUT, protocol(&stream)) => spoken,
        () = let_go(&app) => return,
    };
    let Ok(Ok(Some(protocol))) = spoken else { return };
    let local = match stream.local_addr() {
        Ok(local) => local.ip().to_canonical(),
        Err(error) => return tracing::debug!(%error, "a connection has no address"),
    };
    let stream = Closing::new(stream, slot.clone());
    let encrypted = protocol == Protocol::Tls && app.config.tls.is_some();
    let service = router.map_request(move |mut request: Request<Incoming>| {
        if encrypted {
            request.extensions_mut().insert(Encrypted);
        }
        request.extensions_mut().insert(slot.clone());
        request.extensions_mut().insert(Peer(peer));
        name_host(&mut request);
        request
    });
    match (protocol, app.ssh.get(), &app.config.tls) {
        (Protocol::Ssh, Some(ssh), _) => (ssh.door)(SshClient::new(&app, Box::new(stream), Some(peer))).await,
        (Protocol::Tls, _, Some(tls)) => {
            match tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream, local)).await {
                Ok(Ok(stream)) => match atoll_tls::agreed_on_http2(&stream) {
                    Some(two) => serve_http(two.then_some(Http2::OfClients), stream, service, &app).await,
                    None => serve_by_first_bytes(stream, service, &app).await,
                },
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_late) => tracing::debug!("a TLS handshake took too long"),
            }
        }
        (Protocol::Http1 | Protocol::Http2, _, Some(_)) if !peer.ip().to_canonical().is_loopback() => {
            refuse_plain(stream).await;
        }
        (Protocol::Http2, ..) => serve_http(Some(Http2::OfClients), stream, service, &app).await,
        (Protocol::Http1 | Protocol::Ssh | Protocol::Tls, ..) => {
            serve_http(None, stream, service, &app).await;
        }
    }
}

/// Serves a connection of another node. The server reads no request of a peer that cannot prove with its certificate
/// that it is a node.
async fn node_connection(
    stream: TcpStream,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
    tls: Arc<NodeTls>,
    router: Router,
    app: App,
) {
    let slot = Slot { _held: Arc::new((permit, app.metrics.connection())), _turn: None };
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "a connection's options could not be set");
    }
    let stream = Closing::new(stream, slot.clone());
    let stream = match tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::warn!(%error, %peer, "who came to the port of nodes is none"),
        Err(_late) => return tracing::debug!("a TLS handshake took too long"),
    };
    let two = atoll_tls::agreed_on_http2(&stream) == Some(true);
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(slot.clone());
        cluster::take_who(&mut request, peer);
        name_host(&mut request);
        request
    });
    serve_http(two.then_some(Http2::OfNodes), stream, service, &app).await;
}

/// Sets `Host` from the address of an HTTP/2 request, which has no such header: all layers behind this one read `Host`.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    if let Some(authority) = authority.filter(|_| !request.headers().contains_key(HOST)) {
        request.headers_mut().insert(HOST, authority);
    }
}

/// Refuses a client that speaks plain HTTP: its requests would carry keys over the network in clear.
async fn refuse_plain(mut stream: Closing) {
    let answer = format!(
        "HTTP/1.1 426 Upgrade Required\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{TLS_REQUIRED}",
        TLS_REQUIRED.len(),
    );
    if let Ok(Err(error)) = tokio::time::timeout(TLS_TIMEOUT, stream.write_all(answer.as_bytes())).await {
        tracing::debug!(%error, "a client in clear was not told of TLS");
    }
}

/// Serves a client that offered no protocol in its TLS handshake: the first bytes that it sends tell, as on a
/// connection in clear. `PRI` is a method of no HTTP/1 request (RFC 9113, section 11.6), so the beginning of the
/// preface is enough.
async fn serve_by_first_bytes<S>(stream: impl Duplex + 'static, service: S, app: &App)
where
    S: tower::Service<Request<Incoming>, Response = axum::response::Response, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let mut stream = tokio::io::BufReader::with_capacity(BUFFER_MAX_BYTES, stream);
    let first = tokio::select! {
        first = tokio::time::timeout(HEADER_TIMEOUT, stream.fill_buf()) => first,
        () = let_go(app) => return,
    };
    let Ok(Ok(first)) = first else { return };
    let two = first.starts_with(&PREFACE[..4]);
    serve_http(two.then_some(Http2::OfClients), stream, service, app).await;
}

/// The kind of peer that speaks HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http2 {
    OfClients,
    /// Requests of many clients share the connection: a request whose body is not read must not hold up the others.
    OfNodes,
}

async fn serve_http<S>(two: Option<Http2>, stream: impl Duplex + 'static, service: S, app: &App)
where
    S: tower::Service<Request<Incoming>, Response = axum::response::Response, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let is_one = two.is_none();
    let told = app.clone();
    let service = service.map_response(move |mut response: axum::response::Response| {
        if is_one {
            say_last(&mut response, &told);
        }
        response.map(SendFirst::new)
    });
    let (stream, service) = (TokioIo::new(stream), TowerToHyperService::new(service));
    let ended = if let Some(of) = two {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(HEADER_LIST_MAX_BYTES)
            .max_concurrent_streams(STREAMS_MAX_COUNT)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(KEEPALIVE_IDLE)
            .keep_alive_timeout(PING_TIMEOUT);
        if of == Http2::OfNodes {
            builder
                .initial_stream_window_size(cluster::STREAM_WINDOW_BYTES)
                .initial_connection_window_size(cluster::CONNECTION_WINDOW_BYTES);
        }
        let mut served = pin!(builder.serve_connection(stream, service));
        tokio::select! {
            ended = served.as_mut() => ended,
            () = app.draining.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        }
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_header_size(HEADER_MAX_BYTES)
            .max_buf_size(BUFFER_MAX_BYTES);
        let mut served = pin!(builder.serve_connection(stream, service).with_upgrades());
        tokio::select! {
            ended = served.as_mut() => ended,
            () = let_go(app) => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Resolves when a connection of HTTP/1 that waits for a request is to be closed: when the server begins to stop. A
/// node waits a little longer: a client may have sent a request already, which would go unanswered here, and which
/// another node could have served. Each answer says meanwhile that it is the last ([`say_last`]).
async fn let_go(app: &App) {
    app.draining.cancelled().await;
    if app.peers.is_some() {
        tokio::time::sleep(LET_GO_AFTER).await;
    }
}

/// Tells a client of HTTP/1 that its next request needs another connection.
fn say_last(response: &mut axum::response::Response, app: &App) {
    if app.draining.is_cancelled() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}
