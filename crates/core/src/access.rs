//! Access: lets a client without an API key reach a port or a file of a sandbox.
//!
//! An access names its target. It ends at its time, or when it is taken back, or with the sandbox. It is either shown
//! as a token, or *public*: then a port needs no credential at all until the access ends.
//!
//! The names under which ports are reached from outside are here too: `<port>-<sandbox>.<domain>`. A port
//! is decimal and an id or name of a sandbox begins with a letter, so the first hyphen separates them. One
//! label, so that one wildcard record and one wildcard certificate serve all; lower case, since DNS and
//! browsers do not keep the case.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::{ACCESS_NAME_MAX_BYTES, DURATION_MAX_MS};
use crate::spec;

/// Longest label of a DNS name, bytes.
const LABEL_MAX_BYTES: usize = 63;
/// Longest media type, bytes.
const MEDIA_TYPE_MAX_BYTES: usize = 128;

/// The target of an access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// One TCP port.
    Port(u16),
    /// Every TCP port.
    Ports,
    /// The bytes of one file, to read.
    File {
        /// Absolute path in the sandbox.
        path: String,
        /// Media type to answer with, instead of bytes of no known kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        media_type: Option<String>,
        /// Let a browser show it rather than save it.
        #[serde(default)]
        inline: bool,
    },
}

impl Target {
    /// Whether it is to this port.
    #[must_use]
    pub fn covers_port(&self, port: u16) -> bool {
        match self {
            Self::Port(own) => *own == port,
            Self::Ports => true,
            Self::File { .. } => false,
        }
    }

    fn validate(&self) -> Result<()> {
        match self {
            Self::Port(0) => Err(Error::invalid("port", "must lie between 1 and 65535")),
            Self::Port(_) | Self::Ports => Ok(()),
            Self::File { path, media_type, inline: _ } => {
                spec::path("file.path", path)?;
                let ok = |text: &String| {
                    text.len() <= MEDIA_TYPE_MAX_BYTES
                        && text.contains('/')
                        && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
                };
                if media_type.as_ref().is_some_and(|text| !ok(text)) {
                    return Err(Error::invalid("file.media_type", "not a media type")
                        .hint("write one such as text/plain"));
                }
                Ok(())
            }
        }
    }
}

/// An access as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDraft {
    /// The target.
    pub target: Target,
    /// For every client: no token. Ports only.
    pub public: bool,
    /// Its purpose, in words for people.
    pub name: Option<String>,
    /// It ends this long from now; with the sandbox when absent.
    pub ttl_ms: Option<u64>,
}

