//! What `atoll doctor` says of the kernel's totals: what all sandboxes share, and how much of it one can have.
//!
//! Memory, processors, processes and disk are counted by cgroups and file systems for each sandbox. The rest is one number
//! for the whole host, or one for each user of it; a sandbox is users of its own. Where its part is large, its neighbours feel it.

use std::path::Path;

use atoll_core::spec::Resources;
use atoll_isolation::{Check, Status};
use atoll_isolation_host::{Cgroups, DESCENDANTS_MAX};
use rustix::process::{Resource, getrlimit};

use crate::create::TERMINALS_MAX;
use crate::rlimits;

/// A neighbour is not in danger as long as one sandbox has at most this part of a total.
const SHARE: u64 = 4;
/// Descriptors of the server for each sandbox: its cgroups, namespaces, pipes, connections; with room to spare.
const SERVER_FILES: u64 = 32;
/// Bytes of a disk of the default size for each of its inodes, as `mke2fs` makes it.
const INODE_BYTES: u64 = 16 << 10;

/// A total of the host, and what one sandbox may have of it.
struct Total {
    what: &'static str,
    share: u64,
    /// `None` when the kernel does not say, or has no limit for all together: what a sandbox has is its own then, and
    /// the memory for it is part of its memory.
    all: Option<u64>,
    /// How to raise it.
    raise: &'static str,
}

impl Total {
    /// One that the kernel does not count for all together.
    const fn own(what: &'static str, share: u64) -> Self {
        Self { what, share, all: None, raise: "" }
    }
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
pub(crate) fn check(cgroups: &Cgroups) -> Check {
    judge(&totals(cgroups.tcp_memory(Resources::default().memory_bytes)))
}

/// `tcp_bytes`: what the buffers of TCP of one sandbox can take.
fn totals(tcp_bytes: u64) -> Vec<Total> {
    let Resources { pids, disk_bytes, .. } = Resources::default();
    let processes = u64::from(pids);
    let mut totals = vec![
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
        Total {
            what: "MiB of TCP buffers",
            share: tcp_bytes >> 20,
            all: tcp_total_mib(),
            raise: "raise the third number of the sysctl net.ipv4.tcp_mem",
        },
        Total {
            what: "huge pages",
            share: 0,
            all: read("/proc/sys/vm/nr_hugepages"),
            raise: "raise the sysctl vm.nr_hugepages",
        },
        Total::own("cgroups", u64::from(DESCENDANTS_MAX)),
        Total::own("inodes", disk_bytes / INODE_BYTES),
    ];
    // Counted for each user of the host, of which a sandbox is one.
    for (what, path) in [
        ("inotify instances", "/proc/sys/fs/inotify/max_user_instances"),
        ("inotify watches", "/proc/sys/fs/inotify/max_user_watches"),
    ] {
        totals.extend(read(path).map(|share| Total::own(what, share)));
    }
    totals
}

/// The pages that the buffers of TCP of the whole host may take, as MiB.
fn tcp_total_mib() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
    let most: u64 = pages.split_whitespace().nth(2)?.parse().ok()?;
    Some(most.saturating_mul(rustix::param::page_size() as u64) >> 20)
}

fn read(path: &str) -> Option<u64> {
    std::fs::read_to_string(Path::new(path)).ok()?.trim().parse().ok()
}

/// Says what there is, and what is scarce: what one sandbox has a large part of.
fn judge(totals: &[Total]) -> Check {
    let known = totals.iter().filter_map(|total| Some((total, total.all?)));
    let say = |total: &Total| match total.all {
        Some(all) => format!("{} {} of {all}", total.what, total.share),
        None => format!("{} {}", total.what, total.share),
    };
    let seen: Vec<String> = totals.iter().map(say).collect();
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
        assert_eq!(plenty.detail, "a sandbox has at most: pens 64 of 4096, pens 9");
        let scarce = judge(&[total(1, Some(1000)), total(64, Some(255))]);
        assert_eq!(scarce.status, Status::Limited);
        assert_eq!(scarce.hint.as_deref(), Some("few sandboxes use up the host's pens: buy some"));
        let totals = totals(64 << 20);
        assert!(totals.iter().filter(|total| total.all.is_some()).count() >= 6);
        let of =
            |what: &str| totals.iter().find(|total| total.what == what).map(|total| (total.share, total.all));
        assert_eq!(of("cgroups"), Some((2048, None)));
        let (tcp, all) = of("MiB of TCP buffers").unwrap();
        assert!(tcp == 64 && all.is_some_and(|all| all > 16), "{all:?}");
        assert!(of("huge pages").is_some() && of("inodes").is_some() && of("inotify watches").is_some());
    }
}
