//! Files: the small operations, and the parts that all operations share.
//!
//! Symbolic links are followed as any program in the sandbox would: the agent sees the sandbox's root
//! and nothing else. Links to what the agent itself has open are not ([`directory`]), and every operation goes to its files
//! by [`place`]. Only unpacking an archive stays below its directory ([`archive`]).

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use atoll_guest_protocol::PATH_MAX_BYTES;
use atoll_guest_protocol::messages::{
    Chmod, Failure, FileInfo, FileKind, Mkdir, Reason, Remove, Rename, Stat,
};
use atoll_guest_protocol::server::failure;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::blocking::Threads;
use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;
use crate::users::{Database, Identity};

mod archive;
mod attributes;
mod content;
mod directory;
mod finding;
mod listing;
mod moved;
mod pattern;
pub(crate) mod place;
mod walk;

pub(crate) use archive::{pack, unpack};
pub(crate) use attributes::{describe, set_attributes};
pub(crate) use content::{read, write};
pub(crate) use directory::{Directory, Entries, own_path};
pub(crate) use finding::find;
pub(crate) use listing::list;
use place::Place;

/// Permission bits of a directory when the host names none.
const DIRECTORY_MODE: u32 = 0o755;
/// Entries that one request removes, at most.
const REMOVED_MAX_COUNT: u64 = 50_000_000;
/// The permission bits that may be set.
const MODE_BITS: u32 = 0o7777;

/// A path as the host may name it: absolute, bounded, without NUL.
pub(crate) fn checked(path: &str) -> Result<&Path, Failure> {
    if !path.starts_with('/') {
        return Err(invalid("the path is not absolute"));
    }
    if path.len() >= PATH_MAX_BYTES || path.contains('\0') {
        return Err(invalid("the path is malformed"));
    }
    Ok(Path::new(path))
}

/// A name that no file has, for a file that gets its own name when it is complete.
fn spare_name() -> String {
    crate::sys::random().iter().fold(".atoll-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// The owner of a new file or directory; empty is root.
fn owner(user: &str) -> Result<Identity, Failure> {
    Database::read().identity(user)
}

/// Opens a regular file to read, through all links. Never waits for the other end of a FIFO.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    Place::follow(path)?.open_regular()
}

/// Names of owners, read once for a listing.
struct Names {
    users: std::collections::HashMap<u32, String>,
    groups: std::collections::HashMap<u32, String>,
}

impl Names {
    fn read() -> Self {
        let (users, groups) = Database::read().names();
        Self { users, groups }
    }

    /// Tells of an entry of a directory, under the path that is shown for it.
    fn info(&self, shown: &Path, (directory, name): (&Directory, &OsStr), metadata: &Metadata) -> FileInfo {
        let kind = metadata.file_type();
        let target = if kind.is_symlink() {
            directory.read_link(name).map(|target| lossy(target.as_os_str())).unwrap_or_default()
        } else {
            String::new()
        };
        let kind = if kind.is_file() {
            FileKind::File
        } else if kind.is_dir() {
            FileKind::Directory
        } else if kind.is_symlink() {
            FileKind::Symlink
        } else {
            FileKind::Other
        };
        FileInfo {
            path: lossy(shown.as_os_str()),
            kind: kind.into(),
            size: metadata.size(),
            mode: metadata.mode() & MODE_BITS,
            uid: metadata.uid(),
            gid: metadata.gid(),
            modified_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
            target,
            user: self.users.get(&metadata.uid()).cloned().unwrap_or_default(),
            group: self.groups.get(&metadata.gid()).cloned().unwrap_or_default(),
        }
    }
}

/// A name as the protocol carries it. Bytes that are no UTF-8 become `U+FFFD`; such a name can be seen
/// but not asked for.
pub(crate) fn lossy(name: &OsStr) -> String {
    let mut text = String::from_utf8_lossy(name.as_bytes()).into_owned();
    while text.len() > PATH_MAX_BYTES {
        text.pop();
    }
    text
}

/// `stat`.
pub(crate) fn stat(request: &Stat) -> Result<Answer, Stop> {
    let path = checked(&request.path)?;
    let told = |error: io::Error| io_error(&request.path, &error);
    let place = if request.no_follow { Place::of(path) } else { Place::follow(path) }.map_err(told)?;
    let metadata = place.metadata().map_err(told)?;
    Ok(Answer::message(&Names::read().info(path, (place.directory(), place.name()), &metadata)))
}

/// `mkdir`.
pub(crate) fn mkdir(request: &Mkdir) -> Result<Answer, Stop> {
    let path = checked(&request.path)?;
    let owner = owner(&request.user)?;
    let mode = if request.mode == 0 { DIRECTORY_MODE } else { request.mode & MODE_BITS };
    if request.parents {
        make_directories(path, mode, &owner)?;
    } else {
        make_directory(path, mode, &owner).map_err(|error| io_error(&request.path, &error))?;
    }
    Ok(Answer::done(0))
}

/// Makes one directory that was not there.
fn make_directory(path: &Path, mode: u32, owner: &Identity) -> io::Result<()> {
    let place = Place::of(path)?;
    place.make_directory(0o700)?;
    let made = place.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    fchown(&made, Some(owner.uid), Some(owner.gid))?;
    Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?)
}

