//! What all tasks may see of a sandbox, and how to ask its actor for changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::id::{ExecId, NodeId, SandboxId, SnapshotId};
use atoll_core::limits::PORT_CONNECTIONS_MAX_COUNT;
use atoll_core::sandbox::{Admission, PauseMode, SandboxState, Wish, admit};
use atoll_core::spec::SandboxUpdate;
use atoll_core::{Code, Error, Result};
use atoll_guest_protocol::client::GuestClient;
use atoll_isolation::Isolation;
use atoll_store::SandboxRecord;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::disk::DiskState;
use crate::engine::Inner;
use crate::exec::ExecShared;
use crate::service::Services;
use crate::trace::TraceConfig;
use crate::usage::Meter;

use super::freezer::{Freezer, InUse};

/// Requests that wait for a busy actor. More are refused by waiting: the channel is bounded.
const QUEUE_MAX_COUNT: usize = 64;
/// How long a use waits for a sandbox to wake.
const WAKE_WAIT: Duration = Duration::from_secs(60);
/// How long a request waits for a sandbox that is on its way to another node.
const LEAVE_WAIT: Duration = Duration::from_secs(60);

/// Reason of a sandbox that runs while its agent does not answer.
const UNRESPONSIVE: &str = "unresponsive: its agent does not answer";

/// A change that a task asks the actor for.
#[expect(clippy::large_enum_variant, reason = "few of them exist at a time, and none is kept")]
#[derive(Debug)]
pub(crate) enum Message {
    /// Change labels, lifetime or limits.
    Update(SandboxUpdate, oneshot::Sender<Result<SandboxRecord>>),
    /// Take it apart; answered when nothing is left.
    Delete(oneshot::Sender<Result<()>>),
    /// Put it back to a snapshot.
    Rollback(SnapshotId, oneshot::Sender<Result<SandboxRecord>>),
    /// Make it stand still.
    Pause(PauseMode, oneshot::Sender<Result<SandboxRecord>>),
    /// Let it go on.
    Resume(oneshot::Sender<Result<SandboxRecord>>),
    /// Give it to another node; answered when nothing of it is here any more.
    Leave(NodeId, oneshot::Sender<Result<()>>),
    /// The link to the guest of this boot could not be made again.
    GuestLost(String, CancellationToken),
}

