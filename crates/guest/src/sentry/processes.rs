//! How many processes there may be, threads included.
//!
//! The sentry's `pids` cgroup counts all of them exactly, but does not limit them by itself: for each fork the sentry asks
//! *one* of the task's cgroups, whichever Go's random order of a map brings first (`chargeLocked` in gVisor's
//! `task_cgroup.go`), and there are seven, of which six do not count. Six forks of seven are let through.
//!
//! So every program also gets the limit as its `RLIMIT_NPROC`, which the sentry asks at every fork. That one counts by
//! user; who is root in a user namespace of its own escapes it, but not the cgroup. What the agent starts, it counts itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::at;

/// The cgroup of everything that runs in the sandbox, the agent too.
const CGROUP: &str = "sandbox";
/// Rounds of looking for processes that were forked while others got the new limit.
const ROUNDS_MAX: usize = 64;

/// The files of the sandbox's `pids` cgroup, and its limit.
#[derive(Debug)]
pub(crate) struct Processes {
    max: File,
    current: File,
    limit: AtomicU32,
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
    let processes =
        Processes { max: opened(max)?, current: opened(current)?, limit: AtomicU32::new(u32::MAX) };
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

    /// Sets the limit, also of what runs.
    pub(super) fn limit(&self, limit: u32) -> io::Result<()> {
        self.max.write_all_at(limit.to_string().as_bytes(), 0)?;
        let before = self.limit.swap(limit, Ordering::Relaxed);
        for _ in 0..ROUNDS_MAX {
            let changed = all_processes()?.into_iter().filter(|pid| change(*pid, before, limit)).count();
            if changed == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Gives a process another limit, but keeps a lower one that it chose itself. Says whether there was something to do.
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
