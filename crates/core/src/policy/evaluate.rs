//! The decisions that follow from a policy.

use std::net::IpAddr;

use super::domain::HostName;
use super::origin::Sender;
use super::path::{Reading, could_match, is_unambiguous};
use super::rule::{Action, Cidr, Rule};
use super::special::{Block, block, canonical};
use super::{EgressMode, EgressPolicy, Internet};

/// Ports of DNS and of DNS over TLS: names are looked up with our own resolver.
const RESOLVER_PORTS: [u16; 2] = [53, 853];

/// Where a connection leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination<'a> {
    /// The name that the client means, if it is certain: the name that it sent (server name of TLS,
    /// `Host`) and the answer of our resolver to this sandbox agree.
    pub name: Option<&'a HostName>,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// Whether the address is one of the host's own, or leads to this server.
    pub own: bool,
    /// The network that the operator has closed and that has the address; the narrowest if there are several.
    pub closed: Option<Cidr>,
    /// The sender of the traffic, if it is known.
    pub sender: Option<&'a Sender>,
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

/// The reason of a decision. [`EgressPolicy::describe`] says it in words.
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
    /// Whether a connection, or a request on it, may pass. The mode plays no part.
    #[must_use]
    pub fn decide(&self, to: &Destination<'_>, http: Http<'_>) -> Decision {
        if self.internet == Internet::Off {
            return Decision::deny(Basis::Internet);
        }
        let block = closed(to);
        for (index, rule) in self.rules.iter().enumerate() {
            let found = speaks_to(rule, to).min(speaks_of_http(rule, http));
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

    /// Whether traffic that rules refuse there passes all the same and is reported, because the mode is to observe. An
    /// address that is not public stays closed: there only requests are observed, and only where rules let some of them
    /// pass.
    #[must_use]
    pub fn observes(&self, names: &[HostName], to: &Destination<'_>, http: Http<'_>) -> bool {
        let is_request = matches!(http, Http::Request { .. });
        self.observes_names() && (closed(to).is_none() || is_request && self.could_allow_among(names, to))
    }

    /// Whether names are looked up that rules refuse.
    #[must_use]
    pub fn observes_names(&self) -> bool {
        self.mode == EgressMode::Observe && self.internet != Internet::Off
    }

    /// Whether anything at all may pass to this destination: the connection itself, or some request on it. Where
    /// nothing may, the gateway may not connect there on behalf of the sandbox, not even to find out more.
    #[must_use]
    pub fn could_allow(&self, to: &Destination<'_>) -> bool {
        if self.internet == Internet::Off {
            return false;
        }
        let block = closed(to);
        for rule in &self.rules {
            match (rule.action, speaks_to(rule, to)) {
                // The rule is about some requests: other requests may pass.
                (Action::Deny, Match::Yes | Match::Maybe) if rule.is_http() => {}
                (Action::Deny, Match::Yes | Match::Maybe) => return false,
                (Action::Allow, Match::Yes) if opens(rule, block) => return true,
                (_, Match::No) | (Action::Allow, Match::Yes | Match::Maybe) => {}
            }
        }
        block.is_none() && self.internet == Internet::On && !RESOLVER_PORTS.contains(&to.port)
    }

    /// As [`Self::could_allow`] where any of several names may be meant; without one, the address alone.
    #[must_use]
    pub fn could_allow_among(&self, names: &[HostName], to: &Destination<'_>) -> bool {
        let could = |name| self.could_allow(&Destination { name, ..*to });
        if names.is_empty() { could(None) } else { names.iter().any(|name| could(Some(name))) }
    }

    /// Whether the decision about this destination depends on the request: the connection has to be opened
    /// and looked into. Never where no request could pass.
    #[must_use]
    pub fn needs_http(&self, to: &Destination<'_>) -> bool {
        if !self.could_allow(to) {
            return false;
        }
        let block = closed(to);
        for rule in &self.rules {
            match speaks_to(rule, to) {
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

/// The block that an address is closed by; of several, the one that wants the narrowest rule. So a rule for a
/// private network does not open a host that has an address in it. The loopback has a block of its own, which
/// means the host already.
fn closed(to: &Destination<'_>) -> Option<Block> {
    let address = canonical(to.address);
    let own = (to.own && !address.is_loopback())
        .then_some(Block { what: "an address of the host itself", prefix: u8::MAX });
    let by_operator = to.closed.map(|cidr| Block {
        what: "an address that this server's operator closed",
        prefix: cidr.net().prefix_len(),
    });
    [own, by_operator, block(address)].into_iter().flatten().max_by_key(|block| block.prefix)
}

/// Whether a rule that allows is narrow enough for a closed block.
fn opens(rule: &Rule, block: Option<Block>) -> bool {
    let Some(block) = block else { return true };
    rule.cidr.is_some_and(|cidr| {
        let net = cidr.net();
        net.prefix_len() >= block.prefix.min(net.max_prefix_len())
    })
}

/// Whether a rule speaks of this sender. An unknown sender matches for certain only rules that name none.
fn is_of(rule: &Rule, sender: Option<&Sender>) -> Match {
    match (&rule.from, sender) {
        (None, _) => Match::Yes,
        (Some(origin), Some(sender)) => Match::known(sender.is(origin)),
        (Some(_), None) => Match::Maybe,
    }
}

fn speaks_to(rule: &Rule, to: &Destination<'_>) -> Match {
    speaks_of(rule, to.name, Some(to.address), Some(to.port)).min(is_of(rule, to.sender))
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
    // Servers differ in how they read methods and paths: a rule that allows covers only requests that are written as it
    // says; a rule that denies covers every request that some server may read so.
    let same = |own: &String| match rule.action {
        Action::Allow => own == method,
        Action::Deny => own.eq_ignore_ascii_case(method),
    };
    let methods = Match::known(rule.methods.is_empty() || rule.methods.iter().any(same));
    let path = match (&rule.path, rule.action) {
        (None, _) => Match::Yes,
        (Some(_), _) if !is_unambiguous(path) => Match::Maybe,
        (Some(pattern), Action::Allow) => Match::known(pattern.matches(path)),
        (Some(pattern), Action::Deny) => match could_match(pattern, path) {
            Reading::No => Match::No,
            Reading::Unclear => Match::Maybe,
            Reading::Yes => Match::Yes,
        },
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
