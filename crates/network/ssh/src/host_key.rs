//! The key by which clients know this server again.

use std::io::{self, Write as _};
use std::path::Path;

use atoll_core::secret::Secret;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use zeroize::Zeroizing;

/// The host key cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// The file cannot be read or written.
    #[error("the SSH host key cannot be kept")]
    Io(#[from] io::Error),
    /// The file's content is no key.
    #[error("the SSH host key is damaged; remove the file to have a new one made")]
    Damaged(#[source] russh::keys::ssh_key::Error),
    /// The system gave no randomness.
    #[error("no randomness for an SSH host key")]
    Random(#[source] getrandom::Error),
}

/// The host key at `path`, which is made if there is none: the text for `known_hosts`, and the key itself. For servers
/// that are to have the same key.
///
/// # Errors
/// [`HostKeyError`].
pub fn host_key_text(path: &Path) -> Result<(String, Secret), HostKeyError> {
    let key = open(path)?;
    let text = key.to_openssh(LineEnding::LF).map_err(HostKeyError::Damaged)?;
    Ok((public_text(&key)?, Secret::new(text.to_string())))
}

/// Reads the key, or makes it. The file appears whole, and readable to no other user.
pub(crate) fn open(path: &Path) -> Result<PrivateKey, HostKeyError> {
    match std::fs::read(path) {
        Ok(text) => {
            let text = Zeroizing::new(text);
            return PrivateKey::from_openssh(&text[..]).map_err(HostKeyError::Damaged);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(&mut seed[..]).map_err(HostKeyError::Random)?;
    let key = of_seed(&seed);
    let text = key.to_openssh(LineEnding::LF).map_err(HostKeyError::Damaged)?;
    // Made with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(key)
}

/// The key that is made of these bytes.
pub(crate) fn of_seed(seed: &[u8; 32]) -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(seed))
}

/// The private key that is made of these bytes, as OpenSSH writes it.
#[must_use]
pub fn private_key(seed: &[u8; 32]) -> Option<Secret> {
    of_seed(seed).to_openssh(LineEnding::LF).ok().map(|text| Secret::new(text.to_string()))
}

/// Algorithm and key, as in `known_hosts`.
pub(crate) fn public_text(key: &PrivateKey) -> Result<String, HostKeyError> {
    key.public_key().to_openssh().map_err(HostKeyError::Damaged)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_made_once_and_private() {
        let dir = tempfile::Builder::new().prefix("atoll-ssh-").tempdir().unwrap();
        let path = dir.path().join("key");
        let first = public_text(&open(&path).unwrap()).unwrap();
        assert!(first.starts_with("ssh-ed25519 AAAA"), "{first}");
        assert_eq!(public_text(&open(&path).unwrap()).unwrap(), first);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "nonsense").unwrap();
        assert!(matches!(open(&path), Err(HostKeyError::Damaged(_))));
    }
}
