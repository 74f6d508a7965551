//! Puts the entries of an archive into a tree.
//!
//! Decisions, entry by entry:
//!
//! - **names**: `/a`, `./a` and `a` are the same; a `..`, a NUL and too long names are refused.
//! - **whiteouts** hide what is *below*, never what this layer has itself: `.wh.x` becomes a character device
//!   0:0, or makes the directory `x` opaque if this layer has one; `.wh..wh..opq` makes its directory opaque.
//! - **the same name twice**: the last entry wins. A directory that replaces something else is opaque,
//!   because the first entry had already hidden what is below.
//! - **hard links** point to an entry of the same layer that came before; others are refused. Builders that
//!   read a changed overlay or tree always write the file once in full.
//! - **devices** are skipped: a sandbox has a `/dev` of its own, and 0:0 would hide files.
//! - **attributes**: `user.*` and `security.capability` are kept, `trusted.*` and `user.overlay.*` would
//!   steer overlayfs and are refused, others mean nothing elsewhere and are skipped.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{
    self, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::sparse::Segment;
use super::tar_reader::{Kind, Member, TarReader, unreadable};
use super::tree::{Node, Tree, node, open_below, remove, set_opaque};
use crate::error::{ImageError, Result};
use crate::limits::{
    DEPTH_MAX_COUNT, DIRECTORIES_MAX_BYTES, DIRECTORY_COST_BYTES, ENTRIES_MAX_COUNT, NAME_MAX_BYTES,
    PATH_MAX_BYTES, XATTR_VALUE_MAX_BYTES,
};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
/// Book-keeping of AUFS; has no meaning elsewhere.
const WHITEOUT_META: &[u8] = b".wh..wh.";
const COPY_BUFFER_BYTES: usize = 256 << 10;
/// After so many entries it is seen whether the host has inodes left.
const ENTRIES_PER_LOOK: u64 = 1024;
/// This part of the host's inodes is kept free.
const INODES_KEPT_PART: u64 = 16;

pub(super) struct Applier<'a> {
    tree: Tree<'a>,
    /// Bytes of files that may still be written.
    budget: u64,
    entries: u64,
    written: u64,
    /// Times of directories, set at the end because every entry changes its parent's.
    dir_times: BTreeMap<Vec<u8>, (i64, u32)>,
    /// What their paths take, bytes.
    dir_bytes: usize,
    /// The latest time of an entry.
    newest: (i64, u32),
    buffer: Vec<u8>,
}

/// What came out.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) depends_on_lowers: bool,
    pub(super) size_bytes: u64,
}

fn lost(error: Errno) -> ImageError {
    ImageError::io("write a layer", error.into())
}

impl<'a> Applier<'a> {
    pub(super) fn new(root: OwnedFd, lowers: &'a [OwnedFd], budget: u64) -> Self {
        Self {
            tree: Tree::new(root, lowers),
            budget,
            entries: 0,
            written: 0,
            dir_times: BTreeMap::new(),
            dir_bytes: 0,
            newest: (0, 0),
            buffer: vec![0; COPY_BUFFER_BYTES],
        }
    }

