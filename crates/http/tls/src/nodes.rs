//! TLS between the nodes of a cluster.
//!
//! Every node holds the cluster's authority, sealed in the database that they share, and signs a certificate for itself. The
//! name in it is the node's id: a node that connects demands that id of the node that it means, so that no node can
//! pass for another at an address that was another's. A node that is connected to demands a certificate of the
//! authority.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::secret::Secret;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::authority::valid_for;
use crate::{PROTOCOLS, TlsError};

/// Life of a node's certificate.
const LIFE_DAYS: i64 = 7;
/// When it is made anew.
const RENEW: Duration = Duration::from_secs(3 * 24 * 3600);

/// Both sides of one certificate.
#[derive(Clone)]
struct Sides {
    server: Arc<ServerConfig>,
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
    made: Instant,
}

/// A node's side of connections to other nodes.
pub struct NodeTls {
    node: String,
    authority: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    sides: Mutex<Option<Sides>>,
}

impl std::fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeTls").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The name that stands in a node's certificate.
fn name_of(node: &str) -> String {
    format!("{node}.nodes.atoll")
}

impl NodeTls {
    /// The side of the node with this id, by the cluster's authority.
    ///
    /// # Errors
    /// [`TlsError`] when the authority cannot be read.
    pub fn open(certificate_pem: &str, key_pem: &Secret, node: &str) -> Result<Self, TlsError> {
        let authority = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_broken| TlsError::Pem("the authority".to_owned()))?;
        let key = KeyPair::from_pem(key_pem.reveal())?;
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key)?;
        let tls = Self { node: node.to_owned(), authority, issuer, sides: Mutex::default() };
        drop(tls.sides()?);
        Ok(tls)
    }

    /// Shakes hands with a node that connected.
    ///
    /// # Errors
    /// What broke the handshake: also a client without a certificate of the authority.
    pub async fn accept<S>(&self, stream: S) -> io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let sides = self.sides().map_err(io::Error::other)?;
        TlsAcceptor::from(sides.server).accept(stream).await
    }

    /// Shakes hands with the node that has this id, and no other.
    ///
    /// # Errors
    /// What broke the handshake.
    pub async fn connect(
        &self,
        stream: TcpStream,
        node: &str,
        http2: bool,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let sides = self.sides().map_err(io::Error::other)?;
        let name = ServerName::try_from(name_of(node)).map_err(io::Error::other)?;
        TlsConnector::from(if http2 { sides.two } else { sides.one }).connect(name, stream).await
    }

    fn sides(&self) -> Result<Sides, TlsError> {
        // A panic leaves the value whole.
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sides) = sides.as_ref().filter(|sides| sides.made.elapsed() < RENEW) {
            return Ok(sides.clone());
        }
        let made = self.sign()?;
        *sides = Some(made.clone());
        Ok(made)
    }

    fn sign(&self) -> Result<Sides, TlsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![name_of(&self.node)])?;
        params.distinguished_name.push(DnType::CommonName, "Atoll node");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, time::Duration::days(LIFE_DAYS));
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.authority.clone()];
        let key = || PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));

        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| TlsError::Refused(rustls::Error::General(error.to_string())))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key())?;
        server.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let mut one = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key())?;
        let mut two = one.clone();
        one.alpn_protocols = vec![PROTOCOLS[1].to_vec()];
        two.alpn_protocols = vec![PROTOCOLS[0].to_vec()];
        Ok(Sides { server: Arc::new(server), one: Arc::new(one), two: Arc::new(two), made: Instant::now() })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Authority;

    fn node(authority: &crate::NewAuthority, id: &str) -> Arc<NodeTls> {
        Arc::new(NodeTls::open(&authority.certificate_pem, &authority.key_pem, id).unwrap())
    }

    /// Connects `from` to `to`, meaning `meant`; says whether a byte arrived.
    async fn meet(from: &Arc<NodeTls>, to: &Arc<NodeTls>, meant: &str) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = Arc::clone(to);
        let served = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = to.accept(stream).await.ok()?;
            stream.read_u8().await.ok()
        });
        let stream = TcpStream::connect(address).await.unwrap();
        if let Ok(mut stream) = from.connect(stream, meant, true).await {
            let _sent = stream.write_u8(7).await;
            let _sent = stream.flush().await;
        }
        served.await.unwrap() == Some(7)
    }

    #[tokio::test]
    async fn nodes_of_one_authority_meet_and_nobody_else() {
        let (ours, theirs) = (Authority::generate("a").unwrap(), Authority::generate("b").unwrap());
        let (a, b, stranger) = (node(&ours, "nda"), node(&ours, "ndb"), node(&theirs, "nda"));
        assert!(meet(&a, &b, "ndb").await);
        assert!(!meet(&a, &b, "ndc").await, "another node has that address now");
        assert!(!meet(&stranger, &b, "ndb").await, "it shows a certificate of another authority");
        assert!(!meet(&a, &stranger, "nda").await, "and so does who it reaches");
    }

    #[tokio::test]
    async fn who_shows_no_certificate_is_refused() {
        let ours = Authority::generate("a").unwrap();
        let b = node(&ours, "ndb");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            b.accept(stream).await.is_ok()
        });
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ours.certificate_pem.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("ndb.nodes.atoll").unwrap();
        let _met = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        assert!(!served.await.unwrap());
    }
}
