//! Starts a sentry in a jail: what the program's hidden command `sentry` does.
//!
//! The server never forks itself, and gVisor's `runsc` needs a place prepared for it; so the server starts this small
//! program, which becomes the first process of the jail's PID namespace ([`init`]):
//!
//! 1. It enters the sandbox's cgroups and network slot, and makes mount, PID, IPC, UTS and cgroup namespaces.
//! 2. It builds a root that holds nothing but `/runsc`, `/proc`, two devices, the agent's program and what the sandbox
//!    stands on: an overlay of the image's layers and the sandbox's disk, both mapped to ids that no other sandbox has,
//!    and the directory that the agent and the server share. No file of the host can be reached from there.
//! 3. It installs a filter of system calls, which holds for itself and all that it starts.
//! 4. It has `runsc` make the sandbox, and gives up every privilege.
//! 5. It waits for the sentry, and ends with it; and everything in the namespace ends with its first process.
//!
//! The sentry and the gofer, which opens files for it, then run in a user namespace in which root is the sandbox's first
//! id, in empty roots, with `no_new_privs` and a second filter of system calls, as `runsc` does by itself.
#![expect(unsafe_code, reason = "forking has no safe wrapper")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_isolation::IsolationError;
use atoll_isolation_host::jail::{self, Forked, said};
use atoll_isolation_storage::{Use, mount_ext4, part_of, prepare_disk};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, move_mount, open_tree, unmount,
};
use serde::{Deserialize, Serialize};

use crate::{filter, sys};

/// Where the agent and the server meet, as the jail sees it.
pub(crate) const SHARED: &str = "/shared";
/// Ids of a sandbox.
pub(crate) const IDS: u32 = 1 << 16;
/// Most of the log of `runsc` that an error quotes, bytes from its end.
const SAID_BYTES: usize = 600;
/// Devices of the host that the jail has.
const DEVICES: [&str; 2] = ["null", "urandom"];

/// What to start, and in what.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jail {
    /// `runsc`, on the host.
    pub runsc: PathBuf,
    /// Its options before the command.
    pub options: Vec<String>,
    /// The sandbox, as an OCI runtime bundle's `config.json`.
    pub config: String,
    /// The host's id of root inside; as many as [`IDS`] follow.
    pub first_id: u32,
    /// The image's directories, lowest first.
    pub layers: Vec<PathBuf>,
    /// The block device of the disk.
    pub disk: PathBuf,
    /// Volumes to mount.
    pub volumes: Vec<Volume>,
    /// Small files to put in place: path below the root, content.
    pub files: Vec<(PathBuf, String)>,
    /// The same, but only where the image has such a file.
    pub replaced: Vec<(PathBuf, String)>,
    /// The directory with the agent's program.
    pub agent: PathBuf,
    /// An empty directory on which the jail is put together, in a mount namespace that only it has.
    pub scratch: PathBuf,
    /// Files of cgroups to be written to before anything else.
    pub cgroups: Vec<PathBuf>,
    /// The network slot, as a path to open.
    pub netns: PathBuf,
    /// Where to write the process id of the jail's first process, as the host sees it.
    pub pid_file: PathBuf,
}

/// A volume that the sandbox has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// A mount of it that is attached nowhere, as a path to open.
    pub mount: PathBuf,
    /// Where inside.
    pub path: String,
    /// Mounted so that nothing inside can write to it.
    pub read_only: bool,
    /// The directory of it that the sandbox has; all of it when absent.
    pub subpath: Option<String>,
}

/// Where the jail has a volume.
pub(crate) fn volume_place(number: usize) -> String {
    format!("v{number}")
}

/// Builds the jail and starts the sandbox; ends when it runs.
///
/// # Errors
/// What could not be done; nothing runs then, or is about to end.
pub fn launch(jail: &Jail) -> Result<(), String> {
    jail::close_inherited()?;
    jail::enter_cgroups(&jail.cgroups)?;
    jail::enter_network(&jail.netns)?;
    let userns = sys::user_namespace(jail.first_id, IDS).map_err(said("make a user namespace"))?;
    jail::own_namespaces()?;
    let (mut report, reporting) = io::pipe().map_err(said("make a pipe"))?;
    let (pid_dir, pid_name) = jail::place_of(&jail.pid_file)?;
    // SAFETY: this program has one thread.
    match unsafe { jail::fork_sibling() }? {
        Forked::Child => {
            // It stays in the jail, so it keeps nothing of the host open: no directory of it above all, which no other root
            // takes away.
            drop((report, pid_dir));
            // The launcher's own streams are the server's, which waits for their end.
            sys::silence();
            let ended = init(jail, userns, reporting);
            sys::exit_now(i32::from(ended.is_err()))
        }
        Forked::Launcher(pid) => {
            drop(reporting);
            jail::write_whole(&pid_dir, pid_name, &pid.to_string()).map_err(said("write the process id"))?;
            let mut text = String::new();
            report.read_to_string(&mut text).map_err(said("hear of the jail"))?;
            if text == STARTED { Ok(()) } else { Err(text) }
        }
    }
}

