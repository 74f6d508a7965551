//! What callers can do with execs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::exec::{ExecState, ExitReason};
use atoll_core::id::{ExecId, KeyId, SandboxId};
use atoll_core::limits::{EXECS_RUNNING_MAX_COUNT, STDIN_CHUNK_MAX_BYTES};
use atoll_core::spec::{ExecDraft, ExecSpec, IdempotencyKey, SandboxSpec, TtySize};
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestError;
use atoll_guest_protocol::messages;
use atoll_guest_protocol::messages::{ResizeExec, SignalExec};
use atoll_store::ExecRecord;
use bytes::Bytes;
use serde_json::Value;

use crate::authorize::Caller;
use crate::boxed;
use crate::engine::{Engine, Inner};
use crate::errors::{guest_error, store_error};
use crate::log::{self, Extent};
use crate::sandbox::SandboxShared;

use super::disk::host_error;
use super::output::OutputReader;
use super::session;
use super::shared::{Attachment, ExecShared, ExecView, Progress, Started};

/// How often a creation is tried when another exec with its key vanishes meanwhile.
const CREATE_TRIES_MAX_COUNT: u32 = 8;

/// An exec as it was found: its session runs here, or it has ended.
enum Found {
    Live(Arc<ExecShared>),
    Ended(Box<ExecRecord>),
}

