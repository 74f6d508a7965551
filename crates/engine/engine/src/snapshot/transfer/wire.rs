//! The format of a snapshot that is a stream.
//!
//! ```text
//! zstd (
//!   "atoll snapshot 1\n"
//!   u32 length, header as JSON                        big enough for a manifest, and bounded
//!   { u64 offset, u32 length, bytes }*                rising; whole blocks of the disk that are not all zero
//!   u64::MAX, u32 0                                   the end
//! )
//! ```
//!
//! Numbers are little-endian. The reader believes nothing: not the sizes, not the order, not the digest, which is made
//! anew and compared. The image is not in it: the header names it by its digest, and a host that does not have exactly
//! that image refuses.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Weak;

use atoll_core::snapshot::Manifest;
use atoll_core::{Code, Error, Result};
use atoll_isolation::sparse;
use serde::{Deserialize, Serialize};

use super::super::digest::{BLOCK_BYTES, Hasher, PIECE_BYTES};
use super::pieces::{CHUNK_BYTES, Pieces, Queue};
use crate::errors::chain;

const MAGIC: &[u8] = b"atoll snapshot 1\n";
const HEADER_MAX_BYTES: u32 = 2 << 20;
const END: u64 = u64::MAX;
/// Speed before size: a disk is sent once.
const ZSTD_LEVEL: i32 = 3;
/// Largest window that a stream may ask to be kept in memory, as a power of two: 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// What comes first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) manifest: Manifest,
    /// Size of the disk, bytes.
    pub(super) disk_bytes: u64,
    pub(super) digest: String,
    pub(super) comment: Option<String>,
}

// === out ===

/// Writes a snapshot for the reader of `queue`. When that fails, as when nothing is taken, what waits there is forgotten: it is
/// in memory, which is bounded by the rooms of those that write.
pub(super) fn write_to(queue: &Weak<Queue>, header: &Header, disk: &File, pieces: Pieces) -> io::Result<()> {
    let written = write(header, disk, pieces);
    if written.is_err()
        && let Some(queue) = queue.upgrade()
    {
        queue.forget();
    }
    written
}

fn write(header: &Header, disk: &File, pieces: Pieces) -> io::Result<()> {
    let mut out = zstd::Encoder::new(pieces, ZSTD_LEVEL)?;
    let text = serde_json::to_vec(header)?;
    let len = u32::try_from(text.len()).ok().filter(|len| *len <= HEADER_MAX_BYTES);
    out.write_all(MAGIC)?;
    out.write_all(&len.ok_or_else(|| io::Error::other("the header is too large"))?.to_le_bytes())?;
    out.write_all(&text)?;
    sparse::for_pieces(disk, BLOCK_BYTES as u64, PIECE_BYTES, |offset, bytes| {
        if bytes.iter().any(|byte| *byte != 0) {
            record(&mut out, offset, bytes)?;
        }
        Ok(())
    })?;
    sparse::forget(disk)?;
    record(&mut out, END, &[])?;
    let mut pieces = out.finish()?;
    pieces.flush()?;
    pieces.until_taken()
}

fn record(out: &mut impl Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&offset.to_le_bytes())?;
    out.write_all(&u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())?;
    out.write_all(bytes)
}

// === in ===

pub(super) type Reader = Box<dyn Read + Send>;

pub(super) fn open(stream: impl Read + Send + 'static) -> Result<(Header, Reader)> {
    let opened = || {
        let mut decoder =
            zstd::Decoder::with_buffer(BufReader::with_capacity(CHUNK_BYTES, stream))?.single_frame();
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        let mut reader: Reader = Box::new(decoder);
        let mut magic = [0; MAGIC.len()];
        reader.read_exact(&mut magic)?;
        let len = number(&mut reader)?;
        if magic != MAGIC || len > HEADER_MAX_BYTES {
            return Err(io::Error::other("it does not begin like one"));
        }
        let mut text = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        reader.read_exact(&mut text)?;
        Ok((text, reader))
    };
    let (text, reader) = opened().map_err(|error| broken(&error))?;
    #[derive(Deserialize)]
    struct Format {
        manifest: OfFormat,
    }
    #[derive(Deserialize)]
    struct OfFormat {
        format: u32,
    }
    // A header of another format may have other fields: that it is another is said first.
    let format: Format = serde_json::from_slice(&text).map_err(|error| invalid(&error.to_string()))?;
    if format.manifest.format != atoll_core::snapshot::FORMAT {
        return Err(Error::new(
            Code::SnapshotIncompatible,
            format!(
                "the snapshot has format {}, this version reads format {}",
                format.manifest.format,
                atoll_core::snapshot::FORMAT
            ),
        )
        .hint("export it again with the version that is to read it"));
    }
    let header = serde_json::from_slice(&text).map_err(|error| invalid(&error.to_string()))?;
    Ok((header, reader))
}

