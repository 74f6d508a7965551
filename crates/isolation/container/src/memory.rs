//! The file system in memory of a container: `/dev`, `/dev/shm`, and the empty directory that covers what concerns the
//! host. In a new sandbox's first process: system calls only.
//!
//! It is one file system with three directories, each of which is shown by a mount of its own, with its own flags:
//!
//! ```text
//! dev      /dev        no set-user-id programs, and none that run at all
//! shm      /dev/shm    no set-user-id programs, no devices
//! empty    /sys/block, /proc/acpi, ...    read-only
//! ```
//!
//! Three file systems would do the same. But for each that is mounted anywhere on the host, the kernel keeps 16 bytes in
//! *every* memory cgroup, for what it may have to reclaim there: what thousands of containers take grows with the square
//! of their number, and with the file systems of each. The directory above the three is not shown: its mount goes with
//! the parts of the root.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Result;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::{base, sys};

/// Becomes `/dev`.
pub(crate) const DEV: &CStr = c"dev";
/// Becomes `/dev/shm`.
pub(crate) const SHM: &CStr = c"shm";
/// Stays empty.
pub(crate) const EMPTY: &CStr = c"empty";

/// Mounts it and makes its directories, which belong to the ids of this thread. The working directory is that of the
/// parts.
pub(crate) fn mount(options: &CStr) -> Result<OwnedFd> {
    rustix::mount::mount(c"tmpfs", base::MEMORY, c"tmpfs", MountFlags::NOSUID, options)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let memory = openat(CWD, base::MEMORY, flags, Mode::empty())?;
    for (name, mode) in [(DEV, 0o755), (SHM, 0o1777), (EMPTY, 0o555)] {
        mkdirat(&memory, name, Mode::from_raw_mode(mode))?;
    }
    Ok(memory)
}

/// Shows at `to`, below `place`, what is at `from` below `at`, with these attributes. An empty `to` is the directory
/// that `place` has open.
pub(crate) fn show(
    at: BorrowedFd<'_>,
    from: &CStr,
    place: BorrowedFd<'_>,
    to: &CStr,
    attributes: u64,
) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(at, from, flags)?;
    sys::mount_setattr(tree.as_fd(), attributes, None)?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, c"", place, to, empty)
}
