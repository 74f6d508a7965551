//! What a new sandbox's first process does before it becomes the guest agent.
//!
//! It runs in the server's memory, on a stack of its own, while the thread that made it sleeps: so no
//! page table of a large server is copied. The price: **only system calls and plain arithmetic here**,
//! no allocation, no lock, no panic, nothing of libc that keeps state. rustix calls the kernel directly.
//!
//! Order, and why:
//!
//! 1. Cgroups first, so that from then on the process can be found and killed by sandbox id.
//! 2. Namespaces and mounts as the host's root. The user namespace is joined *last*, so that the mount,
//!    network, pid, host name and IPC namespaces belong to the host and root inside has no power
//!    over them. The mount namespace begins as a copy of an empty one ([`crate::base`]): no mount of the host is ever
//!    in it but the clones that the server made.
//! 3. From the overlay on, files are made with the sandbox's own ids: the disk is mapped, and the host's
//!    root does not exist on it.
//! 4. User namespace, filter, capabilities, descriptors, exec.
//!
//! Paths inside the image are opened without following any symbolic link: an image whose `/proc` is
//! a link gets an error, not a mount on something of the host.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mknodat, openat2};
use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags, mount, move_mount, unmount};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType, UnshareFlags};

use crate::create::Command;
use crate::{base, masks, memory, sys};

/// Everything the child needs, made beforehand.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Cgroup files of version 1 to write itself into. It starts in the cgroup of version 2.
    pub(crate) v1_tasks: Vec<OwnedFd>,
    /// Network namespace.
    pub(crate) netns: OwnedFd,
    /// The mount namespace that the child's begins as.
    pub(crate) base: std::sync::Arc<OwnedFd>,
    /// Mapped, detached clones of the layers, and the place of each below [`base::PARTS`].
    pub(crate) layers: Vec<(OwnedFd, std::ffi::CString)>,
    /// The mapped, detached mount of the disk.
    pub(crate) disk: OwnedFd,
    /// Options of the overlay; paths are relative to [`base::PARTS`].
    pub(crate) overlay: std::ffi::CString,
    /// Mapped, detached clones to attach to directories of the root.
    pub(crate) binds: Vec<(OwnedFd, std::ffi::CString)>,
    /// Volumes and agent layers.
    pub(crate) volumes: Vec<Attachment>,
    /// Small files to put in place in `etc`, e.g. `hostname`.
    pub(crate) files: Vec<(&'static CStr, Vec<u8>)>,
    /// The machine id, for a root that has one.
    pub(crate) machine_id: Vec<u8>,
    /// What programs inside read as the kernel's boot id: another at every start.
    pub(crate) boot_id: Vec<u8>,
    /// User namespace.
    pub(crate) userns: OwnedFd,
    /// The host's id of root inside.
    pub(crate) first_id: u32,
    /// Host name.
    pub(crate) hostname: Vec<u8>,
    /// Options of its file system in memory.
    pub(crate) memory_options: std::ffi::CString,
    /// Options of its terminals, which name ids.
    pub(crate) devpts_options: std::ffi::CString,
    /// System call filter.
    pub(crate) seccomp: std::sync::Arc<[libc::sock_filter]>,
    /// Becomes descriptor 3.
    pub(crate) listener: OwnedFd,
    /// The cgroup of version 2, in which it starts. Becomes descriptor 4.
    pub(crate) cgroup: OwnedFd,
    /// The agent's program.
    pub(crate) agent: std::sync::Arc<OwnedFd>,
    /// Limits of it and of all that it starts.
    pub(crate) limits: crate::rlimits::Limits,
    /// What the agent is called with.
    pub(crate) command: Command,
    /// Where it failed.
    pub(crate) report: Report,
}

/// A mount that is attached somewhere below the root.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The mapped, detached mount.
    pub(crate) mount: OwnedFd,
    /// The names on the way to its place.
    pub(crate) names: Vec<std::ffi::CString>,
    /// The directory in it that is attached; the whole mount when absent.
    pub(crate) part: Option<std::ffi::CString>,
}

/// How far the child got, written in shared memory.
#[derive(Debug, Default)]
pub(crate) struct Report {
    step: AtomicUsize,
    errno: AtomicI32,
}

