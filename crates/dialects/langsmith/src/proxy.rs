//! `proxy_config`: the hosts that a sandbox may reach, and the credentials that the gateway puts into its requests.
//!
//! Its rules become injection rules of the engine's egress policy; its access lists become rules of the policy that
//! come before all others. Values of secrets go to the vault, as secrets of this sandbox alone; the configuration that
//! is kept to be shown again ([`redacted`]) has none.
//!
//! | configuration | policy |
//! |---|---|
//! | header `opaque` | secret of the sandbox, `{secret:…}` in the rule |
//! | header `workspace_secret`, `{KEY}` | the server's secret of that name |
//! | `allow_list` | these, then nothing |
//! | `deny_list` | not these, on any port unless one is named, then everything public |
//! | `deny_list` with `*` | nothing at all |
//! | neither, and the sandbox reaches nothing | the hosts of the rules |

use std::collections::BTreeMap;

use atoll_core::policy::{Action, Cidr, EgressPolicy, InjectRule, Internet, Rule};
use atoll_core::secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Failure, Result};
use crate::extras::Opened;

/// The names of this dialect's rules begin with it, so that they can be found again.
const PREFIX: &str = "langsmith-";
/// Ports of a host that is allowed without a port.
const PORTS: [u16; 2] = [80, 443];

