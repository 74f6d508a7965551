//! Walks two sides together and notes what differs.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_core::snapshot::{Change, ChangeKind, Comparison, EntryKind};
use atoll_isolation::IsolationError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, statat};
use rustix::io::Errno;

use super::side::Side;
use super::text;
use crate::step::{Step, failed};

/// Changes that are noted; beyond it a comparison is cut short.
const CHANGES_MAX_COUNT: usize = 50_000;
/// Bytes of their paths together.
const PATHS_MAX_BYTES: usize = 32 << 20;
/// Longest path that is looked at, bytes: no program could name a longer one.
const PATH_MAX_BYTES: usize = 4096;
/// Entries that are looked at. Their names are held until it is their turn.
const ENTRIES_MAX_COUNT: usize = 1_000_000;
/// How deep directories may be nested. Each level holds four descriptors.
const DEPTH_MAX: usize = 128;
/// Bytes read to find out whether files differ. Beyond it, files that look different count as different.
const READ_MAX_BYTES: u64 = 8 << 30;
/// Read at once.
const PIECE_BYTES: usize = 256 << 10;

/// One directory on one side.
struct Place {
    /// As a sandbox sees it; absent when it is no directory there.
    merged: Option<OwnedFd>,
    /// The same in the snapshot's own layer.
    layer: Option<OwnedFd>,
}

/// A directory that is being compared.
struct Level {
    path: String,
    from: Place,
    to: Place,
    whole: bool,
    /// Names in it whose turn has not come.
    names: BTreeSet<CString>,
}

/// An entry on one side.
struct Entry {
    stat: Stat,
    /// The same in the snapshot's own layer.
    own: Option<Stat>,
}

pub(super) struct Walk {
    with_text: bool,
    found: Comparison,
    entries: usize,
    read_bytes: u64,
    text_bytes: usize,
    paths_bytes: usize,
}

impl Walk {
    pub(super) fn new(with_text: bool) -> Self {
        Self {
            with_text,
            found: Comparison::default(),
            entries: 0,
            read_bytes: 0,
            text_bytes: 0,
            paths_bytes: 0,
        }
    }

    pub(super) fn run(mut self, from: &Side, to: &Side) -> Result<Comparison, IsolationError> {
        let place = |side: &Side| -> std::io::Result<Place> {
            let layer = side.layer.as_ref().map(OwnedFd::try_clone).transpose()?;
            Ok(Place { merged: Some(side.merged.try_clone()?), layer })
        };
        let (from, to) = (place(from).step("compare snapshots")?, place(to).step("compare snapshots")?);
        self.walk(from, to).map_err(|error| match error {
            Errno::NOSPC => failed("compare snapshots".to_owned(), std::io::ErrorKind::Other.into()),
            other => failed("compare snapshots".to_owned(), other.into()),
        })?;
        self.found.changes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(self.found)
    }

    fn is_full(&mut self) -> bool {
        let full = self.found.changes.len() >= CHANGES_MAX_COUNT || self.paths_bytes >= PATHS_MAX_BYTES;
        self.found.truncated |= full;
        full
    }

    /// Compares two directories and everything below, without calling itself: how deep it goes is the guest's choice.
    fn walk(&mut self, from: Place, to: Place) -> rustix::io::Result<()> {
        let mut stack = vec![self.level(String::new(), from, to, false)?];
        while let Some(level) = stack.last_mut() {
            let Some(name) = level.names.pop_first() else {
                stack.pop();
                continue;
            };
            if self.is_full() {
                return Ok(());
            }
            let path = format!("{}/{}", level.path, name.to_string_lossy());
            if path.len() > PATH_MAX_BYTES {
                self.found.truncated = true;
                continue;
            }
            let (one, other) = (entry(&level.from, &name)?, entry(&level.to, &name)?);
            self.entry(&path, &name, (&level.from, one.as_ref()), (&level.to, other.as_ref()))?;
            let kinds = [&one, &other].map(|entry| entry.as_ref().is_some_and(|entry| is_dir(&entry.stat)));
            if kinds == [false, false] {
                continue;
            }
            let (from, to) = (below(&level.from, &name, kinds[0])?, below(&level.to, &name, kinds[1])?);
            let hides = |place: &Place| place.layer.as_ref().is_some_and(|dir| is_opaque(dir.as_fd()));
            let whole = level.whole || kinds != [true, true] || hides(&from) || hides(&to);
            if stack.len() >= DEPTH_MAX {
                self.found.truncated = true;
            } else {
                let below = self.level(path, from, to, whole)?;
                stack.push(below);
            }
        }
        Ok(())
    }

