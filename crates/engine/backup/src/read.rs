//! From an archive to a data directory, or just through it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::fstatvfs;
use serde::Deserialize;
use zstd::stream::read::Decoder;

use crate::Watch;
use crate::error::{BackupError, Result, shown};
use crate::format::{FORMAT, HEADER, HEADER_MAX_BYTES, Header, MANIFEST};
use crate::manifest::Lines;
use crate::member::{BLOCK, Kind, Member};
use crate::place::{Place, describe};
use crate::sparse::{self, Segment};

/// What a compressed file begins with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Largest window that a file may ask to be kept in memory, as a power of two: 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Written at once, bytes.
const PIECE_BYTES: usize = 1 << 20;
/// Zero bytes after the last member, at most.
const TAIL_MAX_BYTES: u64 = 64 << 10;

/// A backup whose header was read.
pub struct Backup<R: Read> {
    archive: Decoder<'static, BufReader<R>>,
    header: Header,
    own: (Member, blake3::Hash),
    piece: Vec<u8>,
}

impl<R: Read> std::fmt::Debug for Backup<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").field("header", &self.header).finish_non_exhaustive()
    }
}

/// What a header of any format has.
#[derive(Deserialize)]
struct AnyHeader {
    format: u32,
    #[serde(default)]
    program: String,
}

fn invalid(why: &str) -> BackupError {
    BackupError::Invalid(why.to_owned())
}

impl<R: Read> Backup<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`BackupError::Newer`], [`BackupError::Invalid`], [`BackupError::Io`].
    pub fn open(file: R) -> Result<Self> {
        let mut file = BufReader::new(file);
        if !file.fill_buf().map_err(BackupError::unreadable)?.starts_with(&ZSTD_MAGIC) {
            return Err(invalid("it does not begin as one"));
        }
        let mut archive = Decoder::with_buffer(file).map_err(BackupError::unreadable)?;
        archive.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(BackupError::unreadable)?;
        let first = Member::read(&mut archive)?.filter(|first| first.path == HEADER);
        let first = first.filter(|first| first.stored <= HEADER_MAX_BYTES);
        let first = first.ok_or_else(|| invalid("it does not begin with a header"))?;
        let mut text = Vec::new();
        archive.by_ref().take(first.stored).read_to_end(&mut text).map_err(BackupError::unreadable)?;
        skip_padding(&mut archive, first.stored)?;
        let malformed = |error| BackupError::Invalid(format!("its header is malformed ({error})"));
        let any: AnyHeader = serde_json::from_slice(&text).map_err(malformed)?;
        if any.format > FORMAT {
            let program = shown(any.program.as_bytes());
            return Err(BackupError::Newer { format: any.format, program });
        }
        let header: Header = serde_json::from_slice(&text).map_err(malformed)?;
        if header.format != FORMAT {
            return Err(invalid("its header names no format"));
        }
        let digest = blake3::hash(&text);
        Ok(Self { archive, header, own: (first, digest), piece: vec![0; PIECE_BYTES] })
    }

    /// The header as the backup has it. Whether it fits the content is known only at the end.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads everything and compares it with the manifest; gives the header. `scratch` is a directory for a file without a name.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn check(self, scratch: &Path, watch: &Watch<'_, impl Fn(u64)>) -> Result<Header> {
        self.members(None, scratch, watch)
    }

    /// The same, making everything below the empty directory `root`, in which no other process works. The files may be
    /// used only if this succeeds, and survive a power cut only after the caller has synced them.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn unpack(
        self,
        root: BorrowedFd<'_>,
        scratch: &Path,
        watch: &Watch<'_, impl Fn(u64)>,
    ) -> Result<Header> {
        let space = fstatvfs(root).map_err(|errno| BackupError::io("measure the disk", errno))?;
        let (needed_bytes, free_bytes) = (self.header.bytes, space.f_bavail.saturating_mul(space.f_frsize));
        if needed_bytes > free_bytes {
            return Err(BackupError::NoRoom { needed_bytes, free_bytes });
        }
        self.members(Some(Place::new(root)), scratch, watch)
    }

    fn members(
        mut self,
        mut place: Option<Place<'_>>,
        scratch: &Path,
        watch: &Watch<'_, impl Fn(u64)>,
    ) -> Result<Header> {
        let mut lines = Lines::new(scratch)?;
        lines.push(&self.own.0, Some(self.own.1))?;
        let (mut members, mut bytes, mut last) = (0_u64, 0_u64, Vec::new());
        let manifest = loop {
            let member =
                Member::read(&mut self.archive)?.ok_or_else(|| invalid("its manifest is missing"))?;
            if member.path == MANIFEST {
                break member;
            }
            members += 1;
            bytes = bytes.saturating_add(member.stored);
            if member.is_own() || members > self.header.members || bytes > self.header.bytes {
                return Err(BackupError::member(&member.path, "is more than its header announces"));
            }
            if !may_follow(&last, &member) {
                return Err(BackupError::member(&member.path, "comes twice, or not where it belongs"));
            }
            let digest = self.member(&member, place.as_mut(), watch)?;
            lines.push(&member, digest)?;
            last = member.path;
        };
        lines.compare(self.archive.by_ref().take(manifest.stored))?;
        skip_padding(&mut self.archive, manifest.stored)?;
        if (members, bytes) != (self.header.members, self.header.bytes) {
            return Err(invalid("it holds less than its header announces"));
        }
        end(self.archive)?;
        Ok(self.header)
    }

    fn member(
        &mut self,
        member: &Member,
        place: Option<&mut Place<'_>>,
        watch: &Watch<'_, impl Fn(u64)>,
    ) -> Result<Option<blake3::Hash>> {
        if member.kind != Kind::File {
            watch.done(0)?;
            return place.map_or(Ok(None), |place| place.make(member).map(|()| None));
        }
        let file = place.map(|place| place.file(member)).transpose()?;
        let digest = self.content(member, file.as_ref(), watch)?;
        skip_padding(&mut self.archive, member.stored)?;
        if let Some(file) = file {
            describe(member, file.as_fd())?;
        }
        Ok(Some(digest))
    }

    fn content(
        &mut self,
        member: &Member,
        file: Option<&File>,
        watch: &Watch<'_, impl Fn(u64)>,
    ) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        let mut map = vec![Segment { offset: 0, bytes: member.size }];
        if member.has_map {
            map = sparse::decode(member.size, member.stored, || {
                let mut block = [0; BLOCK];
                self.archive.read_exact(&mut block).map_err(BackupError::unreadable)?;
                hasher.update(&block);
                watch.done(BLOCK as u64)?;
                Ok(block)
            })?;
        }
        for Segment { offset, bytes } in map {
            let (mut at, end) = (offset, offset + bytes);
            while at < end {
                let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let piece = &mut self.piece[..length];
                self.archive.read_exact(piece).map_err(BackupError::unreadable)?;
                hasher.update(piece);
                if let Some(file) = file {
                    let written = file.write_all_at(piece, at);
                    written.map_err(|error| {
                        BackupError::io(format!("write '{}'", shown(&member.path)), error)
                    })?;
                }
                watch.done(length as u64)?;
                at += length as u64;
            }
        }
        Ok(hasher.finalize())
    }
}

