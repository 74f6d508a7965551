//! A string that never shows itself.

use serde::{Deserialize, Serialize};
use zeroize::Zeroize as _;

/// A secret value. `Debug` and `Display` print `****`; only [`Secret::reveal`] gives the text.
///
/// It deserialises from a plain string and, deliberately, serialises as `"****"`: a secret that
/// is written anywhere through serde is a bug, and this makes the bug harmless.
///
/// Its memory is overwritten when it goes. What was copied out of it is not: see [`Secret::reveal`].
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself. Each call site is a place to review.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("****")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn never_prints() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?}"), "**** ****");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"****\"");
        assert_eq!(secret.reveal(), "hunter2");
    }
}
