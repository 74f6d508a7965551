//! Walks two sides together and notes what differs.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_core::snapshot::{Change, ChangeKind, Comparison, EntryKind};
use atoll_isolation::IsolationError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, statat};
use rustix::io::Errno;

use super::inodes::Inodes;
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

/// A directory that is opened when it is needed: most directories that two snapshots have in common never are.
enum Folder {
    Unopened,
    /// There is no such directory.
    Absent,
    Open(OwnedFd),
}

/// One directory on one side.
struct Place {
    /// As a sandbox sees it.
    merged: Folder,
    /// The same in the snapshot's own layer.
    layer: Folder,
    /// Whether the layer hides the image's directory here: then a sandbox sees only the layer's entries.
    hides: bool,
}

/// What each layer says of a name: the inode, and what it is.
type Said = [Option<(u64, FileType)>; 2];
type Names = BTreeMap<CString, Said>;

/// A directory that is being compared.
struct Level {
    path: String,
    name: CString,
    sides: [Place; 2],
    /// Both layers have the very same directory: the same names for the same inodes.
    same: bool,
    /// Whether entries that neither layer mentions have to be compared, too.
    whole: bool,
    /// The entries in it that have not been compared yet.
    names: Names,
}

/// What is known of a name when it has been compared.
struct Compared {
    /// On which sides it is a directory.
    kinds: [bool; 2],
    /// Both layers have the very same.
    same: bool,
}

/// An entry on one side.
struct Entry {
    stat: Stat,
    /// The same in the snapshot's own layer.
    own: Option<Stat>,
}

