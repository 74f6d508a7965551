//! Finds the installations on this host by what they made in the kernel, and ends them without their data directory.
//!
//! Everything that an installation runs is in cgroups that carry its name. The one in the hierarchy of version 2 also
//! says, as extended attributes, where the data directory is, and in which mount namespace: when that directory is
//! gone, no server can own the processes that still run. A service with a `/tmp` of its own, or a server in a
//! container, has its directory where other processes do not see it.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_isolation::IsolationError;
use rustix::fs::{FlockOperation, XattrFlags, fgetxattr, flock, fsetxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::cgroup::files;
use crate::halt::LEVELS;
use crate::layout::Layout;
use crate::step::{Step, failed};

/// Hexadecimal digits of a name.
const NAME_LEN: usize = 8;
/// What begins the names of our cgroups.
const PREFIX: &str = "atoll-";
/// Says where the data directory is. Only the host's root can set or see it.
const ATTRIBUTE: &str = "trusted.atoll.data_dir";
/// Says in which mount namespace that is, and in which PID namespace its server: two decimal numbers.
const NAMESPACES: &str = "trusted.atoll.namespaces";
/// The PID namespace of the host (`PROC_PID_INIT_INO` in Linux's `include/linux/proc_ns.h`): a process in it sees all
/// processes.
const HOST_PIDS: u64 = 0xEFFF_FFFC;
const PATH_MAX_BYTES: usize = 4096;
/// A file in a data directory that is to end with its server.
pub const EPHEMERAL: &str = "ephemeral";
/// How long killed processes may take to end.
const END_DEADLINE: Duration = Duration::from_secs(20);
const END_PAUSE: Duration = Duration::from_millis(10);
/// Depth of cgroups below ours.
const DEPTH_MAX: u32 = 64;

/// An installation that has something in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Installation {
    /// Eight hexadecimal digits.
    pub name: String,
    /// Where its data directory is, or was; `None` when its server was so old that it did not write this down.
    pub data_dir: Option<PathBuf>,
    /// The namespaces in which that path is valid; when they are not known, the path is looked up in the caller's own.
    pub namespaces: Option<Namespaces>,
}

/// The namespaces that decide which directories and which processes a process sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespaces {
    mount: u64,
    pid: u64,
}

impl Namespaces {
    fn of(pid: &str) -> Option<Self> {
        let number = |kind| std::fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok().map(|meta| meta.ino());
        Some(Self { mount: number("mnt")?, pid: number("pid")? })
    }

    fn parse(text: &str) -> Option<Self> {
        let (mount, pid) = text.split_once(' ')?;
        Some(Self { mount: mount.parse().ok()?, pid: pid.parse().ok()? })
    }

    /// Whether a process in these namespaces sees every process in `others`.
    fn sees(self, others: Self) -> bool {
        self.pid == others.pid || self.pid == HOST_PIDS
    }

    /// A process that sees the same directories.
    fn inhabitant(self) -> Option<String> {
        let entries = std::fs::read_dir("/proc").ok()?.flatten();
        let mut pids = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        pids.find(|pid| self.has(pid))
    }

    fn has(self, pid: &str) -> bool {
        Self::of(pid).is_some_and(|other| other.mount == self.mount)
    }
}

impl Installation {
    /// Whether its data directory is known, and is not there, or belongs to another installation by now, or was to end
    /// with a server that no longer runs. A directory that cannot be seen from here does not count as gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Some(data_dir) = &self.data_dir else { return false };
        let (Some(there), Some(here)) = (self.namespaces, Namespaces::of("self")) else {
            return self.is_gone_at(data_dir);
        };
        if there.mount == here.mount {
            return self.is_gone_at(data_dir);
        }
        loop {
            let Some(pid) = there.inhabitant() else {
                // A namespace ends with its last process, and so do mounts that only this namespace had.
                return here.sees(there) && self.is_gone_at(data_dir);
            };
            let is_gone = self.is_gone_at(&seen_by(&pid, data_dir));
            // The result counts only if the process through which the directory was seen is still in that namespace.
            if !is_gone || there.has(&pid) {
                return is_gone;
            }
        }
    }

    fn is_gone_at(&self, dir: &Path) -> bool {
        match std::fs::read_to_string(dir.join("installation")) {
            Ok(name) => name.trim() != self.name || is_left_over(dir),
            Err(error) => {
                matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
            }
        }
    }
}

