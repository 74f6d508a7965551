//! Journals of ext4 file systems in images that nothing uses, as a kernel that is not honest, or a power cut, leaves them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::process::run;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4096;
/// Where a file system's feature words are, and of the compatible and the incompatible ones: that it has a journal, and that
/// this has to be read.
const COMPATIBLE_AT: u64 = 1024 + 0x5C;
const INCOMPATIBLE_AT: u64 = 1024 + 0x60;
const HAS_JOURNAL: u32 = 0x4;
const RECOVER: u32 = 0x4;

/// Whether the file system in an image has a journal.
#[must_use]
pub fn exists(image: &Path) -> bool {
    word(image, COMPATIBLE_AT) & HAS_JOURNAL != 0
}

/// Whether it says that its journal has to be read.
#[must_use]
pub fn has_to_be_read(image: &Path) -> bool {
    word(image, INCOMPATIBLE_AT) & RECOVER != 0
}

/// The number of the block with the inode of a file, the block itself, and where in it the inode begins.
#[must_use]
pub fn inode_of(image: &Path, file: &str) -> (u64, Vec<u8>, usize) {
    let told = debugfs(image, &["-R", &format!("imap {file}")]);
    let told =
        told.split_once("located at block ").and_then(|(_, place)| place.trim().split_once(", offset 0x"));
    let (number, offset) = told.expect("the file has an inode");
    let number: u64 = number.parse().expect("a block has a number");
    let offset = usize::from_str_radix(offset, 16).expect("an inode has a place");
    let mut block = vec![0; 4096];
    let read = File::open(image).and_then(|image| image.read_exact_at(&mut block, number * BLOCK_BYTES));
    read.expect("read a block");
    (number, block, offset)
}

/// Writes to an empty journal what a block is to become, as a kernel does. Whoever reads the journal makes it so.
pub fn write(image: &Path, number: u64, block: &[u8]) {
    let dir = tempfile::tempdir().expect("make a directory");
    let (content, commands) = (dir.path().join("block"), dir.path().join("commands"));
    std::fs::write(&content, block).expect("write a block");
    let lines = format!("jo -c\njw -b {number} {}\njc\n", content.display());
    std::fs::write(&commands, lines).expect("write commands");
    debugfs(image, &["-w", "-f", commands.to_str().expect("the path is text")]);
    assert!(has_to_be_read(image), "debugfs wrote nothing");
}

/// Makes the block that [`write`] wrote something else than was meant, as a power cut does: its checksum is wrong.
pub fn tear(image: &Path, written: &[u8]) {
    // Behind the journal's superblock and the description of what follows.
    let number: u64 = debugfs(image, &["-R", "bmap <8> 2"]).trim().parse().expect("a journal has blocks");
    let image = File::options().read(true).write(true).open(image).expect("open an image");
    let mut block = vec![0; 4096];
    image.read_exact_at(&mut block, number * BLOCK_BYTES).expect("read a block");
    assert!(block == written, "the journal has it somewhere else");
    block.iter_mut().for_each(|byte| *byte = !*byte);
    image.write_all_at(&block, number * BLOCK_BYTES).expect("write a block");
}

fn word(image: &Path, at: u64) -> u32 {
    let mut word = [0; 4];
    File::open(image).and_then(|image| image.read_exact_at(&mut word, at)).expect("read a superblock");
    u32::from_le_bytes(word)
}

/// What `debugfs` says. It is given a descriptor: a file in a storage's pool has no path that leads there from everywhere.
fn debugfs(image: &Path, arguments: &[&str]) -> String {
    let image = File::options().read(true).write(true).open(image).expect("open an image");
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
    String::from_utf8(run(Command::new("debugfs").args(arguments).arg(path))).expect("it says text")
}
