//! The ext4 file systems of disks.
//!
//! Empty ones are made once by `mke2fs` for each size, and kept in memory as the few blocks that are not zero
//! (160 KiB for 10 GiB).
//!
//! They have a journal, but for small ones: not for what is on them, which does not survive a crash of the host, but
//! because ext4 without one looks at every inode that was freed within the last minute whenever it makes a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_isolation::IsolationError;
use atoll_isolation::sparse::for_data;
use atoll_isolation_host::private_dir;

use crate::mounts::check_directories;
use crate::step::Step;
use crate::superblock::{self, Made};
use crate::tools::{self, Ended, Limits};
use crate::{Kind, LoopDevice, Storage, Use, attach, attach_read_only, mount_ext4};

/// Sizes whose template is kept; the smallest, which is the quickest to make again, is dropped first.
const MAX_COUNT: usize = 16;
/// File system block.
const BLOCK_BYTES: usize = 4096;
/// What is read or written at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Size of a journal, MiB: the least that ext4 takes. A larger one makes nothing faster here.
const JOURNAL_MIB: u64 = 4;
/// A disk has a journal when that takes no more than this part of it. In a smaller one there are few inodes to look at.
const JOURNAL_PART: u64 = 16;

/// An empty file system with the directories `upper` and `work`.
pub struct Template {
    /// Its blocks that are not zero.
    blocks: Vec<(u64, Vec<u8>)>,
    /// The same as a file without a name, where files can be cloned.
    file: Option<File>,
    /// Where they are: first byte and length.
    extents: Vec<(u64, u64)>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Template {
    /// Replaces all that is in the image of a device, which has the same size, by this file system.
    ///
    /// The image changes below the device, whose cache must not keep the old content. Dropping that cache silently
    /// leaves blocks that another process is reading just then (udev, say). So every part that the image held is read
    /// through the device afterwards: that waits for such readers, shows which blocks were left, and fills the cache
    /// for the next mount.
    ///
    /// # Errors
    /// When another process uses the device (then nothing is changed), or its cache still has old content; errors of
    /// the host's file system.
    pub fn reset(&self, storage: &Storage, image: &File, device: &LoopDevice) -> std::io::Result<()> {
        device.forget()?;
        let mut held = Vec::new();
        for_data(image, |from, to| {
            held.push((from, to - from));
            Ok(())
        })?;
        match &self.file {
            Some(file) => storage.replace(file, image)?,
            None => {
                let zeros = vec![0; CHUNK_BYTES];
                for_chunks(&held, |at, len| image.write_all_at(&zeros[..len], at))?;
                self.write_to(image)?;
            }
        }
        device.forget()?;
        let (mut is, mut wanted) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        held.extend(&self.extents);
        let held = merged(held);
        // Reading is started for all parts at once, then waited for.
        device.read_ahead(&held);
        for_chunks(&held, |at, len| {
            device.read_exact_at(&mut is[..len], at)?;
            self.read(&mut wanted[..len], at);
            let same = is[..len] == wanted[..len];
            if same { Ok(()) } else { Err(std::io::Error::other("somebody else reads the device")) }
        })
    }

    /// Fills an image that is all holes.
    ///
    /// # Errors
    /// What the host's file system says.
    pub fn fill(&self, storage: &Storage, image: &File) -> std::io::Result<()> {
        match &self.file {
            Some(file) => storage.replace(file, image),
            None => self.write_to(image),
        }
    }

    /// The parts of it that are not zero: first byte and length.
    #[must_use]
    pub fn extents(&self) -> &[(u64, u64)] {
        &self.extents
    }

    /// What it has at `at`.
    fn read(&self, into: &mut [u8], at: u64) {
        into.fill(0);
        let end = at + into.len() as u64;
        let first = self.blocks.partition_point(|(offset, bytes)| offset + bytes.len() as u64 <= at);
        for (offset, bytes) in self.blocks[first..].iter().take_while(|(offset, _)| *offset < end) {
            let (from, to) = (at.max(*offset), end.min(offset + bytes.len() as u64));
            // Both are within a slice in memory.
            let index = |place: u64, base: u64| usize::try_from(place - base).unwrap_or(usize::MAX);
            let place = |base: u64| index(from, base)..index(to, base);
            into[place(at)].copy_from_slice(&bytes[place(*offset)]);
        }
    }

    fn write_to(&self, image: &File) -> std::io::Result<()> {
        self.blocks.iter().try_for_each(|(offset, block)| image.write_all_at(block, *offset))
    }
}

/// Templates by size.
#[derive(Debug)]
pub struct Templates {
    /// Where they are made.
    dir: PathBuf,
    made: Mutex<BTreeMap<u64, Arc<Template>>>,
}

impl Templates {
    /// They are made in `dir`, which is emptied.
    ///
    /// # Errors
    /// [`IsolationError::Kernel`].
    pub fn open(dir: PathBuf) -> Result<Self, IsolationError> {
        private_dir(&dir).step("make the directory of disk templates")?;
        for entry in std::fs::read_dir(&dir).step("list the disk templates")? {
            let path = entry.step("list the disk templates")?.path();
            std::fs::remove_dir_all(path).step("remove what an earlier process left")?;
        }
        Ok(Self { dir, made: Mutex::default() })
    }

