//! Unpacks a tar that came out of a sandbox onto the user's disk.
//!
//! The tar is hostile. What it may do is make files, directories and links below the destination:
//!
//! - Names are relative and hold no `..`; every directory on the way is opened with
//!   `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)`, so a link that was unpacked, or that was there
//!   before, never leads anywhere.
//! - Files are made new (`O_EXCL`) after what stood there was unlinked, so nothing is written through
//!   a symbolic or hard link.
//! - Symbolic links are made as they are, and not followed. Hard links lead to members of the
//!   destination only.
//! - Owners, set-user-id bits, extended attributes, devices and pipes are not taken over.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use atoll_engine::members;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps, openat2};
use rustix::io::Errno;
use tar::{Entry, EntryType};

/// Longest name of a member, bytes.
const NAME_MAX_BYTES: usize = 4096;
/// Deepest member, levels.
const DEPTH_MAX: usize = 256;
/// Most members of one tar.
const MEMBERS_MAX_COUNT: u64 = 10_000_000;
/// Most members that are reported as left out.
const SKIPPED_MAX_COUNT: usize = 100;

/// What was unpacked.
#[derive(Debug, Default)]
pub(crate) struct Extracted {
    /// Members.
    pub(crate) members: u64,
    /// Bytes of files.
    pub(crate) bytes: u64,
    /// Names of members that were left out, the first of them.
    pub(crate) skipped: Vec<String>,
}

