//! Snapshots as a stream of bytes: to a file, to another server, to an object store, and back.
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
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::sharing::Visibility;
use atoll_core::snapshot::{CopyMethod, Manifest, Purpose, Reference, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_isolation::sparse;
use atoll_store::{SnapshotOutcome, SnapshotRecord};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendTimeoutError, TrySendError};
use tokio::task::JoinHandle;
use tokio_util::io::SyncIoBridge;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::{chain, isolation_error};
use crate::transfers::Room;

use super::digest::{BLOCK_BYTES, Hasher, PIECE_BYTES};

const MAGIC: &[u8] = b"atoll snapshot 1\n";
const HEADER_MAX_BYTES: u32 = 2 << 20;
const END: u64 = u64::MAX;
/// Speed before size: a disk is sent once.
const ZSTD_LEVEL: i32 = 3;
/// Largest window that a stream may ask to be kept in memory, as a power of two: 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Pieces that wait to be sent, and their size.
const QUEUE_MAX_COUNT: usize = 16;
const CHUNK_BYTES: usize = 256 << 10;
/// An export of which its client takes no chunk for this long is given up, as a body is of which nothing comes.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// What comes first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    manifest: Manifest,
    /// Size of the disk, bytes.
    disk_bytes: u64,
    digest: String,
    comment: Option<String>,
}

/// A snapshot on its way out.
pub type Export = futures::stream::BoxStream<'static, io::Result<Bytes>>;

impl Engine {
    /// A snapshot as a stream. An error in the stream means that what came is not whole. It ends with one when its
    /// reader takes nothing for a minute.
    ///
    /// # Errors
    /// As [`Self::ready_snapshot`]; [`Code::Internal`] when its data cannot be read.
    #[boxed]
    pub async fn export_snapshot(
        &self,
        id: &SnapshotId,
        caller: &Caller,
    ) -> Result<(SnapshotRecord, Export)> {
        self.export(id, caller, Some(STALL_TIMEOUT)).await
    }

    /// As [`Self::export_snapshot`], with the longest time that the reader may take nothing.
    #[boxed]
    pub(crate) async fn export(
        &self,
        id: &SnapshotId,
        caller: &Caller,
        patience: Option<Duration>,
    ) -> Result<(SnapshotRecord, Export)> {
        let record = self.ready_snapshot(id).await?;
        let digest = self.make_digest(&record.id).await?;
        let driver = self.inner.driver(record.manifest.isolation)?;
        let room = self.room_to_transfer(caller).await;
        let disk = driver.read_artifact(&record.id).await.map_err(|error| isolation_error(&error))?;
        let disk_bytes = disk.metadata().map_err(|error| unreadable(&error))?.len();
        let header = Header {
            manifest: record.manifest.of_disk(),
            disk_bytes,
            digest: digest.clone(),
            comment: record.comment.clone(),
        };
        let (sender, receiver) = mpsc::channel(QUEUE_MAX_COUNT);
        let writing = tokio::task::spawn_blocking(move || {
            let written = write(&header, &disk, Pieces { patience, ..Pieces::new(sender) });
            drop(room);
            written.inspect_err(|error| tracing::debug!(%error, "an export broke off"))
        });
        let export: Export = Box::pin(received(receiver, writing));
        Ok((SnapshotRecord { digest: Some(digest), ..record }, export))
    }

    /// Makes a snapshot of what [`Self::export_snapshot`] gave, here or elsewhere. It belongs to the caller's key: only
    /// that key and administrators see a private one. Without a visibility it gets the server's default.
    ///
    /// # Errors
    /// [`Code::SnapshotInvalid`] for what is damaged or malformed, [`Code::SnapshotIncompatible`] for another
    /// format, isolation level or image, [`Code::HostDiskFull`]. Nothing is left then.
    pub async fn import_snapshot(
        &self,
        stream: impl AsyncRead + Send + Unpin + 'static,
        tags: Vec<Reference>,
        visibility: Option<Visibility>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        self.check_references(caller.project(), &tags, caller).await?;
        let room = self.room_to_transfer(caller).await;
        self.import_in(room, stream, tags, visibility, caller).await
    }

