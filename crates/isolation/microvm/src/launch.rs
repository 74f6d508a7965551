//! Starts a VMM in a jail: what the program's hidden command `vmm` does.
//!
//! The server never forks itself, and a VMM needs steps between fork and exec that only a process of its
//! own can take; so the server starts this small program, which builds the jail and turns into the VMM.
//!
//! The VMM then runs
//!
//! - as a user and group of its own, without any capability, with `no_new_privs`, behind a filter that lets through the
//!   system calls that a VMM needs, to which QEMU adds one of its own;
//! - in mount, PID, IPC, UTS, cgroup and network namespaces of its own (the last one is the sandbox's slot);
//! - with a root that holds nothing but what is listed in [`Jail`]: the programs of the host (`/usr`, read-only),
//!   kernel and saved memory, read-only, and the devices it needs. There is no place where it could write. A machine
//!   that goes on from a file finds its own open descriptors there, too: QEMU opens memory by name only;
//! - with the sandbox's disk, its sockets and its network card as open descriptors, not as names;
//! - in the sandbox's cgroups.
//!
//! A guest that takes over its VMM finds nothing in the jail that it did not have already.
#![expect(unsafe_code, reason = "giving up capabilities and placing descriptors have no safe wrapper")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_isolation_host::jail::{self, Forked, said};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::filter;

/// Descriptors of the VMM are below this.
const FD_ABOVE: RawFd = 64;

/// What to start, and in what.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jail {
    /// The VMM with its arguments. Paths are those inside.
    pub argv: Vec<String>,
    /// User and group to run as.
    pub uid: u32,
    /// An empty directory on which the root is put together, in a mount namespace that only it has.
    pub scratch: PathBuf,
    /// Files and directories that are shown inside.
    pub show: Vec<Shown>,
    /// Files that are open inside.
    pub files: Vec<Opened>,
    /// Directory of the sockets, and the name of each.
    pub sockets_dir: PathBuf,
    /// Sockets on which the VMM listens: name and descriptor.
    pub sockets: Vec<(String, RawFd)>,
    /// Descriptor of the network card.
    pub tap: RawFd,
    /// Files of cgroups to be written to before anything else.
    pub cgroups: Vec<PathBuf>,
    /// The network slot, as a path to open.
    pub netns: PathBuf,
    /// A directory in which the VMM's own descriptors are files, named by their numbers: for what it opens by name and
    /// is no file of the host's tree.
    pub own_files: Option<PathBuf>,
    /// Where to write the VMM's process id, as the host sees it.
    pub pid_file: PathBuf,
    /// Where the VMM's own words go.
    pub log: PathBuf,
}

/// A file that is open inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// On the host.
    pub path: PathBuf,
    /// Its descriptor.
    pub fd: RawFd,
    /// Whether it may be written to.
    pub writable: bool,
}

/// Something that is shown inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// On the host.
    pub from: PathBuf,
    /// Inside, absolute.
    pub to: PathBuf,
    /// Whether it may be written to.
    pub writable: bool,
}

/// Builds the jail and starts the VMM in it; ends when the VMM has been started.
///
/// # Errors
/// What could not be done; nothing runs then.
pub fn launch(jail: &Jail) -> Result<(), String> {
    jail::close_inherited()?;
    jail::enter_cgroups(&jail.cgroups)?;
    let log = File::create(&jail.log).map_err(said("make the log"))?;
    // Held until the VMM has them: its descriptors are copies.
    let mut held = Vec::new();
    for file in &jail.files {
        let opened = File::options().read(true).write(file.writable).open(&file.path);
        let opened = opened.map_err(said(format!("open {}", file.path.display())))?;
        held.push((OwnedFd::from(opened), file.fd));
    }
    for (name, fd) in &jail.sockets {
        held.push((listen(&jail.sockets_dir, name).map_err(said("make a socket"))?, *fd));
    }
    jail::enter_network(&jail.netns)?;
    let tap = atoll_network::open_tap().map_err(|error| format!("{error}: {}", error.source))?;
    held.push((tap, jail.tap));
    jail::own_namespaces()?;
    build_root(jail)?;
    // Opened now: the child changes the root of the mount namespace, which this process is in, too.
    let (pid_dir, pid_name) = jail::place_of(&jail.pid_file)?;
    // SAFETY: this program has one thread.
    match unsafe { jail::fork_sibling() }? {
        // The launcher has reported success already; this process reports a failure by ending.
        Forked::Child => Err(become_vmm(jail, log, held)),
        Forked::Launcher(pid) => {
            jail::write_whole(&pid_dir, pid_name, &pid.to_string()).map_err(said("write the process id"))
        }
    }
}

fn build_root(jail: &Jail) -> Result<(), String> {
    let root = &jail.scratch;
    jail::root(root, c"size=1m,mode=755")?;
    for name in ["bin", "lib", "lib64", "sbin"] {
        if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
            std::os::unix::fs::symlink(target, root.join(name)).map_err(said("make a link"))?;
        }
    }
    for shown in &jail.show {
        show(root, shown)?;
    }
    match jail.own_files.as_deref() {
        Some(path) => std::fs::create_dir(inside(root, path)).map_err(said("make a directory")),
        None => Ok(()),
    }
}

