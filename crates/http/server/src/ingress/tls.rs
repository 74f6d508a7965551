//! TLS toward servers inside that speak nothing else, where their sandbox was made so.
//!
//! Their certificates are not looked at: no third party stands between the Atoll server and the sandbox's port, so
//! there is nothing that a certificate could vouch for. Clients outside see the Atoll server's own certificate. For the
//! same reason an end without TLS's own word of it ([`Secured`]), which many servers leave out, is an end like others:
//! no third party could have cut the answer off.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::{Code, Error, Result};
use atoll_engine::PortConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

/// How long the handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The protocol that the server inside speaks.
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

/// Speaks TLS with the server that listens on a port of a sandbox.
///
/// # Errors
/// [`Code::PortBroken`] when it does not.
pub(super) async fn connect(connection: PortConnection, port: u16, protocol: Protocol) -> Result<Secured> {
    let refused = |why: &dyn std::fmt::Display| {
        tracing::debug!(port, error = %why, "a server in a sandbox does not speak TLS");
        Error::new(Code::PortBroken, format!("what listens on port {port} does not speak TLS"))
            .hint("leave the port out of those that are spoken to over HTTPS")
    };
    let config = config(protocol).map_err(|error| refused(&error))?;
    let name = ServerName::try_from("localhost").map_err(|error| refused(&error))?;
    let handshake = TlsConnector::from(config).connect(name, connection);
    let secured = tokio::time::timeout(HANDSHAKE_MAX, handshake).await.map_err(|error| refused(&error))?;
    secured.map(Secured).map_err(|error| refused(&error))
}

/// TLS toward a server inside. That it ends without `close_notify` is no error: when an answer is shorter than the
/// length that was announced its reader notices that, and an answer that goes on until the end of the connection has
/// ended.
#[derive(Debug)]
pub(super) struct Secured<S = PortConnection>(TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, buf) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

    use super::*;

    #[tokio::test]
    async fn an_end_without_a_word_is_an_end() {
        let made = rcgen::generate_simple_self_signed(["box".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let server = server.unwrap().with_no_client_auth();
        let server = Arc::new(server.with_single_cert(vec![made.cert.der().clone()], key).unwrap());
        for word in [false, true] {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let server = TlsAcceptor::from(Arc::clone(&server));
            tokio::spawn(async move {
                let mut inside = server.accept(theirs).await.unwrap();
                inside.write_all(b"said").await.unwrap();
                inside.flush().await.unwrap();
                if word {
                    inside.shutdown().await.unwrap();
                }
            });
            let config = config(Protocol::Http1).unwrap();
            let stream = TlsConnector::from(config).connect("box".try_into().unwrap(), ours).await.unwrap();
            let mut said = String::new();
            assert_eq!(Secured(stream).read_to_string(&mut said).await.unwrap(), 4, "{word}");
        }
    }
}
