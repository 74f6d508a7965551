//! Using a sandbox's guest from outside the actor.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::{GuestClient, GuestError};
use atoll_guest_protocol::messages::Metrics;
use atoll_isolation::{DiskIo, Usage};

use crate::boxed;
use crate::engine::Engine;
use crate::errors::{guest_error, isolation_error};

use super::downloads::{Downloads, Held};
use super::freezer::InUse;
use super::shared::SandboxShared;

/// How long a call waits for a guest whose connection is being made again.
const RECONNECT_WAIT: Duration = Duration::from_secs(10);

/// A guest to talk to. While it is held the sandbox is not idle.
#[derive(Debug)]
pub struct GuestLease {
    client: GuestClient,
    using: InUse,
    downloads: Arc<Downloads>,
    /// What it sends is for whoever has a link.
    of_anybody: bool,
}

impl GuestLease {
    /// The same for a request by a link, or by an address that a key signed: what is read by it leaves memory to those that have
    /// a key.
    #[must_use]
    pub fn of_anybody(self) -> Self {
        Self { of_anybody: true, ..self }
    }

    /// The sandbox.
    #[must_use]
    pub fn sandbox(&self) -> &SandboxId {
        &self.using.sandbox().id
    }

    pub(crate) const fn shared(&self) -> &Arc<SandboxShared> {
        self.using.sandbox()
    }

    /// Memory for what the guest is to send to a client.
    pub(super) fn hold_download(&self) -> Result<Held, GuestError> {
        let sandbox = self.shared();
        self.downloads.hold(&sandbox.id, &sandbox.owner(), self.of_anybody).ok_or(GuestError::NoRoom)
    }

    /// Resolves when the sandbox dies, is taken apart, or is paused without its memory.
    pub fn dead(&self) -> impl Future<Output = ()> + Send + 'static {
        self.using.sandbox().boot().cancelled_owned()
    }
}

impl Deref for GuestLease {
    type Target = GuestClient;

    fn deref(&self) -> &GuestClient {
        &self.client
    }
}

/// What a sandbox uses, from both sides.
#[derive(Debug, Clone)]
pub struct SandboxMetrics {
    /// Seen by the host.
    pub usage: Usage,
    /// What went to its disks and came from them, where that is counted.
    pub disk_io: Option<DiskIo>,
    /// Told by the guest.
    pub guest: Metrics,
    /// Memory limit, bytes.
    pub memory_limit_bytes: u64,
}

impl Engine {
    /// A connection to the guest of a sandbox, for files, watches and ports. A paused one is woken first.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`], [`Code::SandboxFailed`], [`Code::InvalidState`], or
    /// [`Code::GuestUnavailable`] when the guest does not answer.
    #[boxed]
    pub async fn guest(&self, sandbox: &SandboxId) -> Result<GuestLease> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let using = sandbox.usable().await?;
        self.guest_of(using).await
    }

    async fn guest_of(&self, using: InUse) -> Result<GuestLease> {
        let client = wait_for_guest(using.sandbox()).await?;
        let downloads = Arc::clone(&self.inner.downloads);
        Ok(GuestLease { client, using, downloads, of_anybody: false })
    }

    /// Whether a sandbox is paused, in any mode.
    #[must_use]
    pub fn is_paused(&self, sandbox: &SandboxId) -> bool {
        self.inner.sandbox(sandbox).is_ok_and(|sandbox| sandbox.state() == SandboxState::Paused)
    }

    /// Waits until a sandbox is paused, in any mode; does not wait when it is. Never ends for one that is not there.
    pub async fn until_paused(&self, sandbox: &SandboxId) {
        if let Ok(sandbox) = self.inner.sandbox(sandbox) {
            let mut record = sandbox.watch_record();
            drop(sandbox);
            if record.wait_for(|record| record.state == SandboxState::Paused).await.is_ok() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// What a sandbox uses. One that is paused, or is just being paused, is not woken for that: then there is nothing from
    /// the guest.
    ///
    /// # Errors
    /// As [`Self::guest`].
    #[boxed]
    pub async fn metrics(&self, sandbox: &SandboxId) -> Result<SandboxMetrics> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let lease = match sandbox.lookable().await? {
            Some(using) => Some(self.guest_of(using).await?),
            None => None,
        };
        let usage = sandbox.driver().usage(&sandbox.id).await.map_err(|error| isolation_error(&error))?;
        let disk_io = sandbox.driver().disk_io(&sandbox.id).await;
        let guest = match &lease {
            Some(lease) => lease.metrics().await.map_err(guest_error)?,
            None => Metrics::default(),
        };
        let memory_limit_bytes = sandbox.record().spec.resources.memory_bytes;
        Ok(SandboxMetrics { usage, disk_io, guest, memory_limit_bytes })
    }
}

/// The connection to the guest, waiting for it while it is made again.
pub(crate) async fn wait_for_guest(sandbox: &SandboxShared) -> Result<GuestClient> {
    let mut guest = sandbox.guest.subscribe();
    if let Some(link) = guest.borrow_and_update().as_ref() {
        return Ok(link.client.clone());
    }
    let boot = sandbox.boot();
    let waited = tokio::select! {
        () = boot.cancelled() => return Err(Error::new(Code::SandboxFailed, "the sandbox died")),
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
