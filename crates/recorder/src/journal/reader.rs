//! Reads events of a journal in order, also while it is written.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use atoll_core::id::SandboxId;
use serde::{Deserialize, Serialize};

use super::{Checkpoint, Header, Segment, list, read, read_head};
use crate::Event;
use crate::chain::{Frame, Kind, MAGIC, Next, decode};
use crate::limits::RECORD_MAX_BYTES;

/// Bytes that are read from an open segment at once.
const READ_BYTES: u64 = 1 << 20;

/// An event with its place in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// Counts the events of a sandbox, from 1.
    pub number: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Where a reader stands in an open segment.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    offset: u64,
}

/// Reads the events of one journal from a number on. Blocking. Holds no file open between calls.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// Number of the next event that is wanted.
    next: u64,
    place: Option<Place>,
}

impl Reader {
    /// A reader of a sandbox's journal below `base`, from this number on.
    #[must_use]
    pub fn new(base: &Path, sandbox: &SandboxId, from: u64) -> Self {
        Self { dir: base.join(sandbox.as_str()), next: from.max(1), place: None }
    }

    /// Number of the next event.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.next
    }

    /// The key that made the sandbox, as the journal says; `None` when there is no journal.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn owner(&self) -> io::Result<Option<Option<String>>> {
        let bytes = loop {
            let Some(segment) = list(&self.dir)?.into_iter().next() else { return Ok(None) };
            match read_head(&segment) {
                // It was closed between the two looks.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                bytes => break bytes?,
            }
        };
        let Next::Frame(frame) = decode(bytes.strip_prefix(MAGIC).unwrap_or_default()) else {
            return Ok(None);
        };
        let header: Header = serde_json::from_slice(frame.payload)?;
        Ok(Some(header.owner))
    }

    /// The next events that are there, of at most about one segment; none at the end. Numbers that were dropped for
    /// their age or size are passed over.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Numbered>> {
        loop {
            let segments = list(&self.dir)?;
            // The last that begins at or before what is wanted, or the first there is.
            let at = segments.partition_point(|segment| segment.first <= self.next).saturating_sub(1);
            let Some(segment) = segments.get(at) else { return Ok(Vec::new()) };
            let events = match self.read_segment(segment) {
                // It was closed between the two looks.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                events => events?,
            };
            if !events.is_empty() {
                return Ok(events);
            }
            // Nothing in it is wanted: the next one, if there is one.
            match segments.get(at + 1) {
                Some(next) if next.first > self.next => self.next = next.first,
                _ => return Ok(Vec::new()),
            }
        }
    }

    fn read_segment(&mut self, segment: &Segment) -> io::Result<Vec<Numbered>> {
        if segment.closed {
            self.place = None;
            let bytes = read(segment)?;
            let body = bytes.strip_prefix(MAGIC).unwrap_or_default();
            return Ok(self.take(body).0);
        }
        let place = match self.place.take() {
            Some(place) if place.path == segment.path => place,
            _ => Place { path: segment.path.clone(), offset: MAGIC.len() as u64 },
        };
        let mut file = File::open(&place.path)?;
        let mut offset = place.offset;
        let mut events = Vec::new();
        loop {
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            (&file).take(READ_BYTES + RECORD_MAX_BYTES as u64).read_to_end(&mut bytes)?;
            let (more, used) = self.take(&bytes);
            offset += used as u64;
            events.extend(more);
            if used == 0 || !events.is_empty() {
                break;
            }
        }
        self.place = Some(Place { offset, ..place });
        Ok(events)
    }

    /// The wanted events of some records, and how many bytes were whole records.
    fn take(&mut self, mut bytes: &[u8]) -> (Vec<Numbered>, usize) {
        let (mut events, mut used) = (Vec::new(), 0);
        while let Next::Frame(frame) = decode(bytes) {
            bytes = &bytes[frame.size..];
            used += frame.size;
            if let Some(event) = wanted(&frame, self.next) {
                self.next = event.number.saturating_add(1);
                events.push(event);
            }
        }
        (events, used)
    }

    /// The last signed statement of the journal, for a user who keeps it elsewhere: number and link.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn head(&self) -> io::Result<Option<(u64, String)>> {
        Ok(self.last_checkpoint()?.map(|checkpoint| (checkpoint.last, checkpoint.link)))
    }

    /// Whether the journal says that its sandbox is gone. `verify` says whether that is signed.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn has_ended(&self) -> io::Result<bool> {
        Ok(self.last_checkpoint()?.is_some_and(|checkpoint| checkpoint.ends))
    }

    fn last_checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        for segment in list(&self.dir)?.iter().rev() {
            let bytes = read(segment)?;
            let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_default();
            let mut head = None;
            while let Next::Frame(frame) = decode(rest) {
                rest = &rest[frame.size..];
                if frame.kind == Kind::Checkpoint
                    && let Ok(checkpoint) = serde_json::from_slice::<Checkpoint>(frame.payload)
                {
                    head = Some(checkpoint);
                }
            }
            if head.is_some() {
                return Ok(head);
            }
        }
        Ok(None)
    }
}

/// Passes over an event that cannot be understood: a newer program wrote it, or an attacker changed it. `verify` finds
/// that.
fn wanted(frame: &Frame<'_>, from: u64) -> Option<Numbered> {
    let read = (frame.kind == Kind::Event).then(|| serde_json::from_slice::<Numbered>(frame.payload))?;
    let event = read
        .inspect_err(|error| tracing::warn!(%error, "an event of a journal cannot be understood: 'atoll trace verify' says where"))
        .ok()?;
    (event.number >= from).then_some(event)
}
