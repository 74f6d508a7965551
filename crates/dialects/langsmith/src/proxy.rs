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
//!
//! [`pattern`] reads the texts in it: hosts, paths, names and headers.

mod pattern;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use atoll_core::policy::{Action, EgressPolicy, InjectRule, Internet, Rule};
use atoll_core::secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::pattern::{access_rule, below, clean, means_everything, references, split_port};
use crate::error::{Failure, Result};
use crate::extras::Opened;

/// The names of this dialect's rules begin with it, so that they can be found again.
const PREFIX: &str = "langsmith-";

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
