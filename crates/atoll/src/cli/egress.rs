//! What a sandbox may reach, in arguments.

use std::path::{Path, PathBuf};

use atoll_core::policy::{
    Action, EgressLimits, EgressMode, EgressPolicy, InjectRule, Internet, Origin, Rule,
};
use clap::Args;

use super::inject::{InjectArgs, allowed};
use crate::failure::{Failure, Result};
use crate::presets;
use crate::units::parse_bytes;

/// What a sandbox may reach. Rules that deny come before rules that allow; for another order, methods
/// and paths, write the policy as JSON and pass it with `--egress`.
#[derive(Debug, Default, Args)]
pub(crate) struct EgressArgs {
    /// What it may reach: nothing, everything public, or what rules allow
    #[arg(help_heading = "Network", long, value_name = "on|off|rules", value_parser = parse_internet)]
    pub(crate) internet: Option<Internet>,
    /// What happens to what may not pass: it is refused, or only told of in the journal
    #[arg(help_heading = "Network", long, value_name = "enforce|observe", value_parser = parse_mode)]
    pub(crate) egress_mode: Option<EgressMode>,
    /// Allow a domain: example.com, *.example.com or *, optionally with :PORT or :FROM-TO; or those of a preset
    /// such as @pypi, @npm, @debian, @github ('atoll net presets') (repeatable)
    #[arg(help_heading = "Network", long, value_name = "DOMAIN|@PRESET", value_parser = |text: &str| named(Action::Allow, text))]
    pub(crate) allow: Vec<Named>,
    /// Allow a domain to one program of the image alone: /usr/bin/curl=example.com:443, '/usr/lib/git-core/*=github.com',
    /// sha256:DIGEST=example.com, profile:NAME=example.com (containers only) (repeatable)
    #[arg(help_heading = "Network", long, value_name = "PROGRAM=DOMAIN", value_parser = from_program)]
    pub(crate) allow_from: Vec<Rule>,
    /// Deny a domain, or those of a preset (repeatable)
    #[arg(help_heading = "Network", long, value_name = "DOMAIN|@PRESET", value_parser = |text: &str| named(Action::Deny, text))]
    pub(crate) deny: Vec<Named>,
    /// Allow addresses, such as 10.1.0.0/16:5432; the only way to reach private ones (repeatable)
    #[arg(help_heading = "Network", long, value_name = "CIDR", value_parser = |text: &str| Rule::parse_cidr(Action::Allow, text))]
    pub(crate) allow_cidr: Vec<Rule>,
    /// Deny addresses (repeatable)
    #[arg(help_heading = "Network", long, value_name = "CIDR", value_parser = |text: &str| Rule::parse_cidr(Action::Deny, text))]
    pub(crate) deny_cidr: Vec<Rule>,
    /// Most connections to the outside at once
    #[arg(help_heading = "Network", long, value_name = "COUNT")]
    pub(crate) connections: Option<u32>,
    /// Most bytes per second in each direction, such as 10MiB
    #[arg(help_heading = "Network", long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) bandwidth: Option<u64>,
    /// File with the whole policy as JSON
    #[arg(help_heading = "Network", long, value_name = "FILE", conflicts_with_all = ["internet", "allow", "allow_from", "deny", "allow_cidr",
          "deny_cidr", "connections", "bandwidth"])]
    pub(crate) egress: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) inject: InjectArgs,
}

/// Largest policy in a file, bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// A domain, or a preset: which hosts that is shows when the configuration has been read.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Domain(Rule),
    Preset(Action, String),
}

pub(super) fn named(action: Action, text: &str) -> std::result::Result<Named, String> {
    if text.starts_with(presets::SIGN) {
        return Ok(Named::Preset(action, text.to_owned()));
    }
    domain(action, text).map(Named::Domain)
}

fn from_program(text: &str) -> std::result::Result<Rule, String> {
    let (program, what) =
        text.split_once('=').ok_or("write PROGRAM=DOMAIN, such as /usr/bin/curl=example.com")?;
    Ok(Rule { from: Some(Origin::parse(program)), ..domain(Action::Allow, what)? })
}

fn expanded(all: Vec<Named>) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for one in all {
        match one {
            Named::Domain(rule) => rules.push(rule),
            Named::Preset(action, text) => {
                rules.extend(presets::rules(action, &text).map_err(Failure::Usage)?);
            }
        }
    }
    Ok(rules)
}

