//! What all tasks may see of a sandbox: its record, and what the actor publishes beside it.
//!
//! `message` is how they ask the actor for changes, `unwanted` how they ask for its end, `wake` how they wait until the
//! sandbox can be used, `live` what goes on in it.

mod live;
mod message;
mod unwanted;
mod wake;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::Result;
use atoll_core::id::{ExecId, SandboxId};
use atoll_core::limits::PORT_CONNECTIONS_MAX_COUNT;
use atoll_core::sandbox::SandboxState;
use atoll_guest_protocol::client::GuestClient;
use atoll_isolation::Isolation;
use atoll_store::SandboxRecord;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::disk::DiskState;
use crate::engine::Inner;
use crate::exec::ExecShared;
use crate::service::Services;
use crate::trace::TraceConfig;
use crate::usage::Meter;

use super::downloads::Owner;
use super::freezer::Freezer;
pub(crate) use message::Message;
use unwanted::Unwanted;

/// Requests that wait for a busy actor. More are refused by waiting: the channel is bounded.
const QUEUE_MAX_COUNT: usize = 64;
/// Reason of a sandbox that runs while its agent does not answer.
const UNRESPONSIVE: &str = "unresponsive: its agent does not answer";

/// A connection to the guest. Each new one has a higher number.
#[derive(Debug, Clone)]
pub(crate) struct GuestLink {
    pub(crate) number: u64,
    pub(crate) client: GuestClient,
}

/// The published side of a sandbox.
#[derive(Debug)]
pub(crate) struct SandboxShared {
    clock: Clock,
    pub(crate) id: SandboxId,
    /// The record as the actor last published it. `last_active_ms` is in its own field.
    record: watch::Sender<Arc<SandboxRecord>>,
    /// The connection to the guest, while there is one.
    pub(crate) guest: watch::Sender<Option<GuestLink>>,
    /// Whether it stands still.
    pub(crate) freezer: Freezer,
    /// What it used.
    pub(crate) meter: Meter,
    /// Fires when the instance is dead or is being taken apart: streams end at once.
    pub(crate) dead: CancellationToken,
    /// How the creation, or the taking up after a restart, ended, once it has: the error, if it was one.
    made: watch::Sender<Option<Result<()>>>,
    /// Execs that have not ended.
    live: Mutex<BTreeMap<ExecId, Arc<ExecShared>>>,
    /// Fires when everything that runs now has ended: with the sandbox, or because it was paused without its
    /// memory. Replaced then. Changed only while `live` is locked.
    boot: Mutex<CancellationToken>,
    /// Fires when the connection to the guest is to end: with the boot, or because the guest is put to disk with its
    /// memory. Replaced with each new one.
    link: Mutex<CancellationToken>,
    /// Guest links so far, over all boots.
    pub(super) links: AtomicU64,
    /// Wakes the actor when the sandbox may have become idle.
    pub(super) nudge: Notify,
    /// Whether idleness means anything to it.
    pub(super) watches_idle: AtomicBool,
    /// It is on its way to another node: requests wait until it has gone, or stays after all.
    leaving: watch::Sender<bool>,
    /// It has gone to another node.
    left: AtomicBool,
    /// Whether somebody waits for its deletion.
    unwanted: Unwanted,
    /// It is copied while it runs, at this moment.
    copying: AtomicBool,
    /// A command has ended that is in no such copy.
    uncopied: AtomicBool,
    /// Its agent does not answer.
    unresponsive: AtomicBool,
    /// What its template starts ran before it was claimed.
    started_ahead: AtomicBool,
    /// When this server last woke it from disk or put it back.
    woken: Mutex<Option<Instant>>,
    last_active_ms: AtomicU64,
    /// Calls under way that keep it from being idle.
    users: AtomicUsize,
    /// Execs that ended since the start of the server.
    ended: AtomicU64,
    /// What should always run in it.
    pub(crate) services: Services,
    /// Connections to its ports that may still be made.
    pub(crate) ports: Arc<Semaphore>,
    /// Fires when the server stops.
    shutdown: CancellationToken,
    /// The recorder.
    pub(crate) trace: TraceConfig,
    /// Whether all sandboxes stand still.
    pub(super) disk: DiskState,
    driver: Arc<dyn Isolation>,
    queue: mpsc::Sender<Message>,
    /// Taken by the actor when it starts.
    pub(super) inbox: Mutex<Option<mpsc::Receiver<Message>>>,
}

