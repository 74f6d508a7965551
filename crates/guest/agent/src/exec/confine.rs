//! Limits what an exec of a profile may see of its sandbox and do in it, by means of Landlock
//! (`Documentation/userspace-api/landlock.rst`).
//!
//! Every such exec has a domain of its own. A process in a domain reads no memory, environment or descriptors of a
//! process outside of it, traces none, sends none a signal, and connects to none of their abstract sockets, with any
//! user and any rights. For files Landlock only adds permissions: it knows rights that are allowed below a directory,
//! but no path that is forbidden there. So in each directory on the way to a hidden path the entries are allowed one by
//! one, and entries that appear in those directories later are closed, too.
//!
//! Limits are those of `setrlimit`: they hold for each process and are inherited, and no process inside
//! can raise them.
#![expect(unsafe_code, reason = "Landlock has no safe wrapper")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use atoll_guest_protocol::messages::Confine;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::inject::Stopped;
use crate::sys;

/// Rights over files (`linux/landlock.h`).
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const TRUNCATE: u64 = 1 << 14;
/// Removing (directories, files), making (of seven kinds), and moving to other directories.
const CHANGE_DIRECTORY: u64 = 0b11_1111_1111 << 4;
const CHANGE: u64 = WRITE_FILE | TRUNCATE | CHANGE_DIRECTORY;
/// Reading of directories is left: names can be seen anyway, and nothing works where `/` cannot be listed.
const READ: u64 = EXECUTE | READ_FILE;
/// The rights that a rule for a path that is no directory may have.
const OF_FILES: u64 = READ | WRITE_FILE | TRUNCATE;
/// The kinds of targets that a domain cannot reach outside of itself: abstract sockets and signals (Linux 6.12).
const SCOPES: u64 = 0b11;

/// A rule for a place and what is below it.
const PATH_BENEATH: libc::c_int = 1;
/// How places and directories on the way are opened.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Entries of directories that are opened for one exec.
const ENTRIES_MAX_COUNT: usize = 8192;

/// A `landlock_ruleset_attr`.
#[repr(C)]
struct Attributes {
    fs: u64,
    net: u64,
    scoped: u64,
}

/// The settings of a path, and of the paths below it.
#[derive(Debug, Default)]
struct Node {
    hidden: bool,
    read_only: bool,
    below: BTreeMap<Vec<u8>, Self>,
}

/// A place, and what is allowed at and below it.
type Grant = (CString, u64);

/// A resource of `setrlimit`, and its limit.
pub(super) type Limit = (libc::c_uint, u64);

/// The limits of a profile's processes.
pub(super) fn limits(confine: &Confine) -> Vec<Limit> {
    let all = [
        (libc::RLIMIT_DATA, confine.memory_bytes),
        (libc::RLIMIT_NPROC, confine.processes.into()),
        (libc::RLIMIT_CPU, confine.cpu_seconds.into()),
    ];
    all.into_iter().filter(|(_, limit)| *limit != 0).collect()
}

/// Takes on a limit, unless a lower one is there. Called by the child before it executes its program: bare system calls only.
pub(super) fn take_on((resource, limit): Limit) -> bool {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    let none = ptr::null_mut::<libc::rlimit>();
    // SAFETY: a live structure; the previous limit is not asked for.
    let set = unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, none) };
    set == 0 || sys::last_errno() == Errno::PERM
}

/// Makes the domain of an exec, for its first process to enter.
pub(super) fn ruleset(confine: &Confine) -> Result<OwnedFd, Errno> {
    let (attributes, grants) = plan(confine)?;
    let made = create(&attributes)?;
    for (path, rights) in grants {
        // A path that is gone meanwhile is not allowed, nor an entry that comes in its place later.
        if let Ok(place) = rustix::fs::open(&path, PLACE, Mode::empty()) {
            add(made.as_fd(), rights, place.as_raw_fd())?;
        }
    }
    Ok(made)
}

