//! The mounts of a machine, and how its root is made.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_guest_protocol::control::Become;
use rustix::mount::{MountFlags, mount, mount_move};

use super::at;
use crate::system::overwrite;

/// Where the control groups of the machine are.
const CGROUP: &str = "/sys/fs/cgroup";
/// The cgroup that holds everything but the agent.
pub(super) const SANDBOX_CGROUP: &str = "/sys/fs/cgroup/sandbox";
/// Where the image's read-only file system is, until the machine has its root.
const IMAGE: &str = "/image";
/// Where the writable disk is, until the machine has its root.
const DISK: &str = "/disk";
/// Where the root is put together.
const ROOT: &str = "/root";
/// How a disk is mounted. It is scratch: nothing waits until it is written. Its tables of inodes are holes and read as
/// zeros.
const DISK_OPTIONS: &CStr = c"noinit_itable,nobarrier,errors=remount-ro";
/// The same for a disk with a journal, which is written out no more often than all else; without one the kernel refuses to
/// be told that.
const JOURNAL_OPTIONS: &CStr = c"noinit_itable,nobarrier,errors=remount-ro,commit=30";
/// Where an ext4 file system says which compatible features it has, and which of them is a journal.
const FEATURES_AT: u64 = 1024 + 0x5C;
const HAS_JOURNAL: u32 = 0x4;
/// Most that the overlay's own directory may hold, entries: an overlay that ran leaves a few.
const WORK_MAX_ENTRIES: u64 = 100_000;
/// How long a disk may take to appear after its driver was loaded.
const DISK_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two looks for it.
const DISK_LOOK: Duration = Duration::from_millis(1);

