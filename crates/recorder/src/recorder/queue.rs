//! The events that wait to be written to one journal.

use std::collections::VecDeque;
use std::sync::Mutex;

use atoll_core::id::SandboxId;
use tokio::sync::watch;

use super::thread::Work;
use super::{Mode, NotWritten, lock};
use crate::Event;
use crate::limits::WAITING_MAX_COUNT;

/// How a journal comes to its end here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The server stops; another goes on.
    Paused,
    /// The sandbox is gone.
    Ended,
}

/// How much of a journal is on disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Events that were taken from the queue and written.
    handled: u64,
    /// Demands for a signature that were met.
    signed: u64,
    /// Why the last write failed, until one succeeds.
    failing: Option<String>,
    closed: bool,
}

/// One journal of a sandbox that is recorded.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) sandbox: SandboxId,
    pub(crate) owner: Option<String>,
    pub(crate) mode: Mode,
    waiting: Mutex<Waiting>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) events: VecDeque<Event>,
    /// Events that found no room, all of them newer than those that wait.
    pub(crate) lost: u64,
    pub(crate) closing: Option<Closing>,
    /// Events that were entered, ever.
    entered: u64,
    /// How often a signature was demanded, ever.
    pub(crate) signs: u64,
    /// The writer has been told.
    pub(crate) queued: bool,
}

impl Journal {
    pub(crate) fn new(sandbox: SandboxId, owner: Option<String>, mode: Mode) -> Self {
        let progress = watch::Sender::default();
        Self { sandbox, owner, mode, waiting: Mutex::default(), progress }
    }

    /// Enters an event, if there is room here and among the events of all journals.
    pub(crate) fn enter(&self, event: Event, all: &Work) -> bool {
        let mut waiting = lock(&self.waiting);
        // After a loss nothing is entered until the loss is written: the lost events lie between those before and after
        // it.
        if waiting.events.len() >= WAITING_MAX_COUNT || waiting.lost > 0 || waiting.closing.is_some() {
            return false;
        }
        // Before the recorder's thread can take it, which gives the room back.
        if !all.take_room(waiting.events.len()) {
            return false;
        }
        waiting.events.push_back(event);
        waiting.entered += 1;
        true
    }

    pub(crate) fn lose(&self, count: u64) {
        let mut waiting = lock(&self.waiting);
        waiting.lost = waiting.lost.saturating_add(count);
    }

    pub(crate) fn close(&self, closing: Closing) {
        lock(&self.waiting).closing.get_or_insert(closing);
    }

    /// Whether the writer has to be told that there is something to write; from now on it counts as told.
    pub(crate) fn claim(&self) -> bool {
        !std::mem::replace(&mut lock(&self.waiting).queued, true)
    }

    /// Whether nothing more is written.
    pub(crate) fn is_closed(&self) -> bool {
        self.progress.borrow().closed
    }

    /// Takes the events that wait.
    pub(crate) fn take(&self) -> Waiting {
        let mut waiting = lock(&self.waiting);
        let (entered, signs, closing) = (waiting.entered, waiting.signs, waiting.closing);
        let left = Waiting { entered, signs, closing, ..Waiting::default() };
        std::mem::replace(&mut *waiting, left)
    }

    /// Says that so many events were written.
    pub(crate) fn wrote(&self, count: u64) {
        self.progress.send_modify(|progress| {
            progress.handled += count;
            progress.failing = None;
        });
    }

    /// Says that a write failed; whether that is new.
    pub(crate) fn failed(&self, why: String) -> bool {
        let mut first = false;
        self.progress.send_modify(|progress| first = progress.failing.replace(why).is_none());
        first
    }

    pub(crate) fn closed(&self) {
        self.progress.send_modify(|progress| progress.closed = true);
    }

    /// Says that so many demands for a signature are met.
    pub(crate) fn signed(&self, count: u64) {
        self.progress.send_modify(|progress| {
            progress.signed = count;
            progress.failing = None;
        });
    }

    /// Demands a signature of everything that was entered before; gives the demand's number.
    pub(crate) fn demand(&self) -> u64 {
        let mut waiting = lock(&self.waiting);
        waiting.signs += 1;
        waiting.signs
    }

    /// Waits until a demand is met.
    pub(crate) async fn met(&self, demand: u64) -> Result<(), NotWritten> {
        self.once(|progress| progress.signed >= demand || progress.closed).await
    }

    /// Waits until nothing more is written.
    pub(crate) async fn all_written(&self) -> Result<(), NotWritten> {
        self.once(|progress| progress.closed).await
    }

    /// Waits until that is done, or a write has failed.
    async fn once(&self, done: impl Fn(&Progress) -> bool) -> Result<(), NotWritten> {
        let mut progress = self.progress.subscribe();
        let over = progress.wait_for(|progress| done(progress) || progress.failing.is_some()).await;
        match over.map(|progress| if done(&progress) { None } else { progress.failing.clone() }) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(NotWritten(why)),
            Err(_gone) => Err(NotWritten("the recorder has stopped".to_owned())),
        }
    }

    pub(crate) async fn written(&self) -> Result<(), NotWritten> {
        let entered = lock(&self.waiting).entered;
        let mut progress = self.progress.subscribe();
        let done = |progress: &Progress| {
            progress.handled >= entered || progress.failing.is_some() || progress.closed
        };
        match progress.wait_for(done).await.map(|progress| progress.failing.clone()) {
            Ok(Some(why)) => Err(NotWritten(why)),
            Ok(None) => Ok(()),
            Err(_gone) => Err(NotWritten("the recorder has stopped".to_owned())),
        }
    }
}
