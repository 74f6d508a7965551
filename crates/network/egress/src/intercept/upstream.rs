//! The gateway's own connection to a server: TLS verified against the host's list of authorities, HTTP/1 or 2.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::policy::HostName;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::authority::Protocol;
use super::tasks::Tasks;
use super::{
    CONNECTION_WINDOW_BYTES, OutBody, SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES, WIDE_CONNECTION_WINDOW_BYTES,
    WIDE_STREAM_WINDOW_BYTES,
};
use crate::budget::Budget;

/// How long a server may take for its part of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// A silent HTTP/2 connection is probed this often.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A connection to a server, as bytes.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Why a server cannot be talked to. The text holds nothing of any request.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    #[error("no connection: {0}")]
    Dial(io::Error),
    #[error("{}", tls_text(.0))]
    Tls(io::Error),
    #[error("it does not speak HTTP: {0}")]
    Http(hyper::Error),
    #[error("it took too long for the TLS handshake")]
    Timeout,
}

fn tls_text(error: &io::Error) -> String {
    use rustls::{CertificateError, Error};
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is from an authority that this server does not trust; an operator can add it with \
             'atoll serve --upstream-ca FILE'"
                .to_owned()
        }
        Some(Error::InvalidCertificate(why)) => format!("its certificate is not valid: {why}"),
        Some(other) => format!("the TLS handshake failed: {other}"),
        None => format!("the TLS handshake failed: {error}"),
    }
}

/// How to be a client.
#[derive(Debug, Clone)]
pub(super) struct UpstreamTls {
    config: Arc<ClientConfig>,
}

impl UpstreamTls {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self { config: Arc::new(config) }
    }

    /// Connects, offering the protocols that the sandbox's client offered.
    pub(super) async fn connect(
        &self,
        host: &HostName,
        offered: &[Protocol],
        stream: Box<dyn Io>,
    ) -> Result<(Box<dyn Io>, Protocol), UpstreamError> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = offered.iter().map(|protocol| protocol.alpn().to_vec()).collect();
        let name = ServerName::try_from(host.as_str().to_owned())
            .map_err(|error| UpstreamError::Tls(io::Error::other(error)))?;
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .map_err(|_elapsed| UpstreamError::Timeout)?
            .map_err(UpstreamError::Tls)?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(name) if name == Protocol::Http2.alpn() => Protocol::Http2,
            Some(_) | None => Protocol::Http1,
        };
        Ok((Box::new(stream), protocol))
    }
}

/// Writes the HTTP/1 requests that go out.
pub(super) fn writer() -> http1::Builder {
    let mut writer = http1::Builder::new();
    writer.preserve_header_case(true);
    writer
}

/// A way to send requests on one connection.
#[derive(Debug)]
pub(super) enum Sender {
    One(http1::SendRequest<OutBody>),
    Two(http2::SendRequest<OutBody>),
}

impl Sender {
    /// Begins to speak HTTP on a connection. `tasks` drives it; answers come fast where `budget` has room for them.
    pub(super) async fn start(
        stream: Box<dyn Io>,
        protocol: Protocol,
        tasks: &Tasks,
        budget: &Budget,
    ) -> Result<Self, UpstreamError> {
        let stream = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = writer().handshake(stream).await.map_err(UpstreamError::Http)?;
                tasks.spawn(async move {
                    if let Err(error) = connection.with_upgrades().await {
                        tracing::debug!(%error, "a connection to a server ended");
                    }
                });
                Ok(Self::One(sender))
            }
            Protocol::Http2 => {
                let room = budget.try_hold_lasting(WIDE_CONNECTION_WINDOW_BYTES);
                let (of_stream, of_connection) = match room {
                    Some(_) => (WIDE_STREAM_WINDOW_BYTES, WIDE_CONNECTION_WINDOW_BYTES),
                    None => (STREAM_WINDOW_BYTES, CONNECTION_WINDOW_BYTES),
                };
                let (sender, connection) = http2::Builder::new(tasks.clone())
                    .timer(TokioTimer::new())
                    .keep_alive_interval(KEEPALIVE)
                    .initial_stream_window_size(of_stream)
                    .initial_connection_window_size(of_connection)
                    .max_send_buf_size(SEND_BUFFER_BYTES)
                    .handshake(stream)
                    .await
                    .map_err(UpstreamError::Http)?;
                tasks.spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection to a server ended");
                    }
                    drop(room);
                });
                Ok(Self::Two(sender))
            }
        }
    }

    /// Its protocol.
    pub(super) const fn protocol(&self) -> Protocol {
        match self {
            Self::One(_) => Protocol::Http1,
            Self::Two(_) => Protocol::Http2,
        }
    }

    /// Waits until a request can be sent. Says whether that will ever be.
    pub(super) async fn ready(&mut self) -> bool {
        match self {
            Self::One(sender) => sender.ready().await.is_ok(),
            Self::Two(sender) => sender.ready().await.is_ok(),
        }
    }
}
