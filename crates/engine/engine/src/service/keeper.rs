//! The keeper: one task that owns a service.
//!
//! It goes from step to step: `rest` has those while the service does not run, `run` those of a run.

mod rest;
mod run;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::sandbox::SandboxState;
use atoll_core::service::{START_SERVICE, ServiceState};
use atoll_store::ServiceRecord;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::errors::chain;
use crate::sandbox::SandboxShared;

use super::{Order, ServiceShared};
use run::Begun;

/// Pause before something is tried again that failed for no fault of the service.
const RETRY: Duration = Duration::from_secs(1);

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
