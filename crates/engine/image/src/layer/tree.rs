//! The directory tree of one layer under construction: where an entry's parent really is, and how a
//! directory is opened without ever leaving the tree.
//!
//! # Parents
//!
//! Docker unpacks a layer over the layers below it, so a parent directory that the archive does not mention
//! is the one below: `lib/x` in a layer above one with `lib -> usr/lib` means `usr/lib/x`, and `tmp/x`
//! leaves `/tmp` its mode. Here each layer is a directory of its own, so the walk looks at this layer first,
//! then at those below, and follows symbolic links as the kernel would inside a changed root: `..` stops at
//! the root, absolute targets start there. What is made in this layer on the way copies owner and mode from
//! below. A layer for which the layers below had a say depends on them: see [`Tree::depends_on_lowers`].
//!
//! # Bounds
//!
//! Each directory on the way is open while its parent is looked for, and what removes a tree calls itself for every level.
//! So no directory is deeper than the limit, no matter how many links lead there. Layers below decide how much there is to
//! look at; that is counted.
//!
//! # Safety of paths
//!
//! Directories are opened one component at a time with `openat2` (`BENEATH`, `NO_SYMLINKS`,
//! `NO_MAGICLINKS`, `NO_XDEV`); everything else is done with a single name relative to such a directory.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use crate::error::{ImageError, Result};
use crate::limits::{DEPTH_MAX_COUNT, LOOKUPS_MAX_COUNT, PATH_MAX_BYTES, SYMLINKS_MAX_COUNT};

pub(super) const OPAQUE: &str = "trusted.overlay.opaque";

/// Directories that are remembered while the one above them is emptied: there are as many of these at once as there are
/// levels.
const FULL_MAX_COUNT: usize = 64;

/// What stands at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Absent,
    Dir,
    Symlink(Vec<u8>),
    /// A mark of this layer that hides what is below.
    Whiteout,
    Other,
}

/// Owner and mode of a directory below, to be copied.
struct Below {
    mode: u32,
    uid: u32,
    gid: u32,
}

enum Found {
    Dir(Below),
    Symlink(Vec<u8>),
    Other,
}

/// Paths of directories that an archive does not mention are remembered up to this, bytes, and what each takes beside its
/// text.
const IMPLIED_MAX_BYTES: usize = 16 << 20;
const IMPLIED_BYTES: usize = 64;

pub(super) struct Tree<'a> {
    root: Rc<OwnedFd>,
    /// Roots of the layers below, highest first.
    lowers: &'a [OwnedFd],
    depends: bool,
    /// The parent that was asked for last: archives come sorted.
    last: Option<(Vec<Vec<u8>>, Rc<OwnedFd>)>,
    /// Directories that were made although the archive had not mentioned them.
    implied: Vec<Vec<u8>>,
    /// What their paths take, bytes.
    implied_bytes: usize,
    /// Names that were looked up.
    lookups: u64,
}

fn lost(error: Errno) -> ImageError {
    ImageError::io("write a layer", error.into())
}

/// Opens `path` below `dir` without following any link.
pub(super) fn open_below(dir: &OwnedFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    fs::openat2(dir, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)
}

fn open_dir(dir: &OwnedFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    open_below(dir, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// What `name` is in `dir`.
pub(super) fn node(dir: &OwnedFd, name: &[u8]) -> Result<Node> {
    let stat = match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Node::Absent),
        Err(error) => return Err(lost(error)),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Node::Dir,
        FileType::Symlink => Node::Symlink(fs::readlinkat(dir, name, Vec::new()).map_err(lost)?.into_bytes()),
        FileType::CharacterDevice if stat.st_rdev == 0 => Node::Whiteout,
        FileType::CharacterDevice
        | FileType::RegularFile
        | FileType::Fifo
        | FileType::Socket
        | FileType::BlockDevice
        | FileType::Unknown => Node::Other,
    })
}

/// Hides everything below this directory.
pub(super) fn set_opaque(dir: &OwnedFd) -> Result<()> {
    fs::fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty()).map_err(lost)
}

fn is_opaque(dir: &OwnedFd) -> Result<bool> {
    match fs::fgetxattr(dir, OPAQUE, &mut [0_u8; 4][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(lost(error)),
    }
}

/// Removes `name` with everything in it.
pub(super) fn remove(dir: &OwnedFd, name: &[u8]) -> Result<()> {
    match fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(lost(error)),
    }
    let inside = open_dir(dir, name).map_err(lost)?;
    while let Some(full) = clear(&inside)? {
        for child in full {
            remove(&inside, &child)?;
        }
    }
    fs::unlinkat(dir, name, AtFlags::REMOVEDIR).map_err(lost)
}

