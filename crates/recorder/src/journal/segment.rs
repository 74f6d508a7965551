//! Files of a journal: their names, and their bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;

use crate::limits::{RECORD_MAX_BYTES, SEGMENT_MAX_BYTES};

const OPEN: &str = "log";
const CLOSED: &str = "log.zst";
/// Digits of a segment's name, which is the number of its first event.
const DIGITS: usize = 20;
/// Most of the recorder's processor time was the compressor's at higher levels, for a tenth of the bytes.
const LEVEL: i32 = 3;
/// A header is shorter.
const HEAD_MAX_BYTES: u64 = 4 << 10;
/// No segment is larger, unpacked: one write may go beyond the limit before the segment is closed.
const UNPACKED_MAX_BYTES: u64 = 64 * SEGMENT_MAX_BYTES + RECORD_MAX_BYTES as u64;

/// One segment's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    /// Number of its first event.
    pub(crate) first: u64,
    pub(crate) closed: bool,
    pub(crate) path: PathBuf,
}

pub(crate) fn open_path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:0DIGITS$}.{OPEN}"))
}

fn closed_path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:0DIGITS$}.{CLOSED}"))
}

/// The segments of a journal in order; none when there is no journal.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<Segment>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut segments = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some((digits, extension)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let number = (digits.len() == DIGITS).then(|| digits.parse().ok()).flatten();
        let (Some(first), OPEN | CLOSED) = (number, extension) else { continue };
        segments.push(Segment { first, closed: extension == CLOSED, path: entry.path() });
    }
    // A crash between the two steps of closing leaves both files: the closed one is whole.
    segments.sort_by_key(|segment| (segment.first, !segment.closed));
    segments.dedup_by_key(|segment| segment.first);
    Ok(segments)
}

/// All bytes of a segment, unpacked.
pub(crate) fn read(segment: &Segment) -> io::Result<Vec<u8>> {
    let file = File::open(&segment.path)?;
    let mut bytes = Vec::new();
    let size = if segment.closed {
        zstd::Decoder::new(file)?.take(UNPACKED_MAX_BYTES + 1).read_to_end(&mut bytes)?
    } else {
        // So that it is read at once. Most are short, and a server that starts reads one of each sandbox.
        let there = file.metadata()?.len().min(UNPACKED_MAX_BYTES);
        bytes.reserve(usize::try_from(there).unwrap_or_default());
        file.take(UNPACKED_MAX_BYTES + 1).read_to_end(&mut bytes)?
    };
    if size as u64 > UNPACKED_MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the segment is larger than any that is written",
        ));
    }
    Ok(bytes)
}

/// The first bytes of a segment, unpacked: its header is in them.
pub(crate) fn read_head(segment: &Segment) -> io::Result<Vec<u8>> {
    let file = File::open(&segment.path)?;
    let mut bytes = Vec::new();
    if segment.closed {
        zstd::Decoder::new(file)?.take(HEAD_MAX_BYTES).read_to_end(&mut bytes)?;
    } else {
        file.take(HEAD_MAX_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// A new file that only the server's user reads.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)
}

/// A segment that the recorder writes no more, and that is not compressed yet.
#[derive(Debug)]
pub(crate) struct Unpacked {
    dir: PathBuf,
    first: u64,
}

impl Unpacked {
    pub(crate) fn new(dir: &Path, first: u64) -> Self {
        Self { dir: dir.to_owned(), first }
    }

    /// Compresses it. A crash leaves the open file, or both; nothing of it is dropped before all of it is on disk in the
    /// other form. Does nothing if it is compressed already, or gone with its journal.
    ///
    /// # Errors
    /// What the file system says. Then it is as it was, and may be compressed later.
    pub(crate) fn pack(&self) -> io::Result<()> {
        let Self { dir, first } = self;
        let (open, closed) = (open_path(dir, *first), closed_path(dir, *first));
        let mut from = match File::open(&open) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            from => from?,
        };
        let draft = dir.join(format!("{first:0DIGITS$}.draft"));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = pack(&mut from, create(&draft)?)?;
        file.sync_all()?;
        fs::rename(&draft, &closed)?;
        fs::remove_file(&open)
    }
}

/// Compresses one file into another. The size is told beforehand: most journals are small, and without it tables for large
/// ones would be cleared for each, which takes longer than compressing.
fn pack(from: &mut File, to: File) -> io::Result<File> {
    let mut encoder = zstd::Encoder::new(to, LEVEL)?;
    encoder.set_pledged_src_size(Some(from.metadata()?.len()))?;
    io::copy(from, &mut encoder)?;
    encoder.finish()
}

/// The sandboxes that have a journal below a recorder's directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn journals(dir: &Path) -> io::Result<Vec<SandboxId>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        ids.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
    }
    ids.sort();
    Ok(ids)
}