/// A path, as a process sees it.
fn seen_by(pid: &str, path: &Path) -> PathBuf {
    Path::new("/proc").join(pid).join("root").join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether this directory belonged to an ephemeral server that no longer runs.
fn is_left_over(data_dir: &Path) -> bool {
    let Ok(lock) = std::fs::File::open(data_dir.join("lock")) else { return false };
    data_dir.join(EPHEMERAL).try_exists().is_ok_and(|there| there)
        && flock(&lock, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Whether a server uses this data directory.
fn is_served(data_dir: &Path) -> bool {
    std::fs::File::open(data_dir.join("lock"))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Another data directory of the same installation, a copy of this one or its original, to which the installation's
/// processes on this host belong.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn owner_elsewhere(name: &str, data_dir: &Path) -> Result<Option<PathBuf>, IsolationError> {
    let found = installations()?.into_iter().find(|one| one.name == name && !one.is_gone());
    let other = found.and_then(|one| one.data_dir);
    Ok(other.filter(|other| identity(other) != identity(data_dir)))
}

/// Tells directories apart: two paths to the same directory give the same.
fn identity(dir: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(dir).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The same as [`owner_elsewhere`], but only if a server uses that directory, or sandboxes of the installation run. Two
/// servers of one installation would take each other's sandboxes for their own.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn in_use_elsewhere(name: &str, data_dir: &Path) -> Result<Option<PathBuf>, IsolationError> {
    match owner_elsewhere(name, data_dir)? {
        Some(other) if is_served(&other) || is_running(name)? => Ok(Some(other)),
        _ => Ok(None),
    }
}

fn parents(name: &str) -> [String; LEVELS.len()] {
    LEVELS.map(|level| format!("{PREFIX}{name}{level}"))
}

/// The installation that a cgroup belongs to.
fn name_of(cgroup: &str) -> Option<&str> {
    let (name, level) = cgroup.strip_prefix(PREFIX)?.split_at_checked(NAME_LEN)?;
    let hex = name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    (hex && LEVELS.contains(&level)).then_some(name)
}

/// Writes down in the kernel where the data directory of an installation is.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn mark(name: &str, data_dir: &Path) -> Result<(), IsolationError> {
    let layout = Layout::find()?;
    let step = "write down where the data directory is";
    for parent in parents(name) {
        match files::open_dir(layout.unified().root.as_fd(), parent.as_str()) {
            Ok(dir) => {
                // In this order: a directory without namespaces beside it would be looked up in the namespaces of any
                // process that asks.
                if let Some(Namespaces { mount, pid }) = Namespaces::of("self") {
                    let value = format!("{mount} {pid}");
                    fsetxattr(&dir, NAMESPACES, value.as_bytes(), XattrFlags::empty()).step(step)?;
                }
                let value = data_dir.as_os_str().as_bytes();
                fsetxattr(&dir, ATTRIBUTE, value, XattrFlags::empty()).step(step)?;
            }
            // There is nothing at this level.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(step.to_owned(), error.into())),
        }
    }
    Ok(())
}

/// Every installation that has something here.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn installations() -> Result<BTreeSet<Installation>, IsolationError> {
    let layout = Layout::find()?;
    let unified = layout.unified();
    let root = files::open_dir(unified.root.as_fd(), ".").step("list the cgroups")?;
    let mut found = BTreeSet::new();
    for cgroup in files::subdirectories(root.as_fd()).step("list the cgroups")? {
        let Some(name) = cgroup.to_str().ok().and_then(name_of) else { continue };
        let Ok(dir) = files::open_dir(root.as_fd(), &*cgroup) else { continue };
        let data_dir =
            attribute(&dir, ATTRIBUTE).map(|path| PathBuf::from(std::ffi::OsString::from_vec(path)));
        let namespaces = attribute(&dir, NAMESPACES).and_then(|text| String::from_utf8(text).ok());
        let namespaces = namespaces.and_then(|text| Namespaces::parse(&text));
        // Each level says the same.
        if data_dir.is_some() || !found.iter().any(|one: &Installation| one.name == name) {
            found.retain(|one: &Installation| one.name != name);
            found.insert(Installation { name: name.to_owned(), data_dir, namespaces });
        }
    }
    Ok(found)
}

fn attribute(dir: impl AsFd, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; PATH_MAX_BYTES];
    let len = fgetxattr(dir, name, &mut value).ok()?;
    value.get(..len).map(<[u8]>::to_vec)
}

