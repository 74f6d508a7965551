//! The thread that compresses the journals of sandboxes that are gone.
//!
//! Compressing waits for the disk, and answers to clients wait for the thread that writes the journals. So that one only
//! writes down that a journal has ended, and leaves the rest to this one. What a server left that was killed in between,
//! the next one finds.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_core::id::SandboxId;

use super::thread::{FAILED_PAUSE, SWEEP_EVERY};
use super::{Shared, lock};
use crate::journal::{Reader, Unpacked, journals, list};

/// When the thread first looks for what an earlier server left: then the journals of all sandboxes that live are open.
const LOOK_FIRST: Duration = Duration::from_secs(60);

/// The segments that are to be compressed.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(SandboxId, Unpacked)>,
    /// Whose segment the thread compresses at this moment.
    packing: Option<SandboxId>,
    stops: bool,
}

impl Packer {
    /// Takes the last segment of a journal that has ended. The journal is whole without this.
    pub(crate) fn take(&self, sandbox: &SandboxId, segment: Unpacked) {
        lock(&self.state).waiting.push_back((sandbox.clone(), segment));
        self.changed.notify_all();
    }

    /// Leaves the journal of a sandbox to the caller, who opens it again or moves it: from now on the thread does nothing
    /// with it. Blocking, while the thread is at it.
    pub(crate) fn let_go(&self, sandbox: &SandboxId) {
        let mut state = lock(&self.state);
        state.waiting.retain(|(waits, _)| waits != sandbox);
        let is_packed = |state: &mut State| state.packing.as_ref() == Some(sandbox);
        drop(self.changed.wait_while(state, is_packed).unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends the thread when all that waits is compressed, or was tried once more.
    pub(crate) fn stop(&self) {
        lock(&self.state).stops = true;
        self.changed.notify_all();
    }

    /// The next segment; waits for it, but not beyond `until`.
    fn next(&self, until: Instant) -> Next {
        let nothing = |state: &mut State| state.waiting.is_empty() && !state.stops;
        let at_most = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(lock(&self.state), at_most, nothing);
        let (mut state, _late) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.waiting.pop_front() {
            Some((sandbox, segment)) => {
                state.packing = Some(sandbox.clone());
                Next::Segment(sandbox, segment)
            }
            None if state.stops => Next::Stop,
            None => Next::Nothing,
        }
    }

    /// Keeps every other thread from a journal until the thread is [done](Self::done) with it.
    fn begin(&self, sandbox: &SandboxId) {
        lock(&self.state).packing = Some(sandbox.clone());
    }

    fn stops(&self) -> bool {
        lock(&self.state).stops
    }

    /// The thread is done with a journal.
    fn done(&self) {
        lock(&self.state).packing = None;
        self.changed.notify_all();
    }

    /// Takes back a segment that could not be compressed, and rests. When the server stops, it stays as it is.
    fn failed(&self, sandbox: SandboxId, segment: Unpacked, error: &io::Error) {
        tracing::error!(%sandbox, %error, "a journal that has ended cannot be compressed");
        let mut state = lock(&self.state);
        state.packing = None;
        self.changed.notify_all();
        if !state.stops {
            state.waiting.push_back((sandbox, segment));
            let waits = self.changed.wait_timeout_while(state, FAILED_PAUSE, |state| !state.stops);
            drop(waits.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// What there is to do.
enum Next {
    Segment(SandboxId, Unpacked),
    /// Nothing, for the time being.
    Nothing,
    Stop,
}

/// Compresses until it is stopped.
pub(super) fn run(shared: &Shared) {
    let packer = &shared.packer;
    let mut look_at = Instant::now() + LOOK_FIRST;
    loop {
        match packer.next(look_at) {
            Next::Segment(sandbox, segment) => match pack(&segment) {
                Ok(()) => packer.done(),
                Err(error) => packer.failed(sandbox, segment, &error),
            },
            Next::Nothing => {
                look_at = Instant::now() + SWEEP_EVERY;
                pack_left_over(shared);
            }
            Next::Stop => return,
        }
    }
}

fn pack(segment: &Unpacked) -> io::Result<()> {
    // Whoever waits for this thread must not wait for ever.
    let packed = catch_unwind(AssertUnwindSafe(|| segment.pack()));
    packed.unwrap_or_else(|_panic| Err(io::Error::other("the thread panicked")))
}

/// Compresses the ends of journals that nothing has open and that say themselves that they have ended.
pub(super) fn pack_left_over(shared: &Shared) {
    let ids = journals(&shared.dir).unwrap_or_else(|error| {
        tracing::warn!(%error, "journals that were not compressed could not be looked for");
        Vec::new()
    });
    for id in ids {
        if shared.packer.stops() {
            return;
        }
        // In this order: a journal that is opened from now on waits for this.
        shared.packer.begin(&id);
        let packed = if shared.is_open(&id) { Ok(()) } else { pack_end(shared, &id) };
        shared.packer.done();
        if let Err(error) = packed {
            tracing::warn!(sandbox = %id, %error, "a journal that has ended cannot be compressed, trying again later");
        }
    }
}

fn pack_end(shared: &Shared, id: &SandboxId) -> io::Result<()> {
    let dir = shared.dir.join(id.as_str());
    match list(&dir)?.last() {
        Some(last) if !last.closed && Reader::new(&shared.dir, id, 1).has_ended()? => {
            pack(&Unpacked::new(&dir, last.first))
        }
        _ => Ok(()),
    }
}
