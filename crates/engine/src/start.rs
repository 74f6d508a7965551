//! What a template starts in its sandboxes: the start command as a durable exec, then the wait until it is ready.
//!
//! The exec has an idempotency key of its own. So it runs once in the life of a sandbox, whoever begins it: the
//! creation, or the next start of the server when a crash came between.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::build::{CommandText, Ready};
use atoll_core::exec::Exit;
use atoll_core::spec::{ExecDraft, SandboxSpec};
use atoll_core::{Code, Error, Result};
use tokio::time::Instant;

use crate::engine::{Caller, Engine};
use crate::errors::guest_error;
use crate::sandbox::SandboxShared;

/// The start command of a sandbox has this idempotency key.
const START_KEY: &str = "atoll-start";
/// Longest that one attempt of a ready command may take.
const ATTEMPT_MAX_MS: u64 = 30_000;
/// A start command that ends with success within this, where nothing says when it is ready, has done its work.
const START_LOOK: Duration = Duration::ZERO;

impl Engine {
    /// Starts what a new sandbox is to start and waits until it is ready; deletes it when that fails. Goes on to
    /// its end when the caller stops waiting.
    ///
    /// # Errors
    /// [`Code::StartFailed`]. Nothing is left of the sandbox.
    pub(crate) async fn started(&self, sandbox: &Arc<SandboxShared>, caller: &Caller) -> Result<()> {
        let spec = sandbox.record().spec;
        if spec.start.is_none() && spec.ready.is_none() {
            return Ok(());
        }
        let (engine, sandbox, caller) = (self.clone(), Arc::clone(sandbox), caller.clone());
        let starting = async move {
            let outcome = tokio::select! {
                biased;
                outcome = engine.start_sandbox(&sandbox, &caller) => outcome,
                // It lives on and is taken up at the next start.
                () = engine.inner.shutdown.cancelled() => {
                    return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
                }
            };
            if outcome.is_err()
                && let Err(error) = engine.delete_sandbox(sandbox.id.as_str()).await
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
        let id = sandbox.id.as_str();
        let exec = match start {
            Some(command) => Some(self.begin(id, &command, caller).await?),
            None => None,
        };
        fail::fail_point!("engine.start.begun");
        match ready {
            Some(ready) => self.wait_ready(id, exec.as_deref(), &ready, caller).await,
            None => Ok(()),
        }
    }

    /// Begins again what a crash may have kept from beginning.
    pub(crate) fn start_after_crash(&self, sandbox: &Arc<SandboxShared>) {
        let Some(command) = sandbox.record().spec.start else { return };
        let (engine, id) = (self.clone(), sandbox.id.clone());
        self.inner.tracker.spawn(async move {
            if let Err(error) = engine.begin(id.as_str(), &command, &Caller::default()).await {
                tracing::warn!(sandbox = %id, %error, "the start command could not be begun");
            }
        });
    }

    async fn begin(&self, sandbox: &str, command: &CommandText, caller: &Caller) -> Result<String> {
        let draft =
            ExecDraft { idempotency_key: Some(START_KEY.to_owned()), ..ExecDraft::new(command.to_command()) };
        let view = self
            .create_exec(sandbox, draft, caller)
            .await
            .map_err(|error| Error { message: format!("the start command: {}", error.message), ..error })?;
        let exec = view.record.id.to_string();
        match self.wait_exec(sandbox, &exec, START_LOOK).await?.record.exit {
            Some(exit) if exit.code != Some(0) => Err(ended(sandbox, &exec, &exit)),
            _ => Ok(exec),
        }
    }

    async fn wait_ready(
        &self,
        sandbox: &str,
        exec: Option<&str>,
        ready: &Ready,
        caller: &Caller,
    ) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(ready.timeout_ms());
        let interval = Duration::from_millis(ready.interval_ms());
        loop {
            let attempt = self.is_ready(sandbox, ready, caller);
            match tokio::time::timeout_at(deadline, attempt).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(error)) => return Err(error),
            }
            if let Some(exec) = exec
                && let Some(exit) = self.exec(sandbox, exec).await?.record.exit
                && exit.code != Some(0)
            {
                return Err(ended(sandbox, exec, &exit));
            }
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

    async fn is_ready(&self, sandbox: &str, ready: &Ready, caller: &Caller) -> Result<bool> {
        if let Some(port) = ready.port {
            let lease = self.guest(sandbox).await?;
            return Ok(lease.ports().await.map_err(guest_error)?.contains(&port));
        }
        let Some(command) = &ready.command else { return Ok(true) };
        let draft = ExecDraft { timeout_ms: Some(ATTEMPT_MAX_MS), ..ExecDraft::new(command.to_command()) };
        let view = self.create_exec(sandbox, draft, caller).await?;
        let wait = Duration::from_millis(ATTEMPT_MAX_MS);
        let ended = self.wait_exec(sandbox, view.record.id.as_str(), wait).await?;
        Ok(ended.record.exit.is_some_and(|exit| exit.code == Some(0)))
    }
}

fn ended(sandbox: &str, exec: &str, exit: &Exit) -> Error {
    let code = exit.code.map_or_else(|| "without a code".to_owned(), |code| format!("with code {code}"));
    tracing::info!(sandbox, exec, %code, "a start command ended");
    Error::new(Code::StartFailed, format!("the start command ended {code}"))
        .hint("run it by hand in a sandbox made without the template's start command")
}
