//! Network policies: `/v1/network-policies`. A network policy is a description; the egress policy of a devbox or a
//! build is made from it when that begins.

use atoll_core::policy::{Action, Cidr, EgressPolicy, Internet, PortRange, Rule, special};
use atoll_engine::Caller as EngineCaller;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Failure, Result};
use crate::records::api::{self, Api};
use crate::records::{Kind, Record, Records, check_words};
use crate::request::{Caller, Manage};
use crate::{App, once};

/// Ports of a host that is allowed by name.
const PORTS: [u16; 2] = [80, 443];
/// Name of the rules.
const NAME: &str = "runloop-allow";

/// The routes.
pub(crate) fn routes(app: &App) -> Router<App> {
    let made_once = Router::new()
        .route("/v1/network-policies", post(api::create::<NetworkPolicy>))
        .layer(from_fn_with_state(app.clone(), once::layer::<Manage>));
    Router::new()
        .merge(made_once)
        .route("/v1/network-policies", get(api::list::<NetworkPolicy>))
        .route(
            "/v1/network-policies/{policy}",
            get(api::one::<NetworkPolicy>).post(api::update::<NetworkPolicy>),
        )
        .route("/v1/network-policies/{policy}/delete", post(api::remove::<NetworkPolicy>))
}

/// A policy.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct NetworkPolicy {
    name: String,
    description: Option<String>,
    egress: Reaches,
}

/// The hosts that a policy allows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Reaches {
    allow_all: bool,
    /// Whether the hosts of the devbox's gateways are allowed, too.
    allow_agent_gateway: bool,
    allowed_cidrs: Vec<AllowedCidr>,
    allowed_hostnames: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct AllowedCidr {
    cidr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports: Option<Vec<PortRule>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PortRule {
    port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
}

impl Kind for NetworkPolicy {
    const WORD: &'static str = "Network policy";
    const DIR: &'static str = "runloop-policies";
    const PREFIX: &'static str = "npl_";

    fn name(&self) -> &str {
        &self.name
    }
}

impl NetworkPolicy {
    /// Whether a devbox may reach the hosts of its gateways.
    pub(crate) fn admits_gateways(&self) -> bool {
        self.egress.allow_all || self.egress.allow_agent_gateway
    }

    /// The egress policy that it describes.
    ///
    /// # Errors
    /// 400 for a malformed description: it would be about access.
    pub(crate) fn egress(&self) -> Result<EgressPolicy> {
        if self.egress.allow_all {
            return Ok(EgressPolicy::open());
        }
        let hosts = self.egress.allowed_hostnames.iter().map(|host| host_rule(host));
        let ranges = self.egress.allowed_cidrs.iter().map(AllowedCidr::rule);
        let rules = hosts.chain(ranges).collect::<Result<Vec<Rule>>>()?;
        // Without any network, less is reachable than with a network through which nothing passes.
        let internet = if rules.is_empty() { Internet::Off } else { Internet::Rules };
        Ok(EgressPolicy { internet, rules, ..EgressPolicy::default() })
    }

    fn check(&self) -> Result<()> {
        check_words(&self.name, self.description.as_deref())?;
        self.egress()?.validate("egress")?;
        Ok(())
    }
}

fn named(mut rule: Rule) -> Rule {
    rule.name = Some(NAME.to_owned());
    rule
}

fn host_rule(host: &str) -> Result<Rule> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::bad(format!("allowed_hostnames: '{}': {why}", atoll_core::error::shorten(host)))
    };
    let domain = host.parse().map_err(|error: atoll_core::Error| wrong(&error.message))?;
    let ports = PORTS.into_iter().map(PortRange::one).collect();
    Ok(Rule { ports, ..named(Rule::domain(Action::Allow, domain)) })
}

impl AllowedCidr {
    fn rule(&self) -> Result<Rule> {
        let wrong = |why: &str| {
            Failure::bad(format!("allowed_cidrs: '{}' {why}", atoll_core::error::shorten(&self.cidr)))
        };
        let malformed = "is no range of addresses such as 192.0.2.0/24";
        let cidr: Cidr = self.cidr.parse().map_err(|_malformed| wrong(malformed))?;
        if !cidr.is_everything()
            && let Some(what) = special(cidr.net().addr())
        {
            return Err(wrong(&format!("leads into {what}")));
        }
        let ports = self.ports.iter().flatten().map(PortRule::range).collect::<Result<_>>()?;
        Ok(Rule { ports, ..named(Rule::cidr(Action::Allow, cidr)) })
    }
}

impl PortRule {
    fn range(&self) -> Result<PortRange> {
        if self.protocol.as_deref().is_some_and(|protocol| protocol != "TCP") {
            return Err(Failure::bad("allowed_cidrs: ports: only TCP leaves a devbox of this server"));
        }
        let text = format!("{}-{}", self.port, self.end_port.unwrap_or(self.port));
        text.parse()
            .map_err(|error: atoll_core::Error| Failure::bad(format!("allowed_cidrs: {}", error.message)))
    }
}

