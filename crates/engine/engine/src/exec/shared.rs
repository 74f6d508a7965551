//! What all tasks may see of a running exec.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use atoll_core::exec::{ExecState, Exit, ExitReason};
use atoll_core::id::ExecId;
use atoll_core::spec::IdempotencyKey;
use atoll_core::{Code, Error, Result};
use atoll_store::ExecRecord;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::is_agent_key;
use crate::clock::Clock;
use crate::log::Extent;
use crate::service::is_run_key;

use super::typed::Typed;

/// Where an exec is, as its session last published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) state: ExecState,
    pub(crate) pid: Option<u32>,
    pub(crate) exit: Option<Exit>,
    pub(crate) ended_ms: Option<u64>,
    pub(crate) cpu_us: u64,
    pub(crate) extent: Extent,
    /// The server stops: the exec goes on, but nothing more will be published here.
    pub(crate) stopped: bool,
}

impl Progress {
    /// Whether there is nothing more to wait for.
    pub(crate) const fn is_over(&self) -> bool {
        self.state.is_final() || self.stopped
    }
}

/// An exec, for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecView {
    /// The record, with the latest state.
    pub record: ExecRecord,
    /// What of its output is kept.
    pub extent: Extent,
}

/// How the start ended.
#[derive(Debug, Clone)]
pub(crate) enum Started {
    /// It runs, or ended at once (a command that does not exist counts as that).
    Yes,
    /// An exec with the same idempotency key is there already.
    Existing(Box<ExecRecord>),
    /// It never came into being.
    No(Error),
}

/// The published side of an exec whose session runs.
#[derive(Debug)]
pub(crate) struct ExecShared {
    clock: Clock,
    record: ExecRecord,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) started: watch::Sender<Option<Started>>,
    /// Why Atoll ends it, once it does. The first reason stands.
    ended_by: Mutex<Option<ExitReason>>,
    pub(super) kill: Notify,
    attached: Mutex<Attached>,
    /// Fires when a client attached or went away, or the one that misses nothing has read more.
    pub(super) attachment: Notify,
    /// How far the client has read that must miss nothing; `u64::MAX` when there is none.
    held: AtomicU64,
    /// Fires when everything in the sandbox ends. Set when it enters the sandbox.
    boot: OnceLock<CancellationToken>,
    /// What was typed into its terminal and is not told yet.
    typed: Mutex<Typed>,
}

/// The clients that are attached.
#[derive(Debug)]
struct Attached {
    count: usize,
    /// Since when none is.
    none_since: Option<Instant>,
}

impl ExecShared {
    pub(crate) fn new(
        record: ExecRecord,
        extent: Extent,
        started: Option<Started>,
        clock: &Clock,
    ) -> Arc<Self> {
        let progress = Progress {
            state: record.state,
            pid: record.pid,
            exit: record.exit.clone(),
            ended_ms: record.ended_ms,
            cpu_us: record.cpu_us,
            extent,
            stopped: false,
        };
        Arc::new(Self {
            clock: clock.clone(),
            record,
            progress: watch::Sender::new(progress),
            started: watch::Sender::new(started),
            ended_by: Mutex::default(),
            kill: Notify::new(),
            attached: Mutex::new(Attached { count: 0, none_since: Some(clock.instant()) }),
            attachment: Notify::new(),
            held: AtomicU64::new(u64::MAX),
            boot: OnceLock::new(),
            typed: Mutex::default(),
        })
    }

    /// What was typed into its terminal.
    pub(super) fn typed(&self) -> MutexGuard<'_, Typed> {
        self.typed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_boot(&self, boot: CancellationToken) {
        // It enters once.
        self.boot.get_or_init(|| boot);
    }

    /// Fires when everything in the sandbox ends.
    pub(super) fn boot(&self) -> CancellationToken {
        self.boot.get().cloned().unwrap_or_default()
    }

    pub(crate) fn id(&self) -> &ExecId {
        &self.record.id
    }

