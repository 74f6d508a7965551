//! The actor: one task that owns a sandbox from its creation to its end.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use atoll_core::sandbox::{SandboxState, Wish, admit, ends_at, may_follow};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_guest_protocol::messages::Configure;
use atoll_isolation::Plan;
use atoll_store::SandboxRecord;
use tokio::sync::{mpsc, oneshot};

use crate::clock::now_ms;
use crate::engine::Inner;
use crate::errors::{guest_error, isolation_error, store_error};
use crate::exec;

use super::link;
use super::shared::{Message, SandboxShared};
use super::teardown::{destroy, remove};

/// Shortest sleep of the timer.
const TIMER_MIN: Duration = Duration::from_millis(20);
/// Longest sleep of the timer: a clock that was set is noticed within this.
const TIMER_MAX: Duration = Duration::from_secs(60);

/// A deletion that failed is tried again after this.
const DELETE_AGAIN: Duration = Duration::from_secs(10);

/// How the actor comes to its sandbox.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Make it.
    Create(Plan),
    /// An earlier process made it and the driver has taken it up.
    Adopt,
    /// It failed before; only its record is left.
    Failed,
    /// An earlier process had begun to delete it.
    FinishDelete,
}

/// Starts the actor of a sandbox that was entered in the table.
pub(crate) fn spawn(inner: &Arc<Inner>, shared: &Arc<SandboxShared>, origin: Origin) {
    let inbox = shared.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(inbox) = inbox else { return };
    let actor =
        Actor { inner: Arc::clone(inner), shared: Arc::clone(shared), record: shared.record(), inbox };
    inner.tracker.spawn(actor.run(origin));
}

struct Actor {
    inner: Arc<Inner>,
    shared: Arc<SandboxShared>,
    /// The actor's own copy; what it publishes.
    record: SandboxRecord,
    inbox: mpsc::Receiver<Message>,
}

