//! Files in a volume, from outside. What is in a volume was written by sandboxes and is hostile: every path is
//! resolved by the kernel beneath the volume's root, never through a link of `/proc`, and only regular files
//! are opened.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use atoll_isolation::volumes::{VolumeFile, VolumeFileKind, VolumeWrite};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fstat, fsync,
    mkdirat, openat2, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, Result};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Entries that are removed with a directory, at most.
const REMOVED_MAX_COUNT: u64 = 50_000_000;
/// Longest target of a link that is shown, bytes.
const TARGET_MAX_BYTES: usize = 4096;

/// Makes a new volume usable by everybody, as `/tmp` is.
pub(super) fn prepare(root: BorrowedFd<'_>) -> Result<()> {
    fchmod(root, Mode::from_raw_mode(0o1777))?;
    match unlinkat(root, c"lost+found", AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => fsync(root),
        Err(error) => Err(error),
    }
}

/// The directory that a path lies in, and its name there.
fn parent<'a>(root: BorrowedFd<'_>, path: &'a str) -> Result<(OwnedFd, &'a OsStr)> {
    let path = Path::new(path);
    let name = path.file_name().ok_or(Errno::ISDIR)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((openat2(root, above, DIRECTORY, Mode::empty(), BENEATH)?, name))
}

pub(super) fn stat(root: BorrowedFd<'_>, path: &str) -> Result<VolumeFile> {
    if path == "." {
        return Ok(entry("/", &fstat(root)?, None));
    }
    let (dir, name) = parent(root, path)?;
    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(entry(&format!("/{path}"), &stat, target(dir.as_fd(), name, &stat)))
}

fn target(dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Option<String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let text = readlinkat(dir, name, Vec::new()).ok()?;
    let shown = &text.as_bytes()[..text.as_bytes().len().min(TARGET_MAX_BYTES)];
    Some(String::from_utf8_lossy(shown).into_owned())
}

fn entry(path: &str, stat: &Stat, target: Option<String>) -> VolumeFile {
    VolumeFile {
        path: path.to_owned(),
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => VolumeFileKind::File,
            FileType::Directory => VolumeFileKind::Directory,
            FileType::Symlink => VolumeFileKind::Symlink,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => VolumeFileKind::Other,
        },
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ms: stat.st_mtime.saturating_mul(1000),
        target,
    }
}

pub(super) fn list(root: BorrowedFd<'_>, path: &str, max: usize) -> Result<(Vec<VolumeFile>, bool)> {
    let dir = openat2(root, path, DIRECTORY, Mode::empty(), BENEATH)?;
    let mut found = Vec::new();
    for item in Dir::read_from(&dir)? {
        let item = item?;
        let name = OsStr::from_bytes(item.file_name().to_bytes());
        if matches!(name.as_bytes(), b"." | b"..") {
            continue;
        }
        if found.len() == max {
            return Ok((found, true));
        }
        // It may go while we look.
        let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        found.push(entry(&name.to_string_lossy(), &stat, target(dir.as_fd(), name, &stat)));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((found, false))
}

/// Opens a regular file. Nothing is waited for: a pipe without a writer would hold us for good.
pub(super) fn read(root: BorrowedFd<'_>, path: &str) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(root, path, flags, Mode::empty(), BENEATH)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// A file that is written beside its place and put there when it is whole. Removed when dropped before.
#[derive(Debug)]
pub(super) struct New {
    dir: OwnedFd,
    name: Vec<u8>,
    temporary: String,
    file: OwnedFd,
    finished: bool,
}

impl New {
    pub(super) fn make(root: BorrowedFd<'_>, path: &str, write: VolumeWrite) -> Result<Self> {
        if write.parents {
            make_parents(root, path, write)?;
        }
        let (dir, name) = parent(root, path)?;
        let random = getrandom::u64().or(Err(Errno::IO))?;
        let temporary = format!(".atoll-{random:016x}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(write.mode);
        let file = openat2(&dir, temporary.as_str(), flags, Mode::from_raw_mode(0o600), BENEATH)?;
        let new = Self { dir, name: name.as_bytes().to_vec(), temporary, file, finished: false };
        fchown(&new.file, Some(Uid::from_raw(write.uid)), Some(Gid::from_raw(write.gid)))?;
        // After the owner: changing that clears bits.
        fchmod(&new.file, mode)?;
        Ok(new)
    }

    /// Where to write.
    pub(super) fn file(&self) -> std::io::Result<File> {
        Ok(File::from(self.file.try_clone()?))
    }

    /// Puts it in its place, for good.
    pub(super) fn finish(mut self) -> Result<()> {
        fsync(&self.file)?;
        renameat(&self.dir, self.temporary.as_str(), &self.dir, OsStr::from_bytes(&self.name))?;
        self.finished = true;
        fsync(&self.dir)
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.finished {
            // Whoever may write in the directory may have taken it away; then there is nothing to do.
            let _ = unlinkat(&self.dir, self.temporary.as_str(), AtFlags::empty());
        }
    }
}

fn make_parents(root: BorrowedFd<'_>, path: &str, write: VolumeWrite) -> Result<()> {
    let mut at = openat2(root, ".", DIRECTORY, Mode::empty(), BENEATH)?;
    let above = Path::new(path).parent().unwrap_or(Path::new(""));
    for part in above.components() {
        match mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => at = openat2(&at, part.as_os_str(), DIRECTORY, Mode::empty(), BENEATH)?,
            Err(error) => return Err(error),
            Ok(()) => {
                let flags = DIRECTORY | OFlags::NOFOLLOW;
                at = openat2(&at, part.as_os_str(), flags, Mode::empty(), BENEATH)?;
                fchown(&at, Some(Uid::from_raw(write.uid)), Some(Gid::from_raw(write.gid)))?;
            }
        }
    }
    Ok(())
}

pub(super) fn remove(root: BorrowedFd<'_>, path: &str, recursive: bool) -> Result<()> {
    let (dir, name) = parent(root, path)?;
    match unlinkat(&dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) if recursive => {
            let name = CString::new(name.as_bytes()).or(Err(Errno::INVAL))?;
            atoll_tree::remove(dir.as_fd(), &name, REMOVED_MAX_COUNT)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::TOOBIG))
        }
        Err(Errno::ISDIR) => unlinkat(&dir, name, AtFlags::REMOVEDIR),
        other => other,
    }
}
