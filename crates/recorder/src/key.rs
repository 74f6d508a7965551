//! The installation's key, which signs checkpoints.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Bytes of a seed and of a public key.
const KEY_BYTES: usize = 32;
/// Begins a public key as text.
const PREFIX: &str = "atoll-trace-ed25519:";
const ID_BYTES: usize = 8;

/// Why a key cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The private key is damaged.
    #[error("the recorder's private key is damaged")]
    Private,
    /// The text is not a public key.
    #[error("not a public key of a recorder: write it as atoll-trace-ed25519:<base64>")]
    Public,
}

/// The private key.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({}, ****)", self.public.id())
    }
}

impl SigningKey {
    /// The key that a seed of 32 random bytes stands for.
    ///
    /// # Errors
    /// [`KeyError::Private`].
    pub fn from_seed(seed: &Zeroizing<[u8; KEY_BYTES]>) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed[..]).or(Err(KeyError::Private))?;
        let bytes = pair.public_key().as_ref().try_into().or(Err(KeyError::Private))?;
        Ok(Self { pair, public: PublicKey(bytes) })
    }

    /// The public key that verifies its signatures.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn sign(&self, message: &[u8]) -> String {
        STANDARD.encode(self.pair.sign(message).as_ref())
    }
}

/// The public key that verifies checkpoints; safe to show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// A short name of it, in every checkpoint.
    #[must_use]
    pub fn id(&self) -> String {
        hex::encode(&blake3::hash(&self.0).as_bytes()[..ID_BYTES])
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &str) -> bool {
        let Ok(signature) = STANDARD.decode(signature) else { return false };
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, &signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let body = text.trim().strip_prefix(PREFIX).ok_or(KeyError::Public)?;
        let bytes = STANDARD.decode(body).or(Err(KeyError::Public))?;
        bytes.try_into().map(Self).or(Err(KeyError::Public))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_has_a_text_and_verifies_only_its_own() {
        let key = SigningKey::from_seed(&Zeroizing::new([7; KEY_BYTES])).unwrap();
        let other = SigningKey::from_seed(&Zeroizing::new([8; KEY_BYTES])).unwrap();
        let text = key.public().to_string();
        assert_eq!(text.parse::<PublicKey>().unwrap(), key.public());
        let signature = key.sign(b"a");
        assert!(key.public().verifies(b"a", &signature));
        assert!(!key.public().verifies(b"b", &signature) && !other.public().verifies(b"a", &signature));
        assert!(!format!("{key:?}").contains("07"));
        for bad in ["", "atoll-trace-ed25519:", "atoll-trace-ed25519:AAAA", "ssh-ed25519 AAAA", "****"] {
            assert_eq!(bad.parse::<PublicKey>(), Err(KeyError::Public), "{bad}");
        }
    }
}
