//! Makes the copy of a sandbox: of its disk, of its memory if that is on disk, and of its logs.
//!
//! | step | row says | after a crash |
//! |---|---|---|
//! | begun | an upload of this name | its objects belong to it until the next begins |
//! | pieces and index are there | the same | the same |
//! | recorded | the copy, and that the sandbox is kept | whole |
//! | what only the copy before had is removed | the same | collected |

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;
use atoll_core::{Code, Error, Result};
use atoll_isolation::{HibernatedMemory, IsolationError, sparse};
use atoll_store::{CopyRecord, SandboxRecord};
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Travel;
use super::index::{Extent, INDEX, INDEX_MAX_BYTES, Index, Memory, PIECE_BYTES, Piece, digest};
use super::logs::Packing;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::{chain, isolation_error, store_error};
use crate::snapshot::objects_error;

/// Speed before size.
const ZSTD_LEVEL: i32 = 3;
/// Pieces that wait to be sent, and that are sent at the same time: with what is made of them, a bound for memory.
const QUEUE_MAX_COUNT: usize = 2;
const PIECES_AT_ONCE: usize = 4;

/// What a copy is made of.
pub(super) enum Of {
    /// A sandbox that is put to disk.
    Asleep,
    /// One that runs, at a moment.
    Moment {
        /// Its disk then.
        disk: File,
        /// When that was.
        taken_ms: u64,
    },
}

/// What a piece is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Disk,
    Memory,
    Logs,
}

/// What is read to make a copy, besides logs.
struct Sources {
    disk: File,
    memory: Option<HibernatedMemory>,
}

/// How many bytes each part has.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    disk: u64,
    memory: u64,
    logs: u64,
}

/// A piece, and what is to be sent for it if it is not there.
struct Made {
    part: Part,
    piece: Piece,
    packed: Option<Vec<u8>>,
}

impl Travel {
    /// Copies a sandbox; gives when the copy was whole. `None` when it was told to stop: then nothing is
    /// recorded, nor will be.
    ///
    /// # Errors
    /// [`Code::ObjectsUnavailable`], [`Code::ObjectsDenied`]; what the driver and the store say.
    pub(super) async fn send(
        &self,
        inner: &Arc<Inner>,
        record: &SandboxRecord,
        of: Of,
        stop: &CancellationToken,
    ) -> Result<Option<u64>> {
        let id = &record.id;
        let Some(Ok(_turn)) = stop.run_until_cancelled(self.sending.acquire()).await else { return Ok(None) };
        let upload = format!("{:012x}{:016x}", inner.now_ms(), random()?);
        let before = inner.store.begin_upload(id, &upload).await.map_err(store_error)?.copy;
        atoll_failpoint::fail_point!("engine.travel.begun");
        let (sources, taken_ms) = match of {
            Of::Moment { disk, taken_ms } => (Sources { disk, memory: None }, Some(taken_ms)),
            Of::Asleep => (sources(inner, record).await?, None),
        };
        let sending = self.send_objects(inner, record, sources, &upload, before);
        let Some(sent) = stop.run_until_cancelled(Box::pin(sending)).await else {
            return Ok(None);
        };
        let (copy, old) = sent?;
        // No copy waits for a journal that cannot be had: what is missing of it then is announced where it goes on.
        let engine = Engine::of(inner);
        let Some(sent) = stop.run_until_cancelled(Box::pin(engine.send_journal(id))).await else {
            return Ok(None);
        };
        if let Err(error) = sent {
            tracing::warn!(sandbox = %id, %error, "the journal of a sandbox that is copied is not");
        }
        atoll_failpoint::fail_point!("engine.travel.sent");
        // From here on it is not stopped: a task that waits for the end of this knows whether it is recorded.
        if stop.is_cancelled() {
            return Ok(None);
        }
        let finished = match taken_ms {
            None => inner.store.finish_upload(record, &copy).await,
            Some(at) => inner.store.finish_checkpoint(id, &copy, at, &record.boot_id).await,
        };
        finished.map_err(store_error)?;
        atoll_failpoint::fail_point!("engine.travel.kept");
        for name in old {
            if let Err(error) = self.objects.remove(&name).await {
                tracing::debug!(sandbox = %id, error = chain(&error), "what is not needed any more is collected later");
                break;
            }
        }
        Ok(Some(copy.copied_ms))
    }

