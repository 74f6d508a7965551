//! Reading an exec's output: any number of readers, each at its own offset and pace.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_core::exec::{ExecState, Exit};
use atoll_core::id::KeyId;
use atoll_core::{Code, Error, Result};
use tokio::sync::watch;

use crate::boxed;
use crate::log::{Extent, Holding, LogReader, Piece, READ_LEAST_BYTES, READ_MAX_BYTES, Reading};

use super::shared::{Attachment, ExecShared, Hold, Progress};

/// What a reader gets next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Output, or a gap.
    Piece(Piece),
    /// There is no more: how it ended.
    End {
        /// `exited` or `lost`.
        state: ExecState,
        /// How.
        exit: Exit,
        /// One past the last byte.
        offset: u64,
    },
}

/// Follows the output of one exec from an offset on.
#[derive(Debug)]
pub struct OutputReader {
    /// `None` only while it is on a blocking thread, or after a call was cancelled there.
    reader: Option<LogReader>,
    dir: PathBuf,
    offset: u64,
    source: Source,
    _attachment: Option<Attachment>,
    /// Keeps what was not read yet from being dropped.
    hold: Option<Hold>,
    /// The bytes that all readers may hold.
    reading: Arc<Reading>,
    /// Whose share the bytes count for; `None` is the server itself.
    key: Option<KeyId>,
    /// Those that this one holds: of the piece that it gave last, until the client has come for the next.
    held: Option<Holding>,
}

#[derive(Debug)]
enum Source {
    Live(watch::Receiver<Progress>),
    Ended(Progress),
}

impl OutputReader {
    pub(super) fn live(
        dir: PathBuf,
        offset: u64,
        exec: &Arc<ExecShared>,
        attachment: Option<Attachment>,
        reading: Arc<Reading>,
    ) -> Self {
        Self::new(dir, offset, Source::Live(exec.progress.subscribe()), attachment, reading)
    }

    /// As [`Self::live`], for the client that must miss nothing: a command that says more than the log keeps waits
    /// for it.
    pub(super) fn holding(mut self, exec: &Arc<ExecShared>) -> Self {
        self.hold = Some(Hold::new(Arc::clone(exec), self.offset));
        self
    }

    pub(super) fn ended(dir: PathBuf, offset: u64, progress: Progress, reading: Arc<Reading>) -> Self {
        Self::new(dir, offset, Source::Ended(progress), None, reading)
    }

    fn new(
        dir: PathBuf,
        offset: u64,
        source: Source,
        attachment: Option<Attachment>,
        reading: Arc<Reading>,
    ) -> Self {
        Self {
            reader: None,
            dir,
            offset,
            source,
            _attachment: attachment,
            hold: None,
            reading,
            key: None,
            held: None,
        }
    }

    /// For a client with this key: what the reader holds until its client takes it counts for the key's share of the
    /// memory for that. Without, it counts for the share of the server itself, which reads without waiting for clients.
    #[must_use]
    pub fn read_by(self, key: Option<&KeyId>) -> Self {
        Self { key: key.cloned(), ..self }
    }

    /// Offset of the next byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    fn progress(&mut self) -> Progress {
        match &mut self.source {
            Source::Live(progress) => progress.borrow_and_update().clone(),
            Source::Ended(progress) => progress.clone(),
        }
    }

    /// The next event, waiting for it. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// [`Code::Internal`] when the log cannot be read, [`Code::ShuttingDown`] when the server stops.
    #[boxed]
    pub async fn next(&mut self, max_bytes: usize) -> Result<OutputEvent> {
        loop {
            if let Some(event) = self.next_now(max_bytes).await? {
                return Ok(event);
            }
            let Source::Live(progress) = &mut self.source else {
                return Err(Error::new(Code::Internal, "an ended exec has no end"));
            };
            if progress.borrow().stopped || progress.changed().await.is_err() {
                return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
            }
        }
    }

    /// The next event if there is one now.
    ///
    /// # Errors
    /// [`Code::Internal`] when the log cannot be read.
    #[boxed]
    pub async fn next_now(&mut self, max_bytes: usize) -> Result<Option<OutputEvent>> {
        self.held = None;
        let progress = self.progress();
        if self.offset < progress.extent.end {
            let piece = self.read(progress.extent, max_bytes).await?;
            return Ok(piece.map(OutputEvent::Piece));
        }
        Ok(progress.exit.filter(|_| progress.state.is_final()).map(|exit| OutputEvent::End {
            state: progress.state,
            exit,
            offset: progress.extent.end,
        }))
    }

    async fn read(&mut self, extent: Extent, max_bytes: usize) -> Result<Option<Piece>> {
        let max_bytes = self.hold_room(max_bytes);
        let mut reader = self.reader.take().unwrap_or_else(|| LogReader::new(&self.dir, self.offset));
        let read = tokio::task::spawn_blocking(move || {
            let piece = reader.next_piece(extent, max_bytes);
            (reader, piece)
        });
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "an output log cannot be read");
            Error::new(Code::Internal, "the output log cannot be read")
        };
        let (reader, piece) = read.await.map_err(|error| failed(&error))?;
        self.offset = reader.offset();
        self.reader = Some(reader);
        if let Some(hold) = &self.hold {
            hold.read(self.offset);
        }
        let piece = piece.map_err(|error| failed(&error))?;
        let len = if let Some(Piece::Output { bytes, .. }) = &piece { bytes.len() } else { 0 };
        if let Some(held) = &mut self.held {
            held.shrink_to(len);
        }
        Ok(piece)
    }

    /// Takes room for so many bytes, if there is; gives how many may be read.
    fn hold_room(&mut self, max_bytes: usize) -> usize {
        let wanted = max_bytes.min(READ_MAX_BYTES);
        self.held = self.reading.hold(self.key.as_ref(), wanted);
        if self.held.is_some() { wanted } else { wanted.min(READ_LEAST_BYTES) }
    }
}
