//! Presets: names for lists of hosts that are needed together, such as `@pypi`.
//!
//! They stand for rules when a command is given; sandboxes have the rules, named after the preset. A list that changes
//! later changes no sandbox.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use atoll_core::policy::{Action, Rule};

/// The character with which the name of a preset begins.
pub(crate) const SIGN: char = '@';
/// Port of a host without one.
const PORT: u16 = 443;
/// The lists that come with the program.
const BUILT_IN: &str = include_str!("presets.toml");

/// Lists of hosts by name.
pub(crate) type Presets = BTreeMap<String, Vec<String>>;

static OWN: OnceLock<Presets> = OnceLock::new();

/// Takes lists of the user's configuration, which replace those of the same name. Only the first counts.
pub(crate) fn configure(own: Presets) {
    // A second call has the same lists: they come from the same configuration.
    drop(OWN.set(own));
}

/// All of them.
pub(crate) fn all() -> Result<Presets, String> {
    let mut all: Presets = toml::from_str(BUILT_IN).map_err(|error| error.message().to_owned())?;
    all.extend(OWN.get().cloned().unwrap_or_default());
    Ok(all)
}

/// The rules that `@NAME` stands for. Each has it as its name.
pub(crate) fn rules(action: Action, text: &str) -> Result<Vec<Rule>, String> {
    let all = all()?;
    let name = text.trim_start_matches(SIGN);
    let hosts = all.get(name).ok_or_else(|| {
        let known: Vec<String> = all.keys().map(|name| format!("{SIGN}{name}")).collect();
        format!("there is no preset '{text}'; there are {}", known.join(", "))
    })?;
    hosts.iter().map(|host| rule(action, name, host)).collect()
}

fn rule(action: Action, preset: &str, host: &str) -> Result<Rule, String> {
    let whole = if host.contains(':') { host.to_owned() } else { format!("{host}:{PORT}") };
    let rule = Rule::parse_domain(action, &whole)
        .map_err(|error| format!("the preset '{SIGN}{preset}' has '{host}': {error}"))?;
    Ok(Rule { name: Some(format!("{SIGN}{preset}")), ..rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_rules() {
        let all = all().unwrap();
        for wanted in ["debian", "pypi", "npm", "github", "crates", "anthropic", "openai"] {
            assert!(all.contains_key(wanted), "{wanted}");
        }
        for name in all.keys() {
            let rules = rules(Action::Allow, &format!("@{name}")).unwrap();
            assert!(
                !rules.is_empty() && rules.iter().all(|rule| !rule.ports.is_empty() && rule.cidr.is_none())
            );
        }
        let texts: Vec<_> = rules(Action::Allow, "@pypi").unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["\"@pypi\": allow pypi.org:443", "\"@pypi\": allow files.pythonhosted.org:443"]);
        let error = rules(Action::Allow, "@nothing").unwrap_err();
        assert!(error.contains("@nothing") && error.contains("@pypi"), "{error}");
    }
}
