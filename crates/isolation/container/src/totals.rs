//! What `atoll doctor` says of the kernel's totals: what all sandboxes share, and how much of it one can have.
//!
//! Memory, processors, processes and disk are counted by cgroups and file systems for each sandbox. The rest is one number
//! for the whole host, or one for each user of it; a sandbox is users of its own. Where its part is large, its neighbours feel it.

use std::path::Path;

use atoll_core::spec::Resources;
use atoll_isolation::{Check, Status};
use rustix::process::{Resource, getrlimit};

use crate::create::TERMINALS_MAX;
use crate::rlimits;

/// A neighbour is not in danger as long as one sandbox has at most this part of a total.
const SHARE: u64 = 4;
/// Descriptors of the server for each sandbox: its cgroups, namespaces, pipes, connections; with room to spare.
const SERVER_FILES: u64 = 32;

/// A total of the host, and what one sandbox may have of it.
struct Total {
    what: &'static str,
    share: u64,
    /// `None` when the kernel does not say, or has no limit.
    all: Option<u64>,
    /// How to raise it.
    raise: &'static str,
}

/// Whether one sandbox can use up the host's open files. The memory of an open file is counted for the sandbox that has
/// it, so the kernel's total protects nothing: systemd lifts it on its hosts.
pub(crate) fn open_files() -> Check {
    let processes = Resources::default().pids;
    let each = rlimits::limits(processes).open_files.1;
    let seen = format!("each of the {processes} processes of a sandbox may open {each} files");
    if rlimits::can_use_up(processes) {
        return Check::new(
            "open_files",
            Status::Limited,
            format!("{seen}: more than this host has together"),
        )
        .hint("one sandbox can use them up for all: set the sysctl fs.file-max to 9223372036854775807");
    }
    Check::new("open_files", Status::Ok, seen)
}

/// All other totals.
pub(crate) fn check() -> Check {
    judge(&totals())
}

fn totals() -> Vec<Total> {
    let processes = u64::from(Resources::default().pids);
    vec![
        Total {
            what: "process ids",
            share: processes,
            all: read("/proc/sys/kernel/pid_max"),
            raise: "set the sysctl kernel.pid_max to 4194304",
        },
        Total {
            what: "threads",
            share: processes,
            all: read("/proc/sys/kernel/threads-max"),
            raise: "raise the sysctl kernel.threads-max",
        },
        Total {
            what: "terminals",
            share: u64::from(TERMINALS_MAX),
            all: read("/proc/sys/kernel/pty/max"),
            raise: "raise the sysctl kernel.pty.max",
        },
        Total {
            what: "namespaces of networks",
            share: 1,
            all: read("/proc/sys/user/max_net_namespaces"),
            raise: "raise the sysctl user.max_net_namespaces",
        },
        Total {
            what: "loop devices",
            share: 1,
            all: read("/sys/module/loop/parameters/max_loop").filter(|most| *most > 0),
            raise: "load the module loop without max_loop",
        },
        Total {
            what: "descriptors of the server",
            share: SERVER_FILES,
            all: getrlimit(Resource::Nofile).maximum,
            raise: "raise the limit of open files of the server (LimitNOFILE)",
        },
    ]
}

fn read(path: &str) -> Option<u64> {
    std::fs::read_to_string(Path::new(path)).ok()?.trim().parse().ok()
}

/// Says what there is, and what is scarce: what one sandbox has a large part of.
fn judge(totals: &[Total]) -> Check {
    let known = totals.iter().filter_map(|total| Some((total, total.all?)));
    let seen: Vec<String> =
        known.clone().map(|(total, all)| format!("{} {} of {all}", total.what, total.share)).collect();
    let seen = format!("a sandbox has at most: {}", seen.join(", "));
    match known.into_iter().find(|(total, all)| total.share.saturating_mul(SHARE) > *all) {
        None => Check::new("shares", Status::Ok, seen),
        Some((total, _)) => Check::new("shares", Status::Limited, seen)
            .hint(format!("few sandboxes use up the host's {}: {}", total.what, total.raise)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_few_sandboxes_use_up_is_named() {
        let total = |share, all| Total { what: "pens", share, all, raise: "buy some" };
        let plenty = judge(&[total(64, Some(4096)), total(9, None)]);
        assert_eq!((plenty.status, plenty.hint), (Status::Ok, None));
        assert_eq!(plenty.detail, "a sandbox has at most: pens 64 of 4096");
        let scarce = judge(&[total(1, Some(1000)), total(64, Some(255))]);
        assert_eq!(scarce.status, Status::Limited);
        assert_eq!(scarce.hint.as_deref(), Some("few sandboxes use up the host's pens: buy some"));
        assert!(totals().iter().filter(|total| total.all.is_some()).count() >= 4);
    }
}
