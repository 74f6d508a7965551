//! Which programs of a sandbox may run, in the form that the kernel's programs read (`bpf/gate.h`).

use std::collections::BTreeMap;

use atoll_core::policy::Origin;
use serde::{Deserialize, Serialize};

use crate::convert::EXEC_PREFIX;
use crate::object::START_KEY_BYTES;
use crate::record::File;

/// Which programs may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// What holds for files that no rule names.
    pub programs: Programs,
    /// Refusals are only recorded; every program runs.
    pub observe: bool,
    /// The first that names a file decides.
    pub rules: Vec<Rule>,
    /// Programs whose connections the kernel marks, to tell them from other connections; at most [`SENDERS_MAX`].
    #[serde(default)]
    pub senders: Vec<Sender>,
    /// The profiles that processes may be in. The number of each, from 1 on, is its place in this list: it may not
    /// change while processes run.
    #[serde(default)]
    pub profiles: Vec<Profile>,
    /// Programs of the host's own that it shows to the sandbox read-only, by device (as `stat` has it) and inode: they may run.
    #[serde(default)]
    pub own: Vec<(u64, u64)>,
    /// Those of `own` that are doors: the door at each place leads to the profile of the same place, for processes in
    /// profiles that may ask for it. All other processes are killed there.
    #[serde(default)]
    pub doors: Vec<(u64, u64)>,
    /// How often senders were changed, starting again at 0 after the highest number: part of the marks. The caller
    /// leaves it at its default; [`Gate::after`] sets it.
    #[serde(default)]
    pub generation: u8,
    /// A text by which the caller recognises the gate that it made: a digest. Empty from the beginning of a change to its end.
    #[serde(default)]
    pub revision: String,
}

/// What holds for files that no rule names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Programs {
    /// Everything may run.
    #[default]
    Any,
    /// Unchanged files of the image's layers, or of directories that are bound from the host instead; but no dynamic
    /// loaders.
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

/// The sender that a rule of the network names: a program with its files, a profile, or an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// What rules call it.
    pub origin: Origin,
    /// Device (as `stat` has it) and inode of each.
    pub files: Vec<(u64, u64)>,
}

/// A profile, and what executing a program does to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What rules of the network call it.
    pub name: String,
    /// Files, by device (as `stat` has it) and inode, and the place of the profile in which each runs. The first that names a file decides.
    pub steps: Vec<(Vec<(u64, u64)>, usize)>,
    /// The place of the profile in which all others run; none leave it when absent.
    pub others: Option<usize>,
    /// The places of profiles that its processes may ask for.
    #[serde(default)]
    pub asks: Vec<usize>,
}

/// Programs that one sandbox's connections can be told apart by: bits of a mark.
pub const SENDERS_MAX: usize = 24;
/// Set in every mark: a connection without this bit was not marked.
const MARKED: u32 = 1 << 31;
/// A mark's generation lies above its programs.
const GENERATIONS: u8 = 0x7f;

/// What a box's flags say.
pub(crate) const TRACED: u32 = 1;
const IMAGE: u32 = 2;
const LISTED: u32 = 4;
const RULES: u32 = 8;
const OBSERVED: u32 = 16;
pub(crate) const AGENT_RUNS: u32 = 32;
const SENDERS: u32 = 64;
const PROFILES: u32 = 128;
/// Those that make a gate.
pub(crate) const GATED: u32 = IMAGE | LISTED | RULES | SENDERS | PROFILES;

/// What a rule is in the kernel's table.
const ALLOW: u32 = 1;
const DENY: u32 = 2;
const OURS: u32 = 3;
/// Beside the profile to which a door leads: the next program is the one that was asked for.
const NOT_BEGUN: u32 = 1 << 31;
/// Where a door leads otherwise.
const NOWHERE: u32 = u32::MAX;

/// A key of the kernel's table of rules.
pub(crate) type Key = [u8; 24];
/// A key of its tables of execs.
pub(crate) type ExecKey = [u8; START_KEY_BYTES as usize];

