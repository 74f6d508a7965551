//! The link: keeps one connection to the guest, for as long as the sandbox lives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::spec::SandboxSpec;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::{GuestClient, GuestError};
use atoll_guest_protocol::messages::Configure;
use atoll_isolation::{Isolation, IsolationError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::errors::{chain, guest_error, isolation_error};

use super::files;
use super::shared::{GuestLink, Message, SandboxShared};

/// How long a new or lost guest may take to answer.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);
/// Pause after a failed attempt: doubles from the first to the second.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(500);
/// How often a guest is asked whether it is there.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
/// A connection that lived less than this counts as a failed attempt.
const SHORT_LIFE: Duration = Duration::from_secs(1);

impl Inner {
    /// Tells the guest of an instance that has just begun what its sandbox is, as far as its driver has not seen to that.
    ///
    /// # Errors
    /// As [`Self::configure`].
    pub(crate) async fn introduce(
        &self,
        driver: &dyn Isolation,
        client: &GuestClient,
        hostname: &str,
        spec: &SandboxSpec,
    ) -> Result<()> {
        let hostname = if driver.names_new_ones() { "" } else { hostname };
        self.configure(client, hostname, spec).await
    }

    /// Tells a guest what its sandbox is; its host name only when there is one.
    ///
    /// # Errors
    /// What the guest says, above all that the working directory cannot be made.
    pub(crate) async fn configure(
        &self,
        client: &GuestClient,
        hostname: &str,
        spec: &SandboxSpec,
    ) -> Result<()> {
        let request = Configure {
            hostname: hostname.to_owned(),
            clock_unix_ns: 0,
            workdir: spec.workdir.clone().unwrap_or_default(),
            workdir_user: spec.user.clone(),
        };
        // A trip to the guest for nothing would be a tenth of a sandbox's creation.
        if !request.hostname.is_empty() || !request.workdir.is_empty() {
            client.configure(request).await.map_err(guest_error)?;
        }
        self.install_trust(client, &spec.egress).await
    }
}

/// Connects to the guest, retrying while it starts.
pub(crate) async fn connect(driver: &dyn Isolation, id: &SandboxId) -> Result<GuestClient> {
    let deadline = Instant::now() + CONNECT_DEADLINE;
    let mut pause = RETRY_FIRST;
    loop {
        let answer = tokio::time::timeout_at(deadline, attempt(driver, id)).await;
        let error = match answer.unwrap_or(Err(AttemptError::Guest(GuestError::Timeout))) {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if matches!(error, AttemptError::Isolation(IsolationError::Gone)) || Instant::now() >= deadline {
            return Err(match error {
                AttemptError::Isolation(error) => isolation_error(&error),
                AttemptError::Guest(error) => Error::new(
                    Code::GuestUnavailable,
                    format!("the sandbox's guest agent does not answer: {}", chain(&error)),
                ),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_LAST);
    }
}

enum AttemptError {
    Isolation(IsolationError),
    Guest(GuestError),
}

async fn attempt(driver: &dyn Isolation, id: &SandboxId) -> Result<GuestClient, AttemptError> {
    let stream = driver.connect(id).await.map_err(AttemptError::Isolation)?;
    let (client, _welcome) = GuestClient::connect(stream, id.as_str()).await.map_err(AttemptError::Guest)?;
    Ok(client)
}

/// Publishes a connection and replaces it whenever it breaks, until the sandbox is dead.
pub(super) async fn keep(sandbox: Arc<SandboxShared>, mut client: GuestClient, shutdown: CancellationToken) {
    let (boot, link) = (sandbox.boot(), sandbox.new_link());
    let mut pause = RETRY_FIRST;
    loop {
        let number = sandbox.links.fetch_add(1, Ordering::Relaxed) + 1;
        let closed = client.closed();
        let since = Instant::now();
        sandbox.guest.send_replace(Some(GuestLink { number, client: client.clone() }));
        tokio::select! {
            () = closed => {}
            () = link.cancelled() => break,
            () = shutdown.cancelled() => break,
            never = watch_over(&sandbox, client.clone()) => match never {},
            never = files::tell(&sandbox, &client) => match never {},
        }
        sandbox.guest.send_replace(None);
        // A guest that ends every connection at once must not keep the host busy.
        pause = if since.elapsed() < SHORT_LIFE { (pause * 2).min(RETRY_LAST) } else { RETRY_FIRST };
        let again = tokio::select! {
            again = async {
                tokio::time::sleep(pause).await;
                connect_awake(&sandbox).await
            } => again,
            () = link.cancelled() => break,
            () = shutdown.cancelled() => break,
        };
        match again {
            Ok(next) => client = next,
            Err(error) => {
                sandbox.tell(Message::GuestLost(error.message, boot)).await;
                break;
            }
        }
    }
    sandbox.guest.send_replace(None);
}

/// Asks the guest again and again, and says in the sandbox's reason when it does not answer: root inside can stop its
/// agent, and then nothing but this tells. Its silence counts only while it does not stand still.
async fn watch_over(sandbox: &SandboxShared, client: GuestClient) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(HEARTBEAT_EVERY).await;
        sandbox.thawed().await;
        let before = sandbox.freezer.now().total;
        let answered = tokio::time::timeout(HEARTBEAT_EVERY, client.list_execs()).await;
        let now = sandbox.freezer.now();
        if answered.is_ok() || (now.since.is_none() && now.total == before) {
            sandbox.set_unresponsive(answered.is_err());
        }
    }
}

/// Connects to a guest that may stand still meanwhile: silence counts only while it does not.
pub(super) async fn connect_awake(sandbox: &SandboxShared) -> Result<GuestClient> {
    loop {
        sandbox.disk.wait_for(false).await;
        sandbox.thawed().await;
        let before = sandbox.freezer.now().total;
        let outcome = tokio::select! {
            outcome = connect(sandbox.driver().as_ref(), &sandbox.id) => outcome,
            () = sandbox.disk.wait_for(true) => continue,
        };
        let now = sandbox.freezer.now();
        if outcome.is_ok() || sandbox.dead.is_cancelled() || (now.since.is_none() && now.total == before) {
            return outcome;
        }
    }
}
