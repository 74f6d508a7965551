//! A certificate that `atoll-acme` gets and renews while the server runs.

use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::secret::Secret;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::{Leaf, TlsError, server_config};

/// Most certificates in a chain.
const CHAIN_MAX_COUNT: usize = 10;

/// The certificate, once it is there. New connections get what was put last; those that are open go on.
#[derive(Debug, Default)]
pub struct Issued {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    current: Option<(Leaf, Arc<ServerConfig>)>,
    failure: Option<String>,
}

impl Issued {
    /// Puts a chain and its key in use, PEM, and says what the certificate is for.
    ///
    /// # Errors
    /// [`TlsError`] when it cannot be read, or key and certificate do not belong together: the old one stays.
    pub fn put(&self, chain_pem: &str, key_pem: &Secret) -> Result<Leaf, TlsError> {
        let (leaf, config) = read(chain_pem, key_pem)?;
        self.state().current = Some((leaf.clone(), config));
        Ok(leaf)
    }

    /// Says why there is no newer one; `None` when all is well.
    pub fn say(&self, failure: Option<String>) {
        self.state().failure = failure;
    }

    /// What is in use, and why there is nothing newer.
    #[must_use]
    pub fn status(&self) -> (Option<Leaf>, Option<String>) {
        let state = self.state();
        (state.current.as_ref().map(|(leaf, _)| leaf.clone()), state.failure.clone())
    }

    pub(crate) fn config(&self, name: &str) -> Option<Arc<ServerConfig>> {
        let state = self.state();
        let (_, config) = state.current.as_ref().filter(|(leaf, _)| leaf.covers(name))?;
        Some(Arc::clone(config))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Each change is one assignment: a panic leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a chain's first certificate is for, when the chain can be used with this key.
///
/// # Errors
/// [`TlsError`].
pub fn usable(chain_pem: &str, key_pem: &Secret) -> Result<Leaf, TlsError> {
    read(chain_pem, key_pem).map(|(leaf, _)| leaf)
}

fn read(chain_pem: &str, key_pem: &Secret) -> Result<(Leaf, Arc<ServerConfig>), TlsError> {
    let broken = |what: &str| TlsError::Pem(what.to_owned());
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
        .take(CHAIN_MAX_COUNT + 1)
        .collect::<Result<_, _>>()
        .map_err(|_broken| broken("the chain"))?;
    let first = chain.first().filter(|_| chain.len() <= CHAIN_MAX_COUNT);
    let leaf = Leaf::read(first.ok_or_else(|| broken("the chain"))?)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.reveal().as_bytes());
    let key = key.map_err(|_broken| broken("the key"))?;
    Ok((leaf, server_config(chain, key)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    #[test]
    fn what_cannot_be_used_changes_nothing() {
        let issued = Issued::default();
        let (one, other) = (Authority::generate("one").unwrap(), Authority::generate("other").unwrap());
        issued.put(&one.certificate_pem, &one.key_pem).unwrap();
        let before = issued.status();
        assert!(before.0.is_some());
        let long = one.certificate_pem.repeat(CHAIN_MAX_COUNT + 1);
        for (chain, key) in [
            (other.certificate_pem.as_str(), &one.key_pem),
            ("", &one.key_pem),
            (&long, &one.key_pem),
            (&one.certificate_pem, &Secret::new("none")),
        ] {
            assert!(issued.put(chain, key).is_err());
        }
        assert_eq!(issued.status(), before);
        assert!(issued.config("boxes.test").is_none(), "it is for no name");
    }
}
