//! One rule: the traffic that it speaks of, and whether it allows or denies it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::domain::DomainPattern;
use super::origin::Origin;
use super::path::PathPattern;
use crate::error::{Error, Result, shorten};
use crate::limits::{EGRESS_RULE_NAME_MAX_BYTES, EGRESS_RULE_PORTS_MAX_COUNT};

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Action {
    /// Let it pass.
    Allow,
    /// Refuse it.
    Deny,
}

impl Action {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// A range of addresses: `10.0.0.0/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl Cidr {
    /// The network.
    #[must_use]
    pub fn net(&self) -> IpNet {
        self.0
    }

    /// Whether it has every address of its family.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.prefix_len() == 0
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let net = text.parse::<IpNet>().or_else(|_no_net| text.parse::<IpAddr>().map(IpNet::from));
        let net = net.map_err(|_no_address| {
            Error::invalid("cidr", format_args!("'{}' is no range of addresses", shorten(text)))
                .hint("write 10.0.0.0/8, 2001:db8::/32, or one address")
        })?;
        Ok(Self(net.trunc()))
    }
}

impl TryFrom<String> for Cidr {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            write!(f, "{}", self.0.addr())
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// One port, or `from-to`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "PortText", into = "PortText")]
pub struct PortRange {
    from: u16,
    to: u16,
}

/// Ports on the wire: a number, or a text with a range.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum PortText {
    One(u16),
    Text(String),
}

impl PortRange {
    /// One port.
    #[must_use]
    pub const fn one(port: u16) -> Self {
        Self { from: port, to: port }
    }

    /// Whether a port lies in it.
    #[must_use]
    pub const fn contains(&self, port: u16) -> bool {
        self.from <= port && port <= self.to
    }
}

impl FromStr for PortRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        match (from.parse(), to.parse()) {
            (Ok(from), Ok(to)) if 1 <= from && from <= to => Ok(Self { from, to }),
            _ => {
                Err(Error::invalid("ports", format_args!("'{}' is no port or range of ports", shorten(text)))
                    .hint("write 443, or 8000-8999"))
            }
        }
    }
}

impl TryFrom<PortText> for PortRange {
    type Error = Error;

    fn try_from(text: PortText) -> Result<Self> {
        match text {
            PortText::One(port) => port.to_string().parse(),
            PortText::Text(text) => text.parse(),
        }
    }
}

impl From<PortRange> for PortText {
    fn from(range: PortRange) -> Self {
        if range.from == range.to { Self::One(range.from) } else { Self::Text(range.to_string()) }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == self.to { write!(f, "{}", self.from) } else { write!(f, "{}-{}", self.from, self.to) }
    }
}

/// One rule. What is absent is not looked at; all that is present must match.
///
/// `methods` and `path` speak of HTTP requests. For HTTPS they hold where the gateway opens TLS;
/// where it does not, a rule that allows does not match and one that denies does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Rule {
    /// What it says.
    pub action: Action,
    /// A name for it, shown in refusals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names: `example.com`, `*.example.com` (everything below it), `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub domain: Option<DomainPattern>,
    /// Addresses: `192.0.2.0/24`, or one address. Private ones are reached only through such a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub cidr: Option<Cidr>,
    /// Ports: numbers, or texts such as `8000-8999`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub ports: Vec<PortRange>,
    /// Methods of HTTP, in capitals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Paths of HTTP; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub path: Option<PathPattern>,
    /// Only connections that this program made; of rules that allow. Needs a sandbox whose programs the host's kernel sees (containers).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Origin>,
}

impl Rule {
    /// A rule about everything.
    #[must_use]
    pub const fn any(action: Action) -> Self {
        Self {
            action,
            name: None,
            domain: None,
            cidr: None,
            ports: Vec::new(),
            methods: Vec::new(),
            path: None,
            from: None,
        }
    }

    /// A rule about names.
    #[must_use]
    pub fn domain(action: Action, domain: DomainPattern) -> Self {
        Self { domain: Some(domain), ..Self::any(action) }
    }

    /// A rule about addresses.
    #[must_use]
    pub fn cidr(action: Action, cidr: Cidr) -> Self {
        Self { cidr: Some(cidr), ..Self::any(action) }
    }

    /// Reads the short form of the command line: `DOMAIN[:PORT[-PORT]]`.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`].
    pub fn parse_domain(action: Action, text: &str) -> Result<Self> {
        let (domain, ports) = split_ports(text)?;
        Ok(Self { ports, ..Self::domain(action, domain.parse()?) })
    }

