//! Injection rules: what the gateway changes in a request on its way out.
//!
//! A rule says for which requests it is (host, port, method, path) and what happens to them: headers
//! set, added or removed, parameters, credentials, and placeholders replaced by secrets. The sandbox holds
//! placeholders at most. Whether a request is what it says to be (server name, `Host` and address agree)
//! is decided before any rule is asked.
//!
//! All rules that match apply, in their order; what an earlier rule has set stays.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::EgressPolicy;
use super::domain::{DomainPattern, HostName};
use super::header::{KEY_HEADERS, header_name};
use super::origin::{Origin, Sender};
use super::secret::{SecretRef, Template};
use crate::error::{Error, Result, shorten};
use crate::limits::{
    ENV_NAME_MAX_BYTES, INJECT_PARTS_MAX_COUNT, INJECT_RULES_MAX_COUNT, PLACEHOLDER_MAX_BYTES,
    PLACEHOLDER_MIN_BYTES,
};
use crate::secret::Secret;

/// Longest name of a rule, of a header or of a parameter, bytes.
pub(super) const NAME_MAX_BYTES: usize = 128;
/// Longest path prefix, bytes.
const PATH_MAX_BYTES: usize = 1024;
/// What a placeholder starts with when its rule does not say.
pub const PLACEHOLDER_PREFIX: &str = "atoll_secret_";
/// One rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InjectRule {
    /// Its name, unique among the sandbox's rules; shown in refusals and in the record of uses.
    pub name: String,
    /// For these hosts: names, or `*.example.com` for every name below.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub hosts: Vec<DomainPattern>,
    /// On these ports; 443 (and 80 for what may travel in the clear) when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// With these methods; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// With paths that are one of these or lie below it; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// On connections that this program made; any when absent. Needs a sandbox whose programs the host's kernel sees (containers).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Origin>,
    /// Headers to set, in place of what the request has. `{secret:NAME}` in a value stands for a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, String>))]
    pub headers: BTreeMap<String, Template>,
    /// Headers to add beside those that are there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, String>))]
    pub add_headers: BTreeMap<String, Template>,
    /// Headers to take out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove_headers: Vec<String>,
    /// Query parameters to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, String>))]
    pub query: BTreeMap<String, Template>,
    /// Sets `Authorization: Bearer …`, unless a placeholder of this rule was replaced in the request's head:
    /// then the client has put the credential where it belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub bearer: Option<Template>,
    /// Sets `Authorization: Basic …`, under the same condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<BasicAuth>,
    /// Placeholders that stand for secrets inside the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<Placeholder>,
    /// Variables for every command in the sandbox, as they are. The sandbox's own variables win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Replace this rule's secrets by asterisks wherever an answer shows them. In the headers of answers to requests
    /// that carried them that is always so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mask_responses: bool,
    /// Secrets may also be sent over plain HTTP, where everybody on the way can read them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_plaintext: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// User name and password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BasicAuth {
    /// User name.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub username: Template,
    /// Password.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub password: Template,
}

/// A text inside the sandbox that stands for a secret. It is worth nothing anywhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Placeholder {
    /// The secret.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub secret: SecretRef,
    /// The variable that holds the placeholder in every command of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// What the placeholder starts with, for programs that insist on a form such as `sk-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Headers in which it is replaced, besides `Authorization` and the usual ones for keys, such as `X-Api-Key`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Replace it in the path, too. Servers repeat paths in answers and write them down.
    #[serde(default, skip_serializing_if = "is_false")]
    pub path: bool,
    /// Replace it in the query, too. Servers repeat queries in answers and write them down.
    #[serde(default, skip_serializing_if = "is_false")]
    pub query: bool,
    /// Replace it in request bodies, too. What a server stores of a body can be read again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub body: bool,
    /// The placeholder itself; made when absent, kept while the rule names the same secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A request as far as rules look at it. `host` and `path` are what the gateway has verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFacts<'a> {
    /// Server name.
    pub host: &'a HostName,
    /// Port.
    pub port: u16,
    /// Whether the way to the server is encrypted.
    pub encrypted: bool,
    /// Method.
    pub method: &'a str,
    /// Path, as sent.
    pub path: &'a str,
    /// Who asks, if that is known.
    pub sender: Option<&'a Sender>,
}

