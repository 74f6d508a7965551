//! A run of a service: how its keeper begins it, stays with it, ends it, and what follows.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::ExitReason;
use atoll_core::id::ExecId;
use atoll_core::service::{After, STABLE_MS, ServiceOutcome, ServiceState};
use atoll_core::{Code, Error};

use super::super::{Order, probe, run_key, used};
use super::{Keeper, RETRY};
use crate::authorize::Caller;
use crate::engine::Engine;
use crate::exec::ExecView;
use crate::sandbox::SandboxShared;
use crate::start::ended_how;

/// Longest that one wait for an exec takes.
const LONG: Duration = Duration::from_secs(3600);

/// What came of beginning a run.
pub(super) enum Begun {
    Runs(ExecId),
    /// The service cannot be run as it is.
    Refused(String),
    /// Something else is in the way.
    Later(Error),
}

/// How a run ended.
enum End {
    /// As the exec says.
    Exec(Box<ExecView>),
    /// There is no such exec any more.
    Unknown,
}

impl End {
    /// It ended by itself, with code 0.
    fn is_well(&self) -> bool {
        let Self::Exec(view) = self else { return false };
        view.record.exit.as_ref().is_some_and(|exit| exit.code == Some(0))
    }
}

impl Keeper {
    /// Begins a run, or finds the one that has begun.
    pub(super) async fn begin(&mut self) -> Begun {
        if self.record.status.current().is_none() {
            self.record.status.begin_run(&self.sandbox.record().boot_id);
            // Recorded before the run is there, so that it is found again after a crash at any moment.
            self.save().await;
        }
        let number = self.record.status.current().map_or(0, |run| run.number);
        let key = run_key(&self.record.id, number);
        match self.engine.exec_by_key(&self.sandbox.id, &key).await {
            Ok(view) => return self.runs(view.record.id),
            Err(error) if error.code == Code::ExecNotFound => {}
            Err(error) => return Begun::Later(error),
        }
        let draft = self.record.spec.to_exec(key);
        match self.engine.create_exec(&self.sandbox.id, draft, &Caller::system()).await {
            Ok(view) => {
                atoll_failpoint::fail_point!("engine.service.begun");
                // The sandbox may have been put back while this was on its way.
                self.record.status.boot = Some(self.sandbox.record().boot_id.clone());
                self.runs(view.record.id)
            }
            Err(error) if is_its_own(error.code) => Begun::Refused(error.message),
            Err(error) => Begun::Later(error),
        }
    }

    fn runs(&self, exec: ExecId) -> Begun {
        self.shared.view.send_modify(|view| view.exec = Some(exec.clone()));
        if !self.ahead {
            self.publish(ServiceState::Starting, None);
        }
        Begun::Runs(exec)
    }

    /// Stays with a run until it has ended, and sees to what follows.
    pub(super) async fn attend(&mut self, exec: ExecId) -> ControlFlow<()> {
        let (engine, sandbox) = (self.engine.clone(), Arc::clone(&self.sandbox));
        let mut end = std::pin::pin!(wait_end(&engine, &sandbox, &exec));
        let (spec, shared) = (self.record.spec.clone(), Arc::clone(&self.shared));
        let is_ready = std::mem::take(&mut self.ahead);
        let mut probe = std::pin::pin!(async {
            if !is_ready && let Err(why) = probe::ready(&sandbox, &spec).await {
                return why;
            }
            shared.set_ready();
            probe::healthy(&sandbox, &spec).await
        });
        loop {
            let order = tokio::select! {
                biased;
                ended = &mut end => {
                    if self.is_start && spec.ready.is_some() && !shared.is_ready() && ended.is_well() {
                        return self.attend_background(ended).await;
                    }
                    self.ended(ended, None).await;
                    return ControlFlow::Continue(());
                }
                why = &mut probe => {
                    tracing::info!(sandbox = %sandbox.id, service = self.record.name, why, "a service is killed");
                    let ended = self.end_run(&exec, end.as_mut()).await;
                    self.ended(ended, Some(why)).await;
                    return ControlFlow::Continue(());
                }
                alone = used::unused(&engine, &sandbox, &shared), if self.record.status.renew => {
                    let ended = self.end_run(&exec, end.as_mut()).await;
                    self.record_end(&ended);
                    self.save().await;
                    // Said before a caller uses the service again: the run that has ended cannot be used.
                    self.publish(ServiceState::Starting, None);
                    drop(alone);
                    return ControlFlow::Continue(());
                }
                Some(order) = self.inbox.recv() => order,
            };
            if let Order::Renew(reply) = order {
                self.renew().await;
                drop(reply.send(Ok(())));
                continue;
            }
            let ended = self.end_run(&exec, end.as_mut()).await;
            self.record_end(&ended);
            return self.obey(order).await;
        }
    }

