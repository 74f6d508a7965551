//! The thread that writes all journals.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, mem};

use atoll_core::id::SandboxId;

use super::queue::{Closing, Journal, Waiting};
use super::{Mode, Shared, lock};
use crate::abroad::{Way, aside};
use crate::event::{Event, Lost, RecorderEvent, What};
use crate::journal::{JournalWriter, Moment, Opened, by_server, journals};
use crate::limits::{CHECKPOINT_AFTER, WAITING_ALL_MAX_COUNT};

/// Pause after a write that failed.
pub(super) const FAILED_PAUSE: Duration = Duration::from_millis(500);
/// Pause between looks for journals that are too old.
pub(super) const SWEEP_EVERY: Duration = Duration::from_hours(1);
/// A stop does not wait for longer for disks that are full.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Which journals have something to write.
#[derive(Debug, Default)]
pub(crate) struct Work {
    ready: Mutex<VecDeque<Arc<Journal>>>,
    wakes: Condvar,
    waiting: AtomicUsize,
    stops: AtomicBool,
}

impl Work {
    /// Takes room for one more event of a journal of which so many wait already, and says whether there was any. A
    /// journal has no more than it leaves to others: however many cannot be written, the next one has some.
    pub(crate) fn take_room(&self, own: usize) -> bool {
        let one_more = |all| (own < WAITING_ALL_MAX_COUNT.saturating_sub(all)).then_some(all + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn give_back(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn wake(&self, journal: &Arc<Journal>) {
        if journal.claim() {
            lock(&self.ready).push_back(Arc::clone(journal));
            self.wakes.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        let ready = lock(&self.ready);
        self.stops.store(true, Ordering::Release);
        drop(ready);
        self.wakes.notify_one();
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Everything that is ready; waits for the first, at most so long.
    fn next(&self, at_most: Duration) -> VecDeque<Arc<Journal>> {
        let ready = lock(&self.ready);
        let nothing = |ready: &mut VecDeque<Arc<Journal>>| ready.is_empty() && !self.stops();
        let (mut ready, _late) =
            self.wakes.wait_timeout_while(ready, at_most, nothing).unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut *ready)
    }
}

/// A journal with the events that are not in it yet.
struct Pen {
    journal: Arc<Journal>,
    /// `None` until it could be opened.
    writer: Option<JournalWriter>,
    /// Events that were taken from the queue and not written, and the recorder's own, the oldest first.
    events: Vec<Event>,
    /// How many of them came from the queue.
    entered: u64,
    /// Events were lost that strict recording must not lose.
    lossy: bool,
    /// Demands for a signature: how many there were, and how many are met.
    signs: u64,
    signed: u64,
    /// It was woken and not looked at since.
    wakes: bool,
    closing: Option<Closing>,
    /// When it was written to after its last checkpoint.
    unsigned_since: Option<Instant>,
    /// A write failed: not before.
    again_at: Option<Instant>,
}

/// Writes until it is stopped and everything is written.
pub(crate) fn run(shared: &Arc<Shared>) {
    let started = Instant::now();
    let mut pens: HashMap<SandboxId, Pen> = HashMap::new();
    // Those that were begun while the one before, of the same sandbox, is not written to its end.
    let mut later: Vec<Arc<Journal>> = Vec::new();
    let mut stop_at = None;
    let mut sweep_at = started;
    loop {
        let is_next = later.iter().any(|journal| !pens.contains_key(&journal.sandbox));
        let ready = shared.work.next(if is_next { Duration::ZERO } else { pause(&pens) });
        for journal in mem::take(&mut later).into_iter().chain(ready) {
            if journal.is_closed() {
                continue;
            }
            let pen = pens.entry(journal.sandbox.clone()).or_insert_with(|| Pen::new(&journal));
            if !Arc::ptr_eq(&pen.journal, &journal) {
                later.push(journal);
                continue;
            }
            pen.take(shared);
            pen.wakes = true;
        }
        let now = Instant::now();
        let stops = shared.work.stops();
        let moment = Moment { wall_us: crate::now_us(), steady: now.duration_since(started) };
        pens.retain(|_, pen| !pen.is_due(now, stops) || !pen.write(shared, now, moment));
        if now >= sweep_at && shared.is_complete() {
            sweep_at = now + SWEEP_EVERY;
            sweep(shared);
            sweep_aside(shared);
        }
        if stops
            && (pens.is_empty() && later.is_empty() || now >= *stop_at.get_or_insert(now + STOP_PATIENCE))
        {
            let count = pens.values().map(|pen| pen.events.len()).sum::<usize>();
            if count > 0 {
                tracing::error!(count, "events could not be written before the server stopped");
            }
            return;
        }
    }
}

/// How long the thread has nothing to do if no event wakes it.
fn pause(pens: &HashMap<SandboxId, Pen>) -> Duration {
    let due = pens.values().filter_map(Pen::due).min();
    due.map_or(CHECKPOINT_AFTER, |due| {
        due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    })
}

/// How long ago something was written in a journal's directory. A file that grows does not change the directory itself.
fn age(dir: &Path) -> io::Result<Duration> {
    let mut newest = std::fs::metadata(dir)?.modified()?;
    for entry in std::fs::read_dir(dir)? {
        newest = newest.max(entry?.metadata()?.modified()?);
    }
    Ok(newest.elapsed().unwrap_or_default())
}

/// Removes what was set aside when it is too old.
fn sweep_aside(shared: &Shared) {
    let removed = aside(&shared.dir).and_then(|places| {
        for place in places {
            let age = std::fs::metadata(&place)?.modified()?.elapsed().unwrap_or_default();
            if age > shared.keep.age {
                std::fs::remove_dir_all(&place)?;
            }
        }
        Ok(())
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "journals that were set aside could not be looked through");
    }
}

/// Removes the journals of sandboxes that are gone when they are too old.
fn sweep(shared: &Shared) {
    let removed = journals(&shared.dir).map(|ids| {
        for id in ids.iter().filter(|id| !shared.is_open(id)) {
            let dir = shared.dir.join(id.as_str());
            // Unknown where something changes in it just now.
            if age(&dir).unwrap_or_default() > shared.keep.age
                && let Err(error) = std::fs::remove_dir_all(&dir)
            {
                tracing::warn!(sandbox = %id, %error, "an old journal could not be removed");
            }
        }
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "old journals could not be looked for");
    }
}

impl Pen {
    fn new(journal: &Arc<Journal>) -> Self {
        Self {
            journal: Arc::clone(journal),
            writer: None,
            events: Vec::new(),
            entered: 0,
            lossy: false,
            signs: 0,
            signed: 0,
            wakes: false,
            closing: None,
            unsigned_since: None,
            again_at: None,
        }
    }

    fn due(&self) -> Option<Instant> {
        self.again_at.or(self.unsigned_since.map(|since| since + CHECKPOINT_AFTER))
    }

    /// Whether there is something to do now. A disk that is full is not asked again all the time.
    fn is_due(&mut self, now: Instant, stops: bool) -> bool {
        let woken = mem::take(&mut self.wakes);
        match self.again_at {
            Some(at) => stops || now >= at,
            None => woken || stops || self.due().is_some_and(|due| now >= due),
        }
    }

    /// Takes the events that wait, as long as those taken before could be written.
    fn take(&mut self, shared: &Shared) {
        if self.again_at.is_some() {
            return;
        }
        let Waiting { events, lost, closing, signs, .. } = self.journal.take();
        self.signs = signs;
        shared.work.give_back(events.len());
        self.entered += events.len() as u64;
        self.events.extend(events);
        let mut say = |what| self.events.push(by_server(crate::now_us(), what));
        if lost > 0 {
            let reason = "a buffer of the recorder was full".to_owned();
            say(What::Lost(Lost { count: Some(lost), reason }));
            self.lossy = true;
        }
        if self.closing.is_none() && closing == Some(Closing::Paused) {
            say(What::Recorder(RecorderEvent::Paused));
        }
        self.closing = closing;
    }

    /// Writes the events that were taken. Says whether the journal is closed.
    fn write(&mut self, shared: &Shared, now: Instant, moment: Moment) -> bool {
        let strict = self.journal.mode == Mode::Strict;
        if mem::take(&mut self.lossy) && strict {
            drop(shared.failing.send(self.journal.sandbox.clone()));
        }
        match self.try_write(shared, now, moment) {
            Ok(closed) => {
                // Takes the events that came while it could not be written.
                if self.again_at.take().is_some() {
                    self.take(shared);
                    shared.work.wake(&self.journal);
                }
                closed
            }
            Err(error) => {
                self.again_at = Some(now + FAILED_PAUSE);
                if self.journal.failed(error.to_string()) {
                    tracing::error!(sandbox = %self.journal.sandbox, %error, "a journal cannot be written, trying again");
                }
                if strict {
                    // Sent each time: the sandbox may have been let go on meanwhile.
                    drop(shared.failing.send(self.journal.sandbox.clone()));
                }
                false
            }
        }
    }

    fn try_write(&mut self, shared: &Shared, now: Instant, moment: Moment) -> io::Result<bool> {
        self.open(shared, moment)?;
        let Some(writer) = &mut self.writer else { return Ok(false) };
        if !self.events.is_empty() {
            while !self.events.is_empty() {
                let written = writer.append(&self.events, moment)?;
                drop(self.events.drain(..written));
            }
            self.journal.wrote(mem::take(&mut self.entered));
            // This fails when there is no subscriber, which is fine.
            drop(shared.activity.send(self.journal.sandbox.clone()));
        }
        match self.closing {
            Some(Closing::Ended) => {
                if let Some(segment) = writer.end(moment)? {
                    shared.packer.take(&self.journal.sandbox, segment);
                }
            }
            Some(Closing::Paused) => writer.checkpoint(moment)?,
            None => {
                let late = self.unsigned_since.is_some_and(|since| now >= since + CHECKPOINT_AFTER);
                if late || self.signs > self.signed {
                    writer.checkpoint(moment)?;
                    self.unsigned_since = None;
                }
            }
        }
        if self.signs > self.signed {
            self.signed = self.signs;
            self.journal.signed(self.signed);
        }
        self.unsigned_since = writer.is_unsigned().then(|| self.unsigned_since.unwrap_or(now));
        if self.closing.is_some() {
            self.journal.closed();
        }
        Ok(self.closing.is_some())
    }

    /// Opens the journal, and writes down what was found.
    fn open(&mut self, shared: &Shared, moment: Moment) -> io::Result<()> {
        if self.writer.is_some() {
            return Ok(());
        }
        let journal = &self.journal;
        shared.packer.let_go(&journal.sandbox);
        let (mut writer, opened) = JournalWriter::open(
            &shared.dir,
            &journal.sandbox,
            journal.owner.clone(),
            Arc::clone(&shared.key),
            shared.keep,
        )?;
        let first = first_events(opened, journal.mode, writer.last());
        let first: Vec<_> = first.into_iter().map(|what| by_server(moment.wall_us, what)).collect();
        writer.append(&first, moment)?;
        if opened.way != Way::Here {
            writer.has_arrived();
        }
        self.writer = Some(writer);
        Ok(())
    }
}

/// The events with which a journal begins or goes on after the event `last`.
fn first_events(opened: Opened, mode: Mode, last: u64) -> Vec<What> {
    let mut first = Vec::new();
    if opened.cut > 0 {
        first.push(What::Recorder(RecorderEvent::Repaired { bytes: opened.cut }));
    }
    let clean = (opened.clean || opened.ended) && opened.way != Way::CameInPart;
    first.push(What::Recorder(match opened.existed {
        true => RecorderEvent::WentOn { clean },
        false => RecorderEvent::Began { mode: mode.as_str().to_owned() },
    }));
    if let Some(reason) = missing(opened, clean, last) {
        first.push(What::Lost(Lost { count: None, reason }));
    }
    if opened.way != Way::Here && opened.first > 1 {
        // Those are not here: they were too many, or the object store does not have them any more.
        first.push(What::Recorder(RecorderEvent::Dropped { before: opened.first }));
    }
    first
}

/// Why events may be missing after the event `last`, if they may be.
fn missing(opened: Opened, clean: bool, last: u64) -> Option<String> {
    match (opened.existed, opened.way) {
        (true, _) if clean => None,
        (true, Way::Here) => Some(
            "the server was killed: what it had not written yet, and what it did not see until now"
                .to_owned(),
        ),
        (true, Way::Came) => Some(format!(
            "the node that recorded this sandbox is gone: what it recorded after event {last} is not in the object store"
        )),
        (true, Way::CameInPart) => Some(format!(
            "what the object store has after event {last} is not as it was written, and is left out"
        )),
        (false, Way::Here) => None,
        (false, Way::Came | Way::CameInPart) => Some(
            "another node had this sandbox before: what that recorded is not in the object store".to_owned(),
        ),
    }
}
