//! Memory of the sandbox, watched from inside: where it is used up, the largest process is killed.
//!
//! The sentry has no limit of its own that kills one process, and the host's would kill the sentry, the sandbox with
//! it. So the host's limit is wider than the sandbox's. Between the two, the agent reads how much memory the sentry
//! reports as used; the less is left, the sooner it looks again. Use that grows faster than [`FASTEST`] can still end
//! the sandbox.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sys;

/// Growth that is caught in time, bytes a second.
const FASTEST: u64 = 4 << 30;
/// Shortest and longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(4);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Pause between two looks while a killed process gives its memory back.
const PAUSE_AFTER_KILL: Duration = Duration::from_millis(20);
/// How long that may take before another is killed, if no more is used meanwhile. The sentry counts memory as used until a
/// thread of its own has returned it, which takes a while on a busy host.
const GIVES_BACK: Duration = Duration::from_secs(5);
/// Growth after its end that is blamed on no process, bytes.
const SLACK: u64 = 16 << 20;
const PAGE_BYTES: u64 = 4096;

/// The limit, and the processes that were killed for it.
#[derive(Debug)]
pub(super) struct Memory {
    limit: AtomicU64,
    kills: AtomicU64,
    killed: Mutex<Option<Killed>>,
}

/// The last that was killed.
#[derive(Debug, Clone, Copy)]
struct Killed {
    pid: i32,
    at: Instant,
    /// Whether it was seen to be gone.
    is_gone: bool,
    /// Memory in use when it was first seen gone, bytes, or last seen alive: it goes on taking memory until the signal arrives.
    used: u64,
}

impl Killed {
    /// Notes how much memory is in use. What was taken until it was seen gone is blamed on it.
    fn seen(&mut self, lives: bool, used: u64) {
        if !self.is_gone {
            (self.is_gone, self.used) = (!lives, used);
        }
    }

    /// Whether its memory is still on the way back, so that no other process has to be killed.
    fn gives_back(self, used: u64, now: Instant) -> bool {
        used <= self.used.saturating_add(SLACK) && now.duration_since(self.at) < GIVES_BACK
    }
}

impl Default for Memory {
    /// No limit.
    fn default() -> Self {
        Self { limit: AtomicU64::new(u64::MAX), kills: AtomicU64::new(0), killed: Mutex::default() }
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
        let mut killed = self.killed.lock().unwrap_or_else(PoisonError::into_inner);
        if used <= limit {
            *killed = None;
            let room = Duration::from_micros((limit - used) / (FASTEST / 1_000_000));
            return room.clamp(PAUSE_MIN, PAUSE_MAX);
        }
        let now = Instant::now();
        if let Some(last) = killed.as_mut() {
            last.seen(resident_bytes(last.pid).is_some(), used);
            if last.gives_back(used, now) {
                return PAUSE_AFTER_KILL;
            }
        }
        if let Some(pid) = largest() {
            *killed = Some(Killed { pid, at: now, is_gone: false, used });
            // Counted before the kill: the driver, when it sees the process dead, shall know why.
            self.kills.fetch_add(1, Ordering::Relaxed);
            // It may have ended meanwhile.
            sys::kill(pid, libc::SIGKILL).unwrap_or_default();
        }
        PAUSE_AFTER_KILL
    }
}

/// The memory that the sentry has given out: to processes, for files in memory, for itself.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_goes_while_memory_comes_back() {
        let at = Instant::now();
        let killed = Killed { pid: 7, at, is_gone: true, used: 1 << 30 };
        assert!(killed.gives_back(1 << 30, at), "it is just dying");
        assert!(killed.gives_back(1 << 29, at + GIVES_BACK / 2), "it takes its time");
        assert!(!killed.gives_back((1 << 30) + SLACK + 1, at), "somebody else takes more");
        assert!(!killed.gives_back(1 << 29, at + GIVES_BACK), "it never comes");
    }

    #[test]
    fn what_it_took_until_it_was_gone_is_nobody_elses() {
        let at = Instant::now();
        let mut killed = Killed { pid: 7, at, is_gone: false, used: 1 << 30 };
        killed.seen(true, 2 << 30);
        assert!(killed.gives_back(2 << 30, at));
        killed.seen(false, 3 << 30);
        assert!(killed.gives_back(3 << 30, at), "it took that before the signal arrived");
        killed.seen(false, 4 << 30);
        assert!(!killed.gives_back(4 << 30, at), "that it did not");
    }
}