impl Engine {
    /// Runs a command. Answers when it runs (or could not be started, which counts as exit 126 or 127).
    ///
    /// # Errors
    /// An error of the draft, the sandbox, the working directory or the user; [`Code::IdempotencyMismatch`];
    /// [`Code::LimitExceeded`]. Then nothing ran.
    #[boxed]
    pub async fn create_exec(
        &self,
        sandbox: &SandboxId,
        draft: ExecDraft,
        caller: &Caller,
    ) -> Result<ExecView> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let _using = sandbox.usable().await?;
        let now = self.inner.now_ms();
        let mut record = new_record(&sandbox.id, &sandbox.published().spec, draft, caller.key(), now)?;
        for _ in 0..CREATE_TRIES_MAX_COUNT {
            record.pauses_before_ms = sandbox.published().pauses_ms;
            if let Some(view) = self.try_exec(&sandbox, record.clone()).await? {
                return Ok(view);
            }
        }
        Err(Error::new(
            Code::GuestUnavailable,
            "execs with this idempotency key fail to start again and again",
        ))
    }

    /// `None`: an exec had the key, but failed to start meanwhile.
    async fn try_exec(&self, sandbox: &Arc<SandboxShared>, record: ExecRecord) -> Result<Option<ExecView>> {
        let digest = record.request_digest.clone();
        let exec = ExecShared::new(record, Extent::default(), None, &self.inner.clock);
        sandbox.enter_exec(&exec, EXECS_RUNNING_MAX_COUNT)?;
        session::spawn_new(&self.inner, sandbox, &exec);
        match sandbox.keep_awake(exec.wait_started()).await?? {
            Started::Yes => Ok(Some(exec.view())),
            // It was paused, and everything in it ended, before this could begin.
            Started::No(_) if exec.boot().is_cancelled() && !sandbox.dead.is_cancelled() => Ok(None),
            Started::No(error) => Err(error),
            Started::Existing(other) if other.request_digest == digest => {
                self.existing(sandbox, *other).await
            }
            Started::Existing(_) => Err(Error::new(
                Code::IdempotencyMismatch,
                "the idempotency key was used before with another command",
            )
            .hint("use a new key for a new command")),
        }
    }

    /// The exec that a repeated request means, once it has started.
    async fn existing(&self, sandbox: &SandboxShared, record: ExecRecord) -> Result<Option<ExecView>> {
        if let Some(live) = sandbox.live_exec(&record.id) {
            if let Started::No(error) = live.wait_started().await? {
                return Err(error);
            }
            return Ok(Some(live.view()));
        }
        match self.exec(&sandbox.id, record.id.as_str()).await {
            Err(error) if error.code == Code::ExecNotFound => {
                self.remove_orphan(sandbox, &record.id).await?;
                Ok(None)
            }
            view => view.map(Some),
        }
    }

    /// Removes the row of an exec that never came into being, and that could not be taken back when that was found:
    /// the database was away, or it had stored it and its answer was lost. Its idempotency key is free then.
    async fn remove_orphan(&self, sandbox: &SandboxShared, exec: &ExecId) -> Result<()> {
        // In this order: a session records the end before it leaves, and enters before its row is written.
        if sandbox.live_exec(exec).is_some() || sandbox.dead.is_cancelled() {
            return Ok(());
        }
        let stored = self.inner.store.exec(exec).await.map_err(store_error)?;
        // Sessions that let go because the server stops have no end either; the next process takes them up.
        if stored.is_none_or(|record| record.state.is_final()) || self.inner.shutdown.is_cancelled() {
            return Ok(());
        }
        tracing::warn!(%exec, "removing the row of an exec that never ran");
        self.inner.store.delete_exec(exec).await.map(drop).map_err(store_error)
    }

    /// An exec as it is now.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`] or [`Code::ExecNotFound`].
    #[boxed]
    pub async fn exec(&self, sandbox: &SandboxId, exec: &str) -> Result<ExecView> {
        let sandbox = self.inner.sandbox(sandbox)?;
        match self.find_exec(&sandbox, exec).await? {
            Found::Live(live) => Ok(live.view()),
            Found::Ended(record) => self.ended_view(*record).await,
        }
    }

    /// The execs of a sandbox that run now, in no particular order, but for what its template starts and services. Waits
    /// for those of one that is being taken up.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`].
    #[boxed]
    pub async fn running_execs(&self, sandbox: &SandboxId) -> Result<Vec<ExecView>> {
        let sandbox = self.inner.sandbox(sandbox)?;
        // After a restart their sessions may still have to be taken up.
        sandbox.settled().await;
        let execs = sandbox.commands();
        let views = execs.iter().map(|exec| exec.view());
        Ok(views.filter(|view| !view.record.state.is_final()).collect())
    }

    /// The exec of a sandbox that was made with this idempotency key, as it is now.
    ///
    /// # Errors
    /// [`Code::SandboxNotFound`] or [`Code::ExecNotFound`].
    #[boxed]
    pub async fn exec_by_key(&self, sandbox: &SandboxId, key: &IdempotencyKey) -> Result<ExecView> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let found = self.inner.store.exec_by_key(&sandbox.id, key).await.map_err(store_error)?;
        let record = found.ok_or_else(|| {
            Error::new(Code::ExecNotFound, "no exec was made with this idempotency key in this sandbox")
        })?;
        self.exec(&sandbox.id, record.id.as_str()).await
    }

    /// Waits until an exec has ended, at most `wait`; gives it as it is then.
    ///
    /// # Errors
    /// As [`Self::exec`].
    #[boxed]
    pub async fn wait_exec(&self, sandbox: &SandboxId, exec: &str, wait: Duration) -> Result<ExecView> {
        let sandbox = self.inner.sandbox(sandbox)?;
        match self.find_exec(&sandbox, exec).await? {
            Found::Live(live) => {
                let mut progress = live.progress.subscribe();
                let ended = progress.wait_for(Progress::is_over);
                // Whether it ended, the wait did, or the server stops: the view says how things are.
                drop(tokio::time::timeout(wait, ended).await);
                Ok(live.view())
            }
            Found::Ended(record) => self.ended_view(*record).await,
        }
    }

    /// Output from `offset` on. `attach` counts the reader as a client for `kill_on_disconnect` and
    /// `detach_timeout_ms`.
    ///
    /// # Errors
    /// As [`Self::exec`]; [`Code::OffsetOutOfRange`] when `offset` lies beyond the end.
    #[boxed]
    pub async fn output(
        &self,
        sandbox: &SandboxId,
        exec: &str,
        offset: u64,
        attach: bool,
    ) -> Result<OutputReader> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let sandbox_id = &sandbox.id;
        let reading = self.inner.logs.reading();
        let (reader, extent) = match self.find_exec(&sandbox, exec).await? {
            Found::Live(live) => {
                let dir = self.inner.log_dir(sandbox_id, live.id());
                let extent = live.view().extent;
                let draining = self.inner.draining.clone();
                let attachment = attach.then(|| Attachment::new(Arc::clone(&live), draining));
                (OutputReader::live(dir, offset, &live, attachment, reading), extent)
            }
            Found::Ended(record) => {
                let dir = self.inner.log_dir(sandbox_id, &record.id);
                let view = self.ended_view(*record).await?;
                let progress = Progress {
                    state: view.record.state,
                    pid: view.record.pid,
                    exit: view.record.exit,
                    ended_ms: view.record.ended_ms,
                    cpu_us: view.record.cpu_us,
                    extent: view.extent,
                    stopped: false,
                };
                (OutputReader::ended(dir, offset, progress, reading), view.extent)
            }
        };
        if offset > extent.end {
            return Err(Error::new(
                Code::OffsetOutOfRange,
                format!("offset {offset} lies beyond the end, which is {}", extent.end),
            )
            .hint("ask from the 'next_offset' of the last answer, or from 0"));
        }
        Ok(reader)
    }

    /// Where output begins that was written at a time (milliseconds since the epoch) or later; up to a second earlier.
    ///
    /// # Errors
    /// As [`Self::exec`].
    #[boxed]
    pub async fn output_since(&self, sandbox: &SandboxId, exec: &str, since_ms: u64) -> Result<u64> {
        let sandbox = self.inner.sandbox(sandbox)?;
        let view = match self.find_exec(&sandbox, exec).await? {
            Found::Live(live) => live.view(),
            Found::Ended(record) => self.ended_view(*record).await?,
        };
        let (dir, end) = (self.inner.log_dir(&sandbox.id, &view.record.id), view.extent.end);
        let found = tokio::task::spawn_blocking(move || log::offset_since(&dir, since_ms, end)).await;
        found.unwrap_or_else(|panic| Err(panic.into())).map_err(|error| host_error(&error))
    }

    /// All output, for the client that started the exec and must miss nothing: a command that says more than its log
    /// keeps waits until this client has read it. Counts as a client, as with [`Self::output`].
    ///
    /// # Errors
    /// As [`Self::exec`].
    #[boxed]
    pub async fn output_whole(&self, sandbox: &SandboxId, exec: &str) -> Result<OutputReader> {
        let reader = self.output(sandbox, exec, 0, true).await?;
        let sandbox = self.inner.sandbox(sandbox)?;
        Ok(match self.find_exec(&sandbox, exec).await? {
            Found::Live(live) => reader.holding(&live),
            Found::Ended(_) => reader,
        })
    }

    /// Writes standard input; returns when the guest has it. `close` ends it after these bytes.
    ///
    /// # Errors
    /// [`Code::ExecEnded`], [`Code::StdinClosed`], [`Code::TooLarge`], or what [`Self::guest`] gives.
    #[boxed]
    pub async fn write_stdin(
        &self,
        sandbox: &SandboxId,
        exec: &str,
        bytes: Bytes,
        close: bool,
    ) -> Result<u64> {
        self.write_stdin_by(None, sandbox, exec, bytes, close).await
    }

    /// The same, by a caller: the journal tells of input to a terminal with its author.
    ///
    /// # Errors
    /// As [`Self::write_stdin`].
    #[boxed]
    pub async fn write_stdin_by(
        &self,
        by: Option<&Caller>,
        sandbox: &SandboxId,
        exec: &str,
        bytes: Bytes,
        close: bool,
    ) -> Result<u64> {
        if bytes.len() > STDIN_CHUNK_MAX_BYTES {
            return Err(Error::new(Code::TooLarge, "more than 1 MiB of standard input in one call")
                .hint("send it in pieces"));
        }
        let live = self.running(sandbox, exec).await?;
        if !live.inserted().spec.stdin {
            return Err(Error::new(Code::StdinClosed, "the exec was created without standard input")
                .hint("create it with 'stdin': true"));
        }
        let size = bytes.len() as u64;
        let guest = self.guest(sandbox).await?;
        tokio::select! {
            written = guest.write_stdin(live.id().as_str(), bytes, close) => written.map_err(exec_error)?,
            () = guest.dead() => return Err(Error::new(Code::SandboxFailed, "the sandbox died")),
        }
        if live.inserted().spec.tty.is_some() {
            let by = by.and_then(Caller::key).map(ToString::to_string);
            let told = live.typed().add(by.as_deref(), size, self.inner.clock.instant());
            let trace = &self.inner.sandbox(sandbox)?.trace;
            told.into_iter().for_each(|(by, bytes)| trace.typed(live.inserted(), by, bytes));
        }
        Ok(size)
    }

    /// Sends a signal, given by name or number, to the process group or the whole tree.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], [`Code::ExecEnded`], or what [`Self::guest`] gives.
    #[boxed]
    pub async fn signal_exec(&self, sandbox: &SandboxId, exec: &str, signal: &str, tree: bool) -> Result<()> {
        let signal = super::signal::parse(signal)?;
        let live = self.running(sandbox, exec).await?;
        let request = SignalExec { exec_id: live.id().to_string(), signal, tree };
        self.guest(sandbox).await?.signal_exec(request).await.map_err(exec_error)
    }

    /// Changes the size of an exec's terminal.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`], [`Code::NotATerminal`], [`Code::ExecEnded`], or what [`Self::guest`] gives.
    #[boxed]
    pub async fn resize_exec(&self, sandbox: &SandboxId, exec: &str, size: TtySize) -> Result<()> {
        size.validate("size")?;
        let live = self.running(sandbox, exec).await?;
        if live.inserted().spec.tty.is_none() {
            return Err(Error::new(Code::NotATerminal, "the exec does not run on a terminal"));
        }
        let size = messages::TtySize { cols: size.cols.into(), rows: size.rows.into() };
        let request = ResizeExec { exec_id: live.id().to_string(), size: Some(size) };
        self.guest(sandbox).await?.resize_exec(request).await.map_err(exec_error)
    }

    /// Kills the whole tree of an exec and waits for its end. An exec that has ended is left as it is.
    ///
    /// # Errors
    /// As [`Self::exec`]; [`Code::Timeout`] when it does not end.
    #[boxed]
    pub async fn kill_exec(&self, sandbox: &SandboxId, exec: &str) -> Result<ExecView> {
        const KILL_WAIT: Duration = Duration::from_secs(30);
        let shared = self.inner.sandbox(sandbox)?;
        if let Found::Live(live) = self.find_exec(&shared, exec).await? {
            let _using = shared.usable().await?;
            live.ask_kill(ExitReason::Killed);
            let mut progress = live.progress.subscribe();
            let ended = progress.wait_for(Progress::is_over);
            return match tokio::time::timeout(KILL_WAIT, ended).await {
                Ok(Ok(progress)) if progress.state.is_final() => Ok(live.view()),
                Ok(_) => Err(Error::new(Code::ShuttingDown, "the server is shutting down")),
                Err(_) => Err(Error::new(Code::Timeout, "the exec does not end")
                    .hint("a process in it may hang in the kernel; delete the sandbox")),
            };
        }
        self.exec(sandbox, exec).await
    }

    async fn running(&self, sandbox: &SandboxId, exec: &str) -> Result<Arc<ExecShared>> {
        let sandbox = self.inner.sandbox(sandbox)?;
        match self.find_exec(&sandbox, exec).await? {
            Found::Live(live) => Ok(live),
            Found::Ended(record) => Err(Error::new(
                Code::ExecEnded,
                format!(
                    "the exec has {}",
                    match record.state {
                        ExecState::Lost => "ended with its sandbox",
                        ExecState::Starting | ExecState::Running | ExecState::Exited => "ended",
                    }
                ),
            )),
        }
    }

    async fn find_exec(&self, sandbox: &SandboxShared, exec: &str) -> Result<Found> {
        let id: ExecId = exec.parse()?;
        // Twice: it may end, and so move from the table to the store only, between the two look-ups.
        for _ in 0..2 {
            if let Some(live) = sandbox.live_exec(&id) {
                return Ok(Found::Live(live));
            }
            let stored = self.inner.store.exec(&id).await.map_err(store_error)?;
            // After a restart its session may still have to be taken up.
            sandbox.settled().await;
            match stored {
                Some(record) if record.sandbox == sandbox.id && record.state.is_final() => {
                    return Ok(Found::Ended(Box::new(record)));
                }
                _ => {}
            }
        }
        Err(ExecId::not_found(exec))
    }

    pub(crate) async fn ended_view(&self, record: ExecRecord) -> Result<ExecView> {
        let dir = self.inner.log_dir(&record.sandbox, &record.id);
        let found = tokio::task::spawn_blocking(move || log::extent(&dir)).await;
        let extent = found.unwrap_or_else(|panic| Err(panic.into())).unwrap_or_else(|error| {
            tracing::error!(%error, "an output log cannot be read");
            Extent::default()
        });
        // A log that is shorter than recorded lost its tail with the machine: say so as a gap.
        let end = record.output_bytes.max(extent.end);
        let first = if extent.end < end && extent.end == 0 { end } else { extent.first };
        Ok(ExecView { record, extent: Extent { first, end } })
    }
}

