//! The files of a data directory that are in a backup, in order: the content of a directory comes before the directory
//! itself, so that a restoration sets a directory's times after the last change in it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, openat, readlinkat, statat,
};
use rustix::io::Errno;

use crate::error::{BackupError, Result, shown};
use crate::format::{DATA, DEPTH_MAX_COUNT, is_in_layer, is_left_out};
use crate::member::{Kind, Member, Xattrs, is_kept_xattr};
use crate::sparse::{self, Segment};

/// Largest value of an attribute, bytes: the kernel's own limit.
const XATTR_MAX_BYTES: usize = 64 << 10;

/// A member, and where its content is.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) member: Member,
    /// Of a file.
    pub(crate) content: Option<Content>,
}

#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) file: File,
    /// Where its data is, if it has holes.
    pub(crate) map: Option<Vec<Segment>>,
}

/// Calls `with` for everything.
///
/// # Errors
/// What `with` fails with; [`BackupError::Unfit`] for what cannot be restored; [`BackupError::Io`].
pub(crate) fn walk(root: BorrowedFd<'_>, with: &mut dyn FnMut(Found) -> Result<()>) -> Result<()> {
    let mut walker = Walker { with, links: BTreeMap::new() };
    walker.directory(root, &mut Vec::new(), 0)
}

struct Walker<'a> {
    with: &'a mut dyn FnMut(Found) -> Result<()>,
    /// Files with several names in layers, and the first of those.
    links: BTreeMap<(u64, u64), Vec<u8>>,
}

fn unreadable(path: &[u8]) -> impl Fn(Errno) -> BackupError + '_ {
    move |errno| BackupError::io(format!("read '{}' in the data directory", shown(path)), errno)
}

fn unfit(path: &[u8], why: &str) -> BackupError {
    BackupError::Unfit(format!("'{}' in the data directory {why}", shown(path)))
}

impl Walker<'_> {
    fn directory(&mut self, dir: BorrowedFd<'_>, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX_COUNT {
            return Err(unfit(path, "is too deep"));
        }
        let length = path.len();
        for name in names(dir).map_err(unreadable(path))? {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            if !is_left_out(path) {
                self.entry(dir, &name, path, depth)?;
            }
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(unreadable(path))?;
        let in_layer = is_in_layer(path);
        let mut member = describe(path, &stat);
        let mut content = None;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = open(dir, name, OFlags::DIRECTORY).map_err(unreadable(path))?;
                self.directory(opened.as_fd(), path, depth + 1)?;
                member.kind = Kind::Dir;
                member.xattrs = xattrs(opened.as_fd(), in_layer).map_err(unreadable(path))?;
            }
            FileType::RegularFile => {
                let identity = (stat.st_dev, stat.st_ino);
                if in_layer && let Some(first) = self.links.get(&identity) {
                    (member.kind, member.link) = (Kind::Hardlink, first.clone());
                } else {
                    if in_layer && stat.st_nlink > 1 {
                        self.links.insert(identity, member.path.clone());
                    }
                    let file = open(dir, name, OFlags::NONBLOCK).map_err(unreadable(path))?;
                    member.xattrs = xattrs(file.as_fd(), in_layer).map_err(unreadable(path))?;
                    content = Some(contents(&mut member, File::from(file), path)?);
                }
            }
            FileType::Symlink if in_layer => {
                member.kind = Kind::Symlink;
                member.link = readlinkat(dir, name, Vec::new()).map_err(unreadable(path))?.into_bytes();
            }
            FileType::Fifo if in_layer => member.kind = Kind::Fifo,
            FileType::CharacterDevice if in_layer && stat.st_rdev == 0 => member.kind = Kind::Whiteout,
            FileType::Symlink => {
                return Err(unfit(path, "is a symbolic link: put in its place what it leads to"));
            }
            FileType::CharacterDevice | FileType::BlockDevice => return Err(unfit(path, "is a device")),
            // Sockets and pipes of processes that run, or that ran.
            FileType::Socket | FileType::Fifo => return Ok(()),
            FileType::Unknown => return Err(unfit(path, "is nothing that is known")),
        }
        (self.with)(Found { member, content })
    }
}

fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn open(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn describe(path: &[u8], stat: &Stat) -> Member {
    Member {
        path: [DATA, b"/", path].concat(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        ..Member::own(b"", 0)
    }
}

fn contents(member: &mut Member, file: File, path: &[u8]) -> Result<Content> {
    let failed = |error| BackupError::io(format!("read '{}' in the data directory", shown(path)), error);
    member.size = file.metadata().map_err(failed)?.len();
    let map = sparse::map_of(&file).map_err(failed)?;
    member.has_map = map.is_some();
    member.stored = match &map {
        Some(map) => sparse::encode(map).len() as u64 + sparse::data_bytes(map),
        None => member.size,
    };
    Ok(Content { file, map })
}

/// The extended attributes that a layer may have. Outside of layers the server sets none, so none are kept.
fn xattrs(file: BorrowedFd<'_>, in_layer: bool) -> rustix::io::Result<Xattrs> {
    let mut kept = Xattrs::new();
    if !in_layer {
        return Ok(kept);
    }
    let mut names = vec![0; XATTR_MAX_BYTES];
    let length = match flistxattr(file, &mut names) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let mut names: Vec<_> =
        names[..length].split(|byte| *byte == 0).filter(|name| is_kept_xattr(name)).collect();
    names.sort_unstable();
    let mut value = vec![0; XATTR_MAX_BYTES];
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        let length = fgetxattr(file, name, &mut value)?;
        kept.push((name.to_vec(), value[..length].to_vec()));
    }
    Ok(kept)
}