impl AccessDraft {
    /// Checks everything.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] or [`crate::Code::PathInvalid`] naming the field.
    pub fn validate(&self) -> Result<()> {
        self.target.validate()?;
        if self.public && matches!(self.target, Target::File { .. }) {
            return Err(
                Error::invalid("public", "a file cannot be public").hint("make an access with a token")
            );
        }
        if let Some(name) = &self.name {
            label("name", name)?;
        }
        match self.ttl_ms {
            Some(ms) if !(1..=DURATION_MAX_MS).contains(&ms) => {
                Err(Error::invalid("ttl_ms", "must lie between 1 millisecond and one year"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the label that people give an access or an SSH key.
///
/// # Errors
/// [`crate::Code::InvalidArgument`] naming `field`.
pub fn label(field: &str, text: &str) -> Result<()> {
    if text.is_empty() || text.len() > ACCESS_NAME_MAX_BYTES || text.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must have 1 to 128 bytes without control characters"));
    }
    Ok(())
}

/// The host name of a port below `domain`. `None` when the sandbox's name is too long to be a part of a
/// DNS label; its id never is.
#[must_use]
pub fn host_name(sandbox: &str, port: u16, domain: &str) -> Option<String> {
    let label = format!("{port}-{sandbox}");
    (label.len() <= LABEL_MAX_BYTES).then(|| format!("{label}.{domain}"))
}

/// The port and the sandbox (id or name) that a host name means, if it is one for a port below `domain`.
/// `host` may have a port of its own and a final dot.
#[must_use]
pub fn parse_host_name(host: &str, domain: &str) -> Option<(u16, String)> {
    let label = below_domain(host, domain)?;
    if label.len() > LABEL_MAX_BYTES || label.contains('.') {
        return None;
    }
    let (port, sandbox) = label.split_once('-')?;
    Some((parse_port(port)?, sandbox.to_ascii_lowercase()))
}

/// The part before `domain` in a host name: `a.b` of `a.b.example.com:4600`. `None` when the host name is not below
/// `domain`. `host` may have a port of its own and a final dot.
#[must_use]
pub fn below_domain<'a>(host: &'a str, domain: &str) -> Option<&'a str> {
    let name = match host.rsplit_once(':') {
        Some((name, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let split = name.len().checked_sub(domain.len() + 1)?;
    let (label, rest) = (name.get(..split)?, name.get(split..)?);
    let below = rest.strip_prefix('.').is_some_and(|rest| rest.eq_ignore_ascii_case(domain));
    (below && !label.is_empty()).then_some(label)
}

/// A port in plain decimal, as it stands in host names and paths.
#[must_use]
pub fn parse_port(text: &str) -> Option<u16> {
    let plain =
        (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn host_names_round_trip(port in 1_u16.., name in "[a-z]([a-z0-9-]{0,30}[a-z0-9])?") {
            let host = host_name(&name, port, "boxes.example.com").unwrap();
            let want = Some((port, name));
            prop_assert_eq!(parse_host_name(&host, "boxes.example.com"), want.clone());
            prop_assert_eq!(parse_host_name(&host.to_uppercase(), "boxes.example.com"), want.clone());
            prop_assert_eq!(parse_host_name(&format!("{host}.:4600"), "boxes.example.com"), want);
        }

        #[test]
        fn any_text_is_survived(host in "\\PC{0,80}") {
            if let Some((port, sandbox)) = parse_host_name(&host, "localhost") {
                prop_assert!(port > 0 && !sandbox.contains('.'));
            }
        }
    }

    #[test]
    fn only_names_of_ports_are_taken() {
        let parse = |host: &str| parse_host_name(host, "localhost");
        assert_eq!(parse("3000-web.localhost:4600"), Some((3000, "web".to_owned())));
        assert_eq!(parse("3000-a-b.localhost"), Some((3000, "a-b".to_owned())));
        for other in [
            "localhost",
            "localhost:4600",
            "web.localhost",
            "3000.localhost",
            "0-web.localhost",
            "03000-web.localhost",
            "70000-web.localhost",
            "a.3000-web.localhost",
            "3000-web.example.com",
            "3000-weblocalhost",
            "",
            "-web.localhost",
            "+80-web.localhost",
            "[::1]:4600",
            "127.0.0.1",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(host_name(&"a".repeat(58), 80, "d"), Some(format!("80-{}.d", "a".repeat(58))));
        assert_eq!(host_name(&"a".repeat(61), 80, "d"), None);
    }

    #[test]
    fn drafts_are_checked() {
        let draft = |target| AccessDraft { target, public: false, name: None, ttl_ms: None };
        assert!(draft(Target::Port(80)).validate().is_ok());
        assert!(draft(Target::Port(0)).validate().is_err());
        let file = |path: &str, kind: Option<&str>| {
            draft(Target::File { path: path.to_owned(), media_type: kind.map(str::to_owned), inline: false })
        };
        assert!(file("/a", Some("text/plain; charset=utf-8")).validate().is_ok());
        assert!(file("a", None).validate().is_err());
        assert!(file("/a", Some("text\r\nx/y")).validate().is_err());
        assert!(AccessDraft { public: true, ..file("/a", None) }.validate().is_err());
        assert!(AccessDraft { ttl_ms: Some(0), ..draft(Target::Ports) }.validate().is_err());
        assert!(AccessDraft { name: Some("a\n".to_owned()), ..draft(Target::Ports) }.validate().is_err());
    }
}
