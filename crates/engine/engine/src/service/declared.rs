//! Services that a sandbox begins with: its template's, and those that were asked for with it.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{SandboxId, ServiceId};
use atoll_core::service::{ServiceSpec, ServiceState, ServiceStatus};
use atoll_core::spec::{ExecSpec, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_store::ServiceRecord;
use futures::future::try_join_all;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock::{now_ms, random};
use crate::engine::Engine;
use crate::sandbox::SandboxShared;

use super::{Order, ServiceShared, ServiceView, keeper, run_key};

/// What a service has to begin its first run, beside the time that it has to become ready.
pub(super) const BEGIN_PATIENCE: Duration = Duration::from_secs(30);

/// Services that are entered in a sandbox and that no task owns yet.
#[derive(Debug)]
pub(crate) struct Declared(Vec<(Arc<ServiceShared>, mpsc::Receiver<Order>)>);

/// What only shows together with what the sandbox has, such as the size of all variables.
///
/// # Errors
/// As [`ExecSpec::resolve`], naming the service.
pub(crate) fn check_declared(spec: &SandboxSpec) -> Result<()> {
    let id = ServiceId::from_parts(now_ms(), random()?);
    for (name, service) in &spec.services {
        ExecSpec::resolve(service.to_exec(run_key(&id, 1)), spec)
            .map_err(|error| Error { message: format!("services.{name}: {}", error.message), ..error })?;
    }
    Ok(())
}

impl Declared {
    /// Enters the services of a new sandbox, before it is recorded.
    ///
    /// # Errors
    /// What the system's source of random numbers gives.
    pub(crate) fn enter(sandbox: &SandboxShared) -> Result<Self> {
        let record = sandbox.record();
        let enter = |(name, spec): (String, ServiceSpec)| {
            let service = ServiceRecord {
                id: ServiceId::from_parts(record.created_ms, random()?),
                sandbox: record.id.clone(),
                name: name.clone(),
                spec,
                status: ServiceStatus::default(),
                created_ms: record.created_ms,
            };
            let (shared, inbox) = ServiceShared::new(service);
            sandbox.services.enter(&name, &shared)?;
            Ok((shared, inbox))
        };
        record.spec.services.into_iter().map(enter).collect::<Result<_>>().map(Self)
    }

    /// No services: those of a sandbox that goes on from memory are processes of it already.
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts them, and waits until each has settled.
    ///
    /// # Errors
    /// [`Code::StartFailed`] when one has failed, or is not ready when the time of all is over.
    pub(crate) async fn begin(self, engine: &Engine, sandbox: &Arc<SandboxShared>) -> Result<()> {
        let ready_ms =
            |service: &ServiceShared| service.view().record.spec.ready.map_or(0, |ready| ready.timeout_ms());
        let all: u64 = self.0.iter().map(|(service, _)| ready_ms(service)).sum();
        let deadline = Instant::now() + BEGIN_PATIENCE + Duration::from_millis(all);
        let services: Vec<_> = self.0.iter().map(|(service, _)| Arc::clone(service)).collect();
        for (service, inbox) in self.0 {
            keeper::spawn(engine, sandbox, &service, inbox);
        }
        // At once: those that wait for one that failed never settle.
        let all = services.iter().map(|service| settled(engine, &sandbox.id, service, deadline));
        try_join_all(all).await.map(drop)
    }
}

/// Waits until one service has settled.
pub(super) async fn settled(
    engine: &Engine,
    sandbox: &SandboxId,
    service: &ServiceShared,
    deadline: Instant,
) -> Result<()> {
    let mut views = service.view.subscribe();
    drop(tokio::time::timeout_at(deadline, views.wait_for(|view| view.state.is_settled())).await);
    let ServiceView { record, state, reason, exec, .. } = service.view();
    if state.is_settled() && state != ServiceState::Failed {
        return Ok(());
    }
    let why = reason.unwrap_or_else(|| "it is not ready".to_owned());
    let error =
        Error::new(Code::StartFailed, format!("the service '{}' is {}: {why}", record.name, state.as_str()));
    match exec {
        Some(exec) => Err(engine.explain(sandbox, "it", exec.as_str(), error).await),
        None => Err(error.hint("look at its command, or give it more time (ready.timeout_ms)")),
    }
}
