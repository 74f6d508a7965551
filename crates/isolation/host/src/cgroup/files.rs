//! Files and directories of cgroups, always below a directory that is open: a path that a sandbox makes below its own
//! cgroup never leads out of it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Most bytes read from a cgroup file that holds a few numbers.
const SMALL_FILE_MAX_BYTES: usize = 4096;

pub(super) fn make_dir(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(root, path, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

pub(crate) fn open_dir(root: BorrowedFd<'_>, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, path, flags, Mode::empty())
}

pub(super) fn open_file(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

pub(crate) fn write(dir: BorrowedFd<'_>, name: &str, value: &str) -> rustix::io::Result<()> {
    let file = open_file(dir, name, OFlags::WRONLY)?;
    // Lowering a memory limit reclaims, which a signal interrupts.
    rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes())).map(drop)
}

pub(crate) fn read(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<String> {
    let file = open_file(dir, name, OFlags::RDONLY)?;
    let mut buffer = [0; SMALL_FILE_MAX_BYTES];
    let count = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))?;
    Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
}

pub(super) fn number(dir: BorrowedFd<'_>, name: &str) -> io::Result<u64> {
    let text = read(dir, name)?;
    text.trim().parse().map_err(|error| io::Error::other(format!("{name} holds no number: {error}")))
}

/// The value of `key` in a file of lines `key value`.
pub(crate) fn field(dir: BorrowedFd<'_>, name: &str, key: &str) -> io::Result<u64> {
    let text = read(dir, name)?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
        .ok_or_else(|| io::Error::other(format!("{name} has no {key}")))
}

/// Links of a cgroup's directory that has no cgroup below it: its name and `.`. The kernel counts one more for each.
const LINKS_MIN_COUNT: u64 = 2;

/// Names as bytes: a name that a sandbox chooses need not be text. A cgroup with none below, as most are, is not listed:
/// the kernel would tell of all its files, of which there are some sixty.
pub(crate) fn subdirectories(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    if rustix::fs::fstat(dir)?.st_nlink == LINKS_MIN_COUNT {
        return Ok(names);
    }
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_type() == FileType::Directory {
            let name = entry.file_name();
            if name != c"." && name != c".." {
                names.push(name.to_owned());
            }
        }
    }
    Ok(names)
}

pub(crate) fn collect_pids(
    dir: BorrowedFd<'_>,
    depth: u32,
    pids: &mut BTreeSet<i32>,
) -> rustix::io::Result<()> {
    use std::io::Read;
    let mut text = String::new();
    let file = open_file(dir, "cgroup.procs", OFlags::RDONLY)?;
    match std::fs::File::from(file).read_to_string(&mut text) {
        Ok(_) => {}
        // Removed in between; or a threaded cgroup, whose processes show in the one above.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EOPNOTSUPP)) => {}
        Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    if depth == 0 {
        return Ok(());
    }
    for name in subdirectories(dir)? {
        match open_dir(dir, name.as_c_str()) {
            Ok(below) => collect_pids(below.as_fd(), depth - 1, pids)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn remove_tree(root: BorrowedFd<'_>, path: impl Arg + Copy, depth: u32) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR) {
        // Something is below, or a process is still in it.
        Err(Errno::BUSY | Errno::NOTEMPTY) if depth > 0 => {}
        other => return other,
    }
    let dir = open_dir(root, path)?;
    for name in subdirectories(dir.as_fd())? {
        remove_tree(dir.as_fd(), name.as_c_str(), depth - 1)?;
    }
    rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR)
}