    /// A directory with the names that have to be compared. `whole`: also what neither layer mentions, because one of
    /// them hides what is below.
    fn level(&mut self, path: String, from: Place, to: Place, whole: bool) -> rustix::io::Result<Level> {
        let mut names = BTreeSet::new();
        for place in [&from, &to] {
            let dir = if whole { &place.merged } else { &place.layer };
            if let Some(dir) = dir {
                self.list(dir.as_fd(), &mut names)?;
            }
        }
        Ok(Level { path, from, to, whole, names })
    }

    /// Adds the names in a directory, as many as may still be looked at.
    fn list(&mut self, dir: BorrowedFd<'_>, names: &mut BTreeSet<CString>) -> rustix::io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let name = entry?.file_name().to_owned();
            if matches!(name.as_bytes(), b"." | b"..") {
                continue;
            }
            if self.entries >= ENTRIES_MAX_COUNT {
                self.found.truncated = true;
                break;
            }
            if names.insert(name) {
                self.entries += 1;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: &str,
        name: &CString,
        (from, one): (&Place, Option<&Entry>),
        (to, other): (&Place, Option<&Entry>),
    ) -> rustix::io::Result<()> {
        let (kind, shown) = match (one, other) {
            (None, None) => return Ok(()),
            (None, Some(other)) => (ChangeKind::Added, other),
            (Some(one), None) => (ChangeKind::Removed, one),
            (Some(one), Some(other)) => {
                if !self.differ(name, (from, one), (to, other))? {
                    return Ok(());
                }
                (ChangeKind::Changed, other)
            }
        };
        let size = |entry: Option<&Entry>| entry.map(|entry| u64::try_from(entry.stat.st_size).unwrap_or(0));
        let text = if self.with_text && self.text_bytes < text::TOTAL_MAX_BYTES {
            self.text(path, name, (from, one), (to, other))?
        } else {
            None
        };
        self.paths_bytes += path.len();
        self.found.changes.push(Change {
            path: path.to_owned(),
            kind,
            entry: entry_kind(&shown.stat),
            from_bytes: size(one),
            to_bytes: size(other),
            text,
        });
        Ok(())
    }

    fn differ(
        &mut self,
        name: &CString,
        (from, one): (&Place, &Entry),
        (to, other): (&Place, &Entry),
    ) -> rustix::io::Result<bool> {
        // Neither layer has it, or both have the very same: an inode that was not changed since.
        if let (None, None) = (&one.own, &other.own) {
            return Ok(false);
        }
        if let (Some(a), Some(b)) = (&one.own, &other.own)
            && (a.st_ino, a.st_ctime, a.st_ctime_nsec, a.st_size)
                == (b.st_ino, b.st_ctime, b.st_ctime_nsec, b.st_size)
        {
            return Ok(false);
        }
        let (a, b) = (&one.stat, &other.stat);
        if (a.st_mode, a.st_uid, a.st_gid) != (b.st_mode, b.st_uid, b.st_gid) {
            return Ok(true);
        }
        match FileType::from_raw_mode(a.st_mode) {
            FileType::RegularFile if a.st_size != b.st_size => Ok(true),
            FileType::RegularFile => self.contents_differ(open(from, name)?, open(to, name)?, a.st_size),
            FileType::Symlink => Ok(target(from, name)? != target(to, name)?),
            _ => Ok(a.st_rdev != b.st_rdev),
        }
    }

    fn contents_differ(
        &mut self,
        one: Option<File>,
        other: Option<File>,
        size: i64,
    ) -> rustix::io::Result<bool> {
        self.read_bytes = self.read_bytes.saturating_add(u64::try_from(size).unwrap_or(0));
        let (Some(one), Some(other)) = (one, other) else { return Ok(true) };
        if self.read_bytes > READ_MAX_BYTES {
            return Ok(true);
        }
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let (mut one, mut other) = (one, other);
        loop {
            for (file, piece) in [(&mut one, &mut a), (&mut other, &mut b)] {
                piece.clear();
                file.by_ref().take(PIECE_BYTES as u64).read_to_end(piece).map_err(io)?;
            }
            if a != b {
                return Ok(true);
            }
            if a.is_empty() {
                return Ok(false);
            }
        }
    }

    fn text(
        &mut self,
        path: &str,
        name: &CString,
        (from, one): (&Place, Option<&Entry>),
        (to, other): (&Place, Option<&Entry>),
    ) -> rustix::io::Result<Option<String>> {
        let mut contents = Vec::new();
        for (place, entry) in [(from, one), (to, other)] {
            let Some(content) = small_content(place, name, entry)? else { return Ok(None) };
            contents.push(content);
        }
        let text = text::difference(path, &contents[0], &contents[1]);
        let text = text.filter(|text| self.text_bytes + text.len() <= text::TOTAL_MAX_BYTES);
        self.text_bytes += text.as_ref().map_or(0, String::len);
        Ok(text)
    }
}

/// The content of a small plain file; nothing where there is none; `None` when it is something else.
fn small_content(
    place: &Place,
    name: &CString,
    entry: Option<&Entry>,
) -> rustix::io::Result<Option<Vec<u8>>> {
    let Some(entry) = entry else { return Ok(Some(Vec::new())) };
    let size = u64::try_from(entry.stat.st_size).unwrap_or(u64::MAX);
    if FileType::from_raw_mode(entry.stat.st_mode) != FileType::RegularFile || size > text::FILE_MAX_BYTES {
        return Ok(None);
    }
    let Some(file) = open(place, name)? else { return Ok(None) };
    let mut content = Vec::new();
    let read = file.take(text::FILE_MAX_BYTES).read_to_end(&mut content);
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(content))
}

