//! The superblock of an ext4 file system that a sandbox may have written.
//!
//! It says more than where things are: what the kernel does at an error, mount options that the server did not give,
//! other devices to open, features that switch on whole parts of the kernel. A disk of ours has none of that, so a disk
//! that does is refused before the kernel, or a tool, reads the rest.
//!
//! While a disk with a journal is mounted its superblock says that the journal has to be read, and says so after a crash
//! of the host, too. The host's kernel never mounts such a disk: [`crate::copy`] takes the mark from a copy when it has
//! seen that there is nothing to read, and [`crate::filesystem::recover`] has the journal read by a confined program.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use atoll_isolation::IsolationError;

use crate::journal;
use crate::step::Step;

/// Where it is, and how large.
const OFFSET_BYTES: u64 = 1024;
const BYTES: usize = 1024;
const MAGIC: u16 = 0xEF53;

/// Features that `mke2fs` gives our file systems, in any version, or the kernel adds while they are in use.
mod allowed {
    /// `has_journal`, `ext_attr`, `resize_inode`, `dir_index`, `orphan_file`.
    pub(super) const COMPATIBLE: u32 = 0x4 | 0x8 | 0x10 | 0x20 | 0x1000;
    /// `filetype`, `meta_bg`, `extents`, `64bit`, `flex_bg`, `metadata_csum_seed`.
    pub(super) const INCOMPATIBLE: u32 = 0x2 | 0x10 | 0x40 | 0x80 | 0x200 | 0x2000;
    /// `sparse_super`, `large_file`, `huge_file`, `uninit_bg`, `dir_nlink`, `extra_isize`, `metadata_csum`, and that
    /// there are orphans in the orphan file.
    pub(super) const READ_ONLY: u32 = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40 | 0x400 | 0x1_0000;
}

/// Where the feature words are: compatible, incompatible, read-only compatible.
const FEATURES: [usize; 3] = [0x5C, 0x60, 0x64];
/// Of the compatible features: `has_journal`.
const JOURNAL: u32 = 0x4;
/// Of the incompatible ones: the journal has to be read.
const RECOVER: u32 = 0x4;
/// Of the read-only compatible ones: `metadata_csum`.
const CHECKSUMS: u32 = 0x400;
/// Where the superblock's own checksum is, of all that is before it.
const CHECKSUM_AT: usize = 0x3FC;

/// Default mount options that `mke2fs` writes: `user_xattr` and `acl`.
const MOUNT_DEFAULTS: u32 = 0x4 | 0x8;
/// What to do at an error: go on, or turn read-only. The third would be: panic.
const ERRORS_MAX: u16 = 2;
/// Block size 4096, as a power of two above 1024.
const LOG_BLOCK: u32 = 2;
const INODE_BYTES: u16 = 256;
const FIRST_INODE: u32 = 11;

/// What a file system was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is a sandbox's disk. Its journal, if it has one, is empty.
    Disk,
    /// It is a sandbox's disk that is mounted, or was when its host lost its power: there may be something in its journal.
    DiskInUse,
    /// It is a volume, which has a journal that is kept and read.
    Volume,
}

/// Refuses a file system whose superblock, or whose journal, asks for anything that none of ours asks for. Says whether
/// it has a journal.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub(crate) fn check(image: &File, made: Made) -> Result<bool, IsolationError> {
    let bytes: [u8; BYTES] = read(image, OFFSET_BYTES)?;
    let found = Fields(&bytes);
    judge(&found, made).map_err(|why| refused(&why))?;
    let has_journal = found.has_journal();
    if has_journal && made == Made::Disk {
        journal::check(image, &found)?;
    }
    Ok(has_journal)
}

/// Whether the journal of a disk has to be read before it can be used.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub(crate) fn has_to_be_recovered(image: &File) -> Result<bool, IsolationError> {
    let bytes: [u8; BYTES] = read(image, OFFSET_BYTES)?;
    Ok(Fields(&bytes).has_to_be_recovered())
}