/// What the guest says about an exec that was found here.
fn exec_error(error: GuestError) -> Error {
    match guest_error(error) {
        // It ended meanwhile, and the guest has forgotten it.
        error if error.code == Code::ExecNotFound => Error::new(Code::ExecEnded, "the exec has ended"),
        error => error,
    }
}

/// The row of a command that is going to run.
///
/// # Errors
/// What is wrong with the draft.
pub(crate) fn new_record(
    sandbox: &SandboxId,
    spec: &SandboxSpec,
    draft: ExecDraft,
    started_by: Option<&KeyId>,
    created_ms: u64,
) -> Result<ExecRecord> {
    let idempotency_key = draft.idempotency_key.clone();
    // Only requests with one key are compared.
    let request_digest = if idempotency_key.is_some() { digest(draft.clone(), spec)? } else { String::new() };
    let spec = ExecSpec::resolve(draft, spec)?;
    Ok(ExecRecord {
        id: Inner::new_exec_id(created_ms)?,
        sandbox: sandbox.clone(),
        idempotency_key,
        request_digest,
        spec,
        state: ExecState::Starting,
        pid: None,
        exit: None,
        output_bytes: 0,
        cpu_us: 0,
        pauses_before_ms: 0,
        started_by: started_by.cloned(),
        created_ms,
        ended_ms: None,
    })
}

/// Tells a retry from a key that is used twice. A retry may spell out a default; what the sandbox adds is not part of
/// the request, as it may change meanwhile; and a field that says nothing counts as absent, so that one which a later
/// version adds does not make every older key a mismatch.
fn digest(draft: ExecDraft, sandbox: &SandboxSpec) -> Result<String> {
    let plain =
        SandboxSpec { env: BTreeMap::new(), user: "root".to_owned(), workdir: None, ..sandbox.clone() };
    // A retry may be another span of its caller.
    let draft = ExecDraft { traceparent: None, ..draft };
    let said = serde_json::to_value(ExecSpec::resolve(draft, &plain)?);
    let text = said.and_then(|mut said| {
        if let Some(fields) = said.as_object_mut() {
            fields.retain(|_, value| *value != Value::Null && *value != Value::Bool(false));
            fields.sort_keys();
        }
        serde_json::to_vec(&said)
    });
    let text = text.map_err(|error| {
        tracing::error!(%error, "a spec cannot be written as JSON");
        Error::new(Code::Internal, "the request cannot be recorded")
    })?;
    Ok(blake3::hash(&text).to_hex().to_string())
}
