//! The key file, sealing and opening.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use atoll_core::secret::Secret;
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use zeroize::{Zeroize as _, Zeroizing};

const KEY_BYTES: usize = 32;
/// First byte of a sealed value: AES-256-GCM, then 12 bytes of nonce, then ciphertext and tag.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 1 + NONCE_LEN;
/// Largest value that can be sealed, bytes.
const VALUE_MAX_BYTES: usize = 1 << 20;

/// Why a vault cannot be opened, or a value not sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The key file cannot be read or made.
    #[error("the vault's key file cannot be used")]
    KeyFile {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The key file is a link, a directory, not ours, or others can read it.
    #[error("the vault's key file must be a regular file of the server's user with mode 0600")]
    KeyFilePermissions,
    /// The key file does not hold 32 bytes.
    #[error("the vault's key file is damaged: it does not hold 32 bytes")]
    KeyFileLength,
    /// The value was sealed with another key or for another context, or was changed.
    #[error("the sealed value cannot be opened with this key and context")]
    Rejected,
    /// The value was sealed by a newer program.
    #[error("the sealed value has the unknown version {version}")]
    UnknownVersion {
        /// Its first byte.
        version: u8,
    },
    /// The value is larger than 1 MiB.
    #[error("the value is too large to be sealed")]
    TooLarge,
    /// The system gives no randomness, or the cipher failed.
    #[error("the cipher failed")]
    Cipher,
}

/// Seals and opens secrets with the key of one installation.
pub struct Vault {
    key: RandomizedNonceKey,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault").finish_non_exhaustive()
    }
}

impl Vault {
    /// Opens the vault whose key is in `key_file`, making that file with a random key when there is none.
    /// It appears whole or not at all: a crash leaves no half-written key.
    ///
    /// # Errors
    /// The file is unreadable, has wrong permissions or a wrong length.
    pub fn open(key_file: &Path) -> Result<Self, VaultError> {
        let key = match read_key(key_file) {
            Err(VaultError::KeyFile { source }) if source.kind() == io::ErrorKind::NotFound => {
                create_key(key_file)?;
                read_key(key_file)?
            }
            other => other?,
        };
        let key = RandomizedNonceKey::new(&AES_256_GCM, &key[..]).or(Err(VaultError::Cipher))?;
        Ok(Self { key })
    }

    /// Seals `secret` for `context`: only the same context opens it.
    ///
    /// # Errors
    /// [`VaultError::TooLarge`] beyond 1 MiB, [`VaultError::Cipher`].
    pub fn seal(&self, context: &str, secret: &Secret) -> Result<Vec<u8>, VaultError> {
        let value = secret.reveal().as_bytes();
        if value.len() > VALUE_MAX_BYTES {
            return Err(VaultError::TooLarge);
        }
        // Room for the tag from the start: growing would leave a copy of the plain text behind.
        let mut body = Zeroizing::new(Vec::with_capacity(value.len() + AES_256_GCM.tag_len()));
        body.extend_from_slice(value);
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(associated(context)), &mut *body)
            .or(Err(VaultError::Cipher))?;
        let mut sealed = Vec::with_capacity(HEADER_BYTES + body.len());
        sealed.push(VERSION);
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    /// Opens what [`Vault::seal`] made for the same context.
    ///
    /// # Errors
    /// [`VaultError::Rejected`] when key, context or content do not fit, [`VaultError::UnknownVersion`].
    pub fn unseal(&self, context: &str, sealed: &[u8]) -> Result<Secret, VaultError> {
        let (&version, rest) = sealed.split_first().ok_or(VaultError::Rejected)?;
        if version != VERSION {
            return Err(VaultError::UnknownVersion { version });
        }
        let (nonce, body) = rest.split_at_checked(NONCE_LEN).ok_or(VaultError::Rejected)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).or(Err(VaultError::Rejected))?;
        let mut body = Zeroizing::new(body.to_vec());
        let plain = self
            .key
            .open_in_place(nonce, Aad::from(associated(context)), &mut body)
            .or(Err(VaultError::Rejected))?;
        std::str::from_utf8(plain).map(Secret::new).or(Err(VaultError::Rejected))
    }
}

/// What is authenticated with a value: the version cannot be changed, nor the context.
fn associated(context: &str) -> Vec<u8> {
    [&[VERSION], context.as_bytes()].concat()
}

fn read_key(path: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>, VaultError> {
    let io_error = |source| VaultError::KeyFile { source };
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).or(Err(VaultError::KeyFilePermissions))?;
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(VaultError::KeyFilePermissions);
        }
        Err(error) => return Err(io_error(error)),
    };
    let meta = file.metadata().map_err(io_error)?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_file() || !ours || meta.mode() & 0o077 != 0 {
        return Err(VaultError::KeyFilePermissions);
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    if meta.len() != KEY_BYTES as u64 {
        return Err(VaultError::KeyFileLength);
    }
    file.read_exact(&mut key[..]).map_err(io_error)?;
    Ok(key)
}

