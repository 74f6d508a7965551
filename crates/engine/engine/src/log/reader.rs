//! Readers of a log: any number, each at its own offset and pace. Blocking.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use atoll_core::exec::OutputStream;
use bytes::{Bytes, BytesMut};

use super::segment::{Index, Record, WINDOW_RECORDS, data_path, list};
use super::{Extent, READ_MAX_BYTES, TIMES_EVERY_MS};

/// What a reader finds at its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of one stream.
    Output {
        /// Offset of the first.
        offset: u64,
        /// Which stream.
        stream: OutputStream,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// Bytes from the reader's offset to here were dropped.
    Gap {
        /// First dropped byte.
        from: u64,
        /// One past the last dropped byte.
        to: u64,
    },
}

/// Where a log begins and ends on disk, for one that is not written any more.
///
/// # Errors
/// What the file system says.
pub(crate) fn extent(dir: &Path) -> io::Result<Extent> {
    let starts = list(dir)?;
    let (Some(&first), Some(&last)) = (starts.first(), starts.last()) else { return Ok(Extent::default()) };
    Ok(Extent { first, end: last + std::fs::metadata(data_path(dir, last))?.len() })
}

/// Where what was written from a time on (milliseconds since the epoch) begins, of what is kept; up to a second earlier. The end when there is none.
///
/// # Errors
/// What the file system says.
pub(crate) fn offset_since(dir: &Path, since_ms: u64, end: u64) -> io::Result<u64> {
    for start in list(dir)? {
        let index = match Index::open(dir, start) {
            // Dropped meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            index => index?,
        };
        let mut at = 0;
        loop {
            let records = index.window(at)?;
            // What comes after a record is at most so much younger: then there is another one.
            let young = |record: &&Record| record.at_ms.saturating_add(TIMES_EVERY_MS) > since_ms;
            if let Some(first) = records.iter().find(young) {
                return Ok(first.offset.min(end));
            }
            if records.is_empty() {
                break;
            }
            at += records.len() as u64;
        }
    }
    Ok(end)
}

/// Reads a log from an offset on.
#[derive(Debug)]
pub(crate) struct LogReader {
    dir: PathBuf,
    offset: u64,
    open: Option<OpenSegment>,
    /// Where a freshly opened segment had nothing to read.
    empty_at: Option<u64>,
}

#[derive(Debug)]
struct OpenSegment {
    start: u64,
    /// One past its last byte, once a later segment exists.
    sealed_end: Option<u64>,
    data: File,
    /// Records of its index, from this number on.
    window: Vec<Record>,
    first: u64,
}

impl LogReader {
    /// A reader that starts at `offset`.
    pub(crate) fn new(dir: &Path, offset: u64) -> Self {
        Self { dir: dir.to_owned(), offset, open: None, empty_at: None }
    }

