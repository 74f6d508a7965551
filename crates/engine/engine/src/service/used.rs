//! Using a service's run: an agent's session does, while it works.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{ExecId, SandboxId};
use atoll_core::sandbox::SandboxState;
use atoll_core::service::{START_SERVICE, ServiceState};
use atoll_core::{Code, Error, Result};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use tokio::time::Instant;

use crate::engine::Engine;
use crate::sandbox::SandboxShared;

use super::calls::find;
use super::declared::{BEGIN_PATIENCE, settled};
use super::{Order, ServiceShared, ServiceView, Services};

/// Pause between two looks whether a run is unused.
const LOOK: Duration = Duration::from_millis(100);
/// How long a caller waits for an unused run to make way.
const RENEW_WAIT: Duration = Duration::from_secs(15);

/// A service that is used. As long as this is held its run does not make way for a new program.
#[derive(Debug)]
pub(crate) struct ServiceUse {
    /// Where it is: settled.
    pub(crate) state: ServiceState,
    /// Its run.
    pub(crate) exec: ExecId,
    _shared: OwnedRwLockReadGuard<()>,
}

impl Engine {
    /// Uses a service, once it has settled.
    ///
    /// # Errors
    /// [`Code::ServiceNotFound`]; [`Code::StartFailed`] when it has failed, or is not ready in time.
    pub(crate) async fn use_service(&self, sandbox: &Arc<SandboxShared>, name: &str) -> Result<ServiceUse> {
        let service = sandbox.services.find(name)?;
        // No other caller uses the run that makes way: this one waits for the next.
        if service.view().record.status.renew && service.gate.try_write().is_ok() {
            let mut view = service.view.subscribe();
            let renewed = view.wait_for(|view| !view.record.status.renew);
            drop(tokio::time::timeout(RENEW_WAIT, renewed).await);
        }
        let shared = Arc::clone(&service.gate).read_owned().await;
        let ready_ms = service.view().record.spec.ready.map_or(0, |ready| ready.timeout_ms());
        let deadline = Instant::now() + BEGIN_PATIENCE + Duration::from_millis(ready_ms);
        settled(self, &sandbox.id, &service, deadline).await?;
        let view = service.view();
        let none = || Error::new(Code::StartFailed, format!("the service '{name}' has not run"));
        Ok(ServiceUse { state: view.state, exec: view.exec.ok_or_else(none)?, _shared: shared })
    }

    /// Lets the run of a service, if there is one, make way for another when no agent works with it.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ServiceNotFound`], [`Code::SandboxFailed`].
    pub(crate) async fn renew_service(&self, sandbox: &SandboxId, name: &str) -> Result<()> {
        let service = find(self, sandbox, name)?;
        let sandbox = self.inner.sandbox(sandbox)?;
        self.asked(&sandbox, service.ask(Order::Renew).await)
    }
}

impl Services {
    /// Waits until the service that says that it is ready on a port is, or has settled otherwise. At once when there is none.
    pub(crate) async fn ready_on(&self, port: u16, deadline: Instant) {
        let is_it = |service: &Arc<ServiceShared>| {
            service.view.borrow().record.spec.ready.as_ref().is_some_and(|ready| ready.port == Some(port))
        };
        let Some(service) = self.lock().values().find(|service| is_it(service)).cloned() else { return };
        let mut view = service.view.subscribe();
        drop(tokio::time::timeout_at(deadline, view.wait_for(|view| view.state.is_settled())).await);
    }

    /// Whether a service, in this boot of the sandbox, may still open a port: it has not begun, is not ready, or does
    /// not say when it is.
    pub(crate) fn may_come_up(&self, boot: &str) -> bool {
        self.lock().values().any(|service| may_come_up(&service.view.borrow(), boot))
    }
}

fn may_come_up(view: &ServiceView, boot: &str) -> bool {
    let of_this_boot = view.record.status.boot.as_deref() == Some(boot);
    // Its keeper begins it in each boot, and may not have done so yet.
    let begins = view.record.name == START_SERVICE && !of_this_boot;
    match view.state {
        ServiceState::Waiting | ServiceState::Starting | ServiceState::BackingOff => true,
        ServiceState::Running => view.record.spec.ready.is_none() || !of_this_boot,
        // It may have put its server into the background.
        ServiceState::Exited => of_this_boot || begins,
        ServiceState::Failed => begins,
        ServiceState::Stopped => false,
    }
}

/// Waits until no caller uses a service's run, and it can be ended: its sandbox is awake. No use begins while this is
/// held.
pub(super) async fn unused(
    engine: &Engine,
    sandbox: &SandboxShared,
    service: &ServiceShared,
) -> OwnedRwLockWriteGuard<()> {
    let name = service.view().record.name;
    loop {
        // Those that an earlier process of the server was with do not hold it yet.
        if !engine.inner.agents.work_with(&sandbox.id, &name).await
            && let Ok(alone) = Arc::clone(&service.gate).try_write_owned()
            && sandbox.state() == SandboxState::Running
            && !sandbox.freezer.is_frozen()
        {
            return alone;
        }
        tokio::time::sleep(LOOK).await;
    }
}
