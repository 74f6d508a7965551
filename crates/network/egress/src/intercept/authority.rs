//! The certificate authority of an installation, and the certificates that it makes on the way.
//!
//! The authority's key never leaves the server; sandboxes trust its certificate. A certificate for a host is made when
//! a sandbox first connects there, is good for a day, and is made anew after half of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::policy::HostName;
use atoll_core::secret::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use tokio::time::Instant;

/// Life of the authority.
const AUTHORITY_DAYS: i64 = 3650;
/// Life of a certificate for a host.
const LEAF_HOURS: i64 = 24;
/// When it is made anew.
const LEAF_RENEW: Duration = Duration::from_secs(12 * 3600);
/// Both are good from this long before, for clocks that are behind.
const BACKDATED_HOURS: i64 = 24;
/// Certificates that are kept; beyond it all are made anew.
const LEAFS_MAX_COUNT: usize = 1024;

/// The protocols that clients may speak on an intercepted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// Its name in the TLS handshake.
    pub(super) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// Why the authority cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate or key cannot be made or read.
    #[error("the certificate cannot be made or read")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refuses the certificate that was made.
    #[error("the TLS library refuses the certificate")]
    Tls(#[from] rustls::Error),
    /// The stored certificate cannot be read.
    #[error("the authority's certificate is not PEM")]
    Pem,
}

/// A new authority, to be stored.
#[derive(Debug)]
pub struct NewAuthority {
    /// The certificate.
    pub certificate_pem: String,
    /// The key.
    pub key_pem: Secret,
}

struct Leaf {
    made: Instant,
    config: Arc<ServerConfig>,
}

/// The authority.
pub struct Authority {
    certificate_pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    leafs: Mutex<BTreeMap<(HostName, Protocol), Leaf>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn valid_for(params: &mut CertificateParams, life: time::Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - time::Duration::hours(BACKDATED_HOURS);
    params.not_after = now + life;
}

impl Authority {
    /// Makes an authority; `installation` becomes part of its name.
    ///
    /// # Errors
    /// [`AuthorityError::Certificate`].
    pub fn generate(installation: &str) -> Result<NewAuthority, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::OrganizationName, "Atoll");
        params.distinguished_name.push(DnType::CommonName, format!("Atoll gateway {installation}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid_for(&mut params, time::Duration::days(AUTHORITY_DAYS));
        let certificate = params.self_signed(&key)?;
        Ok(NewAuthority { certificate_pem: certificate.pem(), key_pem: Secret::new(key.serialize_pem()) })
    }

    /// Takes up an authority that was made before.
    ///
    /// # Errors
    /// [`AuthorityError`] when certificate or key cannot be read.
    pub fn open(certificate_pem: &str, key_pem: &Secret) -> Result<Self, AuthorityError> {
        use rustls::pki_types::pem::PemObject as _;
        let key = KeyPair::from_pem(key_pem.reveal())?;
        let certificate =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).or(Err(AuthorityError::Pem))?;
        Ok(Self {
            certificate_pem: certificate_pem.to_owned(),
            issuer: Issuer::from_ca_cert_pem(certificate_pem, key)?,
            certificate,
            leafs: Mutex::default(),
        })
    }

    /// The certificate that sandboxes trust, PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// How to be `host` towards a client that will speak `protocol`.
    pub(super) fn server_config(
        &self,
        host: &HostName,
        protocol: Protocol,
    ) -> Result<Arc<ServerConfig>, AuthorityError> {
        let key = (host.clone(), protocol);
        let known = |leafs: &BTreeMap<_, Leaf>| {
            leafs
                .get(&key)
                .filter(|leaf| leaf.made.elapsed() < LEAF_RENEW)
                .map(|leaf| Arc::clone(&leaf.config))
        };
        if let Some(config) = known(&self.leafs()) {
            return Ok(config);
        }
        let config = Arc::new(self.mint(host, protocol)?);
        let mut leafs = self.leafs();
        if leafs.len() >= LEAFS_MAX_COUNT {
            leafs.clear();
        }
        leafs.insert(key, Leaf { made: Instant::now(), config: Arc::clone(&config) });
        Ok(config)
    }

    fn leafs(&self) -> std::sync::MutexGuard<'_, BTreeMap<(HostName, Protocol), Leaf>> {
        // A cache: its content after a panic is as good.
        self.leafs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mint(&self, host: &HostName, protocol: Protocol) -> Result<ServerConfig, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![host.as_str().to_owned()])?;
        // A common name has at most 64 characters; clients look at the alternative names only.
        params.distinguished_name.push(DnType::CommonName, "Atoll gateway");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, time::Duration::hours(LEAF_HOURS));
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(super::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_stored_and_taken_up() {
        let made = Authority::generate("test").unwrap();
        assert!(!format!("{made:?}").contains("PRIVATE"));
        let authority = Authority::open(&made.certificate_pem, &made.key_pem).unwrap();
        assert_eq!(authority.certificate_pem(), made.certificate_pem);
        let host: HostName = "api.example.com".parse().unwrap();
        let first = authority.server_config(&host, Protocol::Http2).unwrap();
        let again = authority.server_config(&host, Protocol::Http2).unwrap();
        assert!(Arc::ptr_eq(&first, &again), "made once");
        assert_eq!(first.alpn_protocols, [b"h2"]);
        assert!(Authority::open("x", &made.key_pem).is_err());
        assert!(Authority::open(&made.certificate_pem, &Secret::new("x")).is_err());
    }

    #[test]
    fn the_cache_has_an_end() {
        let made = Authority::generate("test").unwrap();
        let authority = Authority::open(&made.certificate_pem, &made.key_pem).unwrap();
        let host: HostName = "h.example.com".parse().unwrap();
        let config = authority.server_config(&host, Protocol::Http1).unwrap();
        for n in 0..LEAFS_MAX_COUNT {
            let key = (format!("h{n}.example.com").parse().unwrap(), Protocol::Http1);
            authority.leafs().insert(key, Leaf { made: Instant::now(), config: Arc::clone(&config) });
        }
        let host: HostName = "new.example.com".parse().unwrap();
        authority.server_config(&host, Protocol::Http1).unwrap();
        assert_eq!(authority.leafs().len(), 1);
    }
}
