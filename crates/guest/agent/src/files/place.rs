//! Places that clients name: an entry of a directory, whether it exists or not.
//!
//! All operations on paths of clients go through here. The directory is opened once, by [`Directory`], and the call names the
//! entry in it and follows no link: so no link that is put there meanwhile leads anywhere.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid};
use rustix::io::Errno;

use super::directory::{Directory, own_path, refuse_cgroup};

/// Symbolic links followed to an entry, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    directory: Arc<Directory>,
    name: OsString,
}

/// The path behind all links that end this one. It may be of something that is not there.
pub(crate) fn real(path: &Path) -> io::Result<PathBuf> {
    match behind(path)? {
        Behind::Place(path, _) | Behind::Nothing(path) => Ok(path),
    }
}

/// Facts about what a path leads to, through all links.
pub(crate) fn stat(path: &Path) -> io::Result<Metadata> {
    Place::follow(path)?.metadata()
}

/// Whether a path leads to a directory.
pub(crate) fn is_directory(path: &Path) -> bool {
    stat(path).is_ok_and(|metadata| metadata.is_dir())
}

/// The path without links, `.` and `..`, of what is there. A path that leads through a magic link is refused.
pub(crate) fn canonical(path: &Path) -> io::Result<PathBuf> {
    Place::follow(path)?.metadata()?;
    // It only reads links: what it gives is text, to be shown or opened here.
    path.canonicalize()
}

/// What a path leads to.
enum Behind {
    /// An entry that is no link, with its path.
    Place(PathBuf, Place),
    /// The directory is missing in which a path lies.
    Nothing(PathBuf),
}

fn behind(path: &Path) -> io::Result<Behind> {
    let mut path = path.to_path_buf();
    for _ in 0..=LINKS_MAX {
        let place = match Place::of(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Behind::Nothing(path)),
            place => place?,
        };
        match place.directory.followed(&place.name)? {
            Some(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            None => return Ok(Behind::Place(path, place)),
        }
    }
    Err(Errno::LOOP.into())
}