/// Begins a report that blames the image.
pub(crate) const BAD_ROOT: &str = "bad root: ";

/// The report when the sandbox runs. Any other text says why it does not.
const STARTED: &str = "started";

/// The first process of the jail.
fn init(jail: &Jail, userns: OwnedFd, mut reporting: io::PipeWriter) -> Result<(), String> {
    let built = build(jail, &userns);
    drop(userns);
    let begun = built.and_then(|()| filter::PROFILE.install()).and_then(|()| start(jail));
    let sentry = begun.and_then(|sentry| {
        sys::become_nobody(jail.first_id).map_err(said("give up privileges"))?;
        Ok(sentry)
    });
    let told = match &sentry {
        Ok(_) => STARTED.to_owned(),
        Err(error) => format!("{error}{}", whats_logged()),
    };
    // The launcher waits for this report. If it has ended, no process is left to report to, and the error does not
    // matter.
    reporting.write_all(told.as_bytes()).unwrap_or_default();
    drop(reporting);
    let sentry = sentry?;
    while sys::wait_for_any().is_some_and(|ended| ended != sentry) {}
    Ok(())
}

/// Builds the root and moves into it.
fn build(jail: &Jail, userns: &OwnedFd) -> Result<(), String> {
    jail::root(&jail.scratch, c"size=8m,mode=755")?;
    rustix::process::chdir(&jail.scratch).map_err(said("enter the jail's root"))?;
    for name in ["agent", "bundle", "dev", "disk", "proc", "root", "shared", "state", "tmp"] {
        std::fs::create_dir(name).map_err(said("make a directory of the jail"))?;
    }
    jail::show(&jail.agent, Path::new("agent"), MountFlags::RDONLY | MountFlags::NODEV)?;
    File::create("runsc").map_err(said("make a file of the jail"))?;
    jail::show(&jail.runsc, Path::new("runsc"), MountFlags::RDONLY | MountFlags::NODEV)?;
    for name in DEVICES {
        let place = Path::new("dev").join(name);
        File::create(&place).map_err(said("make a file of the jail"))?;
        jail::show(&Path::new("/dev").join(name), &place, MountFlags::NOEXEC)?;
    }
    let ids = jail.first_id;
    let shared = format!("size=64k,nr_inodes=16,mode=700,uid={ids},gid={ids}");
    let shared = std::ffi::CString::new(shared).map_err(said("name the ids of a sandbox"))?;
    let strict = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", "shared", "tmpfs", strict, shared.as_c_str())
        .map_err(said("mount the shared directory"))?;
    std::fs::write("bundle/config.json", &jail.config).map_err(said("describe the sandbox"))?;
    build_sandbox(jail, userns)?;
    mount("proc", "proc", "proc", strict, None).map_err(said("mount /proc"))?;
    jail::change_root(&jail.scratch)
}

/// Puts the sandbox's root together. Everything is seen with the sandbox's ids, and made by them: the host's root does
/// not exist on the disk.
fn build_sandbox(jail: &Jail, userns: &OwnedFd) -> Result<(), String> {
    let disk = mount_ext4(&jail.disk, Use::Disk).map_err(whole)?;
    attach(&disk, "disk", sys::ATTR_NODEV, userns).map_err(said("attach the disk"))?;
    let mut lower = Vec::new();
    for (number, layer) in jail.layers.iter().enumerate().rev() {
        let step = || format!("attach the layer {}", layer.display());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, layer, flags).map_err(said(step()))?;
        let name = format!("l{number}");
        std::fs::create_dir(&name).map_err(said(step()))?;
        attach(&tree, &name, sys::ATTR_RDONLY | sys::ATTR_NODEV, userns).map_err(said(step()))?;
        lower.push(name);
    }
    for (number, volume) in jail.volumes.iter().enumerate() {
        let step = || format!("attach the volume at {}", volume.path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tree = rustix::fs::open(&volume.mount, flags, Mode::empty()).map_err(said(step()))?;
        let place = volume_place(number);
        std::fs::create_dir(&place).map_err(said(step()))?;
        let attributes = if volume.read_only { sys::ATTR_RDONLY } else { 0 };
        attach(&tree, &place, attributes | sys::ATTR_NOSUID | sys::ATTR_NODEV, userns)
            .map_err(said(step()))?;
        if let Some(part) = &volume.subpath {
            keep_part(&place, part).map_err(said(step()))?;
        }
    }
    sys::take_on_ids(jail.first_id).map_err(said("take on the sandbox's ids"))?;
    prepare_disk(disk.as_fd()).map_err(whole)?;
    let options = format!("lowerdir={},upperdir=disk/upper,workdir=disk/work,volatile", lower.join(":"));
    let options = std::ffi::CString::new(options).map_err(said("name the layers"))?;
    mount("overlay", "root", "overlay", MountFlags::NODEV, options.as_c_str())
        .map_err(said("mount the overlay"))?;
    fill_root(jail)?;
    sys::take_on_ids(0).map_err(said("be root again"))
}

