//! Sealing, opening, and changing the key.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use atoll_core::secret::Secret;
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use zeroize::Zeroizing;

use crate::key_file::{KEY_BYTES, create_key, read_key, sync_parent};

/// First byte of a sealed value: AES-256-GCM, then the key's name, 12 bytes of nonce, ciphertext and tag.
const VERSION: u8 = 2;
const NAME_BYTES: usize = 4;
const HEADER_BYTES: usize = 1 + NAME_BYTES + NONCE_LEN;
/// Largest value that can be sealed, bytes.
const VALUE_MAX_BYTES: usize = 1 << 20;
/// Separates the names of keys from every other use of the hash.
const NAME_CONTEXT: &str = "atoll 2026-11-21 vault key name v1";
/// Follows the name of the key file that a rotation is about to put in its place.
const NEXT_EXTENSION: &str = "next";

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
    /// A key that was given is neither 64 hexadecimal digits nor 32 bytes in base64.
    #[error("the key must be 64 hexadecimal digits, or 32 bytes in base64")]
    GivenKey,
    /// The key is given from outside, and only one: there is none to change to.
    #[error("the key comes from outside and there is no previous one: nothing to rotate")]
    NoNewKey,
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
///
/// # Rotation
///
/// [`Vault::begin_rotation`] makes a second key, with which everything is sealed from then on; both open.
/// The owner of the sealed values brings each of them to the new key ([`Vault::reseal`]), then
/// [`Vault::finish_rotation`] puts the new key's file in the place of the old. A crash between leaves both
/// files, and [`Vault::rotation_pending`] says so at the next start.
pub struct Vault {
    source: Source,
    ring: RwLock<Ring>,
}

/// Where the key is.
enum Source {
    File(PathBuf),
    Given,
}

struct Ring {
    current: Key,
    previous: Option<Key>,
}

struct Key {
    name: [u8; NAME_BYTES],
    cipher: RandomizedNonceKey,
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Result<Self, VaultError> {
        let hash = blake3::derive_key(NAME_CONTEXT, bytes);
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&hash[..NAME_BYTES]);
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, bytes).or(Err(VaultError::Cipher))?;
        Ok(Self { name, cipher })
    }

    fn read(path: &Path) -> Result<Self, VaultError> {
        read_key(path).and_then(|bytes| Self::new(&bytes))
    }

    /// A key that was written down.
    fn given(text: &Secret) -> Result<Self, VaultError> {
        let text = text.reveal().trim();
        let bytes = Zeroizing::new(match text.len() {
            64 => hex::decode(text).or(Err(VaultError::GivenKey))?,
            _ => {
                let base64 = base64::engine::general_purpose::STANDARD;
                base64.decode(text).or(Err(VaultError::GivenKey))?
            }
        });
        let bytes: &[u8; KEY_BYTES] = bytes.as_slice().try_into().or(Err(VaultError::GivenKey))?;
        Self::new(bytes)
    }
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
        let first = match Key::read(key_file) {
            Err(VaultError::KeyFile { source }) if source.kind() == io::ErrorKind::NotFound => {
                create_key(key_file)?;
                Key::read(key_file)?
            }
            other => other?,
        };
        let ring = match Key::read(&next_file(key_file)) {
            Err(VaultError::KeyFile { source }) if source.kind() == io::ErrorKind::NotFound => {
                Ring { current: first, previous: None }
            }
            // A rotation was begun and not finished.
            next => Ring { current: next?, previous: Some(first) },
        };
        Ok(Self { source: Source::File(key_file.to_owned()), ring: RwLock::new(ring) })
    }

    /// Opens the vault with a key that is kept elsewhere (an environment variable, a key management
    /// service). `previous` is the one before it, given until a rotation is done.
    ///
    /// # Errors
    /// [`VaultError::GivenKey`].
    pub fn with_key(current: &Secret, previous: Option<&Secret>) -> Result<Self, VaultError> {
        let ring = Ring { current: Key::given(current)?, previous: previous.map(Key::given).transpose()? };
        Ok(Self { source: Source::Given, ring: RwLock::new(ring) })
    }

    fn ring(&self) -> RwLockReadGuard<'_, Ring> {
        // Each change of the ring is one assignment: a panic elsewhere leaves it whole.
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
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
        let ring = self.ring();
        let key = &ring.current;
        // Room for the tag from the start: growing would leave a copy of the plain text behind.
        let mut body = Zeroizing::new(Vec::with_capacity(value.len() + AES_256_GCM.tag_len()));
        body.extend_from_slice(value);
        let nonce = key
            .cipher
            .seal_in_place_append_tag(Aad::from(associated(&key.name, context)), &mut *body)
            .or(Err(VaultError::Cipher))?;
        let mut sealed = Vec::with_capacity(HEADER_BYTES + body.len());
        sealed.push(VERSION);
        sealed.extend_from_slice(&key.name);
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    /// Opens what [`Vault::seal`] made for the same context.
    ///
    /// # Errors
    /// [`VaultError::Rejected`] when key, context or content do not fit, [`VaultError::UnknownVersion`].
    pub fn unseal(&self, context: &str, sealed: &[u8]) -> Result<Secret, VaultError> {
        let (name, rest) = header(sealed)?;
        let ring = self.ring();
        let mut keys = std::iter::once(&ring.current).chain(&ring.previous);
        let key = keys.find(|key| key.name == *name).ok_or(VaultError::Rejected)?;
        let (nonce, body) = rest.split_at_checked(NONCE_LEN).ok_or(VaultError::Rejected)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).or(Err(VaultError::Rejected))?;
        let mut body = Zeroizing::new(body.to_vec());
        let plain = key
            .cipher
            .open_in_place(nonce, Aad::from(associated(name, context)), &mut body)
            .or(Err(VaultError::Rejected))?;
        std::str::from_utf8(plain).map(Secret::new).or(Err(VaultError::Rejected))
    }

    /// The same value under the current key; `None` when it is under it already.
    ///
    /// # Errors
    /// As [`Vault::unseal`] and [`Vault::seal`].
    pub fn reseal(&self, context: &str, sealed: &[u8]) -> Result<Option<Vec<u8>>, VaultError> {
        let (name, _rest) = header(sealed)?;
        if *name == self.ring().current.name {
            return Ok(None);
        }
        let value = self.unseal(context, sealed)?;
        self.seal(context, &value).map(Some)
    }

    /// Makes the next key, unless there is one already, and seals with it from now on.
    ///
    /// # Errors
    /// [`VaultError::NoNewKey`] when the key is given from outside without a previous one;
    /// [`VaultError::KeyFile`].
    pub fn begin_rotation(&self) -> Result<(), VaultError> {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if ring.previous.is_some() {
            return Ok(());
        }
        let Source::File(path) = &self.source else { return Err(VaultError::NoNewKey) };
        create_key(&next_file(path))?;
        let next = Key::read(&next_file(path))?;
        ring.previous = Some(std::mem::replace(&mut ring.current, next));
        Ok(())
    }

    /// Forgets the previous key: nothing is sealed with it any more.
    ///
    /// # Errors
    /// [`VaultError::KeyFile`]; calling again continues.
    pub fn finish_rotation(&self) -> Result<(), VaultError> {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if ring.previous.is_some()
            && let Source::File(path) = &self.source
        {
            std::fs::rename(next_file(path), path)
                .and_then(|()| sync_parent(path))
                .map_err(|source| VaultError::KeyFile { source })?;
        }
        ring.previous = None;
        Ok(())
    }

    /// Whether a rotation was begun and not finished.
    #[must_use]
    pub fn rotation_pending(&self) -> bool {
        self.ring().previous.is_some()
    }
}

