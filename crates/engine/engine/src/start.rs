//! What a template starts in its sandboxes: a [service](crate::service) that every sandbox of it begins with, called
//! [`START_SERVICE`], and, without one, only the wait until the sandbox is ready.
//!
//! Members of a pool have no owner yet, and no rows: there the command is an exec without one, which the service takes
//! over as its first run when the member is claimed. A template's memory has it in the same way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::OutputStream;
use atoll_core::id::{SandboxId, ServiceId};
use atoll_core::sandbox::SandboxState;
use atoll_core::service::{Look, START_SERVICE, ServiceReady, ServiceSpec, ServiceStatus};
use atoll_core::spec::{ExecDraft, SandboxSpec};
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_guest_protocol::messages::Exited;
use atoll_store::{SandboxRecord, ServiceRecord};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::boxed;
use crate::clock::random;
use crate::engine::{Engine, Inner};
use crate::errors::store_error;
use crate::exec::{self, Ahead, ExecView, OutputEvent};
use crate::log::Piece;
use crate::sandbox::SandboxShared;
use crate::service::{ATTEMPT_MAX, BEGIN_PATIENCE, Declared, Inside, run_key};

/// Most lines, and bytes, of what a command wrote that an error shows.
const SAID_MAX_LINES: usize = 20;
const SAID_MAX_BYTES: usize = 4096;

/// The service that a sandbox's start command is; `None` where nothing is started.
pub(crate) fn start_service(spec: &SandboxSpec) -> Option<ServiceSpec> {
    let command = spec.start.clone()?;
    Some(ServiceSpec::of_start(command, spec.ready.clone(), spec.restart))
}

/// How long something had to become ready, in words.
pub(crate) fn in_words(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{} seconds", ms / 1000) } else { format!("{ms} ms") }
}

/// How a command ended, in words.
pub(crate) fn ended_how(code: Option<i32>) -> String {
    code.map_or_else(|| "ended without a code".to_owned(), |code| format!("ended with code {code}"))
}

// === a sandbox that a caller asked for ===

impl Engine {
    /// Starts what a new sandbox begins with and waits until it is ready; deletes it when that fails. Goes on to
    /// its end when the caller stops waiting.
    ///
    /// # Errors
    /// [`Code::StartFailed`]. Nothing is left of the sandbox.
    pub(crate) async fn started(&self, sandbox: &Arc<SandboxShared>, services: Declared) -> Result<()> {
        let SandboxSpec { start, ready, .. } = sandbox.record().spec;
        let runs = sandbox.was_started_ahead() || services.go_on_from_memory();
        let awaited = ready.filter(|_| start.is_none() && !runs).map(ServiceReady::from);
        if awaited.is_none() && services.is_empty() {
            return Ok(());
        }
        let (engine, sandbox) = (self.clone(), Arc::clone(sandbox));
        let starting = async move {
            let whole = async {
                if let Some(ready) = awaited {
                    wait_ready(&sandbox, &ready).await?;
                }
                services.begin(&engine, &sandbox).await
            };
            let outcome = tokio::select! {
                biased;
                outcome = engine.inner.disk.unless_full(whole) => outcome,
                () = engine.inner.shutdown.cancelled() => {
                    Err(Error::new(Code::ShuttingDown, "the server is shutting down"))
                }
            };
            if let Err(error) = &outcome {
                engine.give_up(&sandbox.id, error, "did not start").await;
            }
            outcome
        };
        let started = self.inner.tracker.spawn(starting).await;
        started.unwrap_or_else(|_panicked| Err(Error::new(Code::Internal, "starting broke off")))
    }