    /// Offset of the next byte it will read.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Records of the index that it holds.
    #[cfg(test)]
    pub(super) fn held_records(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.window.len())
    }

    /// The next piece, at most `max` bytes, or `None` when the reader is at the end. `extent` is what
    /// the writer published; it may be older than the files.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn next_piece(&mut self, extent: Extent, max: usize) -> io::Result<Option<Piece>> {
        loop {
            if self.offset >= extent.end {
                return Ok(None);
            }
            let found = match self.segment_at_offset() {
                Ok(found) => found,
                // The writer dropped it between listing and opening: look again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let Some(first) = found else {
                let piece = Piece::Gap { from: self.offset, to: extent.end };
                self.offset = extent.end;
                return Ok(Some(piece));
            };
            if first > self.offset {
                let piece = Piece::Gap { from: self.offset, to: first };
                self.offset = first;
                return Ok(Some(piece));
            }
            if let Some(piece) = self.read(extent, max.clamp(1, READ_MAX_BYTES))? {
                return Ok(Some(piece));
            }
        }
    }

    /// Makes sure that the segment holding the offset is open. Gives the first offset that can be read:
    /// larger than the reader's when older segments are gone, `None` when there are no segments.
    fn segment_at_offset(&mut self) -> io::Result<Option<u64>> {
        if let Some(open) = &self.open
            && open.start <= self.offset
            && open.sealed_end.is_none_or(|end| self.offset < end)
        {
            return Ok(Some(self.offset));
        }
        let starts = list(&self.dir)?;
        let after = starts.partition_point(|start| *start <= self.offset);
        let Some(at) = after.checked_sub(1) else { return Ok(starts.first().copied()) };
        let start = starts[at];
        self.open = Some(OpenSegment {
            start,
            sealed_end: starts.get(after).copied(),
            data: File::open(data_path(&self.dir, start))?,
            window: Vec::new(),
            first: 0,
        });
        Ok(Some(self.offset))
    }

    fn read(&mut self, extent: Extent, max: usize) -> io::Result<Option<Piece>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let found = match open.run(&self.dir, self.offset) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Meanwhile the writer has dropped it.
                self.open = None;
                return Ok(None);
            }
            found => found?,
        };
        let Some((stream, next)) = found else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "log index has no record for an offset"));
        };
        let end_of_gap = open.sealed_end.unwrap_or(extent.end).min(extent.end);
        let mut end = extent.end.min(next.unwrap_or(u64::MAX));
        if let Some(sealed) = open.sealed_end {
            end = end.min(sealed);
        }
        let want = usize::try_from(end.saturating_sub(self.offset)).unwrap_or(usize::MAX).min(max);
        let mut buffer = BytesMut::zeroed(want);
        let got = open.data.read_at(&mut buffer, self.offset - open.start)?;
        if got == 0 {
            // Mostly the segment ended here and a newer one has begun: open that one.
            self.open = None;
            if self.empty_at.replace(self.offset) != Some(self.offset) {
                return Ok(None);
            }
            // Nothing, although it was opened afresh: the bytes were lost with the machine.
            let piece = Piece::Gap { from: self.offset, to: end_of_gap };
            self.offset = end_of_gap;
            return Ok(Some(piece));
        }
        buffer.truncate(got);
        let piece = Piece::Output { offset: self.offset, stream, bytes: buffer.freeze() };
        self.offset += got as u64;
        Ok(Some(piece))
    }
}

impl OpenSegment {
    /// The stream of the byte at an offset, and up to where the index is known to say the same; `None` for the latter when
    /// that is to the end, and for all when the index says nothing of the offset.
    fn run(&mut self, dir: &Path, offset: u64) -> io::Result<Option<(OutputStream, Option<u64>)>> {
        let known = run(&self.window, offset);
        let whole = self.sealed_end.is_some() && self.window.len() < WINDOW_RECORDS;
        if known.is_some_and(|(_, next)| next.is_some() || whole) {
            return Ok(known);
        }
        // The newest segment may have had changes of stream since the index was read.
        let index = Index::open(dir, self.start)?;
        let from = if known.is_some() { self.first } else { 0 };
        let Some(first) = index.count_until(offset, from)?.checked_sub(1) else { return Ok(None) };
        (self.window, self.first) = (index.window(first)?, first);
        let found = run(&self.window, offset);
        // It goes on after the window: up to there it is the same.
        let last = self.window.last().filter(|_| self.window.len() == WINDOW_RECORDS);
        Ok(found.map(|(stream, next)| (stream, next.or(last.map(|last| last.offset)))))
    }
}

/// The stream of the byte at an offset, and where the next byte of the other stream is, as far as these records say; `None`
/// before all that they say.
fn run(records: &[Record], offset: u64) -> Option<(OutputStream, Option<u64>)> {
    let after = records.partition_point(|record| record.offset <= offset);
    let stream = records.get(after.checked_sub(1)?)?.stream;
    let next = records[after..].iter().find(|record| record.stream != stream);
    Some((stream, next.map(|record| record.offset)))
}