impl Message {
    /// Answers it with what is in the way.
    pub(super) fn refuse(self, why: Result<()>) {
        let error = why.err().unwrap_or_else(|| Error::new(Code::InvalidState, "try again in a moment"));
        let told = match self {
            Self::Update(_, reply)
            | Self::Pause(_, reply)
            | Self::Resume(reply)
            | Self::Rollback(_, reply) => reply.send(Err(error)).is_ok(),
            Self::Delete(reply) | Self::Leave(_, reply) => reply.send(Err(error)).is_ok(),
            Self::GuestLost(..) => true,
        };
        if !told {
            tracing::debug!("nobody waits for the answer any more");
        }
    }
}

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

    /// Whether its agent does not answer.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.unresponsive.load(Ordering::Relaxed)
    }

    pub(super) fn set_unresponsive(&self, unresponsive: bool) {
        if self.unresponsive.swap(unresponsive, Ordering::Relaxed) != unresponsive {
            tracing::warn!(sandbox = %self.id, unresponsive, "whether a sandbox's agent answers has changed");
        }
    }

    /// Ends everything in it, because that cannot be done by its agent.
    pub(crate) async fn give_up(&self, why: &str) {
        self.tell(Message::GuestLost(why.to_owned(), self.boot())).await;
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

    /// The answer for what has gone to another node.
    pub(crate) fn has_gone() -> Error {
        Error::new(Code::NodeUnavailable, "the sandbox has just gone to another node").hint("try again")
    }

    pub(super) fn set_leaving(&self, leaving: bool) {
        self.leaving.send_replace(leaving);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Waits, not for ever, while it is on its way to another node. Says whether it was.
    pub(crate) async fn has_settled_here(&self) -> bool {
        if !self.is_leaving() {
            return false;
        }
        let mut leaving = self.leaving.subscribe();
        // The sender lives as long as this.
        drop(tokio::time::timeout(LEAVE_WAIT, leaving.wait_for(|leaving| !leaving)).await);
        true
    }

    /// Waits until the creation has ended.
    pub(crate) async fn made(&self) -> Result<SandboxRecord> {
        self.settled()
            .await
            .unwrap_or_else(|| Err(Error::new(Code::Internal, "the creation ended without an outcome")))?;
        Ok(self.record())
    }

    /// Waits until the sandbox is what its record says: made, or taken up with its execs.
    pub(crate) async fn settled(&self) -> Option<Result<()>> {
        let mut made = self.made.subscribe();
        made.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone())
    }

    /// Admits a use. Waits for a creation under way, and for a paused sandbox to wake: all callers that come meanwhile
    /// wait for the same resume.
    pub(crate) async fn usable(self: &Arc<Self>) -> Result<InUse> {
        self.disk.check()?;
        let using = self.in_use();
        self.settled().await;
        tokio::time::timeout(WAKE_WAIT, self.awake()).await.unwrap_or_else(|_| {
            Err(Error::new(Code::Timeout, "the sandbox does not wake up").hint("try again in a moment"))
        })?;
        self.meter.count_request();
        Ok(using)
    }

    async fn awake(&self) -> Result<()> {
        loop {
            let (state, reason) = {
                let record = self.record.borrow();
                (record.state, record.reason.clone())
            };
            match admit(state, Wish::Use, reason.as_deref())? {
                Admission::Proceed if self.rouse().await? => return Ok(()),
                Admission::Proceed => {}
                Admission::Join => drop(self.made().await?),
                Admission::Wake => drop(self.ask(Message::Resume).await?),
            }
        }
    }

    /// The error of work that needed the sandbox as it was at its boot `boot`. When the sandbox was deleted, died, was
    /// paused or was put back meanwhile, the host's failure is no failure, and the error says what happened.
    pub(crate) fn unless_ended(&self, boot: &CancellationToken, error: Error) -> Error {
        if !matches!(error.code, Code::Internal | Code::SandboxFailed) {
            return error;
        }
        let admitted = {
            let record = self.record.borrow();
            admit(record.state, Wish::Use, record.reason.as_deref())
        };
        match admitted {
            Err(ended) => ended,
            Ok(Admission::Proceed) if !boot.is_cancelled() => error,
            Ok(Admission::Proceed | Admission::Join | Admission::Wake) if self.dead.is_cancelled() => {
                Error::new(Code::SandboxFailed, "the sandbox died")
            }
            Ok(Admission::Proceed | Admission::Join | Admission::Wake) => {
                Error::new(Code::InvalidState, "the sandbox was paused or put back meanwhile")
                    .hint("try again")
            }
        }
    }

    /// Does `work`, during which the sandbox may be paused: then it is woken, so that the work can end.
    pub(crate) async fn keep_awake<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let mut record = self.record.subscribe();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                lives = async { record.wait_for(|now| now.state == SandboxState::Paused).await.is_ok() } => {
                    if !lives {
                        return Ok(work.await);
                    }
                }
            }
            tokio::time::timeout(WAKE_WAIT, self.awake())
                .await
                .unwrap_or_else(|_| Err(Error::new(Code::Timeout, "the sandbox does not wake up")))?;
        }
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

    pub(crate) async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T>>) -> Message,
    ) -> Result<T> {
        let gone = || {
            if self.shutdown.is_cancelled() {
                return Error::new(Code::ShuttingDown, "the server is shutting down");
            }
            if self.has_left() {
                return Self::has_gone();
            }
            SandboxId::not_found(self.id.as_str())
        };
        let (reply, answer) = oneshot::channel();
        self.queue.send(message(reply)).await.or(Err(gone()))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Tells the actor something without waiting for it.
    pub(super) async fn tell(&self, message: Message) {
        if self.queue.send(message).await.is_err() {
            tracing::debug!("a sandbox's actor has ended already");
        }
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

    /// Whether something goes on in it. What its template starts and its services are part of it, no use.
    pub(super) fn is_busy(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0 || self.live_map().values().any(|exec| !exec.is_part())
    }

    pub(super) fn enter_use(&self) {
        // In one order with the freezer's look.
        self.users.fetch_add(1, Ordering::SeqCst);
        self.touch();
    }

    pub(super) fn leave_use(&self) {
        self.touch();
        self.users.fetch_sub(1, Ordering::SeqCst);
        self.say_idle();
    }

    /// Whether a call uses it at this moment.
    pub(super) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    fn say_idle(&self) {
        if self.watches_idle.load(Ordering::Relaxed) && !self.is_busy() {
            self.nudge.notify_one();
        }
    }

    /// Fires when what runs now ends with everything else.
    pub(crate) fn boot(&self) -> CancellationToken {
        self.boot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends what runs now; gives the execs whose sessions end by that. What comes later belongs to the next boot.
    pub(super) fn end_boot(&self) -> Vec<Arc<ExecShared>> {
        let live = self.live_map();
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        boot.cancel();
        *boot = self.dead.child_token();
        live.values().cloned().collect()
    }

    /// What ends the connection that is about to be kept.
    pub(super) fn new_link(&self) -> CancellationToken {
        self.unresponsive.store(false, Ordering::Relaxed);
        let token = self.boot().child_token();
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = token.clone();
        token
    }

    /// Ends the connection to the guest, and nothing else: sessions wait for the next.
    pub(super) fn end_link(&self) {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).cancel();
    }

    /// Keeps it from being idle as long as the guard lives.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        InUse::new(self)
    }

    fn live_map(&self) -> std::sync::MutexGuard<'_, BTreeMap<ExecId, Arc<ExecShared>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Execs that have not ended, oldest first.
    pub(crate) fn live_execs(&self) -> Vec<Arc<ExecShared>> {
        self.live_map().values().cloned().collect()
    }

    /// The execs that run, but for what its template starts, services and agents.
    pub(crate) fn commands(&self) -> Vec<Arc<ExecShared>> {
        let mut execs = self.live_execs();
        execs.retain(|exec| !exec.is_part() && !exec.is_over());
        execs
    }

    pub(crate) fn live_exec(&self, id: &ExecId) -> Option<Arc<ExecShared>> {
        self.live_map().get(id).cloned()
    }

    /// Enters an exec, if there is room and the sandbox lives: a task that waits for the execs of a dead sandbox to end
    /// misses none.
    pub(crate) fn enter_exec(&self, exec: &Arc<ExecShared>, max: usize) -> Result<()> {
        let mut live = self.live_map();
        if self.dead.is_cancelled() {
            return Err(Error::new(Code::SandboxFailed, "the sandbox died"));
        }
        if live.len() >= max {
            return Err(Error::new(Code::LimitExceeded, format!("{max} execs run in this sandbox already"))
                .hint("wait for some to end, or kill them"));
        }
        exec.set_boot(self.boot());
        live.insert(exec.id().clone(), Arc::clone(exec));
        Ok(())
    }

    /// Counts an exec that has ended; gives how many there were before.
    pub(crate) fn count_ended(&self) -> u64 {
        self.ended.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn leave_exec(&self, id: &ExecId) {
        self.touch();
        self.live_map().remove(id);
        if self.record.borrow().spec.durability.is_some_and(|durability| durability.after_exec) {
            self.uncopied.store(true, Ordering::Release);
            self.nudge.notify_one();
        }
        self.say_idle();
    }
}
