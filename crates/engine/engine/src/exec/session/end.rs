//! The end of a session: how the exec ended, the record of that, then the news to its readers, and last what nobody waits
//! for. When the server stops, the session lets go without an end, and the next process takes the exec up; so it does when
//! the sandbox has gone to another node with its memory.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::{ExecState, Exit, ExitContext, ExitReason, classify};
use atoll_core::id::ExecId;
use atoll_core::limits::EXECS_KEPT_MAX_COUNT;
use atoll_guest_protocol::client::GuestError;
use atoll_store::StoreError;

use super::super::disk::blocking;
use super::{End, SIGKILL, Session, oom_kills};
use crate::engine::Inner;
use crate::errors::chain;
use crate::sandbox::{GuestLink, SandboxShared};

/// Pause before telling the store again when it does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// The guest is told that it may forget an exec this long after its end. It takes a processor for that, which the answer
/// to whoever waits for the end needs first. Shorter than the shortest rest after which a sandbox dozes.
const FORGET_AFTER: Duration = Duration::from_millis(2);
/// Connections on which it is told.
const FORGET_TRIES_MAX_COUNT: u32 = 4;
/// Old execs are pruned each time that so many have ended: more than [`EXECS_KEPT_MAX_COUNT`] by this
/// many may be there for a while.
const PRUNE_EVERY_COUNT: u64 = 64;

impl Session {
    pub(super) async fn end(mut self, end: End) {
        match end {
            End::Exited(exited) => {
                atoll_failpoint::fail_point!("engine.exec.exited");
                self.cpu_us = exited.cpu_us;
                let killed = exited.signal == Some(SIGKILL) || exited.code == Some(128 + SIGKILL);
                let oom_killed = killed && oom_kills(&self.sandbox).await > self.oom_kills_before;
                let context = ExitContext { ended_by: self.exec.ended_by(), oom_killed };
                let exit = classify(exited.code, exited.signal, context);
                // Taken before clients hear of the end, so that it holds nothing of what they do next.
                Box::pin(crate::snapshot::after_exec(&self.inner, &self.sandbox, self.exec.id())).await;
                self.finish(exit).await;
            }
            End::BootEnded if self.boot.is_cancelled() && !self.sandbox.dead.is_cancelled() => {
                let exit = match self.exec.ended_by() {
                    Some(ExitReason::RolledBack) => Exit::rolled_back(),
                    _ => Exit::sandbox_paused(),
                };
                self.finish(exit).await;
            }
            // It goes on with its sandbox on another node, which has its row now.
            End::BootEnded if self.sandbox.has_left() => self.stop(),
            End::BootEnded => self.finish(Exit::sandbox_died()).await,
            End::ServerStops => self.stop(),
        }
    }

    /// Records the end, then tells all clients. Until it is recorded, no client hears of it.
    pub(super) async fn finish(&mut self, exit: Exit) {
        let lost = exit.reason == ExitReason::SandboxDied;
        let state = if lost { ExecState::Lost } else { ExecState::Exited };
        let id = self.exec.id().clone();
        let ended_ms = self.inner.now_ms();
        let pid = self.exec.progress.borrow().pid;
        while let Err(error) =
            self.inner.store.finish_exec(&id, &exit, pid, self.end_offset(), self.cpu_us, ended_ms).await
        {
            if matches!(error, StoreError::NotFound) {
                break; // the sandbox was removed with everything in it
            }
            tracing::error!(exec = %id, error = chain(&error), "the end of an exec cannot be recorded, trying again");
            tokio::select! {
                () = tokio::time::sleep(STORE_PAUSE) => {}
                () = self.inner.shutdown.cancelled() => return self.stop(),
            }
        }
        if let Some((by, bytes)) = self.exec.typed().end() {
            self.sandbox.trace.typed(self.exec.inserted(), by, bytes);
        }
        self.sandbox.trace.exec_ended(self.exec.inserted(), &exit, self.cpu_us);
        atoll_failpoint::fail_point!("engine.exec.finished");
        // Before the news: the task that is woken last runs next on this thread, and that is to be the one that waits for
        // the end.
        self.tidy();
        self.exec.progress.send_modify(|progress| {
            progress.state = state;
            progress.exit = Some(exit);
            progress.ended_ms = Some(ended_ms);
            progress.cpu_us = self.cpu_us;
        });
        self.sandbox.meter.count_exec_cpu(self.exec.inserted().started_by.as_ref(), self.cpu_us);
        self.leave();
    }

    /// Lets go without an end: the next process takes it up, or the node that has the sandbox now.
    fn stop(&self) {
        self.exec.progress.send_modify(|progress| progress.stopped = true);
        self.leave();
    }

    pub(super) fn leave(&self) {
        self.sandbox.leave_exec(self.exec.id());
    }

    /// After the end was recorded, in a task that no client waits for: the guest may forget the exec, and old execs go.
    fn tidy(&self) {
        let (inner, sandbox) = (Arc::clone(&self.inner), Arc::clone(&self.sandbox));
        let (exec, boot) = (self.exec.id().clone(), self.boot.clone());
        let prunes = self.sandbox.count_ended() % PRUNE_EVERY_COUNT == PRUNE_EVERY_COUNT - 1;
        self.inner.tracker.spawn(async move {
            tokio::time::sleep(FORGET_AFTER).await;
            if prunes {
                prune(&inner, &sandbox).await;
            }
            // When the server stops before, the next process tells it; a guest of a later boot never heard of the exec.
            let forgotten = boot.run_until_cancelled(forget(&sandbox, &exec));
            if let Some(Some(Err(error))) = inner.shutdown.run_until_cancelled(forgotten).await {
                tracing::debug!(%exec, error = chain(&error), "the guest was not told to forget an exec");
            }
        });
    }
}

/// Tells the guest that it may forget an exec, and so the exec's cgroup. It remembers a limited number, so it is told even if
/// its sandbox was paused or began to doze just now: when it goes on.
async fn forget(sandbox: &SandboxShared, exec: &ExecId) -> Result<(), GuestError> {
    let mut guest = sandbox.guest.subscribe();
    let mut last = 0;
    for _ in 0..FORGET_TRIES_MAX_COUNT {
        let newer = |link: &Option<GuestLink>| link.as_ref().is_some_and(|link| link.number > last);
        let link = guest.wait_for(newer).await.ok().and_then(|link| link.clone());
        let Some(link) = link else { break };
        last = link.number;
        match sandbox.freezer.ask_awake(|| link.client.forget_exec(exec.as_str())).await {
            Err(GuestError::Closed | GuestError::Protocol(_)) => {}
            told => return told,
        }
    }
    Err(GuestError::Closed)
}

/// Removes the oldest execs of a sandbox that has more than are kept.
async fn prune(inner: &Arc<Inner>, sandbox: &SandboxShared) {
    // Clients look at what the template started long after it has ended.
    let start = sandbox.services.start_key();
    let id = sandbox.id.clone();
    match inner.store.prune_execs(&id, EXECS_KEPT_MAX_COUNT as u64, start.as_ref()).await {
        Ok(pruned) => {
            let inner = Arc::clone(inner);
            let remove = move || pruned.iter().try_for_each(|old| inner.logs.remove(&id, old));
            if let Err(error) = blocking(remove).await {
                tracing::warn!(%error, "output of old execs could not be removed");
            }
        }
        Err(error) => tracing::warn!(error = chain(&error), "old execs could not be pruned"),
    }
}
