//! An authority of the installation's own, for servers that have no certificate from elsewhere.
//!
//! Its key never leaves the server. It signs certificates for the names and addresses of this server only; one is good
//! for a month and is made anew after half of it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::secret::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::{TlsError, server_config};

/// Life of the authority.
const AUTHORITY_DAYS: i64 = 3650;
/// Life of a certificate.
const LEAF_DAYS: i64 = 30;
/// When it is made anew.
const LEAF_RENEW: Duration = Duration::from_secs(15 * 24 * 3600);
/// Both are good from this long before, for clocks that are behind.
const BACKDATED_HOURS: i64 = 24;

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
    names: Vec<String>,
    /// One for all names, and one for each address of this host that was reached without a name.
    leafs: Mutex<BTreeMap<Option<IpAddr>, Leaf>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("names", &self.names).finish_non_exhaustive()
    }
}

pub(crate) fn valid_for(params: &mut CertificateParams, life: time::Duration) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - time::Duration::hours(BACKDATED_HOURS);
    params.not_after = now + life;
}

impl Authority {
    /// Makes an authority; `installation` becomes part of its name.
    ///
    /// # Errors
    /// [`TlsError::Certificate`].
    pub fn generate(installation: &str) -> Result<NewAuthority, TlsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::OrganizationName, "Atoll");
        params.distinguished_name.push(DnType::CommonName, format!("Atoll server {installation}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid_for(&mut params, time::Duration::days(AUTHORITY_DAYS));
        let certificate = params.self_signed(&key)?;
        Ok(NewAuthority { certificate_pem: certificate.pem(), key_pem: Secret::new(key.serialize_pem()) })
    }

    /// Takes up an authority that was made before, to sign for these DNS names; `*.` before one is for all names one
    /// label below it.
    ///
    /// # Errors
    /// [`TlsError`] when certificate or key cannot be read.
    pub fn open(certificate_pem: &str, key_pem: &Secret, names: Vec<String>) -> Result<Self, TlsError> {
        let key = KeyPair::from_pem(key_pem.reveal())?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_broken| TlsError::Pem("the authority".to_owned()))?;
        Ok(Self {
            certificate_pem: certificate_pem.to_owned(),
            issuer: Issuer::from_ca_cert_pem(certificate_pem, key)?,
            certificate,
            names,
            leafs: Mutex::default(),
        })
    }

    /// What clients trust, PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// For the names, or for an address of this host under which a client came that named none.
    pub(crate) fn config(&self, address: Option<IpAddr>) -> Result<Arc<ServerConfig>, TlsError> {
        // A panic leaves the map whole.
        let mut leafs = self.leafs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = leafs.get(&address).filter(|leaf| leaf.made.elapsed() < LEAF_RENEW) {
            return Ok(Arc::clone(&leaf.config));
        }
        let config = self.sign(address)?;
        leafs.insert(address, Leaf { made: Instant::now(), config: Arc::clone(&config) });
        Ok(config)
    }

    fn sign(&self, address: Option<IpAddr>) -> Result<Arc<ServerConfig>, TlsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(self.names.clone())?;
        params.subject_alt_names.extend(address.map(SanType::IpAddress));
        params.distinguished_name.push(DnType::CommonName, "Atoll server");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, time::Duration::days(LEAF_DAYS));
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(server_config(chain, key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn certificates_are_made_once_and_anew_in_time() {
        let made = Authority::generate("test").unwrap();
        assert!(!format!("{made:?}").contains("PRIVATE"));
        let names = vec!["a.test".to_owned(), "*.a.test".to_owned()];
        let authority = Authority::open(&made.certificate_pem, &made.key_pem, names).unwrap();
        let first = authority.config(None).unwrap();
        assert!(Arc::ptr_eq(&first, &authority.config(None).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authority.config(Some([127, 0, 0, 1].into())).unwrap()));
        tokio::time::advance(LEAF_RENEW).await;
        assert!(!Arc::ptr_eq(&first, &authority.config(None).unwrap()));
        assert!(Authority::open("x", &made.key_pem, Vec::new()).is_err());
    }
}
