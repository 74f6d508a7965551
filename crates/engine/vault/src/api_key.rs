//! Texts that open something: a prefix, 52 characters for 256 random bits, 6 characters of checksum.
//! API keys begin with `atoll_`, tokens of an access with `atollp_`.
//!
//! The alphabet is lower-case Crockford base32, as in ids. The prefix lets secret scanners find a key
//! that leaked; the checksum tells a mistyped key from an unknown one without asking the database.
//!
//! API keys may have the shape of another vendor's keys instead ([`KeyFormat`]), for clients that look at it.
//! They have no checksum and at least 160 random bits: enough for a plain hash, too.

use atoll_core::key::KeyFormat;
use atoll_core::secret::Secret;
use zeroize::Zeroizing;

use crate::foreign::{self, shapes};
use crate::vault::VaultError;

/// What distinguishes API keys from access tokens. The contexts separate each use of the hash from every other.
struct Kind {
    prefix: &'static str,
    hash_context: &'static str,
    checksum_context: &'static str,
}

const API_KEY: Kind = Kind {
    prefix: "atoll_",
    hash_context: "atoll 2026-11-21 api key hash v1",
    checksum_context: "atoll 2026-11-21 api key checksum v1",
};
const ACCESS_TOKEN: Kind = Kind {
    prefix: "atollp_",
    hash_context: "atoll 2026-11-21 access token hash v1",
    checksum_context: "atoll 2026-11-21 access token checksum v1",
};
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const RANDOM_BYTES: usize = 32;
/// Characters for 256 bits at 5 bits each.
const BODY_LEN: usize = 52;
const CHECKSUM_LEN: usize = 6;

/// Length of a stored hash.
pub const HASH_BYTES: usize = 32;

/// The text is no API key or token: wrong prefix, length, characters or checksum. It is not repeated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an API key")]
pub struct InvalidApiKey;

impl Kind {
    fn generate(&self) -> Result<Secret, VaultError> {
        let mut random = Zeroizing::new([0; RANDOM_BYTES]);
        aws_lc_rs::rand::fill(&mut random[..]).or(Err(VaultError::Cipher))?;
        let mut text = String::with_capacity(self.prefix.len() + BODY_LEN + CHECKSUM_LEN);
        text.push_str(self.prefix);
        encode(&random[..], BODY_LEN, &mut text);
        let sum = self.checksum(&text);
        text.push_str(&sum);
        Ok(Secret::new(text))
    }

    fn parse(&self, text: &str) -> Result<Secret, InvalidApiKey> {
        let rest = text.strip_prefix(self.prefix).ok_or(InvalidApiKey)?;
        if rest.len() != BODY_LEN + CHECKSUM_LEN || !rest.bytes().all(|b| ALPHABET.contains(&b)) {
            return Err(InvalidApiKey);
        }
        let (body, sum) = text.split_at(self.prefix.len() + BODY_LEN);
        if self.checksum(body) == sum { Ok(Secret::new(text)) } else { Err(InvalidApiKey) }
    }

    fn hash(&self, text: &Secret) -> [u8; HASH_BYTES] {
        blake3::derive_key(self.hash_context, text.reveal().as_bytes())
    }

    fn checksum(&self, text: &str) -> String {
        let mut out = String::with_capacity(CHECKSUM_LEN);
        encode(&blake3::derive_key(self.checksum_context, text.as_bytes()), CHECKSUM_LEN, &mut out);
        out
    }
}

/// A well-formed API key. Whether it is a valid one, the store knows.
#[derive(Debug, Clone)]
pub struct ApiKey {
    text: Secret,
}

impl ApiKey {
    /// Makes a new one from the system's randomness.
    ///
    /// # Errors
    /// [`VaultError::Cipher`] when there is no randomness.
    pub fn generate(format: KeyFormat) -> Result<Self, VaultError> {
        let text = match shapes(format) {
            [] => API_KEY.generate()?,
            shapes => foreign::generate(shapes)?,
        };
        Ok(Self { text })
    }

    /// Reads a key that a client sent, in any format.
    ///
    /// # Errors
    /// [`InvalidApiKey`].
    pub fn parse(text: &str) -> Result<Self, InvalidApiKey> {
        let is_foreign = || KeyFormat::ALL.iter().any(|format| foreign::fits(text, shapes(*format)));
        match API_KEY.parse(text) {
            Ok(text) => Ok(Self { text }),
            Err(InvalidApiKey) if is_foreign() => Ok(Self { text: Secret::new(text) }),
            Err(error) => Err(error),
        }
    }

