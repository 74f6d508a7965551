//! What a template starts in its sandboxes: the start command as a durable exec, then the wait until it is ready, and then its
//! services.
//!
//! The exec has an idempotency key of its own for each boot of the sandbox. So it runs once in each, whoever begins
//! it: the creation, the fork, the pool that had it waiting, the wake or rollback that made a new boot, or the next
//! start of the server when a crash came between. It is part of the sandbox, not a use of it: a sandbox in which
//! nothing else runs is idle.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::build::{CommandText, Ready};
use atoll_core::id::SandboxId;
use atoll_core::spec::{ExecDraft, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_guest_protocol::messages::Exited;
use atoll_isolation::Isolation;
use atoll_store::SandboxRecord;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::authorize::Caller;
use crate::engine::{Engine, Inner};
use crate::errors::guest_error;
use crate::exec::{self, Ahead, ExecView, OutputEvent};
use crate::log::Piece;
use crate::sandbox::SandboxShared;
use crate::service::Declared;

/// The start command's idempotency key begins with this; the boot follows.
const START_KEY: &str = "atoll-start-";
/// Longest that one attempt of a ready command may take.
const ATTEMPT_MAX_MS: u64 = 30_000;
/// A start command that ends with success within this, where nothing says when it is ready, has done its work.
const START_LOOK: Duration = Duration::ZERO;

/// Most lines, and bytes, of what the start command wrote that an error shows.
const SAID_MAX_LINES: usize = 20;
const SAID_MAX_BYTES: usize = 4096;

/// How the name of a boot ends that went on from a snapshot's memory: what the template starts runs in it already, as
/// no exec of it.
const FROM_MEMORY: &str = "-memory";

/// A name for a boot that goes on from memory.
pub(crate) fn boot_from_memory() -> Result<String> {
    Ok(format!("{}{FROM_MEMORY}", Inner::new_boot_id()?))
}

/// The idempotency key of the start command in a boot.
pub(crate) fn start_key(boot: &str) -> String {
    format!("{START_KEY}{boot}")
}

/// Whether an exec is the start command.
pub(crate) fn is_start_key(key: &str) -> bool {
    key.starts_with(START_KEY)
}

/// The draft of one attempt of a ready command.
fn attempt_draft(command: &CommandText) -> ExecDraft {
    ExecDraft { timeout_ms: Some(ATTEMPT_MAX_MS), ..ExecDraft::new(command.to_command()) }
}

/// A sandbox whose start is waited for.
trait Starting: Sync {
    /// Looks once.
    fn is_ready(&self, ready: &Ready) -> impl Future<Output = Result<bool>> + Send;

    /// Code with which the start command ended, if it has; `None` inside when there is none.
    fn ended(&self) -> impl Future<Output = Result<Option<Option<i32>>>> + Send;
}

/// Looks until it is ready.
async fn wait_ready(starting: &impl Starting, ready: &Ready) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(ready.timeout_ms());
    let interval = Duration::from_millis(ready.interval_ms());
    loop {
        match tokio::time::timeout_at(deadline, starting.is_ready(ready)).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) | Err(_) => {}
            Ok(Err(error)) => return Err(error),
        }
        check_ended(starting).await?;
        if Instant::now() + interval >= deadline {
            let seconds = ready.timeout_ms().div_ceil(1000);
            return Err(Error::new(
                Code::StartFailed,
                format!("the sandbox was not ready within {seconds} seconds"),
            )
            .hint("look at what the start command writes, or give it more time (ready.timeout_ms)"));
        }
        tokio::time::sleep(interval).await;
    }
}

/// A start command that ended in failure will not become ready.
async fn check_ended(starting: &impl Starting) -> Result<()> {
    match starting.ended().await? {
        None | Some(Some(0)) => Ok(()),
        Some(code) => {
            let code = code.map_or_else(|| "without a code".to_owned(), |code| format!("with code {code}"));
            Err(Error::new(Code::StartFailed, format!("the start command ended {code}"))
                .hint("run it by hand in a sandbox made without the template's start command"))
        }
    }
}

// === a sandbox that somebody asked for ===

/// A sandbox with an owner.
struct Owned<'a> {
    engine: &'a Engine,
    sandbox: &'a SandboxId,
    caller: &'a Caller,
    exec: Option<String>,
}