/// Takes the mark that the journal has to be read from the copy of a disk that was mounted. Refuses when there is
/// anything in the journal.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub(crate) fn take_mark_off(copy: &File) -> Result<(), IsolationError> {
    let mut bytes: [u8; BYTES] = read(copy, OFFSET_BYTES)?;
    let found = Fields(&bytes);
    judge(&found, Made::DiskInUse).map_err(|why| refused(&why))?;
    if found.has_journal() {
        journal::check(copy, &found)?;
    }
    if !found.has_to_be_recovered() {
        return Ok(());
    }
    let has_checksum = found.u32(FEATURES[2]) & CHECKSUMS != 0;
    if has_checksum && found.u32(CHECKSUM_AT) != checksum(&bytes) {
        return Err(refused("the checksum of its superblock is wrong"));
    }
    let features = found.u32(FEATURES[1]) & !RECOVER;
    put(&mut bytes, FEATURES[1], features);
    if has_checksum {
        let sum = checksum(&bytes);
        put(&mut bytes, CHECKSUM_AT, sum);
    }
    copy.write_all_at(&bytes, OFFSET_BYTES).step("write the superblock of a disk")
}

/// The checksum of a superblock: CRC-32C, but not inverted at the end.
fn checksum(superblock: &[u8; BYTES]) -> u32 {
    static SUM: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    !SUM.checksum(superblock.split_at(CHECKSUM_AT).0)
}

fn put(superblock: &mut [u8; BYTES], at: usize, value: u32) {
    for (place, byte) in superblock.iter_mut().skip(at).zip(value.to_le_bytes()) {
        *place = byte;
    }
}

/// Reads a part of an image that a hostile hand may have made shorter than it says.
pub(crate) fn read<const LEN: usize>(image: &File, at: u64) -> Result<[u8; LEN], IsolationError> {
    let mut bytes = [0; LEN];
    match image.read_exact_at(&mut bytes, at) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(refused("it is too small")),
        other => other.step("read the superblock of a disk").map(|()| bytes),
    }
}

pub(crate) fn refused(why: &str) -> IsolationError {
    tracing::info!(why, "a file system is refused");
    IsolationError::BadArtifact(format!("its disk holds no ext4 file system of ours: {why}"))
}

/// Numbers in a structure of ext4. Beyond its end everything is 0.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.u8(at), self.u8(at + 1)])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn has_journal(&self) -> bool {
        self.u32(FEATURES[0]) & JOURNAL != 0
    }

    fn has_to_be_recovered(&self) -> bool {
        self.u32(FEATURES[1]) & RECOVER != 0
    }

    fn is_zero(&self, from: usize, to: usize) -> bool {
        (from..to).all(|at| self.u8(at) == 0)
    }
}

fn judge(found: &Fields<'_>, made: Made) -> Result<(), String> {
    if found.u16(0x38) != MAGIC {
        return Err("it has no ext4 superblock".to_owned());
    }
    let recover = if made == Made::Disk { 0 } else { RECOVER };
    for (kind, at, may) in [
        ("compatible", FEATURES[0], allowed::COMPATIBLE),
        ("incompatible", FEATURES[1], allowed::INCOMPATIBLE | recover),
        ("read-only compatible", FEATURES[2], allowed::READ_ONLY),
    ] {
        let more = found.u32(at) & !may;
        if more != 0 {
            return Err(format!("it has {kind} features {more:#x}"));
        }
    }
    let journal_inode = if found.has_journal() { journal::INODE } else { 0 };
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
            let [disk, in_use, volume] =
                [Made::Disk, Made::DiskInUse, Made::Volume].map(|made| judge(&Fields(bytes), made).is_ok());
            // What a disk may have, one that is in use and a volume may have, too.
            assert!(!disk || (in_use && volume));
        });
    }

    /// As the tools write it, and as the kernel does.
    #[test]
    fn the_checksum_is_that_of_ext4() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        File::create_new(&path).unwrap().set_len(64 << 20).unwrap();
        let made = std::process::Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "metadata_csum"])
            .arg(&path)
            .status();
        assert!(made.unwrap().success());
        let bytes: [u8; BYTES] = read(&File::open(&path).unwrap(), OFFSET_BYTES).unwrap();
        assert_eq!(checksum(&bytes), Fields(&bytes).u32(CHECKSUM_AT));
    }
}
