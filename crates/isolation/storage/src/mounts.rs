//! How the host mounts ext4 file systems whose content sandboxes wrote: the one place that says with which flags.
//!
//! The content of such a file system is hostile. Where a sandbox had the block device, its structure is hostile too. So
//! only this module makes the kernel read one, and every mount
//!
//! - is refused when the superblock asks for anything that no disk of ours asks for ([`crate::superblock`]);
//! - reads no journal: one in which something is left makes the kernel refuse ([`crate::journal`]), but that of a volume;
//! - turns read-only at the first error of the file system, also when its superblock says otherwise (it may say:
//!   panic);
//! - makes no device usable, is attached nowhere, and follows no symbolic link (but volumes, whose links sandboxes
//!   use).
//!
//! Then the two directories of a disk are opened strictly, once, and used as descriptors from there on: a link with
//! such a name would lead through the host's own tree.

use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use atoll_isolation::IsolationError;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
    open_tree,
};

use crate::step::{Step, failed};
use crate::superblock::{self, Made};
use crate::sys;

/// The overlay's upper layer in a disk.
const UPPER: &str = "upper";
/// The overlay's own directory in a disk.
const WORK: &str = "work";
/// Most that the overlay's own directory may hold, entries: an overlay that ran leaves a few.
const WORK_MAX_ENTRIES: u64 = 100_000;

/// Never through a link, never out of the file system.
pub(crate) const STRICT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What an ext4 file system is mounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The writable disk of a sandbox that the host mounts for it. Scratch data: no process in the sandbox waits for
    /// the host's own disk.
    Disk,
    /// The same disk once more, while it is mounted. When its last user has just let go of it, it is mounted without
    /// its journal.
    Again,
    /// A disk that is only looked into; nothing in it can run.
    Reading,
    /// A volume, which keeps what was synced, and gives back what is freed.
    Volume,
}

impl Use {
    fn flags(self) -> &'static [&'static str] {
        match self {
            // The inode tables are holes and read as zeros: no thread needs to write them. And a disk does not
            // survive a crash of the host, its sandbox having died with it.
            Self::Disk => &["noinit_itable", "nobarrier"],
            // A mount of what is mounted already has the options of the first.
            Self::Again => &["noload"],
            Self::Reading => &["ro", "noload"],
            Self::Volume => &["discard"],
        }
    }

    /// How often the kernel writes the journal out, seconds, where that is not as it likes (5): a disk that is scratch
    /// data is written to the host's no more often than without a journal.
    fn commit_seconds(self) -> Option<&'static str> {
        match self {
            Self::Disk => Some("30"),
            Self::Again | Self::Reading | Self::Volume => None,
        }
    }

    fn attributes(self) -> MountAttrFlags {
        let all = MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NODEV;
        all | match self {
            // A sandbox sees its disk through an overlay, which has flags of its own.
            Self::Disk | Self::Again => MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW,
            Self::Reading => {
                MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW
                    | MountAttrFlags::MOUNT_ATTR_RDONLY
                    | MountAttrFlags::MOUNT_ATTR_NOSUID
                    | MountAttrFlags::MOUNT_ATTR_NOEXEC
            }
            // Sandboxes use its links. The server resolves every path in it beneath its root.
            Self::Volume => MountAttrFlags::MOUNT_ATTR_NOSUID,
        }
    }

    fn made(self) -> Made {
        match self {
            Self::Disk | Self::Reading => Made::Disk,
            Self::Again => Made::DiskInUse,
            Self::Volume => Made::Volume,
        }
    }
}