    /// The text itself, to show once to the client that asked for the key.
    #[must_use]
    pub const fn text(&self) -> &Secret {
        &self.text
    }

    /// What is stored in place of the text.
    #[must_use]
    pub fn hash(&self) -> [u8; HASH_BYTES] {
        API_KEY.hash(&self.text)
    }
}

/// A well-formed token of an access. Whether it is a valid one, the store knows.
#[derive(Debug, Clone)]
pub struct AccessToken {
    text: Secret,
}

impl AccessToken {
    /// Makes a new one from the system's randomness.
    ///
    /// # Errors
    /// [`VaultError::Cipher`] when there is no randomness.
    pub fn generate() -> Result<Self, VaultError> {
        Ok(Self { text: ACCESS_TOKEN.generate()? })
    }

    /// Reads a token that a client sent.
    ///
    /// # Errors
    /// [`InvalidApiKey`].
    pub fn parse(text: &str) -> Result<Self, InvalidApiKey> {
        Ok(Self { text: ACCESS_TOKEN.parse(text)? })
    }

    /// The text itself, to show once to the client that asked for the access.
    #[must_use]
    pub const fn text(&self) -> &Secret {
        &self.text
    }

    /// What is stored in place of the text.
    #[must_use]
    pub fn hash(&self) -> [u8; HASH_BYTES] {
        ACCESS_TOKEN.hash(&self.text)
    }
}

/// Appends `len` characters: 5 bits each, most significant first, zero bits at the end.
fn encode(bytes: &[u8], len: usize, out: &mut String) {
    for at in 0..len {
        let value = (at * 5..at * 5 + 5).fold(0_u8, |value, bit| {
            let set = bytes.get(bit / 8).is_some_and(|byte| byte >> (7 - bit % 8) & 1 == 1);
            value << 1 | u8::from(set)
        });
        out.push(char::from(ALPHABET[usize::from(value)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn round_trips() {
        let key = ApiKey::generate(KeyFormat::Atoll).unwrap();
        let text = key.text().reveal();
        assert_eq!(text.len(), 64);
        let again = ApiKey::parse(text).unwrap();
        assert_eq!(again.hash(), key.hash());
        assert_eq!(format!("{key:?}"), "ApiKey { text: **** }");
    }

    #[test]
    fn kinds_do_not_mix() {
        let (key, token) = (ApiKey::generate(KeyFormat::Atoll).unwrap(), AccessToken::generate().unwrap());
        assert_eq!(ApiKey::parse(token.text().reveal()).unwrap_err(), InvalidApiKey);
        assert_eq!(AccessToken::parse(key.text().reveal()).unwrap_err(), InvalidApiKey);
        assert_eq!(AccessToken::parse(token.text().reveal()).unwrap().hash(), token.hash());
        assert_eq!(format!("{token:?}"), "AccessToken { text: **** }");
    }

    #[test]
    fn keys_differ() {
        let keys: Vec<_> = (0..100).map(|_| ApiKey::generate(KeyFormat::Atoll).unwrap()).collect();
        assert_eq!(keys.iter().map(ApiKey::hash).collect::<BTreeSet<_>>().len(), 100);
    }

    #[test]
    fn encodes_every_bit() {
        let encoded = |bytes: &[u8], len| {
            let mut out = String::new();
            encode(bytes, len, &mut out);
            out
        };
        assert_eq!(encoded(&[0xff; 5], 8), "zzzzzzzz");
        assert_eq!(encoded(&[0, 0, 0, 0, 1], 8), "00000001");
        // The last of 52 characters holds one bit of the key and four zeros.
        assert!(encoded(&[0xff; 32], BODY_LEN).ends_with('g'));
    }

    #[test]
    fn each_mistyped_character_is_noticed() {
        let key = ApiKey::generate(KeyFormat::Atoll).unwrap();
        let text = key.text().reveal();
        for at in 0..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            assert_eq!(ApiKey::parse(std::str::from_utf8(&bytes).unwrap()).unwrap_err(), InvalidApiKey);
        }
        for bad in [
            "",
            "atoll_",
            &text[1..],
            &text[..63],
            &format!("{text}0"),
            &text.to_uppercase(),
            &"ü".repeat(32),
        ] {
            assert_eq!(ApiKey::parse(bad).unwrap_err(), InvalidApiKey);
        }
    }
}
