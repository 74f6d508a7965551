//! While a service does not run: what its keeper waits for, and the orders that come meanwhile.

use std::ops::ControlFlow;

use atoll_core::sandbox::SandboxState;
use atoll_core::service::{START_SERVICE, ServiceState};
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::{Order, ServiceView};
use super::{Keeper, is_start};
use crate::errors::store_error;

impl Keeper {
    /// It is off, until an order comes, or a new boot begins what the template starts.
    pub(super) async fn rest(&mut self) -> ControlFlow<()> {
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

    pub(super) async fn wait_for_sandbox(&mut self) -> ControlFlow<()> {
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
    pub(super) fn held_up(&self) -> Option<watch::Receiver<ServiceView>> {
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

    pub(super) async fn wait_for_other(&mut self, mut view: watch::Receiver<ServiceView>) -> ControlFlow<()> {
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

    pub(super) async fn back_off(&mut self, until: Instant) -> ControlFlow<()> {
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
    pub(super) async fn obey(&mut self, order: Order) -> ControlFlow<()> {
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
}

/// Whether a service is what those after it wait for.
const fn is_there(state: ServiceState) -> bool {
    matches!(state, ServiceState::Running | ServiceState::Exited)
}
