//! AWS Signature Version 4, as a server checks it: <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

use crate::mac::{hmac, same};

/// The method.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Header with the hash of the body, or the note that the body is not signed.
pub(super) const CONTENT_HEADER: &str = "x-amz-content-sha256";
const DATE_HEADER: &str = "x-amz-date";
/// The hash of an empty text.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// Most headers that may be signed, and most bytes of an `Authorization`.
const HEADERS_MAX: usize = 64;
const SHOWN_MAX_BYTES: usize = 4096;
/// All other characters are written as `%XX`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The parts of an `Authorization`.
struct Shown<'a> {
    /// `DATE/REGION/SERVICE/aws4_request`.
    scope: &'a str,
    signed: Vec<&'a str>,
    signature: &'a str,
}

impl<'a> Shown<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(ALGORITHM)?;
        let (mut credential, mut signed, mut signature) = (None, None, None);
        for part in rest.split(',') {
            match part.trim().split_once('=')? {
                ("Credential", value) => credential = Some(value),
                ("SignedHeaders", value) => signed = Some(value),
                ("Signature", value) => signature = Some(value),
                _ => return None,
            }
        }
        let signed: Vec<&str> = signed?.split(';').take(HEADERS_MAX + 1).collect();
        // Anyone could have changed the parts of a request that the signature does not cover.
        let covers = ["host", CONTENT_HEADER, DATE_HEADER].iter().all(|name| signed.contains(name));
        let (_, scope) = credential?.split_once('/')?;
        (covers && signed.len() <= HEADERS_MAX).then_some(Self { scope, signed, signature: signature? })
    }

    /// The signing key that is derived for the scope.
    fn key(&self, secret: &str) -> Option<[u8; 32]> {
        let mut parts = self.scope.split('/');
        let first = hmac(format!("AWS4{secret}").as_bytes(), parts.next()?.as_bytes());
        Some(parts.fold(first, |key, part| hmac(&key, part.as_bytes())))
    }
}

/// The state with which a signed request signs its body's chunks, one after the other. It holds a key, and is not
/// printed.
pub(super) struct Chain {
    key: [u8; 32],
    /// `DATE\nSCOPE`.
    head: String,
    /// The signature of the request, or of the chunk before.
    last: String,
}

impl Chain {
    /// Whether this is the next chunk, by its hash and signature.
    pub(super) fn is_next(&mut self, hash: &str, signature: &str) -> bool {
        let Self { key, head, last } = self;
        let text = format!("{ALGORITHM}-PAYLOAD\n{head}\n{last}\n{EMPTY}\n{hash}");
        let made = hex::encode(hmac(key, text.as_bytes()));
        let is = same(&made, signature);
        *last = made;
        is
    }
}

/// Checks that a request was signed with this secret. Gives the chain for its body's chunks; `None` if it was not
/// signed so.
pub(super) fn signed(parts: &Parts, secret: &str) -> Option<Chain> {
    let text = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let shown = Shown::parse(text).filter(|_| text.len() <= SHOWN_MAX_BYTES)?;
    let request = canonical(parts, &shown.signed)?;
    let date = parts.headers.get(DATE_HEADER)?.to_str().ok()?;
    let hash = hex::encode(Sha256::digest(request));
    let (head, key) = (format!("{date}\n{}", shown.scope), shown.key(secret)?);
    let last = hex::encode(hmac(&key, format!("{ALGORITHM}\n{head}\n{hash}").as_bytes()));
    same(&last, shown.signature).then_some(Chain { key, head, last })
}

/// The request in the one form in which it is signed. `None` when a header is missing that must be signed.
fn canonical(parts: &Parts, signed: &[&str]) -> Option<String> {
    let content = parts.headers.get(CONTENT_HEADER)?.to_str().ok()?;
    let query = canonical_query(parts.uri.query().unwrap_or_default());
    // The path as the client wrote it: the server has cut off the dialect's prefix.
    let path = format!("{}{}", crate::PREFIX, parts.uri.path());
    let mut text = format!("{}\n{path}\n{query}\n", parts.method);
    for name in signed {
        writeln!(text, "{name}:{}", value_of(&parts.headers, parts.uri.host(), name)?).ok()?;
    }
    write!(text, "\n{}\n{content}", signed.join(";")).ok()?;
    Some(text)
}

