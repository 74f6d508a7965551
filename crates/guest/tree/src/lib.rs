//! Removes directories whose content a hostile program wrote.
//!
//! The standard library's `remove_dir_all` calls itself for every level: a few thousand directories, one in the other,
//! overflow a thread's stack and end the whole process. Both the server (in the disks of sandboxes) and the agent (in
//! the sandbox itself) meet such trees. Here nothing recurses, one descriptor is open at a time, names are looked up
//! one by one without following links, and depth and count have an end.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

/// Deepest directory that is looked into. Only its name is held for each level.
pub const DEPTH_MAX: usize = 1 << 16;
/// Names of directories that are held for one level, so that a level is not read again after each of them.
const NAMES_MAX: usize = 1024;
/// The same for levels that are deeper than [`DEEP`], so that the memory for names is bounded.
const NAMES_DEEP_MAX: usize = 1;
const DEEP: usize = 64;

/// A directory that is being emptied.
struct Level {
    /// Its name in the directory above.
    name: CString,
    /// Its identity, to recognize it when coming back up from below.
    id: (u64, u64),
    /// Directories in it that have to be emptied first.
    full: Vec<CString>,
}

/// Removes the directory `name` of `parent` with everything in it, at most `entries_max` entries. A symbolic link or
/// a file of that name is removed itself.
///
/// Entries that another process adds meanwhile are removed too, or make this end with an error; entries
/// that it moves away stay.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::QuotaExceeded`] when there are more entries than that, or it is deeper than
/// [`DEPTH_MAX`]. Entries that were removed until then are gone.
pub fn remove(parent: BorrowedFd<'_>, name: &CStr, entries_max: u64) -> io::Result<()> {
    if remove_one(parent, name, FileType::Unknown, Missing::Fails)? {
        return Ok(());
    }
    Removal { parent, levels: Vec::new(), left: entries_max }.run(name)
}

struct Removal<'a> {
    parent: BorrowedFd<'a>,
    /// From the topmost directory to the one that is being emptied.
    levels: Vec<Level>,
    left: u64,
}

impl Removal<'_> {
    fn run(&mut self, name: &CStr) -> io::Result<()> {
        let mut here = self.enter(self.parent, name.to_owned())?;
        loop {
            if let Some(name) = self.next_full(here.as_fd())? {
                match self.enter(here.as_fd(), name) {
                    Ok(below) => here = below,
                    // It went, or another entry took its place: the next look finds out.
                    Err(error) if is_change(&error) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            // The directory is empty: it is removed, and the one above is next.
            let Some(done) = self.levels.pop() else { return Ok(()) };
            let above = self.above(here.as_fd())?;
            let removed = match &above {
                Some(above) => unlinkat(above, &done.name, AtFlags::REMOVEDIR),
                None => unlinkat(self.parent, &done.name, AtFlags::REMOVEDIR),
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                // Another process put an entry into it: the next look at the directory above finds it again.
                Err(Errno::NOTEMPTY | Errno::EXIST) if above.is_some() => self.count()?,
                Err(error) => return Err(error.into()),
            }
            match above {
                Some(above) => here = above,
                None => return Ok(()),
            }
        }
    }

    /// A directory in `here`, the last level, that has to be emptied first.
    fn next_full(&mut self, here: BorrowedFd<'_>) -> io::Result<Option<CString>> {
        if self.levels.last().is_some_and(|level| level.full.is_empty()) {
            let full = self.clear(here)?;
            if let Some(level) = self.levels.last_mut() {
                level.full = full;
            }
        }
        Ok(self.levels.last_mut().and_then(|level| level.full.pop()))
    }

    /// Goes down into a directory.
    fn enter(&mut self, at: BorrowedFd<'_>, name: CString) -> io::Result<OwnedFd> {
        if self.levels.len() >= DEPTH_MAX {
            return Err(too_much(format!("directories are nested more than {DEPTH_MAX} deep")));
        }
        let dir = open(at, &name)?;
        let id = identity(dir.as_fd())?;
        self.levels.push(Level { name, id, full: Vec::new() });
        Ok(dir)
    }

    /// The directory above `here`, which is the last level now; none above the topmost one.
    fn above(&self, here: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        let up = open(here, c"..")?;
        if identity(up.as_fd())? == level.id {
            return Ok(Some(up));
        }
        // Another process moved it. Following the names from the top leads to where we were, and nowhere else.
        let mut at = open(self.parent, &self.levels[0].name)?;
        for level in &self.levels[1..] {
            at = open(at.as_fd(), &level.name)?;
        }
        Ok(Some(at))
    }

    /// Removes all that can be removed at once; gives directories that are not empty, some or all of them.
    fn clear(&mut self, dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
        let names_max = if self.levels.len() > DEEP { NAMES_DEEP_MAX } else { NAMES_MAX };
        let mut full = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.count()?;
            if remove_one(dir, name, entry.file_type(), Missing::IsFine)? {
                continue;
            }
            full.push(name.to_owned());
            if full.len() >= names_max {
                break;
            }
        }
        Ok(full)
    }

    fn count(&mut self) -> io::Result<()> {
        self.left =
            self.left.checked_sub(1).ok_or_else(|| too_much("there are too many entries".to_owned()))?;
        Ok(())
    }
}

/// The result when there is nothing to remove.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    Fails,
    IsFine,
}

/// Removes a file or an empty directory; says whether it is gone.
fn remove_one(dir: BorrowedFd<'_>, name: &CStr, kind: FileType, missing: Missing) -> io::Result<bool> {
    let mut refused = None;
    if kind != FileType::Directory {
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) => return Ok(true),
            Err(Errno::NOENT) if missing == Missing::IsFine => return Ok(true),
            Err(Errno::ISDIR) => {}
            // Some file systems answer this for a directory; for a file it is the final error.
            Err(Errno::PERM) => refused = Some(Errno::PERM),
            Err(error) => return Err(error.into()),
        }
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOENT) if missing == Missing::IsFine => Ok(true),
        // Another entry took its place meanwhile; the next look finds out.
        Err(Errno::NOTDIR) if refused.is_none() && missing == Missing::IsFine => Ok(true),
        Err(error) => Err(refused.filter(|_| error == Errno::NOTDIR).unwrap_or(error).into()),
    }
}

fn open(at: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn identity(dir: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn is_change(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn too_much(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, what)
}

#[cfg(test)]
mod tests;
