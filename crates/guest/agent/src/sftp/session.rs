//! One session: requests in, answers out, one after the other.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, RenameFlags, Timespec, Timestamps};

use super::long_name::long_name;
use super::wire::{
    Attributes, BAD_MESSAGE, EOF, FAILURE, Fields, Malformed, NO_SUCH_FILE, OK, PERMISSION_DENIED, Reply,
    UNSUPPORTED, read_packet,
};
use crate::files::place::{Place, canonical, is_directory, stat};
use crate::files::{Directory, Entries};

const INIT: u8 = 1;
const VERSION: u8 = 2;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRIBUTES: u8 = 105;
const EXTENDED: u8 = 200;
const EXTENDED_REPLY: u8 = 201;

/// Open files and directories of one session.
const HANDLES_MAX: usize = 256;
/// Bytes of one read.
const READ_MAX_BYTES: u32 = 256 << 10;
/// Bytes of names in one answer.
const NAMES_MAX_BYTES: usize = 64 << 10;
/// Extensions that this server knows beyond version 3, with their versions.
const EXTENSIONS: [(&str, &str); 6] = [
    ("posix-rename@openssh.com", "1"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

enum Open {
    File { file: File, append: bool },
    Directory { directory: Directory, entries: Entries, dots: bool },
}

struct Session {
    home: PathBuf,
    /// Where relative paths begin.
    start: PathBuf,
    open: BTreeMap<u32, Open>,
    last: u32,
}

/// Why a request has no better answer.
enum Refusal {
    Status(u32),
    Io(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Status(BAD_MESSAGE)
    }
}

/// Serves until the stream ends.
pub(super) fn run(mut stream: UnixStream, home: &str, cwd: &str) -> io::Result<()> {
    let home = if is_directory(Path::new(home)) { PathBuf::from(home) } else { PathBuf::from("/") };
    let start = Path::new(cwd);
    let start = if start.is_absolute() && is_directory(start) { start.to_owned() } else { home.clone() };
    let mut session = Session { home, start, open: BTreeMap::new(), last: 0 };
    while let Some((kind, packet)) = read_packet(&mut stream)? {
        let answer = if kind == INIT { version() } else { session.answer(kind, &packet) };
        stream.write_all(&answer)?;
    }
    Ok(())
}

fn version() -> Vec<u8> {
    let mut reply = Reply::bare(VERSION);
    reply.put_u32(3);
    for (name, version) in EXTENSIONS {
        reply.put_bytes(name.as_bytes());
        reply.put_bytes(version.as_bytes());
    }
    reply.finish()
}

fn status(request: u32, code: u32, message: &str) -> Vec<u8> {
    let mut reply = Reply::new(STATUS, request);
    reply.put_u32(code);
    reply.put_bytes(message.as_bytes());
    reply.put_bytes(b"en");
    reply.finish()
}

fn done(request: u32) -> Vec<u8> {
    status(request, OK, "")
}

fn one_name(request: u32, path: &Path) -> Vec<u8> {
    let mut reply = Reply::new(NAME, request);
    reply.put_u32(1);
    reply.put_bytes(path.as_os_str().as_bytes());
    reply.put_bytes(path.as_os_str().as_bytes());
    reply.put_no_metadata();
    reply.finish()
}

impl Session {
    fn answer(&mut self, kind: u8, packet: &[u8]) -> Vec<u8> {
        let mut fields = Fields(packet);
        let Ok(request) = fields.u32() else { return status(0, BAD_MESSAGE, "no request number") };
        match self.request(kind, request, &mut fields) {
            Ok(answer) => answer,
            Err(Refusal::Status(code)) => status(request, code, ""),
            Err(Refusal::Io(error)) => {
                let code = match error.kind() {
                    io::ErrorKind::NotFound => NO_SUCH_FILE,
                    io::ErrorKind::PermissionDenied => PERMISSION_DENIED,
                    _ => FAILURE,
                };
                status(request, code, &error.to_string())
            }
        }
    }

    fn request(&mut self, kind: u8, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        match kind {
            3 => self.open_file(request, fields),
            4 => {
                let handle = fields.handle()?;
                self.open.remove(&handle).map(|_| done(request)).ok_or(Refusal::Status(FAILURE))
            }
            5 => self.read(request, fields),
            6 => self.write(request, fields),
            7 => self.metadata(request, self.place(fields)?.metadata()?),
            8 => {
                let metadata = self.file(fields)?.metadata()?;
                self.metadata(request, metadata)
            }
            9 => {
                let place = Place::follow(&self.path(fields)?)?;
                change(&place, fields.attributes()?)?;
                Ok(done(request))
            }
            10 => {
                let file = self.file(fields)?;
                change_open(file, fields.attributes()?)?;
                Ok(done(request))
            }
            11 => self.open_directory(request, fields),
            12 => self.read_directory(request, fields),
            13 => Ok(self.place(fields)?.remove_file().map(|()| done(request))?),
            14 => {
                let place = self.place(fields)?;
                place.make_directory(fields.attributes()?.mode.unwrap_or(0o755))?;
                Ok(done(request))
            }
            15 => Ok(self.place(fields)?.remove_directory().map(|()| done(request))?),
            16 => {
                let path = self.path(fields)?;
                Ok(one_name(request, &real_path(&path)))
            }
            17 => self.metadata(request, stat(&self.path(fields)?)?),
            18 => {
                let (from, to) = (self.place(fields)?, self.place(fields)?);
                // Version 3 says that renaming does not replace.
                from.rename(&to, RenameFlags::NOREPLACE)?;
                Ok(done(request))
            }
            19 => Ok(one_name(request, &self.place(fields)?.read_link()?)),
            20 => {
                // OpenSSH sends the two paths in the opposite order to the draft, and so does every client since.
                let (target, link) = (fields.path()?, self.place(fields)?);
                Ok(link.make_link(&target).map(|()| done(request))?)
            }
            EXTENDED => self.extended(request, fields),
            _ => Err(Refusal::Status(UNSUPPORTED)),
        }
    }

    /// A path; relative ones begin where the session does.
    fn path(&self, fields: &mut Fields<'_>) -> Result<PathBuf, Refusal> {
        Ok(self.start.join(fields.path()?))
    }

    /// What a path names: a link itself, when it is one.
    fn place(&self, fields: &mut Fields<'_>) -> Result<Place, Refusal> {
        Ok(Place::of(&self.path(fields)?)?)
    }

    fn metadata(&self, request: u32, metadata: Metadata) -> Result<Vec<u8>, Refusal> {
        let mut reply = Reply::new(ATTRIBUTES, request);
        reply.put_metadata(&metadata);
        Ok(reply.finish())
    }

    fn keep(&mut self, request: u32, open: Open) -> Result<Vec<u8>, Refusal> {
        if self.open.len() >= HANDLES_MAX {
            return Err(Refusal::Io(io::Error::other("too many open files in this session")));
        }
        self.last = self.last.wrapping_add(1);
        self.open.insert(self.last, open);
        let mut reply = Reply::new(HANDLE, request);
        reply.put_bytes(&self.last.to_be_bytes());
        Ok(reply.finish())
    }

    fn file(&self, fields: &mut Fields<'_>) -> Result<&File, Refusal> {
        match self.open.get(&fields.handle()?) {
            Some(Open::File { file, .. }) => Ok(file),
            Some(Open::Directory { .. }) | None => Err(Refusal::Status(FAILURE)),
        }
    }

    fn open_file(&mut self, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        const READ: u32 = 1;
        const WRITE: u32 = 2;
        const APPEND: u32 = 4;
        const CREATE: u32 = 8;
        const TRUNCATE: u32 = 16;
        const EXCLUSIVE: u32 = 32;
        let path = self.path(fields)?;
        let flags = fields.u32()?;
        let mode = fields.attributes()?.mode.unwrap_or(0o666);
        let has = |flag: u32| flags & flag != 0;
        let append = has(APPEND);
        let writes = has(WRITE) || append;
        let access = match (has(READ), writes) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (true, false) => OFlags::RDONLY,
            (false, false) => return Err(Refusal::Status(FAILURE)),
        };
        // A pipe that no process has open at its other end must not hold the session up.
        let mut how = access | OFlags::NONBLOCK | OFlags::NOCTTY;
        let creates = has(CREATE) && writes;
        how.set(OFlags::APPEND, append);
        how.set(OFlags::TRUNC, has(TRUNCATE) && has(WRITE) && !append);
        how.set(OFlags::EXCL, creates && has(EXCLUSIVE));
        let file = open_through_links(&path, how, creates, mode)?;
        self.keep(request, Open::File { file, append })
    }

    fn read(&self, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        let file = self.file(fields)?;
        let (offset, length) = (fields.u64()?, fields.u32()?.min(READ_MAX_BYTES));
        let mut buffer = vec![0; usize::try_from(length).unwrap_or_default()];
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        if filled == 0 && length > 0 {
            return Err(Refusal::Status(EOF));
        }
        let mut reply = Reply::new(DATA, request);
        reply.put_bytes(&buffer[..filled]);
        Ok(reply.finish())
    }

    fn write(&self, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        let handle = fields.handle()?;
        let (offset, bytes) = (fields.u64()?, fields.bytes()?);
        match self.open.get(&handle) {
            Some(Open::File { file, append: true }) => (&*file).write_all(bytes)?,
            Some(Open::File { file, append: false }) => file.write_all_at(bytes, offset)?,
            Some(Open::Directory { .. }) | None => return Err(Refusal::Status(FAILURE)),
        }
        Ok(done(request))
    }

    fn open_directory(&mut self, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        let directory = Directory::open(&self.path(fields)?)?;
        let entries = directory.entries()?;
        self.keep(request, Open::Directory { directory, entries, dots: true })
    }

    fn read_directory(&mut self, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        let handle = fields.handle()?;
        let Some(Open::Directory { directory, entries, dots }) = self.open.get_mut(&handle) else {
            return Err(Refusal::Status(FAILURE));
        };
        let mut names: Vec<OsString> = Vec::new();
        if std::mem::take(dots) {
            names.extend([OsString::from("."), OsString::from("..")]);
        }
        let mut body = Reply::bare(0);
        let mut count = 0;
        loop {
            let name = match names.pop() {
                Some(name) => name,
                None if body.len() > NAMES_MAX_BYTES => break,
                None => match entries.next() {
                    Some(Ok((name, _))) => name,
                    Some(Err(error)) => return Err(error.into()),
                    None => break,
                },
            };
            // An entry that went away meanwhile is left out.
            let Ok(metadata) = directory.metadata(&name) else { continue };
            body.put_bytes(name.as_bytes());
            body.put_bytes(long_name(&metadata, &name.to_string_lossy()).as_bytes());
            body.put_metadata(&metadata);
            count += 1;
        }
        if count == 0 {
            return Err(Refusal::Status(EOF));
        }
        let mut reply = Reply::new(NAME, request);
        reply.put_u32(count);
        reply.append(&body);
        Ok(reply.finish())
    }

    fn extended(&self, request: u32, fields: &mut Fields<'_>) -> Result<Vec<u8>, Refusal> {
        match fields.bytes()? {
            b"posix-rename@openssh.com" => {
                let (from, to) = (self.place(fields)?, self.place(fields)?);
                Ok(from.rename(&to, RenameFlags::empty()).map(|()| done(request))?)
            }
            b"hardlink@openssh.com" => {
                let (from, to) = (self.place(fields)?, self.place(fields)?);
                Ok(from.link_to(&to).map(|()| done(request))?)
            }
            b"fsync@openssh.com" => Ok(self.file(fields)?.sync_all().map(|()| done(request))?),
            b"lsetstat@openssh.com" => {
                let place = self.place(fields)?;
                let mut to = fields.attributes()?;
                if place.metadata()?.is_symlink() {
                    // A link's own mode means nothing.
                    to.mode = None;
                }
                change(&place, to)?;
                Ok(done(request))
            }
            b"limits@openssh.com" => {
                let mut reply = Reply::new(EXTENDED_REPLY, request);
                for limit in [
                    super::wire::PACKET_MAX_BYTES as u64,
                    READ_MAX_BYTES.into(),
                    READ_MAX_BYTES.into(),
                    HANDLES_MAX as u64,
                ] {
                    reply.put_u64(limit);
                }
                Ok(reply.finish())
            }
            b"expand-path@openssh.com" => {
                let path = fields.path()?;
                let below_home = path.strip_prefix("~").map(|rest| self.home.join(rest));
                Ok(one_name(request, &real_path(&below_home.unwrap_or_else(|_| self.start.join(&path)))))
            }
            _ => Err(Refusal::Status(UNSUPPORTED)),
        }
    }
}

impl Fields<'_> {
    fn handle(&mut self) -> Result<u32, Refusal> {
        let bytes = self.bytes()?;
        bytes.try_into().map(u32::from_be_bytes).map_err(|_length| Refusal::Status(FAILURE))
    }
}

