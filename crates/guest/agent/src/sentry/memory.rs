//! Memory of the sandbox, watched from inside: where it is used up, the largest process is killed.
//!
//! The sentry has no limit of its own that kills one process, and the host's would kill the sentry, the sandbox with it.
//! So the host's limit is wider than the sandbox's, and in between the agent looks at what the sentry says is in use:
//! the sooner again, the less there is left. What grows faster than [`FASTEST`] can still end the sandbox.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sys;

/// Growth that is caught in time, bytes a second.
const FASTEST: u64 = 4 << 30;
/// Shortest and longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(4);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How long a killed process may take to give its memory back before another is killed.
const PAUSE_AFTER_KILL: Duration = Duration::from_millis(50);
const PAGE_BYTES: u64 = 4096;

/// The limit, and what became of it.
#[derive(Debug)]
pub(super) struct Memory {
    limit: AtomicU64,
    kills: AtomicU64,
}

impl Default for Memory {
    /// No limit.
    fn default() -> Self {
        Self { limit: AtomicU64::new(u64::MAX), kills: AtomicU64::new(0) }
    }
}

impl Memory {
    /// Sets the limit, bytes.
    pub(super) fn limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Processes killed so far.
    pub(super) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Kills the largest process if too much is used; gives how long to wait before the next look.
    pub(super) fn look(&self) -> Duration {
        // Where nothing can be read nothing can be done; the host's limit is still there.
        let Some(used) = used_bytes() else { return PAUSE_MAX };
        let limit = self.limit.load(Ordering::Relaxed);
        if used <= limit {
            let room = Duration::from_micros((limit - used) / (FASTEST / 1_000_000));
            return room.clamp(PAUSE_MIN, PAUSE_MAX);
        }
        if let Some(pid) = largest() {
            // Counted before: who sees the process dead shall know why.
            self.kills.fetch_add(1, Ordering::Relaxed);
            // It may have ended meanwhile.
            sys::kill(pid, libc::SIGKILL).unwrap_or_default();
        }
        PAUSE_AFTER_KILL
    }
}

/// What the sentry has given out: to processes, for files in memory, for itself.
fn used_bytes() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    Some(field("MemTotal:")?.saturating_sub(field("MemFree:")?) << 10)
}

/// The process, the agent aside, with the most memory.
fn largest() -> Option<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| Some((resident_bytes(pid)?, pid)))
        .max()
        .map(|(_, pid)| pid)
}

fn resident_bytes(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES).filter(|bytes| *bytes > 0)
}
