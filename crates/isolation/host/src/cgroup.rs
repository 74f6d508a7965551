//! The cgroups of sandboxes: limits, measurements, the kill switch.
//!
//! In every hierarchy a sandbox has `<parent>/<sandbox id>`; a driver has a parent of its own. The first process
//! of a sandbox starts in that of version 2 and puts itself into the others before it does anything else, so that a
//! half-made sandbox can be found and killed by its id.
//!
//! The v2 cgroup is delegated: root inside owns the directory and its `cgroup.procs`, and may make
//! cgroups below for its execs, but not the files that hold limits. It is handed in as a *detached clone*
//! of its mount: a plain directory descriptor would lead, through `..`, to the host's root.

pub(crate) mod files;
mod limits;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;
use atoll_core::spec::Resources;
use atoll_isolation::{IsolationError, Usage};
use rustix::fs::{AtFlags, Gid, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use self::files::{
    collect_pids, field, make_dir, number, open_dir, open_file, read, remove_tree, subdirectories, write,
};
use self::limits::{limit_memory, tcp_memory};
use crate::layout::{Controller, Hierarchy, Layout};
use crate::process;
use crate::step::{Step, failed};

/// Period of the CPU limit, microseconds: what the kernel gives a new cgroup of version 1, where nothing else sets it.
const CPU_PERIOD_US: u64 = 100_000;
/// Depth of cgroups below a sandbox's that are cleaned up; the guest makes one level.
const DEPTH_MAX: u32 = 64;
/// Cgroups that a sandbox may make below its own: one for each exec, and some.
pub const DESCENDANTS_MAX: u32 = 2048;
/// How deep it may nest them.
const NESTING_MAX: &str = "8";
/// How long processes may take to stand still: one that is in the middle of a system call finishes it.
const FREEZE_DEADLINE: Duration = Duration::from_secs(5);
/// How long the kernel may take to let go of a cgroup whose processes are dead.
const REMOVE_DEADLINE: Duration = Duration::from_secs(10);

/// The cgroups of one driver of one installation.
#[derive(Debug)]
pub struct Cgroups {
    layout: Layout,
    parent: String,
}

/// What a new process needs to be in a sandbox's cgroups.
#[derive(Debug)]
pub struct Membership {
    /// The file of each hierarchy of version 1 through which a thread joins it by writing `0`. `tasks`, as
    /// writing to `cgroup.procs` stops forks on the whole host, and waits for a grace period before.
    pub v1_tasks: Vec<OwnedFd>,
    /// The same file of the v2 cgroup, for a process that cannot be started in it. It does wait.
    pub procs: OwnedFd,
    /// The sandbox's v2 cgroup, detached: to be started in (`CLONE_INTO_CGROUP`).
    pub delegated: OwnedFd,
}

impl Membership {
    /// Every file to write `0` to, for a process that is not started in any of them.
    pub fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.v1_tasks.iter().chain([&self.procs])
    }
}

impl Cgroups {
    /// Finds the layout and makes the cgroup `parent` in each hierarchy.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`], [`IsolationError::Unavailable`].
    pub fn open(parent: &str) -> Result<Self, IsolationError> {
        let cgroups = Self { layout: Layout::find()?, parent: parent.to_owned() };
        for hierarchy in &cgroups.layout.hierarchies {
            cgroups.open_parent(hierarchy)?;
        }
        Ok(cgroups)
    }

    /// What this host has.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The most that the buffers of TCP of a sandbox with so much memory can take, bytes: part of its memory on version
    /// 2, beside it on version 1.
    #[must_use]
    pub fn tcp_memory(&self, memory_bytes: u64) -> u64 {
        match self.layout.with(Controller::Memory) {
            Some(hierarchy) if !hierarchy.unified => tcp_memory(memory_bytes),
            Some(_) | None => memory_bytes,
        }
    }

