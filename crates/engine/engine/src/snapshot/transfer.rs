//! Snapshots as a stream of bytes: to a file, to another server, to an object store, and back. `wire` has the format, `pieces` the way to a reader.

mod pieces;
mod wire;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SnapshotId;
use atoll_core::sharing::Visibility;
use atoll_core::snapshot::{CopyMethod, Purpose, Reference, SnapshotState};
use atoll_core::{Code, Error, Result};
use atoll_store::{SnapshotOutcome, SnapshotRecord};
use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio_util::io::SyncIoBridge;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::isolation_error;
use crate::transfers::Room;

pub(crate) use pieces::Pieces;
use pieces::{Patience, Queue, received};
use wire::{Header, Reader, fill, invalid, open, unreadable, write_to};

/// Pieces that wait to be sent.
const QUEUE_MAX_COUNT: usize = 16;
/// An export of which its client takes no chunk for this long is given up, as a body is of which nothing comes.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A snapshot on its way out.
pub type Export = futures::stream::BoxStream<'static, io::Result<Bytes>>;

impl Engine {
    /// A snapshot as a stream. An error in the stream means that what came is not whole. It ends with one when its
    /// reader takes nothing for a minute, or hardly anything while others wait to transfer something.
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

    /// As [`Self::export_snapshot`], with the longest time that the reader may take nothing; without one for what the
    /// operator chose to read it.
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
        let room = self.room_to_transfer(caller).await?;
        let disk = driver.read_artifact(&record.id).await.map_err(|error| isolation_error(&error))?;
        let disk_bytes = disk.metadata().map_err(|error| unreadable(&error))?.len();
        let header = Header {
            manifest: record.manifest.of_disk(),
            disk_bytes,
            digest: digest.clone(),
            comment: record.comment.clone(),
        };
        let patience = patience.map(|of_chunk| Patience { of_chunk, pace: room.pace() });
        let (sender, receiver) = mpsc::channel(QUEUE_MAX_COUNT);
        let queue = Queue::new(receiver);
        // The reader alone keeps it: when the reader has gone, the writer ends.
        let known = Arc::downgrade(&queue);
        let writing = tokio::task::spawn_blocking(move || {
            let written = write_to(&known, &header, &disk, Pieces::new(sender).waiting(patience));
            drop(room);
            written.inspect_err(|error| tracing::debug!(%error, "an export broke off"))
        });
        let export: Export = Box::pin(received(queue, writing));
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
        let room = self.room_to_transfer(caller).await?;
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