impl InjectRule {
    /// Whether a connection of this sender to this host and port can carry requests that this rule is for.
    #[must_use]
    pub fn covers(&self, host: &HostName, port: u16, encrypted: bool, sender: Option<&Sender>) -> bool {
        let standard = if encrypted { 443 } else { 80 };
        let port_ok = if self.ports.is_empty() { port == standard } else { self.ports.contains(&port) };
        let of_sender = self.from.as_ref().is_none_or(|from| sender.is_some_and(|sender| sender.is(from)));
        port_ok
            && of_sender
            && (encrypted || self.allow_plaintext || self.secrets().next().is_none())
            && self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// Whether it is for this request.
    #[must_use]
    pub fn matches(&self, request: &RequestFacts<'_>) -> bool {
        self.covers(request.host, request.port, request.encrypted, request.sender)
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == request.method))
            && (self.paths.is_empty() || self.paths.iter().any(|prefix| below(prefix, request.path)))
    }

    /// Every secret that it names.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        let basic = self.basic.iter().flat_map(|basic| [&basic.username, &basic.password]);
        let templates = self.headers.values().chain(self.add_headers.values()).chain(self.query.values());
        templates
            .chain(&self.bearer)
            .chain(basic)
            .flat_map(Template::secrets)
            .chain(self.placeholders.iter().map(|placeholder| &placeholder.secret))
    }

    fn validate(&self, field: &str) -> Result<()> {
        let at = |part: &str| format!("{field}.{part}");
        check_name(&at("name"), &self.name)?;
        if let Some(from) = &self.from {
            from.validate(&at("from"))?;
        }
        if self.hosts.is_empty() {
            return Err(Error::invalid(&at("hosts"), "names no host"));
        }
        if self.hosts.contains(&DomainPattern::Any) {
            return Err(Error::invalid(&at("hosts"), "'*' would send to every host")
                .hint("name the hosts, or *.example.com for every name below"));
        }
        let counts = [
            ("hosts", self.hosts.len()),
            ("ports", self.ports.len()),
            ("methods", self.methods.len()),
            ("paths", self.paths.len()),
            ("headers", self.headers.len()),
            ("add_headers", self.add_headers.len()),
            ("remove_headers", self.remove_headers.len()),
            ("query", self.query.len()),
            ("placeholders", self.placeholders.len()),
            ("env", self.env.len()),
        ];
        for (part, count) in counts {
            if count > INJECT_PARTS_MAX_COUNT {
                return Err(Error::invalid(&at(part), format_args!("more than {INJECT_PARTS_MAX_COUNT}")));
            }
        }
        if self.ports.contains(&0) {
            return Err(Error::invalid(&at("ports"), "0 is not a port"));
        }
        for method in &self.methods {
            if method.is_empty() || method.len() > 32 || !method.bytes().all(|b| b.is_ascii_uppercase()) {
                return Err(Error::invalid(&at("methods"), "write methods in capitals, such as POST"));
            }
        }
        for path in &self.paths {
            let plain = path.bytes().all(|b| b.is_ascii_graphic() && !b"?#%\\".contains(&b));
            if !path.starts_with('/') || path.len() > PATH_MAX_BYTES || !plain || is_devious(path) {
                return Err(Error::invalid(&at("paths"), format_args!("'{}' is not a path", shorten(path)))
                    .hint("write it from '/', without '..', '%', '?' and '#'"));
            }
        }
        self.validate_changes(&at)
    }

    fn validate_changes(&self, at: &impl Fn(&str) -> String) -> Result<()> {
        for (part, names) in [
            ("headers", self.headers.keys().collect::<Vec<_>>()),
            ("add_headers", self.add_headers.keys().collect()),
            ("remove_headers", self.remove_headers.iter().collect()),
        ] {
            for name in names {
                header_name(&at(part), name)?;
            }
        }
        for name in self.query.keys() {
            check_name(&at("query"), name)?;
        }
        if self.bearer.is_some() && self.basic.is_some() {
            return Err(Error::invalid(&at("basic"), "there is a bearer already: one of them"));
        }
        if self.basic.as_ref().is_some_and(|basic| basic.username.as_str().contains(':')) {
            // A reference has a colon of its own.
            let nothing = |_: &SecretRef| Ok::<_, ()>(Secret::new(""));
            let user = self.basic.as_ref().map(|basic| basic.username.render(nothing));
            if user.is_some_and(|user| user.is_ok_and(|user| user.reveal().contains(':'))) {
                return Err(Error::invalid(&at("basic.username"), "must not contain ':'"));
            }
        }
        for placeholder in &self.placeholders {
            placeholder.validate(&at("placeholders"))?;
        }
        for (name, value) in &self.env {
            env_name(&at("env"), name)?;
            if value.len() > crate::limits::ENV_VALUE_MAX_BYTES || value.contains('\0') {
                return Err(Error::invalid(&at("env"), "a value is longer than 120 KiB or contains NUL"));
            }
        }
        Ok(())
    }
}

