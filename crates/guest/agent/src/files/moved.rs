//! Renaming what the kernel does not rename: a directory of an overlay's lower layer (of the image), and anything that
//! is moved to another file system. It is done as `mv` does it: the copy appears under its name at once, then the
//! original goes.

use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, fgetxattr, flistxattr, fsetxattr};

use super::place::Place;

/// Entries that are copied at most.
const COPIED_MAX_COUNT: u64 = 5_000_000;
/// Bytes of all names, and of one value, of extended attributes: the kernel's own limit.
const ATTRIBUTES_MAX_BYTES: usize = 64 << 10;

/// Moves `from` to `to` by a copy. Nothing has changed when it fails before the original is being removed.
pub(super) fn by_copy(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    if to.starts_with(from) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let metadata = Place::of(from)?.metadata()?;
    check_not_mounted(&Place::of(from)?, &metadata)?;
    let (place, beside) = (Place::of(to)?, beside(to)?);
    let copied = copy(from, &beside, &metadata)
        .and_then(|()| Place::of(&beside)?.rename(&place, flags).map_err(io::Error::from));
    if let Err(error) = copied {
        // The first error is the one to report.
        drop(Place::of(&beside).and_then(|beside| super::remove_all(&beside)));
        return Err(error);
    }
    super::remove_all(&Place::of(from)?)
}

/// A name that nothing has, in the directory of `to`.
fn beside(to: &Path) -> io::Result<PathBuf> {
    let above = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(above.join(super::spare_name()))
}

/// A file system that is mounted here does not move: its content would.
fn check_not_mounted(place: &Place, metadata: &Metadata) -> io::Result<()> {
    if metadata.is_dir() && metadata.dev() != place.directory().device()? {
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
        Place::of(&to)?.make_directory(0o700)?;
        let entries = super::Directory::open(&from)?.entries()?;
        let left = entries.map(|entry| Ok(entry?.0)).collect::<io::Result<_>>()?;
        Ok(Self { from, to, metadata, left })
    }
}

fn copy(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    let mut links = HashMap::new();
    if !metadata.is_dir() {
        return copy_one(&Place::of(from)?, to, metadata, &mut links);
    }
    let mut count = 0_u64;
    let mut stack = vec![Level::enter(from.to_owned(), to.to_owned(), metadata.clone())?];
    while let Some(level) = stack.last_mut() {
        let Some(name) = level.left.pop() else {
            if let Some(done) = stack.pop() {
                describe(&Place::of(&done.from)?, &Place::of(&done.to)?, &done.metadata)?;
            }
            continue;
        };
        count += 1;
        if count > COPIED_MAX_COUNT {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let (from, to) = (level.from.join(&name), level.to.join(&name));
        let place = Place::of(&from)?;
        let metadata = place.metadata()?;
        if metadata.is_dir() {
            check_not_mounted(&place, &metadata)?;
            stack.push(Level::enter(from, to, metadata)?);
        } else {
            copy_one(&place, &to, &metadata, &mut links)?;
        }
    }
    Ok(())
}

/// Copies a file that is no directory. `links` are files with several names, by device and inode.
fn copy_one(
    from: &Place,
    to: &Path,
    metadata: &Metadata,
    links: &mut HashMap<(u64, u64), PathBuf>,
) -> io::Result<()> {
    let kind = metadata.file_type();
    let place = Place::of(to)?;
    if kind.is_symlink() {
        place.make_link(&from.read_link()?)?;
        place.set_owner(Some(metadata.uid()), Some(metadata.gid()))?;
        return place.set_times(&times(metadata));
    }
    if kind.is_file() && metadata.nlink() > 1 {
        if let Some(first) = links.get(&(metadata.dev(), metadata.ino())) {
            return Place::of(first)?.link_to(&place);
        }
        links.insert((metadata.dev(), metadata.ino()), to.to_owned());
    }
    if kind.is_file() {
        let mut source = from.open_regular()?;
        let mut copied = place.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o666)?;
        io::copy(&mut source, &mut copied)?;
    } else if kind.is_fifo() {
        place.make_fifo(0o600)?;
    } else {
        // Sockets are left out: a socket without its program is worth nothing. So are devices: they
        // cannot be made here.
        return Ok(());
    }
    describe(from, &place, metadata)
}

/// Owner, extended attributes, permissions and times, in the order in which none takes away another.
fn describe(from: &Place, to: &Place, metadata: &Metadata) -> io::Result<()> {
    to.set_owner(Some(metadata.uid()), Some(metadata.gid()))?;
    if metadata.is_file() || metadata.is_dir() {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        copy_attributes(&from.open(flags, 0)?, &to.open(flags, 0)?)?;
    }
    to.set_mode(metadata.mode() & super::MODE_BITS)?;
    to.set_times(&times(metadata))
}

/// The times of a file, also of a link itself.
fn times(metadata: &Metadata) -> Timestamps {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// Copies the extended attributes that may be set here; a file system without attributes has none.
fn copy_attributes(from: &File, to: &File) -> io::Result<()> {
    let mut names = vec![0_u8; ATTRIBUTES_MAX_BYTES];
    let Ok(len) = flistxattr(from, &mut names) else { return Ok(()) };
    let mut value = vec![0_u8; ATTRIBUTES_MAX_BYTES];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = CString::new(name)?;
        if let Ok(len) = fgetxattr(from, &name, &mut value) {
            let _refused = fsetxattr(to, &name, &value[..len], XattrFlags::empty());
        }
    }
    Ok(())
}