/// Whether a member may come after the member with the path `last`. Members are ordered by name, and a directory comes
/// after its content. So no path comes twice, and a path that has members below it is a directory.
fn may_follow(last: &[u8], member: &Member) -> bool {
    let (mut before, mut now) = (last.split(|byte| *byte == b'/'), member.path.split(|byte| *byte == b'/'));
    loop {
        match (before.next(), now.next()) {
            (Some(before), Some(now)) if before == now => {}
            (Some(before), Some(now)) => return before < now,
            (Some(_), None) => return member.kind == Kind::Dir,
            (None, _) => return false,
        }
    }
}

fn skip_padding(archive: &mut impl Read, bytes: u64) -> Result<()> {
    let rest = bytes.next_multiple_of(BLOCK as u64) - bytes;
    let skipped = io::copy(&mut archive.take(rest), &mut io::sink()).map_err(BackupError::unreadable)?;
    if skipped == rest { Ok(()) } else { Err(invalid("it ends in the middle")) }
}

/// Nothing but zeros may follow, and the compressed file's own checksum must be right.
fn end(archive: impl Read) -> Result<()> {
    let mut tail = Vec::new();
    archive.take(TAIL_MAX_BYTES).read_to_end(&mut tail).map_err(BackupError::unreadable)?;
    let is_end =
        tail.len() >= 2 * BLOCK && (tail.len() as u64) < TAIL_MAX_BYTES && tail.iter().all(|byte| *byte == 0);
    if is_end { Ok(()) } else { Err(invalid("something follows its end")) }
}
