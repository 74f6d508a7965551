//! Files in a volume, from outside. What is in a volume was written by sandboxes and is hostile: every path is
//! resolved by the kernel beneath the volume's root, never through a link of `/proc`, and only regular files
//! are opened.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use atoll_isolation::volumes::{VolumeChange, VolumeDirectory, VolumeFile, VolumeFileKind, VolumeWrite};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fstat,
    fsync, mkdirat, openat2, readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::mounts::STRICT;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// To look at what is there: nothing is waited for, no terminal is taken.
const LOOK: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
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
        return Ok(entry(&shown(path), &fstat(root)?, None));
    }
    let (dir, name) = parent(root, path)?;
    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(entry(&shown(path), &stat, target(dir.as_fd(), name, &stat)))
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
        modified_ms: millis(stat.st_mtime, stat.st_mtime_nsec),
        accessed_ms: millis(stat.st_atime, stat.st_atime_nsec),
        changed_ms: millis(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}

/// Seconds may have any value: a sandbox sets them.
fn millis(seconds: i64, nanos: impl TryInto<i64>) -> i64 {
    seconds.saturating_mul(1000).saturating_add(nanos.try_into().unwrap_or_default() / 1_000_000)
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
        // A sandbox may remove it while we look.
        let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        found.push(entry(&name.to_string_lossy(), &stat, target(dir.as_fd(), name, &stat)));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((found, false))
}

/// Opens a regular file. The open does not block: a pipe without a writer would hold us for good.
pub(super) fn read(root: BorrowedFd<'_>, path: &str) -> Result<File> {
    let file = openat2(root, path, LOOK, Mode::empty(), BENEATH)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// Changes the file that was opened and looked at, never a name: a sandbox may put another file in its place at any
/// time.
pub(super) fn change(root: BorrowedFd<'_>, path: &str, change: VolumeChange) -> Result<VolumeFile> {
    let file = openat2(root, path, LOOK, Mode::empty(), BENEATH)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile | FileType::Directory => {}
        _ => return Err(Errno::INVAL),
    }
    if change.uid.is_some() || change.gid.is_some() {
        fchown(&file, change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw))?;
    }
    // After the owner: changing that clears bits.
    if let Some(mode) = change.mode {
        fchmod(&file, Mode::from_raw_mode(mode))?;
    }
    fsync(&file)?;
    Ok(entry(&shown(path), &fstat(&file)?, None))
}

pub(super) fn make_directory(root: BorrowedFd<'_>, path: &str, new: VolumeDirectory) -> Result<VolumeFile> {
    let there = || {
        if !new.parents {
            return Err(Errno::EXIST);
        }
        let known = openat2(root, path, DIRECTORY, Mode::empty(), BENEATH);
        let known = known.map_err(|error| if error == Errno::NOTDIR { Errno::EXIST } else { error })?;
        Ok(entry(&shown(path), &fstat(&known)?, None))
    };
    if path == "." {
        return there();
    }
    if new.parents {
        make_parents(root, path, new.uid, new.gid)?;
    }
    let (dir, name) = parent(root, path)?;
    match mkdirat(&dir, name, Mode::from_raw_mode(0o700)) {
        Err(Errno::EXIST) => return there(),
        other => other?,
    }
    let made = openat2(&dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty(), BENEATH)?;
    fchown(&made, Some(Uid::from_raw(new.uid)), Some(Gid::from_raw(new.gid)))?;
    fchmod(&made, Mode::from_raw_mode(new.mode))?;
    fsync(&dir)?;
    Ok(entry(&shown(path), &fstat(&made)?, None))
}

/// Sees to it that the directory of a volume that is to be mounted by itself is there. A missing one is made like the
/// root of a volume: every user can write to it. No link is followed on the way: a moment later it may lead to another
/// place.
pub(super) fn make_part(root: BorrowedFd<'_>, path: &str, make: bool) -> Result<()> {
    let open = |at: BorrowedFd<'_>, name: &str| openat2(at, name, DIRECTORY, Mode::empty(), STRICT);
    let mut at = open(root, ".")?;
    for name in path.split('/') {
        at = match open(at.as_fd(), name) {
            Err(Errno::NOENT) if make => {
                match mkdirat(&at, name, Mode::from_raw_mode(0o700)) {
                    // A sandbox was faster.
                    Err(Errno::EXIST) => {}
                    made => made.and_then(|()| share(open(at.as_fd(), name)?.as_fd()))?,
                }
                fsync(&at)?;
                open(at.as_fd(), name)?
            }
            opened => opened?,
        };
    }
    Ok(())
}