impl SandboxShared {
    pub(crate) fn new(record: SandboxRecord, inner: &Inner) -> Result<Arc<Self>> {
        let driver = Arc::clone(inner.driver(record.spec.isolation)?);
        let (queue, inbox) = mpsc::channel(QUEUE_MAX_COUNT);
        let dead = CancellationToken::new();
        let record_owner = record.owner.clone();
        Ok(Arc::new(Self {
            clock: inner.clock.clone(),
            id: record.id.clone(),
            last_active_ms: AtomicU64::new(record.last_active_ms),
            record: watch::Sender::new(Arc::new(record)),
            guest: watch::Sender::new(None),
            freezer: Freezer::new(inner.clock.clone()),
            meter: Meter::new(record_owner),
            boot: Mutex::new(dead.child_token()),
            link: Mutex::new(dead.child_token()),
            dead,
            links: AtomicU64::new(0),
            nudge: Notify::new(),
            watches_idle: AtomicBool::new(false),
            leaving: watch::Sender::new(false),
            left: AtomicBool::new(false),
            unwanted: Unwanted::default(),
            copying: AtomicBool::new(false),
            uncopied: AtomicBool::new(false),
            unresponsive: AtomicBool::new(false),
            started_ahead: AtomicBool::new(false),
            woken: Mutex::default(),
            made: watch::Sender::new(None),
            live: Mutex::default(),
            users: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            services: Services::default(),
            ports: Arc::new(Semaphore::new(PORT_CONNECTIONS_MAX_COUNT)),
            shutdown: inner.shutdown.clone(),
            trace: inner.config.trace.clone(),
            disk: inner.disk.clone(),
            driver,
            queue,
            inbox: Mutex::new(Some(inbox)),
        }))
    }

    /// The record, with the latest activity.
    pub(crate) fn record(&self) -> SandboxRecord {
        let mut record = self.stored_record();
        if record.state == SandboxState::Running && self.disk.is_full() {
            record.reason = Some(self.disk.reason().to_owned());
        }
        record
    }

    /// The same, without what is not recorded: that it stands still with all others.
    pub(super) fn stored_record(&self) -> SandboxRecord {
        let mut record = SandboxRecord::clone(&self.record.borrow());
        record.last_active_ms = self.last_active_ms.load(Ordering::Relaxed);
        if record.state == SandboxState::Running && self.is_unresponsive() {
            record.reason = Some(UNRESPONSIVE.to_owned());
        }
        record
    }

    /// The record as it was last published, which costs no copy. Its `last_active_ms` and `reason` may be behind.
    pub(crate) fn published(&self) -> Arc<SandboxRecord> {
        Arc::clone(&self.record.borrow())
    }

    /// Who has it.
    pub(super) fn owner(&self) -> Owner {
        let record = self.record.borrow();
        Owner { key: record.owner.clone(), project: record.project.clone() }
    }

    /// Whether its agent does not answer.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::Relaxed)
    }

    pub(super) fn set_unresponsive(&self, unresponsive: bool) {
        if self.unresponsive.swap(unresponsive, Ordering::Relaxed) != unresponsive {
            tracing::warn!(sandbox = %self.id, unresponsive, "whether a sandbox's agent answers has changed");
        }
    }

    /// Publishes a changed record. Only the actor calls this.
    pub(super) fn publish(&self, record: SandboxRecord) {
        let after = Arc::new(record);
        let before = self.record.send_replace(Arc::clone(&after));
        self.trace.changed(&before, &after);
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Isolation> {
        &self.driver
    }

    pub(super) fn set_made(&self, outcome: Result<()>) {
        self.made.send_replace(Some(outcome));
    }

    /// A copy begins: commands that end from now on are not in it.
    pub(crate) fn begin_copy(&self) {
        self.copying.store(true, Ordering::Release);
        self.uncopied.store(false, Ordering::Release);
    }

    /// The copy is made, or is not.
    pub(crate) fn is_copied(&self, copied: bool) {
        if !copied {
            self.uncopied.store(true, Ordering::Release);
        }
        self.copying.store(false, Ordering::Release);
        self.nudge.notify_one();
    }

    pub(super) fn is_copying(&self) -> bool {
        self.copying.load(Ordering::Acquire)
    }

    /// Whether a command has ended that is in no copy.
    pub(super) fn is_uncopied(&self) -> bool {
        self.uncopied.load(Ordering::Acquire)
    }

    /// It has gone to another node: set before a caller is told so.
    pub(super) fn set_left(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Whether it has gone to another node.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    pub(super) fn set_leaving(&self, leaving: bool) {
        self.leaving.send_replace(leaving);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// The record as it changes.
    pub(crate) fn watch_record(&self) -> watch::Receiver<Arc<SandboxRecord>> {
        self.record.subscribe()
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.record.borrow().state
    }

    /// The memory that it may use.
    pub(crate) fn memory_max_bytes(&self) -> u64 {
        self.record.borrow().spec.resources.memory_bytes
    }

    /// Whether what its template starts ran before it was claimed.
    pub(crate) fn was_started_ahead(&self) -> bool {
        self.started_ahead.load(Ordering::Relaxed)
    }

    pub(super) fn set_started_ahead(&self) {
        self.started_ahead.store(true, Ordering::Relaxed);
    }

    /// It begins anew: set before a caller can use it.
    pub(super) fn set_woken(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// When this server last woke it from disk or put it back.
    pub(crate) fn woken(&self) -> Option<Instant> {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn touch(&self) {
        self.last_active_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    pub(super) fn last_active_ms(&self) -> u64 {
        self.last_active_ms.load(Ordering::Relaxed)
    }
}