impl Starting for Owned<'_> {
    async fn is_ready(&self, ready: &Ready) -> Result<bool> {
        let (engine, sandbox) = (self.engine, self.sandbox);
        if let Some(port) = ready.port {
            let lease = engine.guest(sandbox).await?;
            return Ok(lease.ports().await.map_err(guest_error)?.contains(&port));
        }
        let Some(command) = &ready.command else { return Ok(true) };
        let view = engine.create_exec(sandbox, attempt_draft(command), self.caller).await?;
        let wait = Duration::from_millis(ATTEMPT_MAX_MS);
        let ended = engine.wait_exec(sandbox, view.record.id.as_str(), wait).await?;
        Ok(ended.record.exit.is_some_and(|exit| exit.code == Some(0)))
    }

    async fn ended(&self) -> Result<Option<Option<i32>>> {
        let Some(exec) = &self.exec else { return Ok(None) };
        let view = self.engine.wait_exec(self.sandbox, exec, START_LOOK).await?;
        Ok(view.record.exit.map(|exit| exit.code))
    }
}

impl Engine {
    /// Starts what a new sandbox is to start and waits until it is ready; deletes it when that fails. Goes on to
    /// its end when the caller stops waiting.
    ///
    /// # Errors
    /// [`Code::StartFailed`]. Nothing is left of the sandbox.
    pub(crate) async fn started(
        &self,
        sandbox: &Arc<SandboxShared>,
        services: Declared,
        caller: &Caller,
    ) -> Result<()> {
        let SandboxRecord { spec, boot_id, .. } = sandbox.record();
        let runs = sandbox.was_started_ahead() || boot_id.ends_with(FROM_MEMORY);
        let starts = (spec.start.is_some() || spec.ready.is_some()) && !runs;
        if !starts && services.is_empty() {
            return Ok(());
        }
        let (engine, sandbox, caller) = (self.clone(), Arc::clone(sandbox), caller.clone());
        let starting = async move {
            let whole = async {
                if starts {
                    engine.start_sandbox(&sandbox, &caller).await?;
                }
                services.begin(&engine, &sandbox).await
            };
            let outcome = tokio::select! {
                biased;
                outcome = engine.inner.disk.unless_full(whole) => outcome,
                // It lives on and is taken up at the next start.
                () = engine.inner.shutdown.cancelled() => {
                    return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
                }
            };
            if outcome.is_err()
                && let Err(error) = engine.delete_sandbox(&sandbox.id).await
                && error.code != Code::SandboxNotFound
            {
                tracing::error!(sandbox = %sandbox.id, %error, "a sandbox that did not start could not be deleted");
            }
            outcome
        };
        let started = self.inner.tracker.spawn(starting).await;
        started.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "starting broke off")))
    }

    /// Runs the start command of a sandbox, if it has one, and waits until it is ready.
    ///
    /// # Errors
    /// [`Code::StartFailed`].
    async fn start_sandbox(&self, sandbox: &Arc<SandboxShared>, caller: &Caller) -> Result<()> {
        let SandboxSpec { start, ready, .. } = sandbox.record().spec;
        let id = &sandbox.id;
        let mut owned = Owned { engine: self, sandbox: id, caller, exec: None };
        if let Some(command) = start {
            owned.exec = Some(self.begin(id, &command, caller).await?);
        }
        let outcome = self.wait_started(&owned, ready).await.map_err(|error| match error.code {
            // Its time was over, or somebody deleted it.
            Code::SandboxNotFound => {
                Error::new(Code::StartFailed, "the sandbox was deleted before it was ready")
            }
            _ => error,
        });
        match (outcome, &owned.exec) {
            (Err(error), Some(exec)) if error.code == Code::StartFailed => {
                Err(self.explain(id, "the start command", exec, error).await)
            }
            (outcome, _) => outcome,
        }
    }

    async fn wait_started(&self, owned: &Owned<'_>, ready: Option<Ready>) -> Result<()> {
        check_ended(owned).await?;
        atoll_failpoint::fail_point!("engine.start.begun");
        match ready {
            Some(ready) => wait_ready(owned, &ready).await,
            None => Ok(()),
        }
    }

    /// What is known of a failed start once its sandbox is gone: what `what`, its exec, wrote last.
    pub(crate) async fn explain(&self, sandbox: &SandboxId, what: &str, exec: &str, error: Error) -> Error {
        match self.said_last(sandbox, exec).await {
            Ok(said) if !said.is_empty() => error.hint(format!("{what} wrote last:\n{said}")),
            Ok(_) => {
                let hint = error.hint.as_deref().map_or_else(String::new, |hint| format!("; {hint}"));
                error.hint(format!("{what} wrote nothing{hint}"))
            }
            Err(_gone) => error,
        }
    }

    pub(crate) async fn said_last(&self, sandbox: &SandboxId, exec: &str) -> Result<String> {
        let end = self.wait_exec(sandbox, exec, START_LOOK).await?.extent.end;
        let mut reader = self.output(sandbox, exec, end.saturating_sub(SAID_MAX_BYTES as u64), false).await?;
        let mut said = Vec::new();
        while said.len() < SAID_MAX_BYTES
            && let Some(OutputEvent::Piece(piece)) = reader.next_now(SAID_MAX_BYTES).await?
        {
            if let Piece::Output { bytes, .. } = piece {
                said.extend_from_slice(&bytes);
            }
        }
        let text = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        Ok(lines[lines.len().saturating_sub(SAID_MAX_LINES)..].join("\n"))
    }

    /// Begins in a boot what is not waited for: after a wake, a rollback, or a crash that may have kept it from
    /// beginning.
    pub(crate) fn start_in_boot(&self, sandbox: &Arc<SandboxShared>) {
        let SandboxRecord { spec, boot_id, .. } = sandbox.record();
        let Some(command) = spec.start.filter(|_| !boot_id.ends_with(FROM_MEMORY)) else { return };
        let (engine, id) = (self.clone(), sandbox.id.clone());
        self.inner.tracker.spawn(async move {
            if let Err(error) = engine.begin(&id, &command, &Caller::system()).await
                && error.code != Code::SandboxNotFound
            {
                tracing::warn!(sandbox = %id, %error, "the start command could not be begun");
            }
        });
    }

    /// The exec of what a sandbox's template started in its present boot. `None` where there is no such exec: nothing is
    /// started, or it runs on from memory.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    pub async fn start_exec(&self, sandbox: &SandboxId) -> Result<Option<ExecView>> {
        let boot = self.sandbox(sandbox)?.boot_id;
        match self.exec_by_key(sandbox, &start_key(&boot)).await {
            Err(error) if error.code == Code::ExecNotFound => Ok(None),
            found => found.map(Some),
        }
    }

    async fn begin(&self, sandbox: &SandboxId, command: &CommandText, caller: &Caller) -> Result<String> {
        let boot = self.sandbox(sandbox)?.boot_id;
        let draft =
            ExecDraft { idempotency_key: Some(start_key(&boot)), ..ExecDraft::new(command.to_command()) };
        let view = self.create_exec(sandbox, draft, caller).await.map_err(of_start)?;
        Ok(view.record.id.to_string())
    }
}