    /// As [`Self::import_snapshot`], when there is room: the references were checked before that was waited for.
    pub(super) async fn import_in(
        &self,
        room: Room,
        stream: impl AsyncRead + Send + Unpin + 'static,
        tags: Vec<Reference>,
        visibility: Option<Visibility>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        // The stream is on a thread, and has the room, until it is read or given up.
        let stream = room.around(stream);
        let (header, reader) = self.open_import(stream).await?;
        self.obtain_exactly(header.manifest.image_digest.as_deref(), &header.manifest.layers).await?;
        self.root_of(&header.manifest)?;
        let record = SnapshotRecord {
            comment: header.comment.clone(),
            created_by: caller.key.clone(),
            project: caller.project().cloned(),
            private: visibility.unwrap_or(self.inner.acl.default()) == Visibility::Private,
            ..self.incoming(&header, Purpose::Snapshot)?
        };
        self.take_in(record, header, reader, tags, caller).await
    }

    /// Makes a snapshot of what [`Self::export_snapshot`] gave of one of another node, which has this digest: a copy that is held.
    /// Its image is here: a header that names another fetches nothing.
    ///
    /// # Errors
    /// As [`Self::import_snapshot`]; [`Code::DigestMismatch`].
    pub(crate) async fn import_copy(
        &self,
        stream: impl AsyncRead + Send + Unpin + 'static,
        of: &SnapshotRecord,
        held: Purpose,
        digest: &str,
    ) -> Result<SnapshotRecord> {
        let (header, reader) = self.open_import(stream).await?;
        if header.digest != digest || header.manifest != of.manifest.of_disk() {
            let why = "the object store has something else in the place of the snapshot";
            return Err(Error::new(Code::DigestMismatch, why));
        }
        self.root_of(&header.manifest)?;
        let record =
            SnapshotRecord { project: of.project.clone(), private: true, ..self.incoming(&header, held)? };
        self.take_in(record, header, reader, Vec::new(), &Caller::system()).await
    }

    /// The record of a snapshot that comes from elsewhere. It has no owner yet.
    fn incoming(&self, header: &Header, purpose: Purpose) -> Result<SnapshotRecord> {
        let created_ms = self.inner.now_ms();
        Ok(SnapshotRecord {
            id: Inner::new_snapshot_id(created_ms)?,
            state: SnapshotState::Creating,
            sandbox: None,
            purpose,
            comment: None,
            manifest: header.manifest.clone(),
            digest: None,
            stored_bytes: 0,
            paused_us: None,
            method: None,
            created_ms,
            created_by: None,
            project: None,
            private: false,
            tags: Vec::new(),
        })
    }

    /// Reads the beginning of a stream, and checks that a snapshot like that can be here.
    async fn open_import(&self, stream: impl AsyncRead + Send + Unpin + 'static) -> Result<(Header, Reader)> {
        let bridge = SyncIoBridge::new(stream);
        let (header, reader) = blocking(move || open(bridge)).await??;
        header.manifest.validate(&self.inner.config.caps)?;
        if header.disk_bytes != header.manifest.resources.disk_bytes {
            return Err(invalid("its disk does not have the size that its manifest says"));
        }
        if let Some(comment) = &header.comment {
            atoll_core::snapshot::comment(comment)?;
        }
        Ok((header, reader))
    }

