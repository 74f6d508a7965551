//! Where this host keeps its cgroup controllers: v1, v2, or both ("hybrid").
//!
//! Found by reading the mount table, verified by making a cgroup and reading back a limit. A host
//! without any cgroup2 mount gets one that is mounted nowhere, held by this process: the kill switch
//! and the per-exec cgroups of the guest need the v2 core, which needs no controller.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use atoll_isolation::IsolationError;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::step::Step;

/// A controller that a limit or a measurement needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// CPU bandwidth.
    Cpu,
    /// Memory.
    Memory,
    /// Processes.
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Pids];

    /// The kernel's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

/// One hierarchy: a tree of cgroups.
#[derive(Debug)]
pub struct Hierarchy {
    /// Its root, opened as a path.
    pub root: OwnedFd,
    /// The root's place, for messages.
    pub path: PathBuf,
    /// Which of our controllers it has.
    pub controllers: Vec<Controller>,
    /// Whether it is of version 2.
    pub unified: bool,
}

/// All hierarchies that matter here: at most one of version 2, which comes first.
#[derive(Debug)]
pub struct Layout {
    pub(crate) hierarchies: Vec<Hierarchy>,
}

/// A cgroup file system in the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    path: String,
    unified: bool,
    options: Vec<String>,
}

impl Layout {
    /// Reads it off this process's mount table.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn find() -> Result<Self, IsolationError> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").step("read the mount table")?;
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mounted in parse(&table) {
            let root = open_path(&mounted.path).step(format!("open {}", mounted.path))?;
            let offered = if mounted.unified {
                words(
                    &std::fs::read_to_string(format!("{}/cgroup.controllers", mounted.path))
                        .unwrap_or_default(),
                )
            } else {
                mounted.options
            };
            let controllers = Controller::ALL
                .into_iter()
                .filter(|c| offered.iter().any(|name| name == c.name()))
                .filter(|c| !hierarchies.iter().any(|other| other.controllers.contains(c)))
                .collect::<Vec<_>>();
            let seen = hierarchies.iter().any(|other| other.unified);
            if (mounted.unified && !seen) || (!mounted.unified && !controllers.is_empty()) {
                let unified = mounted.unified;
                hierarchies.push(Hierarchy { root, path: mounted.path.into(), controllers, unified });
            }
        }
        if !hierarchies.iter().any(|h| h.unified) {
            hierarchies.push(detached()?);
        }
        hierarchies.sort_by_key(|h| !h.unified);
        Ok(Self { hierarchies })
    }

    /// The hierarchy of version 2: always there.
    #[must_use]
    pub fn unified(&self) -> &Hierarchy {
        &self.hierarchies[0]
    }

    /// The hierarchy with a controller.
    #[must_use]
    pub fn with(&self, controller: Controller) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.controllers.contains(&controller))
    }

    /// `v1`, `v2` or `hybrid`, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let v2 = !self.unified().controllers.is_empty();
        let v1 = self.hierarchies.iter().any(|h| !h.unified);
        match (v1, v2) {
            (false, _) => "v2",
            (true, true) => "hybrid, controllers on both",
            (true, false) => "v1 controllers, v2 core",
        }
    }
}

fn open_path(path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn detached() -> Result<Hierarchy, IsolationError> {
    let mounted = || {
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID)
    };
    let root = mounted().step("mount cgroup2")?;
    Ok(Hierarchy { root, path: "cgroup2".into(), controllers: Vec::new(), unified: true })
}

/// Cgroup mounts of a `mountinfo`, in order.
fn parse(table: &str) -> Vec<Mounted> {
    let line = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let unified = match kind.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let path = unescape(place.split(' ').nth(4)?);
        let options = kind.nth(1)?.split(',').map(str::to_owned).collect();
        Some(Mounted { path, unified, options })
    };
    table.lines().filter_map(line).collect()
}

/// The mount table writes blanks in paths as octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_versions_and_strange_paths() {
        let table = "\
30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 / /mnt/a\\040b rw - cgroup none rw,memory
33 24 0:29 / /proc rw - proc proc rw
";
        let found = parse(table);
        assert_eq!(found.len(), 3);
        assert!(found[0].unified);
        assert_eq!(found[1].options, ["rw", "cpu", "cpuacct"]);
        assert_eq!(found[2].path, "/mnt/a b");
    }
}
