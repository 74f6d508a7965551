//! Tar streams out of and into the sandbox.
//!
//! An archive is hostile: its members stay below the directory they are unpacked in. Every member is
//! reached from that directory's descriptor by `openat2` with `RESOLVE_BENEATH`, so neither `..` nor a
//! symbolic link, from the archive or planted meanwhile, leads out. (Below `/` itself, absolute links
//! are fine: they are resolved in the root.) Devices and FIFOs are refused.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use atoll_guest_protocol::PATH_MAX_BYTES;
use atoll_guest_protocol::body::{RecordReader, RecordWriter};
use atoll_guest_protocol::messages::{Failure, Pack, Unpack};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use tar::{Archive, Builder, Entry, EntryType, Header};

use super::directory::{refuse_cgroup, refuse_change};
use super::place::Place;
use super::{DIRECTORY_MODE, Directory, checked, make_directories, owner};
use crate::blocking::{BLOCK_BYTES, Blocks, Framing, Inlet, Threads, consume, produce};
use crate::failing::{Stop, errno, invalid, io_error};
use crate::operations::Answer;
use crate::users::Identity;

/// Names of entries that wait to be packed.
const NAMES_MAX: usize = 2_000_000;

/// `pack`.
pub(crate) async fn pack(
    threads: &Threads,
    request: Pack,
    response: &mut RecordWriter,
) -> Result<Answer, Stop> {
    checked(&request.path)?;
    let sent = produce(threads, response, Framing::Data, move |outlet| {
        pack_tree(Path::new(&request.path), Blocks::new(outlet))
            .map_err(|error| io_error(&request.path, &error))
    })
    .await?;
    Ok(Answer::done(sent))
}

/// Packs a path with everything below on the same file system (so not `/proc` with `/`).
fn pack_tree(root: &Path, blocks: Blocks) -> io::Result<u64> {
    let top = Place::of(root)?;
    let name = PathBuf::from(top.name());
    let metadata = top.metadata()?;
    let device = metadata.dev();
    let mut builder = Builder::new(blocks);
    append(&mut builder, (top.directory(), top.name()), &name, &metadata)?;
    let mut held = 0;
    let mut stack = Vec::new();
    if metadata.is_dir() {
        stack.push(Packed::open(root.to_path_buf(), name, &mut held)?);
    }
    while let Some(packed) = stack.last_mut() {
        let Some(child) = packed.children.pop() else {
            stack.pop();
            continue;
        };
        held -= 1;
        let (place, name) = (packed.place.join(&child), packed.name.join(&child));
        // An entry that goes away meanwhile is left out, and so are those of a directory that does.
        let found = packed.directory().and_then(|here| Ok((here.metadata(&child)?, here)));
        let (metadata, here) = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        append(&mut builder, (here, &child), &name, &metadata)?;
        if metadata.is_dir() && metadata.dev() == device {
            packed.directory = None;
            stack.push(Packed::open(place, name, &mut held)?);
        }
    }
    let mut blocks = builder.into_inner()?;
    blocks.flush()?;
    Ok(blocks.written)
}

/// A directory that is being packed.
struct Packed {
    place: PathBuf,
    /// In the archive.
    name: PathBuf,
    /// Names whose turn has not come, the next one last.
    children: Vec<OsString>,
    /// Closed while one below it is packed: a tree may be deeper than descriptors go.
    directory: Option<Directory>,
}

impl Packed {
    /// Reads a directory. `held` counts the names that wait in all of them.
    fn open(place: PathBuf, name: PathBuf, held: &mut usize) -> io::Result<Self> {
        let directory = Directory::open(&place)?;
        let mut children = Vec::new();
        for entry in directory.entries()? {
            *held += 1;
            if *held > NAMES_MAX {
                return Err(io::Error::other(format!("directories with more than {NAMES_MAX} entries")));
            }
            children.push(entry?.0);
        }
        children.sort_unstable_by(|a: &OsString, b| b.cmp(a));
        Ok(Self { place, name, children, directory: Some(directory) })
    }

    fn directory(&mut self) -> io::Result<&Directory> {
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None => Directory::open(&self.place)?,
        };
        Ok(self.directory.insert(directory))
    }
}

fn append(
    builder: &mut Builder<Blocks>,
    (directory, entry): (&Directory, &OsStr),
    name: &Path,
    metadata: &Metadata,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_metadata(metadata);
    header.set_size(0);
    let kind = metadata.file_type();
    if kind.is_file() {
        let file = match directory.open_regular(entry) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        header.set_size(metadata.len());
        builder.append_data(&mut header, name, Exactly { file, left: metadata.len() })
    } else if kind.is_dir() {
        builder.append_data(&mut header, name, io::empty())
    } else if kind.is_symlink() {
        builder.append_link(&mut header, name, directory.read_link(entry)?)
    } else {
        // A device, FIFO or socket: nothing that could be unpacked elsewhere.
        Ok(())
    }
}

