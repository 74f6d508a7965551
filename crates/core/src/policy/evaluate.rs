//! What follows from a policy.

use std::net::IpAddr;

use super::domain::HostName;
use super::rule::{Action, Rule, is_unambiguous};
use super::special::{Block, block, canonical};
use super::{EgressPolicy, Internet};

/// Ports of DNS and of DNS over TLS: names are looked up with our own resolver.
const RESOLVER_PORTS: [u16; 2] = [53, 853];

/// Where a connection leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination<'a> {
    /// The name that is meant, if it is certain: what the client said (server name of TLS, `Host`) and
    /// what our resolver answered to this sandbox agree.
    pub name: Option<&'a HostName>,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// Whether the address is one of the host's own.
    pub own: bool,
}

/// What is known about HTTP on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http<'a> {
    /// Nothing: it is another protocol, or encrypted, or no request has come yet.
    Unknown,
    /// A request.
    Request {
        /// Its method.
        method: &'a str,
        /// Its path, without the query.
        path: &'a str,
    },
}

/// What a decision rests on. [`EgressPolicy::describe`] says it in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// A rule, by its place in the list, from 0.
    Rule(usize),
    /// No rule matched.
    Internet,
    /// The address is not public and no rule names it by address.
    Special(&'static str),
    /// The port is that of another resolver, which needs a rule of its own.
    Resolver,
}

/// Allowed or not, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether it may pass.
    pub allowed: bool,
    /// Why.
    pub basis: Basis,
}

impl Decision {
    const fn allow(basis: Basis) -> Self {
        Self { allowed: true, basis }
    }

    const fn deny(basis: Basis) -> Self {
        Self { allowed: false, basis }
    }
}

/// Whether a rule speaks of something, as far as one can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    No,
    Maybe,
    Yes,
}

impl Match {
    const fn known(matches: bool) -> Self {
        if matches { Self::Yes } else { Self::No }
    }
}

impl EgressPolicy {
    /// Whether a connection, or a request on it, may pass.
    #[must_use]
    pub fn decide(&self, to: &Destination<'_>, http: Http<'_>) -> Decision {
        if self.internet == Internet::Off {
            return Decision::deny(Basis::Internet);
        }
        let block = closed(to);
        for (index, rule) in self.rules.iter().enumerate() {
            let found =
                speaks_of(rule, to.name, Some(to.address), Some(to.port)).min(speaks_of_http(rule, http));
            match (rule.action, found) {
                (Action::Deny, Match::Yes | Match::Maybe) => return Decision::deny(Basis::Rule(index)),
                (Action::Allow, Match::Yes) if opens(rule, block) => {
                    return Decision::allow(Basis::Rule(index));
                }
                (_, Match::No) | (Action::Allow, Match::Yes | Match::Maybe) => {}
            }
        }
        match (block, self.internet) {
            (Some(block), _) => Decision::deny(Basis::Special(block.what)),
            (None, Internet::On) if RESOLVER_PORTS.contains(&to.port) => Decision::deny(Basis::Resolver),
            (None, Internet::On) => Decision::allow(Basis::Internet),
            (None, Internet::Off | Internet::Rules) => Decision::deny(Basis::Internet),
        }
    }

    /// As [`Self::decide`] where the protocol does not say which of several names is meant that have this
    /// address: allowed if that is allowed for one of them and no rule denies another.
    #[must_use]
    pub fn decide_among(&self, names: &[HostName], to: &Destination<'_>, http: Http<'_>) -> Decision {
        let mut best: Option<Decision> = None;
        for name in names {
            let decision = self.decide(&Destination { name: Some(name), ..*to }, http);
            if !decision.allowed && matches!(decision.basis, Basis::Rule(_)) {
                return decision;
            }
            if best.is_none_or(|best| decision.allowed && !best.allowed) {
                best = Some(decision);
            }
        }
        best.unwrap_or_else(|| self.decide(&Destination { name: None, ..*to }, http))
    }

