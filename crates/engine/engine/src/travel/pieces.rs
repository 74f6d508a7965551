//! The half of a copy that reads a sandbox, compares and compresses: from bytes to pieces.
//!
//! ```text
//! one thread reads ──▶ a few digest and compress a piece each ──▶ several pieces are sent at the same time
//! ```
//!
//! A sandbox that moves stands still meanwhile. One thread compresses slower than a bucket takes it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_isolation::sparse;
use tokio::sync::mpsc;

use super::index::{PIECE_BYTES, Piece, digest};
use super::logs::Packing;

/// Speed before size.
const ZSTD_LEVEL: i32 = 3;
/// Pieces that are digested and compressed at the same time, at most: the sandboxes need the processors, too.
const PACKED_AT_ONCE_MAX: usize = 4;

/// What a piece is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Disk,
    Memory,
    Logs,
}

/// How many bytes each part has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) disk: u64,
    pub(super) memory: u64,
    pub(super) logs: u64,
}

/// A piece as it was read.
pub(super) struct Raw {
    part: Part,
    at: u64,
    bytes: Vec<u8>,
}

/// A piece, and what is to be sent for it if it is not there.
pub(super) struct Made {
    pub(super) part: Part,
    pub(super) piece: Piece,
    pub(super) packed: Option<Vec<u8>>,
}

/// Which upload sent each piece that is there, or is just sending it. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    by_digest: Arc<Mutex<HashMap<String, String>>>,
}