/// Gives exactly as many bytes as the header promised, though the file changes: cut, or zeros.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let mut len = self.file.read(&mut buf[..want])?;
        if len == 0 && want > 0 {
            buf[..want].fill(0);
            len = want;
        }
        self.left -= len as u64;
        Ok(len)
    }
}

/// `unpack`.
pub(crate) async fn unpack(threads: &Threads, request: &mut RecordReader) -> Result<Answer, Stop> {
    let wanted: Unpack = request.message().await?;
    checked(&wanted.path)?;
    let written = consume(threads, request, move |inlet| unpack_tree(&wanted, inlet)).await?;
    Ok(Answer::done(written))
}

/// The failure for an error of the archive itself: errors of the reader without an error number of the
/// kernel are about its form.
fn unreadable(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(_) => io_error("archive", error),
        None => invalid(format!("the archive cannot be read: {error}")),
    }
}

fn unpack_tree(request: &Unpack, inlet: Inlet) -> Result<u64, Failure> {
    let forced = if request.user.is_empty() { None } else { Some(owner(&request.user)?) };
    let maker = owner(&request.user)?;
    let root = Path::new(&request.path);
    make_directories(root, DIRECTORY_MODE, &maker)?;
    let directory = Directory::open(root).and_then(|root| root.to_read());
    let directory = directory.map_err(|error| io_error(&request.path, &error))?;
    let resolve = if root == Path::new("/") { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
    let mut below = Below { directory, resolve: resolve | ResolveFlags::NO_MAGICLINKS, forced, maker };
    let mut archive = Archive::new(inlet);
    let mut written = 0;
    for entry in archive.entries().map_err(|error| unreadable(&error))? {
        let entry = entry.map_err(|error| unreadable(&error))?;
        written += below.unpack(entry)?;
    }
    // The host may send padding after the archive's end.
    let mut inlet = archive.into_inner();
    while inlet.next().map_err(|error| unreadable(&error))?.is_some() {}
    Ok(written)
}

/// The directory that an archive is unpacked below.
struct Below {
    directory: OwnedFd,
    resolve: ResolveFlags,
    /// Owner of everything, instead of the archive's numbers.
    forced: Option<Identity>,
    /// Owner of directories that the archive takes for granted.
    maker: Identity,
}

impl Below {
    fn unpack(&mut self, mut entry: Entry<'_, Inlet>) -> Result<u64, Failure> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(0);
        }
        let name = member(&entry.path_bytes())?;
        let shown = name.display().to_string();
        let told = |cause: Errno| refused(&shown, cause);
        // The directory itself, as `./`.
        let Some(leaf) = name.file_name().map(OsStr::to_owned) else { return Ok(0) };
        let parent = self.parent(name.parent().unwrap_or(Path::new("")))?;
        refuse_change(&parent).map_err(told)?;
        #[expect(clippy::wildcard_enum_match_arm, reason = "whatever is not known is refused")]
        let fd = match kind {
            EntryType::Directory => self.make_directory(&parent, &leaf).map_err(told)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                clear(&parent, &leaf).map_err(told)?;
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(&parent, &leaf, flags, Mode::from_raw_mode(0o600)).map_err(told)?
            }
            EntryType::Symlink => {
                let target = link_name(&entry)?;
                clear(&parent, &leaf).map_err(told)?;
                rustix::fs::symlinkat(target.as_os_str(), &parent, &leaf).map_err(told)?;
                let (uid, gid) = self.owner(entry.header())?;
                let owner =
                    rustix::fs::chownat(&parent, &leaf, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
                return owner.map(|()| 0).map_err(told);
            }
            EntryType::Link => {
                let target = member(link_name(&entry)?.as_os_str().as_bytes())?;
                let target_leaf = target.file_name().ok_or_else(|| invalid("hard link to nothing"))?;
                let target_parent = self.parent(target.parent().unwrap_or(Path::new("")))?;
                clear(&parent, &leaf).map_err(told)?;
                let link = rustix::fs::linkat(&target_parent, target_leaf, &parent, &leaf, AtFlags::empty());
                return link.map(|()| 0).map_err(told);
            }
            _ => return Err(invalid(format!("{shown}: a member of this kind is not unpacked"))),
        };
        // It may be mounted here.
        refuse_cgroup(&fd).map_err(told)?;
        let mut file = File::from(fd);
        let mut written = 0;
        if kind != EntryType::Directory {
            written = copy(&mut entry, &mut file).map_err(|error| io_error(&shown, &error))?;
        }
        self.finish(&file, entry.header()).map_err(told)?;
        Ok(written)
    }

    /// Sets owner, permissions and time of an unpacked file.
    fn finish(&self, file: &File, header: &Header) -> Result<(), Errno> {
        let (uid, gid) = self.owner(header).or(Err(Errno::INVAL))?;
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
        let mode = header.mode().unwrap_or(0o644) & super::MODE_BITS;
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
        let time = Timespec { tv_sec: i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0), tv_nsec: 0 };
        rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })
    }

    fn owner(&self, header: &Header) -> Result<(Uid, Gid), Failure> {
        if let Some(forced) = &self.forced {
            return Ok((Uid::from_raw(forced.uid), Gid::from_raw(forced.gid)));
        }
        let id = |value: io::Result<u64>| {
            let id = value.ok().and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX);
            id.ok_or_else(|| invalid("a member's owner is out of range"))
        };
        Ok((Uid::from_raw(id(header.uid())?), Gid::from_raw(id(header.gid())?)))
    }

    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), self.resolve) {
            Err(Errno::NOSYS) => {
                let in_root = self.resolve.contains(ResolveFlags::IN_ROOT);
                super::walk::open_directory(&self.directory, path, in_root)
            }
            opened => opened,
        }
    }

    /// The directory of a member; made when the archive did not.
    fn parent(&self, path: &Path) -> Result<OwnedFd, Failure> {
        let told = |cause: Errno| refused(&path.display().to_string(), cause);
        match self.open(path) {
            Err(Errno::NOENT) => {}
            opened => return opened.map_err(told),
        }
        let mut place = PathBuf::new();
        let mut current = self.open(&place).map_err(told)?;
        for part in path.components() {
            place.push(part);
            current = match self.open(&place) {
                Err(Errno::NOENT) => {
                    refuse_change(&current).map_err(told)?;
                    rustix::fs::mkdirat(&current, part.as_os_str(), Mode::from_raw_mode(DIRECTORY_MODE))
                        .map_err(told)?;
                    let made = self.open(&place).map_err(told)?;
                    let (uid, gid) = (Uid::from_raw(self.maker.uid), Gid::from_raw(self.maker.gid));
                    rustix::fs::chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
                        .map_err(told)?;
                    made
                }
                opened => opened.map_err(told)?,
            };
        }
        Ok(current)
    }

    /// A directory that exists stays, with its content.
    fn make_directory(&self, parent: &OwnedFd, leaf: &OsStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::mkdirat(parent, leaf, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                if let Ok(directory) = rustix::fs::openat(parent, leaf, flags, Mode::empty()) {
                    return Ok(directory);
                }
                clear(parent, leaf)?;
                rustix::fs::mkdirat(parent, leaf, Mode::from_raw_mode(0o700))?;
            }
            Err(error) => return Err(error),
        }
        rustix::fs::openat(parent, leaf, flags, Mode::empty())
    }
}