impl Gate {
    /// Whether the gate has work to do: it holds programs back, records which it would hold back, tells senders apart,
    /// or has profiles.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.programs != Programs::Any
            || !self.rules.is_empty()
            || !self.senders.is_empty()
            || !self.profiles.is_empty()
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
        let senders = if self.senders.is_empty() { 0 } else { SENDERS };
        let profiles = if self.profiles.is_empty() { 0 } else { PROFILES };
        programs | rules | observed | senders | profiles
    }

    /// As rows of the kernel's table.
    pub(crate) fn rows(&self, cgroup: u64) -> BTreeMap<Key, u32> {
        let mut rows: BTreeMap<Key, u32> = self.own.iter().map(|file| (key(cgroup, *file), OURS)).collect();
        for rule in &self.rules {
            for file in &rule.files {
                rows.entry(key(cgroup, *file)).or_insert(if rule.allow { ALLOW } else { DENY });
            }
        }
        rows
    }

    /// As rows of the kernel's table of senders: the marks of their connections.
    pub(crate) fn sender_rows(&self, cgroup: u64) -> BTreeMap<Key, u32> {
        let mut rows = BTreeMap::new();
        for (bit, sender) in self.senders.iter().take(SENDERS_MAX).enumerate() {
            let profile = sender.origin.profile().and_then(|name| self.profile(name));
            let profile = profile.map(|number| numbered(cgroup, 0, number, 0));
            for key in sender.files.iter().map(|file| key(cgroup, *file)).chain(profile) {
                *rows.entry(key).or_insert_with(|| self.mark()) |= 1 << bit;
            }
        }
        rows
    }

    /// As rows of the kernel's table of execs: the marks of their connections.
    pub(crate) fn exec_rows(&self, cgroup: u64) -> BTreeMap<ExecKey, u32> {
        let execs = self.senders.iter().take(SENDERS_MAX).enumerate();
        let execs = execs.filter_map(|(bit, sender)| Some((bit, sender.origin.exec()?)));
        let key = |exec| exec_key(cgroup, &format!("{EXEC_PREFIX}{exec}"));
        execs.filter_map(|(bit, exec)| Some((key(exec)?, self.mark() | 1 << bit))).collect()
    }

    /// As rows of the kernel's table of steps: from a profile and a file to the next profile.
    pub(crate) fn step_rows(&self, cgroup: u64) -> BTreeMap<Key, u32> {
        let mut rows = BTreeMap::new();
        for (number, profile) in (1..).zip(&self.profiles) {
            for (files, next) in &profile.steps {
                for (device, inode) in files {
                    let key = numbered(cgroup, *inode, kernel_device(*device), number);
                    rows.entry(key).or_insert(place(*next));
                }
            }
            if let Some(next) = profile.others {
                rows.insert(numbered(cgroup, 0, 0, number), place(next));
            }
        }
        for (to, (device, inode)) in self.doors.iter().enumerate() {
            let door = |number| numbered(cgroup, *inode, kernel_device(*device), number);
            // First a process that is in no profile.
            rows.insert(door(0), NOWHERE);
            for (number, profile) in (1..).zip(&self.profiles) {
                let leads = if profile.asks.contains(&to) { place(to) | NOT_BEGUN } else { NOWHERE };
                rows.insert(door(number), leads);
            }
        }
        rows
    }

    /// The number of a profile in the kernel's tables.
    pub(crate) fn profile(&self, name: &str) -> Option<u32> {
        self.profiles.iter().position(|profile| profile.name == name).map(place)
    }

    /// The profile of such a number.
    pub(crate) fn profile_name(&self, number: u32) -> Option<&str> {
        let at = usize::try_from(number & !NOT_BEGUN).ok()?.checked_sub(1)?;
        self.profiles.get(at).map(|profile| profile.name.as_str())
    }

    /// A mark without programs.
    fn mark(&self) -> u32 {
        MARKED | u32::from(self.generation & GENERATIONS) << SENDERS_MAX
    }

    /// The senders that the mark of a connection stands for; `None` when that is not known. Marks of an earlier gate
    /// tell nothing.
    pub(crate) fn origins(&self, mark: u32) -> Option<Vec<Origin>> {
        if mark >> SENDERS_MAX != self.mark() >> SENDERS_MAX {
            return None;
        }
        let marked = |(bit, _): &(usize, &Sender)| mark >> bit & 1 != 0;
        let senders = self.senders.iter().take(SENDERS_MAX).enumerate().filter(marked);
        Some(senders.map(|(_, sender)| sender.origin.clone()).collect())
    }

    /// This gate with the generation that follows `before`.
    pub(crate) fn after(&self, before: &Self) -> Self {
        let same = self.senders == before.senders;
        let generation =
            if same { before.generation } else { before.generation.wrapping_add(1) & GENERATIONS };
        Self { generation, ..self.clone() }
    }

    /// Whether a file is one that the host shows to the sandbox.
    pub(crate) fn is_own(&self, file: &File) -> bool {
        file.read_only_mount && !file.on_overlay && self.own.contains(&(file.device, file.inode))
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
    numbered(cgroup, inode, kernel_device(device), 0)
}