/// Mounts the ext4 file system of a device, attached nowhere. The second mount of a device is of the same file system.
///
/// # Errors
/// [`IsolationError::BadArtifact`] when its superblock asks for what no disk of ours asks for,
/// [`IsolationError::Kernel`].
pub fn mount_ext4(device: &Path, purpose: Use) -> Result<OwnedFd, IsolationError> {
    let step = match purpose {
        Use::Disk => "mount a disk",
        Use::Again => "mount a disk once more",
        Use::Reading => "mount the disk of a snapshot",
        Use::Volume => "mount a volume",
    };
    let has_journal = superblock::check(&File::open(device).step(step)?, purpose.made())?;
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).step("open the file system type ext4")?;
    fsconfig_set_string(&context, "source", device.as_os_str()).step(step)?;
    fsconfig_set_string(&context, "errors", "remount-ro").step(step)?;
    for flag in purpose.flags() {
        fsconfig_set_flag(&context, *flag).step(step)?;
    }
    if let Some(seconds) = purpose.commit_seconds().filter(|_| has_journal) {
        fsconfig_set_string(&context, "commit", seconds).step(step)?;
    }
    fsconfig_create(&context).step(step)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, purpose.attributes()).step(step)
}

/// A mount of a directory of a volume alone, attached nowhere; `volume` is the root of a mount that is attached. Files
/// beside the directory cannot be reached through it. No link is followed, and the directory that was opened is the one
/// that is mounted: a sandbox that moves something else to its place meanwhile changes nothing. System calls only.
///
/// # Errors
/// What the kernel says.
pub fn part_of(volume: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat2(volume, path, flags, Mode::empty(), STRICT)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(&directory, c"", clone | OpenTreeFlags::AT_EMPTY_PATH)
}

/// Opens the upper layer of a mounted disk.
///
/// # Errors
/// [`IsolationError::BadArtifact`] when it is no real directory, [`IsolationError::Kernel`].
pub fn open_upper(disk: BorrowedFd<'_>) -> Result<OwnedFd, IsolationError> {
    directory(disk, UPPER)
}

/// Refuses a mounted disk that lacks either of its directories.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub(crate) fn check_directories(disk: BorrowedFd<'_>) -> Result<(), IsolationError> {
    for name in [UPPER, WORK] {
        drop(directory(disk, name)?);
    }
    Ok(())
}

/// Makes a mounted disk ready to be written to by a new sandbox: both its directories are real ones, and the overlay's
/// own is empty. Operations that were under way there when the disk was copied do not go on, and an overlay that does
/// not sync refuses to mount when it finds its own traces.
///
/// # Errors
/// [`IsolationError::BadArtifact`] when either is no real directory, or the overlay's holds what no overlay leaves there;
/// [`IsolationError::Kernel`].
pub fn prepare_disk(disk: BorrowedFd<'_>) -> Result<(), IsolationError> {
    check_directories(disk)?;
    let root = crate::freeze::root(disk)?;
    atoll_tree::remove(root.as_fd(), c"work", WORK_MAX_ENTRIES).map_err(|error| match error.kind() {
        ErrorKind::QuotaExceeded => bad("its directory 'work' holds more than an overlay leaves there"),
        _ => failed("empty a disk's work directory".to_owned(), error),
    })?;
    rustix::fs::mkdirat(&root, WORK, Mode::from_raw_mode(0o755)).step("empty a disk's work directory")
}

/// Attaches a mount at a directory, for the calling thread and what it starts alone: others do not see it there. It is
/// detached when they have ended. The thread should do nothing else. `at` must be reached through attached mounts alone: since
/// Linux 6.15 the kernel attaches it also within one that is attached nowhere, such as that of the disks, where all see it and
/// nothing detaches it any more.
pub(crate) fn attach_alone(mount: BorrowedFd<'_>, at: &Path) -> rustix::io::Result<()> {
    sys::own_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    move_mount(mount, c"", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// The path of an open directory, for programs and calls that take only a path. Good as long as `dir` is open.
#[must_use]
pub fn path_of(dir: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn directory(disk: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, IsolationError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(disk, name, flags, Mode::empty(), STRICT) {
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::XDEV) => {
            Err(bad(&format!("its '{name}' is no directory")))
        }
        opened => opened.step(format!("open the directory '{name}' of a disk")),
    }
}

fn bad(why: &str) -> IsolationError {
    IsolationError::BadArtifact(format!("its disk cannot be used: {why}"))
}