    /// Deletes a sandbox of which its caller was told nothing but this error; `why` is for the log. When the server is
    /// shutting down the sandbox lives on and is taken up at the next start, and a request with the same key gets it.
    pub(crate) async fn give_up(&self, sandbox: &SandboxId, error: &Error, why: &str) {
        if error.code == Code::ShuttingDown {
            return;
        }
        if let Err(error) = self.delete_sandbox(sandbox).await
            && error.code != Code::SandboxNotFound
        {
            tracing::error!(sandbox = %sandbox, %error, "a sandbox that {why} could not be deleted");
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

    /// The last lines that an exec wrote.
    pub(crate) async fn said_last(&self, sandbox: &SandboxId, exec: &str) -> Result<String> {
        self.written_last(sandbox, exec, None).await
    }

    /// Those of its last lines that it wrote to its standard error.
    pub(crate) async fn complained_last(&self, sandbox: &SandboxId, exec: &str) -> Result<String> {
        self.written_last(sandbox, exec, Some(OutputStream::Stderr)).await
    }

    async fn written_last(
        &self,
        sandbox: &SandboxId,
        exec: &str,
        only: Option<OutputStream>,
    ) -> Result<String> {
        let end = self.wait_exec(sandbox, exec, Duration::ZERO).await?.extent.end;
        let mut reader = self.output(sandbox, exec, end.saturating_sub(SAID_MAX_BYTES as u64), false).await?;
        let mut said = Vec::new();
        while said.len() < SAID_MAX_BYTES
            && let Some(OutputEvent::Piece(piece)) = reader.next_now(SAID_MAX_BYTES).await?
        {
            if let Piece::Output { bytes, stream, .. } = piece
                && only.is_none_or(|only| only == stream)
            {
                said.extend_from_slice(&bytes);
            }
        }
        let text = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        Ok(lines[lines.len().saturating_sub(SAID_MAX_LINES)..].join("\n"))
    }

    /// The exec of what a sandbox's template started last: in a sandbox that has just been woken, waits until its keeper has
    /// begun the run of this boot. `None` where there is no such exec: nothing is started, or it runs on from memory.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn start_exec(&self, sandbox: &SandboxId) -> Result<Option<ExecView>> {
        let shared = self.inner.sandbox(sandbox)?;
        let Ok(service) = shared.services.find(START_SERVICE) else { return Ok(None) };
        let (mut views, mut records) = (service.subscribe(), shared.watch_record());
        let deadline = Instant::now() + BEGIN_PATIENCE;
        loop {
            let status = views.borrow_and_update().record.status.clone();
            let record = Arc::clone(&records.borrow_and_update());
            let last = match shared.services.start_key() {
                Some(key) => self.exec_by_key(sandbox, &key).await.map(Some),
                None => Ok(None),
            };
            let last = match last {
                Err(error) if error.code == Code::ExecNotFound => None,
                last => last?,
            };
            let runs = last.as_ref().is_some_and(|exec| !exec.record.state.is_final());
            let rests =
                status.stopped || status.current().is_none() && status.boot.as_ref() == Some(&record.boot_id);
            if runs || rests || record.state != SandboxState::Running {
                return Ok(last);
            }
            tokio::select! {
                changed = views.changed() => if changed.is_err() { return Ok(last) },
                changed = records.changed() => if changed.is_err() { return Ok(last) },
                () = tokio::time::sleep_until(deadline) => return Ok(last),
            }
        }
    }
}

/// Waits until a sandbox in which nothing is started is ready.
async fn wait_ready(sandbox: &Arc<SandboxShared>, ready: &ServiceReady) -> Result<()> {
    let look = ready.look()?;
    let began = Instant::now();
    let deadline = began + Duration::from_millis(ready.timeout_ms());
    while Instant::now() < deadline {
        if sandbox.dead.is_cancelled() {
            return Err(Error::new(Code::StartFailed, "the sandbox was deleted before it was ready"));
        }
        let client = sandbox.guest.borrow().as_ref().map(|link| link.client.clone());
        if let Some(client) = client {
            let (driver, id) = (Arc::clone(sandbox.driver()), sandbox.id.clone());
            let inside = Inside { driver, client, id, spec: sandbox.record().spec };
            let at_most = ATTEMPT_MAX.min(deadline.saturating_duration_since(Instant::now()));
            if inside.look(None, &look, at_most).await == Some(true) {
                return Ok(());
            }
        }
        tokio::time::sleep(ready.pause(began.elapsed())).await;
    }
    Err(not_ready(ready))
}

fn not_ready(ready: &ServiceReady) -> Error {
    let within = in_words(ready.timeout_ms());
    Error::new(Code::StartFailed, format!("the sandbox was not ready within {within}"))
        .hint("look at what the start command writes, or give it more time (ready.timeout_ms)")
}

// === a sandbox that waits in a pool ===

/// Whether a pool can start what belongs to a sandbox before a caller asks for it. Not where secrets are put into its
/// requests: whose they are is known with its owner.
pub(crate) fn starts_ahead(spec: &SandboxSpec) -> bool {
    (spec.start.is_some() || spec.ready.is_some()) && spec.egress.inject.is_empty()
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
                let draft = ExecDraft::new(command.to_command());
                let begun = exec::begin_ahead(self, client, id, spec, draft).await;
                let of_start = |error: Error| Error {
                    message: format!("the start command: {}", error.message),
                    ..error
                };
                Some(begun.map_err(of_start)?)
            }
            None => None,
        };
        let exited = ahead.as_ref().map(Ahead::exited);
        if let Some(ready) = spec.ready.clone().map(ServiceReady::from) {
            let driver = Arc::clone(self.driver(spec.isolation)?);
            let inside = Inside { driver, client: client.clone(), id: id.clone(), spec: spec.clone() };
            wait_ready_ahead(&inside, &ready, exited.as_ref()).await?;
        }
        check_ended(exited.as_ref())?;
        Ok(ahead)
    }
}

