//! A disk with a cache that forgets: blocks that were written and not flushed are gone after a power cut.
//!
//! It is one file in a FUSE file system of this process. A loop device on it turns each flush of the file system above
//! into an `fsync` of that file, which is the moment at which blocks become durable. [`VolatileDisk::cut`] writes the
//! blocks that would be found on the disk if the power went away now. The disk itself goes on, so that the program
//! under test can be ended in order, and be started again on the blocks that were found.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use atoll_core::draw::Draw;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite, Request, WriteFlags,
};
use tempfile::TempDir;

use crate::run;

/// Size of a block, bytes: it is kept or lost as a whole, because a drive writes it at once.
const BLOCK_BYTES: usize = 4096;
const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);

/// What a power cut leaves of the blocks that were written and not flushed.
#[derive(Debug, Clone, Copy)]
pub enum Unflushed {
    /// None of them.
    Lost,
    /// Any of them, in any order: drives write their cache as they like. The number chooses which.
    Torn(u64),
}

/// The disk; its file goes away with it.
#[derive(Debug)]
pub struct VolatileDisk {
    content: Arc<Mutex<Content>>,
    session: Option<BackgroundSession>,
    dir: TempDir,
}

#[derive(Debug)]
struct Content {
    size: u64,
    durable: File,
    unflushed: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

struct OneFile(Arc<Mutex<Content>>);

impl VolatileDisk {
    /// An empty one of `size` bytes, a multiple of 4096; sparse.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("atoll-volatile-disk-")
            .tempdir_in("/var/tmp")
            .expect("a directory");
        let mount = dir.path().join("mount");
        std::fs::create_dir(&mount).expect("a directory");
        let durable = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(dir.path().join("durable"))
            .expect("a file");
        durable.set_len(size).expect("a sparse file");
        let content = Arc::new(Mutex::new(Content { size, durable, unflushed: BTreeMap::new() }));
        let session = fuser::spawn_mount(OneFile(Arc::clone(&content)), &mount, &Config::default());
        Self { content, session: Some(session.expect("a FUSE file system (/dev/fuse)")), dir }
    }

    /// The file that is the disk.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mount").join(NAME)
    }

    /// Writes a new file with the content that the disk would have if the power went away now.
    pub fn cut(&self, to: &Path, unflushed: Unflushed) {
        let content = locked(&self.content);
        run(Command::new("cp").arg("--sparse=always").arg(self.dir.path().join("durable")).arg(to));
        let found = File::options().write(true).open(to).expect("open what was found");
        for (block, bytes) in &content.unflushed {
            let kept = match unflushed {
                Unflushed::Lost => false,
                Unflushed::Torn(seed) => Draw::new(seed ^ block).number() & 1 == 1,
            };
            if kept {
                found.write_all_at(&bytes[..], block * BLOCK_BYTES as u64).expect("write what was found");
            }
        }
    }
}

impl Drop for VolatileDisk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            drop(session.umount_and_join());
        }
    }
}

fn locked(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().expect("nobody panics with it")
}

impl Content {
    /// One block as its readers see it.
    fn block(&self, block: u64) -> std::io::Result<Box<[u8; BLOCK_BYTES]>> {
        if let Some(bytes) = self.unflushed.get(&block) {
            return Ok(bytes.clone());
        }
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        self.durable.read_exact_at(&mut bytes[..], block * BLOCK_BYTES as u64)?;
        Ok(bytes)
    }

    fn read(&self, offset: u64, size: usize) -> std::io::Result<Vec<u8>> {
        let end = offset.saturating_add(size as u64).min(self.size);
        let mut read = Vec::with_capacity(size);
        for (block, from, to) in pieces(offset, end) {
            read.extend_from_slice(&self.block(block)?[from..to]);
        }
        Ok(read)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut rest = data;
        for (block, from, to) in pieces(offset, offset + data.len() as u64) {
            let (piece, after) = rest.split_at(to - from);
            let mut bytes = self.block(block)?;
            bytes[from..to].copy_from_slice(piece);
            self.unflushed.insert(block, bytes);
            rest = after;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        for (block, bytes) in std::mem::take(&mut self.unflushed) {
            self.durable.write_all_at(&bytes[..], block * BLOCK_BYTES as u64)?;
        }
        Ok(())
    }
}

/// The blocks from `offset` to `end`, and where in each the bytes lie.
fn pieces(offset: u64, end: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let size = BLOCK_BYTES as u64;
    let within = move |at: u64| usize::try_from(at).expect("less than a block");
    (offset / size..end.div_ceil(size)).map(move |block| {
        let start = block * size;
        (block, within(offset.max(start) - start), within(end.min(start + size) - start))
    })
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            FILE => (FileType::RegularFile, 0o600, locked(&self.0).size),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(file) if parent == INodeNo::ROOT && name == NAME => reply.entry(&TTL, &file, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match locked(&self.0).read(offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match locked(&self.0).write(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("what FUSE sends at once")),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match locked(&self.0).flush() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }
}