/// Writes a random key to a new file and gives it its name last. When another process was faster, that
/// one's key stands.
fn create_key(path: &Path) -> Result<(), VaultError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let mut tag = [0; 8];
    aws_lc_rs::rand::fill(&mut key[..]).or(Err(VaultError::Cipher))?;
    aws_lc_rs::rand::fill(&mut tag).or(Err(VaultError::Cipher))?;
    let draft = path.with_added_extension(format!("{:016x}.new", u64::from_ne_bytes(tag)));
    tag.zeroize();
    let written = write_new(&draft, &key[..]).and_then(|()| match std::fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    let removed = std::fs::remove_file(&draft);
    written.and(removed).and_then(|()| sync_parent(path)).map_err(|source| VaultError::KeyFile { source })
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn dir() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("atoll-vault").tempdir().unwrap()
    }

    fn put(path: &Path, bytes: &[u8], mode: u32) {
        std::fs::write(path, bytes).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn opens_what_it_sealed_also_after_a_restart() {
        let dir = dir();
        let path = dir.path().join("key");
        let sealed: Vec<_> = {
            let vault = Vault::open(&path).unwrap();
            ["", "hunter2", &"ü".repeat(1000)]
                .map(|text| (text.to_owned(), vault.seal("c", &Secret::new(text)).unwrap()))
                .into()
        };
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (32, 0o600));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no draft stays behind");
        let vault = Vault::open(&path).unwrap();
        for (text, sealed) in sealed {
            assert_eq!(vault.unseal("c", &sealed).unwrap().reveal(), text);
            assert!(text.is_empty() || !sealed.windows(text.len()).any(|part| part == text.as_bytes()));
        }
    }

    #[test]
    fn the_same_value_is_sealed_differently_each_time() {
        let dir = dir();
        let vault = Vault::open(&dir.path().join("key")).unwrap();
        let secret = Secret::new("hunter2");
        assert_ne!(vault.seal("c", &secret).unwrap(), vault.seal("c", &secret).unwrap());
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let dir = dir();
        let vault = Vault::open(&dir.path().join("key")).unwrap();
        let sealed = vault.seal("context", &Secret::new("hunter2")).unwrap();
        for at in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[at / 8] ^= 1 << (at % 8);
            let error = vault.unseal("context", &changed).unwrap_err();
            if at < 8 {
                assert!(matches!(error, VaultError::UnknownVersion { version } if version == changed[0]));
            } else {
                assert!(matches!(error, VaultError::Rejected), "{error}");
            }
        }
        for len in 0..sealed.len() {
            assert!(matches!(vault.unseal("context", &sealed[..len]), Err(VaultError::Rejected)), "{len}");
        }
    }

    #[test]
    fn another_context_or_key_does_not_open_it() {
        let dir = dir();
        let vault = Vault::open(&dir.path().join("key")).unwrap();
        let other = Vault::open(&dir.path().join("other")).unwrap();
        let sealed = vault.seal("registry:a", &Secret::new("hunter2")).unwrap();
        assert!(matches!(vault.unseal("registry:b", &sealed), Err(VaultError::Rejected)));
        assert!(matches!(other.unseal("registry:a", &sealed), Err(VaultError::Rejected)));
    }

    #[test]
    fn refuses_key_files_that_are_not_safe() {
        let dir = dir();
        let path = |name: &str| dir.path().join(name);
        for mode in [0o640, 0o604, 0o660, 0o644, 0o601] {
            put(&path("open"), &[7; 32], mode);
            assert!(matches!(Vault::open(&path("open")), Err(VaultError::KeyFilePermissions)), "{mode:o}");
        }
        for len in [0, 31, 33] {
            put(&path("long"), &vec![7; len], 0o600);
            assert!(matches!(Vault::open(&path("long")), Err(VaultError::KeyFileLength)), "{len}");
        }
        put(&path("good"), &[7; 32], 0o400);
        assert!(Vault::open(&path("good")).is_ok());
        symlink(path("good"), path("link")).unwrap();
        assert!(matches!(Vault::open(&path("link")), Err(VaultError::KeyFilePermissions)));
        assert!(matches!(Vault::open(dir.path()), Err(VaultError::KeyFilePermissions)));
        assert!(matches!(Vault::open(&path("no/key")), Err(VaultError::KeyFile { .. })));
    }

    #[test]
    fn servers_that_start_at_once_get_one_key() {
        let dir = dir();
        let path = dir.path().join("key");
        let vaults: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Vault::open(&path).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let sealed = vaults[0].seal("c", &Secret::new("hunter2")).unwrap();
        for vault in &vaults {
            assert_eq!(vault.unseal("c", &sealed).unwrap().reveal(), "hunter2");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn values_have_a_limit_and_nothing_prints() {
        let dir = dir();
        let vault = Vault::open(&dir.path().join("key")).unwrap();
        let seal = |len| vault.seal("c", &Secret::new("x".repeat(len)));
        assert!(seal(VALUE_MAX_BYTES).is_ok());
        assert!(matches!(seal(VALUE_MAX_BYTES + 1), Err(VaultError::TooLarge)));
        assert_eq!(format!("{vault:?}"), "Vault { .. }");
    }
}