fn fill_root(jail: &Jail) -> Result<(), String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("root", flags, Mode::empty()).map_err(said("open the sandbox's root"))?;
    for (name, mode) in [("tmp", 0o1777), ("etc", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)] {
        make_directory(&root, name, mode).map_err(of_image(format!("prepare /{name} of the image")))?;
    }
    for volume in &jail.volumes {
        make_path(&root, &volume.path)
            .map_err(of_image(format!("make a place for the volume at {}", volume.path)))?;
    }
    for (path, content) in &jail.files {
        put_file(&root, path, content).map_err(of_image(format!("write /{}", path.display())))?;
    }
    for (path, content) in &jail.replaced {
        let meta = rustix::fs::statat(&root, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if meta.is_ok_and(|meta| rustix::fs::FileType::from_raw_mode(meta.st_mode).is_file()) {
            put_file(&root, path, content).map_err(said(format!("write /{}", path.display())))?;
        }
    }
    Ok(())
}

/// Names a step that fails when something of the image stands in the way.
fn of_image<E: Into<io::Error>>(step: String) -> impl FnOnce(E) -> String {
    move |error| {
        let error = error.into();
        let blame =
            matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::EEXIST));
        let text = said(step)(error);
        if blame { format!("{BAD_ROOT}{text}") } else { text }
    }
}

/// A link of the image in the place of a directory may lead anywhere, so no link is followed.
const NO_LINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

fn make_directory(root: &OwnedFd, name: &str, mode: u32) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => rustix::fs::chmodat(root, name, Mode::from_raw_mode(mode), rustix::fs::AtFlags::empty()),
        Err(rustix::io::Errno::EXIST) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat2(root, name, flags, Mode::empty(), NO_LINKS).map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Makes a directory and what is missing on the way; gVisor would follow links of the image, and mount elsewhere.
fn make_path(root: &OwnedFd, path: &str) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat2(root, ".", flags, Mode::empty(), NO_LINKS)?;
    for name in atoll_core::volume::components(path) {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        at = openat2(&at, name, flags, Mode::empty(), NO_LINKS)?;
    }
    Ok(())
}

/// Puts a file in the place of anything that is there but a directory.
fn put_file(root: &OwnedFd, path: &Path, content: &str) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat2(root, parent, flags, Mode::empty(), NO_LINKS)?;
    match rustix::fs::unlinkat(&parent, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&parent, name, create, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(content.as_bytes())
}

/// Attaches a detached mount, mapped to the sandbox's ids.
fn attach(tree: &OwnedFd, place: &str, attributes: u64, userns: &OwnedFd) -> rustix::io::Result<()> {
    sys::map_mount(tree.as_fd(), attributes, userns.as_fd())?;
    move_mount(tree, c"", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Puts a directory of an attached volume in the volume's place.
fn keep_part(place: &str, part: &str) -> io::Result<()> {
    let part = std::ffi::CString::new(part)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let taken = part_of(rustix::fs::open(place, flags, Mode::empty())?.as_fd(), &part)?;
    unmount(place, UnmountFlags::DETACH)?;
    Ok(move_mount(&taken, c"", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Has `runsc` make the sandbox; gives the sentry's process.
fn start(jail: &Jail) -> Result<i32, String> {
    let null = || Stdio::null();
    let status = Command::new("/runsc")
        .args(["--root", "/state", "--log", "/state/log"])
        .args(&jail.options)
        .args(["run", "--detach", "--bundle", "/bundle", "--pid-file", "/state/pid", "sandbox"])
        .env_clear()
        .stdin(null())
        .stdout(null())
        .stderr(null())
        .status()
        .map_err(said("start runsc"))?;
    if !status.success() {
        return Err(format!("runsc failed to make the sandbox ({status})"));
    }
    let pid = std::fs::read_to_string("/state/pid").map_err(said("find the sentry"))?;
    pid.trim().parse().map_err(said("find the sentry"))
}

/// The end of what `runsc` logged.
fn whats_logged() -> String {
    let log = std::fs::read("/state/log").unwrap_or_default();
    let log =
        String::from_utf8_lossy(&log[log.len().saturating_sub(SAID_BYTES)..]).trim().replace('\n', "; ");
    if log.is_empty() { log } else { format!("; it says: {log}") }
}

/// An error with its cause, in one line.
fn whole(error: IsolationError) -> String {
    match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
