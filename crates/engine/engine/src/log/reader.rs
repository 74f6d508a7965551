//! Readers of a log: any number, each at its own offset and pace. Blocking.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use atoll_core::exec::OutputStream;
use bytes::{Bytes, BytesMut};

use super::segment::{Record, data_path, list, read_index};
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
        let index = match read_index(dir, start, 0) {
            // Dropped meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            index => index?,
        };
        // What comes after a record is at most so much younger: then there is another one.
        let mut young = index.iter().filter(|record| record.at_ms.saturating_add(TIMES_EVERY_MS) > since_ms);
        if let Some(first) = young.next() {
            return Ok(first.offset.min(end));
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
    index: Vec<Record>,
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
            index: read_index(&self.dir, start, 0)?,
        });
        Ok(Some(self.offset))
    }

    fn read(&mut self, extent: Extent, max: usize) -> io::Result<Option<Piece>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        if open.sealed_end.is_none() && run(&open.index, self.offset).is_none_or(|(_, end)| end.is_none()) {
            // The newest segment may have had changes of stream since the index was read.
            match read_index(&self.dir, open.start, open.index.len()) {
                Ok(more) => open.index.extend(more),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // It was the newest once; meanwhile the writer has dropped it.
                    self.open = None;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let Some((stream, next)) = run(&open.index, self.offset) else {
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

/// The stream of the byte at an offset, and where the next byte of the other stream is, as far as the index says; `None` before all that it says.
fn run(index: &[Record], offset: u64) -> Option<(OutputStream, Option<u64>)> {
    let after = index.partition_point(|record| record.offset <= offset);
    let stream = index.get(after.checked_sub(1)?)?.stream;
    let next = index[after..].iter().find(|record| record.stream != stream);
    Some((stream, next.map(|record| record.offset)))
}
