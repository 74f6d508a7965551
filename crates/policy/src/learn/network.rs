//! What was reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use atoll_core::limits::{EGRESS_RULE_PORTS_MAX_COUNT, EGRESS_RULES_MAX_COUNT};
use atoll_core::policy::{
    Action, DomainPattern, EgressPolicy, HostName, Internet, PathPattern, PortRange, Rule, canonical, special,
};

use super::{Learned, Options};
use crate::cover::needed;
use crate::file::Policies;
use crate::fold;
use crate::trace::{Asked, Trace, What};
use crate::verdict::{Outcome, verdict};

/// Addresses that no host has (RFC 5737): a rule for a name there lets the name be looked up, and nothing be reached.
const NOWHERE: &str = "192.0.2.0/24";

/// The host that a rule names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    Name(HostName),
    /// A name whose address only a rule about the address opens.
    NameAt(HostName, IpAddr),
    Address(IpAddr),
}

/// What was asked of one host at one port.
#[derive(Debug, Default)]
struct Use {
    /// A connection whose content the gateway does not read, or a request that no pattern of paths can name.
    whole: bool,
    /// Requests: paths with their methods.
    requests: BTreeMap<String, BTreeSet<String>>,
}

pub(super) fn learn(
    trace: &Trace,
    base: Option<&EgressPolicy>,
    options: Options,
    learned: &mut Learned,
) -> Result<EgressPolicy, String> {
    let passed: Vec<&Asked> = trace
        .asked()
        .iter()
        .filter(|(asked, seen)| seen.passed() && !matches!(asked.what, What::Program(_)))
        .map(|(asked, _)| asked)
        .collect();
    let denies = base.is_some_and(|base| base.rules.iter().any(|rule| rule.action == Action::Deny));
    let fold = if denies || options.fold == 0 { usize::MAX } else { options.fold };
    if denies && options.fold > 0 {
        let note = "the policy in force denies something: no wildcards of domains or paths were made over it";
        learned.notes.push(note.to_owned());
    }
    let uses = uses(&passed);
    let mut rules = wholes(&uses);
    folded_domains(&mut rules, fold, &mut learned.folds);
    rules.extend(requests(&uses, fold, &mut learned.folds));
    rules.extend(lookups(&rules, &passed));
    let rules = minimal(rules, &passed);
    if rules.len() > EGRESS_RULES_MAX_COUNT {
        return Err(format!(
            "{} rules would be needed for the network and {EGRESS_RULES_MAX_COUNT} are possible: fold more (--fold 3), or learn \
             from less",
            rules.len()
        ));
    }
    let mut policy = if rules.is_empty() { EgressPolicy::default() } else { EgressPolicy::only(rules) };
    if let Some(base) = base {
        policy.limits = base.limits;
        policy.inject.clone_from(&base.inject);
    }
    if policy.internet == Internet::Off {
        policy.inject.clear();
    }
    Ok(policy)
}

fn uses(passed: &[&Asked]) -> BTreeMap<(Whom, u16), Use> {
    let sure: BTreeSet<&HostName> = passed
        .iter()
        .filter_map(|asked| match asked.names.as_slice() {
            [name] if asked.address.is_some() => Some(name),
            _ => None,
        })
        .collect();
    let mut uses: BTreeMap<(Whom, u16), Use> = BTreeMap::new();
    for asked in passed {
        let Some(address) = asked.address else { continue };
        let closed = asked.own || asked.closed.is_some() || special(canonical(address.ip())).is_some();
        // Of several names that may be meant one that is needed anyway.
        let name = asked.names.iter().find(|name| sure.contains(name)).or(asked.names.first());
        let whom = match name {
            Some(name) if closed => Whom::NameAt(name.clone(), canonical(address.ip())),
            Some(name) => Whom::Name(name.clone()),
            None => Whom::Address(canonical(address.ip())),
        };
        let entry = uses.entry((whom, address.port())).or_default();
        match &asked.what {
            What::Request { method, path } if is_plain(method, path) => {
                entry.requests.entry(path.clone()).or_default().insert(method.clone());
            }
            _ => entry.whole = true,
        }
    }
    uses
}

/// Whether a rule can name this request.
fn is_plain(method: &str, path: &str) -> bool {
    let methods = (1..=32).contains(&method.len()) && method.bytes().all(|byte| byte.is_ascii_uppercase());
    methods && !path.contains('*') && path.parse::<PathPattern>().is_ok_and(|pattern| pattern.matches(path))
}

impl Whom {
    fn rule(&self) -> Rule {
        let at = |ip: &IpAddr| ip.to_string().parse().ok();
        match self {
            Self::Name(name) => Rule::domain(Action::Allow, DomainPattern::Exact(name.clone())),
            Self::NameAt(name, ip) => {
                Rule { cidr: at(ip), ..Rule::domain(Action::Allow, DomainPattern::Exact(name.clone())) }
            }
            Self::Address(ip) => Rule { cidr: at(ip), ..Rule::any(Action::Allow) },
        }
    }
}