    /// The template of this size.
    ///
    /// # Errors
    /// [`IsolationError::Unenforceable`] when e2fsprogs are missing, [`IsolationError::Kernel`].
    pub fn get(&self, storage: &Storage, bytes: u64) -> Result<Arc<Template>, IsolationError> {
        let lock = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = lock().get(&bytes) {
            return Ok(Arc::clone(template));
        }
        // Made outside the lock: two threads may both make it, which costs time and nothing else.
        let template = Arc::new(self.make(storage, bytes)?);
        let mut templates = lock();
        if templates.len() >= MAX_COUNT {
            templates.pop_first();
        }
        templates.insert(bytes, Arc::clone(&template));
        Ok(template)
    }

    fn make(&self, storage: &Storage, bytes: u64) -> Result<Template, IsolationError> {
        // Of the process: the drivers of all levels have one storage.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = self.dir.join(number.to_string());
        let made = make_file_system(&dir, bytes);
        std::fs::remove_dir_all(&dir).step("remove the template of a disk")?;
        let blocks = made?;
        let extents = blocks.iter().map(|(offset, bytes)| (*offset, bytes.len() as u64)).collect();
        let mut template = Template { blocks, file: None, extents };
        if storage.kind() != Kind::Copy {
            let path = storage.disks().join(format!("template-{number}"));
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.step("make the template of a disk")?;
            std::fs::remove_file(&path).step("make the template of a disk")?;
            file.set_len(bytes).step("size the template of a disk")?;
            template.write_to(&file).step("write the template of a disk")?;
            template.file = Some(file);
        }
        Ok(template)
    }
}

fn run(limits: Limits, command: &Command, reach: &File, what: &str) -> Result<(), IsolationError> {
    let ended = tools::run_within(limits, command, reach, what)?;
    if ended.status.is_some_and(|status| status.success()) { Ok(()) } else { Err(ended.error(what)) }
}

/// Grows the file system in an image that nothing uses to the size of the image. That has a minute: others may wait until
/// they may make something meanwhile, and what a machine's kernel made of its disk decides how long it takes.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn grow(image: &Path) -> Result<(), IsolationError> {
    let image = File::options().read(true).write(true).open(image).step("open a disk image")?;
    superblock::check(&image, Made::Disk)?;
    // Forced: it was copied while in use, so it is not marked as clean.
    let mut command = Command::new(tools::program("resize2fs")?);
    command.args(["-f", tools::IMAGE]);
    run(Limits::SHORT, &command, &image, "grow the file system of a disk")
}

/// Tidies a file system that was copied while in use: what was unlinked but open is freed, what is in its journal is
/// put in its place, and it is marked as sound.
///
/// # Errors
/// [`IsolationError::Kernel`].
pub fn tidy(image: &Path) -> Result<(), IsolationError> {
    tidy_within(Limits::USUAL, image)
}

fn tidy_within(limits: Limits, image: &Path) -> Result<(), IsolationError> {
    let image = File::options().read(true).write(true).open(image).step("open the disk of a snapshot")?;
    superblock::check(&image, Made::DiskInUse)?;
    let ended = e2fsck(limits, "-y", &attach(&image)?)?;
    // 1: something was put in order.
    match ended.status.and_then(|status| status.code()) {
        Some(0 | 1) => Ok(()),
        _ => Err(ended.error("tidy the disk of a snapshot")),
    }
}

/// Tidies a disk that nothing uses if it was neither unmounted nor held still: its host lost its power while the disk was
/// mounted, or failed to write to it. What is in its journal is read by a confined program. The host's kernel refuses such
/// a disk, and that of a machine refuses one whose journal the power cut tore.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub fn recover(image: &Path) -> Result<(), IsolationError> {
    recover_within(Limits::USUAL, image)
}

/// The same for the disk of a machine, whose kernel decides what is in it, and so how long that takes: for a minute, with
/// 1 GiB of memory.
///
/// # Errors
/// As those of [`recover`].
pub fn recover_soon(image: &Path) -> Result<(), IsolationError> {
    recover_within(Limits::SHORT, image)
}

