//! The keeper: one task that owns a service.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::ExitReason;
use atoll_core::id::ExecId;
use atoll_core::sandbox::SandboxState;
use atoll_core::service::{After, STABLE_MS, START_SERVICE, ServiceOutcome, ServiceState};
use atoll_core::{Code, Error};
use atoll_store::ServiceRecord;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::authorize::Caller;
use crate::engine::Engine;
use crate::errors::{chain, store_error};
use crate::exec::ExecView;
use crate::sandbox::SandboxShared;
use crate::start::ended_how;

use super::{Order, ServiceShared, ServiceView, probe, run_key, used};

/// Pause before something is tried again that failed for no fault of the service.
const RETRY: Duration = Duration::from_secs(1);
/// Longest that one wait for an exec takes.
const LONG: Duration = Duration::from_secs(3600);

/// Starts the task that owns a service.
pub(super) fn spawn(
    engine: &Engine,
    sandbox: &Arc<SandboxShared>,
    shared: &Arc<ServiceShared>,
    inbox: mpsc::Receiver<Order>,
) {
    let mut keeper = Keeper {
        engine: engine.clone(),
        sandbox: Arc::clone(sandbox),
        shared: Arc::clone(shared),
        record: shared.view().record,
        inbox,
        next_start: None,
        is_start: is_start(sandbox, shared),
        ahead: sandbox.was_started_ahead(),
    };
    let (shutdown, dead) = (engine.inner.shutdown.clone(), sandbox.dead.clone());
    engine.inner.tracker.spawn(async move {
        // To be dropped in the middle is what a `kill -9` does, too: what is recorded is enough to go on.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = dead.cancelled() => keeper.publish(ServiceState::Waiting, Some("the sandbox is not alive".to_owned())),
            () = keeper.keep() => {}
        }
    });
}

/// Whether a service is what the sandbox's template starts.
pub(super) fn is_start(sandbox: &SandboxShared, service: &ServiceShared) -> bool {
    sandbox.record().spec.start.is_some() && service.view.borrow().record.name == START_SERVICE
}

struct Keeper {
    engine: Engine,
    sandbox: Arc<SandboxShared>,
    shared: Arc<ServiceShared>,
    record: ServiceRecord,
    inbox: mpsc::Receiver<Order>,
    /// Not before this.
    next_start: Option<Instant>,
    /// It is what the template starts.
    is_start: bool,
    /// Its first run was begun, and became ready, before the sandbox had an owner.
    ahead: bool,
}

/// What came of beginning a run.
enum Begun {
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
    async fn keep(&mut self) {
        self.sandbox.settled().await;
        while self.step().await.is_continue() {}
    }

    async fn step(&mut self) -> ControlFlow<()> {
        if self.begins_anew() {
            (self.record.status.outcome, self.record.status.early) = (None, 0);
        }
        if self.record.status.stopped || self.record.status.outcome.is_some() {
            return self.rest().await;
        }
        if self.sandbox.state() != SandboxState::Running {
            return self.wait_for_sandbox().await;
        }
        if let Some(at) = self.next_start.filter(|at| *at > self.engine.inner.clock.instant()) {
            return self.back_off(at).await;
        }
        self.next_start = None;
        if let Some(other) = self.held_up() {
            return self.wait_for_other(other).await;
        }
        match self.begin().await {
            Begun::Runs(exec) => self.attend(exec).await,
            Begun::Refused(why) => {
                self.record.status.end_run(0);
                self.follow(true, 0, why).await;
                ControlFlow::Continue(())
            }
            Begun::Later(error) => {
                tracing::debug!(service = self.record.name, %error, "a service cannot be started now");
                self.publish(ServiceState::Starting, Some(error.message));
                self.next_start = Some(self.engine.inner.clock.instant() + RETRY);
                ControlFlow::Continue(())
            }
        }
    }

    /// Whether it is not started any more for what was in an earlier boot, and begins in each.
    fn begins_anew(&self) -> bool {
        let status = &self.record.status;
        let earlier = || status.boot.as_deref() != Some(self.sandbox.record().boot_id.as_str());
        self.is_start && status.outcome.is_some() && earlier()
    }

    // === while it does not run ===

    /// It is off, until an order comes, or a new boot begins what the template starts.
    async fn rest(&mut self) -> ControlFlow<()> {
        let (state, reason) = match &self.record.status.outcome {
            _ if self.record.status.stopped => (ServiceState::Stopped, None),
            Some(outcome) if outcome.failed => (ServiceState::Failed, Some(outcome.reason.clone())),
            Some(outcome) => (ServiceState::Exited, Some(outcome.reason.clone())),
            None => (ServiceState::Waiting, None),
        };
        self.publish(state, reason);
        let mut sandbox = self.sandbox.watch_record();
        let status = &self.record.status;
        let (boot, begins) = (status.boot.clone(), self.is_start && status.outcome.is_some());
        let booted =
            async { sandbox.wait_for(|record| boot.as_ref() != Some(&record.boot_id)).await.is_ok() };
        tokio::select! {
            biased;
            order = self.inbox.recv() => match order {
                Some(order) => self.obey(order).await,
                None => ControlFlow::Break(()),
            },
            _ = booted, if begins => ControlFlow::Continue(()),
        }
    }

