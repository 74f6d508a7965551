//! Fetches the copy of a sandbox.
//!
//! What lies there is believed by its digest only: the database has that of the index, the index those of all pieces. The disk
//! becomes an artifact, which is checked as everything that comes from elsewhere, and the sandbox is made from that. The
//! artifact has a row, so that what a crash leaves of it is removed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_objects::ObjectsError;
use atoll_store::{SandboxRecord, SnapshotRecord};
use futures::{StreamExt as _, TryStreamExt as _};

use super::Travel;
use super::index::{Extent, Index, PACKED_MAX_BYTES, Piece, digest};
use super::logs::{sync_dir, unpack};
use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, store_error};
use crate::snapshot::objects_error;

/// The name that holds the artifact of a sandbox that is fetched.
pub(crate) const HOLDER: &str = "a sandbox on its way";
/// Pieces that are fetched at the same time: a bound for memory, too.
const PIECES_AT_ONCE: usize = 8;
/// What is looked at to leave out what is zero, bytes.
const BLOCK_BYTES: usize = 4096;

/// A disk that was fetched, as an artifact.
#[derive(Debug)]
pub(crate) struct Fetched(pub(crate) SnapshotRecord);

/// Why an object of a copy cannot be read.
pub(super) fn missing(error: &ObjectsError) -> Error {
    match error {
        ObjectsError::NotFound => {
            Error::new(Code::SnapshotNotFound, "a part of its copy is not in the object store any more")
        }
        other => objects_error(other),
    }
}

fn broken(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::StorageFull {
        return Error::new(Code::HostDiskFull, "the disk is full").hint("free some, then try again");
    }
    tracing::error!(%error, "what was fetched cannot be written");
    Error::new(Code::Internal, "what was fetched cannot be written")
}

impl Travel {
    async fn fetch_index(&self, inner: &Inner, id: &SandboxId) -> Result<Index> {
        let kept = inner.store.kept(id).await.map_err(store_error)?;
        let gone = || Error::new(Code::SnapshotNotFound, "there is no copy of the sandbox");
        self.index(id, &kept.copy.ok_or_else(gone)?).await
    }

    /// Writes what is not zero of an extent into a file.
    async fn fill(&self, id: &SandboxId, extent: &Extent, file: &Arc<File>) -> Result<()> {
        let pieces = futures::stream::iter(extent.pieces.clone());
        let fetched = pieces.map(|piece| self.fetch_piece(id, piece, Arc::clone(file)));
        fetched.buffer_unordered(PIECES_AT_ONCE).try_collect::<()>().await
    }

    async fn fetch_piece(&self, id: &SandboxId, piece: Piece, file: Arc<File>) -> Result<()> {
        let name = self.object(id, &piece.upload, &piece.digest);
        let packed =
            self.objects.get_whole(&name, PACKED_MAX_BYTES).await.map_err(|error| missing(&error))?;
        let written = tokio::task::spawn_blocking(move || write(&packed, &piece, &file)).await;
        written
            .unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "writing what was fetched broke off")))
    }

    /// Fetches the output of a sandbox's execs to its place, unless something is there.
    pub(crate) async fn fetch_logs(&self, inner: &Inner, id: &SandboxId) -> Result<()> {
        let place = inner.logs_dir(id);
        if tokio::fs::try_exists(&place).await.map_err(|error| broken(&error))? {
            return Ok(());
        }
        let _turn = self.fetching.acquire().await;
        let index = self.fetch_index(inner, id).await?;
        let (dir, bytes) = (self.dir.join(format!("{id}.logs")), index.logs.bytes);
        let packed = self.dir.join(format!("{id}.packed"));
        let made = File::options().read(true).write(true).create(true).truncate(true).open(&packed);
        let file = Arc::new(made.map_err(|error| broken(&error))?);
        std::fs::remove_file(&packed).map_err(|error| broken(&error))?;
        file.set_len(bytes).map_err(|error| broken(&error))?;
        self.fill(id, &index.logs, &file).await?;
        let unpacked = tokio::task::spawn_blocking(move || {
            match std::fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            unpack(io::BufReader::new(Whole { file: &file, at: 0 }), bytes, &dir)?;
            let parent = place.parent().ok_or_else(|| io::Error::other("logs have no place"))?;
            std::fs::create_dir_all(parent)?;
            std::fs::rename(&dir, &place)?;
            sync_dir(parent)
        });
        let unpacked = unpacked.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        unpacked.map_err(|error| broken(&error))?;
        inner.logs.measure_one(id);
        Ok(())
    }
}

/// A file from its beginning, at a position that other readers and writers of it do not move.
struct Whole<'a> {
    file: &'a File,
    at: u64,
}

impl io::Read for Whole<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Checks a piece and writes what is not zero of it.
fn write(packed: &[u8], piece: &Piece, file: &File) -> Result<()> {
    let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
    let mismatch = || {
        Error::new(
            Code::DigestMismatch,
            "the object store has something else in the place of a part of the copy",
        )
    };
    // No more than it should have is unpacked.
    let bytes = zstd::bulk::decompress(packed, len).map_err(|_error| mismatch())?;
    if bytes.len() != len || digest(&bytes) != piece.digest {
        return Err(mismatch());
    }
    let mut at = piece.at;
    for block in bytes.chunks(BLOCK_BYTES) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, at).map_err(|error| broken(&error))?;
        }
        at += block.len() as u64;
    }
    Ok(())
}

impl Engine {
    /// Fetches the disk of a sandbox.
    ///
    /// # Errors
    /// [`Code::ObjectsUnavailable`]; [`Code::DigestMismatch`], [`Code::SnapshotInvalid`] for what is not what it should be;
    /// [`Code::HostDiskFull`]. Nothing is left then.
    pub(crate) async fn fetch_disk(&self, sandbox: &SandboxRecord) -> Result<Fetched> {
        let Some(travel) = &self.inner.travel else {
            return Err(Error::new(
                Code::InvalidState,
                "its disk is in an object store, and this server has none",
            )
            .hint("start it with --objects, as the other nodes"));
        };
        let _turn = travel.fetching.acquire().await;
        let index = travel.fetch_index(&self.inner, &sandbox.id).await?;
        let mut record = super::checkpoint::held(sandbox, HOLDER, self.inner.now_ms())?;
        self.begin_snapshot(&mut record).await?;
        atoll_failpoint::fail_point!("engine.travel.fetching");
        let driver = self.inner.driver(sandbox.spec.isolation)?;
        let filled = async {
            let disk = driver.write_artifact(&record.id, index.disk.bytes).await;
            let disk = Arc::new(disk.map_err(|error| isolation_error(&error))?);
            travel.fill(&sandbox.id, &index.disk, &disk).await?;
            drop(disk);
            driver.check_artifact(&record.id).await.map_err(|error| isolation_error(&error))
        };
        if let Err(error) = filled.await {
            self.undo_snapshot(&record).await;
            return Err(error);
        }
        atoll_failpoint::fail_point!("engine.travel.fetched");
        Ok(Fetched(record))
    }
}
