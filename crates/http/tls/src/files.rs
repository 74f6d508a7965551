//! A chain and a key from files, read again when they changed: a client of ACME renews them every few weeks.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::Instant;

use crate::{Leaf, TlsError, server_config};

/// How often the files are looked at, by the connections that come.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Largest file, bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// When the files were last written.
type Written = [Option<SystemTime>; 2];

#[derive(Debug)]
pub(crate) struct Files {
    chain: PathBuf,
    key: PathBuf,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    looked: Instant,
    written: Written,
    config: Arc<ServerConfig>,
    /// `None` for one that the TLS library takes and we cannot read.
    leaf: Option<Leaf>,
}

impl Files {
    pub(crate) fn open(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        // Looked at before the files are read: what is written meanwhile is seen at the next look.
        let written = written(chain, key);
        let (config, leaf) = read(chain, key)?;
        let current = Mutex::new(Current { looked: Instant::now(), written, config, leaf });
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), current })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        // A panic leaves whole fields.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= LOOK_INTERVAL {
            current.looked = Instant::now();
            self.look(&mut current);
        }
        Arc::clone(&current.config)
    }

    /// What the certificate says of itself, looked at anew as for a connection.
    pub(crate) fn leaf(&self) -> Option<Leaf> {
        drop(self.config());
        self.current.lock().unwrap_or_else(PoisonError::into_inner).leaf.clone()
    }

    fn look(&self, current: &mut Current) {
        let now = written(&self.chain, &self.key);
        if now == current.written {
            return;
        }
        match read(&self.chain, &self.key) {
            Ok((config, leaf)) => {
                tracing::info!(chain = %self.chain.display(), "a new certificate is in use");
                (current.config, current.leaf, current.written) = (config, leaf, now);
            }
            // Of two files one may be written already: it is tried again at the next look.
            Err(error) => {
                tracing::warn!(chain = %self.chain.display(), %error, "the new certificate cannot be used; the old one stays");
            }
        }
    }
}

fn written(chain: &Path, key: &Path) -> Written {
    [chain, key].map(|path| path.metadata().and_then(|meta| meta.modified()).ok())
}

fn read(chain: &Path, key: &Path) -> Result<(Arc<ServerConfig>, Option<Leaf>), TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&bytes(chain)?)
        .collect::<Result<_, _>>()
        .map_err(|_broken| TlsError::Pem(chain.display().to_string()))?;
    let first = certificates.first().ok_or_else(|| TlsError::Pem(chain.display().to_string()))?;
    let leaf = Leaf::read(first).ok();
    let key_der = PrivateKeyDer::from_pem_slice(&bytes(key)?)
        .map_err(|_broken| TlsError::Pem(key.display().to_string()))?;
    Ok((server_config(certificates, key_der)?, leaf))
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut all = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MAX_BYTES).read_to_end(&mut all))
        .map_err(|source| TlsError::File { path: path.to_owned(), source })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    fn write(dir: &Path, name: &str) {
        let made = Authority::generate(name).unwrap();
        std::fs::write(dir.join("chain.pem"), &made.certificate_pem).unwrap();
        std::fs::write(dir.join("key.pem"), made.key_pem.reveal()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn files_are_read_again_when_they_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
        assert!(matches!(Files::open(&chain, &key), Err(TlsError::File { .. })));
        write(dir.path(), "one");
        let files = Files::open(&chain, &key).unwrap();
        let first = files.config();
        tokio::time::advance(LOOK_INTERVAL).await;
        assert!(Arc::ptr_eq(&first, &files.config()), "nothing changed");

        std::fs::write(&chain, "half").unwrap();
        tokio::time::advance(LOOK_INTERVAL).await;
        assert!(Arc::ptr_eq(&first, &files.config()), "what is broken is not taken");
        write(dir.path(), "two");
        assert!(Arc::ptr_eq(&first, &files.config()), "not looked at yet");
        tokio::time::advance(LOOK_INTERVAL).await;
        assert!(!Arc::ptr_eq(&first, &files.config()));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "one");
        let other = Authority::generate("other").unwrap();
        let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
        std::fs::write(&key, other.key_pem.reveal()).unwrap();
        assert!(matches!(Files::open(&chain, &key), Err(TlsError::Refused(_))));
        std::fs::write(&key, "no key").unwrap();
        assert!(matches!(Files::open(&chain, &key), Err(TlsError::Pem(_))));
        assert!(matches!(Files::open(&key, &key), Err(TlsError::Pem(_))));
    }
}