/// Lets every user write to a directory that was just made; not to anything else that a sandbox may have put in its
/// place.
fn share(made: BorrowedFd<'_>) -> Result<()> {
    let stat = fstat(made)?;
    match (stat.st_uid, stat.st_mode & 0o7777) {
        (0, 0o700) => fchmod(made, Mode::from_raw_mode(0o1777)),
        _ => Ok(()),
    }
}

/// A path as the client that reads it expects it: absolute within the volume.
fn shown(path: &str) -> String {
    if path == "." { "/".to_owned() } else { format!("/{path}") }
}

/// A file that is written beside its place and put there when it is whole. Removed when dropped before.
#[derive(Debug)]
pub(super) struct New {
    dir: OwnedFd,
    name: Vec<u8>,
    temporary: String,
    file: OwnedFd,
    replace: bool,
    finished: bool,
}

impl New {
    pub(super) fn make(root: BorrowedFd<'_>, path: &str, write: VolumeWrite) -> Result<Self> {
        if write.parents {
            make_parents(root, path, write.uid, write.gid)?;
        }
        let (dir, name) = parent(root, path)?;
        // `finish` checks this again when it puts the file there. Checked now, so that the client does not send a
        // content that is refused.
        if !write.replace && statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Errno::EXIST);
        }
        let random = getrandom::u64().or(Err(Errno::IO))?;
        let temporary = format!(".atoll-{random:016x}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(write.mode);
        let file = openat2(&dir, temporary.as_str(), flags, Mode::from_raw_mode(0o600), BENEATH)?;
        let (name, replace) = (name.as_bytes().to_vec(), write.replace);
        let new = Self { dir, name, temporary, file, replace, finished: false };
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
        let flags = if self.replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        renameat_with(&self.dir, self.temporary.as_str(), &self.dir, OsStr::from_bytes(&self.name), flags)?;
        self.finished = true;
        fsync(&self.dir)
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.finished {
            // A sandbox that may write in the directory may have removed the file; then there is nothing to do.
            let _ = unlinkat(&self.dir, self.temporary.as_str(), AtFlags::empty());
        }
    }
}