    /// Reads the short form of the command line: `ADDRESS[/BITS][:PORT[-PORT]]`; an IPv6 address with
    /// a port stands in brackets.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`].
    pub fn parse_cidr(action: Action, text: &str) -> Result<Self> {
        let (cidr, ports) = match text.strip_prefix('[') {
            Some(rest) => {
                let (cidr, port) = rest
                    .split_once(']')
                    .ok_or_else(|| Error::invalid("cidr", format_args!("'{}' lacks a ']'", shorten(text))))?;
                let port = port.strip_prefix(':').map(str::parse).transpose()?;
                (cidr, port.into_iter().collect())
            }
            None if text.matches(':').count() > 1 => (text, Vec::new()),
            None => split_ports(text)?,
        };
        Ok(Self { ports, ..Self::cidr(action, cidr.parse()?) })
    }

    /// Whether it speaks of HTTP requests.
    #[must_use]
    pub fn is_http(&self) -> bool {
        !self.methods.is_empty() || self.path.is_some()
    }

    pub(super) fn validate(&self, field: &str) -> Result<()> {
        let at = |name: &str| format!("{field}.{name}");
        if let Some(name) = &self.name
            && (name.is_empty()
                || name.len() > EGRESS_RULE_NAME_MAX_BYTES
                || name.chars().any(|c| c.is_control() || c == '"'))
        {
            return Err(Error::invalid(
                &at("name"),
                "must have 1 to 128 bytes, no control characters or '\"'",
            ));
        }
        if let Some(from) = &self.from {
            from.validate(&at("from"))?;
            if self.action == Action::Deny {
                let why = "is of rules that allow: a program that is denied could be copied, and the copy is another";
                return Err(Error::invalid(&at("from"), why)
                    .hint("allow those that may, and nobody else (internet: rules)"));
            }
        }
        if self.ports.len() > EGRESS_RULE_PORTS_MAX_COUNT {
            return Err(Error::invalid(
                &at("ports"),
                format_args!("more than {EGRESS_RULE_PORTS_MAX_COUNT} ranges"),
            ));
        }
        let method = |m: &String| (1..=32).contains(&m.len()) && m.bytes().all(|b| b.is_ascii_uppercase());
        if self.methods.len() > EGRESS_RULE_PORTS_MAX_COUNT || !self.methods.iter().all(method) {
            return Err(Error::invalid(&at("methods"), "not a list of methods in capital letters"));
        }
        Ok(())
    }
}

fn split_ports(text: &str) -> Result<(&str, Vec<PortRange>)> {
    match text.rsplit_once(':') {
        Some((rest, port)) => Ok((rest, vec![port.parse()?])),
        None => Ok((text, Vec::new())),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "\"{name}\": ")?;
        }
        f.write_str(self.action.as_str())?;
        for method in &self.methods {
            write!(f, " {method}")?;
        }
        match (&self.domain, &self.cidr) {
            (None, None) => f.write_str(" everything")?,
            (Some(domain), None) => write!(f, " {domain}")?,
            (None, Some(cidr)) => write!(f, " {cidr}")?,
            (Some(domain), Some(cidr)) => write!(f, " {domain} at {cidr}")?,
        }
        for (index, ports) in self.ports.iter().enumerate() {
            write!(f, "{}{ports}", if index == 0 { ":" } else { "," })?;
        }
        if let Some(path) = &self.path {
            write!(f, " {path}")?;
        }
        if let Some(from) = &self.from {
            write!(f, " from {from}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms() {
        let rule = Rule::parse_domain(Action::Allow, "*.example.com:443").unwrap();
        assert_eq!(rule.to_string(), "allow *.example.com:443");
        let rule = Rule::parse_cidr(Action::Deny, "10.1.2.3/8:80-90").unwrap();
        assert_eq!(rule.to_string(), "deny 10.0.0.0/8:80-90");
        let rule = Rule::parse_cidr(Action::Allow, "[2001:db8::1]:22").unwrap();
        assert_eq!(rule.to_string(), "allow 2001:db8::1:22");
        assert_eq!(Rule::parse_cidr(Action::Allow, "2001:db8::/32").unwrap().ports, []);
        for bad in ["a.de:0", "a.de:x", "a.de:9-8", "a.de:65536", "1.2.3.4"] {
            assert!(Rule::parse_domain(Action::Allow, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_wire_form_is_strict() {
        let parse = |text: &str| serde_json::from_str::<Rule>(text);
        let rule =
            parse(r#"{"action":"allow","domain":"A.de","ports":[443,"8000-8999"],"path":"/v1/*"}"#).unwrap();
        let text = serde_json::to_string(&rule).unwrap();
        assert_eq!(text, r#"{"action":"allow","domain":"a.de","ports":[443,"8000-8999"],"path":"/v1/*"}"#);
        assert_eq!(parse(&text).unwrap(), rule);
        for bad in [r#"{"domain":"a.de"}"#, r#"{"action":"maybe"}"#, r#"{"action":"allow","hots":"a.de"}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
