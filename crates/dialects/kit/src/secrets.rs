//! Variables that stand for secrets of the installation. Their values never enter a sandbox: the variable holds a
//! placeholder, and the gateway replaces it in requests to the hosts that the secret is for.
//!
//! These are the hosts of the secret's lock. If the lock allows every host, the secret goes to the hosts that the
//! sandbox's egress rules allow by name; without such rules no host is named for the secret, and it is refused.

use atoll_core::policy::{
    Action, DomainPattern, EgressPolicy, InjectRule, Internet, Placeholder, PortRange, Rule,
};
use atoll_core::{Error, Result};
use atoll_store::SecretRecord;

/// The port of HTTPS.
const HTTPS: u16 = 443;

/// A placeholder for a secret, in a variable, with the default places in which the gateway replaces it.
///
/// # Errors
/// [`atoll_core::Code::InvalidArgument`] for a name that is not valid.
pub fn placeholder(secret: &str, variable: &str) -> Result<Placeholder> {
    Ok(Placeholder {
        secret: secret.parse()?,
        env: Some(variable.to_owned()),
        prefix: None,
        headers: Vec::new(),
        path: false,
        query: false,
        body: false,
        value: None,
    })
}

/// The rule called `name` that makes a variable stand for a secret in a sandbox that reaches what `egress` allows.
/// `field` is the name of the secret's field in the request.
///
/// # Errors
/// [`atoll_core::Code::InvalidArgument`] for a secret that has no hosts.
pub fn rule(
    field: &str,
    name: &str,
    variable: &str,
    secret: &SecretRecord,
    egress: &EgressPolicy,
) -> Result<InjectRule> {
    let nowhere = || {
        let name = &secret.name;
        let why = format!(
            "values of secrets never enter a sandbox: the variable holds a placeholder, which the server replaces in \
             requests to the hosts that the secret is for, and '{name}' has none"
        );
        let hint = format!("name them: 'atoll secret set {name} --keep-value --host HOST'");
        Error::invalid(field, why).hint(hint)
    };
    Ok(InjectRule {
        name: name.to_owned(),
        hosts: hosts(&secret.scope.hosts, egress).ok_or_else(nowhere)?,
        placeholders: vec![placeholder(&secret.name, variable)?],
        ..InjectRule::default()
    })
}

fn hosts(lock: &[DomainPattern], egress: &EgressPolicy) -> Option<Vec<DomainPattern>> {
    if !lock.contains(&DomainPattern::Any) {
        return Some(lock.to_vec());
    }
    let allowed = egress.rules.iter().filter(|rule| rule.action == Action::Allow);
    let mut hosts: Vec<DomainPattern> = Vec::new();
    for host in allowed.filter_map(|rule| rule.domain.clone()) {
        if host != DomainPattern::Any && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    (egress.internet == Internet::Rules && !hosts.is_empty()).then_some(hosts)
}

/// Lets the sandbox reach the hosts of `rules`, where the policy says nothing about them: a secret for a host that the
/// sandbox cannot reach would be of no use.
pub fn open(egress: &mut EgressPolicy, rules: &[InjectRule]) {
    if rules.is_empty() || egress.internet == Internet::On {
        return;
    }
    if egress.internet == Internet::Off {
        // Rules have no effect while the internet is off.
        egress.rules.clear();
        egress.internet = Internet::Rules;
    }
    for rule in rules {
        for host in &rule.hosts {
            let ports = if rule.ports.is_empty() { vec![HTTPS] } else { rule.ports.clone() };
            let ports = ports.into_iter().map(PortRange::one).collect();
            egress.rules.push(Rule { ports, ..Rule::domain(Action::Allow, host.clone()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> DomainPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_secret_goes_where_its_lock_says() {
        let lock = [host("api.a.com")];
        assert_eq!(hosts(&lock, &EgressPolicy::open()), Some(lock.to_vec()));
    }

    #[test]
    fn one_for_every_host_goes_where_the_sandbox_goes_by_name() {
        let rule = |text: &str| Rule::parse_domain(Action::Allow, text).unwrap();
        let rules = vec![rule("a.com:443"), rule("a.com:80"), rule("*"), rule("*.b.com")];
        let egress = EgressPolicy { internet: Internet::Rules, rules, ..EgressPolicy::default() };
        assert_eq!(hosts(&[DomainPattern::Any], &egress), Some(vec![host("a.com"), host("*.b.com")]));
        for internet in [Internet::On, Internet::Off] {
            assert_eq!(hosts(&[DomainPattern::Any], &EgressPolicy { internet, ..egress.clone() }), None);
        }
    }

    #[test]
    fn what_is_closed_opens_for_the_hosts_alone() {
        let rules = [InjectRule { hosts: vec![host("a.com")], ..InjectRule::default() }];
        let mut egress = EgressPolicy::default();
        open(&mut egress, &[]);
        assert_eq!(egress, EgressPolicy::default());
        open(&mut egress, &rules);
        assert_eq!((egress.internet, egress.rules.len()), (Internet::Rules, 1));
        let mut all = EgressPolicy::open();
        open(&mut all, &rules);
        assert_eq!(all, EgressPolicy::open());
    }
}
