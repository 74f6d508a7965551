//! What is mounted in a machine, and how its root is made.

use std::ffi::CStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount, mount_move};

use super::at;

/// Where the control groups of the machine are.
pub(super) const CGROUP: &str = "/sys/fs/cgroup";
/// Where the image's read-only file system is, until the machine has its root.
const IMAGE: &str = "/image";
/// Where the writable disk is, until the machine has its root.
const DISK: &str = "/disk";
/// Where the root is put together.
const ROOT: &str = "/root";
/// How long a disk may take to appear after its driver was loaded.
const DISK_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two looks for it.
const DISK_LOOK: Duration = Duration::from_millis(1);

/// Mounts `/dev`, `/proc` and `/sys` below `root`.
pub(super) fn mount_kernel_file_systems(root: &str) -> io::Result<()> {
    let no_exec = MountFlags::NOSUID | MountFlags::NOEXEC;
    for (kind, target, flags) in [
        ("devtmpfs", "/dev", MountFlags::NOSUID),
        ("proc", "/proc", no_exec | MountFlags::NODEV),
        ("sysfs", "/sys", no_exec | MountFlags::NODEV),
    ] {
        let target = format!("{root}{target}");
        put(kind, kind, &target, flags, c"")?;
    }
    Ok(())
}

/// Mounts the image's disk, read-only.
pub(super) fn mount_image() -> io::Result<()> {
    put(&device("image")?, "erofs", IMAGE, MountFlags::RDONLY, c"")
}

/// Puts the root together from the image and the writable disk, and moves into it.
pub(super) fn enter() -> io::Result<()> {
    put(&device("disk")?, "ext4", DISK, MountFlags::NOATIME, c"noinit_itable")?;
    // The disk is scratch, like a container's: nobody waits for it to be written.
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
    let scratch = MountFlags::NOSUID | MountFlags::NODEV;
    put("devpts", "devpts", "/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, c"gid=5,mode=620,ptmxmode=666")?;
    put("tmpfs", "tmpfs", "/dev/shm", scratch, c"mode=1777")?;
    put("tmpfs", "tmpfs", "/run", scratch, c"mode=755")?;
    put("cgroup2", "cgroup2", CGROUP, scratch | MountFlags::NOEXEC, c"")?;
    for (target, link) in [("/proc/self/fd", "/dev/fd"), ("/proc/self/fd/0", "/dev/stdin"), ("/proc/self/fd/1", "/dev/stdout"), ("/proc/self/fd/2", "/dev/stderr")] {
        match std::os::unix::fs::symlink(target, link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&format!("make {link}"), error)),
            _ => {}
        }
    }
    Ok(())
}

fn put(source: &str, kind: &str, target: &str, flags: MountFlags, data: &CStr) -> io::Result<()> {
    make_directory(target)?;
    mount(source, target, kind, flags, Some(data)).map_err(|error| at(&format!("mount {target}"), error.into()))
}

/// A link in the image's place of a directory would lead anywhere in it; nothing is mounted through one.
fn make_directory(path: &str) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::other(format!("{path} is no directory in the image"))),
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
            if said.trim_end_matches(['\0', '\n']) == serial && node.exists() {
                return Ok(node.to_string_lossy().into_owned());
            }
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("the machine has no disk '{serial}'")));
        }
        std::thread::sleep(DISK_LOOK);
    }
}