fn entry(place: &Place, name: &CString) -> rustix::io::Result<Option<Entry>> {
    let stat = |dir: &Option<OwnedFd>| match dir {
        None => Ok(None),
        Some(dir) => match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        },
    };
    let own = stat(&place.layer)?;
    Ok(stat(&place.merged)?.map(|stat| Entry { stat, own }))
}

fn below(place: &Place, name: &CString, is_dir: bool) -> rustix::io::Result<Place> {
    if !is_dir {
        return Ok(Place { merged: None, layer: None });
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |dir: &Option<OwnedFd>| match dir {
        None => Ok(None),
        Some(dir) => match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Ok(dir) => Ok(Some(dir)),
            // The layer does not have it, or hides something with it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        },
    };
    Ok(Place { merged: open(&place.merged)?, layer: open(&place.layer)? })
}

/// Opens a plain file.
fn open(place: &Place, name: &CString) -> rustix::io::Result<Option<File>> {
    let Some(dir) = &place.merged else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map(|fd| Some(File::from(fd)))
}

fn target(place: &Place, name: &CString) -> rustix::io::Result<Option<CString>> {
    place.merged.as_ref().map(|dir| rustix::fs::readlinkat(dir, name, Vec::new())).transpose()
}

/// Whether a directory of a layer hides what is below it.
fn is_opaque(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 1];
    fgetxattr(dir, c"trusted.overlay.opaque", &mut value).is_ok() && value[0] == b'y'
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn entry_kind(stat: &Stat) -> EntryKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}
