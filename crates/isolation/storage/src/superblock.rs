//! The superblock of an ext4 file system that a sandbox may have written.
//!
//! It says more than where things are: what the kernel does at an error, mount options that the server did not give,
//! other devices to open, features that switch on whole parts of the kernel. A disk of ours has none of that, so a disk
//! that does is refused before the kernel, or a tool, reads the rest.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use atoll_isolation::IsolationError;

use crate::step::Step;

/// Where it is, and how large.
const OFFSET_BYTES: u64 = 1024;
const BYTES: usize = 1024;
const MAGIC: u16 = 0xEF53;

/// Features that `mke2fs` gives our file systems, in any version, or the kernel adds while they are in use.
mod allowed {
    /// `ext_attr`, `resize_inode`, `dir_index`, `orphan_file`.
    pub(super) const COMPATIBLE: u32 = 0x8 | 0x10 | 0x20 | 0x1000;
    /// `filetype`, `meta_bg`, `extents`, `64bit`, `flex_bg`, `metadata_csum_seed`.
    pub(super) const INCOMPATIBLE: u32 = 0x2 | 0x10 | 0x40 | 0x80 | 0x200 | 0x2000;
    /// `sparse_super`, `large_file`, `huge_file`, `uninit_bg`, `dir_nlink`, `extra_isize`, `metadata_csum`, and that
    /// there are orphans in the orphan file.
    pub(super) const READ_ONLY: u32 = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40 | 0x400 | 0x1_0000;
    /// Of volumes: `has_journal`; and that the journal has to be read.
    pub(super) const JOURNAL: u32 = 0x4;
    pub(super) const RECOVER: u32 = 0x4;
}

/// Default mount options that `mke2fs` writes: `user_xattr` and `acl`.
const MOUNT_DEFAULTS: u32 = 0x4 | 0x8;
/// What to do at an error: go on, or turn read-only. The third would be: panic.
const ERRORS_MAX: u16 = 2;
/// Block size 4096, as a power of two above 1024.
const LOG_BLOCK: u32 = 2;
const INODE_BYTES: u16 = 256;
const FIRST_INODE: u32 = 11;
/// The journal's inode.
const JOURNAL_INODE: u32 = 8;

/// What a file system was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is a sandbox's disk.
    Disk,
    /// It is a volume, which has a journal in itself.
    Volume,
}

/// Refuses a file system whose superblock asks for anything that none of ours asks for.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub(crate) fn check(image: &File, made: Made) -> Result<(), IsolationError> {
    let mut bytes = [0; BYTES];
    match image.read_exact_at(&mut bytes, OFFSET_BYTES) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(refused("it is too small")),
        other => other.step("read the superblock of a disk")?,
    }
    judge(&Superblock(&bytes), made).map_err(|why| refused(&why))
}

fn refused(why: &str) -> IsolationError {
    tracing::info!(why, "a file system is refused");
    IsolationError::BadArtifact(format!("its disk holds no ext4 file system of ours: {why}"))
}

struct Superblock<'a>(&'a [u8; BYTES]);

impl Superblock<'_> {
    fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.u8(at), self.u8(at + 1)])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn is_zero(&self, from: usize, to: usize) -> bool {
        (from..to).all(|at| self.u8(at) == 0)
    }
}

fn judge(found: &Superblock<'_>, made: Made) -> Result<(), String> {
    let is_volume = made == Made::Volume;
    if found.u16(0x38) != MAGIC {
        return Err("it has no ext4 superblock".to_owned());
    }
    let (journal, recover) = if is_volume { (allowed::JOURNAL, allowed::RECOVER) } else { (0, 0) };
    for (kind, has, may) in [
        ("compatible", found.u32(0x5C), allowed::COMPATIBLE | journal),
        ("incompatible", found.u32(0x60), allowed::INCOMPATIBLE | recover),
        ("read-only compatible", found.u32(0x64), allowed::READ_ONLY),
    ] {
        if has & !may != 0 {
            return Err(format!("it has {kind} features {:#x}", has & !may));
        }
    }
    let has_journal = found.u32(0x5C) & allowed::JOURNAL != 0;
    let journal_inode = if has_journal { JOURNAL_INODE } else { 0 };
    let expectations = [
        (found.u16(0x3C) <= ERRORS_MAX, "what it wants done at errors"),
        (found.u32(0x100) & !MOUNT_DEFAULTS == 0, "its default mount options"),
        (found.is_zero(0x200, 0x240), "its mount options"),
        (found.u32(0x18) == LOG_BLOCK && found.u32(0x1C) == LOG_BLOCK, "its block size"),
        (found.u16(0x58) == INODE_BYTES && found.u32(0x54) == FIRST_INODE, "its inodes"),
        (found.u32(0x48) == 0 && found.u32(0x4C) == 1, "its revision"),
        (found.u32(0xE0) == journal_inode && found.u32(0xE4) == 0, "its journal"),
        (found.u32(0x240) == 0 && found.u32(0x244) == 0 && found.u32(0x26C) == 0, "its quota files"),
        (found.is_zero(0x254, 0x258), "its encryption"),
    ];
    match expectations.iter().find(|(is_ours, _)| !is_ours) {
        Some((_, what)) => Err(format!("{what} is not what it is made with")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by coverage: `make fuzz`. It runs shortly with the other tests, too.
    #[test]
    fn any_bytes_are_judged() {
        bolero::check!().with_type::<[u8; BYTES]>().for_each(|bytes| {
            let disk = judge(&Superblock(bytes), Made::Disk);
            let volume = judge(&Superblock(bytes), Made::Volume);
            // A volume may have what a disk may have.
            assert!(disk.is_err() || volume.is_ok());
        });
    }
}
