//! The texts of a configuration: patterns of hosts and paths, names, headers that name secrets. A pattern that is not
//! understood is refused, and one that says less than it could never opens more.

use atoll_core::policy::{Cidr, Rule};
use serde_json::json;

use super::{PREFIX, wrong};
use crate::error::Result;

/// Ports of a host that is allowed without a port.
const PORTS: [u16; 2] = [80, 443];

/// `{KEY}` becomes `{secret:KEY}`.
pub(super) fn references(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find('{') {
        let (before, from) = rest.split_at(begin);
        out.push_str(before);
        let key = from[1..].split('}').next().unwrap_or_default();
        let is_key = !key.is_empty()
            && from.len() > key.len() + 1
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if is_key {
            out.push_str("{secret:");
            out.push_str(key);
            out.push('}');
            rest = &from[key.len() + 2..];
        } else {
            out.push('{');
            rest = &from[1..];
        }
    }
    out + rest
}

/// A name in the form of names of rules and secrets.
pub(super) fn clean(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' })
        .take(60)
        .collect()
}

/// `/v1/*` means every path below `/v1`.
pub(super) fn below(path: &str) -> &str {
    match path.strip_suffix("/*") {
        Some("") => "/",
        Some(above) => above,
        None => path,
    }
}

fn is_address(text: &str) -> bool {
    text.split('/').next().unwrap_or_default().parse::<std::net::IpAddr>().is_ok()
}

/// `host:PORT` and `[address]:PORT` in two parts.
pub(super) fn split_port(pattern: &str) -> (&str, Option<u16>) {
    let (target, port) = match pattern.rsplit_once(':') {
        _ if is_address(pattern) => (pattern, None),
        Some((target, digits)) => match digits.parse() {
            Ok(port) => (target, Some(port)),
            Err(_) => (pattern, None),
        },
        None => (pattern, None),
    };
    (target.trim_start_matches('[').trim_end_matches(']'), port)
}

/// Whether a pattern means every host: no name, no address, no port.
pub(super) fn means_everything(pattern: &str) -> bool {
    let (target, port) = split_port(pattern);
    let network = || target.parse::<Cidr>().is_ok_and(|cidr| cidr.is_everything());
    port.is_none() && (target == "*" || network())
}

/// A rule for `host`, `host:PORT`, `*.host`, an address or a network. Without a port, a rule that allows is for the
/// ports of the web, and a rule that denies is for all ports: a missing port never opens more.
pub(super) fn access_rule(action: &str, pattern: &str) -> Result<Rule> {
    if pattern.starts_with('~') {
        return Err(wrong(format_args!("'{pattern}': regular expressions are not supported by this server")));
    }
    let (target, port) = split_port(pattern);
    let key = if is_address(target) { "cidr" } else { "domain" };
    // No top-level domain begins with a digit: the client meant an address.
    let last = target.rsplit('.').next().unwrap_or_default();
    if key == "domain" && last.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(wrong(format_args!("'{pattern}': is neither a name nor an address")));
    }
    let ports: Vec<u16> = match port {
        Some(port) => vec![port],
        None if action == "deny" => Vec::new(),
        None => PORTS.to_vec(),
    };
    let rule = json!({"action": action, "name": format!("{PREFIX}{action}"), key: target, "ports": ports});
    serde_json::from_value(rule).map_err(|error| wrong(format_args!("'{pattern}': {error}")))
}