fn of_start(error: Error) -> Error {
    Error { message: format!("the start command: {}", error.message), ..error }
}

// === a sandbox that waits in a pool ===

/// Whether a pool can start what belongs to a sandbox before anybody asks for it. Not where secrets are put into
/// its requests: whose they are is known with its owner.
pub(crate) fn starts_ahead(spec: &SandboxSpec) -> bool {
    (spec.start.is_some() || spec.ready.is_some()) && spec.egress.inject.is_empty()
}

/// A member of a pool.
struct Waiting<'a> {
    driver: &'a dyn Isolation,
    client: &'a GuestClient,
    id: &'a SandboxId,
    spec: &'a SandboxSpec,
    exited: Option<watch::Receiver<Option<Exited>>>,
}

impl Starting for Waiting<'_> {
    async fn is_ready(&self, ready: &Ready) -> Result<bool> {
        if let Some(port) = ready.port {
            return Ok(self.client.ports().await.map_err(guest_error)?.contains(&port));
        }
        let Some(command) = &ready.command else { return Ok(true) };
        let at_most = Duration::from_millis(ATTEMPT_MAX_MS);
        let draft = attempt_draft(command);
        Ok(exec::run_to_end(self.driver, self.client, self.id, self.spec, draft, at_most).await? == Some(0))
    }

    async fn ended(&self) -> Result<Option<Option<i32>>> {
        Ok(self.exited.as_ref().and_then(|exited| exited.borrow().as_ref().map(|exited| exited.code)))
    }
}

impl Inner {
    /// Starts in a member of a pool what its template starts, and waits until it is ready.
    ///
    /// # Errors
    /// [`Code::StartFailed`]; the member is to be removed then.
    pub(crate) async fn start_ahead(
        &self,
        client: &GuestClient,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Option<Ahead>> {
        let ahead = match &spec.start {
            Some(command) => {
                let begun =
                    exec::begin_ahead(self, client, id, spec, ExecDraft::new(command.to_command())).await;
                Some(begun.map_err(of_start)?)
            }
            None => None,
        };
        let driver = self.driver(spec.isolation)?.as_ref();
        let waiting = Waiting { driver, client, id, spec, exited: ahead.as_ref().map(Ahead::exited) };
        if let Some(ready) = &spec.ready {
            wait_ready(&waiting, ready).await?;
        }
        check_ended(&waiting).await?;
        Ok(ahead)
    }
}
