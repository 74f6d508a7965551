//! Finds out which inodes of two disks are the same, without asking the kernel for any of them.
//!
//! Disks are clones of each other as long as nothing is written: their files share blocks on the device. Where two disks
//! have a block of an inode table at the same place of the device, all inodes in it are the same, byte by byte, and so
//! is everything that they tell of their files: each change of a file changes its inode. The other way, a `stat` of
//! each of tens of thousands of files on both sides, makes the kernel keep all their inodes in memory.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::sys::{self, Extent};

/// Bytes of a block.
const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = 4096;
/// Where the superblock begins, and how much of it is read.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;
const INODES_IN_BLOCK: u64 = BLOCK_BYTES / 256;
/// Of the feature words.
const META_BG: u32 = 0x10;
const WIDE: u32 = 0x80;
/// Groups of blocks, 128 MiB each, that are looked at: a disk with more is compared inode by inode.
const GROUPS_MAX_COUNT: u64 = 1 << 14;
/// Pieces of which the device's place says nothing of what they hold: unknown, delayed, encoded, encrypted, unaligned, inline, tail.
const OPAQUE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
/// Space without content, which reads as zeros like a hole.
const UNWRITTEN: u32 = 0x800;

/// Places of the device that stand for something else: a hole, and a block that equals nothing.
const HOLE: u64 = 0;
const UNKNOWN: u64 = u64::MAX;

/// Of two disks: which blocks of their inode tables are the same.
#[derive(Debug)]
pub(super) struct Inodes {
    per_group: u64,
    /// For each group and each block of its table.
    same: Vec<Vec<bool>>,
}

impl Inodes {
    /// Looks at two images of disks. `None` where that tells nothing: the images are on different file systems, the
    /// disks have different layouts, or the file system below does not tell where files lie.
    pub(super) fn of(from: &File, to: &File) -> Option<Self> {
        if from.metadata().ok()?.dev() != to.metadata().ok()?.dev() {
            return None;
        }
        let (one, other) = (Tables::read(from).ok()??, Tables::read(to).ok()??);
        if one.per_group != other.per_group {
            return None;
        }
        let blocks = one.per_group.div_ceil(INODES_IN_BLOCK);
        let compare = |(a, b): (&u64, &u64)| -> rustix::io::Result<Vec<bool>> {
            if a != b {
                return Ok(Vec::new());
            }
            let (a, b) = (places(from, *a, blocks)?, places(to, *b, blocks)?);
            Ok(a.iter().zip(&b).map(|(a, b)| a == b && *a != UNKNOWN).collect())
        };
        let same = one.starts.iter().zip(&other.starts).map(compare).collect::<Result<_, _>>().ok()?;
        Some(Self { per_group: one.per_group, same })
    }

    /// Whether an inode is surely the same on both disks.
    pub(super) fn are_same(&self, inode: u64) -> bool {
        let Some(index) = inode.checked_sub(1) else { return false };
        let group = usize::try_from(index / self.per_group).unwrap_or(usize::MAX);
        let block = usize::try_from(index % self.per_group / INODES_IN_BLOCK).unwrap_or(usize::MAX);
        self.same.get(group).and_then(|blocks| blocks.get(block)).copied().unwrap_or(false)
    }
}

/// Where each block of a table lies on the device.
fn places(image: &File, start: u64, blocks: u64) -> rustix::io::Result<Vec<u64>> {
    let begin = start.saturating_mul(BLOCK_BYTES);
    let mut places = vec![HOLE; usize::try_from(blocks).unwrap_or(0)];
    for Extent { logical, physical, bytes, flags, .. } in
        sys::extents(image.as_fd(), begin, blocks * BLOCK_BYTES)?
    {
        let end = logical.saturating_add(bytes);
        let first = logical.saturating_sub(begin) / BLOCK_BYTES;
        let last = end.saturating_sub(begin).div_ceil(BLOCK_BYTES).min(blocks);
        for number in first..last {
            let at = begin + number * BLOCK_BYTES;
            let whole = at >= logical && at + BLOCK_BYTES <= end;
            let place = match flags {
                _ if flags & OPAQUE != 0 || !whole => UNKNOWN,
                _ if flags & UNWRITTEN != 0 => HOLE,
                _ => physical.saturating_add(at - logical),
            };
            if let Some(slot) = usize::try_from(number).ok().and_then(|number| places.get_mut(number)) {
                *slot = place;
            }
        }
    }
    Ok(places)
}

