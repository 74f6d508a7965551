//! From a data directory to an archive.

use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use zstd::stream::write::Encoder;

use crate::Watch;
use crate::error::{BackupError, Result, shown};
use crate::format::{FORMAT, HEADER, Header, MANIFEST, Subject};
use crate::manifest::Lines;
use crate::member::{BLOCK, Member};
use crate::sparse::{self, Segment};
use crate::walk::{Content, Found, walk};

/// Speed before size.
const ZSTD_LEVEL: i32 = 3;
/// Read at once, bytes.
const PIECE_BYTES: usize = 1 << 20;

fn unwritable(error: io::Error) -> BackupError {
    BackupError::io("write the backup", error)
}

/// Writes the data directory below `root`, in which no process may change anything meanwhile. Calls `begun` with the
/// number of bytes of content, before it writes the first of them. Gives the header. `scratch` is a directory for a
/// file without a name.
///
/// # Errors
/// [`BackupError`]. The output is useless then.
pub fn pack(
    root: BorrowedFd<'_>,
    of: Subject,
    (program, created_at_ms): (&str, u64),
    out: impl Write,
    scratch: &Path,
    begun: impl FnOnce(u64),
    watch: &Watch<'_, impl Fn(u64)>,
) -> Result<Header> {
    let (mut members, mut bytes) = (0, 0);
    walk(root, &mut |found| {
        members += 1;
        bytes += found.member.stored;
        watch.done(0)
    })?;
    begun(bytes);
    let header = Header { format: FORMAT, program: program.to_owned(), created_at_ms, members, bytes, of };
    let mut encoder = Encoder::new(out, ZSTD_LEVEL).map_err(unwritable)?;
    encoder.include_checksum(true).map_err(unwritable)?;
    let mut writer =
        Writer { out: encoder, lines: Lines::new(scratch)?, piece: vec![0; PIECE_BYTES], bytes: 0 };
    let text = serde_json::to_vec(&header).map_err(|error| unwritable(error.into()))?;
    writer.own(HEADER, &text)?;
    walk(root, &mut |found| {
        let stored = found.member.stored;
        writer.member(found, watch)?;
        writer.bytes += stored;
        // A backup that holds more than its header says cannot be restored.
        if writer.bytes > bytes { Err(changed()) } else { Ok(()) }
    })?;
    // The header's own line is one more.
    if (writer.lines.count(), writer.bytes) != (members + 1, bytes) {
        return Err(changed());
    }
    writer.finish()?;
    Ok(header)
}

fn changed() -> BackupError {
    BackupError::Unfit("the data directory changed while it was read: somebody else works in it".to_owned())
}

struct Writer<W: Write> {
    out: Encoder<'static, W>,
    lines: Lines,
    piece: Vec<u8>,
    /// Of content.
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// A small file of ours.
    fn own(&mut self, path: &[u8], content: &[u8]) -> Result<()> {
        let member = Member::own(path, content.len() as u64);
        self.out.write_all(&member.encode()?).map_err(unwritable)?;
        self.out.write_all(content).map_err(unwritable)?;
        pad(&mut self.out, member.stored)?;
        self.lines.push(&member, Some(blake3::hash(content)))
    }

    fn member(&mut self, found: Found, watch: &Watch<'_, impl Fn(u64)>) -> Result<()> {
        let Found { member, content } = found;
        self.out.write_all(&member.encode()?).map_err(unwritable)?;
        let Some(content) = content else {
            watch.done(0)?;
            return self.lines.push(&member, None);
        };
        let digest = self.content(&member, &content, watch)?;
        pad(&mut self.out, member.stored)?;
        self.lines.push(&member, Some(digest))
    }

    fn content(
        &mut self,
        member: &Member,
        content: &Content,
        watch: &Watch<'_, impl Fn(u64)>,
    ) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        let whole = [Segment { offset: 0, bytes: member.size }];
        if let Some(map) = &content.map {
            let text = sparse::encode(map);
            hasher.update(&text);
            self.out.write_all(&text).map_err(unwritable)?;
            watch.done(text.len() as u64)?;
        }
        for segment in content.map.as_deref().unwrap_or(&whole) {
            let (mut at, mut left) = (segment.offset, segment.bytes);
            while left > 0 {
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let piece = &mut self.piece[..length];
                content.file.read_exact_at(piece, at).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => changed(),
                    _ => BackupError::io(format!("read '{}'", shown(&member.path)), error),
                })?;
                hasher.update(piece);
                self.out.write_all(piece).map_err(unwritable)?;
                watch.done(length as u64)?;
                (at, left) = (at + length as u64, left - length as u64);
            }
        }
        // Disks are read only once: their pages must not push pages that are in use out of the page cache.
        drop(atoll_isolation::sparse::forget(&content.file));
        Ok(hasher.finalize())
    }

    /// The manifest, and the end of the archive.
    fn finish(self) -> Result<()> {
        let Self { mut out, lines, .. } = self;
        let (mut lines, bytes) = lines.finish()?;
        out.write_all(&Member::own(MANIFEST, bytes).encode()?).map_err(unwritable)?;
        io::copy(&mut lines, &mut out).map_err(unwritable)?;
        pad(&mut out, bytes)?;
        out.write_all(&[0; 2 * BLOCK]).map_err(unwritable)?;
        let mut out = out.finish().map_err(unwritable)?;
        out.flush().map_err(unwritable)
    }
}

/// Fills the last block.
fn pad(out: &mut impl Write, bytes: u64) -> Result<()> {
    let rest = bytes.next_multiple_of(BLOCK as u64) - bytes;
    io::copy(&mut io::repeat(0).take(rest), out).map(drop).map_err(unwritable)
}
