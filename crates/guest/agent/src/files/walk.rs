//! `openat2` of a directory, for a kernel that has no such call (gVisor): the path is walked name by name, and every
//! symbolic link is read and followed here. Always with `RESOLVE_NO_MAGICLINKS`: the text of such a link is no path.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::directory::is_in_proc;

/// Symbolic links on the way, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// Opens the directory that an absolute path leads to, as a path.
pub(super) fn open_from_top(path: &Path) -> Result<OwnedFd, Errno> {
    let mut way: VecDeque<OsString> = VecDeque::new();
    let mut here = open_top()?;
    let mut links = 0;
    put_before(path, &mut way);
    while let Some(name) = way.pop_front() {
        // `..` is what the kernel says it is, and at the top the top itself.
        let next = open(&here, &name)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            FileType::Directory => here = next,
            FileType::Symlink => {
                let target = follow(&here, &name, &mut links)?;
                if put_before(Path::new(&target), &mut way) {
                    here = open_top()?;
                }
            }
            _ => return Err(Errno::NOTDIR),
        }
    }
    Ok(here)
}

fn open_top() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Puts the names of a path in front of the names that are still to be followed; says whether it begins at the top.
fn put_before(path: &Path, way: &mut VecDeque<OsString>) -> bool {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => way.push_front(name.to_owned()),
            Component::ParentDir => way.push_front(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path.has_root()
}

/// The text of a link that may be followed.
fn follow(here: &OwnedFd, name: &OsStr, links: &mut usize) -> Result<OsString, Errno> {
    *links += 1;
    // Below the top of a `/proc`, links are magic.
    if *links > LINKS_MAX || (is_in_proc(here)? && is_in_proc(open(here, OsStr::new(".."))?)?) {
        return Err(Errno::LOOP);
    }
    let target = rustix::fs::readlinkat(here, name, Vec::new())?;
    Ok(OsStr::from_bytes(target.as_bytes()).to_owned())
}

/// Opens the directory at `path` below `root`, as a path. A path that leads above `root` is refused with `EXDEV`; when
/// `root` is taken for `/` (`in_root`), it ends at `root`.
pub(super) fn open_directory(root: &OwnedFd, path: &Path, in_root: bool) -> Result<OwnedFd, Errno> {
    let mut way: VecDeque<OsString> = VecDeque::new();
    // From below `root` to where we are. Descriptors, so that nothing that is moved meanwhile leads astray.
    let mut stack: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    take(path, &mut way, &mut stack, in_root)?;
    while let Some(name) = way.pop_front() {
        if name == ".." {
            if stack.pop().is_none() && !in_root {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let here = stack.last().unwrap_or(root);
        let next = open(here, &name)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            FileType::Directory => stack.push(next),
            FileType::Symlink => {
                let target = follow(here, &name, &mut links)?;
                take(Path::new(&target), &mut way, &mut stack, in_root)?;
            }
            _ => return Err(Errno::NOTDIR),
        }
    }
    match stack.pop() {
        Some(last) => Ok(last),
        None => open(root, OsStr::new(".")),
    }
}

/// Puts the names of a path in front of the names that are still to be followed.
fn take(
    path: &Path,
    way: &mut VecDeque<OsString>,
    stack: &mut Vec<OwnedFd>,
    in_root: bool,
) -> Result<(), Errno> {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => way.push_front(name.to_owned()),
            Component::ParentDir => way.push_front(OsString::from("..")),
            Component::CurDir | Component::Prefix(_) => {}
            Component::RootDir if in_root => stack.clear(),
            Component::RootDir => return Err(Errno::XDEV),
        }
    }
    Ok(())
}

fn open<Fd: AsFd>(at: Fd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The kernel's own call is the judge.
    #[test]
    fn leads_where_the_kernel_would() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().join("base");
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::fs::create_dir(place.path().join("outside")).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        for (target, name) in [
            ("b", "a/near"),
            ("../a/b", "a/around"),
            ("..", "up"),
            ("../..", "a/out"),
            ("../outside", "sideways"),
            ("/a", "absolute"),
            ("/etc", "etc"),
            ("loop", "loop"),
            ("a/near/../near", "long"),
            ("nothing", "broken"),
        ] {
            symlink(target, base.join(name)).unwrap();
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&base, flags, Mode::empty()).unwrap();
        let id = |opened: Result<OwnedFd, Errno>| {
            opened.map(|fd| rustix::fs::fstat(&fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap())
        };
        for in_root in [false, true] {
            let resolve =
                if in_root { rustix::fs::ResolveFlags::IN_ROOT } else { rustix::fs::ResolveFlags::BENEATH };
            for path in [
                ".",
                "a",
                "a/b",
                "a/b/..",
                "a/b/../..",
                "a/near",
                "a/around",
                "up",
                "a/out",
                "sideways",
                "absolute",
                "etc",
                "loop",
                "long",
                "long/../..",
                "broken",
                "file",
                "file/x",
                "none",
                "..",
                "a/../..",
                "/a",
                "/",
            ] {
                let path = Path::new(path);
                let kernel = id(rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve));
                assert_eq!(id(open_directory(&root, path, in_root)), kernel, "{} {in_root}", path.display());
            }
        }
    }

    #[test]
    fn magic_links_lead_nowhere() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = rustix::fs::ResolveFlags::NO_MAGICLINKS;
        let id = |opened: Result<OwnedFd, Errno>| {
            opened.map(|fd| rustix::fs::fstat(&fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap())
        };
        let place = tempfile::tempdir().unwrap();
        symlink("/proc/self/root", place.path().join("root")).unwrap();
        symlink("/proc/self/../net", place.path().join("net")).unwrap();
        let below = |name: &str| place.path().join(name);
        for path in
            [below("root"), below("root/etc"), below("net"), below("net/.."), below("none"), below(".")]
        {
            let kernel = id(rustix::fs::openat2(rustix::fs::CWD, &path, flags, Mode::empty(), resolve));
            assert_eq!(id(open_from_top(&path)), kernel, "{}", path.display());
        }
        for path in [
            "/",
            "/..",
            "/proc",
            "/proc/self",
            "/proc/self/..",
            "/proc/net",
            "/proc/self/net/..",
            "/proc/self/fd",
            "/proc/self/root",
            "/proc/self/cwd/etc",
            "/proc/thread-self/cwd",
            "/proc/self/ns/net",
            "/proc/version",
            "/etc/../tmp/",
        ] {
            let path = Path::new(path);
            let kernel = id(rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve));
            assert_eq!(id(open_from_top(path)), kernel, "{}", path.display());
        }
        // Where the path may not lead out either.
        let top = rustix::fs::open("/", flags, Mode::empty()).unwrap();
        let magic = open_directory(&top, Path::new("proc/self/cwd"), true);
        assert_eq!(magic.err(), Some(Errno::LOOP));
    }
}