impl Known {
    pub(super) fn new(uploads: HashMap<String, String>) -> Self {
        Self { by_digest: Arc::new(Mutex::new(uploads)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.by_digest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sent a piece. When nobody has, the caller does, for `upload`, and nobody else.
    fn sender_of(&self, digest: &str, upload: &str) -> Option<String> {
        let mut known = self.lock();
        if let Some(sender) = known.get(digest) {
            return Some(sender.clone());
        }
        known.insert(digest.to_owned(), upload.to_owned());
        None
    }

    /// The digests of all that an upload has sent.
    pub(super) fn sent_by(&self, upload: &str) -> Vec<String> {
        let known = self.lock();
        known.iter().filter(|(_, sender)| *sender == upload).map(|(digest, _)| digest.clone()).collect()
    }
}

impl Raw {
    fn pack(self, upload: &str, known: &Known) -> io::Result<Made> {
        let Self { part, at, bytes } = self;
        let digest = digest(&bytes);
        let (upload, packed) = match known.sender_of(&digest, upload) {
            Some(sender) => (sender, None),
            None => (upload.to_owned(), Some(zstd::bulk::compress(&bytes, ZSTD_LEVEL)?)),
        };
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        Ok(Made { part, piece: Piece { at, len, digest, upload }, packed })
    }
}

/// Digests a piece, and compresses it if it is not known, on a thread for that.
pub(super) async fn pack(raw: Raw, upload: String, known: Known) -> io::Result<Made> {
    let packing = tokio::task::spawn_blocking(move || raw.pack(&upload, &known));
    packing.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

/// How many of these go on at the same time.
pub(super) fn packed_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(PACKED_AT_ONCE_MAX)
}

/// Reads everything that a copy is made of. Blocks, and ends when the receiver is gone.
pub(super) fn read_all(
    sender: &mpsc::Sender<Raw>,
    disk: &File,
    memory: Option<&File>,
    logs: &Path,
) -> io::Result<Sizes> {
    let mut sizes = Sizes { disk: read_sparse(sender, Part::Disk, disk)?, ..Sizes::default() };
    if let Some(memory) = memory {
        sizes.memory = read_sparse(sender, Part::Memory, memory)?;
    }
    let mut packing = Packing::open(logs)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let len = fill(&mut packing, &mut piece)?;
        if len == 0 {
            return Ok(sizes);
        }
        give(sender, Part::Logs, sizes.logs, &piece[..len])?;
        sizes.logs += len as u64;
    }
}

/// Gives how many bytes the file has.
fn read_sparse(sender: &mpsc::Sender<Raw>, part: Part, file: &File) -> io::Result<u64> {
    let bytes = file.metadata()?.len();
    for_pieces(file, bytes, |at, piece| give(sender, part, at, piece))?;
    sparse::forget(file)?;
    Ok(bytes)
}

fn give(sender: &mpsc::Sender<Raw>, part: Part, at: u64, bytes: &[u8]) -> io::Result<()> {
    let raw = Raw { part, at, bytes: bytes.to_vec() };
    sender.blocking_send(raw).or(Err(io::ErrorKind::BrokenPipe.into()))
}

/// Calls `with` for each piece of a sparse file that is not all zero.
fn for_pieces(file: &File, bytes: u64, mut with: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let size = PIECE_BYTES as u64;
    let mut piece = vec![0; PIECE_BYTES];
    let mut next = 0;
    sparse::for_data(file, |from, to| {
        // Several stretches of data may be in one piece.
        let mut at = (from / size * size).max(next);
        while at < to.min(bytes) {
            let len = usize::try_from((bytes - at).min(size)).map_err(io::Error::other)?;
            file.read_exact_at(&mut piece[..len], at)?;
            if piece[..len].iter().any(|byte| *byte != 0) {
                with(at, &piece[..len])?;
            }
            at += size;
        }
        next = at.max(next);
        Ok(())
    })
}

/// Reads until the buffer is full, or nothing comes any more.
fn fill(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match stream.read(&mut buffer[len..])? {
            0 => break,
            read => len += read,
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_gives_each_piece_with_something_in_it_once() {
        let file = tempfile::tempfile().unwrap();
        let size = PIECE_BYTES as u64;
        let bytes = 5 * size + 4096;
        file.set_len(bytes).unwrap();
        // Two stretches in one piece, one over an edge, and one at the end.
        for at in [8192, size / 2, 3 * size - 4096, 3 * size, 5 * size] {
            file.write_all_at(&[7; 4096], at).unwrap();
        }
        file.write_all_at(&[0; 4096], size + 4096).unwrap();
        let mut seen = Vec::new();
        for_pieces(&file, bytes, |at, piece| {
            seen.push((at / size, piece.len(), piece.iter().filter(|byte| **byte == 7).count()));
            Ok(())
        })
        .unwrap();
        assert_eq!(
            seen,
            [(0, PIECE_BYTES, 8192), (2, PIECE_BYTES, 4096), (3, PIECE_BYTES, 4096), (5, 4096, 4096)]
        );
    }

    fn raw(at: u64, byte: u8) -> Raw {
        Raw { part: Part::Disk, at, bytes: vec![byte; 4096] }
    }

    #[test]
    fn a_piece_that_is_there_or_on_its_way_is_not_sent_again() {
        let there = raw(0, 1).pack("0a", &Known::new(HashMap::new())).unwrap();
        let digest = there.piece.digest.clone();
        let known = Known::new(HashMap::from([(digest.clone(), "0a".to_owned())]));
        let again = raw(8, 1).pack("0b", &known).unwrap();
        assert_eq!(again.piece, Piece { at: 8, len: 4096, digest, upload: "0a".to_owned() });
        assert_eq!(again.packed, None);
        // The same twice, and neither is there yet.
        let [first, second] = [0, 8].map(|at| raw(at, 2).pack("0b", &known).unwrap());
        assert_eq!(zstd::bulk::decompress(&first.packed.unwrap(), 4096).unwrap(), [2; 4096]);
        assert_eq!(second.packed, None);
        assert_eq!((first.piece.upload.as_str(), second.piece.upload.as_str()), ("0b", "0b"));
        assert_eq!(known.sent_by("0b"), [first.piece.digest]);
    }

    #[test]
    fn all_parts_are_read_and_each_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let [disk, memory] = [1, 2].map(|byte| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(2 * PIECE_BYTES as u64).unwrap();
            file.write_all_at(&[byte; 4096], PIECE_BYTES as u64).unwrap();
            file
        });
        let (sender, mut receiver) = mpsc::channel(16);
        let sizes = read_all(&sender, &disk, Some(&memory), &dir.path().join("none")).unwrap();
        drop(sender);
        assert_eq!((sizes.disk, sizes.memory, sizes.logs), (8 << 20, 8 << 20, 0));
        let read: Vec<_> = std::iter::from_fn(|| receiver.blocking_recv()).collect();
        let seen: Vec<_> = read.iter().map(|raw| (raw.part, raw.at, raw.bytes[0])).collect();
        assert_eq!(seen, [(Part::Disk, 4 << 20, 1), (Part::Memory, 4 << 20, 2)]);
        // Who reads ends when nobody takes it any more.
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        let broken = read_all(&sender, &disk, None, dir.path()).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
    }
}
