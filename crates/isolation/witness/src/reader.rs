//! The thread `witness`: takes the records that the kernel's programs wrote, and gives their room back once they are
//! written down.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use atoll_failpoint::fail_point;
use atoll_recorder::event::{Event, Lost, What, Witness};

use crate::convert::{boot_us, events};
use crate::digest::Digests;
use crate::epoll::Epoll;
use crate::record::Record;
use crate::ring::Ring;
use crate::watched::{Rings, Watched};
use crate::{Shared, Sink, lock};

/// How often the thread looks. A program wakes it when much waits.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it asks how many events the programs missed.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Records that are taken before they are written down.
const BATCH_MAX_COUNT: usize = 4096;
/// What rings are called in its epoll: it looks at all of them, whichever was heard.
const ANY: u64 = 1;
/// How far the same event's times may be apart as two servers tell it, microseconds.
const CLOCK_SLACK_US: u64 = 1_000_000;

/// Wakes the thread: when much waits in a ring, or when a task asks it to empty a ring or to stop.
#[derive(Debug)]
pub(crate) struct Doorbell {
    epoll: Epoll,
    /// The sandboxes whose rings to read to their end, and the tasks that wait for that; `None` once the thread has
    /// ended.
    asked: Mutex<Option<VecDeque<Asked>>>,
}

type Asked = (Arc<Watched>, mpsc::SyncSender<()>);

impl Doorbell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new()?, asked: Mutex::new(Some(VecDeque::new())) })
    }

    pub(crate) fn add(&self, ring: &Ring) -> io::Result<()> {
        self.epoll.add(ring, ANY)
    }

    pub(crate) fn remove(&self, ring: &Ring) {
        self.epoll.remove(ring);
    }

    /// Wakes it.
    pub(crate) fn ring(&self) {
        self.epoll.wake();
    }

    /// Makes the thread read all records of a ring, and waits for it.
    pub(crate) fn drain(&self, watched: &Arc<Watched>) {
        let (done, wait) = mpsc::sync_channel(1);
        match &mut *lock(&self.asked) {
            Some(asked) => asked.push_back((Arc::clone(watched), done)),
            None => return,
        }
        self.ring();
        // When the thread ends it drops the requests, which ends this wait.
        let _ = wait.recv();
    }

    fn asked(&self) -> VecDeque<Asked> {
        lock(&self.asked).as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn wait(&self) {
        let timeout = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(LOOK_EVERY.as_nanos()).unwrap_or(20_000_000),
        };
        self.epoll.wait(Some(&timeout));
    }
}

/// Dropped when the thread ends, also by a panic: no task may wait for it from then on.
struct Ends<'a>(&'a Doorbell);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        lock(&self.0.asked).take();
    }
}

