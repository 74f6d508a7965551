//! Probes: looks at a service from inside its sandbox.
//!
//! They go over the connection to the guest that is there, and are no use of the sandbox: one that stands still is not
//! woken for them, and what was looked at while it stood still counts for nothing.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Code;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use atoll_core::service::{Look, ServiceSpec};
use atoll_core::spec::{ExecDraft, SandboxSpec};
use atoll_guest_protocol::client::{GuestClient, GuestError};
use atoll_isolation::Isolation;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::exec::run_to_end;
use crate::sandbox::SandboxShared;
use crate::start::in_words;

/// Longest that one attempt may take while a service is not ready.
pub(crate) const ATTEMPT_MAX: Duration = Duration::from_secs(30);
/// How long a killed command of a probe is waited for.
const KILLED: Duration = Duration::from_secs(5);
/// Bytes of an HTTP answer that are read: its first line.
const STATUS_LINE_MAX_BYTES: usize = 64;

/// Looks at a run until it is ready; at once when there is no way to tell.
///
/// # Errors
/// Why it is to be killed.
pub(super) async fn ready(sandbox: &Arc<SandboxShared>, spec: &ServiceSpec) -> Result<(), String> {
    // What cannot be looked at was refused when it was declared.
    let Some((ready, look)) = spec.ready.as_ref().and_then(|ready| Some((ready, ready.look().ok()?))) else {
        return Ok(());
    };
    let prober = Prober { sandbox, spec };
    let timeout = Duration::from_millis(ready.timeout_ms());
    let began = Instant::now();
    let stood = sandbox.freezer.stood_still();
    loop {
        if prober.attempt(&look, timeout.min(ATTEMPT_MAX)).await == Some(true) {
            return Ok(());
        }
        let still = sandbox.freezer.stood_still().saturating_sub(stood);
        let waited = began.elapsed().saturating_sub(still);
        if waited >= timeout {
            return Err(format!("it was not ready within {}", in_words(ready.timeout_ms())));
        }
        tokio::time::sleep(ready.pause(waited)).await;
    }
}

/// Looks whether a run works that is ready. Gives why it is to be killed.
pub(super) async fn healthy(sandbox: &Arc<SandboxShared>, spec: &ServiceSpec) -> String {
    let Some((health, look)) = spec.health.as_ref().and_then(|health| Some((health, health.look().ok()?)))
    else {
        return std::future::pending().await;
    };
    let prober = Prober { sandbox, spec };
    let mut bad = 0;
    while bad < health.failures() {
        tokio::time::sleep(Duration::from_millis(health.interval_ms())).await;
        match prober.attempt(&look, Duration::from_millis(health.timeout_ms())).await {
            Some(true) => bad = 0,
            Some(false) => bad += 1,
            None => {}
        }
    }
    format!("it was not healthy {bad} times in a row")
}

struct Prober<'a> {
    sandbox: &'a Arc<SandboxShared>,
    spec: &'a ServiceSpec,
}

impl Prober<'_> {
    /// Looks once. `None`: that could not be seen, as the sandbox does not run or stood still meanwhile.
    async fn attempt(&self, look: &Look<'_>, at_most: Duration) -> Option<bool> {
        let sandbox = self.sandbox;
        if sandbox.state() != SandboxState::Running || sandbox.freezer.is_frozen() {
            return None;
        }
        let (boot, stood) = (sandbox.boot(), sandbox.freezer.stood_still());
        let client = sandbox.guest.borrow().as_ref()?.client.clone();
        let (driver, id) = (Arc::clone(sandbox.driver()), sandbox.id.clone());
        let inside = Inside { driver, client, id, spec: sandbox.record().spec };
        let seen = tokio::time::timeout(at_most + KILLED, inside.look(Some(self.spec), look, at_most)).await;
        if boot.is_cancelled() || sandbox.freezer.is_frozen() || sandbox.freezer.stood_still() != stood {
            return None;
        }
        match seen {
            Ok(seen) => seen,
            Err(_) => Some(false),
        }
    }
}