/// The kernel's word about a member. Leading outside is the archive's fault, not the file system's.
fn refused(name: &str, cause: Errno) -> Failure {
    if cause == Errno::XDEV || cause == Errno::LOOP {
        return invalid(format!("{name}: leads outside the directory"));
    }
    errno(name, cause)
}

/// Makes room for a member: removes the entry of that name, unless it is a directory.
fn clear(parent: &OwnedFd, leaf: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, leaf, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A member's name: relative, below the directory. Bytes need not be UTF-8.
fn member(name: &[u8]) -> Result<PathBuf, Failure> {
    if name.len() >= PATH_MAX_BYTES || name.contains(&0) {
        return Err(invalid("a member's name is malformed"));
    }
    let mut path = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(name)).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                let shown = String::from_utf8_lossy(name);
                return Err(invalid(format!("{shown}: leads outside the directory")));
            }
        }
    }
    Ok(path)
}

fn link_name(entry: &Entry<'_, Inlet>) -> Result<PathBuf, Failure> {
    let name = entry.link_name_bytes().ok_or_else(|| invalid("a link has no target"))?;
    if name.is_empty() || name.len() >= PATH_MAX_BYTES || name.contains(&0) {
        return Err(invalid("a link's target is malformed"));
    }
    Ok(PathBuf::from(OsStr::from_bytes(&name)))
}

fn copy(from: &mut impl Read, to: &mut File) -> io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut written = 0;
    loop {
        let len = from.read(&mut block)?;
        if len == 0 {
            return Ok(written);
        }
        to.write_all(&block[..len])?;
        written += len as u64;
    }
}
