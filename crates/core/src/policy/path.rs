//! Paths of HTTP requests, and patterns of them.
//!
//! Servers read a path in their own ways: they decode escapes, look at letters without their case, cut parameters off.
//! A rule that allows therefore matches only paths that are written as it says; a rule that denies matches in every
//! reading.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, shorten};
use crate::limits::EGRESS_RULE_PATH_MAX_BYTES;

/// Paths of HTTP requests: text in which `*` stands for any run of characters, slashes included.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathPattern(String);

impl PathPattern {
    /// Whether it covers a path (without its query) that is written so.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        covers(&self.0, path)
    }
}

/// Whether a pattern covers a path.
fn covers(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| path.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether some server may read a path so that a pattern matches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    No,
    /// It has parts that servers read differently.
    Unclear,
    Yes,
}

/// How [`PathPattern`] and a path may fit together in the eyes of a server: escapes of plain characters are those
/// characters, letters have no case. Escapes that are left, and parameters (`;`), can be anything.
pub(super) fn could_match(pattern: &PathPattern, path: &str) -> Reading {
    let (pattern, (path, clear)) = (plain(&pattern.0).0, plain(path));
    if covers(&pattern, &path) {
        return Reading::Yes;
    }
    if clear { Reading::No } else { Reading::Unclear }
}

/// A path with its escapes of printable ASCII characters decoded, in lower case; and whether that is all there is to
/// be said about it.
fn plain(path: &str) -> (String, bool) {
    let mut text = String::with_capacity(path.len());
    let mut clear = true;
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 3).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|byte| (b' '..=b'~').contains(byte)) {
            Some(byte) => {
                text.push(char::from(byte));
                rest = &rest[at + 3..];
            }
            None => {
                clear = false;
                text.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    text.push_str(rest);
    let clear = clear && text.is_ascii() && !text.contains(';');
    (text.to_ascii_lowercase(), clear)
}

/// Whether a path means the same to every server: no dot segments, no encoded or doubled separators. A
/// path that does not is matched by no rule that allows and by every rule that denies.
#[must_use]
pub(super) fn is_unambiguous(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let tricks = ["//", "\\", "%2f", "%5c", "%2e", "%00", "%25"];
    path.starts_with('/')
        && !tricks.iter().any(|trick| lower.contains(trick))
        && !path.split('/').any(|segment| {
            let bare = segment.split(';').next().unwrap_or(segment);
            bare == "." || bare == ".."
        })
}

impl FromStr for PathPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = text.starts_with('/') && text.len() <= EGRESS_RULE_PATH_MAX_BYTES;
        let printable = text.bytes().all(|b| b.is_ascii_graphic() && b != b'?' && b != b'#');
        if form && printable && is_unambiguous(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid("path", format_args!("'{}' is no pattern of paths", shorten(text)))
            .hint("begin with '/'; '*' stands for any characters; no query, no dot segments"))
    }
}

impl TryFrom<String> for PathPattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<PathPattern> for String {
    fn from(pattern: PathPattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_patterns() {
        let covers = |pattern: &str, path: &str| pattern.parse::<PathPattern>().unwrap().matches(path);
        assert!(covers("/v1/*", "/v1/a/b") && covers("/v1/*", "/v1/") && !covers("/v1/*", "/v1"));
        assert!(covers("/v1", "/v1") && !covers("/v1", "/v1/x"));
        assert!(covers("/a/*/c", "/a/b/c") && !covers("/a/*/c", "/a/c"));
        assert!(covers("/*a*b", "/xaxab") && !covers("/*a*b", "/xb"));
        assert!(!covers("/aa*aa", "/aaa"), "parts may not overlap");
        for bad in ["", "v1", "/a?b", "/a/../b", "/a//b", "/%2e", "/ü"] {
            assert!(bad.parse::<PathPattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ambiguous_paths() {
        for plain in ["/", "/a/b", "/a%20b", "/a.b/..c", "/a;b=1"] {
            assert!(is_unambiguous(plain), "{plain}");
        }
        for bad in ["", "*", "/a/../b", "/a/..;/b", "/a/.", "/a%2Fb", "/a%252fb", "/a\\b", "//a", "/%2E%2e/"]
        {
            assert!(!is_unambiguous(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_denied_is_denied_in_every_reading() {
        let reading = |pattern: &str, path: &str| could_match(&pattern.parse().unwrap(), path);
        for path in ["/admin", "/ADMIN", "/%61dmin", "/%41DMIN", "/adm%69n"] {
            assert_eq!(reading("/admin", path), Reading::Yes, "{path}");
        }
        for path in [
            "/;/admin",
            "/;a=b/admin",
            "/admin;x",
            "/%3b/admin",
            "/%c1%a1dmin",
            "/adm%zzin",
            "/adm%",
            "/%0aadmin",
            "/\u{ff41}dmin",
        ] {
            assert_eq!(reading("/admin", path), Reading::Unclear, "{path}");
        }
        for path in ["/", "/v1/models", "/a%20b", "/admins", "/x/admin"] {
            assert_eq!(reading("/admin", path), Reading::No, "{path}");
        }
        assert_eq!(reading("/a%20b*", "/A b/c"), Reading::Yes);
    }
}