    /// Waits until what a command that has ended put into the background is ready. The boot may end before.
    async fn attend_background(&mut self, end: End) -> ControlFlow<()> {
        let (sandbox, spec) = (Arc::clone(&self.sandbox), self.record.spec.clone());
        let boot = sandbox.boot();
        tokio::select! {
            biased;
            () = boot.cancelled() => {
                self.record_end(&end);
                self.save().await;
            }
            ready = probe::ready(&sandbox, &spec) => self.ended(end, ready.err()).await,
            Some(order) = self.inbox.recv() => {
                self.record_end(&end);
                return self.obey(order).await;
            }
        }
        ControlFlow::Continue(())
    }

    /// Notes that the run, if there is one, makes way when no caller uses it.
    pub(super) async fn renew(&mut self) {
        self.record.status.renew = self.record.status.current().is_some();
        self.save().await;
    }

    /// Ends a run, and sees it end.
    async fn end_run(&self, exec: &ExecId, end: Pin<&mut impl Future<Output = End>>) -> End {
        tokio::select! {
            ended = end => ended,
            never = self.insist(exec) => match never {},
        }
    }

    /// Ends a run: asks it, then kills it again and again, until the caller of this sees that it has ended and drops
    /// this.
    async fn insist(&self, exec: &ExecId) -> std::convert::Infallible {
        let (id, exec) = (&self.sandbox.id, exec.as_str());
        if self.engine.signal_exec(id, exec, "TERM", true).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(self.record.spec.stop_timeout_ms)).await;
        }
        loop {
            if let Err(error) = self.engine.kill_exec(id, exec).await
                && error.code != Code::ExecNotFound
            {
                tracing::warn!(sandbox = %id, exec, %error, "a service could not be killed");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Notes how much a run wrote, and how it ended.
    fn record_end(&mut self, end: &End) {
        let status = &mut self.record.status;
        match end {
            End::Exec(view) => {
                status.end_run(view.extent.end);
                status.last_exit.clone_from(&view.record.exit);
            }
            End::Unknown => status.end_run(0),
        }
    }

    async fn ended(&mut self, end: End, killed_for: Option<String>) {
        self.record_end(&end);
        let End::Exec(view) = end else { return self.save().await };
        let Some(exit) = view.record.exit else { return self.save().await };
        if matches!(exit.reason, ExitReason::SandboxPaused | ExitReason::RolledBack | ExitReason::SandboxDied)
        {
            // Its sandbox ended it, and starts it anew with everything else.
            return self.save().await;
        }
        let lasted_ms = view.record.ended_ms.unwrap_or_default().saturating_sub(view.record.created_ms);
        let failed = killed_for.is_some() || exit.code != Some(0);
        let why = killed_for.unwrap_or_else(|| format!("it {}", ended_how(exit.code)));
        self.follow(failed, lasted_ms, why).await;
    }

    /// Decides what follows a run that ended by itself.
    pub(super) async fn follow(&mut self, failed: bool, lasted_ms: u64, why: String) {
        let status = &mut self.record.status;
        status.early = if lasted_ms >= STABLE_MS { 1 } else { status.early.saturating_add(1) };
        let early = status.early;
        match self.record.spec.after(failed, early) {
            After::Again(ms) => {
                self.next_start = Some(self.engine.inner.clock.instant() + Duration::from_millis(ms));
                self.save().await;
                self.publish(ServiceState::BackingOff, Some(why));
            }
            After::Exited => {
                status.outcome = Some(ServiceOutcome { failed: false, reason: why });
                self.save().await;
            }
            After::Failed => {
                let reason = if early > 1 {
                    format!("{why}; given up after {early} early ends in a row")
                } else {
                    why
                };
                status.outcome = Some(ServiceOutcome { failed: true, reason });
                self.save().await;
            }
        }
    }
}

/// Waits until an exec has ended.
async fn wait_end(engine: &Engine, sandbox: &SandboxShared, exec: &ExecId) -> End {
    loop {
        match engine.wait_exec(&sandbox.id, exec.as_str(), LONG).await {
            Ok(view) if view.record.state.is_final() => return End::Exec(Box::new(view)),
            Err(error) if error.code == Code::ExecNotFound => return End::Unknown,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%exec, %error, "how a service's exec is cannot be read, trying again");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Whether a start was refused for what the service is, rather than for how things are.
const fn is_its_own(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::PathInvalid
            | Code::CwdNotFound
            | Code::UserNotFound
            | Code::NotADirectory
            | Code::PermissionDenied
            | Code::CommandNotFound
            | Code::CommandNotExecutable
            | Code::LimitExceeded
            | Code::IdempotencyMismatch
    )
}