async fn wait_ready_ahead(
    inside: &Inside,
    ready: &ServiceReady,
    exited: Option<&watch::Receiver<Option<Exited>>>,
) -> Result<()> {
    let look: Look<'_> = ready.look()?;
    let began = Instant::now();
    let deadline = began + Duration::from_millis(ready.timeout_ms());
    while Instant::now() < deadline {
        let at_most = ATTEMPT_MAX.min(deadline.saturating_duration_since(Instant::now()));
        match inside.look(None, &look, at_most).await {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => return Err(Error::new(Code::GuestUnavailable, "the sandbox does not answer")),
        }
        check_ended(exited)?;
        tokio::time::sleep(ready.pause(began.elapsed())).await;
    }
    Err(not_ready(ready))
}

/// A start command that ended in failure will not become ready.
fn check_ended(exited: Option<&watch::Receiver<Option<Exited>>>) -> Result<()> {
    match exited.and_then(|exited| exited.borrow().as_ref().map(|exited| exited.code)) {
        None | Some(Some(0)) => Ok(()),
        Some(code) => Err(Error::new(Code::StartFailed, format!("the start command {}", ended_how(code)))
            .hint("run it by hand in a sandbox made without the template's start command")),
    }
}

// === sandboxes of before ===

/// The start command of a sandbox was an exec with this key, and its boot's name, when it was no service.
const KEY_OF_BEFORE: &str = "atoll-start-";
/// How the name of a boot ended then in which it went on from memory, as no exec.
const MEMORY_OF_BEFORE: &str = "-memory";

impl Engine {
    /// Records the start commands of sandboxes that an earlier version of Atoll made as services, each with the exec
    /// that runs as its run. Before anything is taken up.
    pub(crate) async fn adopt_starts(&self, sandboxes: &[SandboxRecord]) -> Result<()> {
        let services = self.inner.store.list_services().await.map_err(store_error)?;
        let have: BTreeSet<&SandboxId> = services
            .iter()
            .filter(|service| service.name == START_SERVICE)
            .map(|service| &service.sandbox)
            .collect();
        for sandbox in sandboxes.iter().filter(|sandbox| !have.contains(&sandbox.id)) {
            let gone = matches!(
                sandbox.state,
                SandboxState::Creating | SandboxState::Deleting | SandboxState::Failed
            );
            let Some(spec) = start_service(&sandbox.spec).filter(|_| !gone) else { continue };
            let mut service = ServiceRecord {
                id: ServiceId::from_parts(sandbox.created_ms, random()?),
                sandbox: sandbox.id.clone(),
                name: START_SERVICE.to_owned(),
                spec,
                status: ServiceStatus::default(),
                created_ms: sandbox.created_ms,
            };
            let boot = &sandbox.boot_id;
            if boot.ends_with(MEMORY_OF_BEFORE) {
                service.status.go_on_from_memory(boot);
            } else {
                service.status.begin_run(boot);
            }
            let key = run_key(&service.id, 1);
            let before = format!("{KEY_OF_BEFORE}{boot}");
            let adopted = self.inner.store.adopt_start(&service, &before, &key).await;
            adopted.map_err(store_error)?;
            tracing::info!(sandbox = %sandbox.id, "its start command is a service now");
        }
        Ok(())
    }
}