fn recover_within(limits: Limits, image: &Path) -> Result<(), IsolationError> {
    if has_to_be_recovered(image)? {
        tracing::warn!(image = %image.display(), "a disk was not unmounted: it is put in order");
        tidy_within(limits, image)?;
    }
    Ok(())
}

/// Whether a disk says that it was neither unmounted nor held still.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub fn has_to_be_recovered(image: &Path) -> Result<bool, IsolationError> {
    superblock::has_to_be_recovered(&File::open(image).step("open the disk of a sandbox")?)
}

/// Runs on a device: the program asks the kernel for the real path of a file, which leads nowhere for one in the pool.
fn e2fsck(limits: Limits, mode: &str, device: &LoopDevice) -> Result<Ended, IsolationError> {
    let mut command = Command::new(tools::program("e2fsck")?);
    command.args(["-f", mode]).arg(device.path());
    let device = File::open(device.path()).step("open a disk's device")?;
    tools::run_within(limits, &command, &device, "run e2fsck")
}

/// Checks a file system that came from elsewhere before the kernel is made to read it: nothing in it may be
/// out of order, and it must have the directories of a disk.
///
/// # Errors
/// [`IsolationError::BadArtifact`], [`IsolationError::Kernel`].
pub fn check(image: &Path) -> Result<(), IsolationError> {
    let image = File::open(image).step("open the disk of a snapshot")?;
    superblock::check(&image, Made::Disk)?;
    let device = attach_read_only(&image)?;
    let ended = e2fsck(Limits::USUAL, "-n", &device)?;
    if ended.status.is_some_and(|status| status.success()) {
        return check_directories(mount_ext4(&device.path(), Use::Reading)?.as_fd());
    }
    tracing::info!(said = ended.last_line(), "a disk that came from elsewhere is refused");
    Err(IsolationError::BadArtifact("its disk holds no sound ext4 file system".to_owned()))
}

fn make_file_system(dir: &Path, bytes: u64) -> Result<Vec<(u64, Vec<u8>)>, IsolationError> {
    let content = dir.join("content");
    for name in ["upper", "work"] {
        std::fs::create_dir_all(content.join(name)).step("make the template of a disk")?;
    }
    let path = dir.join("image");
    let image = File::create_new(&path).step("make the template of a disk")?;
    image.set_len(bytes).step("size the template of a disk")?;
    let has_journal = bytes / JOURNAL_PART >= JOURNAL_MIB << 20;
    let features = if has_journal { "has_journal,^resize_inode" } else { "^has_journal,^resize_inode" };
    let mut command = Command::new(tools::program("mke2fs")?);
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-O", features]);
    if has_journal {
        command.arg("-J").arg(format!("size={JOURNAL_MIB}"));
    }
    command.args(["-E", "root_owner=0:0,nodiscard", "-d"]).arg(&content).arg(&path);
    let dir = File::open(dir).step("make the template of a disk")?;
    run(Limits::USUAL, &command, &dir, &format!("make a file system of {bytes} bytes"))?;
    let image = File::open(&path).step("open the template of a disk")?;
    let mut blocks = Vec::new();
    for_data(&image, |from, to| read_blocks(&image, from, to, &mut blocks))
        .step("read the template of a disk")?;
    Ok(blocks)
}

/// The same bytes, each once, ascending.
fn merged(mut extents: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    extents.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(extents.len());
    for (from, length) in extents {
        match merged.last_mut() {
            Some((first, len)) if from <= *first + *len => *len = (*len).max(from + length - *first),
            _ => merged.push((from, length)),
        }
    }
    merged
}

/// Calls `with` for every piece (first byte and length) of the extents.
fn for_chunks(
    extents: &[(u64, u64)],
    mut with: impl FnMut(u64, usize) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for (from, length) in extents {
        let (mut at, end) = (*from, from + length);
        while at < end {
            let len = usize::try_from(end - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            with(at, len)?;
            at += len as u64;
        }
    }
    Ok(())
}

/// Reads `from..to`, leaving out blocks of zeros and joining neighbours.
fn read_blocks(image: &File, from: u64, to: u64, blocks: &mut Vec<(u64, Vec<u8>)>) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        let piece = &mut block[..len];
        image.read_exact_at(piece, at)?;
        if piece.iter().any(|byte| *byte != 0) {
            match blocks.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == at => bytes.extend_from_slice(piece),
                _ => blocks.push((at, piece.to_vec())),
            }
        }
        at += len as u64;
    }
    Ok(())
}
