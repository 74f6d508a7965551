//! The listener: accepts, bounds, drains.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::Engine;
use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::config::ServerConfig;
use crate::dialect::{Dialect, Mounts};
use crate::metrics::OpenConnection;
use crate::routes;
use crate::shared::{App, Shared};

/// Time for a client to send the head of a request; also how long an idle connection is kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// Largest head of a request, bytes: a path of 4095 bytes, percent-encoded, with labels to spare.
const HEADER_MAX_BYTES: usize = 64 << 10;
/// Pause when the kernel refuses a connection, as when file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A peer that is gone without a word is noticed after idle time, then this many probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

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

    /// The routes, for a test or to be part of something larger.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Serves until `shutdown` resolves, then drains: no new connections, `/readyz` says 503, streams
    /// end, requests under way have [`ServerConfig::drain_timeout`] to finish. The engine goes on.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let slots = Arc::new(Semaphore::new(self.app.config.connections_max));
        let cut = CancellationToken::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &slots) => accepted,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, slot)) => {
                    let connection = connection(stream, slot, self.router.clone(), Arc::clone(&self.app));
                    let cut = cut.clone();
                    self.app.tasks.spawn(async move { cut.run_until_cancelled(connection).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
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
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _peer) = listener.accept().await?;
    Ok((stream, slot))
}

/// One of the connections that there may be. Whatever outlives the HTTP connection on its socket, as a
/// WebSocket does, holds it on.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    _held: Arc<(OwnedSemaphorePermit, OpenConnection)>,
}

async fn connection(stream: TcpStream, permit: OwnedSemaphorePermit, router: Router, app: App) {
    let slot = Slot { _held: Arc::new((permit, app.metrics.connection())) };
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "a connection's options could not be set");
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_header_size(HEADER_MAX_BYTES);
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(slot.clone());
        request
    });
    let served =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).with_upgrades();
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = app.draining.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
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
