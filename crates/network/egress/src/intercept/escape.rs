//! How texts are written in addresses and in JSON.

/// Escapes everything that is not unreserved (RFC 3986), but for `:`, which is plain in paths and queries.
pub(super) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    out
}

/// The bytes that escapes stand for; what is no escape is itself.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == b'%')
            .then(|| after.first_chunk::<2>())
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

/// The inside of a JSON string.
pub(super) fn json_escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    // A JSON string has a quote at both ends.
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_escaped_comes_back(text in "\\PC{0,40}") {
            prop_assert_eq!(percent_decoded(&percent_encoded(&text)), text.as_bytes());
            let json: String = serde_json::from_str(&format!("\"{}\"", json_escaped(&text))).unwrap();
            prop_assert_eq!(json, text);
        }
    }

    #[test]
    fn odd_escapes_are_themselves() {
        assert_eq!(percent_decoded("a%zz%4"), b"a%zz%4");
        assert_eq!(percent_encoded("a b/ü"), "a%20b%2F%C3%BC");
        assert_eq!(json_escaped("a\"b\\"), "a\\\"b\\\\");
    }
}
