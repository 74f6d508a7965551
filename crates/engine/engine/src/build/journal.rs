//! The log of a build: entries as lines of JSON in an append-only log with offsets, the same kind that execs have.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::build::BuildEvent;
use atoll_core::exec::OutputStream;
use atoll_core::limits::BUILD_LOG_MAX_BYTES;
use atoll_core::{Code, Error, Result};
use atoll_store::BuildRecord;
use tokio::sync::watch;

use crate::boxed;
use crate::clock::Clock;
use crate::log::{Extent, LogReader, LogWriter, Piece, READ_MAX_BYTES, extent};

/// Longest line, bytes. An entry of ours is far below it.
const LINE_MAX_BYTES: usize = 1 << 20;

/// Writes the log.
#[derive(Debug)]
pub(super) struct Journal {
    log: Arc<Mutex<LogWriter>>,
    extent: watch::Sender<Extent>,
}

impl Journal {
    /// The log of a new build.
    pub(super) fn fresh(dir: &Path, clock: &Clock) -> Self {
        Self::with(LogWriter::fresh(dir, BUILD_LOG_MAX_BYTES, clock))
    }

    /// The log of a build that an earlier process left.
    pub(super) fn open(dir: &Path, clock: &Clock) -> io::Result<Self> {
        LogWriter::open(dir, BUILD_LOG_MAX_BYTES, clock).map(Self::with)
    }

    fn with(log: LogWriter) -> Self {
        let extent = watch::Sender::new(log.extent());
        Self { log: Arc::new(Mutex::new(log)), extent }
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// [`Code::HostDiskFull`] when it cannot be kept.
    pub(super) async fn write(&self, event: &BuildEvent) -> Result<()> {
        let mut line = serde_json::to_vec(event).map_err(|error| failed(&error))?;
        // A line that a crash tore ends here.
        line.insert(0, b'\n');
        line.push(b'\n');
        let log = Arc::clone(&self.log);
        let work = move || {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let written = log.append(OutputStream::Stdout, &line);
            (log.extent(), written)
        };
        let (extent, written) = tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))?;
        self.extent.send_replace(extent);
        written.map_err(|error| {
            tracing::error!(%error, "the log of a build cannot be written");
            Error::new(Code::HostDiskFull, "the host cannot keep the build's log")
                .hint("free some, then build again")
        })
    }
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    tracing::error!(%error, "the log of a build failed");
    Error::new(Code::Internal, "the log of the build cannot be read or written")
}

/// An entry with the offset behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Where to go on after it.
    pub next_offset: u64,
    /// The entry.
    pub event: BuildEvent,
}

/// A piece of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// Entries, in order.
    pub entries: Vec<LogEntry>,
    /// Where to go on.
    pub next_offset: u64,
    /// Whether there is nothing more, and never will be.
    pub over: bool,
    /// The build.
    pub record: BuildRecord,
}

/// Reads the log of a build from an offset on.
#[derive(Debug)]
pub struct BuildLog {
    dir: PathBuf,
    offset: u64,
    record: watch::Receiver<BuildRecord>,
    extent: Option<watch::Receiver<Extent>>,
}

impl BuildLog {
    pub(super) fn live(
        dir: PathBuf,
        offset: u64,
        record: watch::Receiver<BuildRecord>,
        journal: &Journal,
    ) -> Self {
        Self { dir, offset, record, extent: Some(journal.extent.subscribe()) }
    }

    pub(super) fn ended(dir: PathBuf, offset: u64, record: BuildRecord) -> Self {
        Self { dir, offset, record: watch::Sender::new(record).subscribe(), extent: None }
    }

    /// What there is now, at most about `max_bytes`.
    ///
    /// # Errors
    /// [`Code::Internal`] when the log cannot be read.
    #[boxed]
    pub async fn now(&mut self, max_bytes: usize) -> Result<LogPage> {
        // Looked at before the log: what is final then has its whole log written.
        let record = self.record.borrow_and_update().clone();
        let known = self.extent.as_mut().map(|extent| *extent.borrow_and_update());
        let (dir, offset) = (self.dir.clone(), self.offset);
        let work = move || -> io::Result<(Vec<LogEntry>, u64, bool)> {
            let extent = known.map_or_else(|| extent(&dir), Ok)?;
            let (entries, next) = read(&dir, offset, extent, max_bytes)?;
            Ok((entries, next, next >= extent.end))
        };
        let read = tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))?;
        let (entries, next_offset, at_end) = read.map_err(|error| failed(&error))?;
        self.offset = next_offset;
        let over = record.state.is_final() && at_end && entries.is_empty();
        Ok(LogPage { entries, next_offset, over, record })
    }

    /// Waits until there may be more. Returns at once for a build that has ended.
    #[boxed]
    pub async fn changed(&mut self) {
        let Some(extent) = &mut self.extent else { return };
        tokio::select! {
            // Either fails when the build has ended: that is a change, too.
            _ = extent.changed() => {}
            _ = self.record.changed() => {}
        }
    }
}

/// Whole lines from `offset` on.
fn read(dir: &Path, offset: u64, extent: Extent, max_bytes: usize) -> io::Result<(Vec<LogEntry>, u64)> {
    let mut reader = LogReader::new(dir, offset.min(extent.end));
    let (mut entries, mut line, mut next) = (Vec::new(), Vec::new(), offset);
    let mut skip_to_line = false;
    let mut taken = 0;
    while taken < max_bytes {
        match reader.next_piece(extent, READ_MAX_BYTES)? {
            None => break,
            Some(Piece::Gap { to, .. }) => {
                line.clear();
                next = to;
                skip_to_line = true;
            }
            Some(Piece::Output { offset, bytes, .. }) => {
                taken += bytes.len();
                for (at, byte) in bytes.iter().enumerate() {
                    if *byte != b'\n' {
                        line.push(*byte);
                        continue;
                    }
                    next = offset + at as u64 + 1;
                    if !std::mem::take(&mut skip_to_line)
                        && let Ok(event) = serde_json::from_slice(&line)
                    {
                        entries.push(LogEntry { next_offset: next, event });
                    }
                    line.clear();
                }
                if line.len() > LINE_MAX_BYTES {
                    line.clear();
                    skip_to_line = true;
                }
            }
        }
    }
    // A torn line at the end of a log that is not written any more is no entry.
    Ok((entries, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn entries_come_back_and_torn_lines_do_not() {
        let dir = tempfile::Builder::new().prefix("atoll-journal").tempdir().unwrap();
        let note = |text: &str| BuildEvent::Note { at_ms: 1, text: text.to_owned() };
        let journal = Journal::fresh(dir.path(), &Clock::default());
        journal.write(&note("one\ntwo")).await.unwrap();
        journal.write(&note("three")).await.unwrap();
        drop(journal);
        let segment = dir.path().join("0000000000000000.data");
        let bytes = std::fs::read(&segment).unwrap();
        std::fs::write(&segment, &bytes[..bytes.len() - 4]).unwrap();
        let journal = Journal::open(dir.path(), &Clock::default()).unwrap();
        journal.write(&note("four")).await.unwrap();
        let all = extent(dir.path()).unwrap();
        let (entries, next) = read(dir.path(), 0, all, usize::MAX).unwrap();
        let events: Vec<_> = entries.iter().map(|entry| entry.event.clone()).collect();
        assert_eq!(events, [note("one\ntwo"), note("four")]);
        assert_eq!(next, all.end);
        let rest = read(dir.path(), entries[0].next_offset, all, usize::MAX).unwrap().0;
        assert_eq!(rest, entries[1..]);
    }
}
