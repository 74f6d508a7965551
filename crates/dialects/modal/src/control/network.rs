//! The hosts that a sandbox may reach.

use atoll_core::policy::{Cidr, EgressPolicy, Internet, Rule};
use serde_json::{Value, json};

use crate::grpc::{Fault, Result};
use crate::wire::common::NetworkAccess;

/// `NetworkAccess.NetworkAccessType`.
mod kind {
    pub(super) const BLOCKED: i32 = 2;
    pub(super) const ALLOWLIST: i32 = 3;
}
/// Ports by which names are reached: there the gateway sees which name a connection is for.
const PORTS: [u16; 2] = [80, 443];
/// Name of the rules.
const NAME: &str = "modal-allow";

/// The policy that a client asks for; `None` if it asks for none in particular. It gets the server's or the template's
/// default then: a client cannot open what the server closes.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(crate) fn policy(access: Option<&NetworkAccess>, blocked: bool) -> Result<Option<EgressPolicy>> {
    let nothing = EgressPolicy { internet: Internet::Off, ..EgressPolicy::default() };
    let Some(access) = access else { return Ok(blocked.then_some(nothing)) };
    match access.network_access_type {
        kind::BLOCKED => Ok(Some(nothing)),
        kind::ALLOWLIST => {
            let ranges = access.allowed_cidrs.iter().map(|cidr| range(cidr));
            let names = access.allowed_domains.iter().map(|name| {
                rule(
                    "outbound_domain_allowlist",
                    name,
                    json!({"action": "allow", "name": NAME, "domain": name, "ports": PORTS}),
                )
            });
            let rules = ranges.chain(names).collect::<Result<Vec<_>>>()?;
            let policy = if rules.is_empty() { nothing } else { EgressPolicy::only(rules) };
            policy.validate("network_access")?;
            Ok(Some(policy))
        }
        _ => Ok(blocked.then_some(nothing)),
    }
}

fn range(cidr: &str) -> Result<Rule> {
    const FIELD: &str = "outbound_cidr_allowlist";
    let parsed: Cidr = cidr.parse().map_err(|_malformed| refused(FIELD, cidr, "is no range of addresses"))?;
    if !parsed.is_everything()
        && let Some(what) = atoll_core::policy::special(parsed.net().addr())
    {
        return Err(refused(FIELD, cidr, &format!("leads into {what}")));
    }
    rule(FIELD, cidr, json!({"action": "allow", "name": NAME, "cidr": cidr}))
}

fn rule(field: &str, target: &str, value: Value) -> Result<Rule> {
    serde_json::from_value(value).map_err(|error| refused(field, target, &error.to_string()))
}

fn refused(field: &str, target: &str, why: &str) -> Fault {
    Fault::invalid(format!("{field}: '{}' {why}", atoll_core::error::shorten(target)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: i32, cidrs: &[&str], domains: &[&str]) -> Result<Option<EgressPolicy>> {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let access = NetworkAccess {
            network_access_type: kind,
            allowed_cidrs: texts(cidrs),
            allowed_domains: texts(domains),
        };
        policy(Some(&access), false)
    }

    #[test]
    fn what_is_asked_for() {
        assert_eq!(of(1, &[], &[]).unwrap(), None);
        assert_eq!(of(2, &[], &[]).unwrap().unwrap().internet, Internet::Off);
        assert_eq!(policy(None, true).unwrap().unwrap().internet, Internet::Off);
        assert_eq!(of(3, &[], &[]).unwrap().unwrap().internet, Internet::Off);
        let some = of(3, &["1.1.1.0/24"], &["*.example.com"]).unwrap().unwrap();
        assert_eq!((some.internet, some.rules.len()), (Internet::Rules, 2));
        for bad in [of(3, &["10.0.0.0/8"], &[]), of(3, &["x"], &[]), of(3, &[], &["a b"])] {
            assert!(bad.is_err());
        }
    }
}