/// Mounts `/dev`, `/proc` and `/sys` with the file systems below them, and makes the sandbox's cgroup. All of it moves
/// into the root later; it is made here because a machine that is restored does everything for the first time, slowly.
pub(super) fn mount_kernel_file_systems() -> io::Result<()> {
    let no_exec = MountFlags::NOSUID | MountFlags::NOEXEC;
    for (kind, target, flags, data) in [
        ("devtmpfs", "/dev", MountFlags::NOSUID, c""),
        ("proc", "/proc", no_exec | MountFlags::NODEV, c""),
        ("sysfs", "/sys", no_exec | MountFlags::NODEV, c""),
        ("devpts", "/dev/pts", no_exec, c"gid=5,mode=620,ptmxmode=666"),
        ("cgroup2", CGROUP, no_exec | MountFlags::NODEV, c""),
    ] {
        put(kind, kind, target, flags, data)?;
    }
    let controllers = format!("{CGROUP}/cgroup.subtree_control");
    std::fs::write(&controllers, "+memory +pids")
        .map_err(|error| at(&format!("write {controllers}"), error))?;
    make_directory(SANDBOX_CGROUP)?;
    for (target, link) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        match std::os::unix::fs::symlink(target, link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(at(&format!("make {link}"), error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The nodes of the two disks.
pub(super) struct Disks {
    image: String,
    writable: String,
}

impl Disks {
    /// Finds the disks; their content may still be exchanged.
    pub(super) fn find() -> io::Result<Self> {
        Ok(Self { image: device("image")?, writable: device("disk")? })
    }
}

/// Puts the root together from the image and the writable disk, and moves into it, with all threads. Gives the
/// root of the writable disk, which has no place any more.
pub(super) fn enter(disks: &Disks, memory_bytes: u64) -> io::Result<OwnedFd> {
    put(&disks.image, "erofs", IMAGE, MountFlags::RDONLY, c"")?;
    // A link on the disk leads nowhere.
    let flags = MountFlags::NOATIME | MountFlags::NOSYMFOLLOW;
    let has_journal = has_journal(&disks.writable).map_err(|error| at("look at the disk", error))?;
    let options = if has_journal { JOURNAL_OPTIONS } else { DISK_OPTIONS };
    put(&disks.writable, "ext4", DISK, flags, options)?;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let disk = rustix::fs::open(DISK, flags, rustix::fs::Mode::empty())?;
    prepare(&disk)?;
    // The disk is scratch, like a container's: no program waits until it is written.
    let layers = c"lowerdir=/image,upperdir=/disk/upper,workdir=/disk/work,volatile";
    put("overlay", "overlay", ROOT, MountFlags::NOATIME, layers)?;
    for name in ["/dev", "/proc", "/sys"] {
        let target = format!("{ROOT}{name}");
        make_directory(&target)?;
        mount_move(name, target.as_str()).map_err(|error| at(&format!("move {name}"), error.into()))?;
    }
    std::env::set_current_dir(ROOT)?;
    mount_move(".", "/").map_err(|error| at("move the root", error.into()))?;
    rustix::process::chroot(".").map_err(|error| at("enter the root", error.into()))?;
    std::env::set_current_dir("/")?;
    let shared = CString::new(format!("mode=1777,size={}", memory_bytes / 2)).map_err(io::Error::other)?;
    put("tmpfs", "tmpfs", "/dev/shm", MountFlags::NOSUID | MountFlags::NODEV, &shared)?;
    Ok(disk)
}

/// Whether a disk has a journal: small ones have none, nor have disks that earlier versions made.
fn has_journal(disk: &str) -> io::Result<bool> {
    let mut features = [0; 4];
    File::open(disk)?.read_exact_at(&mut features, FEATURES_AT)?;
    Ok(u32::from_le_bytes(features) & HAS_JOURNAL != 0)
}

/// Refuses a disk that an earlier machine left without its directories, and empties the overlay's own: an overlay that
/// does not sync refuses to find its own traces, and nothing that was under way there goes on.
fn prepare(disk: &OwnedFd) -> io::Result<()> {
    for name in ["upper", "work"] {
        let meta = rustix::fs::statat(disk, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        if !rustix::fs::FileType::from_raw_mode(meta.st_mode).is_dir() {
            return Err(io::Error::other(format!("'{name}' is no directory on the disk")));
        }
    }
    if std::fs::read_dir("/disk/work")?.next().is_some() {
        atoll_tree::remove(disk.as_fd(), c"work", WORK_MAX_ENTRIES)
            .map_err(|error| at("empty the disk's work directory", error))?;
        make_directory("/disk/work")?;
    }
    Ok(())
}

/// Writes the files that depend on the sandbox, in place of anything that is there, except a directory.
pub(super) fn write_files(who: &Become) -> io::Result<()> {
    let hosts = format!(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{}\n",
        who.hostname
    );
    make_directory("/etc")?;
    put_file("/etc/hostname", &format!("{}\n", who.hostname))?;
    put_file("/etc/hosts", &hosts)?;
    put_file("/etc/resolv.conf", &format!("nameserver {}\n", who.resolver))?;
    // Only where the image has one.
    if std::fs::symlink_metadata("/etc/machine-id").is_ok_and(|meta| meta.is_file()) {
        put_file("/etc/machine-id", &who.machine_id)?;
    }
    Ok(())
}

/// A file that is there already is written over where it lies: under emulation all that is done for the first time
/// is slow, and making a file is many times as much as writing into one.
fn put_file(path: &str, content: &str) -> io::Result<()> {
    if overwrite(path, content.as_bytes()).is_ok() {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(at(&format!("replace {path}"), error));
        }
        _ => {}
    }
    std::fs::write(path, content).map_err(|error| at(&format!("write {path}"), error))
}

fn put(source: &str, kind: &str, target: &str, flags: MountFlags, data: &CStr) -> io::Result<()> {
    make_directory(target)?;
    mount(source, target, kind, flags, Some(data))
        .map_err(|error| at(&format!("mount {target}"), error.into()))
}

/// A link in the image's place of a directory would lead anywhere in it; nothing is mounted through one.
fn make_directory(path: &str) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            let why = format!("{path} is no directory in the image");
            Err(io::Error::new(io::ErrorKind::NotADirectory, why))
        }
        Err(_) => std::fs::create_dir(path).map_err(|error| at(&format!("make {path}"), error)),
    }
}

/// The disk with this serial number, as soon as it is there.
fn device(serial: &str) -> io::Result<String> {
    let deadline = Instant::now() + DISK_DEADLINE;
    loop {
        for entry in std::fs::read_dir("/sys/block")?.flatten() {
            let said = std::fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
            let node: PathBuf = Path::new("/dev").join(entry.file_name());
            if said.trim_end_matches(['\0', '\n']) == serial && node.try_exists().is_ok_and(|there| there) {
                return Ok(node.to_string_lossy().into_owned());
            }
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("the machine has no disk '{serial}'")));
        }
        std::thread::sleep(DISK_LOOK);
    }
}
