//! Makes the copy of a sandbox: of its disk, of its memory if that is on disk, and of its logs.
//!
//! | step | row says | after a crash |
//! |---|---|---|
//! | begun, maybe while it runs | an upload of this name | given up at the next start, then collected |
//! | pieces and index are there | the same | the same |
//! | recorded | the copy, and that the sandbox is kept | whole |
//! | what only the copy before had is removed | the same | collected |
//!
//! One that fails, is stopped, or was sent ahead of a move that did not come is given up: its objects are collected.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::Arc;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::PauseMode;
use atoll_core::{Code, Error, Result};
use atoll_isolation::{HibernatedMemory, IsolationError};
use atoll_store::{CopyRecord, SandboxRecord};
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::index::{Extent, INDEX, INDEX_MAX_BYTES, Index, Memory, Piece};
use super::pieces::{Known, Made, Part, Sizes, pack, packed_at_once, read_all};
use super::{Travel, owner_of};
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::{chain, isolation_error, store_error};
use crate::snapshot::objects_error;

/// Pieces that wait to be packed, and that are sent at the same time: with those that are being packed, a bound for
/// memory.
const QUEUE_MAX_COUNT: usize = 2;
const SENT_AT_ONCE: usize = 8;

/// What a copy is made of.
pub(super) enum Of {
    /// A sandbox that is put to disk, and what was sent of it before.
    Asleep(Option<Box<Upload>>),
    /// One that runs, at a moment.
    Moment {
        /// Its disk then.
        disk: File,
        /// When that was.
        taken_ms: u64,
    },
}

/// What is read to make a copy, besides logs.
struct Sources {
    disk: File,
    memory: Option<HibernatedMemory>,
}