    /// Applies one entry; `data` gives its stored bytes.
    pub(super) fn apply<R: Read>(&mut self, member: &Member, data: &mut TarReader<R>) -> Result<()> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX_COUNT {
            return Err(ImageError::Invalid(format!("a layer has more than {ENTRIES_MAX_COUNT} entries")));
        }
        if self.entries.is_multiple_of(ENTRIES_PER_LOOK) {
            let host = fs::fstatvfs(self.tree.root()).map_err(lost)?;
            if !has_inodes(host.f_files, host.f_favail) {
                let why = std::io::Error::other("almost all of its inodes are taken");
                return Err(ImageError::HostFull(why));
            }
        }
        self.newest = self.newest.max(member.mtime);
        let path = components(&member.path)?;
        let Some((&name, parents)) = path.split_last() else {
            return self.apply_root(member);
        };
        if parents.iter().any(|parent| parent.starts_with(WHITEOUT_META)) {
            return Ok(());
        }
        if parents.iter().any(|parent| parent.starts_with(WHITEOUT)) {
            return Err(ImageError::entry(&member.path, "it lies inside of a whiteout"));
        }
        if name.starts_with(WHITEOUT) {
            return self.whiteout(member, parents, name);
        }
        if member.kind == Kind::Device {
            return Ok(());
        }
        let dir = self.tree.parent(parents)?;
        match member.kind {
            Kind::Dir => self.dir(member, &path, &dir, name),
            Kind::File => {
                self.clear(&dir, name)?;
                self.file(member, &dir, name, data)
            }
            Kind::Symlink => {
                self.clear(&dir, name)?;
                symlink(member, &dir, name)
            }
            Kind::Hardlink => self.hardlink(member, &dir, name),
            Kind::Fifo => {
                self.clear(&dir, name)?;
                fs::mknodat(&dir, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0).map_err(lost)?;
                own(member, &dir, name)?;
                fs::chmodat(&dir, name, Mode::from_raw_mode(member.mode), AtFlags::empty()).map_err(lost)?;
                touch(member, &dir, name)
            }
            Kind::Device => Ok(()),
        }
    }

    /// Sets the times of directories, which every later entry would have changed. Those that the archive does not mention
    /// have the latest of the layer's times: a layer is the same on every host, whenever it is unpacked.
    pub(super) fn finish(self) -> Result<Outcome> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut dir_times = self.dir_times;
        for path in self.tree.implied_dirs().iter().chain([&Vec::new()]) {
            dir_times.entry(path.clone()).or_insert(self.newest);
        }
        // Children before their parents does not matter: setting times changes no parent.
        for (path, mtime) in &dir_times {
            let path = if path.is_empty() { b".".as_slice() } else { path };
            match open_below(self.tree.root(), path, flags) {
                Ok(fd) => fs::futimens(&fd, &times(*mtime)).map_err(lost)?,
                // Replaced by a later entry, or reached through a link: then its times stay as they are.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(Outcome { depends_on_lowers: self.tree.depends_on_lowers(), size_bytes: self.written })
    }

    fn apply_root(&mut self, member: &Member) -> Result<()> {
        if member.kind != Kind::Dir {
            return Err(ImageError::entry(&member.path, "the root must be a directory"));
        }
        self.dir_times.insert(Vec::new(), member.mtime);
        describe(member, self.tree.root())
    }

    /// Makes room for something that is not a directory.
    fn clear(&mut self, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        if node(dir, name)? != Node::Absent {
            self.tree.forget();
            remove(dir, name)?;
        }
        Ok(())
    }

    fn whiteout(&mut self, member: &Member, parents: &[&[u8]], name: &[u8]) -> Result<()> {
        if name == OPAQUE_MARK {
            return set_opaque(&*self.tree.parent(parents)?);
        }
        if name.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(ImageError::entry(&member.path, "a whiteout of nothing, '.' or '..'"));
        }
        let dir = self.tree.parent(parents)?;
        match node(&dir, hidden)? {
            Node::Absent => {
                fs::mknodat(&dir, hidden, FileType::CharacterDevice, Mode::empty(), 0).map_err(lost)
            }
            Node::Dir => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                set_opaque(&open_below(&dir, hidden, flags).map_err(lost)?)
            }
            // This layer's own entry hides what is below already.
            Node::Symlink(_) | Node::Other | Node::Whiteout => Ok(()),
        }
    }

    fn dir(&mut self, member: &Member, path: &[&[u8]], dir: &OwnedFd, name: &[u8]) -> Result<()> {
        let before = node(dir, name)?;
        if !matches!(before, Node::Absent | Node::Dir) {
            self.tree.forget();
            remove(dir, name)?;
        }
        if before != Node::Dir {
            fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)).map_err(lost)?;
        }
        let fd = open_below(dir, name, OFlags::RDONLY | OFlags::DIRECTORY).map_err(lost)?;
        if !matches!(before, Node::Absent | Node::Dir) {
            set_opaque(&fd)?;
        }
        self.set_time_at_the_end(path.join(&b'/'), member.mtime)?;
        describe(member, &fd)
    }

    /// Remembers the time of a directory.
    fn set_time_at_the_end(&mut self, path: Vec<u8>, mtime: (i64, u32)) -> Result<()> {
        let bytes = path.len() + DIRECTORY_COST_BYTES;
        if self.dir_times.insert(path, mtime).is_none() {
            self.dir_bytes += bytes;
        }
        if self.dir_bytes > DIRECTORIES_MAX_BYTES {
            let why =
                format!("the paths of a layer's directories have more than {DIRECTORIES_MAX_BYTES} bytes");
            return Err(ImageError::Invalid(why));
        }
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        member: &Member,
        dir: &OwnedFd,
        name: &[u8],
        data: &mut TarReader<R>,
    ) -> Result<()> {
        self.written = self.written.saturating_add(member.size);
        self.budget = self.budget.checked_sub(member.size).ok_or_else(too_large)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(dir, name, flags, Mode::from_raw_mode(0o600)).map_err(lost)?;
        let mut file = std::fs::File::from(fd);
        if let Some(segments) = &member.sparse {
            self.copy_sparse(member, segments, data, &mut file)?;
        } else {
            self.copy(member, member.size, data, &mut file)?;
        }
        let fd = OwnedFd::from(file);
        describe(member, &fd)?;
        fs::futimens(&fd, &times(member.mtime)).map_err(lost)
    }

    fn copy_sparse<R: Read>(
        &mut self,
        member: &Member,
        segments: &[Segment],
        data: &mut TarReader<R>,
        file: &mut std::fs::File,
    ) -> Result<()> {
        let lost = |error| ImageError::io("write a layer", error);
        file.set_len(member.size).map_err(lost)?;
        for segment in segments {
            file.seek(SeekFrom::Start(segment.offset)).map_err(lost)?;
            self.copy(member, segment.bytes, data, file)?;
        }
        Ok(())
    }

    fn copy<R: Read>(
        &mut self,
        member: &Member,
        bytes: u64,
        data: &mut TarReader<R>,
        file: &mut std::fs::File,
    ) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let n = data.read(&mut self.buffer[..want]).map_err(unreadable)?;
            if n == 0 {
                return Err(ImageError::entry(&member.path, "it has less data than it says"));
            }
            file.write_all(&self.buffer[..n]).map_err(|error| ImageError::io("write a layer", error))?;
            left -= n as u64;
        }
        Ok(())
    }

    fn hardlink(&mut self, member: &Member, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        let outside = || ImageError::entry(&member.path, "a hard link to a file that is not in this layer");
        let target = components(&member.link)?;
        let (&target_name, parents) = target.split_last().ok_or_else(outside)?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if parents.is_empty() { b".".to_vec() } else { parents.join(&b'/') };
        let from = fs::openat2(&**self.tree.root(), path, flags, Mode::empty(), resolve).map_err(
            |error| match error {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => outside(),
                other => lost(other),
            },
        )?;
        match node(&from, target_name)? {
            Node::Other | Node::Symlink(_) => {}
            Node::Absent | Node::Whiteout => return Err(outside()),
            Node::Dir => return Err(ImageError::entry(&member.path, "a hard link to a directory")),
        }
        let identity = |dir: &OwnedFd, name: &[u8]| {
            fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| (stat.st_dev, stat.st_ino))
        };
        if identity(dir, name).is_ok_and(|have| identity(&from, target_name) == Ok(have)) {
            return Ok(());
        }
        self.clear(dir, name)?;
        match fs::linkat(&from, target_name, dir, name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            // The directory that had to go held the target.
            Err(Errno::NOENT) => Err(outside()),
            Err(Errno::MLINK) => Err(ImageError::entry(&member.path, "too many hard links to one file")),
            Err(error) => Err(lost(error)),
        }
    }
}

