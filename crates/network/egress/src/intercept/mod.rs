//! Interception: looks into connections to hosts that an injection rule names, and only into those.
//!
//! ```text
//! client in a sandbox ──TLS──▶ certificate of our authority ──▶ HTTP: check, policy, rules ──TLS──▶ server
//!   (trusts our authority)      (made for this host, a day)       (secrets are put in here)    (verified)
//! ```
//!
//! - The gateway has made sure that the server name belongs to the address. Here every request must be for
//!   that name, too ([`check`]); otherwise it is refused with 421.
//! - The server outside is verified against the host's authorities: a secret goes to no other server.
//! - Client and server speak the same protocol: the client is offered the protocol that the server chose.
//! - A secret is in a request for as long as it is being sent. Errors and logs hold none.
//! - Redirects go to the client as they are; its next request is judged anew.

mod apply;
mod authority;
mod check;
mod escape;
#[cfg(test)]
mod fuzz;
mod gateway;
mod kept;
mod meter;
mod refusal;
pub(crate) mod replace;
mod session;
mod tasks;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_core::id::SandboxId;
use atoll_core::policy::{EgressPolicy, HostName, SecretRef, Sender};
use atoll_core::secret::Secret;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

pub use authority::{Authority, AuthorityError, NewAuthority};
pub use meter::{ModelMeter, ModelTokens, Tally};
use upstream::{Io, UpstreamTls};

use crate::budget::Budget;
use crate::interceptor::BoxError;

/// How long the head of a request may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Headers of one request.
const HEADERS_MAX_COUNT: usize = 200;
/// Size of all headers of one request in HTTP/2, bytes.
const HEADERS_MAX_BYTES: u32 = 64 << 10;
/// Requests at once on one HTTP/2 connection. Fewer than 100, which RFC 9113 §6.5.2 recommends as the least, fail in
/// clients that begin before they have read how many they may.
const STREAMS_MAX_COUNT: u32 = 128;
/// Bytes that may be under way on one HTTP/2 stream. A sandbox is near, so these are enough for its side.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes that may be under way on one HTTP/2 connection.
const CONNECTION_WINDOW_BYTES: u32 = 2 * STREAM_WINDOW_BYTES;
/// The same for servers outside, which are far, while the sandbox has room for them.
const WIDE_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const WIDE_CONNECTION_WINDOW_BYTES: u32 = 2 * WIDE_STREAM_WINDOW_BYTES;
/// Bytes of one HTTP/2 stream that wait for a client that does not read.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Largest body that is held as a whole to replace placeholders in it; larger ones, and those that the sandbox has no
/// room for, are replaced as they flow.
const BODY_WHOLE_MAX_BYTES: u32 = 1 << 20;

/// A request that may pass, for as long as it is kept.
type Admitted = Arc<dyn std::any::Any + Send + Sync>;
/// A body on its way, in either direction.
type OutBody = BoxBody<Bytes, BoxError>;

/// A secret for one request.
#[derive(Debug)]
pub struct OpenedSecret {
    /// The value.
    pub value: Secret,
    /// Which version it is.
    pub version: u32,
}

/// A use of a secret, told before the request goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUsed {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The secret, as the rule names it.
    pub secret: SecretRef,
    /// Which version.
    pub version: u32,
    /// The host that receives it.
    pub host: HostName,
    /// The request's method.
    pub method: String,
    /// The request's path as the client sent it, without its query.
    pub path: String,
    /// The rule.
    pub rule: String,
}

/// Where secrets come from.
#[async_trait]
pub trait SecretSource: Send + Sync + std::fmt::Debug {
    /// Opens a secret for one request of a sandbox to a host.
    ///
    /// # Errors
    /// A text for the programs in the sandbox.
    fn open(
        &self,
        sandbox: &SandboxId,
        secret: &SecretRef,
        host: &HostName,
    ) -> atoll_core::Result<OpenedSecret>;

    /// Records a use.
    ///
    /// # Errors
    /// Then the request is not sent.
    async fn used(&self, used: SecretUsed) -> atoll_core::Result<()>;
}

/// Why interception cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A given authority cannot be read.
    #[error("an authority for servers outside is not PEM")]
    Pem,
    /// The TLS library refuses its configuration.
    #[error("the TLS library refuses its configuration")]
    Tls(#[from] rustls::Error),
}

/// The interceptor.
#[derive(Debug)]
pub struct TlsInterceptor {
    shared: Arc<Shared>,
    roots_pem: String,
}

/// The state that all connections share.
#[derive(Debug)]
struct Shared {
    authority: Authority,
    upstream: UpstreamTls,
    secrets: Arc<dyn SecretSource>,
    meter: Option<Arc<dyn ModelMeter>>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The facts that the gateway knows of a connection, and the things that it does for it.
#[async_trait]
trait Way: Send + Sync {
    fn sandbox(&self) -> &SandboxId;
    fn host(&self) -> &HostName;
    fn port(&self) -> u16;
    fn encrypted(&self) -> bool;

    /// The sender that made the connection, if it is known.
    fn sender(&self) -> Option<&Sender> {
        None
    }
    /// The sandbox's bytes on their way.
    fn budget(&self) -> &Arc<Budget>;
    /// As it is now.
    fn policy(&self) -> Arc<EgressPolicy>;
    /// Whether the rules of a policy let a request pass. It may pass against them, where the policy only observes.
    fn allowed_by_rules(&self, policy: &EgressPolicy, method: &str, path: &str) -> bool;
    /// Whether a request may pass. The caller keeps the [`Admitted`] until the answer has been passed on.
    fn admit(&self, method: &str, path: &str) -> Result<Admitted, Box<http::Response<OutBody>>>;
    /// Connects to where the client wanted to go.
    async fn dial(&self) -> std::io::Result<Box<dyn Io>>;
}

impl TlsInterceptor {
    /// Sets up interception. Servers are verified against the host's authorities and `extra_roots` (PEM). Requests to models
    /// are counted by `meter`, if there is one.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(
        authority: Authority,
        secrets: Arc<dyn SecretSource>,
        meter: Option<Arc<dyn ModelMeter>>,
        extra_roots: &str,
    ) -> Result<Self, SetupError> {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        for error in native.errors {
            tracing::warn!(%error, "an authority of this host cannot be read");
        }
        let mut roots_pem = String::new();
        for certificate in native.certs {
            push_pem(&mut roots_pem, &certificate);
            // Some certificates of a host are too old for the TLS library; those are left out.
            drop(roots.add(certificate));
        }
        for certificate in CertificateDer::pem_slice_iter(extra_roots.as_bytes()) {
            roots.add(certificate.map_err(|_error| SetupError::Pem)?)?;
        }
        if roots.is_empty() {
            tracing::warn!("this host has no certificate authorities: no server outside can be verified");
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Sandboxes share this client: a ticket that one server gave would be shown to another that a sandbox picks.
        config.resumption = Resumption::disabled();
        let upstream = UpstreamTls::new(config);
        Ok(Self { shared: Arc::new(Shared { authority, upstream, secrets, meter }), roots_pem })
    }

    /// The authority's certificate, PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        self.shared.authority.certificate_pem()
    }

    /// The host's own authorities, PEM: for images that have none.
    #[must_use]
    pub fn roots_pem(&self) -> &str {
        &self.roots_pem
    }
}

fn push_pem(text: &mut String, certificate: &CertificateDer<'_>) {
    use base64::Engine as _;
    const LINE: usize = 64;
    let encoded = base64::engine::general_purpose::STANDARD.encode(certificate);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
}

#[cfg(test)]
mod tests;