/// The configuration, as far as this server understands it. Other settings are refused, not ignored: they would be
/// about secrets or access.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    rules: Vec<ConfigRule>,
    callbacks: Vec<Value>,
    access_control: Access,
    /// For people.
    #[serde(rename = "description")]
    _description: Value,
    /// The protocol says that it is ignored.
    #[serde(rename = "no_proxy")]
    _no_proxy: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Access {
    allow_list: Vec<String>,
    deny_list: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ConfigRule {
    name: Option<String>,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    match_hosts: Vec<String>,
    #[serde(default)]
    match_paths: Vec<String>,
    #[serde(default)]
    match_headers: Map<String, Value>,
    #[serde(default)]
    headers: Vec<Header>,
    #[serde(default)]
    env_vars: BTreeMap<String, String>,
    rewrite: Option<Value>,
    /// Fields that this server does not know. They could narrow the rule, so they are refused unless they are null.
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

const fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
struct Header {
    name: String,
    #[serde(rename = "type", default)]
    kind: HeaderKind,
    value: Option<Secret>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeaderKind {
    /// A value that is never shown again.
    Opaque,
    /// A text in which `{KEY}` stands for a secret of the vault.
    WorkspaceSecret,
    /// A text that may be shown.
    #[default]
    Plaintext,
}

/// The configuration, as the engine takes it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) policy: EgressPolicy,
    pub(crate) secrets: BTreeMap<String, Secret>,
    pub(crate) opened: Option<Opened>,
}

fn wrong(why: impl std::fmt::Display) -> Failure {
    Failure::field("proxy_config", why)
}

/// The policy and secrets for a configuration, in a sandbox with the policy `now`. Rules of an earlier configuration
/// are removed. Its change of the internet setting (`opened`) is taken back, unless the setting was changed again
/// since.
///
/// # Errors
/// For a configuration that is malformed or not supported.
pub(crate) fn plan(config: &Value, now: &EgressPolicy, opened: Option<Opened>) -> Result<Plan> {
    let config: Config = match config {
        Value::Null => Config::default(),
        config => serde_json::from_value(config.clone()).map_err(wrong)?,
    };
    if !config.callbacks.is_empty() {
        return Err(wrong("callbacks are not supported by this server"));
    }
    let mut policy = now.clone();
    if let Some(opened) = opened.filter(|opened| opened.after == policy.internet) {
        policy.internet = opened.before;
    }
    policy.rules.retain(|rule| !rule.name.as_deref().is_some_and(|name| name.starts_with(PREFIX)));
    policy.inject.retain(|rule| !rule.name.starts_with(PREFIX));
    let before = policy.internet;
    let mut plan = Plan { policy, secrets: BTreeMap::new(), opened: None };
    let mut access = plan.access(&config.access_control)?;
    let limited = !access.is_empty();
    for (index, rule) in config.rules.into_iter().enumerate().filter(|(_, rule)| rule.enabled) {
        let hosts = plan.rule(index, rule)?;
        if !limited {
            access.extend(plan.open(&hosts)?);
        }
    }
    plan.policy.rules.splice(..0, access);
    let after = plan.policy.internet;
    plan.opened = (before != after).then_some(Opened { before, after });
    Ok(plan)
}

impl Plan {
    /// The rules of the lists. Sets the internet setting for all other hosts.
    fn access(&mut self, access: &Access) -> Result<Vec<Rule>> {
        let (action, list) = match (access.allow_list.as_slice(), access.deny_list.as_slice()) {
            ([], []) => return Ok(Vec::new()),
            ([], deny) => ("deny", deny),
            (allow, []) => ("allow", allow),
            _ => return Err(wrong("give an allow_list or a deny_list, not both")),
        };
        let mut rules =
            list.iter().map(|pattern| access_rule(action, pattern)).collect::<Result<Vec<_>>>()?;
        if action == "deny" {
            let everything = list.iter().any(|pattern| means_everything(pattern));
            self.policy.internet = if everything { Internet::Off } else { Internet::On };
            return Ok(rules);
        }
        self.policy.internet = Internet::Rules;
        rules.push(Rule { name: Some(format!("{PREFIX}deny")), ..Rule::any(Action::Deny) });
        Ok(rules)
    }

    /// A sandbox that reaches nothing by itself could use no credential: the hosts of its rules are opened.
    fn open(&mut self, hosts: &[String]) -> Result<Vec<Rule>> {
        if self.policy.internet == Internet::On {
            return Ok(Vec::new());
        }
        self.policy.internet = Internet::Rules;
        hosts.iter().map(|host| access_rule("allow", host)).collect()
    }

    /// Adds the injection rules for one rule, one for each port. Gives its hosts.
    fn rule(&mut self, index: usize, rule: ConfigRule) -> Result<Vec<String>> {
        let refuse = |what: &str| Err(wrong(format_args!("{what} is not supported by this server")));
        if let Some(kind) = rule.kind.filter(|kind| kind != "header") {
            return refuse(&format!("a rule of type '{kind}'"));
        }
        if !rule.match_headers.is_empty() {
            return refuse("match_headers");
        }
        if rule.rewrite.is_some_and(|rewrite| !rewrite.is_null()) {
            return refuse("rewrite");
        }
        if let Some((field, _)) = rule.unknown.iter().find(|(_, value)| !value.is_null()) {
            return refuse(&format!("'{field}' of a rule"));
        }
        let name = clean(&rule.name.unwrap_or_else(|| format!("rule-{index}")));
        let mut headers = Map::new();
        for header in rule.headers {
            let value = self.header(&name, &header)?;
            headers.insert(header.name, Value::String(value));
        }
        let paths: Vec<&str> = rule.match_paths.iter().map(|path| below(path)).collect();
        let mut by_port: BTreeMap<Option<u16>, Vec<&str>> = BTreeMap::new();
        for pattern in &rule.match_hosts {
            let (host, port) = split_port(pattern);
            by_port.entry(port).or_default().push(host);
        }
        let mut env = Some(rule.env_vars);
        for (port, hosts) in by_port {
            let suffix = port.map(|port| format!(".{port}")).unwrap_or_default();
            let inject = json!({
                "name": format!("{PREFIX}{name}{suffix}"),
                "hosts": hosts,
                "ports": port.into_iter().collect::<Vec<_>>(),
                "paths": paths,
                "headers": headers,
                "env": env.take().unwrap_or_default(),
            });
            let inject: InjectRule = serde_json::from_value(inject).map_err(wrong)?;
            self.policy.inject.push(inject);
        }
        Ok(rule.match_hosts)
    }

    /// The text of a header, with a reference in place of a secret.
    fn header(&mut self, rule: &str, header: &Header) -> Result<String> {
        let text = header.value.as_ref().map(Secret::reveal);
        match (header.kind, text) {
            (HeaderKind::Opaque, text) => {
                let name = format!("{PREFIX}{rule}.{}", clean(&header.name.to_ascii_lowercase()));
                // A secret whose value is left out keeps the value that it has.
                if let Some(text) = text {
                    self.secrets.insert(name.clone(), Secret::new(text));
                }
                Ok(format!("{{secret:{name}}}"))
            }
            (HeaderKind::WorkspaceSecret, Some(text)) => Ok(references(text)),
            (HeaderKind::Plaintext, Some(text)) if !text.contains("{secret:") => Ok(text.to_owned()),
            (HeaderKind::Plaintext, Some(_)) => Err(wrong("a plain header cannot name a secret")),
            (HeaderKind::WorkspaceSecret | HeaderKind::Plaintext, None) => {
                Err(wrong(format_args!("the header '{}' has no value", header.name)))
            }
        }
    }
}

/// `{KEY}` becomes `{secret:KEY}`.
fn references(text: &str) -> String {
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
fn clean(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' })
        .take(60)
        .collect()
}

/// `/v1/*` means every path below `/v1`.
fn below(path: &str) -> &str {
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
fn split_port(pattern: &str) -> (&str, Option<u16>) {
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
fn means_everything(pattern: &str) -> bool {
    let (target, port) = split_port(pattern);
    let network = || target.parse::<Cidr>().is_ok_and(|cidr| cidr.is_everything());
    port.is_none() && (target == "*" || network())
}

/// A rule for `host`, `host:PORT`, `*.host`, an address or a network. Without a port, a rule that allows is for the
/// ports of the web, and a rule that denies is for all ports: a missing port never opens more.
fn access_rule(action: &str, pattern: &str) -> Result<Rule> {
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

/// The configuration without the values of secrets.
pub(crate) fn redacted(config: &Value) -> Value {
    match config {
        Value::Object(fields) => {
            let is_secret = fields.get("type").and_then(Value::as_str) == Some("opaque");
            let mut kept: Map<String, Value> = fields
                .iter()
                .filter(|(key, _)| !(is_secret && *key == "value"))
                .map(|(key, value)| (key.clone(), redacted(value)))
                .collect();
            if is_secret {
                kept.insert("is_set".to_owned(), Value::Bool(true));
            }
            Value::Object(kept)
        }
        Value::Array(items) => items.iter().map(redacted).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use atoll_core::policy::{Destination, Http};

    use super::*;

    /// The configuration that Open SWE sends.
    fn github() -> Value {
        json!({"rules": [
            {"name": "github-api", "match_hosts": ["api.github.com"],
             "headers": [{"name": "Authorization", "type": "opaque", "value": "Bearer sesame"}],
             "env_vars": {"GH_TOKEN": "proxy-injected"}},
            {"name": "github", "match_hosts": ["github.com", "*.github.com"],
             "headers": [{"name": "Authorization", "type": "opaque", "value": "Basic sesame"}]},
        ]})
    }

    #[test]
    fn secrets_go_to_the_vault_and_nowhere_else() {
        let plan = plan(&github(), &EgressPolicy::open(), None).unwrap();
        let values: Vec<&str> = plan.secrets.values().map(Secret::reveal).collect();
        assert_eq!(values, ["Bearer sesame", "Basic sesame"]);
        assert!(!serde_json::to_string(&plan.policy).unwrap().contains("sesame"));
        assert_eq!(plan.policy.inject.len(), 2);
        assert_eq!(plan.policy.inject[0].env["GH_TOKEN"], "proxy-injected");
        assert!(
            plan.policy.rules.is_empty() && plan.policy.internet == Internet::On && plan.opened.is_none()
        );
        plan.policy.validate("egress").unwrap();
        let shown = redacted(&github()).to_string();
        assert!(!shown.contains("sesame") && shown.contains("\"is_set\":true"), "{shown}");
    }

    #[test]
    fn a_second_configuration_replaces_the_first_and_keeps_what_is_left_out() {
        let first = plan(&github(), &EgressPolicy::open(), None).unwrap();
        let mut config = github();
        config["rules"][1]["headers"][0].as_object_mut().unwrap().remove("value");
        let second = plan(&config, &first.policy, first.opened).unwrap();
        assert_eq!(second.policy, first.policy);
        assert_eq!(second.secrets.len(), 1);
        let none = plan(&json!({}), &second.policy, second.opened).unwrap();
        assert_eq!(none.policy, EgressPolicy::open());
    }

    #[test]
    fn what_a_configuration_opened_is_closed_with_it_unless_somebody_changed_it() {
        let mirror = EgressPolicy::only(vec![Rule::parse_domain(Action::Allow, "mirror.example").unwrap()]);
        for base in [EgressPolicy::default(), mirror] {
            for config in [github(), json!({"access_control": {"deny_list": ["a.example"]}})] {
                let opened = plan(&config, &base, None).unwrap();
                let closed = plan(&Value::Null, &opened.policy, opened.opened).unwrap();
                assert_eq!(closed.policy, base);
                let changed = EgressPolicy { internet: Internet::Off, ..opened.policy };
                let kept = plan(&Value::Null, &changed, opened.opened).unwrap();
                assert_eq!(kept.policy.internet, Internet::Off);
            }
        }
    }

    fn allows(policy: &EgressPolicy, host: &str, port: u16) -> bool {
        let host = host.parse().unwrap();
        let to = Destination {
            name: Some(&host),
            address: "93.184.216.34".parse().unwrap(),
            port,
            own: false,
            closed: None,
            sender: None,
        };
        policy.decide(&to, Http::Unknown).allowed
    }

    #[test]
    fn lists_of_hosts() {
        let hosts =
            ["api.example.org", "*.example.com", "db.example.org:5432", "192.0.2.0/24", "[2001:db8::1]:8443"];
        let mut config = github();
        config["access_control"] = json!({ "allow_list": hosts });
        let mirror = Rule::parse_domain(Action::Allow, "mirror.example").unwrap();
        for base in [EgressPolicy::open(), EgressPolicy::default(), EgressPolicy::only(vec![mirror])] {
            let policy = plan(&config, &base, None).unwrap().policy;
            policy.validate("egress").unwrap();
            assert!(allows(&policy, "api.example.org", 443) && allows(&policy, "a.example.com", 80));
            assert!(allows(&policy, "db.example.org", 5432) && !allows(&policy, "db.example.org", 443));
            for other in ["example.com", "mirror.example", "github.com"] {
                assert!(!allows(&policy, other, 443), "{other}");
            }
        }
        let config = json!({"access_control": {"deny_list": ["*.example.com"]}});
        let policy = plan(&config, &EgressPolicy::default(), None).unwrap().policy;
        assert!(allows(&policy, "example.org", 443) && !allows(&policy, "a.example.com", 443));
    }

    #[test]
    fn a_list_that_denies_everything_leaves_nothing() {
        let lists = [json!(["*"]), json!(["a.example", "*"]), json!(["0.0.0.0/0"]), json!(["::/0"])];
        for list in lists {
            let mut config = github();
            config["access_control"] = json!({ "deny_list": list });
            let mirror = Rule::parse_domain(Action::Allow, "mirror.example").unwrap();
            for base in [EgressPolicy::open(), EgressPolicy::default(), EgressPolicy::only(vec![mirror])] {
                let policy = plan(&config, &base, None).unwrap().policy;
                policy.validate("egress").unwrap();
                for host in ["example.org", "mirror.example", "api.github.com"] {
                    assert!(!policy.may_resolve(&host.parse().unwrap()).allowed, "{list}: {host}");
                    for port in [22, 53, 80, 443, 8443] {
                        assert!(!allows(&policy, host, port), "{list}: {host}:{port}");
                    }
                }
                for address in ["8.8.8.8", "2606:4700::1"] {
                    let to = Destination {
                        name: None,
                        address: address.parse().unwrap(),
                        port: 22,
                        own: false,
                        closed: None,
                        sender: None,
                    };
                    assert!(!policy.decide(&to, Http::Unknown).allowed, "{list}: {address}");
                }
            }
        }
    }

    #[test]
    fn what_is_denied_without_a_port_is_denied_on_all() {
        let config = json!({"access_control": {"deny_list": ["a.example", "*.b.example", "8.8.8.0/24", "c.example:22"]}});
        let policy = plan(&config, &EgressPolicy::default(), None).unwrap().policy;
        for port in [22, 80, 443, 8443] {
            assert!(!allows(&policy, "a.example", port) && !allows(&policy, "x.b.example", port));
            assert_eq!(allows(&policy, "c.example", port), port != 22);
            let host = "d.example".parse().unwrap();
            let to = Destination {
                name: Some(&host),
                address: "8.8.8.8".parse().unwrap(),
                port,
                own: false,
                closed: None,
                sender: None,
            };
            assert!(!policy.decide(&to, Http::Unknown).allowed);
        }
        assert!(!policy.may_resolve(&"a.example".parse().unwrap()).allowed);
    }

    #[test]
    fn a_pattern_that_is_not_understood_is_refused() {
        for bad in [
            "",
            " ",
            "*.",
            "**",
            "*.*",
            "*a.example",
            "a.*",
            "a.example/",
            "https://a.example",
            "a.example:",
            "a.example:0",
            "a.example:x",
            "a.example:1-9",
            "a.example:65536",
            "10.0.0.0/33",
            "10.0.0.*",
            "1.2.3.4-9",
            "[::1",
            "a b",
            "~.*",
            "!a.example",
            "a.example,b.example",
        ] {
            for list in ["allow_list", "deny_list"] {
                let config = json!({"access_control": {list: [bad]}});
                assert!(plan(&config, &EgressPolicy::open(), None).is_err(), "{list}: {bad:?}");
            }
        }
        for unknown in [
            json!({"access_control": {"deny": ["*"]}}),
            json!({"access_controls": {"deny_list": ["*"]}}),
            json!({"rules": [{"match_hosts": ["a.example"], "match_methods": ["GET"]}]}),
        ] {
            assert!(plan(&unknown, &EgressPolicy::open(), None).is_err(), "{unknown}");
        }
        let said = json!({"no_proxy": ["x"], "description": "y", "rules": [{"match_hosts": ["a.example"], "aws": null}]});
        plan(&said, &EgressPolicy::open(), None).unwrap();
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for bad in [
            json!({"access_control": {"allow_list": ["a"], "deny_list": ["b"]}}),
            json!({"access_control": {"allow_list": ["~a.*"]}}),
            json!({"callbacks": [{"url": "https://x"}]}),
            json!({"rules": [{"type": "aws", "match_hosts": ["a.example"]}]}),
            json!({"rules": [{"match_hosts": ["a.example"], "match_headers": {"a": "b"}}]}),
            json!({"rules": [{"match_hosts": ["a.example"], "rewrite": {"host": "b"}}]}),
            json!({"rules": [{"match_hosts": ["a.example"], "headers": [{"name": "A", "value": "{secret:X}"}]}]}),
            json!({"rules": [{"match_hosts": ["a.example"], "headers": [{"name": "A", "type": "other", "value": "x"}]}]}),
        ] {
            assert!(plan(&bad, &EgressPolicy::open(), None).is_err(), "{bad}");
        }
        let disabled = json!({"rules": [{"type": "aws", "enabled": false}]});
        assert!(plan(&disabled, &EgressPolicy::open(), None).unwrap().policy.inject.is_empty());
    }

    #[test]
    fn a_closed_sandbox_is_opened_for_its_rules_only() {
        let policy = plan(&github(), &EgressPolicy::default(), None).unwrap().policy;
        assert_eq!(policy.internet, Internet::Rules);
        assert!(allows(&policy, "api.github.com", 443) && !allows(&policy, "example.com", 443));
    }

    #[test]
    fn ports_and_paths() {
        let config = json!({"rules": [{"name": "a", "match_hosts": ["a.example", "b.example:8443"],
            "match_paths": ["/v1/*", "/x"], "env_vars": {"A": "1"},
            "headers": [{"name": "X-Team", "type": "plaintext", "value": "blue"}]}]});
        let policy = plan(&config, &EgressPolicy::open(), None).unwrap().policy;
        policy.validate("egress").unwrap();
        let [any, one] = &policy.inject[..] else { panic!("{policy:?}") };
        assert_eq!((any.paths.join(" ").as_str(), any.ports.len(), one.ports[0]), ("/v1 /x", 0, 8443));
        assert_eq!((any.env.len(), one.env.len()), (1, 0));
    }

    #[test]
    fn references_to_secrets() {
        assert_eq!(references("Bearer {TOKEN}"), "Bearer {secret:TOKEN}");
        assert_eq!(references("{A}{B} {not a key} {"), "{secret:A}{secret:B} {not a key} {");
    }
}