/// Whether a process of an installation runs here.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn is_running(name: &str) -> Result<bool, IsolationError> {
    let layout = Layout::find()?;
    let mut pids = BTreeSet::new();
    for hierarchy in &layout.hierarchies {
        for parent in parents(name) {
            match files::open_dir(hierarchy.root.as_fd(), parent.as_str()) {
                Ok(dir) => files::collect_pids(dir.as_fd(), DEPTH_MAX, &mut pids)
                    .step("list the processes of a cgroup")?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("open a cgroup".to_owned(), error.into())),
            }
        }
    }
    Ok(!pids.is_empty())
}

/// Ends every sandbox of an installation and removes its cgroups. Then the kernel lets go of its disks. Gives how many
/// processes were killed. No server of it may run.
///
/// # Errors
/// [`IsolationError::Kernel`] when a process does not end, or the kernel refuses a step.
pub fn end_installation(name: &str) -> Result<usize, IsolationError> {
    let layout = Layout::find()?;
    let parents = parents(name);
    let deadline = Instant::now() + END_DEADLINE;
    let mut killed = BTreeSet::new();
    loop {
        let pids = kill(&layout, &parents)?;
        if pids.is_empty() {
            break;
        }
        killed.extend(pids.iter().copied());
        if Instant::now() >= deadline {
            let why = std::io::Error::other(format!("{} processes do not end", pids.len()));
            return Err(failed(format!("end the installation {name}"), why));
        }
        std::thread::sleep(END_PAUSE);
    }
    for hierarchy in &layout.hierarchies {
        for parent in &parents {
            loop {
                match files::remove_tree(hierarchy.root.as_fd(), parent.as_str(), DEPTH_MAX) {
                    Ok(()) | Err(Errno::NOENT) => break,
                    // The kernel takes its time to let go of dead processes.
                    Err(Errno::BUSY | Errno::NOTEMPTY) if Instant::now() < deadline => {
                        std::thread::sleep(END_PAUSE);
                    }
                    Err(error) => return Err(failed(format!("remove the cgroup {parent}"), error.into())),
                }
            }
        }
    }
    Ok(killed.len())
}

/// Kills every process in these cgroups, once; gives the processes that were there.
pub(crate) fn kill(layout: &Layout, parents: &[String]) -> Result<BTreeSet<i32>, IsolationError> {
    let mut pids = BTreeSet::new();
    for hierarchy in &layout.hierarchies {
        for parent in parents {
            let dir = match files::open_dir(hierarchy.root.as_fd(), parent.as_str()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed("open a cgroup".to_owned(), error.into())),
            };
            if hierarchy.unified {
                // Absent before Linux 5.14; what follows does without.
                let _ = files::write(dir.as_fd(), "cgroup.kill", "1");
            }
            files::collect_pids(dir.as_fd(), DEPTH_MAX, &mut pids).step("list the processes of a cgroup")?;
        }
    }
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_ours() {
        assert_eq!(name_of("atoll-0123abcd"), Some("0123abcd"));
        assert_eq!(name_of("atoll-0123abcd-vm"), Some("0123abcd"));
        for other in
            ["atoll-0123abcd-xx", "atoll-0123abc", "atoll-0123ABCD", "atoll.service", "atoll-€€€abcde"]
        {
            assert_eq!(name_of(other), None, "{other}");
        }
    }

    #[test]
    fn one_is_gone_when_its_directory_is_or_has_another_name() {
        let dir = tempfile::Builder::new().prefix("atoll-installation-").tempdir().unwrap();
        let data_dir = Some(dir.path().to_owned());
        let here = Namespaces::of("self").unwrap();
        let one = Installation { name: "0123abcd".to_owned(), data_dir, namespaces: Some(here) };
        assert!(one.is_gone());
        std::fs::write(dir.path().join("installation"), "0123abcd\n").unwrap();
        assert!(!one.is_gone());
        std::fs::write(dir.path().join("installation"), "ffffffff").unwrap();
        assert!(one.is_gone());
        assert!(!Installation { data_dir: None, ..one.clone() }.is_gone());
        // No process is in that namespace any more.
        let nowhere = |pid| Installation { namespaces: Some(Namespaces { mount: 1, pid }), ..one.clone() };
        assert!(nowhere(here.pid).is_gone());
        // A process that does not see all processes cannot know whether one is.
        assert_eq!(nowhere(1).is_gone(), here.pid == HOST_PIDS);
    }
}
