//! Arguments of the commands about a sandbox's network.

use std::convert::Infallible;

use atoll_core::policy::{Action, Cidr, Origin, Rule};
use clap::{Args, Subcommand};

use super::egress::domain;
use crate::presets;

#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// Show policy, what is put into requests, open connections, and bytes by destination
    Show {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Show what was refused, with the reason
    Denied {
        /// Sandbox, by id or name
        sandbox: String,
    },
    /// Allow hosts or addresses besides what a sandbox may reach, or take that back; all else stays as it is
    Allow(ChangeArgs),
    /// Deny hosts or addresses, or take that back; all else stays as it is
    Deny(ChangeArgs),
    /// Show the lists of hosts that @NAME stands for
    Presets,
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Take such rules away instead
    #[arg(long)]
    pub(crate) remove: bool,
    /// Only for connections of one program of the image (/usr/bin/git, '/usr/lib/git-core/*', sha256:DIGEST), one profile
    /// (profile:NAME), or a running exec with all that it starts (exec:ID); containers only
    #[arg(long, value_name = "PROGRAM|profile:NAME|exec:ID", value_parser = |text: &str| Ok::<_, Infallible>(Origin::parse(text)))]
    pub(crate) from: Option<Origin>,
    /// Sandbox, by id or name
    pub(crate) sandbox: String,
    /// Hosts (example.com, *.example.com), addresses (10.1.0.0/16), each also with :PORT, or @PRESET
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
}

/// The rules that a target means.
pub(crate) fn rules(action: Action, target: &str) -> Result<Vec<Rule>, String> {
    if target.starts_with(presets::SIGN) {
        return presets::rules(action, target);
    }
    let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
    if [host, target].iter().any(|text| text.parse::<Cidr>().is_ok()) || target.starts_with('[') {
        return Rule::parse_cidr(action, target).map(|rule| vec![rule]).map_err(|error| error.to_string());
    }
    domain(action, target).map(|rule| vec![rule])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let text = |target: &str| rules(Action::Allow, target).map(|rules| rules[0].to_string());
        for (target, want) in [
            ("pypi.org", "allow pypi.org"),
            ("*.example.com:443", "allow *.example.com:443"),
            ("10.1.2.3:5432", "allow 10.1.2.3:5432"),
            ("10.0.0.0/8", "allow 10.0.0.0/8"),
            ("2001:db8::/32", "allow 2001:db8::/32"),
            ("[2001:db8::1]:22", "allow 2001:db8::1:22"),
            ("@openai", "\"@openai\": allow api.openai.com:443"),
        ] {
            assert_eq!(text(target).as_deref(), Ok(want));
        }
        for bad in ["", "https://a.example", "a b", "@", "@none", "a.example:x"] {
            assert!(text(bad).is_err(), "{bad}");
        }
    }
}
