//! The hosts that a sandbox may reach: `network` and `allow_internet_access`, as the engine's egress policy.
//!
//! | configuration | policy |
//! |---|---|
//! | nothing at all | what the template or the server says |
//! | `allow_internet_access: false` | nothing |
//! | `allowOut` | rules that allow, first: addresses on every port, names on 80 and 443 |
//! | `denyOut` | rules that deny, after them |
//! | neither speaks | everything public |
//! | `rules` with a transform | injection rules; their values are secrets of the sandbox |
//! | `${e2b.secrets.NAME}` in such a value | that secret of the installation |
//!
//! A setting that this server does not support is refused, not ignored: it would be about access.

use std::collections::BTreeMap;

use atoll_core::policy::{Cidr, EgressPolicy, InjectRule, Internet, Rule, secret_name, special};
use atoll_core::secret::Secret;
use atoll_core::spec::SandboxUpdate;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::{self, Extras};
use crate::request::{Caller, Id, Json, Manage};
use crate::secrets;

/// Every address.
const ALL_TRAFFIC: &str = "0.0.0.0/0";
/// Ports of a host that is allowed by name.
const PORTS: [u16; 2] = [80, 443];
/// Most ports that the server speaks to over HTTPS.
const HTTPS_PORTS_MAX_COUNT: usize = 128;
/// The names of this dialect's rules begin with it.
const PREFIX: &str = "e2b-";
/// Begins a reference to a stored secret in a value, up to the next `}`: `Secret.fill` of the clients writes it.
const REFERENCE: &str = "${e2b.secrets.";
/// Begins every placeholder that the clients want replaced in values.
const PLACEHOLDER: &str = "${e2b.";
/// A value that is too short to be a secret is no secret.
const SECRET_MIN_BYTES: usize = atoll_core::limits::SECRET_VALUE_MIN_BYTES;

/// The configuration, as far as this server understands it.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Network {
    pub(super) allow_public_traffic: Option<bool>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    egress_proxy: Option<Value>,
    mask_request_host: Option<String>,
    https_ports: Option<Vec<u16>>,
    rules: Option<BTreeMap<String, Vec<Transform>>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Transform {
    transform: Option<Headers>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Headers {
    headers: BTreeMap<String, String>,
}

/// The configuration, as the engine takes it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) policy: EgressPolicy,
    pub(super) secrets: BTreeMap<String, Secret>,
}

fn unsupported(what: &str) -> Failure {
    Failure::bad(format!("network.{what} is not supported by this server"))
}

impl Network {
    /// The configuration as clients are told it: without the values of headers.
    pub(super) fn shown(&self) -> Option<Value> {
        let mut shown = self.clone();
        shown.allow_internet_access = None;
        for transform in shown.rules.iter_mut().flat_map(BTreeMap::values_mut).flatten() {
            for value in transform.transform.iter_mut().flat_map(|transform| transform.headers.values_mut()) {
                "****".clone_into(value);
            }
        }
        let mut shown = serde_json::to_value(shown).ok()?;
        shown.as_object_mut()?.retain(|_, value| !value.is_null());
        (!shown.as_object()?.is_empty()).then_some(shown)
    }

    fn check(&self) -> Result<()> {
        if self.egress_proxy.as_ref().is_some_and(|proxy| !proxy.is_null()) {
            return Err(unsupported("egressProxy"));
        }
        if self.dns_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
            return Err(unsupported("dnsServers"));
        }
        let https = self.https_ports.as_deref().unwrap_or_default();
        if https.contains(&0) || https.len() > HTTPS_PORTS_MAX_COUNT {
            return Err(Failure::bad(format!(
                "network.httpsPorts: at most {HTTPS_PORTS_MAX_COUNT} ports, from 1 to 65535"
            )));
        }
        Ok(())
    }

    /// Whether it says anything about the hosts that the sandbox may reach.
    const fn limits(&self) -> bool {
        self.allow_out.is_some() || self.deny_out.is_some() || self.rules.is_some()
    }
}