/// A rule about a domain. What people write instead of one is told from what is merely wrong.
pub(super) fn domain(action: Action, text: &str) -> std::result::Result<Rule, String> {
    if text.contains('/') {
        return Err(
            "write the host alone, as HOST or HOST:PORT; ranges of addresses go with the options for CIDR"
                .into(),
        );
    }
    if text.rsplit_once(':').map_or(text, |(host, _)| host).parse::<std::net::IpAddr>().is_ok() {
        return Err("this is an address: use --allow-cidr or --deny-cidr".into());
    }
    Rule::parse_domain(action, text).map_err(|error| error.to_string())
}

fn parse_internet(text: &str) -> std::result::Result<Internet, String> {
    [Internet::Off, Internet::On, Internet::Rules]
        .into_iter()
        .find(|internet| internet.as_str() == text)
        .ok_or_else(|| format!("'{text}' is not on, off or rules"))
}

fn parse_mode(text: &str) -> std::result::Result<EgressMode, String> {
    [EgressMode::Enforce, EgressMode::Observe]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| "write enforce or observe".to_owned())
}

impl EgressArgs {
    /// Allows the hosts of presets, each such as `@pypi`.
    pub(crate) fn presets(names: &[&str]) -> Self {
        let allow = names.iter().map(|name| Named::Preset(Action::Allow, (*name).to_owned())).collect();
        Self { allow, ..Self::default() }
    }

    /// The policy that the arguments mean; `None` when they say nothing.
    pub(crate) fn policy(mut self) -> Result<Option<EgressPolicy>> {
        let (inject, mode) = (std::mem::take(&mut self.inject).rules(), self.egress_mode);
        let mut policy = self.with_injection(inject)?;
        match (&mut policy, mode) {
            (_, None) => {}
            (Some(policy), Some(mode)) => policy.mode = mode,
            (None, Some(_)) => {
                return Err(Failure::Usage(
                    "--egress-mode is of a policy: give --internet, --allow or --egress, too".into(),
                ));
            }
        }
        Ok(policy)
    }

    fn with_injection(self, inject: Vec<InjectRule>) -> Result<Option<EgressPolicy>> {
        let mut policy = self.without_injection()?;
        if inject.is_empty() {
            return Ok(policy);
        }
        let policy_of_rules = || EgressPolicy { internet: Internet::Rules, ..EgressPolicy::default() };
        let whole = policy.get_or_insert_with(policy_of_rules);
        match whole.internet {
            Internet::Off => {
                return Err(Failure::Usage("--internet off does not let any request out".into()));
            }
            // A secret for a host that cannot be reached is nobody's wish.
            Internet::Rules => whole.rules.extend(allowed(&inject).map_err(Failure::Usage)?),
            Internet::On => {}
        }
        whole.inject.extend(inject);
        Ok(policy)
    }

    fn without_injection(self) -> Result<Option<EgressPolicy>> {
        if let Some(path) = &self.egress {
            return read(path).map(Some);
        }
        let denies = expanded(self.deny)?.into_iter().chain(self.deny_cidr);
        let allows: Vec<Rule> =
            expanded(self.allow)?.into_iter().chain(self.allow_from).chain(self.allow_cidr).collect();
        let limits = EgressLimits { connections: self.connections, bytes_per_s: self.bandwidth };
        let any_allowed = !allows.is_empty();
        let rules: Vec<Rule> = denies.chain(allows).collect();
        let internet = match self.internet {
            Some(internet) => internet,
            None if any_allowed => Internet::Rules,
            None if rules.is_empty() && limits == EgressLimits::default() => return Ok(None),
            None => {
                return Err(Failure::Usage(
                    "--deny, --deny-cidr, --connections and --bandwidth need --internet on or --allow".into(),
                ));
            }
        };
        if internet == Internet::Off && !rules.is_empty() {
            return Err(Failure::Usage("--internet off does not look at rules; use --internet rules".into()));
        }
        Ok(Some(EgressPolicy { internet, rules, limits, ..EgressPolicy::default() }))
    }
}

/// Reads a policy as JSON.
pub(crate) fn read(path: &Path) -> Result<EgressPolicy> {
    use std::io::Read as _;
    let what = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).map_err(|error| Failure::io(what(), error))?;
    let mut text = String::new();
    file.take(FILE_MAX_BYTES).read_to_string(&mut text).map_err(|error| Failure::io(what(), error))?;
    half(&text, "egress").map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// Reads one policy, alone or as the half of a file that has both, as `atoll policy learn` writes it.
pub(super) fn half<T: serde::de::DeserializeOwned>(text: &str, key: &str) -> serde_json::Result<T> {
    let whole: serde_json::Value = serde_json::from_str(text)?;
    match whole.get(key) {
        Some(half) if half.is_object() => serde_json::from_value(half.clone()),
        _ => serde_json::from_str(text),
    }
}