impl Actor {
    async fn run(mut self, origin: Origin) {
        match origin {
            Origin::Create(plan) => {
                if let Err(error) = self.create(&plan).await {
                    tracing::info!(sandbox = %self.record.id, %error, "a sandbox could not be made");
                    let undone = self.undo_create().await;
                    self.shared.set_made(Err(error));
                    if undone {
                        return;
                    }
                } else {
                    self.shared.set_made(Ok(()));
                }
            }
            Origin::Adopt => {
                self.take_up().await;
                self.shared.set_made(Ok(()));
            }
            Origin::Failed => {
                self.shared.dead.cancel();
                self.shared.set_made(Ok(()));
                self.remove_remains().await;
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

    // === creation ===

    /// The creation saga. Its only undo is [`Self::undo_create`], whatever step failed.
    async fn create(&mut self, plan: &Plan) -> Result<()> {
        fail::fail_point!("engine.create.before");
        let inner = Arc::clone(&self.inner);
        let _turn = inner
            .creates
            .acquire()
            .await
            .or(Err(Error::new(Code::ShuttingDown, "the server is shutting down")))?;
        inner.store.insert_sandbox(&self.record).await.map_err(store_error)?;
        fail::fail_point!("engine.create.journalled");
        self.shared.driver().create(plan).await.map_err(|error| isolation_error(&error))?;
        fail::fail_point!("engine.create.isolated");
        let client = tokio::select! {
            client = link::connect(&self.shared) => client?,
            () = inner.shutdown.cancelled() => {
                return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
            }
        };
        fail::fail_point!("engine.create.connected");
        self.configure(&client, plan).await?;
        fail::fail_point!("engine.create.configured");
        self.move_to(SandboxState::Running, None).await?;
        fail::fail_point!("engine.create.committed");
        self.start_link(client);
        Ok(())
    }

    async fn configure(&self, client: &GuestClient, plan: &Plan) -> Result<()> {
        let spec = &self.record.spec;
        let request = Configure {
            hostname: plan.hostname.clone(),
            clock_unix_ns: 0,
            workdir: spec.workdir.clone().unwrap_or_default(),
            workdir_user: spec.user.clone(),
        };
        client.configure(request).await.map_err(guest_error)
    }

    /// Says whether nothing is left. If something is, it is a sandbox being deleted from now on.
    async fn undo_create(&mut self) -> bool {
        self.shared.dead.cancel();
        let id = self.record.id.clone();
        let Err(error) = remove(&self.inner, self.shared.driver().as_ref(), &id).await else {
            self.inner.leave(&id);
            return true;
        };
        tracing::error!(sandbox = %id, %error, "a failed creation could not be undone yet");
        if let Err(error) = self.move_to(SandboxState::Deleting, None).await {
            // The row, if there is one, says `creating`: the next start would finish this, too.
            tracing::error!(sandbox = %id, %error, "nor could that be recorded");
            self.record.state = SandboxState::Deleting;
            self.shared.publish(self.record.clone());
        }
        false
    }

    // === life ===

    fn start_link(&self, client: GuestClient) {
        let shared = Arc::clone(&self.shared);
        self.inner.tracker.spawn(link::keep(shared, client, self.inner.shutdown.clone()));
    }

    /// Connects to a guest that an earlier process made and takes up its execs.
    async fn take_up(&mut self) {
        let taken_up = tokio::select! {
            biased;
            // Nothing is lost: the next process takes it up.
            () = self.inner.shutdown.cancelled() => return,
            taken_up = async {
                let client = link::connect(&self.shared).await?;
                self.start_link(client);
                exec::take_up(&self.inner, &self.shared).await
            } => taken_up,
        };
        if let Err(error) = taken_up {
            self.fail(&error.message).await;
            // Execs that were not taken up have no session that ends them.
            exec::wait_ended(&self.shared).await;
            if let Err(error) = self.inner.store.lose_execs(&self.record.id, now_ms()).await {
                tracing::error!(sandbox = %self.record.id, %error, "lost execs could not be recorded");
            }
        }
    }

    async fn serve(&mut self) {
        loop {
            let alive = self.record.state == SandboxState::Running;
            let driver = Arc::clone(self.shared.driver());
            let id = self.record.id.clone();
            let pause = self.until_end();
            tokio::select! {
                biased;
                () = self.inner.shutdown.cancelled() => return,
                message = self.inbox.recv() => match message {
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
                    Some(Message::GuestLost(why)) if alive => self.fail(&why).await,
                    Some(Message::GuestLost(_)) => {}
                },
                death = driver.died(&id), if alive => self.fail(&death.to_string()).await,
                () = tokio::time::sleep(pause) => {
                    if self.has_ended() {
                        tracing::info!(sandbox = %id, "its time has come");
                        match self.delete().await {
                            Ok(()) => return,
                            Err(error) => tracing::error!(sandbox = %id, %error, "failed to delete"),
                        }
                    }
                }
            }
        }
    }

    fn end_ms(&self) -> Option<u64> {
        let alive = self.record.state == SandboxState::Running;
        ends_at(
            self.record.expires_ms,
            self.record.spec.idle_timeout_ms.filter(|_| alive),
            self.shared.last_active_ms(),
            self.shared.is_busy(),
        )
    }

    fn has_ended(&self) -> bool {
        self.record.state == SandboxState::Deleting || self.end_ms().is_some_and(|end| end <= now_ms())
    }

    /// How long to sleep. While something goes on in it the end of its idleness is not known, so an idle
    /// timeout also bounds the sleep.
    fn until_end(&self) -> Duration {
        if self.record.state == SandboxState::Deleting {
            return DELETE_AGAIN;
        }
        let now = now_ms();
        let end = self.end_ms().map_or(TIMER_MAX, |end| Duration::from_millis(end.saturating_sub(now)));
        let idle = self.record.spec.idle_timeout_ms.map_or(TIMER_MAX, Duration::from_millis);
        // A deletion that cannot even be recorded must not spin.
        end.min(idle).clamp(TIMER_MIN, TIMER_MAX)
    }

    async fn update(&mut self, update: &SandboxUpdate) -> Result<SandboxRecord> {
        admit(self.record.state, Wish::Update, self.record.reason.as_deref())?;
        let resources = update.validate(self.record.spec.resources, &self.inner.config.caps)?;
        let mut next = SandboxRecord { last_active_ms: now_ms(), ..self.record.clone() };
        if let Some(labels) = &update.labels {
            next.labels.clone_from(labels);
        }
        if let Some(ttl) = update.ttl_ms {
            next.expires_ms = ttl.map(|ttl| now_ms().saturating_add(ttl));
        }
        if let Some(idle) = update.idle_timeout_ms {
            next.spec.idle_timeout_ms = idle;
        }
        if let Some(egress) = &update.egress {
            next.spec.egress.clone_from(egress);
        }
        if resources != next.spec.resources {
            if self.record.state != SandboxState::Running {
                return Err(Error::new(Code::InvalidState, "limits can only change while the sandbox runs"));
            }
            self.shared
                .driver()
                .update(&next.id, &resources)
                .await
                .map_err(|error| isolation_error(&error))?;
            next.spec.resources = resources;
        }
        next.generation = self.inner.store.update_sandbox(&next).await.map_err(store_error)?;
        self.record = next;
        self.shared.publish(self.record.clone());
        self.shared.touch();
        Ok(self.shared.record())
    }

    // === end ===

    /// The instance is dead, or as good as: remove what is left of it, keep the record and the output.
    async fn fail(&mut self, why: &str) {
        let id = self.record.id.clone();
        tracing::warn!(sandbox = %id, why, "a sandbox died");
        self.shared.dead.cancel();
        while let Err(error) = self.move_to(SandboxState::Failed, Some(why)).await {
            tracing::error!(sandbox = %id, %error, "failed to record a death, trying again");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                () = self.inner.shutdown.cancelled() => return,
            }
        }
        self.remove_remains().await;
    }

    async fn remove_remains(&self) {
        if let Err(error) = destroy(self.shared.driver().as_ref(), &self.record.id).await {
            tracing::error!(sandbox = %self.record.id, %error, "failed to remove what was left of a dead sandbox");
        }
    }

    async fn delete(&mut self) -> Result<()> {
        if self.record.state != SandboxState::Deleting {
            self.move_to(SandboxState::Deleting, None).await?;
        }
        fail::fail_point!("engine.delete.marked");
        self.shared.dead.cancel();
        exec::wait_ended(&self.shared).await;
        remove(&self.inner, self.shared.driver().as_ref(), &self.record.id).await?;
        self.inner.leave(&self.record.id);
        // Who wanted the same meanwhile has it, too. Everybody else is told that it is gone.
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Delete(reply) = message {
                answer(reply, Ok(()));
            }
        }
        Ok(())
    }

    async fn move_to(&mut self, to: SandboxState, reason: Option<&str>) -> Result<()> {
        let from = self.record.state;
        debug_assert!(may_follow(from, to), "{from} → {to}");
        let generation = self
            .inner
            .store
            .set_sandbox_state(&self.record.id, &[from], to, reason)
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