/// Steps, for error messages. The index is what [`Report`] holds.
const STEPS: [&str; 24] = [
    "start",
    "join its cgroups",
    "set its OOM score",
    "join its network namespace",
    "make its mount namespace",
    "find the places of its disk and layers",
    "attach the layers",
    "take on the sandbox's ids",
    "mount the overlay",
    "attach what is bound from the host",
    "prepare a mount point",
    "mount /dev",
    "mount /proc",
    "mount /sys",
    "hide parts of /proc and /sys",
    "write its host files",
    "change the root",
    "set the host name",
    "place its descriptors",
    "join its user namespace",
    "give up privileges",
    "execute the guest agent",
    "attach a volume or an agent layer",
    "find the directory of a volume",
];

/// The step in which the image itself can be at fault.
const STEP_MOUNT_POINT: usize = 10;
const STEP_FILES: usize = 15;
const STEP_VOLUMES: usize = 22;
const STEP_PART: usize = 23;

impl Report {
    fn at(&self, step: usize) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// What failed, if anything did: the step, the error, whether the image may be to blame.
    pub(crate) fn failure(&self) -> Option<(&'static str, Errno, bool)> {
        let errno = self.errno.load(Ordering::Relaxed);
        let step = self.step.load(Ordering::Relaxed);
        let blame = matches!(step, STEP_MOUNT_POINT | STEP_FILES | STEP_VOLUMES);
        (errno != 0)
            .then(|| (STEPS.get(step).copied().unwrap_or("start"), Errno::from_raw_os_error(errno), blame))
    }
}

/// OOM score of a sandbox: before the host's own processes, after what the guest starts.
const OOM_SCORE: &[u8] = b"100";
/// Descriptors the agent knows.
const LISTENER_FD: i32 = 3;
const CGROUP_FD: i32 = 4;
/// Descriptors are moved at least this high first, so that placing one cannot overwrite another.
const FD_ABOVE: i32 = 16;

/// What root inside may do, all within its user namespace: what a normal computer needs to install
/// packages, change owners and users, run services and look at its own processes.
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::AUDIT_WRITE);

/// Highest capability number to try to drop; the kernel refuses those it does not know.
const CAPABILITY_MAX: u32 = 63;

const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];
const LINKS: [(&CStr, &CStr); 6] = [
    (c"/proc/self/fd", c"fd"),
    (c"/proc/self/fd/0", c"stdin"),
    (c"/proc/self/fd/1", c"stdout"),
    (c"/proc/self/fd/2", c"stderr"),
    (c"pts/ptmx", c"ptmx"),
    (c"/proc/kcore", c"core"),
];

/// The machine id, in `etc`.
const MACHINE_ID: &CStr = c"machine-id";

const NO_LINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Entry of the child. `argument` is a `*const Launch`.
pub(crate) fn main(launch: &Launch) -> ! {
    let errno = match run(launch) {
        Ok(errno) | Err(errno) => errno,
    };
    launch.report.errno.store(errno.raw_os_error(), Ordering::Relaxed);
    sys::exit_now(1)
}

/// Returns only when something failed.
fn run(launch: &Launch) -> Result<Errno> {
    let at = |step| launch.report.at(step);
    at(0);
    sys::die_with_parent()?;
    at(1);
    for tasks in &launch.v1_tasks {
        rustix::io::write(tasks, b"0")?;
    }
    at(2);
    sys::write_file(c"/proc/self/oom_score_adj", OOM_SCORE)?;
    at(3);
    join_namespaces(launch)?;
    let root = build_root(launch)?;
    at(16);
    change_root(&root)?;
    at(17);
    rustix::system::sethostname(&launch.hostname)?;
    at(18);
    let (userns, agent) = place_descriptors(launch)?;
    at(19);
    join_user_namespace(userns.as_fd())?;
    at(20);
    take_on_limits(&launch.limits)?;
    give_up_privileges(launch)?;
    at(21);
    // The agent sets what every signal does, before anything else.
    sys::SignalMask::EMPTY.restore();
    Ok(sys::exec_fd(agent.as_fd(), &launch.command.argv, &launch.command.envp))
}

fn join_namespaces(launch: &Launch) -> Result<()> {
    rustix::process::setsid()?;
    rustix::process::umask(Mode::empty());
    sys::new_session_keyring().or_else(|error| if error == Errno::NOSYS { Ok(()) } else { Err(error) })?;
    sys::unshare(UnshareFlags::NEWCGROUP)?;
    rustix::thread::move_into_link_name_space(launch.netns.as_fd(), Some(LinkNameSpaceType::Network))
}

