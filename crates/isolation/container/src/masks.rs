//! What concerns the host in /proc and /sys, and is covered. In a new sandbox's first process: system calls only.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::{Errno, Result};
use rustix::mount::mount_bind;

use crate::{memory, sys};

/// Files of /proc that are made unreadable and unwritable: they concern the host.
const MASKED_FILES: [&CStr; 10] = [
    c"proc/kcore",
    c"proc/keys",
    c"proc/timer_list",
    c"proc/latency_stats",
    c"proc/sched_debug",
    c"proc/sysrq-trigger",
    c"proc/kmsg",
    c"proc/interrupts",
    c"proc/diskstats",
    c"proc/partitions",
];
/// Directories made empty: firmware, and the disks of the host, among which those of other sandboxes are, with paths.
const MASKED_DIRECTORIES: [&CStr; 14] = [
    c"proc/acpi",
    c"proc/scsi",
    c"proc/asound",
    c"sys/firmware",
    c"sys/devices/virtual/powercap",
    c"sys/block",
    c"sys/class/block",
    c"sys/class/bdi",
    c"sys/devices/virtual/block",
    c"sys/devices/virtual/bdi",
    c"sys/fs/ext4",
    c"sys/fs/xfs",
    c"sys/fs/btrfs",
    c"sys/fs/erofs",
];
/// One of them that every kernel with disks has: made empty first.
const EMPTY_DIRECTORY: &CStr = c"sys/dev/block";
/// Directories of /proc made read-only.
const READ_ONLY_DIRECTORIES: [&CStr; 4] = [c"proc/sys", c"proc/bus", c"proc/fs", c"proc/irq"];

/// Where programs look which boot of a machine this is.
const BOOT_ID: &CStr = c"proc/sys/kernel/random/boot_id";
/// Where the sandbox's own is written, for a moment.
const OWN_BOOT_ID: &CStr = c"dev/boot_id";

/// What is shown in place of something of the host's.
const STRICT: u64 = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV | sys::ATTR_NOEXEC;

/// Covers what concerns the host. What this kernel does not have is passed over. `memory` has an empty directory
/// [`memory::EMPTY`]. `boot_id` is what the sandbox reads as the kernel's: the host's would tell it its neighbours, and
/// it would not change when the sandbox begins anew.
pub(crate) fn hide(root: BorrowedFd<'_>, memory: BorrowedFd<'_>, boot_id: &[u8]) -> Result<()> {
    rustix::process::fchdir(root)?;
    for name in MASKED_FILES {
        cover(c"dev/null", name)?;
    }
    for name in READ_ONLY_DIRECTORIES {
        clone_onto(name, name)?;
    }
    put_boot_id(boot_id)?;
    // One empty directory, seen in many places.
    memory::show(memory, memory::EMPTY, CWD, EMPTY_DIRECTORY, STRICT)?;
    for name in MASKED_DIRECTORIES {
        match cover(EMPTY_DIRECTORY, name) {
            Ok(()) | Err(Errno::NOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Covers the kernel's boot id by a file without a name. Comes after what makes its directory read-only.
fn put_boot_id(boot_id: &[u8]) -> Result<()> {
    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(CWD, OWN_BOOT_ID, create, Mode::from_raw_mode(0o444))?;
    rustix::io::write(&file, boot_id)?;
    clone_onto(OWN_BOOT_ID, BOOT_ID)?;
    unlinkat(CWD, OWN_BOOT_ID, AtFlags::empty())
}

/// Shows at `to` what is at `from`. Both are ours: below /dev, /proc or /sys. What this kernel does not have is passed over.
fn cover(from: &CStr, to: &CStr) -> Result<()> {
    match mount_bind(from, to) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// The same, read-only.
fn clone_onto(from: &CStr, to: &CStr) -> Result<()> {
    match memory::show(CWD, from, CWD, to, STRICT) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