/// One rule for each host with its ports, of those with connections whose content the gateway does not read.
fn wholes(uses: &BTreeMap<(Whom, u16), Use>) -> Vec<Rule> {
    let mut hosts: BTreeMap<&Whom, Vec<u16>> = BTreeMap::new();
    for ((whom, port), _) in uses.iter().filter(|(_, asked)| asked.whole) {
        hosts.entry(whom).or_default().push(*port);
    }
    hosts.into_iter().flat_map(|(whom, ports)| with_ports(&whom.rule(), &ports)).collect()
}

fn with_ports(rule: &Rule, ports: &[u16]) -> Vec<Rule> {
    let some = |ports: &[u16]| Rule {
        ports: ports.iter().map(|port| PortRange::one(*port)).collect(),
        ..rule.clone()
    };
    ports.chunks(EGRESS_RULE_PORTS_MAX_COUNT).map(some).collect()
}

/// Puts wildcards in the place of names that are allowed alike.
fn folded_domains(rules: &mut Vec<Rule>, threshold: usize, folds: &mut Vec<String>) {
    let mut alike: BTreeMap<String, (Rule, BTreeSet<HostName>)> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.cidr.is_none()) {
        if let Some(DomainPattern::Exact(name)) = &rule.domain {
            let other = Rule { domain: None, ..rule.clone() };
            alike.entry(other.to_string()).or_insert((other, BTreeSet::new())).1.insert(name.clone());
        }
    }
    for (other, names) in alike.into_values() {
        for fold in fold::domains(&names, threshold) {
            let is_folded = |rule: &Rule| {
                let Some(DomainPattern::Exact(name)) = &rule.domain else { return false };
                fold.names.contains(name) && Rule { domain: None, ..rule.clone() } == other
            };
            rules.retain(|rule| !is_folded(rule));
            let rule = Rule { domain: Some(DomainPattern::Below(fold.below.clone())), ..other.clone() };
            folds.push(told(&rule.to_string(), &fold.names));
            rules.push(rule);
        }
    }
}

/// Rules for requests that were read: a rule for each host, path and set of methods.
fn requests(uses: &BTreeMap<(Whom, u16), Use>, threshold: usize, folds: &mut Vec<String>) -> Vec<Rule> {
    let mut wanted: BTreeMap<(&Whom, String, Vec<String>), Vec<u16>> = BTreeMap::new();
    for ((whom, port), asked) in uses.iter().filter(|(_, asked)| !asked.whole) {
        let mut by_methods: BTreeMap<Vec<String>, BTreeSet<String>> = BTreeMap::new();
        for (path, methods) in &asked.requests {
            by_methods.entry(methods.iter().cloned().collect()).or_default().insert(path.clone());
        }
        for (methods, mut paths) in by_methods {
            for fold in fold::paths(&paths, threshold) {
                paths.retain(|path| !fold.names.contains(path));
                let pattern = format!("{}/*", fold.below);
                let rule = Rule { path: pattern.parse().ok(), methods: methods.clone(), ..whom.rule() };
                folds.push(told(&rule.to_string(), &fold.names));
                wanted.entry((whom, pattern, methods.clone())).or_default().push(*port);
            }
            for path in paths {
                wanted.entry((whom, path, methods.clone())).or_default().push(*port);
            }
        }
    }
    let mut rules = Vec::new();
    for ((whom, path, methods), ports) in wanted {
        for methods in methods.chunks(EGRESS_RULE_PORTS_MAX_COUNT) {
            let rule = Rule { path: path.parse().ok(), methods: methods.to_vec(), ..whom.rule() };
            rules.extend(with_ports(&rule, &ports));
        }
    }
    rules
}

/// Rules for names that were only looked up.
fn lookups(rules: &[Rule], passed: &[&Asked]) -> Vec<Rule> {
    let policy = EgressPolicy::only(rules.to_vec());
    let missing: BTreeSet<&HostName> = passed
        .iter()
        .filter(|asked| asked.what == What::Lookup)
        .filter_map(|asked| asked.names.first())
        .filter(|name| !policy.may_resolve(name).allowed)
        .collect();
    let rule = |name: &HostName| Rule {
        name: Some("looked up, never reached".to_owned()),
        cidr: NOWHERE.parse().ok(),
        ..Rule::domain(Action::Allow, DomainPattern::Exact(name.clone()))
    };
    missing.into_iter().map(rule).collect()
}

/// Without the rules that are not needed.
fn minimal(rules: Vec<Rule>, passed: &[&Asked]) -> Vec<Rule> {
    let covers: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let alone =
                Policies { egress: Some(EgressPolicy::only(vec![rule.clone()])), ..Policies::default() };
            let covered = passed.iter().enumerate();
            covered
                .filter(|(_, asked)| verdict(&alone, asked).outcome == Outcome::Allowed)
                .map(|(at, _)| at)
                .collect()
        })
        .collect();
    let stay = needed(&covers, passed.len());
    let mut rules: Vec<Option<Rule>> = rules.into_iter().map(Some).collect();
    stay.into_iter().filter_map(|at| rules.get_mut(at).and_then(Option::take)).collect()
}

pub(super) fn told<T: std::fmt::Display>(rule: &str, names: &BTreeSet<T>) -> String {
    const SHOWN: usize = 12;
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    if names.len() > SHOWN {
        shown.push(format!("and {} more", names.len() - SHOWN));
    }
    format!("{rule} stands for {}: {}", names.len(), shown.join(", "))
}
