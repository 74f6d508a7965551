//! Directories as the agent opens them for its clients.
//!
//! A client names paths, and processes in the sandbox put links on them. The agent resolves them in its own process, in
//! which two kinds of links lead elsewhere than in a process of the sandbox:
//!
//! - **Magic links** of `/proc` (`fd/N`, `cwd`, `root`, `exe`) lead to what a process has open: for the agent, to the cgroup
//!   that it holds. The kernel refuses to follow them (`openat2` with `RESOLVE_NO_MAGICLINKS`), or [`walk`] does.
//! - **`/proc/self` and `/proc/thread-self`** are the agent here. Its directory shows what it says of the whole sandbox
//!   ([`SHOWN`]), and is otherwise closed.
//!
//! And the agent has rights over its cgroup that a client does not have: nothing of a file system of cgroups is changed
//! for one.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::walk;

/// Types of file systems (`linux/magic.h`).
const PROC: i64 = 0x9fa0;
const SYSFS: i64 = 0x6265_6572;
const CGROUP: i64 = 0x0027_e0eb;
const CGROUP2: i64 = 0x6367_7270;

/// What the agent's own directory of `/proc` says of the whole sandbox, or to any process in it. The rest is about the
/// agent's memory and what it has open, which the kernel tells only the agent itself, and closed: so are names that
/// later kernels have.
const SHOWN: [&str; 18] = [
    "cgroup",
    "cmdline",
    "comm",
    "cpuset",
    "gid_map",
    "limits",
    "loginuid",
    "mountinfo",
    "mounts",
    "mountstats",
    "net",
    "oom_score",
    "oom_score_adj",
    "sessionid",
    "setgroups",
    "statm",
    "status",
    "uid_map",
];

/// Levels of a `/proc`.
const LEVELS_MAX: usize = 64;
/// Bytes of `/proc/N/status` that are read: the process's identity is in the first lines.
const STATUS_MAX_BYTES: u64 = 8 << 10;

/// The kind of files that lie in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Realm {
    Files,
    Sys,
    Cgroups,
    /// The top of a `/proc`: its links are plain ones.
    ProcTop,
    Proc,
    /// The agent's own directory in a `/proc`.
    Agent,
    /// The state of the network, which is the same for all processes of the sandbox.
    AgentsNetwork,
    /// Anything else below the agent's directory.
    AgentsOwn,
}

/// A directory that was opened for a client.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    realm: Realm,
}

/// Type of the file system that something lies on.
fn file_system<Fd: AsFd>(of: Fd) -> Result<i64, Errno> {
    Ok(rustix::fs::fstatfs(of)?.f_type)
}

/// Whether something lies in a `/proc`.
pub(super) fn is_in_proc<Fd: AsFd>(what: Fd) -> Result<bool, Errno> {
    Ok(file_system(what)? == PROC)
}

/// Refuses what lies on a file system of cgroups.
pub(super) fn refuse_cgroup<Fd: AsFd>(what: Fd) -> Result<(), Errno> {
    if matches!(file_system(what)?, CGROUP | CGROUP2) { Err(Errno::PERM) } else { Ok(()) }
}

/// Refuses to have entries of a directory made, changed or removed for a client.
pub(super) fn refuse_change(directory: &OwnedFd) -> Result<(), Errno> {
    realm(directory)?.check_change()
}

/// A path for what the agent itself has open, for calls that take only paths.
pub(crate) fn own_path<Fd: AsFd>(opened: Fd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()))
}

impl Realm {
    fn check_change(self) -> Result<(), Errno> {
        match self {
            Self::Cgroups | Self::Agent | Self::AgentsNetwork | Self::AgentsOwn => Err(Errno::PERM),
            Self::Files | Self::Sys | Self::ProcTop | Self::Proc => Ok(()),
        }
    }

    fn check_content(self, name: &OsStr) -> Result<(), Errno> {
        match self {
            Self::AgentsOwn => Err(Errno::PERM),
            Self::Agent if !SHOWN.iter().any(|shown| name == OsStr::new(shown)) => Err(Errno::PERM),
            _ => Ok(()),
        }
    }
}

fn realm(directory: &OwnedFd) -> Result<Realm, Errno> {
    match file_system(directory)? {
        PROC => realm_in_proc(directory),
        SYSFS => Ok(Realm::Sys),
        CGROUP | CGROUP2 => Ok(Realm::Cgroups),
        _ => Ok(Realm::Files),
    }
}

/// Goes up from a directory of a `/proc`, in which nothing can be moved, to find out whose it is.
fn realm_in_proc(directory: &OwnedFd) -> Result<Realm, Errno> {
    let mut here = step(directory, OsStr::new("."))?;
    let (mut first, mut second): (Option<OwnedFd>, Option<OwnedFd>) = (None, None);
    for _ in 0..LEVELS_MAX {
        let above = step(&here, OsStr::new(".."))?;
        if !is_in_proc(&above)? || identity(&above)? == identity(&here)? {
            return match first {
                None => Ok(Realm::ProcTop),
                Some(process) => realm_in_process(&process, second.as_ref()),
            };
        }
        second = first.replace(here);
        here = above;
    }
    Err(Errno::LOOP)
}

