//! Names and index records of segments.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use atoll_core::exec::OutputStream;

pub(super) const RECORD_BYTES: usize = 16;

pub(super) fn data_path(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{start:016x}.data"))
}

pub(super) fn index_path(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{start:016x}.idx"))
}

/// Starts of all segments, ascending. A log that never had output has no directory and no segments.
pub(super) fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut starts = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let start = name.to_str().and_then(|name| name.strip_suffix(".data"));
        if let Some(start) = start.and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            starts.push(start);
        }
    }
    starts.sort_unstable();
    Ok(starts)
}

/// Says of which stream the bytes from an offset on are, and when the first of them came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) offset: u64,
    pub(super) stream: OutputStream,
    /// Milliseconds since the epoch; 0 when that is not known.
    pub(super) at_ms: u64,
}

impl Record {
    pub(super) fn encode(self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[8..].copy_from_slice(&self.at_ms.to_be_bytes());
        record[..8].copy_from_slice(&self.offset.to_be_bytes());
        record[8] = match self.stream {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
        };
        record
    }

    fn decode(record: [u8; RECORD_BYTES]) -> Self {
        let (mut offset, mut at_ms) = ([0; 8], [0; 8]);
        offset.copy_from_slice(&record[..8]);
        at_ms[1..].copy_from_slice(&record[9..]);
        let stream = if record[8] == 2 { OutputStream::Stderr } else { OutputStream::Stdout };
        Self { offset: u64::from_be_bytes(offset), stream, at_ms: u64::from_be_bytes(at_ms) }
    }
}

/// Records of an index that are read at once: a command that changes streams with each byte has as many as it has bytes,
/// so nothing holds all of them.
pub(super) const WINDOW_RECORDS: usize = 1024;

/// The index of a segment. It only grows while it is read. A torn last record (the process died while writing it) is left
/// out.
#[derive(Debug)]
pub(super) struct Index(File);

impl Index {
    pub(super) fn open(dir: &Path, start: u64) -> io::Result<Self> {
        File::open(index_path(dir, start)).map(Self)
    }

    /// How many records it has.
    pub(super) fn count(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len() / RECORD_BYTES as u64)
    }

    /// The records from a number on, at most [`WINDOW_RECORDS`].
    pub(super) fn window(&self, first: u64) -> io::Result<Vec<Record>> {
        let there = self.count()?.saturating_sub(first).min(WINDOW_RECORDS as u64);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(0) * RECORD_BYTES];
        self.0.read_exact_at(&mut bytes, first * RECORD_BYTES as u64)?;
        let (records, _none) = bytes.as_chunks::<RECORD_BYTES>();
        Ok(records.iter().map(|record| Record::decode(*record)).collect())
    }

    /// How many records are of an offset or of those before it. The caller knows that the first `from` are.
    pub(super) fn count_until(&self, offset: u64, from: u64) -> io::Result<u64> {
        let (mut low, mut high) = (from, self.count()?.max(from));
        while low < high {
            let middle = low + (high - low) / 2;
            let mut record = [0; RECORD_BYTES];
            self.0.read_exact_at(&mut record, middle * RECORD_BYTES as u64)?;
            if Record::decode(record).offset <= offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// Bytes that a segment takes on disk, its index included; those of a part that is missing count as none.
pub(super) fn size(dir: &Path, start: u64) -> u64 {
    let size = |path: PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
    size(data_path(dir, start)) + size(index_path(dir, start))
}
