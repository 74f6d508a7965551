//! Standing still: what may freeze a sandbox, what thaws it, and how long it stood.
//!
//! There are two reasons to freeze one sandbox. A *pause* is a state of the sandbox, recorded, and ends by a resume. A
//! *doze* ([`atoll_core::idle::IdlePolicy::freeze_ms`]) is shown to no client: the state stays `running`, nothing is
//! written, and the next use thaws in passing. Both go through here, one at a time.
//!
//! And all of them may be stopped at once, because the host's disk is full ([`crate::disk`]): that is not done here, only
//! noted, so that no clock runs meanwhile.
//!
//! A doze must not begin under a use that has just begun. The use counts itself first and looks at `frozen` then;
//! the doze sets `frozen` first and looks at the count then: one of the two sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_core::Result;
use atoll_core::sandbox::SandboxState;
use atoll_guest_protocol::client::GuestError;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::errors::isolation_error;

use super::shared::SandboxShared;

/// How a sandbox stands, and how long it stood still since this process has known it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stillness {
    /// Since when it stands still, if it does.
    pub(crate) since: Option<Instant>,
    /// The same as milliseconds since the epoch.
    pub(crate) since_ms: u64,
    /// How long it stood still before, all together.
    pub(crate) total: Duration,
    /// Its memory was taken since then.
    pub(crate) reclaimed: bool,
}

#[derive(Debug)]
pub(crate) struct Freezer {
    clock: Clock,
    /// Held by the task that freezes or thaws.
    turn: Mutex<()>,
    frozen: AtomicBool,
    /// It stands still with all others, because the host's disk is full, and goes on with them.
    held: AtomicBool,
    state: watch::Sender<Stillness>,
}

impl Freezer {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            turn: Mutex::default(),
            frozen: AtomicBool::new(false),
            held: AtomicBool::new(false),
            state: watch::Sender::default(),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Stillness> {
        self.state.subscribe()
    }

    pub(crate) fn now(&self) -> Stillness {
        *self.state.borrow()
    }

    /// How long it stood still until now.
    pub(crate) fn stood_still(&self) -> Duration {
        let now = self.now();
        now.total + now.since.map_or(Duration::ZERO, |since| self.clock.since(since))
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// Asks the guest something that it is to hear even if it stands still now, or while it is asked: its silence counts only
    /// while it does not. `ask` is called again after each time that it stood still.
    ///
    /// # Errors
    /// What `ask` fails with.
    pub(crate) async fn ask_awake<T, F>(&self, ask: impl Fn() -> F) -> Result<T, GuestError>
    where
        F: Future<Output = Result<T, GuestError>>,
    {
        let mut state = self.subscribe();
        loop {
            // The sender lives as long as this.
            drop(state.wait_for(|state| state.since.is_none()).await);
            let answer = ask().await;
            let stood_still = state.has_changed().unwrap_or(false);
            match answer {
                Err(GuestError::Timeout | GuestError::StoodStill) if stood_still => {}
                answer => return answer,
            }
        }
    }

    pub(crate) fn set_reclaimed(&self) {
        self.state.send_modify(|state| state.reclaimed = true);
    }

    fn set(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
        self.state.send_if_modified(|state| {
            let changes = state.since.is_some() != frozen;
            if changes {
                if frozen {
                    state.since = Some(self.clock.instant());
                    state.since_ms = self.clock.now_ms();
                    state.reclaimed = false;
                } else if let Some(since) = state.since.take() {
                    state.total += self.clock.since(since);
                }
            }
            changes
        });
    }
}

impl SandboxShared {
    /// Freezes it, even while it is used.
    pub(super) async fn freeze(&self) -> Result<()> {
        let _turn = self.freezer.turn.lock().await;
        self.driver().freeze(&self.id).await.map_err(|error| isolation_error(&error))?;
        self.freezer.set(true);
        Ok(())
    }

    /// Freezes it if nothing uses it. Says whether it stands still now.
    pub(super) async fn doze(&self) -> Result<bool> {
        let _turn = self.freezer.turn.lock().await;
        self.freezer.frozen.store(true, Ordering::SeqCst);
        if self.is_busy() {
            self.freezer.set(false);
            return Ok(false);
        }
        if let Err(error) = self.driver().freeze(&self.id).await {
            self.freezer.set(false);
            return Err(isolation_error(&error));
        }
        self.freezer.set(true);
        Ok(true)
    }

    /// Lets it go on.
    pub(super) async fn thaw(&self) -> Result<()> {
        let _turn = self.freezer.turn.lock().await;
        self.thaw_in_turn().await
    }

