//! Limits of each process of a sandbox, where the kernel has none for all of them together.

use std::io;

use rustix::process::{Resource, getrlimit};

/// Part of the host's open files that the processes of one sandbox may have together.
const SHARE: u64 = 4;
/// Fewer break ordinary programs: when the share of each of a sandbox's many processes is below this, its processes get
/// the server's own limit, and `atoll doctor` says what that means.
const OPEN_FILES_MIN: u64 = 4096;
/// The limit of a core dump's size with which the kernel starts no helper for it: with 0 it does.
const NO_CORE: u64 = 1;

/// The limits that the first process of a sandbox sets for itself, and that all others inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Open files of one process: what it begins with, and what it may raise that to.
    pub(crate) open_files: (u64, u64),
    /// Bytes of a core dump.
    pub(crate) core: u64,
}

/// Limits for the processes of a sandbox that may have so many.
pub(crate) fn limits(processes: u32) -> Limits {
    let own = getrlimit(Resource::Nofile);
    let (soft, hard) = (own.current.unwrap_or(u64::MAX), own.maximum.unwrap_or(u64::MAX));
    let share = all_open_files().unwrap_or(u64::MAX) / SHARE / u64::from(processes.max(1));
    let hard = if share < OPEN_FILES_MIN { hard } else { share.min(hard) };
    Limits { open_files: (soft.min(hard), hard), core: NO_CORE }
}

/// Open files that the whole host may have.
pub(crate) fn all_open_files() -> io::Result<u64> {
    std::fs::read_to_string("/proc/sys/fs/file-max")?.trim().parse().map_err(io::Error::other)
}

/// Whether the processes of a sandbox that may have so many can together use up the host's.
pub(crate) fn can_use_up(processes: u32) -> bool {
    let all = limits(processes).open_files.1.saturating_mul(u64::from(processes));
    all_open_files().is_ok_and(|host| all >= host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_large_enough_is_kept_to() {
        let own = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        for processes in [1, 64, 4096, 1 << 20] {
            let (soft, hard) = limits(processes).open_files;
            assert!(soft <= hard && hard <= own);
            let share = all_open_files().unwrap() / SHARE / u64::from(processes);
            assert!(hard <= share || share < OPEN_FILES_MIN, "{processes} processes with {hard}");
            assert!(hard >= OPEN_FILES_MIN.min(own), "{processes} processes with {hard}");
        }
    }
}