fn number(reader: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    reader.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Fills the disk; gives its digest, which is what the header says.
pub(super) fn fill(mut reader: Reader, header: &Header, disk: &File) -> Result<String> {
    let mut hasher = Hasher::new(&header.manifest).map_err(|error| broken(&error))?;
    let block = BLOCK_BYTES as u64;
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        let mut offset = [0; 8];
        reader.read_exact(&mut offset).map_err(|error| broken(&error))?;
        let (offset, len) =
            (u64::from_le_bytes(offset), number(&mut reader).map_err(|error| broken(&error))?);
        if offset == END {
            break;
        }
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let end = offset.saturating_add(u64::from(len));
        let in_place = offset >= done && offset % block == 0 && end <= header.disk_bytes;
        if len == 0 || size > PIECE_BYTES || !in_place {
            return Err(invalid("a piece of the disk is out of place"));
        }
        let bytes = &mut piece[..size];
        reader.read_exact(bytes).map_err(|error| broken(&error))?;
        // Nothing to write would be without end.
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(invalid("a piece of the disk holds nothing"));
        }
        hasher.blocks(offset, bytes);
        disk.write_all_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => Error::new(Code::HostDiskFull, "the disk for snapshots is full")
                .hint("free some, then try again"),
            _ => unreadable(&error),
        })?;
        done = end;
    }
    let mut rest = [0; 1];
    if reader.read(&mut rest).map_err(|error| broken(&error))? != 0 {
        return Err(invalid("something follows its end"));
    }
    let digest = hasher.finish();
    if digest == header.digest {
        return Ok(digest);
    }
    Err(Error::new(
        Code::DigestMismatch,
        format!(
            "the snapshot's content has the digest {digest}, not {}",
            atoll_core::error::shorten(&header.digest)
        ),
    ))
}

pub(super) fn unreadable(error: &io::Error) -> Error {
    tracing::error!(%error, "a snapshot cannot be read");
    Error::new(Code::Internal, "the snapshot cannot be read")
}

pub(super) fn invalid(why: &str) -> Error {
    Error::new(Code::SnapshotInvalid, format!("this is not a whole snapshot: {why}"))
}

