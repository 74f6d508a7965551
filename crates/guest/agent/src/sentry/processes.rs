//! How many processes there may be, threads included.
//!
//! The sentry's `pids` cgroup counts all of them exactly, but does not limit them by itself: for each fork the sentry asks
//! *one* of the task's cgroups, whichever Go's random order of a map brings first (`chargeLocked` in gVisor's
//! `task_cgroup.go`), and there are seven, of which six do not count. Six forks of seven are let through.
//!
//! So every program also gets the limit as its `RLIMIT_NPROC`, which the sentry asks at every fork, and the agent
//! counts before it starts anything. That limit holds for each user by itself, and not for a process that is root in a
//! user namespace of its own. Processes that get past the limit of all in these two ways, or because the agent and a
//! program fork at the same instant, are killed when the agent looks next, the youngest first.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::at;
use crate::sys;

/// The cgroup of everything that runs in the sandbox, the agent too.
const CGROUP: &str = "sandbox";
/// Pauses between two looks: while there is little room left, and otherwise. A program that forks enough in the longer
/// pause to reach the host's limit ends the sandbox.
const PAUSE_CROWDED: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(250);
/// Rounds of looking for processes that were forked while earlier ones got the new limit.
const ROUNDS_MAX: usize = 64;

/// The files of the sandbox's `pids` cgroup, and its limit.
#[derive(Debug)]
pub(crate) struct Processes {
    max: File,
    current: File,
    limit: AtomicU32,
    /// How many processes are left alone: the limit, or the number that there was already when the limit was lowered.
    tolerated: AtomicU32,
}

static PROCESSES: OnceLock<Processes> = OnceLock::new();

/// The sandbox's processes; `None` where the host's kernel, or a machine's own, sees to them.
pub(crate) fn limited() -> Option<&'static Processes> {
    PROCESSES.get()
}

/// Enters a `pids` cgroup, and with the agent everything that will ever be started. `directory` is mounted over.
pub(super) fn enter(directory: &Path) -> io::Result<&'static Processes> {
    mount("none", directory, "cgroup", MountFlags::empty(), Some(c"pids"))
        .map_err(|error| at("mount the cgroup of processes", error.into()))?;
    let cgroup = directory.join(CGROUP);
    std::fs::create_dir(&cgroup).map_err(|error| at("make a cgroup", error))?;
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string())
        .map_err(|error| at("enter a cgroup", error))?;
    let max = File::options().write(true).open(cgroup.join("pids.max"));
    let current = File::open(cgroup.join("pids.current"));
    let opened = |file: io::Result<File>| file.map_err(|error| at("open the files of a cgroup", error));
    let [limit, tolerated] = [AtomicU32::new(u32::MAX), AtomicU32::new(u32::MAX)];
    let processes = Processes { max: opened(max)?, current: opened(current)?, limit, tolerated };
    Ok(PROCESSES.get_or_init(|| processes))
}

impl Processes {
    /// How many there are.
    pub(super) fn count(&self) -> io::Result<u32> {
        let mut buffer = [0; 32];
        let read = self.current.read_at(&mut buffer, 0)?;
        String::from_utf8_lossy(&buffer[..read]).trim().parse().map_err(io::Error::other)
    }

    /// Whether there may be one more; gives the limit that it is to have.
    pub(crate) fn admit(&self) -> Result<u32, Errno> {
        let limit = self.limit.load(Ordering::Relaxed);
        let count = self.count().or(Err(Errno::AGAIN))?;
        if count < limit { Ok(limit) } else { Err(Errno::AGAIN) }
    }

    /// Sets the limit, also for processes that run already.
    pub(super) fn limit(&self, limit: u32) -> io::Result<()> {
        self.max.write_all_at(limit.to_string().as_bytes(), 0)?;
        let before = self.limit.swap(limit, Ordering::Relaxed);
        self.tolerated.store(limit.max(self.count()?), Ordering::Relaxed);
        for _ in 0..ROUNDS_MAX {
            let changed = all_processes()?.into_iter().filter(|pid| change(*pid, before, limit)).count();
            if changed == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Kills processes that got past the limit; gives how long to wait before the next look.
    pub(super) fn look(&self) -> Duration {
        // Where nothing can be read nothing can be done; the host's limit is still there.
        let Ok(count) = self.count() else { return PAUSE };
        let tolerated = self.tolerated.load(Ordering::Relaxed);
        if count <= tolerated {
            let limit = self.limit.load(Ordering::Relaxed);
            // A new limit that came in between stands.
            let _ = self.tolerated.compare_exchange(
                tolerated,
                limit.max(count),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            return if count > limit / 2 { PAUSE_CROWDED } else { PAUSE };
        }
        let mut excess = count - tolerated;
        let mut youngest: Vec<_> =
            all_processes().unwrap_or_default().into_iter().filter_map(Age::of).collect();
        youngest.sort_unstable();
        while let Some(Age { pid, threads, .. }) = youngest.pop().filter(|_| excess > 0) {
            // It may have ended meanwhile.
            sys::kill(pid, libc::SIGKILL).unwrap_or_default();
            excess = excess.saturating_sub(threads);
        }
        PAUSE_CROWDED
    }
}

/// A process that runs, ordered by when it began.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Age {
    began: u64,
    pid: i32,
    threads: u32,
}

impl Age {
    fn of(pid: Pid) -> Option<Self> {
        let pid = pid.as_raw_nonzero().get();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything. After it come the third field and the rest.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        // A process that has ended and waits for its parent is not counted any more.
        fields.next().filter(|state| *state != "Z")?;
        let threads = fields.nth(16)?.parse().ok()?;
        Some(Self { began: fields.nth(1)?.parse().ok()?, pid, threads })
    }
}

/// Gives a process another limit, but keeps a lower one that it chose itself. Says whether it changed the limit.
fn change(pid: Pid, before: u32, limit: u32) -> bool {
    let [before, limit] = [before, limit].map(|count| Some(u64::from(count)));
    let whole = Rlimit { current: limit, maximum: limit };
    // It may have ended meanwhile.
    let Ok(had) = prlimit(Some(pid), Resource::Nproc, whole) else { return false };
    let chosen = |had: Option<u64>| had.filter(|had| Some(*had) < before && Some(*had) < limit);
    if let Some(current) = chosen(had.current) {
        let kept = Rlimit { current: Some(current), maximum: chosen(had.maximum).or(limit) };
        prlimit(Some(pid), Resource::Nproc, kept).map(drop).unwrap_or_default();
        return false;
    }
    had != whole
}

/// All but the agent.
fn all_processes() -> io::Result<Vec<Pid>> {
    let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or_default());
    let names = std::fs::read_dir("/proc")?.flatten();
    Ok(names
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| Some(*pid) != own)
        .collect())
}
