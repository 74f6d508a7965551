//! A list of certificate authorities as Java reads it: a key store of the kind `JKS`, which every version of Java
//! recognizes under any file name.
//!
//! ```text
//! magic, version 2, count of entries
//! each: 2 (a certificate), alias, time, "X.509", DER with its length
//! SHA-1 of the password in UTF-16, the words "Mighty Aphrodite", and all of the above
//! ```
//!
//! Texts and certificates have their length in front; everything is in the network's byte order. Java looks at the
//! digest only where a program gives a password.

use sha1::{Digest as _, Sha1};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const CERTIFICATE: u32 = 2;
/// The usual password of a store that holds no secret.
const PASSWORD: &str = "changeit";
const WHITENER: &[u8] = b"Mighty Aphrodite";
/// Entries of a store; lists of distributions have about 150.
const ENTRIES_MAX_COUNT: usize = 4096;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The store with every certificate of a list in PEM. A certificate that cannot be read is left out.
pub(super) fn store(pem: &str) -> Vec<u8> {
    let certificates: Vec<Vec<u8>> = pem
        .split(BEGIN)
        .skip(1)
        .filter_map(|rest| decode(rest.split(END).next()?))
        .take(ENTRIES_MAX_COUNT)
        .collect();
    let mut out = Vec::new();
    number(&mut out, MAGIC);
    number(&mut out, VERSION);
    number(&mut out, length(certificates.len()));
    for (index, certificate) in certificates.iter().enumerate() {
        number(&mut out, CERTIFICATE);
        text(&mut out, &format!("atoll-{index}"));
        // When it was added, in milliseconds since 1970: Java does not use it.
        out.extend(0_u64.to_be_bytes());
        text(&mut out, "X.509");
        number(&mut out, length(certificate.len()));
        out.extend(certificate);
    }
    let mut digest = Sha1::new();
    for unit in PASSWORD.encode_utf16() {
        digest.update(unit.to_be_bytes());
    }
    digest.update(WHITENER);
    digest.update(&out);
    out.extend(digest.finalize());
    out
}

fn number(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}

fn length(bytes: usize) -> u32 {
    // The list that it comes from has a few MiB at most.
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn text(out: &mut Vec<u8>, text: &str) {
    // Only short texts of our own come here.
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(text.bytes());
}

/// Base64 with line breaks; `None` when it is none.
fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            let [.., last] = (bits >> count).to_be_bytes();
            out.push(last);
        }
    }
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read() {
        for (text, bytes) in [("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v\nYmFy\n", "foobar")] {
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decode("Zm9v-YmFy"), None);
        assert_eq!(decode("\n"), None);
    }

    #[test]
    fn a_store_as_keytool_writes_it() {
        let pem = format!("# comment\n{BEGIN}\nZm9v\n{END}\n{BEGIN}\n!!\n{END}\n{BEGIN}\nYmFy\n{END}\n");
        let store = store(&pem);
        let entry = |alias: &[u8], certificate: &[u8]| {
            let rest = [&[0, 7][..], alias, &[0; 8], &[0, 5], b"X.509", &[0, 0, 0, 3], certificate].concat();
            [&[0, 0, 0, 2][..], &rest].concat()
        };
        let head = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2];
        let wanted = [&head[..], &entry(b"atoll-0", b"foo"), &entry(b"atoll-1", b"bar")].concat();
        assert_eq!(store[..wanted.len()], wanted);
        assert_eq!(store.len(), wanted.len() + 20);
    }
}
