//! What a policy says of one thing that was asked.

use std::fmt;

use atoll_core::policy::{Basis, Decision, Destination, EgressPolicy, Http, Origin, Sender};

use crate::file::Policies;
use crate::trace::{Asked, Program, What};

/// What a policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it passes.
    pub outcome: Outcome,
    /// The rule, or that there is none, in words.
    pub why: String,
    /// The rule that decides, from 0.
    pub rule: Option<usize>,
}

/// Whether something passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It does.
    Allowed,
    /// It does not.
    Refused,
    /// That depends on what the trace does not have.
    Unclear,
}

/// What a policy says of something. A half that the policies lack allows everything.
#[must_use]
pub fn verdict(policies: &Policies, asked: &Asked) -> Verdict {
    match (&asked.what, &policies.execution, &policies.egress) {
        (What::Program(program), Some(policy), _) => {
            let decision = policy.decide(&program.file());
            let rule = match decision.basis {
                atoll_core::execution::ProgramBasis::Rule(index) => Some(index),
                _ => None,
            };
            let outcome = if decision.allowed { Outcome::Allowed } else { Outcome::Refused };
            Verdict { outcome, why: policy.describe(decision.basis), rule }
        }
        (What::Lookup | What::Connect | What::Request { .. }, _, Some(policy)) => network(policy, asked),
        _ => Verdict {
            outcome: Outcome::Allowed,
            why: "the policy does not speak of it".to_owned(),
            rule: None,
        },
    }
}

fn network(policy: &EgressPolicy, asked: &Asked) -> Verdict {
    let origins = policy.origins();
    let known = |origin: &&Origin| asked.by.as_ref().is_some_and(|program| is(program, origin) == Some(true));
    let possible =
        |origin: &&Origin| asked.by.as_ref().is_none_or(|program| is(program, origin) != Some(false));
    let certain = asked.by.as_ref().map(|_| Sender::new(origins.iter().filter(known).cloned()));
    let best = Sender::new(origins.iter().filter(possible).cloned());
    let decision = decide(policy, asked, certain.as_ref());
    if !decision.allowed && !origins.is_empty() && decide(policy, asked, Some(&best)).allowed {
        let why = "a rule allows it to some programs, and the trace does not say which one connected";
        return Verdict { outcome: Outcome::Unclear, why: why.to_owned(), rule: None };
    }
    if asked.what == What::Connect
        && asked.tls
        && let Some(to) = destination(asked, certain.as_ref())
        && to.name.is_some()
        && policy.needs_http(&to)
    {
        let why = "TLS would be opened there and each request decided upon; the trace has none of them";
        return Verdict { outcome: Outcome::Unclear, why: why.to_owned(), rule: None };
    }
    let rule = match decision.basis {
        Basis::Rule(index) => Some(index),
        Basis::Internet | Basis::Special(_) | Basis::Resolver => None,
    };
    let outcome = if decision.allowed { Outcome::Allowed } else { Outcome::Refused };
    Verdict { outcome, why: policy.describe(decision.basis), rule }
}

/// Asks as the gateway does.
fn decide(policy: &EgressPolicy, asked: &Asked, sender: Option<&Sender>) -> Decision {
    let http = match &asked.what {
        What::Request { method, path } => Http::Request { method, path },
        What::Program(_) | What::Lookup | What::Connect => Http::Unknown,
    };
    match (destination(asked, sender), asked.names.first()) {
        (Some(to), _) => policy.decide_among(&asked.names, &to, http),
        (None, Some(name)) => policy.may_resolve(name),
        // Nothing that a policy could be asked about is without both.
        (None, None) => Decision { allowed: false, basis: Basis::Internet },
    }
}

fn destination<'a>(asked: &'a Asked, sender: Option<&'a Sender>) -> Option<Destination<'a>> {
    let address = asked.address?;
    let name = match asked.names.as_slice() {
        [name] => Some(name),
        _ => None,
    };
    Some(Destination {
        name,
        address: address.ip(),
        port: address.port(),
        own: asked.own,
        closed: asked.closed,
        sender,
    })
}

/// Whether a program is what a rule names; `None` when that cannot be told.
fn is(program: &Program, origin: &Origin) -> Option<bool> {
    let unchanged = program.origin == atoll_core::execution::ProgramOrigin::Image;
    match (origin.path(), origin.digest(), &program.digest) {
        // Of profiles and execs an assertion says nothing.
        _ if !origin.names_programs() => None,
        _ if !unchanged => Some(false),
        (Some(path), _, _) => Some(atoll_core::execution::covers_program(path, &program.path)),
        (None, Some(digest), Some(own)) if algorithm(digest) == algorithm(own) => Some(digest == own),
        _ => None,
    }
}

fn algorithm(digest: &str) -> &str {
    digest.split(':').next().unwrap_or_default()
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.address.map(|address| address.port());
        let whom = match (self.names.as_slice(), self.address) {
            ([name], _) => name.to_string(),
            (_, Some(address)) => address.ip().to_string(),
            (names, None) => names.first().map(ToString::to_string).unwrap_or_default(),
        };
        match (&self.what, port) {
            (What::Program(program), _) => write!(f, "exec {}", program.path),
            (What::Lookup, _) => write!(f, "lookup {whom}"),
            (What::Request { method, path }, Some(port)) => {
                let (scheme, usual) = if self.tls { ("https", 443) } else { ("http", 80) };
                let port = if port == usual { String::new() } else { format!(":{port}") };
                write!(f, "{method} {scheme}://{whom}{port}{path}")
            }
            (_, port) => write!(f, "connect {whom}:{}", port.unwrap_or_default()),
        }
    }
}