/// The policy for a configuration; `None` when it says nothing about the hosts that the sandbox may reach. `meant`
/// finds the name of the stored secret that a client names.
///
/// # Errors
/// 400 for a configuration that is malformed or not supported.
pub(super) fn plan(
    network: &Network,
    internet: Option<bool>,
    meant: impl Fn(&str) -> String,
) -> Result<Option<Plan>> {
    network.check()?;
    if internet.is_none() && !network.limits() {
        return Ok(None);
    }
    let mut deny = network.deny_out.clone().unwrap_or_default();
    if internet == Some(false) {
        deny.push(ALL_TRAFFIC.to_owned());
    }
    let mut policy = EgressPolicy::open();
    let allow = network.allow_out.as_deref().unwrap_or_default();
    let names = allow.iter().any(|target| target != "*" && target.parse::<Cidr>().is_err());
    let is_everything = |text: &String| text.parse::<Cidr>().is_ok_and(|cidr| cidr.is_everything());
    let deny_all = deny.iter().any(is_everything);
    if names && !deny_all {
        return Err(Failure::bad(format!(
            "network.allowOut has domains: denyOut must have ALL_TRAFFIC ('{ALL_TRAFFIC}') then"
        )));
    }
    for target in allow {
        policy.rules.push(allow_rule(target)?);
    }
    for target in deny.iter().filter(|target| !is_everything(target)) {
        policy.rules.push(deny_rule(target)?);
    }
    if deny_all {
        let any = allow.iter().any(|target| target == "*" || is_everything(target));
        policy.internet = match (allow.is_empty(), any) {
            // Without any network, less is reachable than with a network through which nothing passes.
            (true, _) => Internet::Off,
            (false, true) => Internet::On,
            (false, false) => Internet::Rules,
        };
    }
    let mut plan = Plan { policy, secrets: BTreeMap::new() };
    for (index, (host, transforms)) in network.rules.iter().flatten().enumerate() {
        plan.transform(index, host, transforms, &meant)?;
    }
    Ok(Some(plan))
}

fn rule(value: Value, target: &str) -> Result<Rule> {
    serde_json::from_value(value).map_err(|error| {
        let target: String = target.chars().take(200).collect();
        Failure::bad(format!("network: '{target}': {error}"))
    })
}

fn allow_rule(target: &str) -> Result<Rule> {
    let value = match target.parse::<Cidr>() {
        Ok(cidr) => {
            if !cidr.is_everything()
                && let Some(what) = special(cidr.net().addr())
            {
                return Err(Failure::bad(format!("network.allowOut: '{target}' leads into {what}")));
            }
            json!({"action": "allow", "name": format!("{PREFIX}allow"), "cidr": target})
        }
        Err(_) => {
            json!({"action": "allow", "name": format!("{PREFIX}allow"), "domain": target, "ports": PORTS})
        }
    };
    rule(value, target)
}

fn deny_rule(target: &str) -> Result<Rule> {
    if target.parse::<Cidr>().is_err() {
        return Err(Failure::bad(format!(
            "network.denyOut: '{}' is no address or range of addresses",
            target.chars().take(200).collect::<String>()
        )));
    }
    rule(json!({"action": "deny", "name": format!("{PREFIX}deny"), "cidr": target}), target)
}

impl Plan {
    /// Headers for the requests to a host.
    fn transform(
        &mut self,
        index: usize,
        host: &str,
        transforms: &[Transform],
        meant: impl Fn(&str) -> String,
    ) -> Result<()> {
        let mut headers = Map::new();
        for (name, value) in
            transforms.iter().filter_map(|one| one.transform.as_ref()).flat_map(|one| &one.headers)
        {
            let text = if value.contains(PLACEHOLDER) {
                with_secrets(value, &meant)?
            } else if value.len() < SECRET_MIN_BYTES {
                value.clone()
            } else {
                let clean = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
                let secret =
                    format!("{PREFIX}{index}.{}", name.chars().map(clean).take(60).collect::<String>());
                self.secrets.insert(secret.clone(), Secret::new(value));
                format!("{{secret:{secret}}}")
            };
            headers.insert(name.clone(), text.into());
        }
        if headers.is_empty() {
            return Ok(());
        }
        let inject = json!({
            "name": format!("{PREFIX}transform-{index}"),
            "hosts": [host],
            "headers": headers,
        });
        let inject: InjectRule = serde_json::from_value(inject)
            .map_err(|error| Failure::bad(format!("network.rules: '{host}': {error}")))?;
        self.policy.inject.push(inject);
        Ok(())
    }
}

/// A value as a rule has it, with the secrets that it names. The text beside them is not kept as a secret.
fn with_secrets(value: &str, meant: impl Fn(&str) -> String) -> Result<String> {
    let bad = |why: &str| Failure::bad(format!("network.rules: a header's value {why}"));
    if value.contains("{secret:") {
        return Err(bad("names a secret twice over: write ${e2b.secrets.NAME}"));
    }
    let (mut text, mut rest) = (String::new(), value);
    while let Some((before, after)) = rest.split_once(REFERENCE) {
        let (name, behind) = after.split_once('}').ok_or_else(|| bad("has a '${' that is not closed"))?;
        secret_name("network.rules", name).map_err(|error| Failure::of(&error))?;
        text.extend([before, "{secret:", &meant(name), "}"]);
        rest = behind;
    }
    text.push_str(rest);
    if text.contains(PLACEHOLDER) {
        return Err(bad("has a placeholder that this server does not replace: only ${e2b.secrets.NAME} is"));
    }
    Ok(text)
}