impl Placeholder {
    /// Whether it is replaced in a header, by its name in lower case.
    #[must_use]
    pub fn in_header(&self, name: &str) -> bool {
        name == "authorization"
            || KEY_HEADERS.contains(&name)
            || self.headers.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn validate(&self, field: &str) -> Result<()> {
        if self.headers.len() > INJECT_PARTS_MAX_COUNT {
            let why = format_args!("more than {INJECT_PARTS_MAX_COUNT}");
            return Err(Error::invalid(&format!("{field}.headers"), why));
        }
        for name in &self.headers {
            header_name(&format!("{field}.headers"), name)?;
        }
        if let Some(name) = &self.env {
            env_name(&format!("{field}.env"), name)?;
        }
        // Only characters that headers, URLs, forms and JSON keep as they are.
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if let Some(prefix) = &self.prefix
            && (prefix.len() > 64 || !plain(prefix))
        {
            return Err(Error::invalid(
                &format!("{field}.prefix"),
                "must have at most 64 letters, digits, '_', '-' and '.'",
            ));
        }
        if let Some(value) = &self.value {
            let long_enough = (PLACEHOLDER_MIN_BYTES..=PLACEHOLDER_MAX_BYTES).contains(&value.len());
            if !long_enough || !plain(value) {
                return Err(Error::invalid(
                    &format!("{field}.value"),
                    "must have 12 to 256 letters, digits, '_', '-' and '.'",
                ));
            }
        }
        Ok(())
    }
}

/// Whether `path` is `prefix` or lies below it. A path that servers may read in several ways lies below
/// nothing: `/v1/../admin` is not below `/v1`.
fn below(prefix: &str, path: &str) -> bool {
    let Some(rest) = path.strip_prefix(prefix) else { return false };
    (rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/')) && !is_devious(path)
}

/// Whether a path has parts that a server may resolve: dot segments, plain or escaped, backslashes, escaped
/// separators.
fn is_devious(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let dots = lower.replace("%2e", ".");
    lower.contains('\\')
        || lower.contains("%2f")
        || lower.contains("%5c")
        || lower.contains("%00")
        || dots.split('/').any(|segment| {
            // Parameters of a segment (`..;a`) are cut off by some servers.
            matches!(segment.split(';').next(), Some("." | ".."))
        })
}

fn check_name(field: &str, text: &str) -> Result<()> {
    if text.is_empty() || text.len() > NAME_MAX_BYTES || text.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must have 1 to 128 bytes without control characters"));
    }
    Ok(())
}

fn env_name(field: &str, text: &str) -> Result<()> {
    if text.is_empty() || text.len() > ENV_NAME_MAX_BYTES || text.contains(['=', '\0']) {
        return Err(Error::invalid(field, format_args!("'{}' is not a variable name", shorten(text))));
    }
    Ok(())
}

/// Checks the rules of a sandbox or template.
///
/// # Errors
/// [`crate::Code::InvalidArgument`] naming the field.
pub fn validate(field: &str, rules: &[InjectRule]) -> Result<()> {
    if rules.len() > INJECT_RULES_MAX_COUNT {
        return Err(Error::invalid(field, format_args!("more than {INJECT_RULES_MAX_COUNT} rules")));
    }
    for (at, rule) in rules.iter().enumerate() {
        rule.validate(&format!("{field}[{at}]"))?;
        if rules[..at].iter().any(|earlier| earlier.name == rule.name) {
            return Err(Error::invalid(
                &format!("{field}[{at}].name"),
                format_args!("'{}' is there twice", shorten(&rule.name)),
            ));
        }
    }
    Ok(())
}

/// Gives every placeholder its value: the one it had in `before` under the same rule's secret, else a new one
/// of `random`, 26 characters that nobody can guess.
///
/// # Errors
/// What `random` gives.
pub fn fill_placeholders<E>(
    rules: &mut [InjectRule],
    before: &[InjectRule],
    mut random: impl FnMut() -> std::result::Result<String, E>,
) -> std::result::Result<(), E> {
    for rule in rules {
        for placeholder in &mut rule.placeholders {
            if placeholder.value.is_some() {
                continue;
            }
            let known = before
                .iter()
                .flat_map(|rule| &rule.placeholders)
                .find(|known| known.secret == placeholder.secret && known.prefix == placeholder.prefix);
            placeholder.value = match known.and_then(|known| known.value.clone()) {
                Some(value) => Some(value),
                None => {
                    let prefix = placeholder.prefix.as_deref().unwrap_or(PLACEHOLDER_PREFIX);
                    Some(format!("{prefix}{}", random()?))
                }
            };
        }
    }
    Ok(())
}

/// Where a sandbox finds the certificates of the gateway's authority alone.
pub const CA_FILE: &str = "/etc/atoll/ca.pem";
/// Where it finds them together with the public ones.
pub const CA_BUNDLE_FILE: &str = "/etc/atoll/ca-bundle.pem";
/// Where it finds those as Java reads them.
pub const JAVA_BUNDLE_FILE: &str = "/etc/atoll/ca-bundle.jks";
/// Variables by which programs are told what to trust in place of their own list.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "NIX_SSL_CERT_FILE",
];
/// Variables by which programs are told what to trust besides their own list.
const EXTRA_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];
/// The variable out of which every Java takes further arguments.
const JAVA_VARIABLE: &str = "JAVA_TOOL_OPTIONS";

/// The variables that rules put into every command, and those that make programs trust the gateway, where it
/// looks inside. An earlier rule wins.
#[must_use]
pub fn env(policy: &EgressPolicy) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if !policy.looks_inside() {
        return env;
    }
    let rules = &policy.inject;
    for rule in rules {
        for (name, value) in &rule.env {
            env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for placeholder in &rule.placeholders {
            if let (Some(name), Some(value)) = (&placeholder.env, &placeholder.value) {
                env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
    for (names, file) in [(&BUNDLE_VARIABLES[..], CA_BUNDLE_FILE), (&EXTRA_VARIABLES[..], CA_FILE)] {
        for name in names {
            env.entry((*name).to_owned()).or_insert_with(|| file.to_owned());
        }
    }
    env.entry(JAVA_VARIABLE.to_owned())
        .or_insert_with(|| format!("-Djavax.net.ssl.trustStore={JAVA_BUNDLE_FILE}"));
    env
}

#[cfg(test)]
mod tests;