/// `inner` is the directory in that of the process on the way to the one that is asked about.
fn realm_in_process(process: &OwnedFd, inner: Option<&OwnedFd>) -> Result<Realm, Errno> {
    if !is_the_agent(process)? {
        return Ok(Realm::Proc);
    }
    let Some(inner) = inner else { return Ok(Realm::Agent) };
    let network = step(process, OsStr::new("net")).and_then(|network| identity(&network));
    let is_network = network.is_ok_and(|network| identity(inner) == Ok(network));
    Ok(if is_network { Realm::AgentsNetwork } else { Realm::AgentsOwn })
}

/// Whether a directory below the top of a `/proc` is that of the agent, or of a thread of it.
fn is_the_agent(process: &OwnedFd) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let status = match rustix::fs::openat(process, "status", flags, Mode::empty()) {
        Ok(status) => status,
        // It is of no process, or of one that has ended.
        Err(Errno::NOENT | Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    match File::from(status).take(STATUS_MAX_BYTES).read_to_end(&mut text) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
    let own = std::process::id().to_string();
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().any(|line| line.strip_prefix("Tgid:").is_some_and(|id| id.trim() == own)))
}

fn identity(of: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(of)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens the directory with this name, as a path, unless it is a link.
fn step(at: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// Opens the directory that an absolute path leads to, as a path, without following a magic link.
fn resolve(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::NOSYS) => walk::open_from_top(path),
        opened => opened,
    }
}

impl Directory {
    /// Opens the directory that an absolute path leads to.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let fd = resolve(path)?;
        Ok(Self { realm: realm(&fd)?, fd })
    }

    /// Opens a directory in this one; a link is refused.
    pub(super) fn below(&self, name: &OsStr) -> io::Result<Self> {
        let fd = step(&self.fd, name)?;
        Ok(Self { realm: realm(&fd)?, fd })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The directory for reading and syncing: this one is only a path.
    pub(super) fn to_read(&self) -> io::Result<OwnedFd> {
        if self.realm == Realm::AgentsOwn {
            return Err(Errno::PERM.into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?)
    }

    /// Its entries, in the order of the file system.
    pub(crate) fn entries(&self) -> io::Result<Entries> {
        Ok(Entries(Dir::new(self.to_read()?)?))
    }

    /// Facts about an entry; of a link itself.
    pub(crate) fn metadata(&self, name: &OsStr) -> io::Result<Metadata> {
        if self.realm == Realm::AgentsOwn {
            return Err(Errno::PERM.into());
        }
        File::from(self.path_of(name)?).metadata()
    }

    /// The file system that the directory lies on.
    pub(super) fn device(&self) -> io::Result<u64> {
        Ok(self.metadata(OsStr::new("."))?.dev())
    }

    /// Where an entry leads that is a link, in its own words.
    pub(crate) fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        self.realm.check_content(name)?;
        let target = rustix::fs::readlinkat(&self.fd, name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Where an entry leads that is a link and may be followed. None for anything else, and when it is not there.
    pub(super) fn followed(&self, name: &OsStr) -> io::Result<Option<PathBuf>> {
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => match self.realm {
                Realm::Files | Realm::Sys | Realm::Cgroups | Realm::ProcTop => {
                    Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes()))))
                }
                Realm::Proc | Realm::Agent | Realm::AgentsNetwork | Realm::AgentsOwn => {
                    Err(Errno::LOOP.into())
                }
            },
            Err(Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens an entry, unless it is a link.
    pub(crate) fn open_file(&self, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
        let changes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        if changes {
            self.check_change()?;
        }
        self.realm.check_content(name)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode))?;
        if changes {
            // It may be mounted here, on a directory of other files.
            refuse_cgroup(&opened)?;
        }
        Ok(File::from(opened))
    }

    /// Opens a regular file to read, unless it is a link. Never waits for the other end of a FIFO.
    pub(super) fn open_regular(&self, name: &OsStr) -> io::Result<File> {
        let file = self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, 0)?;
        let kind = file.metadata()?.file_type();
        if kind.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if !kind.is_file() {
            return Err(Errno::INVAL.into());
        }
        Ok(file)
    }

    /// An entry as a path, whatever it is.
    pub(super) fn path_of(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::empty())
    }

    /// Whether an entry may be looked at for a client.
    pub(super) fn check_shown(&self, name: &OsStr) -> io::Result<()> {
        Ok(self.realm.check_content(name)?)
    }

    /// Whether entries may be made, changed and removed for a client.
    pub(super) fn check_change(&self) -> io::Result<()> {
        Ok(self.realm.check_change()?)
    }

    /// Whether it shows the kernel's state rather than files: reading it has effects or no end.
    pub(super) fn is_of_the_kernel(&self) -> bool {
        self.realm != Realm::Files
    }
}

/// The entries of a directory, without `.` and `..`, and their kinds where the file system tells them.
pub(crate) struct Entries(Dir);

impl Iterator for Entries {
    type Item = io::Result<(OsString, FileType)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|entry| match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                let is_named = !matches!(name, b"." | b"..");
                is_named.then(|| Ok((OsStr::from_bytes(name).to_owned(), entry.file_type())))
            }
            Err(error) => Some(Err(error.into())),
        })
    }
}