/// Has a process that stands still enter the domain of another profile, for good.
pub(super) fn enter_in(process: &mut Stopped, confine: &Confine) -> Result<(), Errno> {
    for (resource, limit) in limits(confine) {
        let at = process.place(&[limit, limit].map(u64::to_ne_bytes).concat())?;
        match process.call(libc::SYS_prlimit64, [0, resource.into(), at, 0, 0]) {
            // A lower one is there.
            Ok(_) | Err(Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    let (attributes, grants) = plan(confine)?;
    let set = libc::PR_SET_NO_NEW_PRIVS.cast_unsigned();
    process.call(libc::SYS_prctl, [set.into(), 1, 0, 0, 0])?;
    let at =
        process.place(&[attributes.fs, attributes.net, attributes.scoped].map(u64::to_ne_bytes).concat())?;
    let bytes = size_of::<Attributes>() as u64;
    let ruleset = process.call(libc::SYS_landlock_create_ruleset, [at, bytes, 0, 0, 0])?.cast_unsigned();
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    for (path, rights) in grants {
        let at = process.place(path.as_bytes_with_nul())?;
        let place = match process.call(libc::SYS_openat, [here, at, PLACE.bits().into(), 0, 0]) {
            Ok(place) => place.cast_unsigned(),
            Err(Errno::SRCH) => return Err(Errno::SRCH),
            // Its user cannot reach it, or it is gone.
            Err(_) => continue,
        };
        let mut rule = rights.to_ne_bytes().to_vec();
        rule.extend(&place.to_ne_bytes()[..4]);
        let at = process.place(&rule)?;
        process
            .call(libc::SYS_landlock_add_rule, [ruleset, PATH_BENEATH.cast_unsigned().into(), at, 0, 0])?;
        process.call(libc::SYS_close, [place, 0, 0, 0, 0])?;
    }
    process.call(libc::SYS_landlock_restrict_self, [ruleset, 0, 0, 0, 0])?;
    process.call(libc::SYS_close, [ruleset, 0, 0, 0, 0]).map(drop)
}

/// The parts that a domain is made of.
fn plan(confine: &Confine) -> Result<(Attributes, Vec<Grant>), Errno> {
    let mut root = Node::default();
    for path in &confine.hide {
        mark(&mut root, path, |node| node.hidden = true);
    }
    for path in &confine.read_only {
        mark(&mut root, path, |node| node.read_only = true);
    }
    let handled = match (confine.hide.is_empty(), confine.read_only.is_empty()) {
        (true, true) => 0,
        (true, false) => CHANGE,
        (false, _) => CHANGE | READ,
    };
    let mut grants = Grants { found: Vec::new(), handled, left: ENTRIES_MAX_COUNT };
    if handled != 0 {
        let top = rustix::fs::open(c"/", DIRECTORY, Mode::empty())?;
        grants.below(top, &mut b"/".to_vec(), &root, false)?;
    }
    Ok((Attributes { fs: handled, net: 0, scoped: SCOPES }, grants.found))
}

/// Marks a path as it is written, and where it leads now: a process in the sandbox may have put links there.
fn mark(root: &mut Node, path: &str, what: impl Fn(&mut Node)) {
    let real = std::fs::canonicalize(path).ok();
    for path in
        [Some(path.as_bytes()), real.as_ref().map(|path| path.as_os_str().as_bytes())].into_iter().flatten()
    {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let node = names.fold(&mut *root, |node, name| node.below.entry(name.to_vec()).or_default());
        what(node);
    }
}

struct Grants {
    found: Vec<Grant>,
    handled: u64,
    left: usize,
}

impl Grants {
    /// Allows the entries of a directory, except those that are marked.
    fn below(
        &mut self,
        directory: OwnedFd,
        path: &mut Vec<u8>,
        node: &Node,
        read_only: bool,
    ) -> Result<(), Errno> {
        let read_only = read_only || node.read_only;
        let none = Node::default();
        let length = path.len();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let of_it = node.below.get(name).unwrap_or(&none);
            if matches!(name, b"." | b"..") || of_it.hidden {
                continue;
            }
            self.left = self.left.checked_sub(1).ok_or(Errno::NOSPC)?;
            // An entry that is gone meanwhile is not allowed, nor one that comes in its place later.
            let Ok(opened) = rustix::fs::openat(&directory, entry.file_name(), PLACE, Mode::empty()) else {
                continue;
            };
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
            path.extend(name);
            match kind {
                FileType::Directory if !of_it.below.is_empty() => {
                    let inner = rustix::fs::openat(&directory, entry.file_name(), DIRECTORY, Mode::empty())?;
                    path.push(b'/');
                    self.below(inner, path, of_it, read_only)?;
                }
                // The target of a link is decided at the place where it lies.
                FileType::Symlink => {}
                kind => self.allow(path, kind, read_only || of_it.read_only)?,
            }
            path.truncate(length);
        }
        Ok(())
    }

    fn allow(&mut self, path: &[u8], kind: FileType, read_only: bool) -> Result<(), Errno> {
        let rights = if read_only { READ } else { READ | CHANGE };
        let of_kind = if kind == FileType::Directory { u64::MAX } else { OF_FILES };
        let rights = rights & self.handled & of_kind;
        if rights != 0 {
            self.found.push((CString::new(path).or(Err(Errno::INVAL))?, rights));
        }
        Ok(())
    }
}

fn create(attributes: &Attributes) -> Result<OwnedFd, Errno> {
    let bytes = size_of::<Attributes>();
    // SAFETY: a live structure with its size; the answer is a new descriptor, or an error.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const *attributes, bytes, 0) };
    match RawFd::try_from(made) {
        // SAFETY: the kernel just gave it to this process, and no other value owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(sys::last_errno()),
    }
}

fn add(ruleset: BorrowedFd<'_>, rights: u64, place: RawFd) -> Result<(), Errno> {
    /// A `landlock_path_beneath_attr`.
    #[repr(C, packed)]
    struct Beneath {
        rights: u64,
        place: i32,
    }
    let rule = Beneath { rights, place };
    // SAFETY: a live structure of the kind that is named.
    let added = unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
    };
    if added == 0 { Ok(()) } else { Err(sys::last_errno()) }
}

/// Enters a domain, for good. Called by the child before it executes its program: bare system calls only.
pub(super) fn enter(ruleset: RawFd) -> bool {
    // SAFETY: no pointers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: no pointers.
    set && unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_marked_where_it_is_written_and_where_it_leads() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("real")).unwrap();
        std::os::unix::fs::symlink("real", real.join("link")).unwrap();
        let mut root = Node::default();
        mark(&mut root, real.join("link").to_str().unwrap(), |node| node.hidden = true);
        let names = real.to_str().unwrap().split('/').skip(1).map(|name| name.as_bytes().to_vec());
        let node = names.fold(&root, |node, name| &node.below[&name]);
        assert!(node.below[b"link".as_slice()].hidden && node.below[b"real".as_slice()].hidden);
        assert!(!node.hidden);
    }
}
