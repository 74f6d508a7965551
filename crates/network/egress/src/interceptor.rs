//! The seam to the interceptor, which looks into connections: it opens TLS and puts secrets into requests.

use std::net::SocketAddr;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::policy::{EgressPolicy, HostName, Sender};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;

use crate::client::ClientStream;
use crate::connection::Dialer;

/// The protocol of a connection, as far as its first bytes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TLS.
    Tls,
    /// HTTP/1 in clear.
    Http,
}

/// A connection that the interceptor may want to look into.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The sandbox that has it.
    pub sandbox: &'a SandboxId,
    /// The policy as it is now.
    pub policy: &'a EgressPolicy,
    /// The name, which is certain: only connections with one are asked about.
    pub name: &'a HostName,
    /// Where it leads.
    pub address: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// The sender that made it, if it is known.
    pub sender: Option<&'a Sender>,
}

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An answer to one request.
pub type Answer = http::Response<UnsyncBoxBody<bytes::Bytes, BoxError>>;

/// A connection to be served.
#[derive(Debug)]
pub struct Flow {
    /// The sandbox that has it.
    pub sandbox: SandboxId,
    /// Where the client connected to.
    pub original: SocketAddr,
    /// The name that the client meant and that has this address.
    pub name: HostName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The client; the bytes that were looked at come again.
    pub client: ClientStream,
}

/// Looks into connections. The gateway has decided that the connection may be made *or* that this depends
/// on its requests; each request must be shown to [`Dialer::admit`] before any of it is sent.
#[async_trait]
pub trait Interceptor: Send + Sync + std::fmt::Debug {
    /// Whether this connection should be given to [`Self::serve`]. For TLS the gateway also gives connections that a
    /// rule about methods or paths decides on.
    fn wants(&self, ask: &Ask<'_>) -> bool;

    /// Serves a connection to its end. The dialer connects to where the client wanted to go; its
    /// [`Dialer::cancelled`] fires when the connection is no longer allowed.
    ///
    /// # Errors
    /// The error that broke the connection; it is only logged.
    async fn serve(&self, flow: Flow, dialer: Dialer) -> std::io::Result<()>;

    /// Answers one request in clear that the explicit proxy was given. `name` is its host, and the dialer leads
    /// to an address of that.
    async fn answer(&self, request: http::Request<Incoming>, name: HostName, dialer: Dialer) -> Answer;
}