/// The inode tables of an ext4 file system, by the block each begins at.
#[derive(Debug)]
struct Tables {
    per_group: u64,
    starts: Vec<u64>,
}

impl Tables {
    /// Reads superblock and descriptors. They are hostile: they are used only to choose where to look.
    fn read(image: &File) -> io::Result<Option<Self>> {
        let mut superblock = [0; SUPERBLOCK_BYTES];
        image.read_exact_at(&mut superblock, SUPERBLOCK)?;
        let [low, high] = [0x04, 0x150].map(|at| u64::from(word(&superblock, at)));
        let [per_group, blocks_in_group] = [0x28, 0x20].map(|at| u64::from(word(&superblock, at)));
        let features = word(&superblock, 0x60);
        let bytes = if features & WIDE == 0 { 32 } else { u64::from(word(&superblock, 0xFE) & 0xFFFF) };
        if per_group == 0 || blocks_in_group == 0 || !(32..=1024).contains(&bytes) || !bytes.is_power_of_two()
        {
            return Ok(None);
        }
        let groups = (low | high << 32).div_ceil(blocks_in_group);
        if groups > GROUPS_MAX_COUNT || per_group > BLOCK_BYTES * 8 {
            return Ok(None);
        }
        let first_meta = if features & META_BG == 0 { u64::MAX } else { u64::from(word(&superblock, 0x104)) };
        let in_block = BLOCK_BYTES / bytes;
        let mut starts = Vec::new();
        for number in 0..groups.div_ceil(in_block) {
            let first_group = number * in_block;
            let block = match number {
                _ if number < first_meta => 1 + number,
                _ => first_group * blocks_in_group + u64::from(has_superblock(first_group)),
            };
            let mut descriptors = [0; BLOCK];
            image.read_exact_at(&mut descriptors, block * BLOCK_BYTES)?;
            for group in 0..in_block.min(groups - first_group) {
                let at = usize::try_from(group * bytes).unwrap_or(0);
                let high = if bytes >= 64 { word(&descriptors, at + 0x28) } else { 0 };
                starts.push(u64::from(word(&descriptors, at + 0x08)) | u64::from(high) << 32);
            }
        }
        Ok(Some(Self { per_group, starts }))
    }
}

/// Whether a group begins with a copy of the superblock (`sparse_super`, which all our disks have).
fn has_superblock(group: u64) -> bool {
    let is_power = |base: u64| {
        let mut power = base;
        while power < group {
            power *= base;
        }
        power == group
    };
    group < 2 || [3, 5, 7].into_iter().any(is_power)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn tool(program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// As `dumpe2fs` finds them: in a new file system, in one that has grown, and in one whose descriptors are spread, as growing
    /// makes it while it is mounted.
    #[test]
    fn tables_are_where_the_tools_find_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = File::create_new(&path).unwrap();
        let image = path.to_str().unwrap();
        let make = |features: &str| {
            tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-O", features, image]);
        };
        let check = |what: &str| {
            let told = tool("dumpe2fs", &[image]);
            let wanted: Vec<u64> = told
                .lines()
                .filter_map(|line| line.trim().strip_prefix("Inode table at "))
                .map(|rest| rest.split('-').next().unwrap().parse().unwrap())
                .collect();
            let found = Tables::read(&File::open(&path).unwrap()).unwrap().unwrap();
            assert_eq!(found.starts, wanted, "{what}");
            assert!(told.contains(&format!("Inodes per group:         {}\n", found.per_group)), "{what}");
        };
        file.set_len(1 << 30).unwrap();
        make("^has_journal,^resize_inode");
        check("new");
        file.set_len(40 << 30).unwrap();
        tool("resize2fs", &["-f", image]);
        check("grown");
        make("^has_journal,^resize_inode,meta_bg");
        check("spread");
    }

    /// Found by coverage: `make fuzz`. It runs shortly with the other tests, too.
    #[test]
    fn any_bytes_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let mut disk = vec![0; 3 * BLOCK];
            let len = bytes.len().min(disk.len() - 1024);
            disk[1024..1024 + len].copy_from_slice(&bytes[..len]);
            std::fs::write(&path, &disk).unwrap();
            drop(Tables::read(&File::open(&path).unwrap()));
        });
    }
}