impl Place {
    /// The entry that an absolute path names; a link itself, when it is one.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let (directory, name) = match path.file_name() {
            Some(name) => (path.parent().unwrap_or(Path::new("/")), name),
            None => (path, OsStr::new(".")),
        };
        Ok(Self { directory: Arc::new(Directory::open(directory)?), name: name.to_owned() })
    }

    /// The entry that an absolute path leads to, through all links.
    pub(crate) fn follow(path: &Path) -> io::Result<Self> {
        let place = match behind(path)? {
            Behind::Place(_, place) => place,
            Behind::Nothing(_) => return Err(Errno::NOENT.into()),
        };
        if path.as_os_str().as_bytes().ends_with(b"/") && place.metadata().is_ok_and(|found| !found.is_dir())
        {
            return Err(Errno::NOTDIR.into());
        }
        Ok(place)
    }

    /// An entry of the same directory.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Self { directory: Arc::clone(&self.directory), name: OsString::from(name) }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Facts about the entry; of a link itself.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.directory.metadata(&self.name)
    }

    /// Opens it, unless it is a link.
    pub(crate) fn open(&self, flags: OFlags, mode: u32) -> io::Result<File> {
        self.directory.open_file(&self.name, flags, mode)
    }

    /// Opens it to read, when it is a regular file.
    pub(crate) fn open_regular(&self) -> io::Result<File> {
        self.directory.open_regular(&self.name)
    }

    /// Opens it as a path, to be watched. A link is one itself.
    pub(crate) fn open_path(&self) -> io::Result<OwnedFd> {
        self.directory.check_shown(&self.name)?;
        Ok(self.directory.path_of(&self.name)?)
    }

    pub(crate) fn read_link(&self) -> io::Result<PathBuf> {
        self.directory.read_link(&self.name)
    }

    /// The entry as a path that is open, for a call that changes something about it.
    fn opened(&self) -> io::Result<OwnedFd> {
        self.directory.check_change()?;
        let opened = self.directory.path_of(&self.name)?;
        refuse_cgroup(&opened)?;
        Ok(opened)
    }

    pub(crate) fn make_directory(&self, mode: u32) -> io::Result<()> {
        self.directory.check_change()?;
        Ok(rustix::fs::mkdirat(self.directory.fd(), &self.name, Mode::from_raw_mode(mode))?)
    }

    pub(crate) fn make_link(&self, target: &Path) -> io::Result<()> {
        self.directory.check_change()?;
        Ok(rustix::fs::symlinkat(target, self.directory.fd(), &self.name)?)
    }

    pub(crate) fn make_fifo(&self, mode: u32) -> io::Result<()> {
        self.directory.check_change()?;
        Ok(rustix::fs::mkfifoat(self.directory.fd(), &self.name, Mode::from_raw_mode(mode))?)
    }

    /// Gives it a second name.
    pub(crate) fn link_to(&self, other: &Self) -> io::Result<()> {
        other.directory.check_change()?;
        let (from, to) = (self.directory.fd(), other.directory.fd());
        Ok(rustix::fs::linkat(from, &self.name, to, &other.name, AtFlags::empty())?)
    }

    pub(crate) fn rename(&self, to: &Self, flags: RenameFlags) -> Result<(), Errno> {
        for directory in [&self.directory, &to.directory] {
            directory.check_change().or(Err(Errno::PERM))?;
        }
        rustix::fs::renameat_with(self.directory.fd(), &self.name, to.directory.fd(), &to.name, flags)
    }

    pub(crate) fn remove_file(&self) -> io::Result<()> {
        self.remove(AtFlags::empty())
    }

    pub(crate) fn remove_directory(&self) -> io::Result<()> {
        self.remove(AtFlags::REMOVEDIR)
    }

    fn remove(&self, flags: AtFlags) -> io::Result<()> {
        self.directory.check_change()?;
        Ok(rustix::fs::unlinkat(self.directory.fd(), self.removable()?, flags)?)
    }

    /// Removes a directory with everything in it, however deep that is.
    pub(crate) fn remove_tree(&self, entries_max: u64) -> io::Result<()> {
        self.directory.check_change()?;
        let name = CString::new(self.removable()?.as_bytes())?;
        atoll_tree::remove(self.directory.fd(), &name, entries_max)
    }

    /// The name, unless it stands for the directory itself: that is `/`, or was named by `..`.
    fn removable(&self) -> io::Result<&OsStr> {
        if self.name == "." { Err(Errno::BUSY.into()) } else { Ok(&self.name) }
    }

    /// Gives it an owner; a link itself, when it is one.
    pub(crate) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(rustix::fs::chownat(self.opened()?, "", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    /// Gives it permissions. A link has none.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        let opened = self.opened()?;
        if FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP.into());
        }
        let mode = Mode::from_raw_mode(mode);
        // By what is open. Without a `/proc` that is no way, and by its name a link could be followed.
        Ok(rustix::fs::chmod(own_path(&opened), mode)?)
    }

    /// Gives it times; a link itself, when it is one.
    pub(crate) fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        drop(self.opened()?);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::utimensat(self.directory.fd(), &self.name, times, flags)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

    fn refusal<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn the_agents_own_directory_of_proc_is_closed() {
        // A thread that is not the first has a directory of its own, under its own number.
        let thread = rustix::thread::gettid().as_raw_nonzero();
        for top in ["/proc/self".to_owned(), "/proc/thread-self".to_owned(), format!("/proc/{thread}")] {
            let at = |name: &str| PathBuf::from(format!("{top}/{name}"));
            for name in ["maps", "mem", "environ", "auxv", "smaps", "pagemap", "stat", "syscall", "exe"] {
                let read = Place::of(&at(name)).and_then(|place| place.open(READ, 0));
                assert!(matches!(refusal(read), Some(libc::EPERM)), "{top}/{name}");
            }
            for name in ["fd/0", "cwd", "root", "exe", "root/etc/passwd", "cwd/.", "fd/0/x", "ns/net"] {
                let followed = Place::follow(&at(name)).and_then(|place| place.metadata());
                assert!(matches!(refusal(followed), Some(libc::ELOOP | libc::EPERM)), "{top}/{name}");
                assert!(canonical(&at(name)).is_err(), "{top}/{name}");
            }
            for name in ["fd", "ns", "fdinfo"] {
                let listed = Directory::open(&at(name)).and_then(|directory| directory.entries());
                assert_eq!(refusal(listed), Some(libc::EPERM), "{top}/{name}");
            }
            for name in ["oom_score_adj", "comm", "clear_refs", "coredump_filter"] {
                let written = Place::of(&at(name)).and_then(|place| place.open(OFlags::WRONLY, 0));
                assert_eq!(refusal(written), Some(libc::EPERM), "{top}/{name}");
                let place = Place::of(&at(name)).unwrap();
                assert_eq!(refusal(place.set_mode(0o600)), Some(libc::EPERM), "{top}/{name}");
                assert_eq!(refusal(place.remove_file()), Some(libc::EPERM), "{top}/{name}");
            }
        }
    }

    #[test]
    fn what_proc_says_of_the_sandbox_can_be_read() {
        for path in
            ["/proc/self/status", "/proc/mounts", "/proc/self/mountinfo", "/proc/net/dev", "/proc/version"]
        {
            let mut file = Place::follow(Path::new(path)).and_then(|place| place.open_regular()).unwrap();
            let mut text = Vec::new();
            io::Read::read_to_end(&mut file, &mut text).unwrap();
            assert!(!text.is_empty(), "{path}");
        }
        // Other processes are the sandbox's own.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let path = PathBuf::from(format!("/proc/{}", other.id()));
        let opened = Place::follow(&path.join("maps")).and_then(|place| place.open(READ, 0));
        let listed = Directory::open(&path.join("fd")).and_then(|directory| directory.entries());
        let followed = Place::follow(&path.join("root")).and_then(|place| place.metadata());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(opened.is_ok() && listed.is_ok());
        assert_eq!(refusal(followed), Some(libc::ELOOP));
    }

    #[test]
    fn nothing_of_a_file_system_of_cgroups_is_changed() {
        let tops = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(Path::new);
        let top =
            tops.into_iter().find(|top| top.join("cgroup.procs").is_file()).expect("a host with cgroups");
        let file = Place::of(&top.join("cgroup.procs")).unwrap();
        assert!(file.open(READ, 0).is_ok());
        assert_eq!(refusal(file.open(OFlags::WRONLY, 0)), Some(libc::EPERM));
        assert_eq!(refusal(file.set_owner(Some(0), None)), Some(libc::EPERM));
        let made = Place::of(&top.join("atoll-evil")).unwrap();
        assert_eq!(refusal(made.make_directory(0o755)), Some(libc::EPERM));
        assert_eq!(refusal(made.remove_directory()), Some(libc::EPERM));
        assert_eq!(
            refusal(Place::of(top).unwrap().set_mode(0o755)),
            Some(libc::EPERM),
            "what is mounted, too"
        );
    }

    #[test]
    fn links_are_followed_to_what_is_there_and_what_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/f"), "x").unwrap();
        for (target, name) in
            [("d/f", "near"), ("near", "far"), ("loop", "loop"), ("new/x", "broken"), ("d", "l")]
        {
            symlink(target, at(name)).unwrap();
        }
        assert_eq!(real(&at("far")).unwrap(), at("d/f"));
        assert_eq!(real(&at("broken")).unwrap(), at("new/x"));
        assert_eq!(refusal(real(&at("loop"))), Some(libc::ELOOP));
        assert_eq!(stat(&at("l/f")).unwrap().len(), 1);
        assert_eq!(refusal(stat(&at("far/"))), Some(libc::ENOTDIR));
        assert!(
            is_directory(&at("l/"))
                && is_directory(&at("l"))
                && !Place::of(&at("l")).unwrap().metadata().unwrap().is_dir()
        );
        assert_eq!(Place::of(&at("far")).unwrap().read_link().unwrap(), Path::new("near"));
        assert_eq!(refusal(Place::of(&at("near")).unwrap().open(READ, 0)), Some(libc::ELOOP));
        let file = Place::follow(&at("far")).unwrap();
        file.set_mode(0o640).unwrap();
        assert_eq!(std::fs::metadata(at("d/f")).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(refusal(Place::of(&at("near")).unwrap().set_mode(0o600)), Some(libc::ELOOP));
        file.link_to(&Place::of(&at("d/same")).unwrap()).unwrap();
        assert_eq!(std::fs::metadata(at("d/same")).unwrap().nlink(), 2);
        let top = Place::of(Path::new("/")).unwrap();
        assert!(top.metadata().unwrap().is_dir());
        assert_eq!(refusal(top.remove_directory()), Some(libc::EBUSY));
    }
}