/// The path without links, `.` and `..`; a path that does not exist is only tidied up.
fn real_path(path: &Path) -> PathBuf {
    if let Ok(real) = canonical(path) {
        return real;
    }
    let mut tidy = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => tidy.push(name),
            Component::ParentDir => drop(tidy.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    tidy
}

fn times(at: (u32, u32)) -> Timestamps {
    let time = |seconds: u32| Timespec { tv_sec: seconds.into(), tv_nsec: 0 };
    Timestamps { last_access: time(at.0), last_modification: time(at.1) }
}

fn owner(ids: (u32, u32)) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (Some(rustix::fs::Uid::from_raw(ids.0)), Some(rustix::fs::Gid::from_raw(ids.1)))
}

/// Opens a file, through all links; one that is made is made where the last of them leads.
fn open_through_links(path: &Path, how: OFlags, creates: bool, mode: u32) -> io::Result<File> {
    if !creates {
        return Place::follow(path)?.open(how, mode);
    }
    // With `O_EXCL` a link is in the way.
    let place = if how.contains(OFlags::EXCL) { Place::of(path) } else { Place::follow(path) }?;
    place.open(how | OFlags::CREATE, mode)
}

fn change(place: &Place, to: Attributes) -> io::Result<()> {
    if let Some(size) = to.size {
        place.open(OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY, 0)?.set_len(size)?;
    }
    if let Some((uid, gid)) = to.owner {
        place.set_owner(Some(uid), Some(gid))?;
    }
    if let Some(mode) = to.mode {
        place.set_mode(mode)?;
    }
    if let Some(at) = to.times {
        place.set_times(&times(at))?;
    }
    Ok(())
}

fn change_open(file: &File, to: Attributes) -> Result<(), Refusal> {
    if let Some(size) = to.size {
        file.set_len(size)?;
    }
    if let Some(ids) = to.owner {
        let (uid, gid) = owner(ids);
        rustix::fs::fchown(file, uid, gid)?;
    }
    if let Some(mode) = to.mode {
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
    }
    if let Some(at) = to.times {
        rustix::fs::futimens(file, &times(at))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_is_tidied_up() {
        assert_eq!(real_path(Path::new("/no-such-thing/./a/../b/../../../..")), Path::new("/"));
        assert_eq!(real_path(Path::new("/no-such-thing/a/../b")), Path::new("/no-such-thing/b"));
    }
}
