//! System calls that rustix does not wrap, each as a small safe function.
#![expect(unsafe_code, reason = "raw system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// What `struct loop_info64` and `struct loop_config` of the kernel look like.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct xfs_growfs_data`.
#[repr(C)]
struct GrowData {
    blocks: u64,
    inode_percent: u32,
}

/// `struct fstrim_range`.
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    piece_min: u64,
}

/// `struct fiemap_extent`: a piece of a file, and where it lies on the device.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) bytes: u64,
    reserved: [u64; 2],
    pub(crate) flags: u32,
    reserved_too: [u32; 3],
}

/// Pieces that are asked for at once.
const EXTENTS_COUNT: u32 = 64;

/// `struct fiemap`.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS_COUNT as usize],
}

const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const BLKFLSBUF: libc::Ioctl = 0x1261;
const FIFREEZE: libc::Ioctl = 0xC004_5877;
const FITHAW: libc::Ioctl = 0xC004_5878;
const XFS_IOC_FSGROWFSDATA: libc::Ioctl = 0x4010_586E;
const FITRIM: libc::Ioctl = 0xC018_5879;
const EXT4_IOC_CHECKPOINT: libc::Ioctl = 0x4004_662B;
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B;
const FIEMAP_FLAG_SYNC: u32 = 1;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const LOOP_BLOCK_BYTES: u32 = 4096;
/// Part of a pool that inodes may take, percent: XFS's own default for large file systems.
const INODE_PERCENT: u32 = 25;

fn check(result: libc::c_int) -> rustix::io::Result<libc::c_int> {
    if result >= 0 {
        return Ok(result);
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Binds `image` to the loop device `device`; the device frees itself when its last user goes.
///
/// With `direct` the image is read and written past the page cache, so that data is not kept twice.
pub(crate) fn loop_configure(
    device: BorrowedFd<'_>,
    image: BorrowedFd<'_>,
    direct: bool,
    read_only: bool,
) -> rustix::io::Result<()> {
    let flags = LO_FLAGS_AUTOCLEAR
        | if direct { LO_FLAGS_DIRECT_IO } else { 0 }
        | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = image.as_raw_fd().cast_unsigned();
    let config = LoopConfig { fd, block_size: LOOP_BLOCK_BYTES, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which lives through the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }).map(drop)
}

/// Takes note of a new size of the image behind a loop device.
pub(crate) fn loop_set_capacity(device: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY) }).map(drop)
}

/// The number of a loop device that was free a moment ago.
pub(crate) fn loop_free(control: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument.
    let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })?;
    Ok(u32::try_from(number).unwrap_or(0))
}

/// Writes back and drops what the kernel has cached of a block device.
pub(crate) fn forget_blocks(device: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: BLKFLSBUF takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF) }).map(drop)
}

/// Freezes the file system of `mount`: what was written is in the image, and writers wait.
pub(crate) fn freeze(mount: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: FIFREEZE ignores its argument.
    check(unsafe { libc::ioctl(mount.as_raw_fd(), FIFREEZE, 0) }).map(drop)
}

/// Lets the file system of `mount` go on. `EINVAL` when it is not frozen.
pub(crate) fn thaw(mount: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // SAFETY: FITHAW ignores its argument.
    check(unsafe { libc::ioctl(mount.as_raw_fd(), FITHAW, 0) }).map(drop)
}

/// Gives the calling thread, and what it starts, a mount namespace of its own.
pub(crate) fn own_mounts() -> rustix::io::Result<()> {
    // SAFETY: the flag does not touch the table of file descriptors, the one hazard of unshare.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
}

/// Puts everything that is in the journal of the ext4 file system of `root` in its place, and empties the journal.
/// `ENODEV` when it has none. Since Linux 5.15.
pub(crate) fn empty_journal(root: BorrowedFd<'_>) -> rustix::io::Result<()> {
    // The journal is emptied, and what was in it is not overwritten.
    let flags: u32 = 0;
    // SAFETY: EXT4_IOC_CHECKPOINT reads one `__u32`, which lives through the call.
    check(unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_CHECKPOINT, &raw const flags) }).map(drop)
}

/// Grows the XFS file system of `mount` to this many of its blocks.
pub(crate) fn grow_xfs(mount: BorrowedFd<'_>, blocks: u64) -> rustix::io::Result<()> {
    let data = GrowData { blocks, inode_percent: INODE_PERCENT };
    // SAFETY: XFS_IOC_FSGROWFSDATA reads one `struct xfs_growfs_data`, which lives through the call.
    check(unsafe { libc::ioctl(mount.as_raw_fd(), XFS_IOC_FSGROWFSDATA, &raw const data) }).map(drop)
}

/// Gives the free pieces of at least `piece_min` bytes of the file system of `root` back to the device.
pub(crate) fn trim(root: BorrowedFd<'_>, piece_min: u64) -> rustix::io::Result<()> {
    let mut range = TrimRange { start: 0, length: u64::MAX, piece_min };
    // SAFETY: FITRIM reads and writes one `struct fstrim_range`, which lives through the call.
    check(unsafe { libc::ioctl(root.as_raw_fd(), FITRIM, &raw mut range) }).map(drop)
}

/// Where a part of a file lies on the device, in order; what is not told of is a hole.
pub(crate) fn extents(file: BorrowedFd<'_>, start: u64, bytes: u64) -> rustix::io::Result<Vec<Extent>> {
    let (mut from, end, mut found) = (start, start.saturating_add(bytes), Vec::new());
    while from < end {
        let mut map = Fiemap {
            start: from,
            length: end - from,
            flags: FIEMAP_FLAG_SYNC,
            mapped: 0,
            count: EXTENTS_COUNT,
            reserved: 0,
            extents: [Extent::default(); EXTENTS_COUNT as usize],
        };
        // SAFETY: FS_IOC_FIEMAP reads one `struct fiemap` and writes at most `count` pieces behind it; all of it lives
        // through the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) })?;
        let told = map.extents.get(..map.mapped as usize).unwrap_or(&map.extents);
        found.extend_from_slice(told);
        match told.last() {
            Some(last) if told.len() == EXTENTS_COUNT as usize => {
                let after = last.logical.saturating_add(last.bytes);
                if after <= from {
                    return Err(Errno::IO);
                }
                from = after;
            }
            _ => break,
        }
    }
    Ok(found)
}