/// The thread.
pub(crate) fn run(shared: &Shared, sink: &dyn Sink) {
    let _ends = Ends(&shared.bell);
    let mut reader = Reader { shared, sink, digests: Digests::default(), record: Vec::new() };
    let mut missed = (Instant::now(), shared.store.missed().unwrap_or(0));
    while !shared.stop.load(Ordering::Acquire) {
        shared.bell.wait();
        for (watched, done) in shared.bell.asked() {
            while reader.take(&watched) {}
            // The task that asked may have given up.
            let _ = done.send(());
        }
        let all: Vec<_> = lock(&shared.watched).values().cloned().collect();
        for watched in &all {
            if lock(&watched.rings).are_to_read()
                || lock(&watched.reading).late
                || shared.store.counters().lost(watched.slot) > 0
            {
                reader.take(watched);
            }
        }
        if missed.0.elapsed() >= ASK_EVERY {
            let now = shared.store.missed().unwrap_or(missed.1);
            if now > missed.1 {
                reader.say_missed(&all, now - missed.1);
            }
            missed = (Instant::now(), now);
        }
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    sink: &'a dyn Sink,
    digests: Digests,
    record: Vec<u8>,
}

impl Reader<'_> {
    /// Takes a batch of a sandbox's records; says whether there may be more.
    fn take(&mut self, watched: &Watched) -> bool {
        if !self.sink.takes(&watched.sandbox) {
            return false;
        }
        // Known before the ring is read: where there is a next one, no program writes to this one any more.
        let Rings { now, next } = lock(&watched.rings).clone();
        // A ring in whose place there is a larger one was hardly ever full: what is lost was lost after what that one has.
        let lost = if next.is_none() { self.shared.store.counters().lost(watched.slot) } else { 0 };
        let more = self.take_from(&now, watched, lost);
        if next.is_none() || now.waits() {
            return more;
        }
        self.turn(watched);
        true
    }

    /// Goes on with the larger ring of a sandbox: the one before it has been read to its end.
    fn turn(&self, watched: &Watched) {
        fail_point!("witness::growth::read");
        // While it is pinned, the next server takes it that nothing of the larger one was read.
        self.shared.store.forget_before(watched.slot);
        let before = lock(&watched.rings).turn();
        if let Some(before) = before {
            self.shared.bell.remove(&before);
        }
    }

    /// Takes a batch of the records in one of a sandbox's rings, after which `lost` are missing; says whether there may be
    /// more.
    fn take_from(&mut self, ring: &Ring, watched: &Watched, lost: u64) -> bool {
        let (start, boot_us) = (ring.position(), boot_us());
        let (mut position, mut found) = (start, Vec::new());
        while found.len() < BATCH_MAX_COUNT && ring.next(&mut position, &mut self.record).is_some() {
            match Record::parse(&self.record) {
                Some(record) if record.cgroup == watched.cgroup => {
                    found.extend(events(record, watched, boot_us, &mut self.digests));
                }
                // Late records of the sandbox that had the slot before.
                Some(_) => {}
                None => tracing::error!(bytes = self.record.len(), "a record that no program writes"),
            }
        }
        if lock(&watched.reading).pace.turns_out_busy(position.saturating_sub(start), Instant::now()) {
            self.shared.growth.ask(watched.cgroup);
        }
        let full = found.len() >= BATCH_MAX_COUNT;
        self.skip_written(watched, &mut found);
        if std::mem::take(&mut lock(&watched.reading).late) {
            let reason = "the kernel was not asked about this sandbox until now";
            found.insert(0, loss(None, reason));
        }
        if found.is_empty() && lost == 0 {
            ring.release(position);
            return false;
        }
        for event in found {
            self.sink.record(&watched.sandbox, event);
        }
        if lost > 0 {
            self.sink
                .record(&watched.sandbox, loss(Some(lost), "the kernel's buffer of this sandbox was full"));
        }
        self.sink.written(&watched.sandbox);
        ring.release(position);
        self.shared.store.counters().told(watched.slot, lost);
        full
    }

    /// Leaves out events that an earlier server wrote down and whose room it could not give back before it was killed.
    fn skip_written(&self, watched: &Watched, events: &mut Vec<Event>) {
        let mut reading = lock(&watched.reading);
        if events.is_empty() || !std::mem::take(&mut reading.taken_over) {
            return;
        }
        let last = self.sink.last(&watched.sandbox, BATCH_MAX_COUNT);
        let repeated = (1..=events.len().min(last.len()))
            .rev()
            .find(|count| events[..*count].iter().zip(&last[last.len() - count..]).all(|(a, b)| same(a, b)));
        events.drain(..repeated.unwrap_or(0));
    }

    fn say_missed(&self, all: &[Arc<Watched>], count: u64) {
        tracing::warn!(count, "the kernel did not run a program of the witness");
        for watched in all.iter().filter(|watched| self.sink.takes(&watched.sandbox)) {
            let reason = "the kernel left out events of some sandbox of this host, of this one or another";
            self.sink.record(&watched.sandbox, loss(None, reason));
        }
    }
}

fn now_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn loss(count: Option<u64>, reason: &str) -> Event {
    Event {
        at_us: now_us(),
        witness: Witness::Host,
        exec: None,
        process: None,
        what: What::Lost(Lost { count, reason: reason.to_owned() }),
    }
}

/// Whether two events are of the same record: compares what the kernel reported, not what the server found out about it
/// since.
fn same(a: &Event, b: &Event) -> bool {
    let kind = std::mem::discriminant(&a.what) == std::mem::discriminant(&b.what);
    kind && a.process == b.process
        && a.exec == b.exec
        && a.at_us.abs_diff(b.at_us) < CLOCK_SLACK_US
        && match (&a.what, &b.what) {
            (What::Connect(a), What::Connect(b))
            | (What::Accept(a), What::Accept(b))
            | (What::Listen(a), What::Listen(b)) => a == b,
            (What::ProcessStarted(a), What::ProcessStarted(b)) => a.path == b.path,
            (What::Policy(a), What::Policy(b)) => a.subject == b.subject,
            _ => true,
        }
}