/// A key of the kernel's tables of execs, by the name of the cgroup; `None` when that is longer than there is room.
pub(crate) fn exec_key(cgroup: u64, exec: &str) -> Option<ExecKey> {
    let mut key = [0; START_KEY_BYTES as usize];
    key[..8].copy_from_slice(&cgroup.to_ne_bytes());
    // The kernel's programs read the name with a zero at its end.
    let room = key.len() - 1;
    key[8..room].get_mut(..exec.len())?.copy_from_slice(exec.as_bytes());
    Some(key)
}

/// A key as the kernel's programs have it: the third number is a device, or that of a profile; the last is that of a profile.
fn numbered(cgroup: u64, inode: u64, third: u32, last: u32) -> Key {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&cgroup.to_ne_bytes());
    key[8..16].copy_from_slice(&inode.to_ne_bytes());
    key[16..20].copy_from_slice(&third.to_ne_bytes());
    key[20..].copy_from_slice(&last.to_ne_bytes());
    key
}

/// The number of the profile at a place: 0 is none.
fn place(at: usize) -> u32 {
    u32::try_from(at).map_or(0, |at| at.saturating_add(1))
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

    #[test]
    fn a_door_leads_where_may_be_asked_for_and_nowhere_else() {
        let profile = |name: &str, asks: &[usize]| Profile {
            name: name.to_owned(),
            steps: Vec::new(),
            others: None,
            asks: asks.to_vec(),
        };
        let gate = Gate {
            profiles: vec![profile("agent", &[1]), profile("tool", &[])],
            own: vec![(0x801, 5), (0x801, 6), (0x801, 7)],
            doors: vec![(0x801, 5), (0x801, 6)],
            ..Gate::default()
        };
        let rows = gate.step_rows(9);
        let leads = |inode, number| rows[&numbered(9, inode, kernel_device(0x801), number)];
        // A process in no profile, one of the agent, one of its tool: at the door to the agent, then at the door to the
        // tool.
        assert_eq!([0, 1, 2].map(|number| leads(5, number)), [NOWHERE; 3]);
        assert_eq!([0, 1, 2].map(|number| leads(6, number)), [NOWHERE, 2 | NOT_BEGUN, NOWHERE]);
        assert_eq!(gate.rows(9), gate.own.iter().map(|file| (key(9, *file), OURS)).collect());
        assert_eq!(gate.profile_name(2 | NOT_BEGUN), Some("tool"));
        let file = |inode| File { device: 0x801, inode, read_only_mount: true, ..File::default() };
        assert!(gate.is_own(&file(7)) && !gate.is_own(&file(8)));
        assert!(!gate.is_own(&File { read_only_mount: false, ..file(7) }));
        assert!(!gate.is_own(&File { on_overlay: true, ..file(7) }));
    }

    #[test]
    fn a_mark_says_who_it_is_as_long_as_the_gate_is_the_same() {
        let origin = |path: &str| Origin::Program(path.to_owned());
        let sender = |path, inodes: &[u64]| Sender {
            origin: origin(path),
            files: inodes.iter().map(|inode| (0x801, *inode)).collect(),
        };
        let gate =
            Gate { senders: vec![sender("/bin/*", &[1, 2]), sender("/bin/b", &[2])], ..Gate::default() };
        let first = gate.after(&Gate::default());
        let mark = |gate: &Gate, inode| gate.sender_rows(9)[&key(9, (0x801, inode))];
        assert_eq!((first.generation, gate.flags(), gate.is_closed()), (1, SENDERS, true));
        assert_eq!(first.origins(mark(&first, 1)), Some(vec![origin("/bin/*")]));
        assert_eq!(first.origins(mark(&first, 2)), Some(vec![origin("/bin/*"), origin("/bin/b")]));
        for nothing in [0, 1, 3, MARKED | 3, 0x7fff_ffff, u32::MAX] {
            assert_eq!(first.origins(nothing), None, "{nothing:x}");
        }
        let rules_only = Gate { observe: true, ..gate.clone() }.after(&first);
        assert_eq!(rules_only.origins(mark(&first, 1)), Some(vec![origin("/bin/*")]));
        let other = Gate { senders: vec![sender("/bin/b", &[1])], ..Gate::default() }.after(&first);
        assert_eq!((other.generation, other.origins(mark(&first, 1))), (2, None));
        let none = Gate::default().after(&other);
        assert_eq!(gate.after(&none).origins(mark(&first, 1)), None, "as before is not the same");
        assert_eq!(Gate::default().after(&Gate { generation: 127, ..other }).generation, 0);
    }
}
