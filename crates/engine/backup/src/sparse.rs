//! Files with holes: disks, and the pool, which are mostly holes.
//!
//! PAX 1.0: before the data there is a map as text, padded to whole blocks: how many stretches of data there are, then
//! where each begins and how long it is. The last one of a file that ends with a hole is at its end, and empty.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use atoll_isolation::sparse::for_data;

use crate::error::{BackupError, Result};
use crate::format::SEGMENTS_MAX_COUNT;
use crate::member::BLOCK;
use crate::pax::number;

/// Holes that are shorter than this are zeros, bytes: a map is dearer than that.
const HOLE_MIN_BYTES: u64 = 16 << 10;

/// A stretch of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Where the data of a file is; `None` for a file without holes.
pub(crate) fn map_of(file: &File) -> io::Result<Option<Vec<Segment>>> {
    let meta = file.metadata()?;
    if meta.blocks() * 512 >= meta.len() {
        return Ok(None);
    }
    let mut map = Map { segments: Vec::new(), hole_min: HOLE_MIN_BYTES };
    for_data(file, |from, to| {
        map.add(from, to.min(meta.len()));
        Ok(())
    })?;
    // So that other programs know where a hole at the end ends.
    if map.segments.last().is_none_or(|last| last.offset + last.bytes < meta.len()) {
        map.segments.push(Segment { offset: meta.len(), bytes: 0 });
    }
    Ok(Some(map.segments))
}

struct Map {
    segments: Vec<Segment>,
    hole_min: u64,
}

impl Map {
    fn add(&mut self, from: u64, to: u64) {
        if let Some(last) = self.segments.last_mut()
            && from < (last.offset + last.bytes).saturating_add(self.hole_min)
        {
            last.bytes = to - last.offset;
            return;
        }
        self.segments.push(Segment { offset: from, bytes: to - from });
        while self.segments.len() >= SEGMENTS_MAX_COUNT {
            self.hole_min = self.hole_min.saturating_mul(4);
            for segment in std::mem::take(&mut self.segments) {
                self.add(segment.offset, segment.offset + segment.bytes);
            }
        }
    }
}

/// Bytes of the data.
pub(crate) fn data_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.bytes).sum()
}

/// The map as text.
pub(crate) fn encode(segments: &[Segment]) -> Vec<u8> {
    let mut text = format!("{}\n", segments.len());
    for segment in segments {
        let _ = writeln!(text, "{}\n{}", segment.offset, segment.bytes);
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// Reads a map, block by block, of a file of a size whose data and map are that long together.
///
/// # Errors
/// [`BackupError::Invalid`] for one that is malformed, does not rise, leads beyond the file, or is not as long as that.
pub(crate) fn decode(
    size: u64,
    stored: u64,
    mut block: impl FnMut() -> Result<[u8; BLOCK]>,
) -> Result<Vec<Segment>> {
    let bad = || BackupError::Invalid("it has a malformed map of a file with holes".to_owned());
    let (mut buffer, mut at, mut read) = ([0; BLOCK], BLOCK, 0_u64);
    let mut next = || -> Result<u64> {
        let mut digits = Vec::new();
        loop {
            if at == BLOCK {
                (buffer, at) = (block()?, 0);
                read += BLOCK as u64;
            }
            let byte = buffer[at];
            at += 1;
            match byte {
                b'\n' => return number(&digits).ok_or_else(bad),
                _ if digits.len() == 20 => return Err(bad()),
                _ => digits.push(byte),
            }
        }
    };
    let count = usize::try_from(next()?).ok().filter(|count| *count <= SEGMENTS_MAX_COUNT).ok_or_else(bad)?;
    let (mut segments, mut end) = (Vec::new(), 0);
    for left in (0..count).rev() {
        let segment = Segment { offset: next()?, bytes: next()? };
        let is_end = left == 0 && segment.offset == size;
        if segment.offset < end || (segment.bytes == 0 && !is_end) {
            return Err(bad());
        }
        end = segment.offset.checked_add(segment.bytes).filter(|end| *end <= size).ok_or_else(bad)?;
        segments.push(segment);
    }
    if stored.checked_sub(read) != Some(data_bytes(&segments)) {
        return Err(bad());
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(segments: &[Segment], size: u64) -> Result<Vec<Segment>> {
        let text = encode(segments);
        let stored = text.len() as u64 + data_bytes(segments);
        let mut blocks = text.as_chunks::<BLOCK>().0.iter();
        decode(size, stored, || {
            blocks.next().copied().ok_or_else(|| BackupError::Invalid("short".to_owned()))
        })
    }

    fn segment(offset: u64, bytes: u64) -> Segment {
        Segment { offset, bytes }
    }

    #[test]
    fn maps_come_back() {
        for count in [0, 1, 2, 100, 5000] {
            let segments: Vec<_> = (0..count).map(|n| segment(n * 100_000, 4096)).collect();
            assert_eq!(again(&segments, count * 100_000).unwrap(), segments);
        }
    }

    #[test]
    fn wrong_maps_are_refused() {
        assert!(again(&[segment(0, 10), segment(5, 10)], 100).is_err(), "they overlap");
        assert!(again(&[segment(10, 10), segment(0, 5)], 100).is_err(), "they go backwards");
        assert!(again(&[segment(0, 101)], 100).is_err(), "beyond the end");
        assert!(again(&[segment(u64::MAX, 2)], u64::MAX).is_err(), "beyond all ends");
        assert!(again(&[segment(1, 0)], 100).is_err(), "nothing at all");
        assert!(again(&[segment(100, 0), segment(100, 0)], 100).is_err(), "two ends");
        assert!(again(&[segment(0, 1), segment(100, 0)], 100).is_ok(), "a hole at the end");
    }

    #[test]
    fn short_holes_are_zeros_and_a_map_stays_small() {
        let mut map = Map { segments: Vec::new(), hole_min: 10 };
        map.add(0, 10);
        map.add(15, 20);
        map.add(40, 50);
        assert_eq!(map.segments, [segment(0, 20), segment(40, 10)]);
        let mut map = Map { segments: Vec::new(), hole_min: HOLE_MIN_BYTES };
        for n in 0..SEGMENTS_MAX_COUNT as u64 + 10 {
            map.add(n * (20 << 10), n * (20 << 10) + 1);
        }
        assert!(map.segments.len() < SEGMENTS_MAX_COUNT);
        let last = map.segments.last().unwrap();
        assert_eq!(last.offset + last.bytes, (SEGMENTS_MAX_COUNT as u64 + 9) * (20 << 10) + 1);
    }
}