    async fn thaw_in_turn(&self) -> Result<()> {
        self.driver().thaw(&self.id).await.map_err(|error| isolation_error(&error))?;
        self.freezer.set(false);
        Ok(())
    }

    /// Ends a doze. Says whether the sandbox runs: not when it has been paused meanwhile.
    pub(super) async fn rouse(&self) -> Result<bool> {
        self.disk.check()?;
        if !self.freezer.is_frozen() {
            return Ok(true);
        }
        let _turn = self.freezer.turn.lock().await;
        // A pause says so before it takes the turn.
        if self.state() != SandboxState::Running {
            return Ok(false);
        }
        if self.freezer.is_frozen() {
            self.thaw_in_turn().await?;
        }
        Ok(true)
    }

    /// Notes that it was stopped with all others.
    pub(crate) async fn hold_still(&self) {
        if self.freezer.is_frozen() {
            return;
        }
        let _turn = self.freezer.turn.lock().await;
        if self.state() == SandboxState::Running && !self.freezer.is_frozen() {
            self.freezer.held.store(true, Ordering::SeqCst);
            self.freezer.set(true);
        }
    }

    /// Notes that it goes on with all others, unless it was paused meanwhile.
    pub(crate) async fn let_go_on(&self) {
        let _turn = self.freezer.turn.lock().await;
        if self.freezer.held.swap(false, Ordering::SeqCst) && self.state() == SandboxState::Running {
            self.freezer.set(false);
        }
    }

    /// An earlier process froze it, or it has been put to disk.
    pub(super) fn set_frozen(&self, frozen: bool) {
        self.freezer.set(frozen);
    }

    /// Waits until it does not stand still.
    pub(super) async fn thawed(&self) {
        let mut state = self.freezer.subscribe();
        // The sender lives in the sandbox.
        drop(state.wait_for(|state| state.since.is_none()).await);
    }

    /// Waits until it has stood still for this long without a break, whatever froze it.
    pub(super) async fn stood_still_for(&self, time: Duration) {
        let mut state = self.freezer.subscribe();
        loop {
            let since = state.borrow_and_update().since;
            tokio::select! {
                // The sender lives in the sandbox.
                Ok(()) = state.changed() => {}
                () = self.freezer.clock.sleep_until(since.and_then(|since| since.checked_add(time))) => return,
            }
        }
    }
}

/// A use under way: while it is held the sandbox is not idle.
#[derive(Debug)]
pub(crate) struct InUse {
    sandbox: Arc<SandboxShared>,
}

impl InUse {
    pub(super) fn new(sandbox: &Arc<SandboxShared>) -> Self {
        sandbox.enter_use();
        Self { sandbox: Arc::clone(sandbox) }
    }

    pub(super) const fn sandbox(&self) -> &Arc<SandboxShared> {
        &self.sandbox
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.sandbox.leave_use();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_guest_hears_what_it_is_asked_however_long_it_stands_still() {
        let freezer = Freezer::new(Clock::default());
        let (asked, answers) = (Cell::new(0), Cell::new(None));
        let ask = || {
            asked.set(asked.get() + 1);
            let (answer, answered) = oneshot::channel();
            answers.set(Some(answer));
            async move { answered.await.unwrap() }
        };
        let answer = |with: Result<u8, GuestError>| answers.take().unwrap().send(with).unwrap();
        freezer.set(true);
        let mut heard = Box::pin(freezer.ask_awake(ask));
        assert!(futures::poll!(&mut heard).is_pending());
        assert_eq!(asked.get(), 0, "it stands still");
        freezer.set(false);
        assert!(futures::poll!(&mut heard).is_pending());
        assert_eq!(asked.get(), 1);
        // It stands still before it has answered.
        freezer.set(true);
        answer(Err(GuestError::Timeout));
        assert!(futures::poll!(&mut heard).is_pending());
        assert_eq!(asked.get(), 1, "it stands still again");
        freezer.set(false);
        assert!(futures::poll!(&mut heard).is_pending());
        assert_eq!(asked.get(), 2);
        answer(Ok(7));
        assert_eq!(heard.await, Ok(7));
    }

    #[tokio::test]
    async fn a_guest_that_is_silent_while_it_goes_on_is_not_asked_again() {
        let freezer = Freezer::new(Clock::default());
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            std::future::ready(Err::<(), _>(GuestError::Timeout))
        };
        freezer.set(true);
        freezer.set(false);
        assert_eq!(freezer.ask_awake(ask).await, Err(GuestError::Timeout));
        assert_eq!(asked.get(), 1);
    }
}
