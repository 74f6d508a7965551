//! Cache keys: each is the hash of the one before it and of what a step does.

use std::fmt;

/// Changes when the same step would give another result than before: then no old key fits any more.
const FORMAT: &[u8] = b"atoll build 1";

/// The identity of a file system at one point of a build.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of the image that a stage begins with: its digest, and the isolation level it is used in.
    #[must_use]
    pub fn base(image: &str, isolation: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        for bytes in [FORMAT, image.as_bytes(), isolation.as_bytes()] {
            part(&mut hasher, bytes);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The key of the file system after a step that starts from this one.
    #[must_use]
    pub fn then<'a>(&self, kind: &str, fields: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        part(&mut hasher, &self.0);
        part(&mut hasher, kind.as_bytes());
        for field in fields {
            part(&mut hasher, field);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// As lower-case hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// A part with its length, so that no two lists of parts run together to the same bytes.
fn part(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let base = Key::base("host", "container");
        assert_ne!(base.then("run", [&b"ab"[..], b"c"]), base.then("run", [&b"a"[..], b"bc"]));
        assert_ne!(base.then("run", [&b""[..]]), base.then("run", []));
        assert_eq!(base.then("run", [&b"a"[..]]), base.then("run", [&b"a"[..]]));
        assert_eq!(base.to_string().len(), 64);
    }
}
