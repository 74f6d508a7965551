//! Using a sandbox's guest from outside the actor.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_guest_protocol::messages::Metrics;
use atoll_isolation::Usage;

use crate::engine::Engine;
use crate::errors::{guest_error, isolation_error};

use super::shared::SandboxShared;

/// How long a call waits for a guest whose connection is being made again.
const RECONNECT_WAIT: Duration = Duration::from_secs(10);

/// A guest to talk to. While it is held the sandbox is not idle.
#[derive(Debug)]
pub struct GuestLease {
    client: GuestClient,
    sandbox: Arc<SandboxShared>,
}

impl GuestLease {
    /// The sandbox.
    #[must_use]
    pub fn sandbox(&self) -> &SandboxId {
        &self.sandbox.id
    }

    pub(crate) const fn shared(&self) -> &Arc<SandboxShared> {
        &self.sandbox
    }

    /// Resolves when the sandbox dies or is taken apart.
    pub fn dead(&self) -> impl Future<Output = ()> + Send + 'static {
        self.sandbox.dead.clone().cancelled_owned()
    }
}

impl Deref for GuestLease {
    type Target = GuestClient;

    fn deref(&self) -> &GuestClient {
        &self.client
    }
}

impl Drop for GuestLease {
    fn drop(&mut self) {
        self.sandbox.leave_use();
    }
}

/// What a sandbox uses, from both sides.
#[derive(Debug, Clone)]
pub struct SandboxMetrics {
    /// Seen by the host.
    pub usage: Usage,
    /// Told by the guest.
    pub guest: Metrics,
    /// Memory limit, bytes.
    pub memory_limit_bytes: u64,
}

impl Engine {
    /// A connection to the guest of a running sandbox, for files, watches and ports.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::SandboxFailed`], [`Code::InvalidState`], or
    /// [`Code::GuestUnavailable`] when the guest does not answer.
    pub async fn guest(&self, sandbox: &str) -> Result<GuestLease> {
        let sandbox = self.inner.sandbox(sandbox)?;
        sandbox.usable().await?;
        let client = wait_for_guest(&sandbox).await?;
        sandbox.enter_use();
        Ok(GuestLease { client, sandbox })
    }

    /// What a sandbox uses.
    ///
    /// # Errors
    /// As [`Self::guest`].
    pub async fn metrics(&self, sandbox: &str) -> Result<SandboxMetrics> {
        let lease = self.guest(sandbox).await?;
        let sandbox = &lease.sandbox;
        let usage = sandbox.driver().usage(&sandbox.id).await.map_err(|error| isolation_error(&error))?;
        let guest = lease.metrics().await.map_err(guest_error)?;
        Ok(SandboxMetrics { usage, guest, memory_limit_bytes: sandbox.record().spec.resources.memory_bytes })
    }
}

/// The connection to the guest, waiting for it while it is made again.
pub(crate) async fn wait_for_guest(sandbox: &SandboxShared) -> Result<GuestClient> {
    let mut guest = sandbox.guest.subscribe();
    if let Some(link) = guest.borrow_and_update().as_ref() {
        return Ok(link.client.clone());
    }
    let waited = tokio::select! {
        () = sandbox.dead.cancelled() => return Err(Error::new(Code::SandboxFailed, "the sandbox died")),
        waited = tokio::time::timeout(RECONNECT_WAIT, guest.wait_for(Option::is_some)) => waited,
    };
    match waited {
        Ok(Ok(link)) => link
            .as_ref()
            .map(|link| link.client.clone())
            .ok_or_else(|| Error::new(Code::GuestUnavailable, "the sandbox's guest agent went away again")),
        Ok(Err(_)) | Err(_) => {
            Err(Error::new(Code::GuestUnavailable, "the sandbox's guest agent does not answer")
                .hint("try again; a sandbox whose agent stays silent is marked as failed"))
        }
    }
}
