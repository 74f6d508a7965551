//! TLS of the server's own port.
//!
//! ```text
//! Tls::accept ─▶ Source ──┬── files       a chain and a key that the operator brings; read again when they change
//!                         ├── authority   certificates that an authority of this installation signs, made anew in time
//!                         └── issued      one that is put in place while the server runs (`atoll-acme`); for names that it
//!                                         is not for, and until it is there, the authority's
//! ```
//!
//! [`NodeTls`] is for the port on which the nodes of a cluster reach each other: both sides show a certificate there, of an
//! authority that signs for nothing else.
//!
//! The authority here is not the gateway's (`atoll-egress`): sandboxes trust that one for every name, and clients should
//! trust this one only for a server.

mod authority;
mod files;
mod issued;
mod leaf;
mod nodes;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;

pub use authority::{Authority, NewAuthority};
use files::Files;
pub use issued::{Issued, usable};
pub use leaf::Leaf;
pub use nodes::NodeTls;

/// What clients may speak, the first that both know.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key cannot be made or read.
    #[error("the certificate cannot be made or read")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refuses them, as when key and certificate do not belong together.
    #[error("the TLS library refuses the certificate")]
    Refused(#[from] rustls::Error),
    /// A file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no certificate, or no key, in what should hold one.
    #[error("{0} holds no PEM of the kind that is needed")]
    Pem(String),
}

#[derive(Debug)]
enum Source {
    Files(Files),
    Authority(Box<Authority>),
    Issued(Box<Authority>, Arc<Issued>),
}

/// A certificate that does not come from an authority of the installation's own.
#[derive(Debug)]
pub struct Certificate {
    /// Whether the server itself has to get the next one.
    pub is_ordered: bool,
    /// What it is for, and until when; `None` when there is none yet.
    pub leaf: Option<Leaf>,
    /// Why there is none that is newer.
    pub failure: Option<String>,
}

/// Makes connections into TLS connections.
#[derive(Debug)]
pub struct Tls {
    source: Source,
}

impl Tls {
    /// With the chain and key of these files, PEM. They are read again some seconds after they changed; what is wrong
    /// then is logged, and the old ones stay.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_files(chain: &std::path::Path, key: &std::path::Path) -> Result<Self, TlsError> {
        Ok(Self { source: Source::Files(Files::open(chain, key)?) })
    }

    /// With certificates that this authority makes.
    #[must_use]
    pub fn own(authority: Authority) -> Self {
        Self { source: Source::Authority(Box::new(authority)) }
    }

    /// With a certificate that is put in place while the server runs, and the authority's for everything else.
    #[must_use]
    pub fn issued(authority: Authority, issued: Arc<Issued>) -> Self {
        Self { source: Source::Issued(Box::new(authority), issued) }
    }

    /// The certificate that is in use, when it comes from elsewhere.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        match &self.source {
            Source::Authority(_) => None,
            Source::Files(files) => {
                Some(Certificate { is_ordered: false, leaf: files.leaf(), failure: None })
            }
            Source::Issued(_, issued) => {
                let (leaf, failure) = issued.status();
                Some(Certificate { is_ordered: true, leaf, failure })
            }
        }
    }

    /// The authority that clients must trust, PEM, when it is the installation's own.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        match &self.source {
            Source::Files(_) => None,
            Source::Authority(authority) | Source::Issued(authority, _) => Some(authority.certificate_pem()),
        }
    }

    /// Shakes hands. A client that names no server is shown a certificate for `local`, the address that it reached.
    ///
    /// # Errors
    /// What broke the handshake.
    pub async fn accept<S>(&self, stream: S, local: IpAddr) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let config = self.config(start.client_hello().server_name(), local).map_err(io::Error::other)?;
        start.into_stream(config).await
    }

    fn config(&self, name: Option<&str>, local: IpAddr) -> Result<Arc<ServerConfig>, TlsError> {
        let address = name.is_none().then_some(local);
        match &self.source {
            Source::Files(files) => Ok(files.config()),
            Source::Authority(authority) => authority.config(address),
            Source::Issued(authority, issued) => match name.and_then(|name| issued.config(name)) {
                Some(config) => Ok(config),
                None => authority.config(address),
            },
        }
    }
}

/// Whether client and server agreed on HTTP/2 in the handshake. `None` when the client offered nothing.
#[must_use]
pub fn agreed_on_http2<S>(stream: &TlsStream<S>) -> Option<bool> {
    stream.get_ref().1.alpn_protocol().map(|protocol| protocol == PROTOCOLS[0])
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}
