//! The actor: one task that owns a sandbox from its creation to its end.
//!
//! It comes to its sandbox by an [`Origin`]: it makes it ([`create`]), or takes up what an earlier process left
//! ([`take_up`]). Then it serves one message after another, and what the clock and the driver tell it, until the sandbox has
//! gone ([`end`]).

mod create;
mod due;
mod end;
mod pause;
mod resume;
mod rollback;
mod take_up;
mod travel;
mod update;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use atoll_core::exec::Exit;
use atoll_core::id::SnapshotId;
use atoll_core::policy::EgressPolicy;
use atoll_core::sandbox::{PauseMode, SandboxState, Wish, admit, may_follow};
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_isolation::Plan;
use atoll_store::{ExecRecord, SandboxRecord};
use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Engine, Inner};
use crate::errors::{isolation_error, store_error};
use crate::memory::Saved;
use crate::pool::Member;
use crate::travel::{Keeping, Upload};
use crate::{exec, usage};

use due::Due;
pub(crate) use travel::SETTLE_MAX;

use super::lease::wait_for_guest;
use super::link;
use super::shared::{Message, SandboxShared};
use super::teardown::{destroy, remove};

/// Shortest sleep of the timer: what cannot be done must not spin.
const TIMER_MIN: Duration = Duration::from_millis(2);
/// Longest sleep of the timer: a change that the actor was not told of is noticed within this.
const TIMER_MAX_MS: u64 = 60_000;

/// A deletion that failed is tried again after this.
const DELETE_AGAIN_MS: u64 = 10_000;

/// How the actor comes to its sandbox.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Make it, from its template's memory if there is one that fits.
    Create(Plan, Option<Arc<Saved>>),
    /// Take it over from a warm pool; make it if that fails.
    Claim(Box<Member>, Plan),
    /// An earlier process made it and the driver has taken it up.
    Adopt,
    /// The same, and it is paused as `frozen`.
    AdoptFrozen,
    /// It was put to disk, or is to be.
    Hibernated,
    /// An earlier process had begun to put it back to a snapshot.
    FinishRollback(SnapshotId),
    /// It failed before; only its record is left.
    Failed,
    /// It cannot be worked with, for this reason: shown as failed, which is not recorded, and left as it is until it
    /// is deleted or the server starts again.
    Unusable(String),
    /// An earlier process had begun to delete it.
    FinishDelete,
}

/// Starts the actor of a sandbox that was entered in the table.
pub(crate) fn spawn(inner: &Arc<Inner>, shared: &Arc<SandboxShared>, origin: Origin) {
    let Some(inbox) = Inbox::open(shared) else { return };
    shared.trace.begin(&shared.record(), matches!(origin, Origin::Create(..) | Origin::Claim(..)));
    let actor = Actor {
        inner: Arc::clone(inner),
        shared: Arc::clone(shared),
        record: shared.stored_record(),
        inbox,
        unlinked: false,
        budget_ms: 0,
        not_before_ms: 0,
        keeping: None,
        ahead: None,
        away: false,
        unentered: false,
        lost_memory: None,
        copied_ms: 0,
    };
    let (inner, shared) = (Arc::clone(inner), Arc::clone(shared));
    inner.tracker.clone().spawn(async move {
        if AssertUnwindSafe(Box::pin(actor.run(origin))).catch_unwind().await.is_err() {
            tracing::error!(sandbox = %shared.id, "the task that owns a sandbox panicked");
            spawn(&inner, &shared, Origin::Unusable("the server failed to handle it".to_owned()));
        }
    });
}

/// The requests to a sandbox. An actor that panics leaves them to the next one.
struct Inbox {
    shared: Arc<SandboxShared>,
    /// `None` only while this is dropped.
    messages: Option<mpsc::Receiver<Message>>,
}

impl Inbox {
    /// `None`: another actor has it.
    fn open(shared: &Arc<SandboxShared>) -> Option<Self> {
        let messages = shared.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Self { shared: Arc::clone(shared), messages: Some(messages) })
    }

    async fn next(&mut self) -> Option<Message> {
        self.messages.as_mut()?.recv().await
    }

    /// Takes no more; gives what came before.
    fn close(&mut self) -> Vec<Message> {
        let Some(messages) = &mut self.messages else { return Vec::new() };
        messages.close();
        std::iter::from_fn(|| messages.try_recv().ok()).collect()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner) = self.messages.take();
        }
    }
}