    /// Fills a snapshot with what comes. Nothing is left of one that fails.
    async fn take_in(
        &self,
        mut record: SnapshotRecord,
        header: Header,
        reader: Reader,
        tags: Vec<Reference>,
        caller: &Caller,
    ) -> Result<SnapshotRecord> {
        let driver = self
            .inner
            .driver(header.manifest.isolation)
            .map_err(|error| Error { code: Code::SnapshotIncompatible, ..error })?;
        self.begin_snapshot(&mut record).await?;
        atoll_failpoint::fail_point!("engine.import.journalled");
        let id = record.id.clone();
        let filled = async {
            let disk = driver.write_artifact(&id, header.disk_bytes).await;
            let disk = disk.map_err(|error| isolation_error(&error))?;
            let digest = blocking(move || fill(reader, &header, &disk)).await??;
            let usage = driver.check_artifact(&id).await.map_err(|error| isolation_error(&error))?;
            Ok((digest, usage))
        };
        let (digest, usage) = match filled.await {
            Ok(filled) => filled,
            Err(error) => {
                self.undo_snapshot(&record).await;
                return Err(error);
            }
        };
        atoll_failpoint::fail_point!("engine.import.filled");
        let outcome = SnapshotOutcome {
            stored_bytes: usage.stored_bytes,
            paused_us: None,
            method: CopyMethod::Import,
            digest: Some(digest),
            tags,
        };
        self.finish_snapshot(record, &outcome, caller).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_panicked| Error::new(Code::Internal, "the transfer broke off"))
}

/// What is written, and at the end the error of the writer, if there was one: it cannot send that itself to a reader that
/// takes nothing.
fn received(
    mut receiver: mpsc::Receiver<io::Result<Bytes>>,
    writing: JoinHandle<io::Result<()>>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let pieces = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    let end = futures::stream::once(writing).filter_map(|ended| {
        let error = match ended {
            Ok(written) => written.err(),
            Err(panicked) => Some(io::Error::other(panicked)),
        };
        futures::future::ready(error.map(Err::<Bytes, _>))
    });
    pieces.chain(end)
}

fn unreadable(error: &io::Error) -> Error {
    tracing::error!(%error, "a snapshot cannot be read");
    Error::new(Code::Internal, "the snapshot cannot be read")
}

fn invalid(why: &str) -> Error {
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

// === out ===

/// Hands what is written to the stream, in chunks.
pub(crate) struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    /// How long a chunk waits to be taken; without end where there is none.
    patience: Option<Duration>,
}

impl Pieces {
    pub(crate) fn new(sender: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self { sender, chunk: Vec::with_capacity(CHUNK_BYTES), patience: None }
    }

    fn send(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let piece = match self.sender.try_send(Ok(Bytes::from(chunk))) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_piece)) => return Err(gone()),
            Err(TrySendError::Full(piece)) => piece,
        };
        let Some(patience) = self.patience else {
            return self.sender.blocking_send(piece).map_err(|_closed| gone());
        };
        // Made inside, because it needs the runtime's clock.
        let sent = Handle::current().block_on(async { self.sender.send_timeout(piece, patience).await });
        sent.map_err(|error| match error {
            SendTimeoutError::Timeout(_piece) => {
                io::Error::new(io::ErrorKind::TimedOut, "nothing of it was taken for too long")
            }
            SendTimeoutError::Closed(_piece) => gone(),
        })
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() { Ok(()) } else { self.send() }
    }
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
    out.finish()?.flush()
}

fn record(out: &mut impl Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&offset.to_le_bytes())?;
    out.write_all(&u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())?;
    out.write_all(bytes)
}

// === in ===

type Reader = Box<dyn Read + Send>;

fn open(stream: impl Read + Send + 'static) -> Result<(Header, Reader)> {
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
fn fill(mut reader: Reader, header: &Header, disk: &File) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::snapshot::{FORMAT, SnapshotKind};
    use atoll_core::spec::{IsolationLevel, Resources};

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
    async fn an_export_of_which_nothing_is_taken_ends_and_is_not_whole() {
        let (sender, receiver) = mpsc::channel(1);
        let writing = tokio::task::spawn_blocking(move || {
            let mut pieces = Pieces { patience: Some(Duration::from_millis(50)), ..Pieces::new(sender) };
            pieces.write_all(&vec![1; 3 * CHUNK_BYTES])
        });
        // Its thread is free, though nobody has read anything.
        while !writing.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let got: Vec<_> = received(receiver, writing).collect().await;
        let [Ok(first), Err(error)] = got.as_slice() else { panic!("{}", got.len()) };
        assert_eq!((first.len(), error.kind()), (CHUNK_BYTES, io::ErrorKind::TimedOut));
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