/// Whether the file system has inodes left for others. Ext4 has as many as it was made with, and an image of empty files
/// takes them without taking space. One that makes inodes as they are needed says so, or says that it has none at all.
fn has_inodes(total: u64, free: u64) -> bool {
    total == 0 || free >= total / INODES_KEPT_PART
}

fn too_large() -> ImageError {
    ImageError::Invalid("the image unpacks to more than the operator allows".into())
}

/// Splits a path, judging every part of it.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let refuse = |why| Err(ImageError::entry(path, why));
    if path.len() > PATH_MAX_BYTES {
        return refuse("the path is longer than 4095 bytes");
    }
    if path.contains(&0) {
        return refuse("the path contains a NUL byte");
    }
    let parts: Vec<_> = path.split(|b| *b == b'/').filter(|c| !matches!(*c, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return refuse("the path leads upwards");
    }
    if parts.iter().any(|part| part.len() > NAME_MAX_BYTES) {
        return refuse("a name is longer than 255 bytes");
    }
    if parts.len() > DEPTH_MAX_COUNT {
        return refuse("the path is too deep");
    }
    Ok(parts)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn ids(member: &Member) -> Result<(Option<Uid>, Option<Gid>)> {
    let id = |raw: u64| match u32::try_from(raw) {
        // The last one means "leave it" to the kernel.
        Ok(id) if id != u32::MAX => Ok(id),
        Ok(_) | Err(_) => Err(ImageError::entry(&member.path, "its owner is not a user or group id")),
    };
    Ok((Some(Uid::from_raw(id(member.uid)?)), Some(Gid::from_raw(id(member.gid)?))))
}

/// Owner, mode and attributes of a file or directory, in the order in which none undoes another.
fn describe(member: &Member, fd: &OwnedFd) -> Result<()> {
    let (uid, gid) = ids(member)?;
    fs::fchown(fd, uid, gid).map_err(lost)?;
    fs::fchmod(fd, Mode::from_raw_mode(member.mode)).map_err(lost)?;
    for (name, value) in &member.xattrs {
        if !keep_xattr(member, name, value)? {
            continue;
        }
        fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()).map_err(|error| match error {
            // Here "no space" means the inode, not the disk.
            Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::INVAL | Errno::PERM => {
                ImageError::entry(&member.path, "an attribute is too large or malformed")
            }
            other => lost(other),
        })?;
    }
    Ok(())
}