    /// Whether a name may be looked up: whether there is a way in which it may be used.
    #[must_use]
    pub fn may_resolve(&self, name: &HostName) -> Decision {
        if self.internet == Internet::Off {
            return Decision::deny(Basis::Internet);
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let found = speaks_of(rule, Some(name), None, None).min(speaks_of_http(rule, Http::Unknown));
            match (rule.action, found) {
                (Action::Deny, Match::Yes) => return Decision::deny(Basis::Rule(index)),
                (Action::Allow, Match::Yes | Match::Maybe) if speaks_of_names(rule) => {
                    return Decision::allow(Basis::Rule(index));
                }
                (_, Match::No | Match::Maybe) | (Action::Allow, Match::Yes) => {}
            }
        }
        match self.internet {
            Internet::On => Decision::allow(Basis::Internet),
            Internet::Off | Internet::Rules => Decision::deny(Basis::Internet),
        }
    }

    /// Whether the decision about this destination depends on the request: the connection has to be opened
    /// and looked into.
    #[must_use]
    pub fn needs_http(&self, to: &Destination<'_>) -> bool {
        if self.internet == Internet::Off {
            return false;
        }
        let block = closed(to);
        for rule in &self.rules {
            match speaks_of(rule, to.name, Some(to.address), Some(to.port)) {
                Match::No => {}
                Match::Yes | Match::Maybe if rule.is_http() => return true,
                Match::Maybe if rule.action == Action::Allow => {}
                Match::Yes if rule.action == Action::Allow && !opens(rule, block) => {}
                Match::Yes | Match::Maybe => return false,
            }
        }
        false
    }
}

/// The block that an address is closed by.
fn closed(to: &Destination<'_>) -> Option<Block> {
    let address = canonical(to.address);
    let own = || to.own.then_some(Block { what: "an address of the host itself", prefix: u8::MAX });
    block(address).or_else(own)
}

/// Whether a rule that allows is narrow enough for a closed block.
fn opens(rule: &Rule, block: Option<Block>) -> bool {
    let Some(block) = block else { return true };
    rule.cidr.is_some_and(|cidr| {
        let net = cidr.net();
        net.prefix_len() >= block.prefix.min(net.max_prefix_len())
    })
}

fn speaks_of(rule: &Rule, name: Option<&HostName>, address: Option<IpAddr>, port: Option<u16>) -> Match {
    let domain = match (&rule.domain, name) {
        (None, _) => Match::Yes,
        (Some(pattern), Some(name)) => Match::known(pattern.matches(name)),
        (Some(_), None) => Match::Maybe,
    };
    let cidr = match (rule.cidr, address) {
        (None, _) => Match::Yes,
        (Some(cidr), Some(address)) => Match::known(cidr.net().contains(&canonical(address))),
        (Some(_), None) => Match::Maybe,
    };
    let ports = match port {
        _ if rule.ports.is_empty() => Match::Yes,
        Some(port) => Match::known(rule.ports.iter().any(|range| range.contains(port))),
        None => Match::Maybe,
    };
    domain.min(cidr).min(ports)
}

fn speaks_of_http(rule: &Rule, http: Http<'_>) -> Match {
    let Http::Request { method, path } = http else {
        return if rule.is_http() { Match::Maybe } else { Match::Yes };
    };
    let methods = Match::known(rule.methods.is_empty() || rule.methods.iter().any(|own| own == method));
    let path = match &rule.path {
        None => Match::Yes,
        Some(_) if !is_unambiguous(path) => Match::Maybe,
        Some(pattern) => Match::known(pattern.matches(path)),
    };
    methods.min(path)
}

/// Whether a rule that allows is a reason to look names up.
fn speaks_of_names(rule: &Rule) -> bool {
    rule.domain.is_some() || rule.cidr.is_none_or(|cidr| cidr.is_everything())
}

#[cfg(test)]
#[path = "evaluate_tests.rs"]
mod tests;