/// All values of a header, without needless spaces.
fn value_of(headers: &HeaderMap, authority: Option<&str>, name: &str) -> Option<String> {
    let values: Option<Vec<String>> = headers
        .get_all(name)
        .iter()
        .map(|value| Some(value.to_str().ok()?.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    let values = values?;
    match values.is_empty() {
        false => Some(values.join(",")),
        // In HTTP/2 the host is not a header.
        true if name == HOST.as_str() => authority.map(str::to_owned),
        true => None,
    }
}

/// Parameters sorted and encoded in one way.
fn canonical_query(query: &str) -> String {
    let encode = |text: &str| {
        let plain: Vec<u8> = percent_decode_str(text).collect();
        utf8_percent_encode(&String::from_utf8_lossy(&plain), ENCODED).to_string()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<(String, String)> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encode(name), encode(value)))
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    fn is_signed(parts: &Parts, secret: &str) -> bool {
        super::signed(parts, secret).is_some()
    }

    fn signed(path: &str, secret: &str) -> Parts {
        let signed = "host;x-amz-content-sha256;x-amz-date";
        let request = |signature: &str| {
            let shown = format!(
                "{ALGORITHM} Credential=AK/20130524/us-east-1/s3/aws4_request, SignedHeaders={signed}, \
                 Signature={signature}"
            );
            Request::get(path)
                .header(HOST, "examplebucket.s3.amazonaws.com")
                .header(CONTENT_HEADER, EMPTY)
                .header(DATE_HEADER, "20130524T000000Z")
                .header(AUTHORIZATION, shown)
                .body(())
                .unwrap()
                .into_parts()
                .0
        };
        let unsigned = request("");
        let text = unsigned.headers[AUTHORIZATION].to_str().unwrap().to_owned();
        let shown = Shown::parse(&text).unwrap();
        let hash = hex::encode(Sha256::digest(canonical(&unsigned, &shown.signed).unwrap()));
        let text = format!("{ALGORITHM}\n20130524T000000Z\n{}\n{hash}", shown.scope);
        request(&hex::encode(hmac(&shown.key(secret).unwrap(), text.as_bytes())))
    }

    /// The example of the documentation above, "GET Bucket (List Objects)", by its string to sign: the path there is
    /// `/`, which no request has here.
    #[test]
    fn as_the_documentation_has_it() {
        let shown = Shown { scope: "20130524/us-east-1/s3/aws4_request", signed: Vec::new(), signature: "" };
        let text = "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n\
                    df57d21db20da04d7fa30298dd4488ba3a2b47ca3a489c74750e0f1e7df1b9b7";
        let signature = hex::encode(hmac(&shown.key(SECRET).unwrap(), text.as_bytes()));
        assert_eq!(signature, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
        assert_eq!(canonical_query("prefix=J&max-keys=2"), "max-keys=2&prefix=J");
        assert_eq!(canonical_query("uploads&prefix=a%2Fb+c~"), "prefix=a%2Fb%2Bc~&uploads=");
    }

    #[test]
    fn everything_that_counts_is_signed() {
        let good = || signed("/storage/contexts?prefix=a%2f&max-keys=1", SECRET);
        assert!(is_signed(&good(), SECRET));
        assert!(!is_signed(&good(), "another"));
        let changed: [fn(&mut Parts); 6] = [
            |parts| parts.uri = "/storage/contexts?prefix=b%2f&max-keys=1".parse().unwrap(),
            |parts| parts.uri = "/storage/other?prefix=a%2f&max-keys=1".parse().unwrap(),
            |parts| parts.method = http::Method::PUT,
            |parts| drop(parts.headers.insert(HOST, "elsewhere".parse().unwrap())),
            |parts| drop(parts.headers.insert(CONTENT_HEADER, "UNSIGNED-PAYLOAD".parse().unwrap())),
            |parts| drop(parts.headers.remove(DATE_HEADER)),
        ];
        for change in changed {
            let mut parts = good();
            change(&mut parts);
            assert!(!is_signed(&parts, SECRET));
        }
    }

    #[test]
    fn malformed_ones_are_refused() {
        let all = "SignedHeaders=host;x-amz-content-sha256;x-amz-date";
        for bad in [
            "",
            "Bearer x",
            "AWS4-HMAC-SHA256",
            "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c",
            &format!("AWS4-HMAC-SHA256 Credential=a, {all}, Signature=c"),
            &format!("AWS4-HMAC-SHA256 Credential=a/b, {all}"),
            &format!("AWS4-HMAC-SHA256 Credential=a/b, {all}, Signature=c, more=d"),
        ] {
            assert!(Shown::parse(bad).is_none(), "{bad}");
        }
    }
}