fn next_file(path: &Path) -> PathBuf {
    path.with_added_extension(NEXT_EXTENSION)
}

/// Splits a sealed value into the name of its key and the rest.
fn header(sealed: &[u8]) -> Result<(&[u8; NAME_BYTES], &[u8]), VaultError> {
    let (&version, rest) = sealed.split_first().ok_or(VaultError::Rejected)?;
    if version != VERSION {
        return Err(VaultError::UnknownVersion { version });
    }
    rest.split_first_chunk().ok_or(VaultError::Rejected)
}

/// What is authenticated with a value: neither version, key nor context can be changed.
fn associated(name: &[u8; NAME_BYTES], context: &str) -> Vec<u8> {
    [&[VERSION][..], name, context.as_bytes()].concat()
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
    fn a_rotation_survives_a_crash_at_every_step() {
        let dir = dir();
        let path = dir.path().join("key");
        let vault = Vault::open(&path).unwrap();
        let old = vault.seal("c", &Secret::new("hunter2")).unwrap();
        assert!(!vault.rotation_pending());
        vault.begin_rotation().unwrap();
        let early = vault.seal("c", &Secret::new("early")).unwrap();
        // A process that starts now finds both keys, and goes on.
        let vault = Vault::open(&path).unwrap();
        assert!(vault.rotation_pending());
        vault.begin_rotation().unwrap();
        assert_eq!(vault.unseal("c", &old).unwrap().reveal(), "hunter2");
        assert_eq!(vault.unseal("c", &early).unwrap().reveal(), "early");
        assert_eq!(vault.reseal("c", &early).unwrap(), None);
        let new = vault.reseal("c", &old).unwrap().unwrap();
        vault.finish_rotation().unwrap();
        for vault in [vault, Vault::open(&path).unwrap()] {
            assert!(!vault.rotation_pending());
            assert_eq!(vault.unseal("c", &new).unwrap().reveal(), "hunter2");
            assert_eq!(vault.unseal("c", &early).unwrap().reveal(), "early");
            assert!(matches!(vault.unseal("c", &old), Err(VaultError::Rejected)), "the old key is gone");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn keys_from_outside() {
        let key = |text: &str| Secret::new(text);
        let hex = key(&"ab".repeat(32));
        let base64 = key(&format!("{}=\n", "A".repeat(43)));
        let vault = Vault::with_key(&hex, None).unwrap();
        let sealed = vault.seal("c", &Secret::new("hunter2")).unwrap();
        assert!(matches!(vault.begin_rotation(), Err(VaultError::NoNewKey)));
        let vault = Vault::with_key(&base64, Some(&hex)).unwrap();
        assert!(vault.rotation_pending());
        vault.begin_rotation().unwrap();
        let again = vault.reseal("c", &sealed).unwrap().unwrap();
        vault.finish_rotation().unwrap();
        let vault = Vault::with_key(&base64, None).unwrap();
        assert_eq!(vault.unseal("c", &again).unwrap().reveal(), "hunter2");
        for bad in ["", "ab", &"zz".repeat(32), &"ab".repeat(33)] {
            assert!(matches!(Vault::with_key(&key(bad), None), Err(VaultError::GivenKey)), "{bad}");
        }
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
