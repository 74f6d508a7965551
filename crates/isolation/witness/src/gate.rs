//! Which programs of a sandbox may run, as the kernel's programs are told (`bpf/gate.h`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which programs may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// What holds for files that no rule names.
    pub programs: Programs,
    /// Refusals are told and nothing is refused.
    pub observe: bool,
    /// The first that names a file decides.
    pub rules: Vec<Rule>,
}

/// What holds for files that no rule names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Programs {
    /// Everything may run.
    #[default]
    Any,
    /// What lies in the image's layers, or in what is bound from the host instead, unchanged; but for dynamic loaders.
    Image,
    /// Nothing.
    Listed,
}

/// A rule, and the files it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Whether they may run.
    pub allow: bool,
    /// Device (as `stat` has it) and inode of each.
    pub files: Vec<(u64, u64)>,
    /// What events call it.
    pub text: String,
}

/// What a box's flags say.
pub(crate) const TRACED: u32 = 1;
const IMAGE: u32 = 2;
const LISTED: u32 = 4;
const RULES: u32 = 8;
const OBSERVED: u32 = 16;
pub(crate) const AGENT_RUNS: u32 = 32;
/// Those that make a gate.
pub(crate) const GATED: u32 = IMAGE | LISTED | RULES;

/// What a rule is in the kernel's table.
const ALLOW: u32 = 1;
const DENY: u32 = 2;

/// A key of the kernel's table of rules.
pub(crate) type Key = [u8; 24];

impl Gate {
    /// Whether it holds anything back, or tells what it would.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.programs != Programs::Any || !self.rules.is_empty()
    }

    /// As a box's flags.
    pub(crate) fn flags(&self) -> u32 {
        let programs = match self.programs {
            Programs::Any => 0,
            Programs::Image => IMAGE,
            Programs::Listed => LISTED,
        };
        let rules = if self.rules.is_empty() { 0 } else { RULES };
        let observed = if self.observe { OBSERVED } else { 0 };
        programs | rules | observed
    }

    /// As rows of the kernel's table.
    pub(crate) fn rows(&self, cgroup: u64) -> BTreeMap<Key, u32> {
        let mut rows = BTreeMap::new();
        for rule in &self.rules {
            for file in &rule.files {
                rows.entry(key(cgroup, *file)).or_insert(if rule.allow { ALLOW } else { DENY });
            }
        }
        rows
    }

    /// The rule that decides about a file.
    pub(crate) fn rule(&self, file: (u64, u64)) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.files.contains(&file))
    }
}

/// A device as the kernel has it, of one as `stat` has it.
pub(crate) fn kernel_device(device: u64) -> u32 {
    rustix::fs::major(device) << 20 | rustix::fs::minor(device) & 0xf_ffff
}

fn key(cgroup: u64, (device, inode): (u64, u64)) -> Key {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&cgroup.to_ne_bytes());
    key[8..16].copy_from_slice(&inode.to_ne_bytes());
    key[16..20].copy_from_slice(&kernel_device(device).to_ne_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_names_a_file_decides() {
        let rule = |allow, inode, text: &str| Rule { allow, files: vec![(0x801, inode)], text: text.into() };
        let gate = Gate {
            rules: vec![rule(false, 7, "first"), rule(true, 7, "second"), rule(true, 8, "third")],
            ..Gate::default()
        };
        assert_eq!(gate.rows(1)[&key(1, (0x801, 7))], DENY);
        assert_eq!(gate.rows(1)[&key(1, (0x801, 8))], ALLOW);
        assert_eq!(gate.rule((0x801, 7)).map(|rule| rule.text.as_str()), Some("first"));
        assert_eq!(gate.rule((0x802, 7)), None);
        assert_eq!((gate.flags(), gate.is_closed()), (RULES, true));
        assert!(!Gate::default().is_closed());
    }
}
