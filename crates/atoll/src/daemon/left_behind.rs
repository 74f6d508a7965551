//! Children of a server that was killed, which never became programs of their own.
//!
//! The server clones a sandbox's first process into the sandbox's cgroup, and that has all of the server's descriptors (the lock of the
//! data directory, the port) until it executes its program. Where the cgroup stands still, because the lease of a node has ended, it is
//! born without ever running: it would hold lock and port for ever, and no server could begin there. Such a process can
//! still be killed. The next server knows it by two things: it holds the data directory's lock, and it is below a
//! cgroup of the installation, where no server is.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Ends them, unless a server holds the data directory's lock: then they are children of that, on their way.
pub(crate) fn end_left_behind(data_dir: &Path) {
    let Ok(lock) = fs::metadata(data_dir.join("lock")) else { return };
    let Ok(installation) = fs::read_to_string(data_dir.join("installation")) else { return };
    let lock = (lock.dev(), lock.ino());
    let cgroup = format!("/atoll-{}", installation.trim());
    let mut left = Vec::new();
    for pid in pids() {
        if !holds(pid, lock) {
            continue;
        }
        if !is_below(pid, &cgroup) {
            return;
        }
        left.push(pid);
    }
    for pid in left {
        // The pidfd fixes the process. The checks are made again, as the pid may have been reused before.
        let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            continue;
        };
        if holds(pid, lock) && is_below(pid, &cgroup) {
            tracing::warn!(pid, "ending a child of an earlier server that never began");
            // Refused only when it is dead already.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

/// All processes but this one.
fn pids() -> Vec<i32> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let others = entries.flatten().filter_map(number).filter(|pid| *pid != own);
    others.filter_map(|pid| i32::try_from(pid).ok()).collect()
}

/// Whether a process holds the lock of a file. To have it open is not enough: the watchdog of a lease has, and outlives its server.
fn holds(pid: i32, file: (u64, u64)) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    // Compare the name first: `metadata` of a file on a file system that does not answer would wait for ever.
    let is_it = |path: PathBuf| {
        let is_named = fs::read_link(&path).is_ok_and(|to| to.file_name().is_some_and(|name| name == "lock"));
        is_named
            && fs::metadata(&path).is_ok_and(|found| (found.dev(), found.ino()) == file)
            && is_locked(pid, &path)
    };
    entries.flatten().any(|entry| is_it(entry.path()))
}

/// Whether the process holds a lock through this descriptor, which it took itself or inherited with the descriptor.
fn is_locked(pid: i32, descriptor: &Path) -> bool {
    let Some(number) = descriptor.file_name().and_then(|name| name.to_str()) else { return false };
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")) else { return false };
    text.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE"))
}

/// Whether a process is in a cgroup below one whose path has this part.
fn is_below(pid: i32, cgroup: &str) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    unified.is_some_and(|path| path.contains(cgroup))
}
