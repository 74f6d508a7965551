//! What a sandbox may reach.
//!
//! An [`EgressPolicy`] is a list of rules and a word about everything that no rule speaks of. The first
//! rule that matches decides. [`EgressPolicy::decide`] is a pure function of the policy and of what is
//! known about a connection; the gateway asks it at every stage (a name is looked up, a connection is
//! made, a request is sent), each time with more known.
//!
//! Missing knowledge never counts in the sandbox's favour: a rule that allows must match for certain, a rule that
//! denies needs only to be possible. For the question whether a name may be looked up it is the other way round
//! ([`EgressPolicy::may_resolve`]): refusing there would hide what a later stage allows.
//!
//! Addresses that lead into private networks or to the host itself ([`special`]) are reached only
//! through a rule that names them by address: no `internet: on` and no domain opens them.
//!
//! The rules give the decision. The policy's *mode* says whether the gateway follows it: where it only observes,
//! [`EgressPolicy::observes`] says which traffic passes all the same.

mod domain;
mod evaluate;
mod header;
pub mod inject;
mod origin;
mod path;
mod rule;
mod secret;
mod special;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::{
    EGRESS_BANDWIDTH_MIN_BYTES, EGRESS_CONNECTIONS_DEFAULT_COUNT, EGRESS_CONNECTIONS_MAX_COUNT,
    EGRESS_ORIGINS_MAX_COUNT, EGRESS_RULES_MAX_COUNT,
};

pub use domain::{DomainPattern, HostName};
pub use evaluate::{Basis, Decision, Destination, Http};
pub use header::KEY_HEADERS;
pub use inject::{BasicAuth, InjectRule, Placeholder, RequestFacts};
pub use origin::{Origin, Sender};
pub use path::PathPattern;
pub use rule::{Action, Cidr, PortRange, Rule};
pub use secret::{SecretRef, SecretScope, SecretUser, Template, secret_name, secret_value};
pub use special::{canonical, special};

/// What happens where no rule speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Internet {
    /// No network at all; rules are kept but not looked at.
    #[default]
    Off,
    /// Everything public is allowed unless a rule denies it.
    On,
    /// Only what a rule allows.
    Rules,
}

impl Internet {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Rules => "rules",
        }
    }
}

/// What happens to what may not pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EgressMode {
    /// It is refused, and the journal says so.
    #[default]
    Enforce,
    /// It passes, and the journal says that it would have been refused. What is not public stays closed, no secret is put into what
    /// would have been refused, and limits hold.
    Observe,
}

impl EgressMode {
    /// The stable text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
    fn is_default(&self) -> bool {
        *self == Self::Enforce
    }
}

/// How much of the network one sandbox may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EgressLimits {
    /// Open connections to the outside at once; 512 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Bytes per second, in each direction; unlimited when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
}

impl EgressLimits {
    /// Connections at once.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.connections.unwrap_or(EGRESS_CONNECTIONS_DEFAULT_COUNT)
    }
}

/// What a sandbox may reach. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EgressPolicy {
    /// What happens where no rule speaks.
    pub internet: Internet,
    /// Whether what may not pass is refused, or only told of in the journal.
    #[serde(skip_serializing_if = "EgressMode::is_default")]
    pub mode: EgressMode,
    /// Looked at in order; the first that matches decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What is put into requests on their way out: credentials that the sandbox itself does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inject: Vec<InjectRule>,
    /// How much.
    pub limits: EgressLimits,
}

impl EgressPolicy {
    /// Everything public.
    #[must_use]
    pub fn open() -> Self {
        Self { internet: Internet::On, ..Self::default() }
    }

    /// Only what these rules allow.
    #[must_use]
    pub fn only(rules: Vec<Rule>) -> Self {
        Self { internet: Internet::Rules, rules, ..Self::default() }
    }

    /// Checks everything whose form the types do not check already.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`] naming the field below `field`.
    pub fn validate(&self, field: &str) -> Result<()> {
        if self.internet == Internet::Off && self.mode == EgressMode::Observe {
            let why = "there is nothing to observe without a network (internet: off)";
            return Err(Error::invalid(&format!("{field}.mode"), why).hint("write internet: rules"));
        }
        if self.rules.len() > EGRESS_RULES_MAX_COUNT {
            let why = format_args!("more than {EGRESS_RULES_MAX_COUNT} rules");
            return Err(Error::invalid(&format!("{field}.rules"), why));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            rule.validate(&format!("{field}.rules.{index}"))?;
        }
        inject::validate(&format!("{field}.inject"), &self.inject)?;
        if self.origins().len() > EGRESS_ORIGINS_MAX_COUNT {
            let why = format_args!("rules tell more than {EGRESS_ORIGINS_MAX_COUNT} programs apart ('from')");
            return Err(Error::invalid(field, why).hint("name a directory: /opt/tools/*"));
        }
        if self.limits.connections.is_some_and(|count| !(1..=EGRESS_CONNECTIONS_MAX_COUNT).contains(&count)) {
            let why = format_args!("must lie between 1 and {EGRESS_CONNECTIONS_MAX_COUNT}");
            return Err(Error::invalid(&format!("{field}.limits.connections"), why));
        }
        if self.limits.bytes_per_s.is_some_and(|bytes| bytes < EGRESS_BANDWIDTH_MIN_BYTES) {
            let why = format_args!("must be at least {EGRESS_BANDWIDTH_MIN_BYTES}");
            return Err(Error::invalid(&format!("{field}.limits.bytes_per_s"), why));
        }
        Ok(())
    }

    /// Whether encrypted connections may be looked into: then the sandbox must trust the gateway's authority.
    #[must_use]
    pub fn looks_inside(&self) -> bool {
        !self.inject.is_empty()
            || self.rules.iter().any(|rule| !rule.methods.is_empty() || rule.path.is_some())
    }

    /// Every program that rules tell from others, each once.
    #[must_use]
    pub fn origins(&self) -> Vec<Origin> {
        let named = self.rules.iter().filter_map(|rule| rule.from.as_ref());
        let all: std::collections::BTreeSet<&Origin> =
            named.chain(self.inject.iter().filter_map(|rule| rule.from.as_ref())).collect();
        all.into_iter().cloned().collect()
    }

    /// Refuses rules for one exec where there cannot be any yet.
    ///
    /// # Errors
    /// [`crate::Code::InvalidArgument`].
    pub fn check_no_execs(&self, field: &str) -> Result<()> {
        let Some(id) = self.origins().iter().find_map(|origin| origin.exec().map(str::to_owned)) else {
            return Ok(());
        };
        let why = format_args!("there is no exec '{id}' yet in what is only made");
        Err(Error::invalid(&format!("{field}: from.exec"), why)
            .hint("change the policy when the exec runs, or use a profile: from.profile"))
    }

    /// Says in words what a decision rests on, such as `rule 2 (deny *.example.com:443)`.
    #[must_use]
    pub fn describe(&self, basis: Basis) -> String {
        match basis {
            Basis::Rule(index) => match self.rules.get(index) {
                Some(rule) => format!("rule {} ({rule})", index + 1),
                None => format!("rule {}", index + 1),
            },
            Basis::Internet => match self.internet {
                Internet::Off => "this sandbox has no internet (internet: off)".to_owned(),
                Internet::On => "internet: on".to_owned(),
                Internet::Rules => "no rule allows it (internet: rules)".to_owned(),
            },
            Basis::Resolver => "other resolvers need a rule of their own".to_owned(),
            Basis::Special(what) => format!("{what} needs a rule that allows it by address"),
        }
    }
}