/// Makes a directory and the missing ones above it. The last gets `mode`, the others the usual bits.
pub(crate) fn make_directories(path: &Path, mode: u32, owner: &Identity) -> Result<(), Failure> {
    let mut place = PathBuf::from("/");
    let mut parts = path.components().skip(1).peekable();
    while let Some(part) = parts.next() {
        place.push(part);
        let mode = if parts.peek().is_none() { mode } else { DIRECTORY_MODE };
        match make_directory(&place, mode, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && place::is_directory(&place) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(failure(Reason::NotADirectory, format!("{}: not a directory", place.display())));
            }
            made => made.map_err(|error| io_error(&place.to_string_lossy(), &error))?,
        }
    }
    Ok(())
}

/// `remove`.
pub(crate) async fn remove(threads: &Threads, request: Remove) -> Result<Answer, Stop> {
    checked(&request.path)?;
    let work = move || {
        let told = |error: io::Error| io_error(&request.path, &error);
        let place = Place::of(Path::new(&request.path)).map_err(told)?;
        let is_directory = place.metadata().map_err(told)?.is_dir();
        match (is_directory, request.recursive) {
            (true, true) => place.remove_tree(REMOVED_MAX_COUNT),
            (true, false) => place.remove_directory(),
            (false, _) => place.remove_file(),
        }
        .map_err(told)
    };
    threads.run(work).await?;
    Ok(Answer::done(0))
}

/// Removes a file, or a directory with everything in it.
fn remove_all(place: &Place) -> io::Result<()> {
    if place.metadata()?.is_dir() { place.remove_tree(REMOVED_MAX_COUNT) } else { place.remove_file() }
}

/// `rename`.
pub(crate) async fn rename(threads: &Threads, request: Rename) -> Result<Answer, Stop> {
    checked(&request.from)?;
    checked(&request.to)?;
    let work = move || {
        let (from, to) = (Path::new(&request.from), Path::new(&request.to));
        let flags = if request.no_replace { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let renamed = || -> io::Result<()> {
            match Place::of(from)?.rename(&Place::of(to)?, flags) {
                Err(Errno::XDEV) => moved::by_copy(from, to, flags),
                renamed => Ok(renamed?),
            }
        };
        renamed().map_err(|error| io_error(&format!("{} to {}", request.from, request.to), &error))
    };
    threads.run(work).await?;
    Ok(Answer::done(0))
}

/// `chmod`.
pub(crate) fn chmod(request: &Chmod) -> Result<Answer, Stop> {
    let path = checked(&request.path)?;
    let told = |error: io::Error| io_error(&request.path, &error);
    let place = Place::follow(path).map_err(told)?;
    if !request.user.is_empty() {
        let new = owner(&request.user)?;
        // Without a group in the request, the file's stays.
        let group = request.user.contains(':').then_some(new.gid);
        place.set_owner(Some(new.uid), group).map_err(told)?;
    }
    if let Some(mode) = request.mode {
        place.set_mode(mode & MODE_BITS).map_err(told)?;
    }
    Ok(Answer::done(0))
}
