//! Maps of sparse files: GNU's own header type and the three PAX forms that GNU tar has written.

use std::io::Read;

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::tar_reader::{BLOCK, Pax, TarReader, parse_number, unreadable};
use crate::error::{ImageError, Result};
use crate::limits::SPARSE_SEGMENTS_MAX_COUNT;

/// Stored data that belongs at `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A whole map.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) size: u64,
    pub(super) segments: Vec<Segment>,
}

/// The map of an entry, if it is sparse. Consumes what part of the map is stored before the data.
pub(super) fn map_of<R: Read>(tar: &mut TarReader<R>, header: &Header, pax: &Pax) -> Result<Option<Map>> {
    let find = |key: &[u8]| pax.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_slice());
    let (size, segments) = if header.entry_type().as_byte() == b'S' {
        gnu(tar, header)?
    } else if find(b"GNU.sparse.major") == Some(b"1") {
        (parse_number(find(b"GNU.sparse.realsize").unwrap_or_default())?, stored(tar)?)
    } else if let Some(map) = find(b"GNU.sparse.map") {
        let numbers = map.split(|b| *b == b',').map(parse_number).collect::<Result<Vec<_>>>()?;
        (parse_number(find(b"GNU.sparse.size").unwrap_or_default())?, pairs(&numbers)?)
    } else if let Some(size) = find(b"GNU.sparse.size") {
        let keys: [&[u8]; 2] = [b"GNU.sparse.offset", b"GNU.sparse.numbytes"];
        let numbers = pax.iter().filter(|(key, _)| keys.contains(&key.as_slice()));
        let numbers = numbers.map(|(_, value)| parse_number(value)).collect::<Result<Vec<_>>>()?;
        (parse_number(size)?, pairs(&numbers)?)
    } else {
        return Ok(None);
    };
    check(size, &segments)?;
    Ok(Some(Map { size, segments }))
}

/// In order, not overlapping, inside the file.
fn check(size: u64, segments: &[Segment]) -> Result<()> {
    let mut end = 0;
    for segment in segments {
        let next = segment.offset.checked_add(segment.bytes);
        match next {
            Some(next) if segment.offset >= end && next <= size => end = next,
            Some(_) | None => return Err(bad()),
        }
    }
    Ok(())
}

fn gnu<R: Read>(tar: &mut TarReader<R>, header: &Header) -> Result<(u64, Vec<Segment>)> {
    let first = header.as_gnu().ok_or_else(bad)?;
    let mut segments = Vec::new();
    add(&mut segments, &first.sparse)?;
    let mut more = first.is_extended();
    while more {
        let mut block = GnuExtSparseHeader::new();
        tar.raw_block(block.as_mut_bytes())?;
        add(&mut segments, block.sparse())?;
        more = block.is_extended();
    }
    Ok((first.real_size().map_err(|_cause| bad())?, segments))
}

fn add(segments: &mut Vec<Segment>, headers: &[GnuSparseHeader]) -> Result<()> {
    for header in headers.iter().filter(|header| !header.is_empty()) {
        let offset = header.offset().map_err(|_cause| bad())?;
        let bytes = header.length().map_err(|_cause| bad())?;
        segments.push(Segment { offset, bytes });
    }
    if segments.len() > SPARSE_SEGMENTS_MAX_COUNT {
        return Err(bad());
    }
    Ok(())
}

/// Form 1.0: decimal numbers, one to a line, in blocks of their own before the data.
fn stored<R: Read>(tar: &mut TarReader<R>) -> Result<Vec<Segment>> {
    let mut numbers = Vec::new();
    let mut line = Vec::new();
    let mut wanted = 1;
    while numbers.len() < wanted {
        let mut block = [0; BLOCK];
        tar.read_exact(&mut block).map_err(unreadable)?;
        for byte in block {
            if numbers.len() == wanted {
                break;
            }
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            numbers.push(parse_number(&line)?);
            line.clear();
            if numbers.len() == 1 {
                let count = usize::try_from(numbers[0]).unwrap_or(usize::MAX);
                if count > SPARSE_SEGMENTS_MAX_COUNT {
                    return Err(bad());
                }
                wanted = 1 + 2 * count;
            }
        }
        if line.len() > BLOCK {
            return Err(bad());
        }
    }
    pairs(&numbers[1..])
}

fn pairs(numbers: &[u64]) -> Result<Vec<Segment>> {
    if !numbers.len().is_multiple_of(2) || numbers.len() / 2 > SPARSE_SEGMENTS_MAX_COUNT {
        return Err(bad());
    }
    Ok(numbers.chunks_exact(2).map(|pair| Segment { offset: pair[0], bytes: pair[1] }).collect())
}

fn bad() -> ImageError {
    ImageError::Invalid("the archive has a malformed sparse file".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_checked() {
        let map = |list: &[(u64, u64)]| -> Vec<_> {
            list.iter().map(|&(offset, bytes)| Segment { offset, bytes }).collect()
        };
        assert!(check(10, &map(&[(0, 4), (4, 2), (8, 2), (10, 0)])).is_ok());
        for bad in [&[(0, 11)][..], &[(4, 2), (0, 2)], &[(0, 4), (2, 4)], &[(u64::MAX, 2)]] {
            assert!(check(10, &map(bad)).is_err(), "{bad:?}");
        }
    }
}
