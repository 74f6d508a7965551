//! Names of hosts, and patterns of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, shorten};

/// Longest name, bytes, without its final dot.
const HOST_NAME_MAX_BYTES: usize = 253;
/// Longest label of a name, bytes.
const LABEL_MAX_BYTES: usize = 63;

/// A DNS name: lower case, without final dot, made of letters, digits, hyphens and underscores.
///
/// A text that is an IP address is no name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bare = text.strip_suffix('.').unwrap_or(text);
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= LABEL_MAX_BYTES
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // A last label of digits alone is how the other notations of addresses look (127.1, 0x7f.1).
        let numeric = |label: &str| {
            let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
            label.bytes().all(|b| b.is_ascii_digit())
                || hex.is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let form = bare.len() <= HOST_NAME_MAX_BYTES && bare.split('.').all(label);
        if !form || bare.rsplit('.').next().is_none_or(numeric) {
            return Err(Error::invalid("host", format_args!("'{}' is not a host name", shorten(text))));
        }
        Ok(Self(bare.to_ascii_lowercase()))
    }
}

impl TryFrom<String> for HostName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names that a rule speaks of: `example.com` is itself alone, `*.example.com` everything below it (not
/// itself), `*` every name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DomainPattern {
    /// This name.
    Exact(HostName),
    /// Every name below this one, at any depth.
    Below(HostName),
    /// Every name.
    Any,
}

impl DomainPattern {
    /// Whether it covers a name.
    #[must_use]
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(own) => own == name,
            Self::Below(own) => {
                name.0.strip_suffix(own.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
        }
    }
}

impl FromStr for DomainPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = match text.strip_prefix('*') {
            Some("") => return Ok(Self::Any),
            Some(rest) => rest.strip_prefix('.').map(HostName::from_str).transpose()?.map(Self::Below),
            None => Some(Self::Exact(text.parse()?)),
        };
        parsed.ok_or_else(|| Error::invalid("domain", format_args!("'{}' is not a pattern", shorten(text))))
    }
}

impl TryFrom<String> for DomainPattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse().map_err(|_error: Error| {
            Error::invalid("domain", format_args!("'{}' is not a domain", shorten(&text)))
                .hint("write example.com, *.example.com or *; an address goes into 'cidr'")
        })
    }
}

impl From<DomainPattern> for String {
    fn from(pattern: DomainPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn names_at_their_edges() {
        assert_eq!(name("API.Example.com.").as_str(), "api.example.com");
        assert_eq!(name("_acme.x-1.de").as_str(), "_acme.x-1.de");
        assert!(format!("{}.de", "a".repeat(63)).parse::<HostName>().is_ok());
        let long = format!("{}.de", "a".repeat(64));
        let bad =
            ["", ".", "a..b", "-a.de", "a-.de", "a b", "ü.de", "1.2.3.4", "127.1", "0x7f.1", "1", "a.0x1"];
        for bad in bad.into_iter().chain([long.as_str()]) {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
        let label = "a".repeat(61);
        let fits = [label.as_str(); 4].join(".") + ".abcde";
        assert_eq!(fits.len(), HOST_NAME_MAX_BYTES);
        assert!(fits.parse::<HostName>().is_ok());
        assert!((fits + "f").parse::<HostName>().is_err());
    }

    #[test]
    fn patterns_cover_what_they_say() {
        let pattern = |text: &str| text.parse::<DomainPattern>().unwrap();
        assert!(pattern("Example.com").matches(&name("example.COM")));
        assert!(!pattern("example.com").matches(&name("a.example.com")));
        let below = pattern("*.example.com");
        assert!(below.matches(&name("a.example.com")) && below.matches(&name("a.b.example.com")));
        assert!(!below.matches(&name("example.com")) && !below.matches(&name("badexample.com")));
        assert!(pattern("*").matches(&name("x.y")));
        for bad in ["", "*.", "**.a.de", "a.*.de", "*a.de", "10.0.0.1", "http://a.de", "a.de:443"] {
            assert!(bad.parse::<DomainPattern>().is_err(), "{bad}");
        }
    }
}
