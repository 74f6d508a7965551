//! The directory into which a backup is unpacked; no other process works in it. Names come from a file that may be
//! hostile, so each part of a path is opened by itself, below the one before, and no link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, fsetxattr, futimens, linkat, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;

use crate::error::{BackupError, Result, shown};
use crate::member::{Kind, Member, parts};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory, and those that lead to the last member.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    root: BorrowedFd<'a>,
    chain: Vec<(Vec<u8>, OwnedFd)>,
}

fn failed(member: &Member) -> impl Fn(Errno) -> BackupError + '_ {
    move |errno| match errno {
        Errno::EXIST => BackupError::member(&member.path, "comes twice"),
        Errno::LOOP | Errno::NOTDIR => BackupError::member(&member.path, "lies below what is no directory"),
        errno => BackupError::io(format!("write '{}'", shown(&member.path)), errno),
    }
}

impl<'a> Place<'a> {
    pub(crate) fn new(root: BorrowedFd<'a>) -> Self {
        Self { root, chain: Vec::new() }
    }

    /// Makes a member that has no content. The member was checked before: its fields are used as they are.
    ///
    /// # Errors
    /// [`BackupError`].
    pub(crate) fn make(&mut self, member: &Member) -> Result<()> {
        let path = parts(&member.path);
        let failed = failed(member);
        if member.kind == Kind::Dir {
            let dir = self.directory(&path).map_err(failed)?;
            return describe(member, dir);
        }
        let Some((name, above)) = path.split_last() else {
            return Err(BackupError::member(&member.path, "has no name"));
        };
        let name = OsStr::from_bytes(name);
        if member.kind == Kind::Hardlink {
            return self.link(member, above, name).map_err(failed);
        }
        let dir = self.directory(above).map_err(&failed)?;
        let mode = Mode::from_raw_mode(member.mode);
        match member.kind {
            Kind::Symlink => symlinkat(OsStr::from_bytes(&member.link), dir, name),
            Kind::Fifo => mknodat(dir, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                .and_then(|()| chmodat(dir, name, mode, AtFlags::empty())),
            Kind::Whiteout => mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0)
                .and_then(|()| chmodat(dir, name, mode, AtFlags::empty())),
            Kind::File | Kind::Dir | Kind::Hardlink => Err(Errno::INVAL),
        }
        .map_err(&failed)?;
        let (uid, gid) = owner(member);
        chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(&failed)?;
        utimensat(dir, name, &times(member), AtFlags::SYMLINK_NOFOLLOW).map_err(&failed)
    }

    /// Makes a file, empty, of the size that it is to have. [`describe`] it once it has its content.
    ///
    /// # Errors
    /// [`BackupError`].
    pub(crate) fn file(&mut self, member: &Member) -> Result<File> {
        let path = parts(&member.path);
        let Some((name, above)) = path.split_last() else {
            return Err(BackupError::member(&member.path, "has no name"));
        };
        let dir = self.directory(above).map_err(failed(member))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir, OsStr::from_bytes(name), flags, Mode::from_raw_mode(0o600))
            .map_err(failed(member))?;
        let file = File::from(file);
        let sized = file.set_len(member.size);
        sized.map_err(|error| BackupError::io(format!("write '{}'", shown(&member.path)), error))?;
        Ok(file)
    }

    /// Opens a directory, making those on the way that are missing.
    fn directory(&mut self, path: &[&[u8]]) -> rustix::io::Result<BorrowedFd<'_>> {
        let same = self.chain.iter().zip(path).take_while(|((name, _), part)| name == *part).count();
        self.chain.truncate(same);
        for part in &path[same..] {
            let above = self.chain.last().map_or(self.root, |(_, dir)| dir.as_fd());
            let name = OsStr::from_bytes(part);
            match mkdirat(above, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            let dir = openat(above, name, DIRECTORY, Mode::empty())?;
            self.chain.push((part.to_vec(), dir));
        }
        Ok(self.chain.last().map_or(self.root, |(_, dir)| dir.as_fd()))
    }

    fn link(&mut self, member: &Member, above: &[&[u8]], name: &OsStr) -> rustix::io::Result<()> {
        let target = parts(&member.link);
        let (target_name, target_above) = target.split_last().ok_or(Errno::INVAL)?;
        let mut from: Option<OwnedFd> = None;
        for part in target_above {
            let above = from.as_ref().map_or(self.root, AsFd::as_fd);
            from = Some(openat(above, OsStr::from_bytes(part), DIRECTORY, Mode::empty())?);
        }
        let from = from.ok_or(Errno::INVAL)?;
        let dir = self.directory(above)?;
        // Without `SYMLINK_FOLLOW`: a link to a symbolic link is that symbolic link.
        linkat(&from, OsStr::from_bytes(target_name), dir, name, AtFlags::empty())
    }
}

fn owner(member: &Member) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(member.uid)), Some(Gid::from_raw(member.gid)))
}

fn times(member: &Member) -> Timestamps {
    let time = Timespec { tv_sec: member.mtime.0, tv_nsec: member.mtime.1.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Owner, mode, attributes and times of a file or directory, in the order in which none undoes another.
///
/// # Errors
/// [`BackupError::Io`].
pub(crate) fn describe(member: &Member, file: BorrowedFd<'_>) -> Result<()> {
    let (uid, gid) = owner(member);
    fchown(file, uid, gid).map_err(failed(member))?;
    fchmod(file, Mode::from_raw_mode(member.mode)).map_err(failed(member))?;
    for (name, value) in &member.xattrs {
        fsetxattr(file, name.as_slice(), value, XattrFlags::empty()).map_err(failed(member))?;
    }
    futimens(file, &times(member)).map_err(failed(member))
}
