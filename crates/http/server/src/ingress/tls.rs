//! TLS toward servers inside that speak nothing else, where their sandbox was made so.
//!
//! Their certificates are not looked at: nobody stands between the server and the sandbox's port, so there is nothing
//! that a certificate could vouch for. Clients outside see the server's own certificate.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use atoll_core::{Code, Error, Result};
use atoll_engine::PortConnection;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

/// How long the handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// What is spoken inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// Speaks TLS with what listens on a port of a sandbox.
///
/// # Errors
/// [`Code::PortBroken`] when it does not.
pub(super) async fn connect(
    connection: PortConnection,
    port: u16,
    protocol: Protocol,
) -> Result<TlsStream<PortConnection>> {
    let refused = |why: &dyn std::fmt::Display| {
        tracing::debug!(port, error = %why, "a server in a sandbox does not speak TLS");
        Error::new(Code::PortBroken, format!("what listens on port {port} does not speak TLS"))
            .hint("leave the port out of those that are spoken to over HTTPS")
    };
    let config = config(protocol).map_err(|error| refused(&error))?;
    let name = ServerName::try_from("localhost").map_err(|error| refused(&error))?;
    let handshake = TlsConnector::from(config).connect(name, connection);
    let secured = tokio::time::timeout(HANDSHAKE_MAX, handshake).await.map_err(|error| refused(&error))?;
    secured.map_err(|error| refused(&error))
}

fn config(protocol: Protocol) -> Result<Arc<ClientConfig>, rustls::Error> {
    type Made = Result<Arc<ClientConfig>, rustls::Error>;
    static HTTP1: LazyLock<Made> = LazyLock::new(|| make(Protocol::Http1));
    static HTTP2: LazyLock<Made> = LazyLock::new(|| make(Protocol::Http2));
    match protocol {
        Protocol::Http1 => HTTP1.clone(),
        Protocol::Http2 => HTTP2.clone(),
    }
}

fn make(protocol: Protocol) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let anybody = Arc::new(Anybody(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(anybody);
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![protocol.name().to_vec()];
    Ok(Arc::new(config))
}

/// Takes every certificate.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