/// Builds the whole root in its place and returns it.
fn build_root(launch: &Launch) -> Result<OwnedFd> {
    let at = |step| launch.report.at(step);
    at(4);
    rustix::thread::move_into_link_name_space(launch.base.as_fd(), Some(LinkNameSpaceType::Mount))?;
    sys::unshare(UnshareFlags::NEWNS)?;
    at(5);
    rustix::process::chdir(base::PARTS)?;
    let parts = open_place(c".")?;
    at(6);
    attach(&launch.disk, base::DISK)?;
    for (layer, name) in &launch.layers {
        attach(layer, name)?;
    }
    at(7);
    sys::set_file_ids(launch.first_id);
    raise_capabilities()?;
    at(8);
    mount(c"atoll", base::ROOT, c"overlay", MountFlags::NODEV, launch.overlay.as_c_str())?;
    let root = open_place(base::ROOT)?;
    at(9);
    for (tree, name) in &launch.binds {
        let place = directory(root.as_fd(), name)?;
        let both_empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(tree, c"", &place, c"", both_empty)?;
    }
    mount_system(launch, parts.as_fd(), root.as_fd())?;
    rustix::process::fchdir(&parts)?;
    for volume in &launch.volumes {
        attach_volume(launch, root.as_fd(), volume)?;
    }
    at(15);
    let etc = directory(root.as_fd(), c"etc")?;
    for (name, content) in &launch.files {
        put_file(etc.as_fd(), name, content)?;
    }
    if has_file(etc.as_fd(), MACHINE_ID)? {
        put_file(etc.as_fd(), MACHINE_ID, &launch.machine_id)?;
    }
    Ok(root)
}

/// Makes `root` the root of this process and covers with it what it was built in, of which the parts go before.
fn change_root(root: &OwnedFd) -> Result<()> {
    unmount(base::PARTS, UnmountFlags::DETACH)?;
    move_mount(root, c"", CWD, c"/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(root)?;
    rustix::process::chroot(c".")
}

/// Opens a directory that the base has.
fn open_place(name: &CStr) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, name, flags, Mode::empty())
}

