//! The hosts that a sandbox may reach, as the engine's egress policy.
//!
//! | settings | policy |
//! |---|---|
//! | none | what the template or the server says |
//! | `networkBlockAll` | nothing |
//! | `networkAllowList`, `domainAllowList` | rules that allow, and nothing else: addresses on every port, names on 80 and 443 |
//!
//! A malformed setting is refused, not ignored: it would be about access.

use atoll_core::policy::{Cidr, EgressPolicy, Internet, Rule, special};
use atoll_core::spec::SandboxUpdate;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::error::{Failure, Result};
use crate::extras::Extras;
use crate::request::{Json, Root};
use crate::view;
use crate::who::{Manage, On};

/// Ports of a host that is allowed by name.
const PORTS: [u16; 2] = [80, 443];
/// Name of the rules.
const NAME: &str = "daytona-allow";

/// The settings.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Network {
    pub(super) network_block_all: Option<bool>,
    pub(super) network_allow_list: Option<String>,
    pub(super) domain_allow_list: Option<String>,
}

fn items(list: Option<&String>) -> impl Iterator<Item = &str> {
    list.map_or("", String::as_str).split(',').map(str::trim).filter(|item| !item.is_empty())
}

impl Network {
    /// The policy for the settings; `None` when they say nothing.
    ///
    /// # Errors
    /// 400 for a malformed setting.
    pub(super) fn policy(&self) -> Result<Option<EgressPolicy>> {
        let mut policy = EgressPolicy::open();
        if self.network_block_all == Some(true) {
            policy.internet = Internet::Off;
            return Ok(Some(policy));
        }
        for target in items(self.network_allow_list.as_ref()) {
            policy.rules.push(address(target)?);
        }
        for target in items(self.domain_allow_list.as_ref()) {
            let value = json!({"action": "allow", "name": NAME, "domain": target, "ports": PORTS});
            policy.rules.push(rule("domainAllowList", target, value)?);
        }
        if policy.rules.is_empty() {
            return Ok(self.network_block_all.map(|_| policy));
        }
        policy.internet = Internet::Rules;
        Ok(Some(policy))
    }

    const fn says_nothing(&self) -> bool {
        self.network_block_all.is_none()
            && self.network_allow_list.is_none()
            && self.domain_allow_list.is_none()
    }

    /// Notes the settings, so that answers can repeat them.
    pub(super) fn note(&self, extras: &mut Extras) {
        let text = |list: &Option<String>| list.clone().filter(|list| !list.trim().is_empty());
        extras.network_block_all = self.network_block_all.unwrap_or_default();
        extras.network_allow_list = text(&self.network_allow_list);
        extras.domain_allow_list = text(&self.domain_allow_list);
    }
}

fn address(target: &str) -> Result<Rule> {
    let wrong = |why: &str| {
        let target = atoll_core::error::shorten(target);
        Failure::bad(format!("networkAllowList: '{target}' {why}"))
    };
    let cidr: Cidr =
        target.parse().map_err(|_malformed| wrong("is no range of addresses such as 192.0.2.0/24"))?;
    if !cidr.is_everything()
        && let Some(what) = special(cidr.net().addr())
    {
        return Err(wrong(&format!("leads into {what}")));
    }
    rule("networkAllowList", target, json!({"action": "allow", "name": NAME, "cidr": target}))
}

fn rule(field: &str, target: &str, value: Value) -> Result<Rule> {
    serde_json::from_value(value)
        .map_err(|error| Failure::bad(format!("{field}: '{}': {error}", atoll_core::error::shorten(target))))
}

/// Replaces the hosts that a sandbox may reach. Lists that the request leaves out stay. A sandbox that is not blocked and
/// has no lists may reach what its template, its project or the server says.
pub(super) async fn update(
    on: On<Manage>,
    root: Root,
    State(app): State<App>,
    Json(asked): Json<Network>,
) -> Result<Json<Value>> {
    let engine = app.host.engine();
    let record = engine.sandbox(&on.id)?;
    if asked.says_nothing() {
        return Ok(Json(view::sandbox(&record, &root)));
    }
    let mut extras = Extras::of(&record);
    let network = Network {
        network_block_all: Some(asked.network_block_all.unwrap_or(false)),
        network_allow_list: asked.network_allow_list.or_else(|| extras.network_allow_list.clone()),
        domain_allow_list: asked.domain_allow_list.or_else(|| extras.domain_allow_list.clone()),
    };
    let policy = match network.policy()? {
        Some(policy) if policy.internet != Internet::On => policy,
        _unrestricted => {
            engine.egress_unless_told(record.project.as_ref(), record.spec.template.as_deref()).await?
        }
    };
    let egress = Some(EgressPolicy { inject: record.spec.egress.inject.clone(), ..policy });
    network.note(&mut extras);
    let annotations = [(crate::extras::KEY.to_owned(), Some(extras.text()?))].into();
    let asked_by = Some(on.caller.key());
    let update = SandboxUpdate { egress, annotations, asked_by, ..SandboxUpdate::default() };
    let record = engine.update_sandbox(&on.id, update).await?;
    Ok(Json(view::sandbox(&record, &root)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<EgressPolicy>> {
        serde_json::from_str::<Network>(text).unwrap().policy()
    }

    #[test]
    fn what_is_said_decides() {
        assert_eq!(of("{}").unwrap(), None);
        assert_eq!(of(r#"{"networkBlockAll":true}"#).unwrap().unwrap().internet, Internet::Off);
        assert_eq!(of(r#"{"networkBlockAll":false}"#).unwrap().unwrap().internet, Internet::On);
        let list = of(r#"{"networkAllowList":"1.1.1.0/24, 8.8.8.8/32","domainAllowList":"*.example.com"}"#);
        let list = list.unwrap().unwrap();
        assert_eq!((list.internet, list.rules.len()), (Internet::Rules, 3));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bad in [
            r#"{"networkAllowList":"here"}"#,
            r#"{"networkAllowList":"10.0.0.0/8"}"#,
            r#"{"domainAllowList":"a b"}"#,
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