fn make_parents(root: BorrowedFd<'_>, path: &str, uid: u32, gid: u32) -> Result<()> {
    let mut at = openat2(root, ".", DIRECTORY, Mode::empty(), BENEATH)?;
    let above = Path::new(path).parent().unwrap_or(Path::new(""));
    for part in above.components() {
        match mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => at = openat2(&at, part.as_os_str(), DIRECTORY, Mode::empty(), BENEATH)?,
            Err(error) => return Err(error),
            Ok(()) => {
                let flags = DIRECTORY | OFlags::NOFOLLOW;
                at = openat2(&at, part.as_os_str(), flags, Mode::empty(), BENEATH)?;
                fchown(&at, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const OWN: VolumeDirectory = VolumeDirectory { mode: 0o750, uid: 0, gid: 0, parents: false };

    /// A directory that stands for a volume's root, and one beside it.
    fn root() -> (tempfile::TempDir, OwnedFd) {
        let dir = tempfile::Builder::new().prefix("atoll-volume-files-").tempdir().unwrap();
        for name in ["root", "beside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::set_permissions(dir.path().join("beside"), std::fs::Permissions::from_mode(0o711)).unwrap();
        let root = File::open(dir.path().join("root")).unwrap();
        (dir, root.into())
    }

    #[test]
    fn directories_are_made_where_there_is_nothing() {
        let (_dir, root) = root();
        let root = root.as_fd();
        let made = make_directory(root, "a", OWN).unwrap();
        assert_eq!((made.path.as_str(), made.mode, made.kind), ("/a", 0o750, VolumeFileKind::Directory));
        let wide = VolumeDirectory { mode: 0o777, parents: true, ..OWN };
        assert_eq!(make_directory(root, "a", OWN), Err(Errno::EXIST));
        assert_eq!(make_directory(root, "a", wide).unwrap().mode, 0o750, "what is there stays as it is");
        assert_eq!(make_directory(root, "b/c", OWN), Err(Errno::NOENT));
        assert_eq!(make_directory(root, "b/c", wide).unwrap().mode, 0o777);
        assert_eq!(make_directory(root, ".", OWN), Err(Errno::EXIST));
        assert_eq!(make_directory(root, ".", wide).unwrap().path, "/");
    }

    #[test]
    fn nothing_is_made_or_changed_outside() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        let beside = dir.path().join("beside");
        symlink(&beside, inside.join("absolute")).unwrap();
        symlink("../beside", inside.join("up")).unwrap();
        symlink("loop", inside.join("loop")).unwrap();
        let all = VolumeChange { mode: Some(0o777), ..VolumeChange::default() };
        for path in ["absolute", "up", "loop", "absolute/../beside", "up/x"] {
            assert!(change(root.as_fd(), path, all).is_err(), "{path}");
            for parents in [false, true] {
                let new = VolumeDirectory { parents, ..OWN };
                assert!(make_directory(root.as_fd(), path, new).is_err(), "{path}");
            }
        }
        assert_eq!(std::fs::read_dir(&beside).unwrap().count(), 0);
        assert_eq!(std::fs::metadata(&beside).unwrap().permissions().mode() & 0o777, 0o711);
    }

    #[test]
    fn parts_are_made_for_everybody_and_through_no_link() {
        let (dir, root) = root();
        let (inside, root) = (dir.path().join("root"), root.as_fd());
        let mode = |path: &str| std::fs::metadata(inside.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(make_part(root, "a/b", false), Err(Errno::NOENT));
        make_part(root, "a/b", true).unwrap();
        assert_eq!((mode("a"), mode("a/b")), (0o1777, 0o1777));
        std::fs::set_permissions(inside.join("a/b"), std::fs::Permissions::from_mode(0o750)).unwrap();
        make_part(root, "a/b", true).unwrap();
        assert_eq!(mode("a/b"), 0o750, "what is there stays as it is");
        make_part(root, "a/b", false).unwrap();
        symlink("a", inside.join("link")).unwrap();
        symlink(dir.path().join("beside"), inside.join("out")).unwrap();
        symlink("nothing", inside.join("dangling")).unwrap();
        File::create(inside.join("file")).unwrap();
        for link in ["link", "link/b", "link/new", "out", "out/new", "dangling", "a/../link"] {
            assert!(make_part(root, link, true).is_err(), "{link}");
        }
        assert_eq!(make_part(root, "file", true), Err(Errno::NOTDIR));
        assert_eq!(make_part(root, "file/x", true), Err(Errno::NOTDIR));
        assert_eq!(make_part(root, &"x".repeat(256), true), Err(Errno::NAMETOOLONG));
        assert_eq!(std::fs::read_dir(dir.path().join("beside")).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 5);
    }

    #[test]
    fn only_files_and_directories_change() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        File::create(inside.join("file")).unwrap();
        symlink("file", inside.join("link")).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(inside.join("socket")).unwrap();
        let change = |path, mode| {
            change(root.as_fd(), path, VolumeChange { mode: Some(mode), ..VolumeChange::default() })
        };
        assert_eq!(change("file", 0o4751).unwrap().mode, 0o4751);
        assert_eq!(change("link", 0o600).unwrap().kind, VolumeFileKind::File);
        assert_eq!(change("socket", 0o600), Err(Errno::NXIO));
        assert_eq!(change("none", 0o600), Err(Errno::NOENT));
        drop(socket);
    }

    #[test]
    fn what_is_there_is_replaced_when_that_is_wished() {
        let (dir, root) = root();
        let write = |text: &str, replace: bool| {
            let how = VolumeWrite { mode: 0o600, uid: 0, gid: 0, parents: false, replace };
            let new = New::make(root.as_fd(), "file", how)?;
            std::io::Write::write_all(&mut new.file().unwrap(), text.as_bytes()).unwrap();
            new.finish()
        };
        let text = || std::fs::read_to_string(dir.path().join("root/file")).unwrap();
        // A sandbox is faster than the last bytes.
        let how = VolumeWrite { mode: 0o600, uid: 0, gid: 0, parents: false, replace: false };
        let slow = New::make(root.as_fd(), "file", how).unwrap();
        write("first", false).unwrap();
        assert_eq!((slow.finish(), text().as_str()), (Err(Errno::EXIST), "first"));
        assert_eq!(write("second", false), Err(Errno::EXIST));
        write("third", true).unwrap();
        assert_eq!(text(), "third");
        let left = std::fs::read_dir(dir.path().join("root")).unwrap().count();
        assert_eq!(left, 1, "nothing temporary stays");
    }
}