/// The settings that a client gives for a policy. A setting that is absent stays, or is as closed as can be.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    name: Option<String>,
    description: Option<String>,
    allow_agent_gateway: Option<bool>,
    allow_all: Option<bool>,
    allow_devbox_to_devbox: Option<bool>,
    allow_mcp_gateway: Option<bool>,
    allow_runloop_mirrors: Option<bool>,
    allowed_cidrs: Option<Vec<AllowedCidr>>,
    allowed_hostnames: Option<Vec<String>>,
}

impl NetworkPolicy {
    /// Takes the settings, or says which are not supported.
    fn take(&mut self, asked: Asked) -> Result<()> {
        let unsupported = [
            (
                asked.allow_devbox_to_devbox,
                "allow_devbox_to_devbox",
                "devboxes do not reach this server's tunnels",
            ),
            (asked.allow_mcp_gateway, "allow_mcp_gateway", "there is no MCP hub"),
            (
                asked.allow_runloop_mirrors,
                "allow_runloop_mirrors",
                "there are no mirrors: name the hosts of packages",
            ),
        ];
        for (asked, field, why) in unsupported {
            if asked == Some(true) {
                return Err(Failure::unsupported(format!("{field}: not supported by this server; {why}")));
            }
        }
        let egress = &mut self.egress;
        self.name = asked.name.unwrap_or(std::mem::take(&mut self.name));
        self.description = asked.description.or(self.description.take());
        egress.allow_all = asked.allow_all.unwrap_or(egress.allow_all);
        egress.allow_agent_gateway = asked.allow_agent_gateway.unwrap_or(egress.allow_agent_gateway);
        if let Some(cidrs) = asked.allowed_cidrs {
            egress.allowed_cidrs = cidrs;
        }
        if let Some(hosts) = asked.allowed_hostnames {
            egress.allowed_hostnames = hosts;
        }
        self.check()
    }
}

impl Api for NetworkPolicy {
    type Asked = Asked;
    const PLURAL: &'static str = "network_policies";

    fn records(app: &App) -> &Records<Self> {
        &app.policies
    }

    fn apply(&mut self, asked: Asked, _: &App, _: &EngineCaller) -> Result<()> {
        self.take(asked)
    }

    fn view(record: &Record<Self>) -> Value {
        let policy = &record.what;
        let mut egress = json!({
            "allow_devbox_to_devbox": false,
            "allow_mcp_gateway": false,
            "allow_runloop_mirrors": false,
        });
        egress["allow_all"] = policy.egress.allow_all.into();
        egress["allow_agent_gateway"] = policy.egress.allow_agent_gateway.into();
        egress["allowed_cidrs"] = json!(policy.egress.allowed_cidrs);
        egress["allowed_hostnames"] = json!(policy.egress.allowed_hostnames);
        json!({
            "id": record.id,
            "name": policy.name,
            "description": policy.description,
            "create_time_ms": record.created_ms,
            "update_time_ms": record.updated_ms,
            "egress": egress,
        })
    }
}

/// The policy with this id; `None` when the client names none.
///
/// # Errors
/// 400 for one that is not there: a body names it, not a path.
pub(crate) async fn find<S>(
    app: &App,
    caller: &Caller<S>,
    id: Option<&String>,
) -> Result<Option<NetworkPolicy>> {
    let Some(id) = id.filter(|id| !id.is_empty()) else { return Ok(None) };
    let found = app.policies.find(caller, id).await;
    found.map(|record| Some(record.what)).map_err(Failure::of_body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<EgressPolicy> {
        let mut policy = NetworkPolicy { name: "p".into(), ..NetworkPolicy::default() };
        policy.take(serde_json::from_str(text).unwrap())?;
        policy.egress()
    }

    #[test]
    fn what_is_said_is_what_is_reached() {
        assert_eq!(of("{}").unwrap().internet, Internet::Off);
        assert_eq!(of(r#"{"allow_all":true}"#).unwrap().internet, Internet::On);
        let some = r#"{"allowed_hostnames":["github.com","*.npmjs.org"],
            "allowed_cidrs":[{"cidr":"1.1.1.0/24","ports":[{"port":443},{"port":8000,"end_port":8999}]}]}"#;
        let some = of(some).unwrap();
        assert_eq!((some.internet, some.rules.len(), some.rules[2].ports.len()), (Internet::Rules, 3, 2));
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        for bad in [
            r#"{"allowed_hostnames":["a b"]}"#,
            r#"{"allowed_hostnames":["192.0.2.1/8"]}"#,
            r#"{"allowed_cidrs":[{"cidr":"10.0.0.0/8"}]}"#,
            r#"{"allowed_cidrs":[{"cidr":"here"}]}"#,
            r#"{"allowed_cidrs":[{"cidr":"1.1.1.1/32","ports":[{"port":53,"protocol":"UDP"}]}]}"#,
            r#"{"allowed_cidrs":[{"cidr":"1.1.1.1/32","ports":[{"port":9,"end_port":8}]}]}"#,
            r#"{"allow_devbox_to_devbox":true}"#,
            r#"{"allow_mcp_gateway":true}"#,
            r#"{"name":""}"#,
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