/// Attaches a detached mount to its place in the working directory, that of the parts.
fn attach(tree: &OwnedFd, name: &CStr) -> Result<()> {
    move_mount(tree, c"", CWD, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn make_dir(at: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Opens a directory of the root, making it when it is absent. Nothing but a directory will do.
pub(crate) fn directory(root: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    make_dir(root, name)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(root, name, flags, Mode::empty(), NO_LINKS)
}

/// Attaches a volume to a directory of the root, making what is missing on the way. No link is followed. The working
/// directory is that of the parts.
fn attach_volume(launch: &Launch, root: BorrowedFd<'_>, volume: &Attachment) -> Result<()> {
    launch.report.at(STEP_PART);
    let part = volume.part.as_ref().map(|part| take_part(&volume.mount, part)).transpose()?;
    launch.report.at(STEP_VOLUMES);
    let mut at = directory(root, c".")?;
    for name in &volume.names {
        at = directory(at.as_fd(), name)?;
    }
    let both_empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(part.as_ref().unwrap_or(&volume.mount), c"", &at, c"", both_empty)
}

/// A mount of one directory of a volume. Before Linux 6.15 the kernel makes one only of an attached mount: so the whole
/// volume is attached for that moment, where no process runs but this one.
fn take_part(volume: &OwnedFd, part: &CStr) -> Result<OwnedFd> {
    attach(volume, base::VOLUME)?;
    let taken = atoll_isolation_storage::part_of(open_place(base::VOLUME)?.as_fd(), part);
    unmount(base::VOLUME, UnmountFlags::DETACH)?;
    taken
}

/// Mounts on the directory behind `place`.
fn mount_on(place: &OwnedFd, kind: &CStr, flags: MountFlags, options: Option<&CStr>) -> Result<()> {
    rustix::process::fchdir(place)?;
    mount(kind, c".", kind, flags, options)
}

fn mount_system(launch: &Launch, parts: BorrowedFd<'_>, root: BorrowedFd<'_>) -> Result<()> {
    let at = |step| launch.report.at(step);
    at(STEP_MOUNT_POINT);
    let dev = directory(root, c"dev")?;
    let proc = directory(root, c"proc")?;
    let sys = directory(root, c"sys")?;
    at(11);
    rustix::process::fchdir(parts)?;
    let memory = memory::mount(&launch.memory_options)?;
    memory::show(memory.as_fd(), memory::DEV, dev.as_fd(), c"", sys::ATTR_NOSUID | sys::ATTR_NOEXEC)?;
    let dev = directory(root, c"dev")?;
    fill_dev(launch, memory.as_fd(), dev.as_fd())?;
    let strict = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    at(12);
    mount_on(&proc, c"proc", strict, None)?;
    at(13);
    mount_on(&sys, c"sysfs", strict | MountFlags::RDONLY, None)?;
    at(14);
    masks::hide(root, memory.as_fd(), &launch.boot_id)
}

fn fill_dev(launch: &Launch, memory: BorrowedFd<'_>, dev: BorrowedFd<'_>) -> Result<()> {
    for (name, major, minor) in DEVICES {
        let device = rustix::fs::makedev(major, minor);
        mknodat(dev, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), device)?;
    }
    for (target, name) in LINKS {
        rustix::fs::symlinkat(target, dev, name)?;
    }
    let no_run = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount_on(&directory(dev, c"pts")?, c"devpts", no_run, Some(&launch.devpts_options))?;
    let shm = directory(dev, c"shm")?;
    memory::show(memory, memory::SHM, shm.as_fd(), c"", sys::ATTR_NOSUID | sys::ATTR_NODEV)
}

/// Whether a directory has a plain file of this name.
fn has_file(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(dir, name, flags, Mode::empty(), NO_LINKS) {
        Ok(file) => Ok(FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::RegularFile),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a small file, in place of anything of its name that is there but a directory.
fn put_file(dir: BorrowedFd<'_>, name: &CStr, content: &[u8]) -> Result<()> {
    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat2(dir, name, create, Mode::from_raw_mode(0o644), NO_LINKS);
    let file = match open() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, name, rustix::fs::AtFlags::empty())?;
            open()?
        }
        other => other?,
    };
    rustix::io::write(&file, content).map(drop)
}

/// Standard streams on /dev/null, 3 and 4 in place, all others closed at exec.
fn place_descriptors(launch: &Launch) -> Result<(OwnedFd, OwnedFd)> {
    let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, FD_ABOVE);
    let null = rustix::fs::openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let null = high(null.as_fd())?;
    let listener = high(launch.listener.as_fd())?;
    let cgroup = high(launch.cgroup.as_fd())?;
    let userns = high(launch.userns.as_fd())?;
    let agent = high(launch.agent.as_fd())?;
    for standard in 0..3 {
        sys::place_fd(null.as_fd(), standard)?;
    }
    sys::place_fd(listener.as_fd(), LISTENER_FD)?;
    sys::place_fd(cgroup.as_fd(), CGROUP_FD)?;
    sys::close_on_exec_from(CGROUP_FD.cast_unsigned() + 1)?;
    Ok((userns, agent))
}

fn join_user_namespace(userns: BorrowedFd<'_>) -> Result<()> {
    rustix::thread::move_into_link_name_space(userns, Some(LinkNameSpaceType::User))?;
    sys::become_root()?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// Limits of each process. They are lower than before, so they need no right; and they are this process's own, although it
/// shares the server's memory.
fn take_on_limits(limits: &crate::rlimits::Limits) -> Result<()> {
    let (soft, hard) = limits.open_files;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) })?;
    let core = Some(limits.core);
    rustix::process::setrlimit(Resource::Core, Rlimit { current: core, maximum: core })
}

/// All rights in the current user namespace become effective again (changing file ids takes some away).
pub(crate) fn raise_capabilities() -> Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    rustix::thread::set_capabilities(None, sets)
}

fn give_up_privileges(launch: &Launch) -> Result<()> {
    atoll_isolation_host::filter::install(&launch.seccomp)?;
    for number in 0..=CAPABILITY_MAX {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if KEPT_CAPABILITIES.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: KEPT_CAPABILITIES, permitted: KEPT_CAPABILITIES, inheritable };
    rustix::thread::set_capabilities(None, sets)
}
