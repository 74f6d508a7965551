//! The one writer of a journal. Blocking: only the recorder's thread calls it. It waits for the disk only where a long
//! journal goes on with another segment: the last one is compressed by another thread ([`Unpacked`]).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atoll_core::id::SandboxId;
use serde::Serialize;

use super::checkpoint::{End, VERSION};
use super::segment::{Unpacked, create, open_path};
use super::{Checkpoint, Header, Segment, list, read};
use crate::abroad::{Way, has_arrived, way};
use crate::chain::{Kind, Link, MAGIC, Next, decode, encode};
use crate::clip::clip;
use crate::event::{RecorderEvent, What};
use crate::key::SigningKey;
use crate::limits::{CHECKPOINT_EVERY_COUNT, CLOCK_STEP_MIN, SEGMENT_MAX_BYTES};
use crate::recorder::Retention;
use crate::{Event, Numbered, Witness};

/// For no more events than these a write has memory beforehand.
const WRITE_GUESS_MAX_COUNT: usize = 1024;

/// The time on both clocks when an event is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The wall clock, microseconds since the epoch.
    pub(crate) wall_us: u64,
    /// A clock that cannot be set.
    pub(crate) steady: Duration,
}

impl Moment {
    /// By how much the wall clock is ahead of the other, microseconds.
    fn ahead_us(self) -> i128 {
        i128::from(self.wall_us) - i128::try_from(self.steady.as_micros()).unwrap_or(i128::MAX)
    }
}

/// What was found when a journal was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Opened {
    /// There was one.
    pub(crate) existed: bool,
    /// Its last event says that the server stopped in order.
    pub(crate) clean: bool,
    /// It had come to its end.
    pub(crate) ended: bool,
    /// Bytes that were cut off because they are no whole record.
    pub(crate) cut: u64,
    /// How it came to this host.
    pub(crate) way: Way,
    /// Number of the first event that is kept; 0 when there is none.
    pub(crate) first: u64,
}

/// Appends to the journal of one sandbox.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    dir: PathBuf,
    sandbox: SandboxId,
    owner: Option<String>,
    key: Arc<SigningKey>,
    keep: Retention,
    link: Link,
    /// Number of the next event.
    next: u64,
    open: Option<OpenSegment>,
    /// Events since the last checkpoint.
    unsigned: u64,
    last_at_us: u64,
    ahead_us: Option<i128>,
}

#[derive(Debug)]
struct OpenSegment {
    file: File,
    first: u64,
    /// Bytes that are known to be good.
    size: u64,
    /// A write failed half way: what lies beyond `size` must go first.
    dirty: bool,
}