    fn open_parent(&self, hierarchy: &Hierarchy) -> Result<(), IsolationError> {
        make_dir(hierarchy.root.as_fd(), &self.parent).step(format!(
            "make the cgroup {}/{}",
            hierarchy.path.display(),
            self.parent
        ))?;
        if hierarchy.unified && !hierarchy.controllers.is_empty() {
            let parent = open_dir(hierarchy.root.as_fd(), self.parent.as_str()).step("open a cgroup")?;
            for controller in &hierarchy.controllers {
                let enable = format!("+{}", controller.name());
                let step = || format!("enable the cgroup controller {}", controller.name());
                write(hierarchy.root.as_fd(), "cgroup.subtree_control", &enable).step(step())?;
                write(parent.as_fd(), "cgroup.subtree_control", &enable).step(step())?;
            }
        }
        Ok(())
    }

    /// The parent's cgroup of version 2, above those of all sandboxes.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn unified_parent(&self) -> Result<OwnedFd, IsolationError> {
        open_dir(self.layout.unified().root.as_fd(), self.parent.as_str()).step("open a cgroup")
    }

    /// The kernel's number of a sandbox's cgroup of version 2.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Kernel`].
    pub fn number(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let dir = self.open_in(self.layout.unified(), id)?;
        rustix::fs::fstat(dir).map(|stat| stat.st_ino).step("look at a cgroup")
    }

    fn path(&self, id: &SandboxId) -> String {
        format!("{}/{id}", self.parent)
    }

    fn open_in(&self, hierarchy: &Hierarchy, id: &SandboxId) -> Result<OwnedFd, IsolationError> {
        open_dir(hierarchy.root.as_fd(), self.path(id).as_str()).map_err(|error| match error {
            Errno::NOENT => IsolationError::Gone,
            other => failed("open a cgroup".to_owned(), other.into()),
        })
    }

    /// A sandbox's cgroup in each hierarchy, in their order.
    fn open_all(&self, id: &SandboxId) -> Result<Vec<OwnedFd>, IsolationError> {
        self.layout.hierarchies.iter().map(|hierarchy| self.open_in(hierarchy, id)).collect()
    }

    /// The hierarchy with a controller, and which of [`Self::open_all`] is in it.
    fn pick<'a>(
        &'a self,
        dirs: &'a [OwnedFd],
        controller: Controller,
    ) -> Result<(&'a Hierarchy, BorrowedFd<'a>), IsolationError> {
        let mut all = self.layout.hierarchies.iter().zip(dirs);
        let found = all.find(|(hierarchy, _)| hierarchy.controllers.contains(&controller));
        found.map(|(hierarchy, dir)| (hierarchy, dir.as_fd())).ok_or_else(|| missing(controller))
    }

    fn with(&self, controller: Controller) -> Result<&Hierarchy, IsolationError> {
        self.layout.with(controller).ok_or_else(|| missing(controller))
    }

    /// Makes a sandbox's cgroups with limits; root inside is `first_id` outside.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Unenforceable`],
    /// [`IsolationError::Kernel`].
    pub fn create(
        &self,
        id: &SandboxId,
        resources: &Resources,
        first_id: u32,
    ) -> Result<Membership, IsolationError> {
        let path = self.path(id);
        for hierarchy in &self.layout.hierarchies {
            let make = || make_dir(hierarchy.root.as_fd(), &path);
            match make() {
                // Another process removed the installation's cgroup.
                Err(Errno::NOENT) => {
                    self.open_parent(hierarchy).and_then(|()| make().step("make a cgroup"))?;
                }
                other => other.step("make a cgroup")?,
            }
        }
        let dirs = self.open_all(id)?;
        self.limit_in(&dirs, resources)?;
        let v1 = self.layout.hierarchies.iter().zip(&dirs).filter(|(h, _)| !h.unified);
        let v1_tasks = v1
            .map(|(_, dir)| open_file(dir.as_fd(), "tasks", OFlags::WRONLY).step("open a cgroup"))
            .collect::<Result<_, _>>()?;
        let unified = self.layout.unified();
        let dir = self.open_in(unified, id)?;
        delegate(dir.as_fd(), first_id).step("delegate a cgroup")?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        // Handed over as it is, as an `O_PATH` descriptor: opening it anew and closing this one would make the kernel
        // take the detached mount apart now, which waits for a grace period.
        let delegated = open_tree(&unified.root, &path, flags).step("clone the mount of a cgroup")?;
        let procs = open_file(dir.as_fd(), "cgroup.procs", OFlags::WRONLY);
        Ok(Membership { v1_tasks, procs: procs.step("open a cgroup")?, delegated })
    }

    /// Sets the limits of a sandbox; the disk's is not here.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Unenforceable`],
    /// [`IsolationError::Kernel`].
    pub fn limit(&self, id: &SandboxId, resources: &Resources) -> Result<(), IsolationError> {
        self.limit_in(&self.open_all(id)?, resources)
    }

    fn limit_in(&self, dirs: &[OwnedFd], resources: &Resources) -> Result<(), IsolationError> {
        let quota = u64::from(resources.cpu_millis) * CPU_PERIOD_US / 1000;
        let (cpu, dir) = self.pick(dirs, Controller::Cpu)?;
        if cpu.unified {
            write(dir, "cpu.max", &format!("{quota} {CPU_PERIOD_US}")).step("limit the CPU")?;
        } else {
            write(dir, "cpu.cfs_quota_us", &quota.to_string()).step("limit the CPU")?;
        }
        let (memory, dir) = self.pick(dirs, Controller::Memory)?;
        limit_memory(dir, memory.unified, resources.memory_bytes).step("limit the memory")?;
        let (_, dir) = self.pick(dirs, Controller::Pids)?;
        write(dir, "pids.max", &resources.pids.to_string()).step("limit the processes")
    }

    /// The limit that is in force, as the kernel writes it.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Unenforceable`],
    /// [`IsolationError::Kernel`].
    pub fn read_limit(&self, id: &SandboxId, controller: Controller) -> Result<String, IsolationError> {
        let hierarchy = self.with(controller)?;
        let file = match (controller, hierarchy.unified) {
            (Controller::Cpu, true) => "cpu.max",
            (Controller::Cpu, false) => "cpu.cfs_quota_us",
            (Controller::Memory, true) => "memory.max",
            (Controller::Memory, false) => "memory.limit_in_bytes",
            (Controller::Pids, _) => "pids.max",
        };
        let text = read(self.open_in(hierarchy, id)?.as_fd(), file).step("read a limit back")?;
        Ok(text.trim().to_owned())
    }

    /// Measures a sandbox, but for its disk.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Unenforceable`],
    /// [`IsolationError::Kernel`].
    pub fn usage(&self, id: &SandboxId) -> Result<Usage, IsolationError> {
        // Part of the core of v2: there, whichever version has the CPU controller.
        let unified = self.open_in(self.layout.unified(), id)?;
        let cpu_us = field(unified.as_fd(), "cpu.stat", "usage_usec").step("measure a cgroup")?;
        let memory = self.with(Controller::Memory)?;
        let dir = self.open_in(memory, id)?;
        let read = |v1: &str, v2: &str| {
            number(dir.as_fd(), if memory.unified { v2 } else { v1 }).step("measure a cgroup")
        };
        let memory_bytes = read("memory.usage_in_bytes", "memory.current")?;
        // `memory.peak` is younger than v2 itself.
        let peak = read("memory.max_usage_in_bytes", "memory.peak").unwrap_or(memory_bytes);
        let pids = self.open_in(self.with(Controller::Pids)?, id)?;
        let pids = number(pids.as_fd(), "pids.current").step("measure a cgroup")?;
        Ok(Usage {
            cpu_us,
            memory_bytes,
            memory_peak_bytes: peak.max(memory_bytes),
            pids: u32::try_from(pids).unwrap_or(u32::MAX),
            oom_kills: oom_kills_in(memory, dir.as_fd())?,
            disk_bytes: 0,
        })
    }

    /// Times the kernel killed something in a sandbox because memory ran out.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Unenforceable`],
    /// [`IsolationError::Kernel`].
    pub fn oom_kills(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let memory = self.with(Controller::Memory)?;
        oom_kills_in(memory, self.open_in(memory, id)?.as_fd())
    }

    /// Stops everything in a sandbox; returns when it stands still. The v2 freezer is part of the core of v2, which
    /// every kernel has that can map the ids of a mount: the one of v1 is not needed.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::CannotPause`],
    /// [`IsolationError::Kernel`].
    pub fn freeze(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let dir = self.open_in(self.layout.unified(), id)?;
        let step = || "freeze a sandbox";
        write(dir.as_fd(), "cgroup.freeze", "1").step(step())?;
        let deadline = Instant::now() + FREEZE_DEADLINE;
        let mut wait = Duration::from_micros(20);
        while field(dir.as_fd(), "cgroup.events", "frozen").step(step())? == 0 {
            if Instant::now() >= deadline {
                write(dir.as_fd(), "cgroup.freeze", "0").step("thaw a sandbox")?;
                return Err(IsolationError::CannotPause(
                    "a process in the sandbox hangs in the kernel and does not stand still".to_owned(),
                ));
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Lets everything in a sandbox go on.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Kernel`].
    pub fn thaw(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let dir = self.open_in(self.layout.unified(), id)?;
        write(dir.as_fd(), "cgroup.freeze", "0").step("thaw a sandbox")
    }

    /// Whether everything in a sandbox stands still.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Kernel`].
    pub fn is_frozen(&self, id: &SandboxId) -> Result<bool, IsolationError> {
        let dir = self.open_in(self.layout.unified(), id)?;
        Ok(field(dir.as_fd(), "cgroup.events", "frozen").step("see whether a sandbox stands still")? != 0)
    }

    /// Takes from a sandbox the memory that it can do without: caches, and, where the host has swap, the rest.
    ///
    /// # Errors
    /// [`IsolationError::Gone`] when the sandbox has no cgroups, [`IsolationError::Unenforceable`],
    /// [`IsolationError::Kernel`].
    pub fn reclaim(&self, id: &SandboxId) -> Result<u64, IsolationError> {
        let memory = self.with(Controller::Memory)?;
        let dir = self.open_in(memory, id)?;
        let used = if memory.unified { "memory.current" } else { "memory.usage_in_bytes" };
        let before = number(dir.as_fd(), used).step("measure a cgroup")?;
        let outcome = if memory.unified {
            // While it stands still its memory may be swapped out; pages that are out stay out after the limit is back.
            let swaps = write(dir.as_fd(), "memory.swap.max", "max").is_ok();
            let outcome = write(dir.as_fd(), "memory.reclaim", &before.to_string());
            if swaps {
                write(dir.as_fd(), "memory.swap.max", "0").step("limit the memory")?;
            }
            outcome
        } else {
            write(dir.as_fd(), "memory.force_empty", "0")
        };
        match outcome {
            // The kernel reclaimed what it could.
            Ok(()) | Err(Errno::AGAIN | Errno::BUSY) => {}
            Err(error) => return Err(failed("reclaim the memory of a sandbox".to_owned(), error.into())),
        }
        let after = number(dir.as_fd(), used).step("measure a cgroup")?;
        Ok(before.saturating_sub(after))
    }

    /// Sends SIGKILL to everything in a sandbox. Returns the processes that were there.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn kill(&self, id: &SandboxId) -> Result<BTreeSet<i32>, IsolationError> {
        let pids = self.pids(id)?;
        if pids.is_empty() {
            return Ok(pids);
        }
        if let Ok(dir) = self.open_in(self.layout.unified(), id) {
            // Absent before Linux 5.14; what follows does without.
            let _ = write(dir.as_fd(), "cgroup.kill", "1");
        }
        // Then the rest: processes that are in a v1 cgroup but not yet in the v2 one.
        for pid in self.pids(id)?.into_iter().filter_map(Pid::from_raw) {
            let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // The descriptor fixes the process; only now can its membership be checked without a race.
            if self.contains(id, pid.as_raw_nonzero().get()) {
                // Refused only when it is dead already.
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        Ok(pids)
    }

    /// The processes in a sandbox's cgroups and in all cgroups below. Zombies are not among them.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn pids(&self, id: &SandboxId) -> Result<BTreeSet<i32>, IsolationError> {
        let mut pids = BTreeSet::new();
        for hierarchy in &self.layout.hierarchies {
            match open_dir(hierarchy.root.as_fd(), self.path(id).as_str()) {
                Ok(dir) => {
                    collect_pids(dir.as_fd(), DEPTH_MAX, &mut pids).step("list the processes of a cgroup")?;
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("open a cgroup".to_owned(), error.into())),
            }
        }
        Ok(pids)
    }

    /// Removes a sandbox's cgroups; its processes are dead or about to be.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn remove(&self, id: &SandboxId) -> Result<(), IsolationError> {
        let deadline = Instant::now() + REMOVE_DEADLINE;
        for hierarchy in &self.layout.hierarchies {
            let mut wait = Duration::from_micros(100);
            loop {
                match remove_tree(hierarchy.root.as_fd(), self.path(id).as_str(), DEPTH_MAX) {
                    Ok(()) | Err(Errno::NOENT) => break,
                    Err(Errno::BUSY) if Instant::now() < deadline => {
                        self.kill(id)?;
                        std::thread::sleep(wait);
                        wait = (wait * 2).min(Duration::from_millis(10));
                    }
                    Err(error) => return Err(failed("remove a cgroup".to_owned(), error.into())),
                }
            }
        }
        Ok(())
    }

    /// The sandboxes that have cgroups, with the path of each cgroup.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn scan(&self) -> Result<Vec<(SandboxId, String)>, IsolationError> {
        let mut found = Vec::new();
        for hierarchy in &self.layout.hierarchies {
            let parent = match open_dir(hierarchy.root.as_fd(), self.parent.as_str()) {
                Ok(parent) => parent,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed("open a cgroup".to_owned(), error.into())),
            };
            for name in subdirectories(parent.as_fd()).step("list cgroups")? {
                let Ok(name) = name.to_str() else { continue };
                if let Ok(id) = name.parse::<SandboxId>() {
                    found.push((id, format!("{}/{}/{name}", hierarchy.path.display(), self.parent)));
                }
            }
        }
        Ok(found)
    }

    /// Removes the installation's own cgroups, if no sandbox has one.
    pub fn close(&self) {
        for hierarchy in &self.layout.hierarchies {
            // Busy means that sandboxes live on, which is right.
            let _ = rustix::fs::unlinkat(&hierarchy.root, &self.parent, AtFlags::REMOVEDIR);
        }
    }

    /// Whether the process is in the sandbox's cgroup, by the process's own account.
    #[must_use]
    pub fn contains(&self, id: &SandboxId, pid: i32) -> bool {
        let ours = format!("/{}", self.path(id));
        let text = process::read_file(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        text.lines().any(|line| line.ends_with(&ours) || line.contains(&format!("{ours}/")))
    }
}

fn missing(controller: Controller) -> IsolationError {
    let name = controller.name();
    IsolationError::Unenforceable(format!("this host has no cgroup controller '{name}'"))
}

fn oom_kills_in(memory: &Hierarchy, dir: BorrowedFd<'_>) -> Result<u64, IsolationError> {
    let file = if memory.unified { "memory.events" } else { "memory.oom_control" };
    field(dir, file, "oom_kill").step("count the kills for want of memory")
}

/// Gives root inside the right to make cgroups below and move its processes among them.
fn delegate(dir: BorrowedFd<'_>, first_id: u32) -> rustix::io::Result<()> {
    write(dir, "cgroup.max.descendants", &DESCENDANTS_MAX.to_string())?;
    write(dir, "cgroup.max.depth", NESTING_MAX)?;
    let (user, group) = (Some(Uid::from_raw(first_id)), Some(Gid::from_raw(first_id)));
    for name in [".", "cgroup.procs"] {
        rustix::fs::chownat(dir, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
