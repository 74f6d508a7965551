//! How texts are written in addresses, in JSON and elsewhere.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// Escapes everything that is not unreserved (RFC 3986), but for `:`, which is plain in paths and queries.
pub(super) fn percent_encoded(text: &str) -> String {
    percent(text, b"-._~:", b"0123456789ABCDEF")
}

/// Escapes everything but letters, digits and `plain`.
fn percent(text: &str, plain: &[u8], digits: &[u8; 16]) -> String {
    // As long as it can get: a text that grows leaves copies of itself behind.
    let mut out = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(digits[usize::from(byte >> 4)]));
            out.push(char::from(digits[usize::from(byte & 15)]));
        }
    }
    out
}

/// Shortest piece of base64 that is looked for: shorter ones stand in any text by chance.
const BASE64_MIN_CHARS: usize = 6;

/// Every form in which a server may show a text that it got: as it is, in addresses, in JSON, in HTML, in base64
/// wherever in a longer text it begins (as a password does in `Basic` credentials).
pub(super) fn shown_forms(text: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let mut forms = vec![text.to_owned()];
    for digits in [b"0123456789ABCDEF", b"0123456789abcdef"] {
        // RFC 3986 strictly, with a colon, as JavaScript's encodeURIComponent, as encodeURI, as a path.
        for plain in [&b"-._~"[..], b"-._~:", b"-._~!*'()", b"-._~!*'();,/?:@&=+$#", b"-._~!$&'()*+,;=:@/"] {
            forms.push(percent(text, plain, digits));
        }
        // Forms.
        forms.push(percent(text, b"-._* ", digits).replace(' ', "+"));
    }
    let json = json_escaped(text);
    // Some writers of JSON escape slashes as well, some what HTML reads.
    forms.push(json.replace('/', "\\/"));
    forms.push(
        json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e").replace('\'', "\\u0027"),
    );
    forms.push(json);
    for (quote, apostrophe) in
        [("&quot;", "&#39;"), ("&#34;", "&#39;"), ("&quot;", "&#x27;"), ("&quot;", "&apos;"), ("\"", "'")]
    {
        let html = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        forms.push(html.replace('"', quote).replace('\'', apostrophe));
    }
    forms.extend(base64_forms(text.as_bytes()));
    forms.sort_unstable();
    forms.dedup();
    forms.into_iter().map(|form| Zeroizing::new(form.into_bytes())).collect()
}

/// The part of a text's base64 that is certain, for each of the three positions at which the text may begin, in both
/// alphabets.
fn base64_forms(text: &[u8]) -> Vec<String> {
    let mut forms = vec![base64::engine::general_purpose::STANDARD.encode(text)];
    for begin in 0..3_usize {
        let padded = Zeroizing::new([&[0; 3][..begin], text].concat());
        // Characters that also hold bits of the bytes before or behind the text are not certain.
        let (first, last) = ((begin * 8).div_ceil(6), padded.len() * 8 / 6);
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let encoded = Zeroizing::new(engine.encode(&*padded));
            let certain = encoded.get(first..last).unwrap_or_default();
            if certain.len() >= BASE64_MIN_CHARS {
                forms.push(certain.to_owned());
            }
        }
    }
    forms
}

/// The bytes that escapes stand for; other characters stay as they are.
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

    proptest! {
        #[test]
        fn base64_is_found_wherever_it_begins(before in "[a-z:]{0,7}", text in "[ -~]{8,40}", after in "[a-z]{0,7}") {
            let whole = format!("{before}{text}{after}");
            for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                let encoded = engine.encode(&whole);
                let found = base64_forms(text.as_bytes()).into_iter().any(|form| encoded.contains(&form));
                prop_assert!(found, "{} in {}", text, encoded);
            }
        }
    }

    #[test]
    fn forms_that_servers_use() {
        let forms: Vec<String> = shown_forms("a/b+c<\"d&'e f")
            .into_iter()
            .map(|form| String::from_utf8(form.to_vec()).unwrap())
            .collect();
        for want in [
            "a/b+c<\"d&'e f",
            "a%2Fb%2Bc%3C%22d%26%27e%20f",
            "a%2fb%2bc%3c%22d%26%27e%20f",
            "a/b+c%3C%22d&'e%20f",
            "a%2Fb%2Bc%3C%22d%26'e%20f",
            "a%2Fb%2Bc%3C%22d%26%27e+f",
            "a\\/b+c<\\\"d&'e f",
            "a/b+c\\u003c\\\"d\\u0026\\u0027e f",
            "a/b+c&lt;&quot;d&amp;&#39;e f",
            "a/b+c&lt;&#34;d&amp;&#39;e f",
            "a/b+c&lt;&quot;d&amp;&#x27;e f",
        ] {
            assert!(forms.iter().any(|form| form == want), "{want}: {forms:#?}");
        }
    }

    #[test]
    fn odd_escapes_are_themselves() {
        assert_eq!(percent_decoded("a%zz%4"), b"a%zz%4");
        assert_eq!(percent_encoded("a b/ü"), "a%20b%2F%C3%BC");
        assert_eq!(json_escaped("a\"b\\"), "a\\\"b\\\\");
    }
}
