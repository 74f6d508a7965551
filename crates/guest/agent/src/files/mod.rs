//! Files: the small operations, and the parts that all operations share.
//!
//! Symbolic links are followed as any program in the sandbox would: the agent sees the sandbox's root
//! and nothing else. Only unpacking an archive stays below its directory ([`archive`]).

use std::ffi::{CString, OsStr};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use atoll_guest_protocol::PATH_MAX_BYTES;
use atoll_guest_protocol::messages::{
    Chmod, Failure, FileInfo, FileKind, Mkdir, Reason, Remove, Rename, Stat,
};
use atoll_guest_protocol::server::failure;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::blocking::Threads;
use crate::failing::{Stop, invalid, io_error};
use crate::operations::Answer;
use crate::users::{Database, Identity};

mod archive;
mod attributes;
mod content;
mod finding;
mod listing;
mod moved;
mod pattern;
mod walk;

pub(crate) use archive::{pack, unpack};
pub(crate) use attributes::{describe, set_attributes};
pub(crate) use content::{read, write};
pub(crate) use finding::find;
pub(crate) use listing::list;

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

/// Opens a regular file to read. Never waits for the other end of a FIFO.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    if !kind.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(file)
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

    fn info(&self, shown: &Path, place: &Path, metadata: &Metadata) -> FileInfo {
        let kind = metadata.file_type();
        let target = if kind.is_symlink() {
            std::fs::read_link(place).map(|target| lossy(target.as_os_str())).unwrap_or_default()
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
    let metadata = if request.no_follow { path.symlink_metadata() } else { path.metadata() };
    let metadata = metadata.map_err(|error| io_error(&request.path, &error))?;
    Ok(Answer::message(&Names::read().info(path, path, &metadata)))
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
    DirBuilder::new().mode(0o700).create(path)?;
    std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Makes a directory and the missing ones above it. The last gets `mode`, the others the usual bits.
pub(crate) fn make_directories(path: &Path, mode: u32, owner: &Identity) -> Result<(), Failure> {
    let mut place = PathBuf::from("/");
    let mut parts = path.components().skip(1).peekable();
    while let Some(part) = parts.next() {
        place.push(part);
        let mode = if parts.peek().is_none() { mode } else { DIRECTORY_MODE };
        match make_directory(&place, mode, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && place.is_dir() => {}
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
        let path = Path::new(&request.path);
        let told = |error: io::Error| io_error(&request.path, &error);
        let is_directory = path.symlink_metadata().map_err(told)?.is_dir();
        match (is_directory, request.recursive) {
            (true, true) => remove_tree(path),
            (true, false) => std::fs::remove_dir(path),
            (false, _) => std::fs::remove_file(path),
        }
        .map_err(told)
    };
    threads.run(work).await?;
    Ok(Answer::done(0))
}

/// Removes a file, or a directory with everything in it.
fn remove_all(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() { remove_tree(path) } else { std::fs::remove_file(path) }
}

/// Removes a directory with everything in it, however deep that is.
fn remove_tree(path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::Error::from_raw_os_error(libc::EBUSY))?;
    let name = CString::new(name.as_bytes())?;
    let above = File::open(path.parent().unwrap_or(Path::new("/")))?;
    atoll_tree::remove(above.as_fd(), &name, REMOVED_MAX_COUNT)
}

/// `rename`.
pub(crate) async fn rename(threads: &Threads, request: Rename) -> Result<Answer, Stop> {
    checked(&request.from)?;
    checked(&request.to)?;
    let work = move || {
        let (from, to) = (Path::new(&request.from), Path::new(&request.to));
        let flags = if request.no_replace { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let renamed = match rustix::fs::renameat_with(CWD, from, CWD, to, flags) {
            Err(Errno::XDEV) => moved::by_copy(from, to, flags),
            renamed => renamed.map_err(io::Error::from),
        };
        renamed.map_err(|error| io_error(&format!("{} to {}", request.from, request.to), &error))
    };
    threads.run(work).await?;
    Ok(Answer::done(0))
}

/// `chmod`.
pub(crate) fn chmod(request: &Chmod) -> Result<Answer, Stop> {
    let path = checked(&request.path)?;
    let told = |error: io::Error| io_error(&request.path, &error);
    if !request.user.is_empty() {
        let new = owner(&request.user)?;
        // Without a group in the request, the file's stays.
        let group = request.user.contains(':').then_some(new.gid);
        std::os::unix::fs::chown(path, Some(new.uid), group).map_err(told)?;
    }
    if let Some(mode) = request.mode {
        let bits = std::fs::Permissions::from_mode(mode & MODE_BITS);
        std::fs::set_permissions(path, bits).map_err(told)?;
    }
    Ok(Answer::done(0))
}