impl JournalWriter {
    /// Opens a sandbox's journal below `base`, and puts its end right after a crash. Creates nothing before the first
    /// event.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn open(
        base: &Path,
        sandbox: &SandboxId,
        owner: Option<String>,
        key: Arc<SigningKey>,
        keep: Retention,
    ) -> io::Result<(Self, Opened)> {
        let mut writer = Self {
            dir: base.join(sandbox.as_str()),
            sandbox: sandbox.clone(),
            owner,
            key,
            keep,
            link: Link::start(sandbox.as_str()),
            next: 1,
            open: None,
            unsigned: 0,
            last_at_us: 0,
            ahead_us: None,
        };
        let mut cut = 0;
        let way = way(&writer.dir)?;
        let segments = list(&writer.dir)?;
        let first = segments.first().map_or(0, |segment| segment.first);
        for segment in segments.iter().rev() {
            let opened = writer.take_up(segment)?;
            cut += opened.cut;
            if opened.existed {
                return Ok((writer, Opened { cut, way, first, ..opened }));
            }
        }
        Ok((writer, Opened { cut, way, ..Opened::default() }))
    }

    /// That it came from another host is written down in it.
    pub(crate) fn has_arrived(&self) {
        if let Err(error) = has_arrived(&self.dir) {
            tracing::warn!(sandbox = %self.sandbox, %error, "the next server says once more that this journal came from elsewhere");
        }
    }

    /// Goes on after the newest segment, if it had begun.
    fn take_up(&mut self, segment: &Segment) -> io::Result<Opened> {
        let bytes = read(segment)?;
        let found = self.walk(&bytes, segment.first);
        let size = bytes.len() as u64;
        let opened = Opened { existed: found.begun, cut: size - found.good, ..found.opened };
        if segment.closed {
            return Ok(Opened { existed: true, cut: 0, ..opened });
        }
        // The bytes that are cut off are kept in a file beside it: they may be evidence.
        let beside = self.dir.join(format!("{:020}-{:020}.cut", segment.first, found.good));
        if !found.begun {
            fs::rename(&segment.path, beside)?;
            return Ok(Opened { cut: size, ..opened });
        }
        let file = OpenOptions::new().append(true).open(&segment.path)?;
        if opened.cut > 0 {
            fs::write(beside, &bytes[usize::try_from(found.good).unwrap_or_default()..])?;
            file.set_len(found.good)?;
        }
        self.open = Some(OpenSegment { file, first: segment.first, size: found.good, dirty: false });
        if found.closes {
            self.close_segment()?;
        }
        Ok(opened)
    }

    /// Follows the chain through a segment, and does not check its tags: `verify` does that.
    fn walk(&mut self, bytes: &[u8], first: u64) -> Walked {
        let mut found = Walked::default();
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else { return found };
        found.good = MAGIC.len() as u64;
        self.next = first;
        let mut events = Vec::new();
        while let Next::Frame(frame) = decode(rest) {
            rest = &rest[frame.size..];
            found.good += frame.size as u64;
            match frame.kind {
                Kind::Header => {
                    found.begun = true;
                    if let Ok(header) = serde_json::from_slice::<Header>(frame.payload) {
                        self.link = Link::parse(&header.before).unwrap_or(self.link);
                        self.owner = header.owner.or(self.owner.take());
                    }
                }
                Kind::Event => {
                    self.next += 1;
                    self.unsigned += 1;
                    events.push(frame.payload);
                }
                Kind::Checkpoint => {
                    self.unsigned = 0;
                    let checkpoint = serde_json::from_slice::<Checkpoint>(frame.payload);
                    found.closes = checkpoint.is_ok_and(|checkpoint| checkpoint.closes);
                }
            }
            self.link = self.link.after(frame.kind, frame.payload);
        }
        // Only the last one that can be read says how the journal stopped.
        let last = events.iter().rev().find_map(|event| serde_json::from_slice::<Numbered>(event).ok());
        if let Some(Numbered { event, .. }) = last {
            self.last_at_us = event.at_us;
            found.opened.clean = event.what == What::Recorder(RecorderEvent::Paused);
            found.opened.ended = event.what == What::Recorder(RecorderEvent::Ended);
        }
        found
    }

    /// Number of the last event; 0 when there is none.
    pub(crate) const fn last(&self) -> u64 {
        self.next - 1
    }

    /// Whether events wait for a signature.
    pub(crate) const fn is_unsigned(&self) -> bool {
        self.unsigned > 0
    }

    /// Writes events with one write, and a checkpoint where one is due; as many of them as belong into one segment. Gives
    /// their number, at least one unless there is none: the caller has the others written next. Nothing is in the journal
    /// when it fails.
    ///
    /// # Errors
    /// What the file system says, above all that it is full.
    pub(crate) fn append(&mut self, events: &[Event], now: Moment) -> io::Result<usize> {
        let written = self.put(events, now, End::Open)?;
        let size = self.open.as_ref().map_or(0, |open| open.size);
        // The events are in the journal, even if the segment cannot be closed now: that is tried again with the next
        // ones.
        if size >= SEGMENT_MAX_BYTES
            && let Err(error) = self.finish(now)
        {
            tracing::warn!(sandbox = %self.sandbox, %error, "a segment of a journal could not be closed");
        }
        Ok(written)
    }

    /// The write of [`Self::append`]: with it, what ends is signed as such.
    fn put(&mut self, events: &[Event], now: Moment, end: End) -> io::Result<usize> {
        self.open_segment()?;
        let mut out = Vec::with_capacity(events.len().min(WRITE_GUESS_MAX_COUNT) * 320);
        let (mut link, mut next) = (self.link, self.next);
        let step = self.clock_step(now);
        let mut last_at_us = self.last_at_us;
        let mut written = 0;
        for event in step.iter().chain(events) {
            // A guest decides how large an event is, and how many wait: no segment is larger than a reader takes.
            if written > 0 && out.len() as u64 >= SEGMENT_MAX_BYTES {
                break;
            }
            let payload = serde_json::to_vec(&Entry { number: next, event }).map_err(io::Error::other)?;
            // Two fields of one name, the event's own and one of its kind, could be written and never be read.
            debug_assert!(
                serde_json::from_slice::<Numbered>(&payload).is_ok(),
                "no reader understands {event:?}"
            );
            link = encode(&mut out, link, Kind::Event, &payload);
            last_at_us = event.at_us;
            next += 1;
            written += 1;
        }
        let unsigned = self.unsigned + (next - self.next);
        let signs = unsigned >= CHECKPOINT_EVERY_COUNT || end != End::Open;
        if signs {
            link = self.checkpoint_into(&mut out, link, next - 1, now, end)?;
        }
        self.write(&out)?;
        (self.link, self.next, self.last_at_us) = (link, next, last_at_us);
        self.ahead_us = Some(now.ahead_us());
        self.unsigned = if signs { 0 } else { unsigned };
        Ok(written - usize::from(step.is_some()))
    }

    /// An event when the wall clock was set since the last write.
    fn clock_step(&self, now: Moment) -> Option<Event> {
        let by_us = match self.ahead_us {
            Some(before) => now.ahead_us() - before,
            // An earlier server's last event lies in the future: how far the clock was set cannot be known better.
            None => (i128::from(now.wall_us) - i128::from(self.last_at_us)).min(0),
        };
        let least = i128::try_from(CLOCK_STEP_MIN.as_micros()).unwrap_or(i128::MAX);
        let by_ms = i64::try_from(by_us / 1000).unwrap_or(i64::MAX);
        let what = What::Recorder(RecorderEvent::ClockSet { by_ms });
        (by_us.abs() >= least).then(|| by_server(now.wall_us, what))
    }

    /// Signs what is not signed yet.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn checkpoint(&mut self, now: Moment) -> io::Result<()> {
        if self.unsigned == 0 || self.open.is_none() {
            return Ok(());
        }
        let mut out = Vec::new();
        let link = self.checkpoint_into(&mut out, self.link, self.last(), now, End::Open)?;
        self.write(&out)?;
        self.link = link;
        self.unsigned = 0;
        Ok(())
    }

    /// Ends the journal; nothing follows but events that a later server may have to add. The caller has its last segment to
    /// compress: nothing else needs it.
    ///
    /// # Errors
    /// What the file system says. Then the journal has not ended.
    pub(crate) fn end(&mut self, now: Moment) -> io::Result<Option<Unpacked>> {
        // Before the end, because it says in the journal what it drops.
        if self.open.as_ref().is_none_or(|open| open.first > 1) {
            self.retain(now)?;
        }
        self.put(&[by_server(now.wall_us, What::Recorder(RecorderEvent::Ended))], now, End::Journal)?;
        Ok(self.take_segment())
    }

    /// Ends the open segment with a signed checkpoint and compresses it.
    fn finish(&mut self, now: Moment) -> io::Result<()> {
        if self.open.is_none() {
            return Ok(());
        }
        let mut out = Vec::new();
        let link = self.checkpoint_into(&mut out, self.link, self.last(), now, End::Segment)?;
        self.write(&out)?;
        self.link = link;
        self.unsigned = 0;
        self.close_segment()?;
        self.retain(now)
    }

    /// The open segment, which is open no more.
    fn take_segment(&mut self) -> Option<Unpacked> {
        self.open.take().map(|open| Unpacked::new(&self.dir, open.first))
    }

    fn close_segment(&mut self) -> io::Result<()> {
        self.take_segment().map_or(Ok(()), |segment| segment.pack())
    }

    fn checkpoint_into(
        &self,
        out: &mut Vec<u8>,
        link: Link,
        last: u64,
        now: Moment,
        end: End,
    ) -> io::Result<Link> {
        let sandbox = self.sandbox.as_str();
        let checkpoint = Checkpoint::sign(&self.key, sandbox, last, now.wall_us, link, end);
        let payload = serde_json::to_vec(&checkpoint).map_err(io::Error::other)?;
        Ok(encode(out, link, Kind::Checkpoint, &payload))
    }

    /// Begins a segment when none is open.
    fn open_segment(&mut self) -> io::Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let header = Header {
            version: VERSION,
            sandbox: self.sandbox.to_string(),
            owner: self.owner.clone(),
            first: self.next,
            before: self.link.hex(),
        };
        let payload = serde_json::to_vec(&header).map_err(io::Error::other)?;
        let mut out = MAGIC.to_vec();
        let link = encode(&mut out, self.link, Kind::Header, &payload);
        let path = open_path(&self.dir, self.next);
        let mut file = create(&path)?;
        if let Err(error) = file.write_all(&out) {
            // A half-written beginning would have to be repaired.
            fs::remove_file(&path)?;
            return Err(error);
        }
        self.open = Some(OpenSegment { file, first: self.next, size: out.len() as u64, dirty: false });
        self.link = link;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Err(io::ErrorKind::NotFound.into()) };
        if std::mem::replace(&mut open.dirty, true) {
            open.file.set_len(open.size)?;
        }
        open.file.write_all(bytes)?;
        open.dirty = false;
        open.size += bytes.len() as u64;
        Ok(())
    }

    /// Drops closed segments that are too old or too much, oldest first, and says so in the journal.
    fn retain(&mut self, now: Moment) -> io::Result<()> {
        let segments = list(&self.dir)?;
        // One that was not compressed at its end, for want of room.
        let written = self.open.as_ref().map(|open| open.first);
        for left in segments.iter().filter(|segment| !segment.closed && Some(segment.first) != written) {
            Unpacked::new(&self.dir, left.first).pack()?;
        }
        let segments = list(&self.dir)?;
        let mut sizes = Vec::new();
        for segment in segments.iter().filter(|segment| segment.closed) {
            let meta = fs::metadata(&segment.path)?;
            let age = SystemTime::now().duration_since(meta.modified()?).unwrap_or_default();
            sizes.push((segment, meta.len(), age));
        }
        let mut total: u64 = sizes.iter().map(|(_, size, _)| size).sum();
        let mut dropped = None;
        // The newest closed one stays: it carries the last signature.
        for (index, (segment, size, age)) in sizes.iter().enumerate().take(sizes.len().saturating_sub(1)) {
            if total <= self.keep.bytes && *age <= self.keep.age {
                break;
            }
            fs::remove_file(&segment.path)?;
            total -= size;
            dropped = sizes.get(index + 1).map(|(next, ..)| next.first);
        }
        let Some(before) = dropped else { return Ok(()) };
        let what = What::Recorder(RecorderEvent::Dropped { before });
        self.append(&[by_server(now.wall_us, what)], now).map(drop)
    }
}

/// [`Numbered`], to be written.
#[derive(Serialize)]
struct Entry<'a> {
    number: u64,
    #[serde(flatten)]
    event: &'a Event,
}

#[derive(Debug, Default)]
struct Walked {
    /// Its first record is there.
    begun: bool,
    /// Up to where there are whole records.
    good: u64,
    closes: bool,
    opened: Opened,
}

/// An event of the recorder itself.
pub(crate) fn by_server(at_us: u64, what: What) -> Event {
    let mut event = Event { at_us, witness: Witness::Server, exec: None, process: None, what };
    clip(&mut event);
    event
}
