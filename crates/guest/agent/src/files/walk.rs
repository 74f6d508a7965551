//! `openat2(RESOLVE_BENEATH)` or `openat2(RESOLVE_IN_ROOT)` of a directory, for a kernel that has no such call (gVisor):
//! the path is walked name by name, and every symbolic link is read and followed here.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Symbolic links on the way, as many as the kernel follows.
const LINKS_MAX: usize = 40;

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
        match rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            rustix::fs::FileType::Directory => stack.push(next),
            rustix::fs::FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = rustix::fs::readlinkat(here, &name, Vec::new())?;
                let target = OsStr::from_bytes(target.as_bytes()).to_owned();
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

fn open(at: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
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
}
