//! The resolver of sandboxes: the only one that they reach, and the source of the names that count.
//!
//! A name is looked up only if the policy leaves a way to use it, so that a lookup carries no data to a server that no
//! rule allows. Only questions that lead to addresses are passed on; everything else (`TXT`, `NULL`, `ANY`, `HTTPS` …)
//! is answered "nothing there" without asking a resolver. There is no IPv6 in a sandbox, so `AAAA` is "nothing there",
//! too.

mod cache;
#[cfg(test)]
mod fuzz;
mod hosts;
mod message;
mod serve;
mod servers;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use atoll_core::policy::{Basis, EgressPolicy, HostName};
use hickory_proto::rr::{RData, Record, RecordType};

use crate::limits::{DNS_ADDRESSES_MAX_COUNT, DNS_NAME_MAX_BYTES};
use crate::refusal::Refusal;
use crate::sandbox::SandboxNet;
use atoll_core::network::Stage;
use atoll_recorder::event::Destination;

use cache::Cache;
use hosts::Hosts;
use servers::Servers;

pub(crate) use serve::{serve_tcp, serve_udp};

/// The outcome of a question for addresses.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// The addresses, at least one.
    Addresses(Vec<IpAddr>),
    /// The policy does not allow the question.
    Refused(Refusal),
    /// There is no answer.
    Failed(&'static str),
}

/// An answer as resolvers gave it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// Whether the name exists.
    pub(crate) exists: bool,
    /// Only of the type that was asked for, and aliases.
    pub(crate) records: Vec<Record>,
    /// How long it counts.
    pub(crate) ttl: Duration,
}

impl Answer {
    fn addresses(&self) -> Vec<IpAddr> {
        let address = |record: &Record| match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(a) => Some(IpAddr::V6(a.0)),
            _ => None,
        };
        self.records.iter().filter_map(address).take(DNS_ADDRESSES_MAX_COUNT).collect()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The policy does not allow the question.
    Refused(Refusal),
    /// No resolver answered.
    Failed(&'static str),
}

/// The resolver that all sandboxes share. The answers that a sandbox was given are kept with that sandbox.
#[derive(Debug)]
pub(crate) struct Resolver {
    hosts: Hosts,
    servers: Servers,
    cache: Cache,
}

impl Resolver {
    /// Asks these servers, or those of the host when there are none, for names that are not in the list `hosts`.
    pub(crate) fn new(hosts: Option<PathBuf>, servers: Vec<SocketAddr>) -> Self {
        Self { hosts: Hosts::new(hosts), servers: Servers::new(servers), cache: Cache::default() }
    }

    /// The addresses of a name, for a connection that the gateway itself makes. `what` names the refused connection if
    /// the policy does not allow it.
    pub(crate) async fn addresses(&self, net: &SandboxNet, name: &HostName, what: &str) -> Resolution {
        let mut last = Resolution::Failed("the name has no address");
        // IPv4 first: a host without a way for IPv6 is the more common kind.
        for kind in [RecordType::A, RecordType::AAAA] {
            match self.ask(net, name, kind).await {
                Ok(answer) => {
                    let addresses = answer.addresses();
                    if !addresses.is_empty() {
                        return Resolution::Addresses(addresses);
                    }
                    if !answer.exists {
                        return Resolution::Failed("there is no such name");
                    }
                }
                Err(NoAnswer::Refused(refusal)) => {
                    return Resolution::Refused(Refusal {
                        what: crate::connection::shorten(what),
                        ..refusal
                    });
                }
                Err(NoAnswer::Failed(why)) => last = Resolution::Failed(why),
            }
        }
        last
    }

    /// The addresses that resolvers give for a name of this server. No sandbox asks this question, so no policy is
    /// asked.
    pub(crate) async fn addresses_of_host(&self, name: &HostName) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for kind in [RecordType::A, RecordType::AAAA] {
            // Both: which of the two a sandbox's program uses is not ours to know.
            found.extend(self.hosts.find(name, kind).iter().flat_map(Answer::addresses));
            match self.servers.ask(name, kind).await {
                Ok(answer) => found.extend(answer.addresses()),
                Err(why) => tracing::debug!(%name, why, "a name of this server cannot be looked up"),
            }
        }
        found
    }

    /// Asks for records, if the policy allows the name. The sandbox counts as having been told.
    pub(crate) async fn ask(
        &self,
        net: &SandboxNet,
        name: &HostName,
        kind: RecordType,
    ) -> Result<Answer, NoAnswer> {
        if let Err(refusal) = may_ask(net, name) {
            net.deny(&refusal);
            return Err(NoAnswer::Refused(refusal));
        }
        let known = self.hosts.find(name, kind).or_else(|| self.cache.get(name, kind));
        let answer = match known {
            Some(answer) => answer,
            None => {
                if !net.lookups.take() {
                    net.deny(&Refusal {
                        stage: Stage::Limit,
                        what: "name lookups".to_owned(),
                        why: "too many different names in a short time".to_owned(),
                        ask: None,
                        to: None,
                    });
                    return Err(NoAnswer::Failed("too many different names in a short time"));
                }
                let answer = self.servers.ask(name, kind).await.map_err(|why| {
                    // The policy refused nothing, but a user who looks for the reason looks among the refusals.
                    net.deny(&Refusal {
                        stage: Stage::Dns,
                        what: name.to_string(),
                        why: why.to_owned(),
                        ask: None,
                        to: None,
                    });
                    NoAnswer::Failed(why)
                })?;
                self.cache.put(name, kind, &answer);
                answer
            }
        };
        net.learn(name, &answer.addresses(), answer.ttl);
        Ok(answer)
    }
}

/// Whether a sandbox may look a name up. A look-up that its policy only observes is recorded.
fn may_ask(net: &SandboxNet, name: &HostName) -> Result<(), Refusal> {
    let policy = net.policy();
    by_rules(&policy, name).or_else(|refusal| {
        if !policy.observes_names() {
            return Err(refusal);
        }
        net.observe(&refusal);
        Ok(())
    })
}

/// Whether a sandbox may look a name up only because its policy observes.
fn only_observed(net: &SandboxNet, name: &HostName) -> bool {
    let policy = net.policy();
    policy.observes_names() && by_rules(&policy, name).is_err()
}

fn by_rules(policy: &EgressPolicy, name: &HostName) -> Result<(), Refusal> {
    let decision = policy.may_resolve(name);
    let refuse = |why: String, ask| Refusal {
        stage: Stage::Dns,
        what: name.to_string(),
        why,
        ask,
        to: Some(Box::new(Destination { names: vec![name.to_string()], ..Destination::default() })),
    };
    if !decision.allowed {
        let ask = match decision.basis {
            Basis::Rule(_) => None,
            Basis::Internet | Basis::Special(_) | Basis::Resolver => Some(format!("--allow {name}")),
        };
        return Err(refuse(policy.describe(decision.basis), ask));
    }
    let spelled_out = match decision.basis {
        Basis::Rule(index) => {
            let domain = policy.rules.get(index).and_then(|rule| rule.domain.as_ref());
            domain.is_some_and(|domain| matches!(domain, atoll_core::policy::DomainPattern::Exact(_)))
        }
        Basis::Internet | Basis::Special(_) | Basis::Resolver => false,
    };
    if name.as_str().len() > DNS_NAME_MAX_BYTES && !spelled_out {
        let why = format!("names longer than {DNS_NAME_MAX_BYTES} bytes need a rule that spells them out");
        return Err(refuse(why, None));
    }
    Ok(())
}
