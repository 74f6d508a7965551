//! Digests, and readers that compute them on the way.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{ImageError, Result};

/// A SHA-256 digest in its text form `sha256:<64 lower-case hex digits>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// What stands before the hex digits.
pub(crate) const PREFIX: &str = "sha256:";

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hasher(Sha256::new().chain_update(bytes))
    }

    pub(crate) fn from_hasher(hasher: Sha256) -> Self {
        Self(format!("{PREFIX}{}", hex::encode(hasher.finalize())))
    }

    /// The text form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 hex digits: safe as a file name.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }

    /// The identity of a stack of layers: `self` is the stack below, `layer` comes on top.
    pub(crate) fn chain(&self, layer: &Self) -> Self {
        Self::of(format!("{self} {layer}").as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self> {
        let good = text.strip_prefix(PREFIX).is_some_and(|hex| {
            hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        });
        if good {
            return Ok(Self(text.to_owned()));
        }
        Err(ImageError::Invalid(format!(
            "'{}' is not a SHA-256 digest; others are not supported",
            atoll_core::error::shorten(text)
        )))
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

/// Hashes and counts what is read through it.
pub(crate) struct HashingReader<R> {
    inner: R,
    hasher: Sha256,
    bytes: u64,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hasher: Sha256::new(), bytes: 0 }
    }

    pub(crate) fn count(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::from_hasher(self.hasher.clone())
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hasher.update(&buf[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_form_parses() {
        let good = Digest::of(b"x");
        assert_eq!(good.as_str().parse::<Digest>().unwrap(), good);
        let upper = good.as_str().to_uppercase();
        for bad in ["", "sha256:", "sha256:../../etc/passwd", &upper, &good.as_str()[..70], "sha512:00"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn serde_refuses_what_parse_refuses() {
        assert!(serde_json::from_str::<Digest>("\"sha256:..\"").is_err());
    }
}