/// A reader's trouble: the stream broke off, or is not what it should be.
fn broken(error: &io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        // The body of a request says itself what is wrong with it.
        Some(error) => error.clone(),
        None => invalid(&chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use atoll_core::snapshot::{FORMAT, SnapshotKind};
    use atoll_core::spec::{IsolationLevel, Resources};
    use futures::StreamExt as _;
    use tokio::sync::mpsc;

    use super::super::pieces::{Patience, received};
    use super::*;
    use crate::rooms::Pace;

    const DISK_BYTES: u64 = 64 << 20;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            kind: SnapshotKind::Disk,
            image: "host".into(),
            image_digest: None,
            isolation: IsolationLevel::Container,
            resources: Resources { disk_bytes: DISK_BYTES, ..Resources::default() },
            env: [].into(),
            user: "root".into(),
            workdir: None,
            layers: [].into(),
        }
    }

    fn disk() -> File {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(DISK_BYTES).unwrap();
        disk
    }

    fn exported(records: &[(u64, &[u8])], digest: Option<String>) -> Vec<u8> {
        let mut hasher = Hasher::new(&manifest()).unwrap();
        for (offset, bytes) in records.iter().filter(|(offset, _)| *offset != END) {
            hasher.blocks(*offset, bytes);
        }
        let digest = digest.unwrap_or_else(|| hasher.finish());
        let header = Header { manifest: manifest(), disk_bytes: DISK_BYTES, digest, comment: None };
        let text = serde_json::to_vec(&header).unwrap();
        let mut out = zstd::Encoder::new(Vec::new(), 1).unwrap();
        out.write_all(MAGIC).unwrap();
        out.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
        out.write_all(&text).unwrap();
        for (offset, bytes) in records {
            record(&mut out, *offset, bytes).unwrap();
        }
        out.finish().unwrap()
    }

    fn import(bytes: Vec<u8>) -> Result<File> {
        let (header, reader) = open(io::Cursor::new(bytes))?;
        let disk = disk();
        fill(reader, &header, &disk)?;
        Ok(disk)
    }

    const BLOCK: &[u8] = &[7; BLOCK_BYTES];

    #[tokio::test]
    async fn an_export_whose_end_is_not_taken_ends_too_and_leaves_nothing_in_memory() {
        let (sender, receiver) = mpsc::channel(16);
        let queue = Queue::new(receiver);
        let known = Arc::downgrade(&queue);
        let header =
            Header { manifest: manifest(), disk_bytes: DISK_BYTES, digest: "blake3:0".into(), comment: None };
        let writing = tokio::task::spawn_blocking(move || {
            let patience = Patience { of_chunk: Duration::from_millis(50), pace: Pace::new(None) };
            write_to(&known, &header, &disk(), Pieces::new(sender).waiting(Some(patience)))
        });
        // All of it fits into what waits for the reader.
        while !writing.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let got: Vec<_> = received(queue, writing).collect().await;
        let [Err(error)] = got.as_slice() else { panic!("{}", got.len()) };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_goes_out_comes_in() {
        let source = disk();
        source.write_all_at(b"first", 5000).unwrap();
        source.write_all_at(&[9; 3 << 20], 20 << 20).unwrap();
        source.write_all_at(b"last", DISK_BYTES - 4).unwrap();
        let mut hasher = Hasher::new(&manifest()).unwrap();
        let hash = |offset: u64, bytes: &[u8]| {
            hasher.blocks(offset, bytes);
            Ok(())
        };
        sparse::for_pieces(&source, BLOCK_BYTES as u64, PIECE_BYTES, hash).unwrap();
        let digest = hasher.finish();
        let header = Header { manifest: manifest(), disk_bytes: DISK_BYTES, digest, comment: None };
        let (sender, mut receiver) = mpsc::channel(1000);
        write(&header, &source, Pieces::new(sender)).unwrap();
        let mut bytes = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            bytes.extend_from_slice(&piece.unwrap());
        }
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
        let copy = import(bytes).unwrap();
        let (mut one, mut other) = (vec![0; 64 << 20], vec![0; 64 << 20]);
        source.read_exact_at(&mut one, 0).unwrap();
        copy.read_exact_at(&mut other, 0).unwrap();
        assert!(one == other);
    }

    #[test]
    fn another_format_is_refused_before_anything_else() {
        let text =
            serde_json::json!({ "manifest": { "format": FORMAT + 1, "of": "the future" } }).to_string();
        let mut out = zstd::Encoder::new(Vec::new(), 1).unwrap();
        out.write_all(MAGIC).unwrap();
        out.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
        out.write_all(text.as_bytes()).unwrap();
        let refused = import(out.finish().unwrap()).unwrap_err();
        assert_eq!(refused.code, Code::SnapshotIncompatible);
        assert!(refused.message.contains(&format!("has format {}", FORMAT + 1)), "{refused:?}");
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let good = exported(&[(0, BLOCK), (8192, BLOCK), (END, &[])], None);
        import(good.clone()).unwrap();
        let zeros = [0; BLOCK_BYTES];
        let large = vec![1; PIECE_BYTES + BLOCK_BYTES];
        let cases: [(&str, Vec<u8>, Code); 10] = [
            ("empty", Vec::new(), Code::SnapshotInvalid),
            ("garbage", vec![b'x'; 5000], Code::SnapshotInvalid),
            ("cut off", good[..good.len() - 8].to_vec(), Code::SnapshotInvalid),
            ("no end", exported(&[(0, BLOCK)], None), Code::SnapshotInvalid),
            ("falling", exported(&[(8192, BLOCK), (0, BLOCK), (END, &[])], None), Code::SnapshotInvalid),
            ("crooked", exported(&[(100, BLOCK), (END, &[])], None), Code::SnapshotInvalid),
            ("beyond", exported(&[(DISK_BYTES, BLOCK), (END, &[])], None), Code::SnapshotInvalid),
            ("nothing", exported(&[(0, &zeros), (END, &[])], None), Code::SnapshotInvalid),
            ("too large", exported(&[(0, &large), (END, &[])], None), Code::SnapshotInvalid),
            ("other", exported(&[(0, BLOCK), (END, &[])], Some("blake3:0".into())), Code::DigestMismatch),
        ];
        for (name, bytes, code) in cases {
            assert_eq!(import(bytes).unwrap_err().code, code, "{name}");
        }
    }
}