/// An upload that is written down, and what is there for it. It becomes a copy only if no other upload of the sandbox
/// begins, or becomes one, before that.
#[derive(Debug)]
pub(crate) struct Upload {
    name: String,
    /// The copy before.
    before: Option<CopyRecord>,
    /// What that consists of, if it can be read.
    earlier: Option<Index>,
    known: Known,
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
        let turn = self.sending.wait(owner_of(record));
        let Some(_turn) = stop.run_until_cancelled(turn).await else { return Ok(None) };
        let (ahead, moment) = match of {
            Of::Asleep(ahead) => (ahead, None),
            Of::Moment { disk, taken_ms } => (None, Some((disk, taken_ms))),
        };
        let ahead = match ahead {
            Some(upload) => is_under_way(inner, id, &upload).await?.then_some(upload),
            None => None,
        };
        let upload = match ahead {
            Some(upload) => Some(upload),
            None => self.begin(inner, id, stop).await?.map(Box::new),
        };
        let Some(upload) = upload else { return Ok(None) };
        atoll_failpoint::fail_point!("engine.travel.begun");
        let sent = Box::pin(self.send_for(&upload, inner, record, moment, stop)).await;
        if !matches!(sent, Ok(Some(_))) {
            self.give_up(inner, id, &upload).await;
        }
        sent
    }

    /// The same, for an upload that was begun. It is of a `moment`, or of a sandbox that is put to disk.
    async fn send_for(
        &self,
        upload: &Upload,
        inner: &Arc<Inner>,
        record: &SandboxRecord,
        moment: Option<(File, u64)>,
        stop: &CancellationToken,
    ) -> Result<Option<u64>> {
        let id = &record.id;
        let (sources, taken_ms) = match moment {
            Some((disk, taken_ms)) => (Sources { disk, memory: None }, Some(taken_ms)),
            None => (sources(inner, record).await?, None),
        };
        let sending = self.send_objects(inner, record, sources, upload);
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

    /// Writes down that an upload begins. `None` when it was told to stop.
    async fn begin(&self, inner: &Inner, id: &SandboxId, stop: &CancellationToken) -> Result<Option<Upload>> {
        let name = format!("{:012x}{:016x}", inner.now_ms(), random()?);
        let before = inner.store.begin_upload(id, &name).await.map_err(store_error)?.copy;
        let reading = Box::pin(self.earlier(id, before.as_ref()));
        let Some(earlier) = stop.run_until_cancelled(reading).await else {
            self.give_name_up(inner, id, &name).await;
            return Ok(None);
        };
        let known = Known::new(earlier.as_ref().map(Index::uploads).unwrap_or_default());
        Ok(Some(Upload { name, before, earlier, known }))
    }

    /// Has nothing belong to an upload any more that comes to nothing. What cannot be written down now is by the next
    /// upload, or at the next start.
    pub(crate) async fn give_up(&self, inner: &Inner, id: &SandboxId, upload: &Upload) {
        self.give_name_up(inner, id, &upload.name).await;
    }

    async fn give_name_up(&self, inner: &Inner, id: &SandboxId, upload: &str) {
        if inner.shutdown.is_cancelled() {
            return;
        }
        if let Err(error) = inner.store.give_upload_up(id, upload).await {
            tracing::debug!(sandbox = %id, error = chain(&error), "an upload is given up later");
        }
    }

    /// What the copy before consists of. Without that everything is sent anew.
    async fn earlier(&self, id: &SandboxId, before: Option<&CopyRecord>) -> Option<Index> {
        match self.index(id, before?).await {
            Ok(index) => Some(index),
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "the copy before cannot be read");
                None
            }
        }
    }

    /// Sends what a sandbox has at a moment, for a copy of a later one, which then has less to send. Nothing of it is
    /// used but pieces that the later copy has, too. `None` when it was told to stop.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) async fn send_ahead(
        &self,
        inner: &Inner,
        record: &SandboxRecord,
        disk: File,
        stop: &CancellationToken,
    ) -> Result<Option<Box<Upload>>> {
        let id = &record.id;
        let turn = self.sending.wait(owner_of(record));
        let Some(_turn) = stop.run_until_cancelled(turn).await else { return Ok(None) };
        let Some(upload) = self.begin(inner, id, stop).await? else { return Ok(None) };
        let sending = Box::pin(self.send_pieces(inner, id, disk, None, &upload));
        let sent = stop.run_until_cancelled(sending).await;
        match sent {
            Some(Ok(_all)) => Ok(Some(Box::new(upload))),
            broken_off => {
                self.give_up(inner, id, &upload).await;
                broken_off.transpose().map(|_nothing| None)
            }
        }
    }

    /// Sends the pieces that are not there; gives all, and how much there is of each part.
    async fn send_pieces(
        &self,
        inner: &Inner,
        id: &SandboxId,
        disk: File,
        memory: Option<File>,
        upload: &Upload,
    ) -> Result<(Vec<(Part, Piece)>, Sizes)> {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX_COUNT);
        let logs = inner.logs_dir(id);
        let reader = tokio::task::spawn_blocking(move || read_all(&sender, &disk, memory.as_ref(), &logs));
        let raw = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|raw| (raw, receiver))
        });
        let (name, known) = (upload.name.clone(), upload.known.clone());
        let packing = raw.map(move |raw| pack(raw, name.clone(), known.clone()));
        let packed = packing.buffer_unordered(packed_at_once());
        let sending = packed.map(|made| self.send_piece(id, made)).buffer_unordered(SENT_AT_ONCE);
        let pieces = sending.try_collect().await?;
        let read = reader.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let sizes = read.map_err(|error| unreadable(id, &error))?;
        Ok((pieces, sizes))
    }

    /// Sends what is not there; gives what is to be recorded, and the objects that nothing refers to then.
    async fn send_objects(
        &self,
        inner: &Inner,
        record: &SandboxRecord,
        sources: Sources,
        upload: &Upload,
    ) -> Result<(CopyRecord, Vec<String>)> {
        let id = &record.id;
        let Sources { disk, memory } = sources;
        let (needs, memory) = memory.map(|memory| (memory.needs, memory.file)).unzip();
        let (mut pieces, sizes) = self.send_pieces(inner, id, disk, memory, upload).await?;
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
        let put = self.objects.put_small(&self.object(id, &upload.name, INDEX), text).await;
        put.map_err(|error| objects_error(&error))?;
        let (upload_name, bytes) = (upload.name.clone(), index.bytes());
        let copy = CopyRecord { upload: upload_name, digest, bytes, copied_ms: inner.now_ms() };
        Ok((copy, self.unused(id, upload, &index)))
    }

    /// What nothing refers to once `index` is that of the copy: of the copy before, and of what was sent ahead.
    fn unused(&self, id: &SandboxId, upload: &Upload, index: &Index) -> Vec<String> {
        let sent = upload.known.sent_by(&upload.name).into_iter();
        let mut gone: BTreeSet<_> = sent.map(|digest| (upload.name.clone(), digest)).collect();
        gone.extend(upload.earlier.iter().flat_map(Index::objects));
        let used = index.objects();
        let gone = gone.into_iter().filter(|object| !used.contains(object));
        let mut names: Vec<_> = gone.map(|(by, digest)| self.object(id, &by, &digest)).collect();
        if let (Some(before), Some(_)) = (&upload.before, &upload.earlier) {
            names.push(self.object(id, &before.upload, INDEX));
        }
        names
    }

    async fn send_piece(&self, id: &SandboxId, made: io::Result<Made>) -> Result<(Part, Piece)> {
        let Made { part, piece, packed } = made.map_err(|error| unreadable(id, &error))?;
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

/// Whether an upload can still become the copy: no other was begun since.
async fn is_under_way(inner: &Inner, id: &SandboxId, upload: &Upload) -> Result<bool> {
    let kept = inner.store.kept(id).await.map_err(store_error)?;
    Ok(kept.upload.as_ref() == Some(&upload.name))
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
