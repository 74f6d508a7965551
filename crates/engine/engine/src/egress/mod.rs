//! The network of sandboxes: taken up when a sandbox is made or adopted, changed with its policy, let go
//! of at its end.
//!
//! The gate is taken before the guest is spoken to, so nothing that runs inside ever meets a network
//! that is not held to its policy. Between servers there is no gate, hence no traffic.

use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::network::{NetworkView, Transferred};
use atoll_core::policy::{EgressMode, EgressPolicy};
use atoll_core::sandbox::{PauseMode, SandboxState};
use atoll_core::spec::SandboxSpec;
use atoll_core::trace::TraceMode;
use atoll_core::{Code, Error, Result};
use atoll_egress::{GatewayConfig, Stats};
use atoll_isolation::Isolation;

use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::isolation_error;
use crate::sandbox::SandboxShared;

/// What the engine is told about the network at start.
#[derive(Debug, Clone, Default)]
pub struct EgressConfig {
    /// What a sandbox may reach when neither its caller nor its template says. The default is nothing.
    pub default_policy: EgressPolicy,
    /// The gateway.
    pub gateway: GatewayConfig,
}

impl Engine {
    /// What can be seen of a sandbox's network. Waits for that of one that is being taken up, if it runs or is frozen.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::InvalidState`] when it has none at the moment.
    #[boxed]
    pub async fn network(&self, id: &SandboxId) -> Result<NetworkView> {
        let sandbox = self.inner.sandbox(id)?;
        let record = sandbox.published();
        if record.state == SandboxState::Running || record.paused == Some(PauseMode::Frozen) {
            sandbox.settled().await;
        }
        self.inner.gateway.network(&sandbox.id).ok_or_else(|| {
            Error::new(Code::InvalidState, "the sandbox has no network now")
                .hint("it is being made or deleted, or it failed")
        })
    }

    /// What a sandbox of a project, or of none, may reach whose caller does not say: what its template says, or else its
    /// project's default, or else the server's.
    ///
    /// # Errors
    /// [`Code::TemplateNotFound`]; as [`Self::project`].
    #[boxed]
    pub async fn egress_unless_told(
        &self,
        project: Option<&ProjectId>,
        template: Option<&str>,
    ) -> Result<EgressPolicy> {
        let told = match template {
            Some(name) => self.find_template(name).await?.spec.egress,
            None => None,
        };
        let told = match told {
            None => self.settings_of(project)?.and_then(|project| project.defaults.egress.clone()),
            told => told,
        };
        Ok(told.unwrap_or_else(|| self.inner.config.egress.default_policy.clone()))
    }

    /// Bytes that a sandbox has moved since this server took up its network.
    #[must_use]
    pub fn transferred(&self, id: &SandboxId) -> Transferred {
        self.inner.gateway.transferred(id).unwrap_or_default()
    }

    /// Counts over all sandboxes, for metrics.
    #[must_use]
    pub fn egress_stats(&self) -> Stats {
        self.inner.gateway.stats()
    }
}

impl Inner {
    /// Takes up the network of a sandbox that lives.
    pub(crate) async fn open_network(&self, sandbox: &SandboxShared) -> Result<()> {
        let spec = sandbox.record().spec;
        if self.gateway_policy(&spec).mode != spec.egress.mode {
            tracing::warn!(sandbox = %sandbox.id, "its policy only observes, but it is not recorded: its rules are enforced");
        }
        self.attach_network(sandbox.driver().as_ref(), &sandbox.id, &spec).await
    }

    /// The policy that the gateway goes by. A policy that only observes does so only where a journal tells of it: on a
    /// server that was started anew without its recorder, rules are enforced.
    pub(crate) fn gateway_policy(&self, spec: &SandboxSpec) -> EgressPolicy {
        let unseen = self.config.trace.mode_of_spec(spec) == TraceMode::Off;
        let mode = if unseen { EgressMode::Enforce } else { spec.egress.mode };
        EgressPolicy { mode, ..spec.egress.clone() }
    }

    /// Lets what lives under an id reach what its policy says.
    pub(crate) async fn attach_network(
        &self,
        driver: &dyn Isolation,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<()> {
        let gate = driver.gate(id).await.map_err(|error| isolation_error(&error))?;
        self.gateway.attach(id, self.gateway_policy(spec), gate).map_err(|error| {
            tracing::error!(sandbox = %id, %error, "a sandbox's network cannot be served");
            Error::new(Code::Internal, format!("failed to serve the sandbox's network: {error}"))
        })
    }

    /// What a sandbox may reach that was not told: the server's default.
    pub(crate) fn default_egress(&self, spec: &mut EgressPolicy, told: bool) {
        if !told {
            spec.clone_from(&self.config.egress.default_policy);
        }
    }
}
