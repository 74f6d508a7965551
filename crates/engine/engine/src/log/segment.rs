//! Names and index records of segments.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
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

/// Reads an index but for its first so many records: it only grows while it is read. A torn last record (the process
/// died while writing it) is left out.
pub(super) fn read_index(dir: &Path, start: u64, known: usize) -> io::Result<Vec<Record>> {
    let mut index = File::open(index_path(dir, start))?;
    index.seek(SeekFrom::Start((known * RECORD_BYTES) as u64))?;
    let mut bytes = Vec::new();
    index.read_to_end(&mut bytes)?;
    let (records, _torn) = bytes.as_chunks::<RECORD_BYTES>();
    Ok(records.iter().map(|record| Record::decode(*record)).collect())
}