/// Why a tar was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtractError {
    /// The stream broke or is no tar.
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    /// A member would not be below the destination, or breaks a limit.
    #[error("refused to unpack '{name}': {why}")]
    Refused {
        /// Its name, shortened.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// The disk said no.
    #[error("cannot write '{name}'")]
    Write {
        /// The member's name, shortened.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

type Result<T, E = ExtractError> = std::result::Result<T, E>;

/// Unpacks `tar` below the open directory `root`. With `rename` the first component of every name is
/// replaced by it.
pub(crate) fn extract(tar: impl Read, root: BorrowedFd<'_>, rename: Option<&OsStr>) -> Result<Extracted> {
    let mut extracted = Extracted::default();
    members(tar, ExtractError::Read, |entry| {
        let member = Member::new(entry, rename)?;
        extracted.members += 1;
        if extracted.members > MEMBERS_MAX_COUNT {
            return Err(member.refuse("the archive has too many members"));
        }
        // The destination itself.
        if member.path.as_os_str().is_empty() {
            return Ok(());
        }
        let made = member.unpack(entry, root, rename, &mut extracted.bytes)?;
        if !made && extracted.skipped.len() < SKIPPED_MAX_COUNT {
            extracted.skipped.push(member.shown());
        }
        Ok(())
    })?;
    Ok(extracted)
}

/// A name that is checked: relative, only normal components.
struct Member {
    path: PathBuf,
}

fn shown(bytes: &[u8]) -> String {
    atoll_core::error::shorten(&String::from_utf8_lossy(bytes))
}

/// Keeps the normal components of a name, and refuses those that lead elsewhere.
fn normal(bytes: &[u8], rename: Option<&OsStr>) -> Result<PathBuf> {
    let refuse = |why| ExtractError::Refused { name: shown(bytes), why };
    if bytes.len() > NAME_MAX_BYTES {
        return Err(refuse("the name is too long"));
    }
    if bytes.contains(&0) {
        return Err(refuse("the name contains a NUL byte"));
    }
    let mut path = PathBuf::new();
    let mut depth = 0;
    for component in Path::new(OsStr::from_bytes(bytes)).components() {
        match component {
            Component::Normal(name) if depth == 0 => path.push(rename.unwrap_or(name)),
            Component::Normal(name) => path.push(name),
            Component::CurDir => continue,
            Component::ParentDir => return Err(refuse("the name contains '..'")),
            Component::RootDir | Component::Prefix(_) => return Err(refuse("the name is absolute")),
        }
        depth += 1;
        if depth > DEPTH_MAX {
            return Err(refuse("it is too deep"));
        }
    }
    Ok(path)
}

impl Member {
    fn new(entry: &Entry<'_, impl Read>, rename: Option<&OsStr>) -> Result<Self> {
        Ok(Self { path: normal(&entry.path_bytes(), rename)? })
    }

    fn shown(&self) -> String {
        shown(self.path.as_os_str().as_bytes())
    }

    fn refuse(&self, why: &'static str) -> ExtractError {
        ExtractError::Refused { name: self.shown(), why }
    }

    fn failed(&self, errno: Errno) -> ExtractError {
        match errno {
            Errno::LOOP => self.refuse("a symbolic link is in the way"),
            Errno::XDEV => self.refuse("it leads out of the destination"),
            _ => ExtractError::Write { name: self.shown(), source: errno.into() },
        }
    }

    /// Makes the member. `false` when its kind is left out.
    fn unpack(
        &self,
        entry: &mut Entry<'_, impl Read>,
        root: BorrowedFd<'_>,
        rename: Option<&OsStr>,
        bytes: &mut u64,
    ) -> Result<bool> {
        let (Some(name), parent) = (self.path.file_name(), self.path.parent().unwrap_or(Path::new("")))
        else {
            return Err(self.refuse("it has no name"));
        };
        let mode = Mode::from_raw_mode(entry.header().mode().unwrap_or(0o644) & 0o777);
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            self.directory(root, &self.path, mode)?;
        } else if matches!(kind, EntryType::Regular | EntryType::Continuous) {
            let parent = self.parent(root, parent)?;
            *bytes += self.file(entry, parent.as_fd(), name, mode)?;
        } else if kind.is_symlink() {
            let target = link_name(entry).ok_or_else(|| self.refuse("the link leads nowhere"))?;
            let parent = self.parent(root, parent)?;
            self.unlink(parent.as_fd(), name)?;
            rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent, name)
                .map_err(|errno| self.failed(errno))?;
        } else if kind.is_hard_link() {
            let target = link_name(entry).ok_or_else(|| self.refuse("the link leads nowhere"))?;
            let target = normal(&target, rename)?;
            let parent = self.parent(root, parent)?;
            self.hard_link(root, &target, parent.as_fd(), name)?;
        } else if kind.is_gnu_sparse() {
            return Err(self.refuse("sparse members are not supported"));
        } else {
            // Devices, pipes, and every other type of member, also types that are added to tar later.
            return Ok(false);
        }
        Ok(true)
    }

    /// Makes a directory and those above it. One that is there stays as it is.
    fn directory(&self, root: BorrowedFd<'_>, path: &Path, mode: Mode) -> Result<()> {
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            let parent = self.parent(root, above)?;
            return self.make(parent.as_fd(), path.file_name().unwrap_or_default(), mode);
        }
        self.make(root, path.as_os_str(), mode)
    }

    fn make(&self, parent: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> Result<()> {
        // The user must be able to go on unpacking into it, and to remove it.
        match rustix::fs::mkdirat(parent, name, mode | Mode::RWXU) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => match open_directory(parent, Path::new(name)) {
                Ok(_opened) => Ok(()),
                Err(Errno::NOTDIR) => Err(self.refuse("a file is in the way")),
                Err(errno) => Err(self.failed(errno)),
            },
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// Opens the directory that a member goes into; makes what is missing.
    fn parent(&self, root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
        match open_directory(root, path) {
            Ok(directory) => Ok(directory),
            Err(Errno::NOENT) => {
                self.directory(root, path, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
                open_directory(root, path).map_err(|errno| self.failed(errno))
            }
            Err(Errno::NOTDIR) => Err(self.refuse("a file is in the way")),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    fn unlink(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => Err(self.refuse("a directory is in the way")),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    fn file(
        &self,
        entry: &mut Entry<'_, impl Read>,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        mode: Mode,
    ) -> Result<u64> {
        self.unlink(parent, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat2(parent, name, flags, mode, RESOLVE).map_err(|errno| self.failed(errno))?;
        let mut file = std::fs::File::from(file);
        let size = entry.size();
        let mut source = Source { entry, error: None };
        let copied = io::copy(&mut source, &mut file);
        if let Some(error) = source.error {
            return Err(ExtractError::Read(error));
        }
        let copied = copied.map_err(|source| ExtractError::Write { name: self.shown(), source })?;
        if copied != size {
            return Err(ExtractError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Some(seconds) = source.entry.header().mtime().ok().and_then(|mtime| i64::try_from(mtime).ok())
        {
            let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            // A time that the file system cannot hold is no reason to fail.
            let _ = rustix::fs::futimens(&file, &times);
        }
        Ok(copied)
    }

    fn hard_link(
        &self,
        root: BorrowedFd<'_>,
        target: &Path,
        parent: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<()> {
        let Some(target_name) = target.file_name() else {
            return Err(self.refuse("the link leads nowhere"));
        };
        if target == self.path {
            return Err(self.refuse("the link leads to itself"));
        }
        let above = target.parent().unwrap_or(Path::new(""));
        let target_parent = open_directory(root, above).map_err(|errno| self.failed(errno))?;
        self.unlink(parent, name)?;
        // Without `SYMLINK_FOLLOW`: a link to a symbolic link is that symbolic link.
        rustix::fs::linkat(&target_parent, target_name, parent, name, AtFlags::empty())
            .map_err(|errno| self.failed(errno))
    }
}

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

fn open_directory(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    openat2(root, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
}

fn link_name(entry: &Entry<'_, impl Read>) -> Option<Vec<u8>> {
    entry
        .link_name_bytes()
        .map(|name| name.into_owned())
        .filter(|name| !name.is_empty() && name.len() <= NAME_MAX_BYTES && !name.contains(&0))
}

/// Tells errors of the archive from those of the disk.
struct Source<'a, 'b, R: Read> {
    entry: &'a mut Entry<'b, R>,
    error: Option<io::Error>,
}

impl<R: Read> Read for Source<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.entry.read(buffer).map_err(|error| {
            let kind = error.kind();
            self.error = Some(error);
            kind.into()
        })
    }
}

#[cfg(test)]
#[path = "extract_tests.rs"]
mod tests;
