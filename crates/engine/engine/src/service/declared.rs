//! Services that a sandbox begins with: its template's, and those that were asked for with it.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{SandboxId, ServiceId};
use atoll_core::service::{START_SERVICE, ServiceSpec, ServiceState, ServiceStatus};
use atoll_core::spec::{ExecSpec, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_store::ServiceRecord;
use futures::future::try_join_all;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock::random;
use crate::engine::Engine;
use crate::sandbox::SandboxShared;
use crate::start::start_service;

use super::{Order, ServiceShared, ServiceView, keeper, run_key};

/// The time that a service has to begin its first run, beside the time that it has to become ready.
pub(crate) const BEGIN_PATIENCE: Duration = Duration::from_secs(30);

/// Services that are entered in a sandbox and that no task owns yet.
#[derive(Debug)]
pub(crate) struct Declared {
    services: Vec<(Arc<ServiceShared>, mpsc::Receiver<Order>)>,
    /// The processes of its template are there already.
    from_memory: bool,
}

/// What only shows together with what the sandbox has, such as the size of all variables.
///
/// # Errors
/// As [`ExecSpec::resolve`], naming the service.
pub(crate) fn check_declared(spec: &SandboxSpec) -> Result<()> {
    // As long as any.
    let id = ServiceId::from_parts(0, 0);
    for (name, service) in all(spec) {
        ExecSpec::resolve(service.to_exec(run_key(&id, 1)), spec)
            .map_err(|error| Error { message: format!("services.{name}: {}", error.message), ..error })?;
    }
    Ok(())
}

/// The services that a sandbox begins with, what its template starts among them.
fn all(spec: &SandboxSpec) -> impl Iterator<Item = (String, ServiceSpec)> {
    let start = start_service(spec).map(|start| (START_SERVICE.to_owned(), start));
    start.into_iter().chain(spec.services.clone())
}

impl Declared {
    /// Enters the services of a new sandbox, before it is recorded. One that goes on `from_memory` has the processes of its
    /// template already: it has none but what the template starts, and that begins with the next boot.
    ///
    /// # Errors
    /// What the system's source of random numbers gives.
    pub(crate) fn enter(sandbox: &SandboxShared, from_memory: bool) -> Result<Self> {
        let record = sandbox.record();
        let enter = |(name, spec): (String, ServiceSpec)| {
            let mut status = ServiceStatus::default();
            if from_memory {
                status.go_on_from_memory(&record.boot_id);
            }
            let service = ServiceRecord {
                id: ServiceId::from_parts(record.created_ms, random()?),
                sandbox: record.id.clone(),
                name: name.clone(),
                spec,
                status,
                created_ms: record.created_ms,
            };
            let (shared, inbox) = ServiceShared::new(service);
            sandbox.services.enter(&name, &shared)?;
            Ok((shared, inbox))
        };
        let wanted = all(&record.spec).filter(|(name, _)| !from_memory || name == START_SERVICE);
        let services = wanted.map(enter).collect::<Result<_>>()?;
        Ok(Self { services, from_memory })
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Whether the processes of the template go on from memory.
    pub(crate) const fn go_on_from_memory(&self) -> bool {
        self.from_memory
    }

    /// Starts them, and waits until each has settled.
    ///
    /// # Errors
    /// [`Code::StartFailed`] when one has failed, or is not ready when the time of all is over.
    pub(crate) async fn begin(self, engine: &Engine, sandbox: &Arc<SandboxShared>) -> Result<()> {
        let ready_ms =
            |service: &ServiceShared| service.view().record.spec.ready.map_or(0, |ready| ready.timeout_ms());
        let all: u64 = self.services.iter().map(|(service, _)| ready_ms(service)).sum();
        let deadline = Instant::now() + BEGIN_PATIENCE + Duration::from_millis(all);
        let services: Vec<_> = self.services.iter().map(|(service, _)| Arc::clone(service)).collect();
        for (service, inbox) in self.services {
            keeper::spawn(engine, sandbox, &service, inbox);
        }
        // At once: those that wait for one that failed never settle.
        let all = services.iter().map(|service| settled(engine, &sandbox.id, service, deadline));
        tokio::select! {
            biased;
            settled = try_join_all(all) => settled.map(drop),
            // Its time was over, or a caller deleted it.
            () = sandbox.dead.cancelled() => {
                Err(Error::new(Code::StartFailed, "the sandbox was deleted before it was ready"))
            }
        }
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
    let (what, message) = if record.name == START_SERVICE {
        let why = why.strip_prefix("it ").map_or_else(|| format!(": {why}"), |why| format!(" {why}"));
        ("the start command", format!("the start command{why}"))
    } else {
        ("it", format!("the service '{}' is {}: {why}", record.name, state.as_str()))
    };
    let error = Error::new(Code::StartFailed, message);
    match exec {
        Some(exec) => Err(engine.explain(sandbox, what, exec.as_str(), error).await),
        None => Err(error.hint("look at its command, or give it more time (ready.timeout_ms)")),
    }
}