/// The inside of a sandbox, with or without an owner.
pub(crate) struct Inside {
    pub(crate) driver: Arc<dyn Isolation>,
    pub(crate) client: GuestClient,
    pub(crate) id: SandboxId,
    pub(crate) spec: SandboxSpec,
}

impl Inside {
    /// Looks once; commands run as `service` does, or else as everything in the sandbox. `None`: the guest does not answer.
    pub(crate) async fn look(
        &self,
        service: Option<&ServiceSpec>,
        look: &Look<'_>,
        at_most: Duration,
    ) -> Option<bool> {
        match look {
            Look::Command(command) => {
                let mut draft = ExecDraft::new(command.to_command());
                if let Some(ServiceSpec { env, cwd, user, .. }) = service.cloned() {
                    draft = ExecDraft { env, cwd, user, ..draft };
                }
                // A command that cannot be started does not succeed; what else goes wrong is told by the connection.
                let (driver, client) = (Arc::clone(&self.driver), self.client.clone());
                let (id, spec) = (self.id.clone(), self.spec.clone());
                // A task of its own: the caller may stop waiting, and the command must end all the same.
                let command =
                    tokio::spawn(
                        async move { run_to_end(&*driver, &client, &id, &spec, draft, at_most).await },
                    );
                match command.await {
                    Ok(Ok(code)) => Some(code == Some(0)),
                    Ok(Err(error)) if error.code == Code::GuestUnavailable => None,
                    Ok(Err(_)) => Some(false),
                    Err(_) => None,
                }
            }
            Look::Port(port) => match self.client.ports().await {
                Ok(ports) => Some(ports.contains(port)),
                Err(error) => unseen(&error),
            },
            Look::Http(port, path) => {
                match tokio::time::timeout(at_most, answers(&self.client, *port, path)).await {
                    Ok(Ok(good)) => Some(good),
                    Ok(Err(error)) => unseen(&error),
                    Err(_) => Some(false),
                }
            }
        }
    }
}

/// What a failed look means: a guest that says no has looked.
const fn unseen(error: &GuestError) -> Option<bool> {
    match error {
        GuestError::Failure { .. } => Some(false),
        GuestError::Closed
        | GuestError::Timeout
        | GuestError::StoodStill
        | GuestError::NoRoom
        | GuestError::Protocol(_) => None,
    }
}

/// Whether a `GET` is answered with a status from 200 to 399.
async fn answers(client: &GuestClient, port: u16, path: &str) -> Result<bool, GuestError> {
    let mut stream = client.dial(port).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUser-Agent: atoll\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    if stream.write_all(request.as_bytes()).await.is_err() {
        return Ok(false);
    }
    let mut line = Vec::with_capacity(STATUS_LINE_MAX_BYTES);
    while line.len() < STATUS_LINE_MAX_BYTES && !line.contains(&b'\n') {
        match stream.read_buf(&mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    Ok(is_good(&line))
}

/// Whether the first line of an HTTP answer has a status from 200 to 399.
fn is_good(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"HTTP/1.0 ").or_else(|| line.strip_prefix(b"HTTP/1.1 ")) else {
        return false;
    };
    matches!(rest, [b'2' | b'3', b'0'..=b'9', b'0'..=b'9', after, ..] if after.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        for good in ["HTTP/1.1 200 OK\r\n", "HTTP/1.0 302 Found\r\n", "HTTP/1.1 204\r\n"] {
            assert!(is_good(good.as_bytes()), "{good}");
        }
        for bad in [
            "HTTP/1.1 404 Not Found\r\n",
            "HTTP/1.1 500",
            "HTTP/2 200 \r\n",
            "SSH-2.0",
            "HTTP/1.1 2000 \r\n",
            "",
        ] {
            assert!(!is_good(bad.as_bytes()), "{bad}");
        }
    }
}
