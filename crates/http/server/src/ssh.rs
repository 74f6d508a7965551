//! SSH, as far as this crate knows it: the server gives each SSH client to the [`SshDoor`] that it was started with.

use std::net::SocketAddr;
use std::sync::Arc;

use atoll_core::Error;
use atoll_core::id::{KeyId, SandboxId};
use atoll_core::secret::Secret;
use atoll_engine::{Asked, Engine};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::cluster;
use crate::shared::App;
use crate::streams::{Lasting, Linked, Owner, Streams};

/// A byte stream both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Finds the node that has the sandbox of a login, which is noted in [`Asked`]. It tells that node what the client has
/// shown, and gives a connection to it if that node lets the client in.
pub type SshElsewhere =
    Arc<dyn Fn(Arc<Asked>, Secret) -> BoxFuture<'static, Option<Box<dyn Duplex>>> + Send + Sync>;

/// The places that SSH connections and their sessions take: those that a key has for answers that go on, and those that links
/// have. Clones share them.
#[derive(Debug, Clone)]
pub struct SshPlaces {
    engine: Engine,
    streams: Streams,
    /// Places of one key.
    most: usize,
}

/// One of these places, until it is dropped.
#[derive(Debug)]
pub struct SshPlace {
    _place: Lasting,
}

impl SshPlaces {
    pub(crate) fn new(app: &App) -> Self {
        let (engine, streams) = (app.engine.clone(), app.streams.clone());
        Self { engine, streams, most: app.config.streams_of_key_max }
    }

    /// A place of this key.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded).
    pub fn of_key(&self, key: &KeyId) -> Result<SshPlace, Error> {
        Ok(SshPlace { _place: self.streams.hold(key, self.most)? })
    }

    /// A place of those who have a link or token to this sandbox: whoever has one may come by it.
    ///
    /// # Errors
    /// [`Code::LimitExceeded`](atoll_core::Code::LimitExceeded);
    /// [`Code::SandboxNotFound`](atoll_core::Code::SandboxNotFound).
    pub fn of_links_to(&self, sandbox: &SandboxId) -> Result<SshPlace, Error> {
        let (record, linked) = (self.engine.sandbox(sandbox)?, Linked::Sandbox(sandbox.clone()));
        let owner = Owner { key: record.owner.as_ref(), project: record.project.as_ref() };
        Ok(SshPlace { _place: self.streams.hold_by_link(&linked, owner, self.most)? })
    }
}

/// A client that speaks SSH.
pub struct SshClient {
    /// Its connection.
    pub stream: Box<dyn Duplex>,
    /// Where it comes from.
    pub peer: Option<SocketAddr>,
    /// Leads to other nodes, where this server is a node of a cluster.
    pub elsewhere: Option<SshElsewhere>,
    /// The places that its connection and its sessions take.
    pub places: SshPlaces,
    /// Fires when the server begins to stop.
    pub stop: CancellationToken,
}

impl SshClient {
    pub(crate) fn new(app: &App, stream: Box<dyn Duplex>, peer: Option<SocketAddr>) -> Self {
        let (elsewhere, places) = (cluster::ssh_elsewhere(app, peer), SshPlaces::new(app));
        Self { stream, peer, elsewhere, places, stop: app.draining.clone() }
    }
}

/// Serves a client until it goes or the server stops.
pub type SshDoor = Arc<dyn Fn(SshClient) -> BoxFuture<'static, ()> + Send + Sync>;

/// Serves the client of another node that was let in.
pub type SshServed = Box<dyn FnOnce(SshClient) -> BoxFuture<'static, ()> + Send>;

/// Lets in a client of another node, by what it has shown there.
pub type SshOfNodes = Arc<dyn Fn(Arc<Asked>, Secret) -> BoxFuture<'static, Option<SshServed>> + Send + Sync>;

/// The way for SSH clients: on the same port, or through a WebSocket.
#[derive(Clone)]
pub struct Ssh {
    /// Serves a connection.
    pub door: SshDoor,
    /// Serves those of other nodes.
    pub of_nodes: SshOfNodes,
    /// The public host key, as it stands in `known_hosts` without names.
    pub host_key: String,
    /// The name for it that clients are told to use.
    pub host_key_alias: String,
    /// The private key that is made of a seed, as SSH clients read it.
    pub private_key: fn(&[u8; 32]) -> Option<Secret>,
}

impl std::fmt::Debug for SshClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshClient").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Ssh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ssh").field("host_key", &self.host_key).finish_non_exhaustive()
    }
}