/// Removes what can be removed at once in a directory. Gives directories that are not empty, some of them; `None` when
/// there was nothing.
fn clear(dir: &OwnedFd) -> Result<Option<Vec<Vec<u8>>>> {
    let (mut there, mut full) = (false, Vec::new());
    for entry in fs::Dir::read_from(dir).map_err(lost)? {
        let entry = entry.map_err(lost)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        there = true;
        match fs::unlinkat(dir, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            other => {
                other.map_err(lost)?;
                continue;
            }
        }
        match fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => full.push(name.to_bytes().to_vec()),
            other => other.map_err(lost)?,
        }
        if full.len() >= FULL_MAX_COUNT {
            break;
        }
    }
    Ok(there.then_some(full))
}

impl<'a> Tree<'a> {
    /// `lowers`: the roots of the layers below, highest first.
    pub(super) fn new(root: OwnedFd, lowers: &'a [OwnedFd]) -> Self {
        let root = Rc::new(root);
        Self { root, lowers, depends: false, last: None, implied: Vec::new(), implied_bytes: 0, lookups: 0 }
    }

    pub(super) fn root(&self) -> &Rc<OwnedFd> {
        &self.root
    }

    /// Whether this layer came out as it did because of those below: it must not be shared with images that
    /// have other layers below.
    pub(super) fn depends_on_lowers(&self) -> bool {
        self.depends
    }

    /// Directories that the archive did not mention before something in them: their paths, as far as these are remembered.
    pub(super) fn implied_dirs(&self) -> &[Vec<u8>] {
        &self.implied
    }

    /// Forgets where the last parent was. To be called before anything is removed.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// The directory in which an entry goes whose parent is `path`, made when it is not there yet.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] when something on the way is no directory, or links go round in circles.
    pub(super) fn parent(&mut self, path: &[&[u8]]) -> Result<Rc<OwnedFd>> {
        if let Some((last, fd)) = &self.last
            && last.iter().map(Vec::as_slice).eq(path.iter().copied())
        {
            return Ok(Rc::clone(fd));
        }
        let fd = self.walk(path)?;
        self.last = Some((path.iter().map(|c| c.to_vec()).collect(), Rc::clone(&fd)));
        Ok(fd)
    }

    fn walk(&mut self, path: &[&[u8]]) -> Result<Rc<OwnedFd>> {
        let whole = || path.join(&b'/');
        let mut todo: VecDeque<Vec<u8>> = path.iter().map(|c| c.to_vec()).collect();
        // Real directories of this layer, from the root down.
        let mut done: Vec<(Vec<u8>, Rc<OwnedFd>)> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    done.pop();
                    continue;
                }
                _ => {}
            }
            if done.len() >= DEPTH_MAX_COUNT {
                return Err(ImageError::entry(&whole(), "its parent is too deep"));
            }
            self.lookups += 1;
            if self.lookups > LOOKUPS_MAX_COUNT {
                return Err(ImageError::entry(&whole(), "too much work to find where it belongs"));
            }
            let here = done.last().map_or_else(|| Rc::clone(&self.root), |(_, fd)| Rc::clone(fd));
            let target = match node(&here, &name)? {
                Node::Dir => None,
                Node::Symlink(target) => Some(target),
                Node::Other => return Err(ImageError::entry(&whole(), "its parent is not a directory")),
                Node::Whiteout => {
                    remove(&here, &name)?;
                    set_opaque(&self.implied(&done, &here, &name, None)?)?;
                    None
                }
                Node::Absent => match self.below(&done, &name)? {
                    None => self.implied(&done, &here, &name, None).map(|_| None)?,
                    Some(Found::Dir(like)) => self.implied(&done, &here, &name, Some(&like)).map(|_| None)?,
                    Some(Found::Symlink(target)) => Some(target),
                    Some(Found::Other) => {
                        return Err(ImageError::entry(&whole(), "its parent is not a directory below"));
                    }
                },
            };
            let Some(target) = target else {
                let fd = Rc::new(open_dir(&here, &name).map_err(lost)?);
                done.push((name, fd));
                continue;
            };
            links += 1;
            if links > SYMLINKS_MAX_COUNT {
                return Err(ImageError::entry(&whole(), "too many symbolic links on the way"));
            }
            if target.starts_with(b"/") {
                done.clear();
            }
            for component in target.split(|b| *b == b'/').rev() {
                todo.push_front(component.to_vec());
            }
        }
        Ok(done.pop().map_or_else(|| Rc::clone(&self.root), |(_, fd)| fd))
    }

    /// Makes a directory at `done/name` that the archive does not mention.
    fn implied(
        &mut self,
        done: &[(Vec<u8>, Rc<OwnedFd>)],
        dir: &OwnedFd,
        name: &[u8],
        like: Option<&Below>,
    ) -> Result<OwnedFd> {
        let path: Vec<&[u8]> = done.iter().map(|(name, _)| name.as_slice()).chain([name]).collect();
        let path = path.join(&b'/');
        // Links lead to paths that are longer than the kernel takes at once.
        let bytes = self.implied_bytes.saturating_add(path.len() + IMPLIED_BYTES);
        if path.len() <= PATH_MAX_BYTES && bytes <= IMPLIED_MAX_BYTES {
            self.implied_bytes = bytes;
            self.implied.push(path);
        }
        fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)).map_err(lost)?;
        let fd = open_dir(dir, name).map_err(lost)?;
        let default = Below { mode: 0o755, uid: 0, gid: 0 };
        let like = like.unwrap_or(&default);
        let (uid, gid) = (fs::Uid::from_raw(like.uid), fs::Gid::from_raw(like.gid));
        fs::fchown(&fd, Some(uid), Some(gid)).map_err(lost)?;
        fs::fchmod(&fd, Mode::from_raw_mode(like.mode & 0o7777)).map_err(lost)?;
        Ok(fd)
    }

    /// What the layers below have at `done/name`, where this layer has nothing.
    fn below(&mut self, done: &[(Vec<u8>, Rc<OwnedFd>)], name: &[u8]) -> Result<Option<Found>> {
        self.depends = true;
        for (_, fd) in done {
            if is_opaque(fd)? {
                return Ok(None);
            }
        }
        let path: Vec<&[u8]> = done.iter().map(|(name, _)| name.as_slice()).chain([name]).collect();
        for lower in self.lowers {
            match look(lower, &path, &mut self.lookups)? {
                Look::Found(found) => return Ok(Some(found)),
                Look::Hidden => return Ok(None),
                Look::GoOn => {}
            }
        }
        Ok(None)
    }
}

