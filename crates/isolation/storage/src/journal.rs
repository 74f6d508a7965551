//! Whether anything is in the journal of a disk.
//!
//! A disk that the host's kernel mounts anew has nothing in its journal: it was unmounted, frozen, or copied after its
//! journal was emptied. What a journal holds is written to any place of the file system by whoever reads it, so a disk
//! from elsewhere could change itself after it was checked. The journal begins with a superblock of its own, which says
//! where its first record is; this module looks for it as the kernel does, and reads nothing else of the journal.

use std::fs::File;

use atoll_isolation::IsolationError;

use crate::superblock::{Fields, read, refused};

/// The inode that is the journal.
pub(crate) const INODE: u32 = 8;
/// Bytes of a block, and of an inode.
const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = 4096;
const INODE_BYTES: usize = 256;
/// Where group 0 is described: the block behind the superblock's. As much as is read of it.
const GROUPS_AT: u64 = BLOCK_BYTES;
const GROUP_BYTES: usize = 64;
/// Of the incompatible features: `64bit`.
const WIDE: u32 = 0x80;
/// Of an inode's flags: it has a tree of extents, which begins in the inode.
const HAS_EXTENTS: u32 = 0x8_0000;
const EXTENTS_MAGIC: u16 = 0xF30A;
/// How deep such a tree can be.
const DEPTH_MAX: u16 = 5;
/// A longer extent is one without content.
const EXTENT_MAX_BLOCKS: u16 = 1 << 15;
/// Numbers of blocks have 48 bits in extents.
const BLOCK_BITS: u32 = 48;
/// How a journal's superblock begins: magic number, and the second version of that superblock.
const MAGIC: u32 = 0xC03B_3998;
const VERSION: u32 = 4;
/// What it says of the size of blocks.
const SAID_BYTES: u32 = 4096;
/// Features of journals that the kernel switches on for file systems of ours: revocations, 64 bits, checksums.
const FEATURES: u32 = 0x1 | 0x2 | 0x10;

/// Refuses the journal of a file system with this superblock when something is in it, or when it is not like ours.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub(crate) fn check(image: &File, superblock: &Fields<'_>) -> Result<(), IsolationError> {
    let unlike = || refused("its journal is not what it is made with");
    let group: [u8; GROUP_BYTES] = read(image, GROUPS_AT)?;
    let group = Fields(&group);
    let is_wide = superblock.u32(0x60) & WIDE != 0 && superblock.u16(0xFE) >= 64;
    let high = if is_wide { group.u32(0x28) } else { 0 };
    let table = u64::from(group.u32(0x08)) | u64::from(high) << 32;
    let before = u64::from(INODE - 1) * INODE_BYTES as u64;
    let inode: [u8; INODE_BYTES] = read(image, place(table).ok_or_else(unlike)? + before)?;
    let first = first_block(image, &inode)?.ok_or_else(unlike)?;
    let journal: [u8; BLOCK] = read(image, place(first).ok_or_else(unlike)?)?;
    // In a journal the first byte of a number is the highest one.
    let word = |at: usize| Fields(&journal).u32(at).swap_bytes();
    if word(0x00) != MAGIC || word(0x04) != VERSION || word(0x0C) != SAID_BYTES {
        return Err(unlike());
    }
    if word(0x28) & !FEATURES != 0 || word(0x2C) != 0 {
        return Err(unlike());
    }
    // Where the first record is.
    if word(0x1C) == 0 { Ok(()) } else { Err(refused("its journal is not empty")) }
}

/// Where a block begins in the image; `None` when there is no such number.
fn place(block: u64) -> Option<u64> {
    (block >> BLOCK_BITS == 0).then(|| block * BLOCK_BYTES)
}

/// The block that an inode's content begins with.
fn first_block(image: &File, inode: &[u8; INODE_BYTES]) -> Result<Option<u64>, IsolationError> {
    if Fields(inode).u32(0x20) & HAS_EXTENTS == 0 {
        return Ok(None);
    }
    let mut node = inode.split_at(0x28).1.to_vec();
    for _ in 0..=DEPTH_MAX {
        let fields = Fields(&node);
        let (magic, count, depth) = (fields.u16(0), fields.u16(2), fields.u16(6));
        // Of the first entry: the first block of the content that it is for.
        if magic != EXTENTS_MAGIC || count == 0 || depth > DEPTH_MAX || fields.u32(0x0C) != 0 {
            return Ok(None);
        }
        let number = |low: usize, high: usize| u64::from(fields.u32(low)) | u64::from(fields.u16(high)) << 32;
        if depth == 0 {
            let has_content = (1..=EXTENT_MAX_BLOCKS).contains(&fields.u16(0x10));
            return Ok(has_content.then(|| number(0x14, 0x12)));
        }
        let Some(below) = place(number(0x10, 0x14)) else { return Ok(None) };
        let block: [u8; BLOCK] = read(image, below)?;
        node = block.to_vec();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    use super::*;

    /// As of our disks: room for more groups is made by moving what is in the way.
    const FEATURES: &str = "has_journal,^resize_inode";

    fn tool(program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
    }

    fn judge(image: &File) -> Result<(), IsolationError> {
        let superblock: [u8; 1024] = read(image, 1024).unwrap();
        check(image, &Fields(&superblock))
    }

    /// A new journal is found empty wherever the tools put it: in one piece, in several as on a small disk, and where a
    /// disk that has grown has it, whose pieces do not fit into the inode.
    #[test]
    fn a_journal_is_found_where_the_tools_put_it() {
        let dir = tempfile::tempdir().unwrap();
        for (number, (bytes, grown)) in
            [(1 << 30, 1 << 30), (64 << 20, 64 << 20), (64 << 20, 200 << 30)].into_iter().enumerate()
        {
            let path = dir.path().join(number.to_string());
            let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            image.set_len(bytes).unwrap();
            let name = path.to_str().unwrap();
            tool(
                "mke2fs",
                &["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-O", FEATURES, "-J", "size=4", name],
            );
            image.set_len(grown).unwrap();
            tool("resize2fs", &["-f", name]);
            judge(&image).unwrap();
            // With a first record it is not empty.
            let first = dump(name);
            image.write_all_at(&1_u32.to_be_bytes(), first * BLOCK_BYTES + 0x1C).unwrap();
            let refusal = judge(&image).unwrap_err().to_string();
            assert!(refusal.contains("not empty"), "{refusal}");
        }
    }

    /// The journal's first block, as `debugfs` tells it.
    fn dump(image: &str) -> u64 {
        let told = Command::new("debugfs").args(["-R", "bmap <8> 0", image]).output().unwrap();
        String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
    }

    /// Found by coverage: `make fuzz`. It runs shortly with the other tests, too.
    #[test]
    fn any_journal_is_judged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        // An inode, and the beginning of a block that it may lead to.
        bolero::check!().with_type::<[u8; 512]>().for_each(|bytes| {
            let mut disk = vec![0; 4 * BLOCK];
            // Where the table of inodes is.
            disk[BLOCK + 8] = 2;
            let (inode, block) = bytes.split_at(INODE_BYTES);
            let at = 2 * BLOCK + (INODE as usize - 1) * INODE_BYTES;
            disk[at..at + inode.len()].copy_from_slice(inode);
            disk[3 * BLOCK..3 * BLOCK + block.len()].copy_from_slice(block);
            std::fs::write(&path, &disk).unwrap();
            drop(judge(&File::open(&path).unwrap()));
        });
    }
}
