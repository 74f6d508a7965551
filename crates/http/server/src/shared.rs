//! The state that all handlers share.

use std::future::Future;
use std::sync::OnceLock;

use atoll_core::opaque::Opaque;
use atoll_core::{Code, Error};
use atoll_engine::Engine;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::ServerConfig;
use crate::dashboard::Console;
use crate::metrics::Metrics;
use crate::serve::McpDoor;
use crate::ssh::Ssh;

/// The state of the router.
pub(crate) type App = Opaque<Shared>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Metrics,
    /// Connections to ports that wait to be used again.
    pub(crate) ports: crate::ingress::Pool,
    /// Serves SSH clients, where the server lets them in.
    pub(crate) ssh: OnceLock<Ssh>,
    /// The Model Context Protocol, if it is served.
    pub(crate) mcp: OnceLock<McpDoor>,
    /// The answers to requests with an idempotency key.
    pub(crate) answers: crate::once::Answers,
    /// The answers that each key has open.
    pub(crate) streams: crate::streams::Streams,
    /// The dashboard's host names, and its sessions.
    pub(crate) console: Console,
    /// The connections to other nodes, where this server is a node of a cluster.
    pub(crate) peers: Option<crate::cluster::Peers>,
    /// Fires when the server begins to stop.
    pub(crate) draining: CancellationToken,
    /// Connections and WebSockets, which the stop waits for.
    pub(crate) tasks: TaskTracker,
}

impl Shared {
    pub(crate) fn new(engine: Engine, config: ServerConfig) -> App {
        let console = Console::new(&config);
        let peers = config.nodes.clone().map(crate::cluster::Peers::new);
        Opaque::new(Self {
            engine,
            config,
            console,
            peers,
            metrics: Metrics::new(),
            ports: crate::ingress::Pool::default(),
            ssh: OnceLock::new(),
            mcp: OnceLock::new(),
            answers: crate::once::Answers::default(),
            streams: crate::streams::Streams::default(),
            draining: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Waits for `wait`, but not beyond the moment when the server begins to stop: `None` then.
    pub(crate) async fn unless_draining<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = wait => Some(done),
            () = self.draining.cancelled() => None,
        }
    }
}

/// The error with which streams end when the server stops.
pub(crate) fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "the server is shutting down")
        .hint("connect again; streams of output go on at their offset")
}
