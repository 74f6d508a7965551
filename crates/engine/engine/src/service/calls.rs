//! What callers can do with services.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::{SandboxId, ServiceId};
use atoll_core::service::{ServiceSpec, ServiceStatus};
use atoll_core::spec::{self, ExecSpec};
use atoll_core::{Code, Error, Result};
use atoll_store::{ServiceRecord, StoreError};

use crate::boxed;
use crate::clock::random;
use crate::engine::Engine;
use crate::errors::store_error;
use crate::sandbox::SandboxShared;

use super::{Order, ServiceShared, ServiceView, keeper, run_key};

impl Engine {
    /// Declares a service. It starts at once, and from then on whenever its sandbox does.
    ///
    /// # Errors
    /// An error of the spec or the sandbox; [`Code::NameTaken`]; [`Code::LimitExceeded`].
    #[boxed]
    pub async fn create_service(
        &self,
        sandbox: &SandboxId,
        name: &str,
        service: ServiceSpec,
    ) -> Result<ServiceView> {
        spec::name("name", name)?;
        service.validate()?;
        let sandbox = self.inner.sandbox(sandbox)?;
        let _using = sandbox.usable().await?;
        let created_ms = self.inner.now_ms();
        let id = ServiceId::from_parts(created_ms, random()?);
        // What only shows together with what the sandbox has, such as the size of all variables.
        ExecSpec::resolve(service.to_exec(run_key(&id, 1)), &sandbox.record().spec)?;
        let record = ServiceRecord {
            id,
            sandbox: sandbox.id.clone(),
            name: name.to_owned(),
            spec: service,
            status: ServiceStatus::default(),
            created_ms,
        };
        let (shared, inbox) = ServiceShared::new(record.clone());
        sandbox.services.enter(name, &shared)?;
        if let Err(error) = self.inner.store.insert_service(&record).await {
            sandbox.services.leave(name);
            return Err(match error {
                StoreError::NotFound => SandboxId::not_found(sandbox.id.as_str()),
                error => store_error(error),
            });
        }
        keeper::spawn(self, &sandbox, &shared, inbox);
        Ok(shared.view())
    }

    /// The services of a sandbox, by name.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub fn services(&self, sandbox: &SandboxId) -> Result<Vec<ServiceView>> {
        Ok(self.inner.sandbox(sandbox)?.services.views())
    }

    /// A service as it is once it has settled, or after `wait`.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ServiceNotFound`].
    #[boxed]
    pub async fn service(&self, sandbox: &SandboxId, name: &str, wait: Duration) -> Result<ServiceView> {
        let service = self.inner.sandbox(sandbox)?.services.find(name)?;
        let mut view = service.view.subscribe();
        let settled = view.wait_for(|view| view.state.is_settled());
        // Whether it settled or the wait ended: the view says how things are.
        drop(tokio::time::timeout(wait, settled).await);
        Ok(service.view())
    }

    /// Ends the run of a service, if there is one, and begins another: also of one that was stopped or has failed.
    /// Answers when the old run has ended.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::ServiceNotFound`], [`Code::SandboxFailed`], and what uses of a sandbox give.
    #[boxed]
    pub async fn restart_service(&self, sandbox: &SandboxId, name: &str) -> Result<ServiceView> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let service = sandbox.services.find(name)?;
        let _using = sandbox.usable().await?;
        self.asked(&sandbox, service.ask(Order::Restart).await)?;
        Ok(service.view())
    }

    /// Ends the run of a service, if there is one. It stays declared, and stopped until a caller restarts it.
    ///
    /// # Errors
    /// As [`Self::restart_service`].
    #[boxed]
    pub async fn stop_service(&self, sandbox: &SandboxId, name: &str) -> Result<ServiceView> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let service = sandbox.services.find(name)?;
        self.asked(&sandbox, service.ask(Order::Stop).await)?;
        Ok(service.view())
    }

    /// Ends the run of a service, if there is one, and forgets the service.
    ///
    /// # Errors
    /// As [`Self::restart_service`]; [`Code::InvalidArgument`] for what the sandbox's template starts.
    #[boxed]
    pub async fn remove_service(&self, sandbox: &SandboxId, name: &str) -> Result<()> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let service = sandbox.services.find(name)?;
        if keeper::is_start(&sandbox, &service) {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("the service '{name}' is what the sandbox's template starts, and stays as long as the sandbox"),
            )
            .hint("stop it instead: it stays stopped until somebody restarts it"));
        }
        match service.ask(Order::Remove).await {
            // Nothing runs in a sandbox that failed.
            None if sandbox.dead.is_cancelled() => {
                let id = service.view().record.id;
                self.inner.store.delete_service(&id).await.map_err(store_error)?;
                sandbox.services.leave(name);
                Ok(())
            }
            asked => self.asked(&sandbox, asked),
        }
    }

    /// What became of an order.
    pub(super) fn asked(&self, sandbox: &SandboxShared, asked: Option<Result<()>>) -> Result<()> {
        asked.unwrap_or_else(|| {
            if self.inner.shutdown.is_cancelled() {
                return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
            }
            let reason = sandbox.record().reason;
            let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            Err(Error::new(Code::SandboxFailed, format!("the sandbox is not alive{why}")))
        })
    }

    /// Takes up what an earlier process kept.
    pub(crate) async fn recover_services(&self) -> Result<()> {
        self.recover_services_of(None).await
    }

    /// The same, of one sandbox only if it is named.
    pub(crate) async fn recover_services_of(&self, only: Option<&SandboxId>) -> Result<()> {
        let services = self.inner.store.list_services().await.map_err(store_error)?;
        for record in services.into_iter().filter(|service| only.is_none_or(|only| service.sandbox == *only))
        {
            // One that could not be taken up is not there; its services stay recorded.
            let Some(sandbox) = self.inner.find(&record.sandbox) else { continue };
            let name = record.name.clone();
            let (shared, inbox) = ServiceShared::new(record);
            if let Err(error) = sandbox.services.enter(&name, &shared) {
                tracing::error!(sandbox = %sandbox.id, service = name, %error, "a service was not taken up");
                continue;
            }
            keeper::spawn(self, &sandbox, &shared, inbox);
        }
        Ok(())
    }
}

/// The sandbox and a service of it.
pub(super) fn find(engine: &Engine, sandbox: &SandboxId, name: &str) -> Result<Arc<ServiceShared>> {
    engine.inner.sandbox(sandbox)?.services.find(name)
}
