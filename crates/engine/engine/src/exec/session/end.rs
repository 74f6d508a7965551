//! The end of a session: how the exec ended, the record of that, then the news to its readers, and last what nobody waits
//! for. When the server stops, the session lets go without an end, and the next process takes the exec up; so it does when
//! the sandbox has gone to another node with its memory.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::{ExecState, Exit, ExitContext, ExitReason, classify};
use atoll_core::limits::EXECS_KEPT_MAX_COUNT;
use atoll_store::StoreError;

use super::super::disk::blocking;
use super::{End, SIGKILL, Session, oom_kills};
use crate::errors::chain;

/// Pause before telling the store again when it does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// The guest is told that it may forget an exec this long after its end. It takes a processor for that, which the answer
/// to whoever waits for the end needs first. Shorter than the shortest rest after which a sandbox dozes.
const FORGET_AFTER: Duration = Duration::from_millis(2);
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
        let guest = self.sandbox.guest.subscribe();
        let exec = self.exec.id().clone();
        let inner = Arc::clone(&self.inner);
        let sandbox = self.sandbox.id.clone();
        // Clients look at what the template started long after it has ended.
        let start = self.sandbox.services.start_key();
        let prunes = self.sandbox.count_ended() % PRUNE_EVERY_COUNT == PRUNE_EVERY_COUNT - 1;
        self.inner.tracker.spawn(async move {
            // A guest that stands still does not answer, and the next process tells it again.
            let forget = async {
                tokio::time::sleep(FORGET_AFTER).await;
                let link = guest.borrow().clone();
                link?.client.forget_exec(exec.as_str()).await.err()
            };
            if let Some(Some(error)) = inner.shutdown.run_until_cancelled(forget).await {
                tracing::debug!(%exec, error = chain(&error), "the guest was not told to forget an exec");
            }
            if !prunes {
                return;
            }
            match inner.store.prune_execs(&sandbox, EXECS_KEPT_MAX_COUNT as u64, start.as_ref()).await {
                Ok(pruned) => {
                    let remove = move || pruned.iter().try_for_each(|old| inner.logs.remove(&sandbox, old));
                    if let Err(error) = blocking(remove).await {
                        tracing::warn!(%error, "output of old execs could not be removed");
                    }
                }
                Err(error) => tracing::warn!(error = chain(&error), "old execs could not be pruned"),
            }
        });
    }
}
