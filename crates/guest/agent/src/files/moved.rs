//! Renaming what the kernel does not rename: a directory of an overlay's lower layer (of the image), and anything that
//! is moved to another file system. It is done as `mv` does it: the copy appears under its name at once, then the
//! original goes.

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};

/// Entries that are copied at most.
const COPIED_MAX_COUNT: u64 = 5_000_000;
/// Bytes of all names, and of one value, of extended attributes: the kernel's own limit.
const ATTRIBUTES_MAX_BYTES: usize = 64 << 10;

/// Moves `from` to `to` by a copy. Nothing has changed when it fails before the original is being removed.
pub(super) fn by_copy(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    if to.starts_with(from) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let metadata = from.symlink_metadata()?;
    check_not_mounted(from, &metadata)?;
    let beside = beside(to)?;
    let copied = copy(from, &beside, &metadata)
        .and_then(|()| rustix::fs::renameat_with(CWD, &beside, CWD, to, flags).map_err(io::Error::from));
    if let Err(error) = copied {
        // The first error is the one to report.
        drop(super::remove_all(&beside));
        return Err(error);
    }
    super::remove_all(from)
}

/// A name that nothing has, in the directory of `to`.
fn beside(to: &Path) -> io::Result<PathBuf> {
    let above = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(above.join(super::spare_name()))
}

/// A file system that is mounted here does not move: its content would.
fn check_not_mounted(place: &Path, metadata: &Metadata) -> io::Result<()> {
    let above = place.parent().ok_or(io::ErrorKind::InvalidInput)?.metadata()?;
    if metadata.is_dir() && metadata.dev() != above.dev() {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Ok(())
}

/// A directory that is being copied.
struct Level {
    from: PathBuf,
    to: PathBuf,
    metadata: Metadata,
    left: Vec<OsString>,
}

impl Level {
    /// Makes the copy of a directory, empty and closed to other users.
    fn enter(from: PathBuf, to: PathBuf, metadata: Metadata) -> io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(&to)?;
        let left =
            std::fs::read_dir(&from)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        Ok(Self { from, to, metadata, left })
    }
}

fn copy(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    let mut links = HashMap::new();
    if !metadata.is_dir() {
        return copy_one(from, to, metadata, &mut links);
    }
    let mut count = 0_u64;
    let mut stack = vec![Level::enter(from.to_owned(), to.to_owned(), metadata.clone())?];
    while let Some(level) = stack.last_mut() {
        let Some(name) = level.left.pop() else {
            if let Some(done) = stack.pop() {
                describe(&done.from, &done.to, &done.metadata)?;
            }
            continue;
        };
        count += 1;
        if count > COPIED_MAX_COUNT {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let (from, to) = (level.from.join(&name), level.to.join(&name));
        let metadata = from.symlink_metadata()?;
        if metadata.is_dir() {
            check_not_mounted(&from, &metadata)?;
            stack.push(Level::enter(from, to, metadata)?);
        } else {
            copy_one(&from, &to, &metadata, &mut links)?;
        }
    }
    Ok(())
}

/// Copies a file that is no directory. `links` are files with several names, by device and inode.
fn copy_one(
    from: &Path,
    to: &Path,
    metadata: &Metadata,
    links: &mut HashMap<(u64, u64), PathBuf>,
) -> io::Result<()> {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        symlink(std::fs::read_link(from)?, to)?;
        lchown(to, Some(metadata.uid()), Some(metadata.gid()))?;
        return keep_times(to, metadata);
    }
    if kind.is_file() && metadata.nlink() > 1 {
        if let Some(first) = links.get(&(metadata.dev(), metadata.ino())) {
            return std::fs::hard_link(first, to);
        }
        links.insert((metadata.dev(), metadata.ino()), to.to_owned());
    }
    if kind.is_file() {
        let mut source = super::open_regular(from)?;
        io::copy(&mut source, &mut std::fs::OpenOptions::new().write(true).create_new(true).open(to)?)?;
    } else if kind.is_fifo() {
        rustix::fs::mkfifoat(CWD, to, Mode::from_raw_mode(0o600))?;
    } else {
        // Sockets are left out: a socket without its program is worth nothing. So are devices: they
        // cannot be made here.
        return Ok(());
    }
    describe(from, to, metadata)
}

/// Owner, extended attributes, permissions and times, in the order in which none takes away another.
fn describe(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    lchown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    copy_attributes(from, to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(metadata.mode() & super::MODE_BITS))?;
    keep_times(to, metadata)
}

/// Copies the times of a file, also of a link itself.
fn keep_times(to: &Path, metadata: &Metadata) -> io::Result<()> {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Copies the extended attributes that may be set here; a file system without attributes has none.
fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    let mut names = vec![0_u8; ATTRIBUTES_MAX_BYTES];
    let Ok(len) = rustix::fs::llistxattr(from, &mut names) else { return Ok(()) };
    let mut value = vec![0_u8; ATTRIBUTES_MAX_BYTES];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = CString::new(OsStr::from_bytes(name).as_bytes())?;
        if let Ok(len) = rustix::fs::lgetxattr(from, &name, &mut value) {
            let _refused = rustix::fs::lsetxattr(to, &name, &value[..len], XattrFlags::empty());
        }
    }
    Ok(())
}