    /// Whether it is part of the sandbox, and no use of it: services, and agents,
    /// which keep it awake by other means while they work.
    pub(crate) fn is_part(&self) -> bool {
        let named = self.record.idempotency_key.as_ref().and_then(IdempotencyKey::as_server);
        named.is_some_and(|name| is_run_key(name) || is_agent_key(name))
    }

    /// When it was begun, milliseconds since the epoch.
    pub(crate) const fn created_ms(&self) -> u64 {
        self.record.created_ms
    }

    /// Whether nothing more comes of it.
    pub(crate) fn is_over(&self) -> bool {
        self.progress.borrow().is_over()
    }

    /// The record as it was inserted.
    pub(super) const fn inserted(&self) -> &ExecRecord {
        &self.record
    }

    pub(crate) fn view(&self) -> ExecView {
        let progress = self.progress.borrow().clone();
        let mut record = self.record.clone();
        record.state = progress.state;
        record.pid = progress.pid;
        record.exit = progress.exit;
        record.ended_ms = progress.ended_ms;
        record.cpu_us = progress.cpu_us;
        record.output_bytes = progress.extent.end;
        ExecView { record, extent: progress.extent }
    }

    pub(super) async fn wait_started(&self) -> Result<Started> {
        let mut started = self.started.subscribe();
        let outcome = started.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.ok_or_else(|| Error::new(Code::Internal, "the exec's session ended without an outcome"))
    }

    /// Says why it is about to end. The first reason stands.
    pub(crate) fn blame(&self, reason: ExitReason) {
        self.ended_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    /// Asks the session to kill the tree.
    pub(crate) fn ask_kill(&self, reason: ExitReason) {
        self.blame(reason);
        self.kill.notify_one();
    }

    /// Waits until nothing more will happen to it here.
    pub(crate) async fn over(&self) {
        self.progress.subscribe().wait_for(Progress::is_over).await.ok();
        self.started.subscribe().wait_for(Option::is_some).await.ok();
    }

    fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When it has been without a client for too long, unless a client is attached.
    pub(super) fn detached_end(&self) -> Option<Instant> {
        let timeout = Duration::from_millis(self.record.spec.detach_timeout_ms?);
        self.attached().none_since.map(|since| since + timeout)
    }

    /// Up to where output that is in the log may be acknowledged. Beyond it the guest waits, and with it the
    /// command, so that nothing is dropped from the log that the client that misses nothing has yet to read.
    pub(super) fn may_acknowledge(&self) -> u64 {
        self.held.load(Ordering::Acquire).saturating_add(self.record.spec.keep_output_bytes / 2)
    }

    pub(super) fn ended_by(&self) -> Option<ExitReason> {
        *self.ended_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As long as this lives, a client reads that must miss nothing. An exec has one such client: the one that started it.
#[derive(Debug)]
pub(super) struct Hold(Arc<ExecShared>);

impl Hold {
    pub(super) fn new(exec: Arc<ExecShared>, offset: u64) -> Self {
        exec.held.store(offset, Ordering::Release);
        Self(exec)
    }

    /// It has read up to here.
    pub(super) fn read(&self, offset: u64) {
        self.0.held.store(offset, Ordering::Release);
        self.0.attachment.notify_one();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.read(u64::MAX);
    }
}

/// A client is attached as long as this lives.
#[derive(Debug)]
pub(super) struct Attachment {
    exec: Arc<ExecShared>,
    /// Cancelled when the server lets go of its clients: that is not their going away.
    draining: CancellationToken,
}

impl Attachment {
    pub(super) fn new(exec: Arc<ExecShared>, draining: CancellationToken) -> Self {
        {
            let mut attached = exec.attached();
            attached.count += 1;
            attached.none_since = None;
        }
        exec.attachment.notify_one();
        Self { exec, draining }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let last = {
            let mut attached = self.exec.attached();
            attached.count -= 1;
            let last = attached.count == 0;
            attached.none_since = last.then(|| self.exec.clock.instant());
            last
        };
        self.exec.attachment.notify_one();
        if last && self.exec.record.spec.kill_on_disconnect && !self.draining.is_cancelled() {
            self.exec.ask_kill(ExitReason::Disconnected);
        }
    }
}