/// The place in the root that is put together of a path inside.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Shows the descriptors of process 1, which this is, and nothing else of what the kernel tells about processes.
fn show_own_files(root: &Path, own_files: &Path) -> Result<(), String> {
    let (all, flags) =
        (root.join(jail::OLD_ROOT), MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC);
    mount("proc", &all, "proc", flags, c"").map_err(said("mount the processes"))?;
    let place = inside(root, own_files);
    let shown = mount_bind(all.join("1/fd"), &place)
        .and_then(|()| mount_remount(&place, MountFlags::BIND | MountFlags::RDONLY | flags, ""));
    let hidden = unmount(&all, UnmountFlags::DETACH);
    shown.and(hidden).map_err(said("show the open files"))
}

fn show(root: &Path, shown: &Shown) -> Result<(), String> {
    let inside = inside(root, &shown.to);
    make_place(&shown.from, &inside).map_err(said(format!("make a place for {}", shown.from.display())))?;
    let flags = match (shown.from.starts_with("/dev"), shown.writable) {
        (true, _) => MountFlags::NOEXEC,
        (false, true) => MountFlags::NOEXEC | MountFlags::NODEV,
        (false, false) => MountFlags::NODEV | MountFlags::RDONLY,
    };
    jail::show(&shown.from, &inside, flags)
}

fn make_place(from: &Path, inside: &Path) -> io::Result<()> {
    if from.is_dir() {
        return std::fs::create_dir_all(inside);
    }
    if let Some(parent) = inside.parent() {
        std::fs::create_dir_all(parent)?;
    }
    File::create(inside).map(drop)
}

/// A listening socket in a directory whose path may be too long for the kernel.
fn listen(dir: &Path, name: &str) -> io::Result<OwnedFd> {
    let dir = File::open(dir)?;
    let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::net::UnixListener::bind(path).map(OwnedFd::from)
}

/// In the child, which is process 1 of its namespace. Returns only what went wrong.
fn become_vmm(jail: &Jail, log: File, held: Vec<(OwnedFd, RawFd)>) -> String {
    let enter = || -> Result<(), String> {
        if let Some(own_files) = &jail.own_files {
            show_own_files(&jail.scratch, own_files)?;
        }
        jail::change_root(&jail.scratch)?;
        mount_remount(
            "/",
            MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
            "",
        )
        .map_err(said("seal the root"))?;
        place(held)?;
        limit_resources()?;
        do_without_huge_pages();
        give_up_privileges(jail.uid)?;
        filter::PROFILE.install()
    };
    if let Err(error) = enter() {
        drop((&log).write_all(error.as_bytes()));
        return error;
    }
    let Some((program, arguments)) = jail.argv.split_first() else { return "no program".to_owned() };
    let again = match log.try_clone() {
        Ok(again) => again,
        Err(error) => return error.to_string(),
    };
    let error = Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(std::process::Stdio::null())
        .stdout(again)
        .stderr(log)
        .exec();
    format!("failed to start {program}: {error}")
}

/// Puts every descriptor where the VMM expects it, open across its start.
fn place(held: Vec<(OwnedFd, RawFd)>) -> Result<(), String> {
    // First away from the numbers that are to be taken.
    let mut away = Vec::new();
    for (fd, number) in held {
        let copy = rustix::io::fcntl_dupfd_cloexec(&fd, FD_ABOVE).map_err(said("copy a descriptor"))?;
        away.push((copy, number));
    }
    for (fd, number) in away {
        // SAFETY: takes no pointers. The number is not in use: everything that is open lies elsewhere.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
            return Err(format!("failed to place a descriptor: {}", io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Limits the resources that no cgroup counts, and that a VMM which its guest took over could take from the host. The
/// sizes of its disks, and of the file that its memory is written to, change, so those have no limit here.
fn limit_resources() -> Result<(), String> {
    /// Descriptors: each processor and each device has a few, and what is handed over.
    const OPEN_FILES: u64 = 4096;
    /// Bytes of a core dump: with 1 the kernel starts no helper for it, with 0 it may.
    const CORE: u64 = 1;
    for (resource, most) in [(Resource::Nofile, OPEN_FILES), (Resource::Core, CORE), (Resource::Msgqueue, 0)]
    {
        let most = getrlimit(resource).maximum.map_or(most, |own| own.min(most));
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).map_err(said("limit the VMM"))?;
    }
    Ok(())
}

/// QEMU asks for huge pages where it keeps the code that it translated, and gets 2 MiB for each page of 4 KiB that it
/// begins: with many machines that is much, and it makes them no faster. It stays so across its start. A kernel that
/// refuses only lets it take more.
fn do_without_huge_pages() {
    rustix::thread::disable_transparent_huge_pages(true).unwrap_or_default();
}

fn give_up_privileges(uid: u32) -> Result<(), String> {
    for capability in 0..64 {
        // SAFETY: takes no pointers; a number that the kernel does not know is refused.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            break;
        }
    }
    rustix::thread::set_no_new_privs(true).map_err(said("refuse new privileges"))?;
    rustix::thread::set_thread_groups(&[]).map_err(said("leave all groups"))?;
    let gid = Gid::from_raw(uid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(said("change the group"))?;
    let uid = Uid::from_raw(uid);
    // Leaving user 0 clears every capability set; there is one thread.
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(said("change the user"))
}