struct Actor {
    inner: Arc<Inner>,
    shared: Arc<SandboxShared>,
    /// The actor's own copy; what it publishes.
    record: SandboxRecord,
    inbox: Inbox,
    /// It stands still and nothing connects to its guest before it goes on.
    unlinked: bool,
    /// When its budget is to be looked at.
    budget_ms: u64,
    /// Something that was due failed: it is not tried again before.
    not_before_ms: u64,
    /// It is put to disk, and being copied to the object store.
    keeping: Option<Keeping>,
    /// It moves, and this was sent before it stood still: for the next copy.
    ahead: Option<Box<Upload>>,
    /// It is put to disk, and its disk is in the object store only.
    away: bool,
    /// It is put to disk with its memory, and its execs have no sessions yet: their output is in the object store only.
    unentered: bool,
    /// It is being woken without the memory that it was put to disk with: why, as its record is to say.
    lost_memory: Option<String>,
    /// When a copy of it was begun last while it ran.
    copied_ms: u64,
}

impl Actor {
    async fn run(mut self, origin: Origin) {
        match origin {
            Origin::Create(plan, saved) => {
                let made = self.create(&plan, saved).await;
                if self.undone(made).await {
                    return;
                }
            }
            Origin::Claim(member, plan) => {
                let made = match self.claim(*member, &plan).await {
                    Ok(()) => Ok(()),
                    Err(error) => self.create_instead(&plan, error).await,
                };
                if self.undone(made).await {
                    return;
                }
            }
            Origin::Adopt if self.inner.disk.is_full() => {
                self.take_up_frozen().await;
                self.shared.set_made(Ok(()));
                if self.go_on_when_there_is_room().await {
                    return;
                }
            }
            Origin::Adopt => {
                self.take_up().await;
                self.shared.set_made(Ok(()));
            }
            Origin::AdoptFrozen => {
                self.take_up_frozen().await;
                self.shared.set_made(Ok(()));
            }
            Origin::Hibernated => {
                self.take_up_hibernated().await;
                self.shared.set_made(Ok(()));
            }
            Origin::FinishRollback(to) => {
                self.take_up_rollback(&to).await;
                self.shared.set_made(Ok(()));
            }
            Origin::Failed => {
                self.shared.dead.cancel();
                self.shared.set_made(Ok(()));
                self.remove_remains().await;
            }
            Origin::Unusable(why) => {
                self.shared.dead.cancel();
                self.inner.gateway.detach(&self.record.id);
                if self.record.state != SandboxState::Deleting {
                    self.record.state = SandboxState::Failed;
                }
                self.record.reason = Some(why);
                self.shared.publish(self.record.clone());
                self.shared.set_made(Ok(()));
            }
            Origin::FinishDelete => {
                self.shared.set_made(Ok(()));
                if let Err(error) = self.delete().await {
                    tracing::error!(sandbox = %self.record.id, %error, "a deletion could not be finished");
                } else {
                    return;
                }
            }
        }
        self.serve().await;
    }

    async fn configure(&self, client: &GuestClient, plan: &Plan) -> Result<()> {
        self.inner.configure(client, &plan.hostname, &self.record.spec).await
    }

    /// The same, for an instance that has just begun.
    async fn introduce(&self, client: &GuestClient, plan: &Plan) -> Result<()> {
        let driver = self.shared.driver().as_ref();
        self.inner.introduce(driver, client, &plan.hostname, &self.record.spec).await
    }

    /// Makes the sandbox trust the gateway's certificates when its rules are the first that need it.
    async fn trust_anew(&self, after: &EgressPolicy) -> Result<()> {
        if self.record.spec.egress.looks_inside()
            || !after.looks_inside()
            || self.record.state != SandboxState::Running
        {
            return Ok(());
        }
        let guest = wait_for_guest(&self.shared).await?;
        self.inner.install_trust(&guest, after).await
    }

    fn start_link(&self, client: GuestClient) {
        let shared = Arc::clone(&self.shared);
        self.inner.tracker.spawn(link::keep(shared, client, self.inner.shutdown.clone()));
    }