    async fn wait_for_sandbox(&mut self) -> ControlFlow<()> {
        self.publish(ServiceState::Waiting, Some("the sandbox does not run".to_owned()));
        let mut sandbox = self.sandbox.watch_record();
        // The sender lives in the sandbox.
        let runs = async { sandbox.wait_for(|record| record.state == SandboxState::Running).await.is_ok() };
        tokio::select! {
            biased;
            Some(order) = self.inbox.recv() => self.obey(order).await,
            _ = runs => ControlFlow::Continue(()),
        }
    }

    /// A service that this one is started after and that is not there yet. One that was removed does not hold this one
    /// up.
    fn held_up(&self) -> Option<watch::Receiver<ServiceView>> {
        // A run that is recorded has begun, or is about to.
        if self.record.status.current().is_some() {
            return None;
        }
        let find = |name: &str| self.sandbox.services.find(name).ok();
        // What the template starts comes first; if it fails later, that does not hold up the others.
        let start = find(START_SERVICE).filter(|other| !self.is_start && is_start(&self.sandbox, other));
        let is_coming = |view: &watch::Receiver<ServiceView>| {
            matches!(view.borrow().state, ServiceState::Waiting | ServiceState::Starting)
        };
        let start = start.map(|other| other.view.subscribe()).filter(is_coming);
        let others = self.record.spec.after.iter().filter_map(|name| find(name));
        let mut others = others.map(|other| other.view.subscribe());
        start.or_else(|| others.find(|view| !is_there(view.borrow().state)))
    }

    async fn wait_for_other(&mut self, mut view: watch::Receiver<ServiceView>) -> ControlFlow<()> {
        let (name, state) = (view.borrow().record.name.clone(), view.borrow().state);
        self.publish(ServiceState::Waiting, Some(format!("'{name}' is {}", state.as_str())));
        let mut sandbox = self.sandbox.watch_record();
        let stands = async { sandbox.wait_for(|record| record.state != SandboxState::Running).await.is_ok() };
        tokio::select! {
            biased;
            Some(order) = self.inbox.recv() => self.obey(order).await,
            _ = stands => ControlFlow::Continue(()),
            // Or it was removed, and its sender went with it.
            () = async { drop(view.wait_for(|view| view.state != state).await) } => ControlFlow::Continue(()),
        }
    }

    async fn back_off(&mut self, until: Instant) -> ControlFlow<()> {
        let clock = self.engine.inner.clock.clone();
        let left = until.saturating_duration_since(clock.instant());
        let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        self.shared.view.send_modify(|view| {
            view.state = ServiceState::BackingOff;
            view.next_start_ms = Some(clock.now_ms().saturating_add(ms));
        });
        tokio::select! {
            biased;
            Some(order) = self.inbox.recv() => self.obey(order).await,
            () = clock.sleep_until(Some(until)) => ControlFlow::Continue(()),
        }
    }

    /// Does what was asked for. No run is under way.
    async fn obey(&mut self, order: Order) -> ControlFlow<()> {
        let status = &mut self.record.status;
        let (reply, flow) = match order {
            Order::Restart(reply) => {
                (status.stopped, status.outcome, status.early) = (false, None, 0);
                self.next_start = None;
                self.save().await;
                self.publish(ServiceState::Starting, None);
                (reply, ControlFlow::Continue(()))
            }
            Order::Stop(reply) => {
                (status.stopped, status.outcome, status.early) = (true, None, 0);
                self.next_start = None;
                self.save().await;
                self.publish(ServiceState::Stopped, None);
                (reply, ControlFlow::Continue(()))
            }
            Order::Renew(reply) => {
                self.renew().await;
                (reply, ControlFlow::Continue(()))
            }
            Order::Remove(reply) => match self.engine.inner.store.delete_service(&self.record.id).await {
                Ok(_) => {
                    self.sandbox.services.leave(&self.record.name);
                    (reply, ControlFlow::Break(()))
                }
                Err(error) => {
                    // The service stays, but it is not started again, as the caller wants it gone.
                    status.stopped = true;
                    drop(reply.send(Err(store_error(error))));
                    self.save().await;
                    return ControlFlow::Continue(());
                }
            },
        };
        // The caller may have stopped waiting for the answer.
        drop(reply.send(Ok(())));
        flow
    }

    // === while it runs ===

    /// Begins a run, or finds the one that has begun.
    async fn begin(&mut self) -> Begun {
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
    async fn attend(&mut self, exec: ExecId) -> ControlFlow<()> {
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
    async fn renew(&mut self) {
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
    async fn follow(&mut self, failed: bool, lasted_ms: u64, why: String) {
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

    // === what is told and kept ===

    fn publish(&self, state: ServiceState, reason: Option<String>) {
        self.shared.view.send_modify(|view| {
            view.state = state;
            view.reason = reason;
            view.next_start_ms = None;
        });
    }

    /// Records the status, then shows it.
    async fn save(&mut self) {
        let (store, record) = (&self.engine.inner.store, &self.record);
        while let Err(error) = store.set_service_status(&record.id, &record.status).await {
            tracing::error!(service = %record.id, error = chain(&error), "a service cannot be recorded, trying again");
            tokio::time::sleep(RETRY).await;
        }
        self.shared.view.send_modify(|view| view.record.status.clone_from(&record.status));
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

/// Whether a service is what those after it wait for.
const fn is_there(state: ServiceState) -> bool {
    matches!(state, ServiceState::Running | ServiceState::Exited)
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