    /// Sends what is not there; gives what is to be recorded, and the objects that only the copy before had.
    async fn send_objects(
        &self,
        inner: &Inner,
        record: &SandboxRecord,
        sources: Sources,
        upload: &str,
        before: Option<CopyRecord>,
    ) -> Result<(CopyRecord, Vec<String>)> {
        let id = &record.id;
        let earlier = match &before {
            None => None,
            // Without it everything is sent anew.
            Some(copy) => match self.index(id, copy).await {
                Ok(index) => Some(index),
                Err(error) => {
                    tracing::warn!(sandbox = %id, %error, "the copy before cannot be read");
                    None
                }
            },
        };
        let known = earlier.as_ref().map(Index::uploads).unwrap_or_default();
        let (sender, receiver) = mpsc::channel(QUEUE_MAX_COUNT);
        let reading = Reading { sender, upload: upload.to_owned(), known };
        let logs = inner.logs_dir(id);
        let Sources { disk, memory } = sources;
        let (needs, memory) = memory.map(|memory| (memory.needs, memory.file)).unzip();
        let reader = tokio::task::spawn_blocking(move || reading.run(&disk, memory.as_ref(), &logs));
        let made = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|made| (made, receiver))
        });
        let sending = made.map(|made| self.send_piece(id, made)).buffer_unordered(PIECES_AT_ONCE);
        let mut pieces: Vec<(Part, Piece)> = sending.try_collect().await?;
        let read = reader.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let sizes = read.map_err(|error| unreadable(id, &error))?;
        pieces.sort_by_key(|(_, piece)| piece.at);
        let of = |wanted, bytes| Extent {
            bytes,
            pieces: pieces
                .iter()
                .filter(|(part, _)| *part == wanted)
                .map(|(_, piece)| piece.clone())
                .collect(),
        };
        let memory = needs.map(|needs| Memory { needs, content: of(Part::Memory, sizes.memory) });
        let index = Index::new(id.clone(), of(Part::Disk, sizes.disk), memory, of(Part::Logs, sizes.logs));
        let (text, digest) = index.to_text()?;
        let put = self.objects.put_small(&self.object(id, upload, INDEX), text).await;
        put.map_err(|error| objects_error(&error))?;
        let copy =
            CopyRecord { upload: upload.to_owned(), digest, bytes: index.bytes(), copied_ms: inner.now_ms() };
        let mut old = Vec::new();
        if let (Some(before), Some(earlier)) = (before, earlier) {
            let now = index.objects();
            let gone = earlier.objects().into_iter().filter(|object| !now.contains(object));
            old.extend(gone.map(|(upload, digest)| self.object(id, &upload, &digest)));
            old.push(self.object(id, &before.upload, INDEX));
        }
        Ok((copy, old))
    }

    async fn send_piece(&self, id: &SandboxId, made: Made) -> Result<(Part, Piece)> {
        let Made { part, piece, packed } = made;
        if let Some(packed) = packed {
            let name = self.object(id, &piece.upload, &piece.digest);
            self.objects.put_small(&name, packed).await.map_err(|error| objects_error(&error))?;
        }
        Ok((part, piece))
    }

    /// What a copy consists of.
    pub(super) async fn index(&self, id: &SandboxId, copy: &CopyRecord) -> Result<Index> {
        let name = self.object(id, &copy.upload, INDEX);
        let text = self.objects.get_whole(&name, INDEX_MAX_BYTES).await;
        let text = text.map_err(|error| super::fetch::missing(&error))?;
        let (id, digest) = (id.clone(), copy.digest.clone());
        let parsed = tokio::task::spawn_blocking(move || Index::parse(&text, &id, &digest)).await;
        parsed.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "reading a copy broke off")))
    }
}

/// What there is of a sandbox that is put to disk.
async fn sources(inner: &Inner, record: &SandboxRecord) -> Result<Sources> {
    let driver = inner.driver(record.spec.isolation)?;
    let disk = driver.hibernated_disk(&record.id).await.map_err(|error| isolation_error(&error))?;
    if record.paused != Some(PauseMode::Memory) {
        return Ok(Sources { disk, memory: None });
    }
    let memory = match driver.hibernated_memory(&inner.plan_of(record)?).await {
        Ok(memory) => memory,
        // It is woken without on this node, too.
        Err(IsolationError::BadArtifact(why)) => {
            tracing::warn!(sandbox = %record.id, why, "a sandbox is copied without its memory, which no node could use");
            None
        }
        Err(error) => return Err(isolation_error(&error)),
    };
    Ok(Sources { disk, memory })
}

fn unreadable(id: &SandboxId, error: &io::Error) -> Error {
    tracing::error!(sandbox = %id, %error, "a sandbox cannot be read to be copied");
    Error::new(Code::Internal, "its disk or its logs cannot be read")
}

/// The half that reads, compares and compresses. Blocks, and ends when the receiver is gone.
struct Reading {
    sender: mpsc::Sender<Made>,
    upload: String,
    /// Which upload sent each piece that is there.
    known: HashMap<String, String>,
}

impl Reading {
    fn run(mut self, disk: &File, memory: Option<&File>, logs: &Path) -> io::Result<Sizes> {
        let mut sizes = Sizes { disk: self.sparse(Part::Disk, disk)?, ..Sizes::default() };
        if let Some(memory) = memory {
            sizes.memory = self.sparse(Part::Memory, memory)?;
        }
        let mut packing = Packing::open(logs)?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let len = fill(&mut packing, &mut piece)?;
            if len == 0 {
                return Ok(sizes);
            }
            self.give(Part::Logs, sizes.logs, &piece[..len])?;
            sizes.logs += len as u64;
        }
    }

    /// Gives how many bytes the file has.
    fn sparse(&mut self, part: Part, file: &File) -> io::Result<u64> {
        let bytes = file.metadata()?.len();
        for_pieces(file, bytes, |at, piece| self.give(part, at, piece))?;
        sparse::forget(file)?;
        Ok(bytes)
    }

    fn give(&mut self, part: Part, at: u64, bytes: &[u8]) -> io::Result<()> {
        let digest = digest(bytes);
        let (upload, packed) = match self.known.get(&digest) {
            Some(upload) => (upload.clone(), None),
            None => {
                self.known.insert(digest.clone(), self.upload.clone());
                (self.upload.clone(), Some(zstd::bulk::compress(bytes, ZSTD_LEVEL)?))
            }
        };
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let made = Made { part, piece: Piece { at, len, digest, upload }, packed };
        self.sender.blocking_send(made).or(Err(io::ErrorKind::BrokenPipe.into()))
    }
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
}