enum Look {
    Found(Found),
    /// Not here, and this layer hides what is below.
    Hidden,
    GoOn,
}

/// What a layer has at a path. The names that were looked up are added to `lookups`.
fn look(layer: &OwnedFd, path: &[&[u8]], lookups: &mut u64) -> Result<Look> {
    let mut owned;
    let mut here = layer;
    let mut opaque = false;
    for (index, name) in path.iter().enumerate() {
        let last = index + 1 == path.len();
        *lookups += 1;
        match node(here, name)? {
            Node::Absent => return Ok(if opaque { Look::Hidden } else { Look::GoOn }),
            Node::Dir => {}
            Node::Symlink(target) if last => return Ok(Look::Found(Found::Symlink(target))),
            Node::Other if last => return Ok(Look::Found(Found::Other)),
            // A layer above has a directory here, which hides this.
            Node::Symlink(_) | Node::Whiteout | Node::Other => return Ok(Look::Hidden),
        }
        owned = open_dir(here, name).map_err(lost)?;
        if last {
            let stat = fs::fstat(&owned).map_err(lost)?;
            let below = Below { mode: stat.st_mode, uid: stat.st_uid, gid: stat.st_gid };
            return Ok(Look::Found(Found::Dir(below)));
        }
        opaque |= is_opaque(&owned)?;
        here = &owned;
    }
    Ok(Look::GoOn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    #[test]
    fn what_is_removed_may_have_more_directories_than_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..FULL_MAX_COUNT * 2 + 1 {
            std::fs::create_dir_all(dir.path().join(format!("gone/{number}/full"))).unwrap();
            std::fs::create_dir(dir.path().join(format!("gone/empty{number}"))).unwrap();
            std::fs::write(dir.path().join(format!("gone/{number}/full/file")), "").unwrap();
        }
        std::os::unix::fs::symlink("/", dir.path().join("gone/link")).unwrap();
        std::fs::write(dir.path().join("kept"), "").unwrap();
        remove(&open(dir.path()), b"gone").unwrap();
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }

    #[test]
    fn looking_at_the_layers_below_has_an_end() {
        let (upper, lower) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(lower.path().join("a/b")).unwrap();
        let lowers = [open(lower.path()), open(lower.path())];
        let mut tree = Tree::new(open(upper.path()), &lowers);
        tree.parent(&[b"a", b"b", b"c"]).unwrap();
        // Three here; below, one for `a`, two for `b`, and three for `c` in both layers.
        assert_eq!(tree.lookups, 3 + 1 + 2 + 2 * 3);
        tree.lookups = LOOKUPS_MAX_COUNT - 1;
        tree.parent(&[b"a"]).unwrap();
        let Err(error) = tree.parent(&[b"a", b"b"]) else { panic!("it goes on looking") };
        assert!(matches!(error, ImageError::Invalid(_)), "{error}");
    }
}