fn keep_xattr(member: &Member, name: &[u8], value: &[u8]) -> Result<bool> {
    if name.starts_with(b"trusted.") || name.starts_with(b"user.overlay.") {
        return Err(ImageError::entry(&member.path, "it has an attribute that steers the overlay"));
    }
    if !name.starts_with(b"user.") && name != b"security.capability" {
        return Ok(false);
    }
    if name.len() > NAME_MAX_BYTES || name.contains(&0) || value.len() > XATTR_VALUE_MAX_BYTES {
        return Err(ImageError::entry(&member.path, "an attribute is too large or malformed"));
    }
    Ok(true)
}

fn own(member: &Member, dir: &OwnedFd, name: &[u8]) -> Result<()> {
    let (uid, gid) = ids(member)?;
    fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(lost)
}

fn touch(member: &Member, dir: &OwnedFd, name: &[u8]) -> Result<()> {
    fs::utimensat(dir, name, &times(member.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(lost)
}

fn symlink(member: &Member, dir: &Rc<OwnedFd>, name: &[u8]) -> Result<()> {
    if member.link.is_empty() || member.link.len() > PATH_MAX_BYTES || member.link.contains(&0) {
        return Err(ImageError::entry(&member.path, "a symbolic link to nothing usable"));
    }
    for (name, value) in &member.xattrs {
        // Links carry none of those that are kept, but the hostile ones are refused here too.
        keep_xattr(member, name, value)?;
    }
    fs::symlinkat(member.link.as_slice(), dir, name).map_err(lost)?;
    own(member, dir, name)?;
    touch(member, dir, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_directories_have_so_many_bytes_together() {
        const PATH: usize = 4000;
        let place = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(place.path()).unwrap().into();
        let mut applier = Applier::new(root, &[], 0);
        let mut keep =
            |number: usize| applier.set_time_at_the_end(format!("{number:0PATH$}").into_bytes(), (0, 0));
        for _ in 0..3 {
            keep(0).unwrap();
        }
        let kept = (1..).take_while(|&number| keep(number).is_ok()).count() + 1;
        assert_eq!(kept, DIRECTORIES_MAX_BYTES / (PATH + DIRECTORY_COST_BYTES), "the same path counts once");
    }
}
