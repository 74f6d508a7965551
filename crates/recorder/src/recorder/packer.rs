//! The thread that compresses the journals of sandboxes that are gone.
//!
//! Compressing waits for the disk, and answers to clients wait for the thread that writes the journals. So that one only
//! writes down that a journal has ended, and leaves the rest to this one.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};

use atoll_core::id::SandboxId;

use super::lock;
use super::thread::FAILED_PAUSE;
use crate::journal::Unpacked;

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
    /// Takes a segment that nothing else writes to. The journal is its only one, and is whole without this.
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

    /// The next segment; waits for it. `None`: there is nothing more to do.
    fn next(&self) -> Option<(SandboxId, Unpacked)> {
        let nothing = |state: &mut State| state.waiting.is_empty() && !state.stops;
        let state = self.changed.wait_while(lock(&self.state), nothing);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let next = state.waiting.pop_front();
        state.packing = next.as_ref().map(|(sandbox, _)| sandbox.clone());
        next
    }

    /// The thread is done with a segment. One that could not be compressed waits again, for a moment; one for which the
    /// server does not wait stays as it is.
    fn done(&self, sandbox: SandboxId, segment: Unpacked, packed: io::Result<()>) {
        let mut state = lock(&self.state);
        state.packing = None;
        self.changed.notify_all();
        let Err(error) = packed else { return };
        tracing::error!(%sandbox, %error, "a journal that has ended cannot be compressed");
        if !state.stops {
            state.waiting.push_back((sandbox, segment));
            let waits = self.changed.wait_timeout_while(state, FAILED_PAUSE, |state| !state.stops);
            drop(waits.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Compresses until it is stopped.
pub(crate) fn run(packer: &Packer) {
    while let Some((sandbox, segment)) = packer.next() {
        // Whoever waits for this thread must not wait for ever.
        let packed = catch_unwind(AssertUnwindSafe(|| segment.pack()));
        let packed = packed.unwrap_or_else(|_panic| Err(io::Error::other("the recorder's thread panicked")));
        packer.done(sandbox, segment, packed);
    }
}