pub(super) struct Walk {
    with_text: bool,
    /// Which inodes are the same, known without asking the kernel.
    inodes: Option<Inodes>,
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
            inodes: None,
            found: Comparison::default(),
            entries: 0,
            read_bytes: 0,
            text_bytes: 0,
            paths_bytes: 0,
        }
    }

    pub(super) fn run(mut self, from: &Side, to: &Side) -> Result<Comparison, IsolationError> {
        self.inodes = from.image.as_ref().zip(to.image.as_ref()).and_then(|(a, b)| Inodes::of(a, b));
        let place = |side: &Side| -> std::io::Result<Place> {
            let layer = side.layer.as_ref().map(OwnedFd::try_clone).transpose()?;
            let layer = layer.map_or(Folder::Absent, Folder::Open);
            Ok(Place { merged: Folder::Open(side.merged.try_clone()?), layer, hides: false })
        };
        let sides = [place(from).step("compare snapshots")?, place(to).step("compare snapshots")?];
        self.walk(sides).map_err(|error| match error {
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

    /// Compares two directories and everything below, without recursion: the guest chooses how deep they are nested.
    fn walk(&mut self, sides: [Place; 2]) -> rustix::io::Result<()> {
        let (path, name) = (String::new(), CString::default());
        let mut stack = vec![Level { path, name, sides, same: false, whole: false, names: Names::new() }];
        self.list(&mut stack)?;
        while let Some(level) = stack.last_mut() {
            let Some((name, said)) = level.names.pop_first() else {
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
            let Compared { kinds, same } = self.name(&mut stack, &path, &name, &said)?;
            if kinds == [false, false] {
                continue;
            }
            if stack.len() >= DEPTH_MAX {
                self.found.truncated = true;
                continue;
            }
            let Some(level) = stack.last() else { break };
            let [from, to] = [0, 1].map(|side| below(&level.sides[side], kinds[side]));
            let whole = level.whole || kinds != [true, true];
            stack.push(Level { path, name, sides: [from, to], same, whole, names: Names::new() });
            find_hidden(&mut stack)?;
            self.list(&mut stack)?;
        }
        Ok(())
    }

    /// Compares what has this name in the deepest directory, and notes the difference.
    fn name(
        &mut self,
        stack: &mut [Level],
        path: &str,
        name: &CString,
        said: &Said,
    ) -> rustix::io::Result<Compared> {
        let is_whole = stack.last().is_none_or(|level| level.whole);
        if !is_whole && self.are_same(said) {
            return Ok(Compared { kinds: [true, true], same: true });
        }
        let [from, to] = open_both(stack, |place| &mut place.layer)?;
        let own = [stat_in(&from.layer, name)?, stat_in(&to.layer, name)?];
        if let [Some(a), Some(b)] = &own
            && is_same_inode(a, b)
        {
            // The topmost layer of both sides has it: this is what both see.
            return Ok(Compared { kinds: [is_dir(a); 2], same: true });
        }
        let [from, to] = open_both(stack, |place| &mut place.merged)?;
        let [a, b] = own;
        let (one, other) = (entry(from, name, a)?, entry(to, name, b)?);
        self.entry(path, name, (from, one.as_ref()), (to, other.as_ref()))?;
        let kinds = [&one, &other].map(|entry| entry.as_ref().is_some_and(|entry| is_dir(&entry.stat)));
        Ok(Compared { kinds, same: false })
    }

    /// Whether both layers have the very same, as far as that is known without asking.
    fn are_same(&self, said: &Said) -> bool {
        matches!((said, &self.inodes), ([Some(a), Some(b)], Some(inodes))
            if a == b && a.1 != FileType::Unknown && inodes.are_same(a.0))
    }

    /// Notes the names in the deepest directory that have to be compared: those that either layer mentions, or all when one of them
    /// hides what the image has there and the other does not.
    fn list(&mut self, stack: &mut [Level]) -> rustix::io::Result<()> {
        let Some(Level { whole, same, .. }) = stack.last() else { return Ok(()) };
        let (whole, same) = (*whole, *same && !*whole);
        for side in 0..if same { 1 } else { 2 } {
            open(stack, side, |place| if whole { &mut place.merged } else { &mut place.layer })?;
            let Some(level) = stack.last_mut() else { return Ok(()) };
            let place = &level.sides[side];
            if let Folder::Open(dir) = if whole { &place.merged } else { &place.layer } {
                self.list_side(dir.as_fd(), side, &mut level.names)?;
            }
        }
        let Some(level) = stack.last_mut() else { return Ok(()) };
        if same {
            level.names.values_mut().for_each(|said| said[1] = said[0]);
        }
        if !whole {
            let is_plain = |said: &Said| said[0].is_some_and(|(_, kind)| kind != FileType::Directory);
            level.names.retain(|_, said| !(is_plain(said) && self.are_same(said)));
        }
        Ok(())
    }

    /// Adds the names in a directory, as many as may still be looked at.
    fn list_side(&mut self, dir: BorrowedFd<'_>, side: usize, names: &mut Names) -> rustix::io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let said = Some((entry.ino(), entry.file_type()));
            if let Some(known) = names.get_mut(name) {
                known[side & 1] = said;
                continue;
            }
            if self.entries >= ENTRIES_MAX_COUNT {
                self.found.truncated = true;
                break;
            }
            self.entries += 1;
            let mut fresh = [None; 2];
            fresh[side & 1] = said;
            names.insert(name.to_owned(), fresh);
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
        // Neither layer has it: it is the image's on both sides.
        if let (None, None) = (&one.own, &other.own) {
            return Ok(false);
        }
        let (a, b) = (&one.stat, &other.stat);
        if (a.st_mode, a.st_uid, a.st_gid) != (b.st_mode, b.st_uid, b.st_gid) {
            return Ok(true);
        }
        match FileType::from_raw_mode(a.st_mode) {
            FileType::RegularFile if a.st_size != b.st_size => Ok(true),
            FileType::RegularFile => {
                self.contents_differ(open_file(from, name)?, open_file(to, name)?, a.st_size)
            }
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
    let Some(file) = open_file(place, name)? else { return Ok(None) };
    let mut content = Vec::new();
    let read = file.take(text::FILE_MAX_BYTES).read_to_end(&mut content);
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(content))
}

fn entry(place: &Place, name: &CString, own: Option<Stat>) -> rustix::io::Result<Option<Entry>> {
    Ok(stat_in(&place.merged, name)?.map(|stat| Entry { stat, own }))
}

fn stat_in(dir: &Folder, name: &CString) -> rustix::io::Result<Option<Stat>> {
    let Folder::Open(dir) = dir else { return Ok(None) };
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether two layers have the very same: an inode that was not changed since.
fn is_same_inode(a: &Stat, b: &Stat) -> bool {
    (a.st_ino, a.st_mode, a.st_ctime, a.st_ctime_nsec, a.st_size)
        == (b.st_ino, b.st_mode, b.st_ctime, b.st_ctime_nsec, b.st_size)
}

/// Opens the deepest directory on one side, and for that those above it which are not open yet.
fn open(
    stack: &mut [Level],
    side: usize,
    which: impl Fn(&mut Place) -> &mut Folder,
) -> rustix::io::Result<()> {
    let mut first = stack.len();
    while first > 1 && matches!(which(&mut stack[first - 1].sides[side]), Folder::Unopened) {
        first -= 1;
    }
    for at in first..stack.len() {
        let (above, rest) = stack.split_at_mut(at);
        let (Some(parent), Some(level)) = (above.last_mut(), rest.first_mut()) else { continue };
        let opened = match which(&mut parent.sides[side]) {
            Folder::Open(dir) => open_dir(dir, &level.name)?,
            Folder::Unopened | Folder::Absent => None,
        };
        *which(&mut level.sides[side]) = opened.map_or(Folder::Absent, Folder::Open);
    }
    Ok(())
}

/// The same on both sides, which it gives.
fn open_both(
    stack: &mut [Level],
    which: impl Fn(&mut Place) -> &mut Folder,
) -> rustix::io::Result<&[Place; 2]> {
    open(stack, 0, &which)?;
    open(stack, 1, &which)?;
    stack.last().map(|level| &level.sides).ok_or(Errno::INVAL)
}

/// A directory below, or that there is none.
fn below(place: &Place, is_dir: bool) -> Place {
    let folder = || if is_dir { Folder::Unopened } else { Folder::Absent };
    Place { merged: folder(), layer: folder(), hides: place.hides }
}

/// Finds out whether the layers hide what the image has in the deepest directory, and whether only one does.
fn find_hidden(stack: &mut [Level]) -> rustix::io::Result<()> {
    let same = stack.last().is_some_and(|level| level.same);
    for side in 0..if same { 1 } else { 2 } {
        open(stack, side, |place| &mut place.layer)?;
        if let Some(level) = stack.last_mut()
            && let Folder::Open(dir) = &level.sides[side].layer
        {
            level.sides[side].hides |= is_opaque(dir.as_fd());
        }
    }
    if let Some(level) = stack.last_mut() {
        if same {
            level.sides[1].hides |= level.sides[0].hides;
        }
        level.whole |= level.sides[0].hides != level.sides[1].hides;
    }
    Ok(())
}

/// Opens a directory, if there is one: what is something else there hides it.
fn open_dir(dir: &OwnedFd, name: &CString) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a plain file.
fn open_file(place: &Place, name: &CString) -> rustix::io::Result<Option<File>> {
    let Folder::Open(dir) = &place.merged else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).map(|fd| Some(File::from(fd)))
}

fn target(place: &Place, name: &CString) -> rustix::io::Result<Option<CString>> {
    let Folder::Open(dir) = &place.merged else { return Ok(None) };
    rustix::fs::readlinkat(dir, name, Vec::new()).map(Some)
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
