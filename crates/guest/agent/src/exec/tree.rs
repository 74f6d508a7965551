//! All processes of an exec: by its cgroup, or by search where there are no cgroups.
//!
//! Membership in a cgroup cannot be left by forking, by a new session or by changing the environment, so with a cgroup
//! the tree is exact. The search finds processes that have the exec's session, its marker in the environment, or an
//! ancestor that has one of these; a process that gets rid of all three is missed. While a process executes another
//! program it shows no environment at all: then the search is repeated a moment later.

use std::collections::HashSet;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::prepare::MARKER;
use crate::sys;

/// Rounds of looking for processes that appeared while earlier ones were signalled.
const ROUNDS_MAX: usize = 64;
/// How often, and after which pause, processes that showed no environment are looked at again: some have none.
const BLANK_ROUNDS_MAX: usize = 3;
const BLANK_PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a file in `/proc` or a cgroup that are read.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// A cgroup that holds exactly one exec's processes.
#[derive(Debug)]
pub(super) struct ExecCgroup {
    parent: OwnedFd,
    name: String,
    directory: OwnedFd,
}

impl ExecCgroup {
    /// Makes the cgroup of an exec below the agent's own, or takes the one that is there: it is left over from an exec of
    /// this id that could not be started, or was made for an announcement.
    pub(super) fn make(parent: BorrowedFd<'_>, exec_id: &str) -> Result<Self, Errno> {
        match Self::make_new(parent, exec_id)? {
            Some(made) => Ok(made),
            None => Self::open(parent, name_of(exec_id)),
        }
    }

    /// Makes the cgroup of an exec below the agent's own. `None`: it is there already.
    pub(super) fn make_new(parent: BorrowedFd<'_>, exec_id: &str) -> Result<Option<Self>, Errno> {
        let name = name_of(exec_id);
        match rustix::fs::mkdirat(parent, &name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(error) => return Err(error),
        }
        let opened = Self::open(parent, name.clone());
        if opened.is_err() {
            // Without a descriptor of it nobody would remove it, and the sandbox has a limited number.
            rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR).unwrap_or_default();
        }
        opened.map(Some)
    }

    fn open(parent: BorrowedFd<'_>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = rustix::fs::openat(parent, &name, flags, Mode::empty())?;
        Ok(Self { parent: parent.try_clone_to_owned().or(Err(Errno::MFILE))?, name, directory })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Removes it. Says whether it is gone; while processes are in it, it stays.
    pub(super) fn remove(&self) -> bool {
        !matches!(rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR), Err(Errno::BUSY))
    }

    /// CPU time of everything that ever ran in it, microseconds.
    pub(super) fn cpu_us(&self) -> Option<u64> {
        let stat = self.read("cpu.stat")?;
        stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
    }

    fn processes(&self) -> Vec<i32> {
        let list = self.read("cgroup.procs").unwrap_or_default();
        // 0 stands for a process that this PID namespace does not see.
        list.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect()
    }

    fn kill_all(&self) -> bool {
        let open = rustix::fs::openat(
            &self.directory,
            "cgroup.kill",
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        open.and_then(|file| rustix::io::write(file, b"1")).is_ok()
    }

    fn read(&self, name: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.directory, name, flags, Mode::empty()).ok()?;
        read_text(file.into())
    }
}

fn name_of(exec_id: &str) -> String {
    format!("exec-{exec_id}")
}

/// The cgroup of an exec that the host has announced. It goes when the exec is not started.
#[derive(Debug)]
pub(super) struct AnnouncedCgroup {
    exec_id: String,
    cgroup: Option<ExecCgroup>,
}

impl AnnouncedCgroup {
    pub(super) fn new(exec_id: &str, cgroup: ExecCgroup) -> Self {
        Self { exec_id: exec_id.to_owned(), cgroup: Some(cgroup) }
    }

    /// The cgroup, for the exec that is started, if it is that of this one.
    pub(super) fn take(mut self, exec_id: &str) -> Option<ExecCgroup> {
        if self.exec_id == exec_id { self.cgroup.take() } else { None }
    }
}

impl Drop for AnnouncedCgroup {
    fn drop(&mut self) {
        self.cgroup.as_ref().map(ExecCgroup::remove);
    }
}

/// Signals every process of the exec; gives how many there were. For `SIGKILL` nothing is left that
/// could fork on, so it looks until nothing new appears.
pub(super) fn signal(cgroup: Option<&ExecCgroup>, exec_id: &str, leader: i32, number: i32) -> usize {
    let (mut seen, mut blank_rounds) = (HashSet::new(), 0);
    for _ in 0..ROUNDS_MAX {
        let Found { processes, has_blank } = match cgroup {
            Some(cgroup) => Found { processes: cgroup.processes(), has_blank: false },
            None => search(exec_id, leader),
        };
        let new: Vec<i32> = processes.into_iter().filter(|pid| seen.insert(*pid)).collect();
        if new.is_empty() {
            if number != libc::SIGKILL || !has_blank || blank_rounds == BLANK_ROUNDS_MAX {
                break;
            }
            blank_rounds += 1;
            std::thread::sleep(BLANK_PAUSE);
        }
        if number == libc::SIGKILL && cgroup.is_some_and(ExecCgroup::kill_all) {
            break;
        }
        for pid in new {
            // It may have ended meanwhile.
            sys::kill(pid, number).unwrap_or_default();
        }
    }
    seen.len()
}

struct Process {
    pid: i32,
    parent: i32,
    session: i32,
}

/// The result of a search.
struct Found {
    processes: Vec<i32>,
    /// A process that may belong to the exec showed no environment.
    has_blank: bool,
}

fn search(exec_id: &str, leader: i32) -> Found {
    let processes = all_processes();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    // Orphans come to the agent, so a process that is none of its descendants belongs to no exec.
    let mut descendants = with_descendants(&processes, HashSet::from([own]));
    descendants.remove(&own);
    let marker = format!("{MARKER}={exec_id}");
    let (mut members, mut has_blank) = (HashSet::new(), false);
    for process in processes.iter().filter(|process| descendants.contains(&process.pid)) {
        let environ = environ(process.pid);
        has_blank |= environ.is_empty();
        let is_marked = || environ.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes());
        if process.session == leader || process.pid == leader || is_marked() {
            members.insert(process.pid);
        }
    }
    Found { processes: with_descendants(&processes, members).into_iter().collect(), has_blank }
}

fn with_descendants(processes: &[Process], mut tree: HashSet<i32>) -> HashSet<i32> {
    loop {
        let before = tree.len();
        let children: Vec<i32> = processes
            .iter()
            .filter(|process| tree.contains(&process.parent))
            .map(|process| process.pid)
            .collect();
        tree.extend(children);
        if tree.len() == before {
            return tree;
        }
    }
}

fn environ(pid: i32) -> Vec<u8> {
    std::fs::File::open(format!("/proc/{pid}/environ")).ok().and_then(read_bytes).unwrap_or_default()
}

/// Processes that live, but for the first.
fn all_processes() -> Vec<Process> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid > 1)
        .filter_map(|pid| {
            let stat = std::fs::File::open(format!("/proc/{pid}/stat")).ok().and_then(read_text)?;
            // The name is in parentheses and may contain anything, parentheses too.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            if fields.next()? == "Z" {
                return None;
            }
            let parent = fields.next()?.parse().ok()?;
            Some(Process { pid, parent, session: fields.nth(1)?.parse().ok()? })
        })
        .collect()
}

fn read_bytes(file: std::fs::File) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn read_text(file: std::fs::File) -> Option<String> {
    String::from_utf8(read_bytes(file)?).ok()
}