/// Replaces the hosts that a sandbox may reach. Settings that the request leaves out are removed.
pub(super) async fn update(
    caller: Caller<Manage>,
    State(app): State<App>,
    Id(id): Id,
    Json(network): Json<Network>,
) -> Result<StatusCode> {
    let engine = app.host.engine();
    let record = engine.sandbox(&id).map_err(|error| Failure::of(&error))?;
    let mut extras = Extras::of(&record);
    let internet = network.allow_internet_access;
    let plan = match plan(&network, internet, |name| secrets::meant(engine, caller.engine(), name))? {
        Some(plan) => plan,
        // A request that says nothing denies nothing beyond what the server or the template denies.
        None => Plan {
            policy: engine
                .egress_unless_told(record.project.as_ref(), record.spec.template.as_deref())
                .await
                .map_err(|error| Failure::of(&error))?,
            secrets: BTreeMap::new(),
        },
    };
    extras.network = merged(extras.network, &network);
    extras.allow_internet_access = internet;
    let update = SandboxUpdate {
        egress: Some(plan.policy),
        secrets: plan.secrets,
        asked_by: Some(caller.key()),
        annotations: BTreeMap::from([(extras::KEY.to_owned(), Some(extras.text()?))]),
        ..SandboxUpdate::default()
    };
    engine.update_sandbox(&id, update).await.map_err(|error| Failure::of(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The configuration that clients are told after an update: from the update all about egress, from before all about
/// ingress.
fn merged(before: Option<Value>, update: &Network) -> Option<Value> {
    let mut shown = update.shown().unwrap_or_else(|| json!({}));
    for key in ["allowPublicTraffic", "maskRequestHost", "httpsPorts"] {
        if let Some(value) = before.as_ref().and_then(|before| before.get(key)) {
            shown[key] = value.clone();
        }
    }
    shown.as_object().is_some_and(|fields| !fields.is_empty()).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, internet: Option<bool>) -> Result<Option<Plan>> {
        plan(&serde_json::from_str(text).unwrap(), internet, str::to_ascii_lowercase)
    }

    #[test]
    fn what_is_not_said_is_the_server_s() {
        assert!(of("{}", None).unwrap().is_none());
        assert!(of(r#"{"allowPublicTraffic":false}"#, None).unwrap().is_none());
        assert_eq!(of("{}", Some(false)).unwrap().unwrap().policy.internet, Internet::Off);
        assert_eq!(of("{}", Some(true)).unwrap().unwrap().policy.internet, Internet::On);
    }

    #[test]
    fn lists() {
        let some =
            of(r#"{"allowOut":["1.1.1.1","*.a.com"],"denyOut":["0.0.0.0/0"]}"#, None).unwrap().unwrap();
        assert_eq!((some.policy.internet, some.policy.rules.len()), (Internet::Rules, 2));
        let but = of(r#"{"denyOut":["8.8.8.8"]}"#, None).unwrap().unwrap();
        assert_eq!((but.policy.internet, but.policy.rules.len()), (Internet::On, 1));
        let names = of(r#"{"allowOut":["a.com"]}"#, None).unwrap_err();
        assert!(names.message.contains("ALL_TRAFFIC"), "{}", names.message);
        for bad in [
            r#"{"allowOut":["10.0.0.0/8"]}"#,
            r#"{"denyOut":["a.com"]}"#,
            r#"{"egressProxy":{"address":"socks5://h:1"}}"#,
            r#"{"dnsServers":["1.1.1.1"]}"#,
            r#"{"httpsPorts":[0]}"#,
        ] {
            assert_eq!(of(bad, None).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    #[test]
    fn stored_secrets_are_named() {
        let of_value = |value: &str| {
            let headers = json!({"headers": {"Authorization": value}});
            of(&json!({"rules": {"a.com": [{"transform": headers}]}}).to_string(), None)
        };
        let plan = of_value("Bearer ${e2b.secrets.Key}-${e2b.secrets.b}").unwrap().unwrap();
        assert!(plan.secrets.is_empty());
        let rule = serde_json::to_string(&plan.policy.inject).unwrap();
        assert!(rule.contains("Bearer {secret:key}-{secret:b}"), "{rule}");
        for bad in [
            "${e2b.secrets.a",
            "${e2b.secrets.}",
            "${e2b.secrets.a b}",
            "${e2b.secrets.a}{secret:b}",
            "${e2b.iam.tokens.aws}",
            "${e2b.secrets.a}${e2b.x}",
        ] {
            assert_eq!(of_value(bad).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    #[test]
    fn values_of_transforms_are_secrets() {
        let text = r#"{"rules":{"a.com":[{"transform":{"headers":{"X-Key":"sesame","X-N":"1"}}}]}}"#;
        let plan = of(text, None).unwrap().unwrap();
        assert_eq!(plan.secrets.len(), 1);
        assert!(!format!("{:?}", plan.policy).contains("sesame"));
        let shown = serde_json::from_str::<Network>(text).unwrap().shown().unwrap().to_string();
        assert!(!shown.contains("sesame") && shown.contains("X-Key"));
    }
}