    async fn serve(&mut self) {
        loop {
            let alive = match self.record.state {
                SandboxState::Running => true,
                SandboxState::Paused => self.record.paused == Some(PauseMode::Frozen),
                _ => false,
            };
            let driver = Arc::clone(self.shared.driver());
            let shared = Arc::clone(&self.shared);
            let id = self.record.id.clone();
            self.watch_idleness();
            let timer = self.timer();
            tokio::select! {
                biased;
                () = self.inner.shutdown.cancelled() => return,
                message = self.inbox.next() => match message {
                    None => return,
                    Some(Message::Delete(reply)) => {
                        let outcome = self.delete().await;
                        let done = outcome.is_ok();
                        answer(reply, outcome);
                        if done {
                            return;
                        }
                    }
                    Some(Message::Update(update, reply)) => {
                        let outcome = self.update(&update).await;
                        answer(reply, outcome);
                    }
                    Some(Message::Rollback(to, reply)) => {
                        let outcome = self.rollback(&to).await;
                        answer(reply, outcome);
                    }
                    Some(Message::Pause(mode, reply)) => {
                        let outcome = self.pause(mode, None).await;
                        answer(reply, outcome);
                    }
                    Some(Message::Resume(reply)) => {
                        let outcome = self.resume().await;
                        answer(reply, outcome);
                    }
                    Some(Message::Leave(to, ahead, reply)) => {
                        self.ahead = ahead;
                        let outcome = self.leave(&to).await;
                        self.give_ahead_up().await;
                        let gone = outcome.is_ok();
                        answer(reply, outcome);
                        if gone {
                            return;
                        }
                    }
                    Some(Message::GuestLost(why, boot)) if alive && !boot.is_cancelled() => {
                        self.fail(&why).await;
                    }
                    Some(Message::GuestLost(..)) => {}
                },
                since = travel::kept(&mut self.keeping) => self.is_kept_since(since),
                death = driver.died(&id), if alive => self.fail(&death.to_string()).await,
                () = shared.nudge.notified() => {}
                () = timer => {
                    if let Some(due) = self.is_due()
                        && self.do_due(due).await
                    {
                        return;
                    }
                }
            }
        }
    }

    /// Whether a use has to say when it ends.
    fn watch_idleness(&self) {
        let spec = &self.record.spec;
        let watches = spec.idle_timeout_ms.is_some() || spec.idle.freeze_ms.is_some();
        self.shared.watches_idle.store(watches, Ordering::Relaxed);
    }

    /// What is due now.
    fn is_due(&self) -> Option<Due> {
        if self.record.state == SandboxState::Deleting {
            return Some(Due::Delete);
        }
        self.next_due().filter(|(at, _)| *at <= self.inner.now_ms()).map(|(_, due)| due)
    }

    /// Waits until something is to be looked at.
    fn timer(&self) -> impl Future<Output = ()> + use<> {
        let clock = self.inner.clock.clone();
        let now = clock.now_ms();
        let at_ms = if self.record.state == SandboxState::Deleting {
            now.saturating_add(DELETE_AGAIN_MS)
        } else {
            let due = self.next_due().map_or(u64::MAX, |(at, _)| at);
            due.min(now.saturating_add(TIMER_MAX_MS)).max(self.not_before_ms)
        };
        async move {
            tokio::time::sleep(TIMER_MIN).await;
            clock.sleep_until_ms(at_ms).await;
        }
    }

    async fn move_to(&mut self, to: SandboxState, reason: Option<&str>) -> Result<()> {
        debug_assert!(may_follow(self.record.state, to), "{} → {to}", self.record.state);
        // The stored state may be the one before a passing one, which is not recorded.
        let from: Vec<_> = SandboxState::ALL.into_iter().filter(|from| may_follow(*from, to)).collect();
        let generation = self
            .inner
            .store
            .set_sandbox_state(&self.record.id, &from, to, reason)
            .await
            .map_err(store_error)?;
        self.record.generation = generation;
        self.record.state = to;
        self.record.reason = reason.map(str::to_owned);
        self.shared.publish(self.record.clone());
        Ok(())
    }
}

fn answer<T>(reply: oneshot::Sender<Result<T>>, outcome: Result<T>) {
    if reply.send(outcome).is_err() {
        tracing::debug!("nobody waits for the answer any more");
    }
}
