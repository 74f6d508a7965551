//! API keys: `atoll_`, 52 characters for 256 random bits, 6 characters of checksum.
//!
//! The alphabet is lower-case Crockford base32, as in ids. The prefix lets secret scanners find a key
//! that leaked; the checksum tells a mistyped key from an unknown one without asking the database.

use atoll_core::secret::Secret;
use zeroize::Zeroizing;

use crate::vault::VaultError;

const PREFIX: &str = "atoll_";
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const RANDOM_BYTES: usize = 32;
/// Characters for 256 bits at 5 bits each.
const BODY_LEN: usize = 52;
const CHECKSUM_LEN: usize = 6;
/// Separates this use of the hash from every other.
const HASH_CONTEXT: &str = "atoll 2026-11-21 api key hash v1";
const CHECKSUM_CONTEXT: &str = "atoll 2026-11-21 api key checksum v1";

/// Length of a stored hash.
pub const HASH_BYTES: usize = 32;

/// A well-formed API key. Whether it is a valid one, the store knows.
#[derive(Debug, Clone)]
pub struct ApiKey {
    text: Secret,
}

/// The text is no API key: wrong prefix, length, characters or checksum. It is not repeated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an API key")]
pub struct InvalidApiKey;

impl ApiKey {
    /// Makes a new key from the system's randomness.
    ///
    /// # Errors
    /// [`VaultError::Cipher`] when there is no randomness.
    pub fn generate() -> Result<Self, VaultError> {
        let mut random = Zeroizing::new([0; RANDOM_BYTES]);
        aws_lc_rs::rand::fill(&mut random[..]).or(Err(VaultError::Cipher))?;
        let mut text = String::with_capacity(PREFIX.len() + BODY_LEN + CHECKSUM_LEN);
        text.push_str(PREFIX);
        encode(&random[..], BODY_LEN, &mut text);
        let sum = checksum(&text);
        text.push_str(&sum);
        Ok(Self { text: Secret::new(text) })
    }

    /// Reads a key that a client showed.
    ///
    /// # Errors
    /// [`InvalidApiKey`].
    pub fn parse(text: &str) -> Result<Self, InvalidApiKey> {
        let rest = text.strip_prefix(PREFIX).ok_or(InvalidApiKey)?;
        if rest.len() != BODY_LEN + CHECKSUM_LEN || !rest.bytes().all(|b| ALPHABET.contains(&b)) {
            return Err(InvalidApiKey);
        }
        let (body, sum) = text.split_at(PREFIX.len() + BODY_LEN);
        if checksum(body) == sum { Ok(Self { text: Secret::new(text) }) } else { Err(InvalidApiKey) }
    }

    /// The key itself, to show once to whoever asked for it.
    #[must_use]
    pub const fn text(&self) -> &Secret {
        &self.text
    }

    /// What is stored in place of the key.
    #[must_use]
    pub fn hash(&self) -> [u8; HASH_BYTES] {
        blake3::derive_key(HASH_CONTEXT, self.text.reveal().as_bytes())
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

fn checksum(text: &str) -> String {
    let mut out = String::with_capacity(CHECKSUM_LEN);
    encode(&blake3::derive_key(CHECKSUM_CONTEXT, text.as_bytes()), CHECKSUM_LEN, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn round_trips() {
        let key = ApiKey::generate().unwrap();
        let text = key.text().reveal();
        assert_eq!(text.len(), 64);
        let again = ApiKey::parse(text).unwrap();
        assert_eq!(again.hash(), key.hash());
        assert_eq!(format!("{key:?}"), "ApiKey { text: **** }");
    }

    #[test]
    fn keys_differ() {
        let keys: Vec<_> = (0..100).map(|_| ApiKey::generate().unwrap()).collect();
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
        let key = ApiKey::generate().unwrap();
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
