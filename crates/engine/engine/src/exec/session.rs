//! The session: one task that owns a running exec.

pub(super) mod start;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Result;
use atoll_core::exec::{ExecState, Exit, ExitContext, ExitReason, classify};
use atoll_core::limits::EXECS_KEPT_MAX_COUNT;
use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestClient, GuestError};
use atoll_guest_protocol::messages::{AttachExec, Exited, SignalExec};
use atoll_store::StoreError;
use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::errors::chain;
use crate::log::{LogShare, LogWriter};
use crate::sandbox::{SandboxShared, Stillness};

use super::disk::{append_from, blocking, blocking_with};
use super::shared::{ExecShared, Started};

pub(super) const SIGKILL: i32 = 9;
/// Output taken together before it is written to the log, bytes.
const BATCH_MAX_BYTES: usize = 1 << 20;
/// Pause before writing again when the host's disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// Pause before telling the store again when it does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Pause before attaching again when a stream broke without having given anything.
const ATTACH_PAUSE: Duration = Duration::from_millis(50);
/// Old execs are pruned each time that so many have ended: more than [`EXECS_KEPT_MAX_COUNT`] by this
/// many may be there for a while.
const PRUNE_EVERY_COUNT: u64 = 64;
/// A kill is sent again this long after, until the exec has ended: a new process may have slipped by.
const KILL_AGAIN: Duration = Duration::from_secs(2);

/// An exec that is over its time, in a sandbox whose agent does not answer, ends with the sandbox this long after its
/// kill was asked for.
const HOST_KILL_AFTER: Duration = Duration::from_secs(60);

/// Starts a new exec: enters its row, starts it in the guest, then serves it.
pub(super) fn spawn_new(inner: &Arc<Inner>, sandbox: &Arc<SandboxShared>, exec: &Arc<ExecShared>) {
    let session = Session::new(inner, sandbox, exec);
    inner.tracker.spawn(session.run_new());
}

/// Starts the session of an exec that an earlier process started.
pub(super) fn spawn_taken_up(inner: &Arc<Inner>, sandbox: &Arc<SandboxShared>, exec: &Arc<ExecShared>) {
    let session = Session::new(inner, sandbox, exec);
    inner.tracker.spawn(session.run_taken_up());
}

/// Waits until no session of a dead sandbox is left.
pub(crate) async fn wait_ended(sandbox: &SandboxShared) {
    for exec in sandbox.live_execs() {
        exec.over().await;
    }
}

struct Session {
    inner: Arc<Inner>,
    sandbox: Arc<SandboxShared>,
    exec: Arc<ExecShared>,
    /// `None` only while the writer is on a blocking thread.
    log: Option<LogWriter>,
    /// Number of the guest link that is used or was used last.
    link: u64,
    /// Kernel out-of-memory kills in the sandbox when the exec began.
    oom_kills_before: u64,
    timeout_at: Option<Instant>,
    idle_at: Option<Instant>,
    kill_again_at: Option<Instant>,
    /// When the guest was first asked to kill it.
    killing_since: Option<Instant>,
    /// Ends with everything else in the sandbox.
    boot: CancellationToken,
    /// How the sandbox stands. Time in which it stands still is not the exec's.
    still: watch::Receiver<Stillness>,
    /// What of that time the clocks know.
    stood_still: Duration,
    /// CPU time as the guest told it with the end.
    cpu_us: u64,
    /// The stream has given something.
    progressed: bool,
    /// Up to where the guest was told that its output is kept.
    acknowledged: u64,
}

/// What ended the serving of an exec.
enum End {
    Exited(Exited),
    BootEnded,
    ServerStops,
}

enum Next {
    Event(Result<Option<ExecEvent>, GuestError>),
    Kill,
    TimedOut,
    IdleTimedOut,
    Froze,
    /// A client attached, went away, or has read: when to give up waiting for clients changed, or how much of the
    /// output may be acknowledged.
    Attachment,
    Deserted,
    Dead,
    Stop,
}

impl Session {
    fn new(inner: &Arc<Inner>, sandbox: &Arc<SandboxShared>, exec: &Arc<ExecShared>) -> Self {
        Self {
            inner: Arc::clone(inner),
            sandbox: Arc::clone(sandbox),
            exec: Arc::clone(exec),
            log: None,
            link: 0,
            oom_kills_before: 0,
            timeout_at: None,
            idle_at: None,
            kill_again_at: None,
            killing_since: None,
            boot: exec.boot(),
            still: sandbox.freezer.subscribe(),
            stood_still: Duration::ZERO,
            cpu_us: 0,
            progressed: false,
            acknowledged: 0,
        }
    }

    async fn run_new(mut self) {
        match self.insert_and_start().await {
            Ok(Some(stream)) => {
                self.exec.progress.send_modify(|progress| progress.pid = Some(stream.pid));
                self.exec.started.send_replace(Some(Started::Yes));
                self.run(stream).await;
            }
            Ok(None) => {
                self.leave();
                self.exec.started.send_if_modified(|started| {
                    let first = started.is_none();
                    started.get_or_insert(Started::Yes);
                    first
                });
            }
            Err(error) => {
                self.sandbox.trace.exec_did_not_start(self.exec.inserted());
                self.exec.progress.send_modify(|progress| progress.state = ExecState::Lost);
                self.leave();
                self.exec.started.send_replace(Some(Started::No(error)));
            }
        }
    }

    async fn run_taken_up(mut self) {
        if let Err(error) = self.open_log().await {
            tracing::error!(exec = %self.exec.id(), %error, "an output log cannot be opened");
            return self.finish(Exit::sandbox_died()).await;
        }
        // Out-of-memory kills before now were of other execs, or happened while the server was away and did not see
        // whose they were.
        self.oom_kills_before = oom_kills(&self.sandbox).await;
        self.start_clocks();
        match self.attach_next_link().await {
            Ok(Some(stream)) => self.run(stream).await,
            // The guest never heard of it, so no client was told that it exists.
            Ok(None) if self.end_offset() == 0 => self.vanish().await,
            Ok(None) => self.end(End::BootEnded).await,
            Err(end) => self.end(end).await,
        }
    }

    /// Takes back an exec that never came into being.
    async fn vanish(&mut self) {
        if let Err(error) = self.inner.store.delete_exec(self.exec.id()).await {
            tracing::error!(exec = %self.exec.id(), error = chain(&error), "an exec that never ran stays recorded");
        }
        self.exec.progress.send_modify(|progress| progress.state = ExecState::Lost);
        self.leave();
    }

    // === start ===

    async fn open_log(&mut self) -> io::Result<()> {
        let record = self.exec.inserted();
        let dir = self.inner.log_dir(&record.sandbox, &record.id);
        let keep = record.spec.keep_output_bytes;
        // Before it is opened: what it opens is not dropped then.
        let share = self.share();
        let clock = self.inner.clock.clone();
        let log = blocking(move || LogWriter::open(&dir, keep, &clock)).await?;
        let extent = log.extent();
        self.log = Some(log.within(share));
        self.exec.progress.send_modify(|progress| {
            progress.extent = extent;
            progress.state = ExecState::Running;
        });
        Ok(())
    }

    /// Its part of what the sandbox's execs may keep together.
    fn share(&self) -> LogShare {
        let max = self.sandbox.record().spec.resources.output_max_bytes();
        self.inner.logs.share(&self.sandbox.id, self.exec.id(), Some(max))
    }

    fn start_clocks(&mut self) {
        let spec = &self.exec.inserted().spec;
        let began_ms = self.exec.inserted().created_ms;
        let sandbox = self.sandbox.record();
        // In this order: what passes between the two shortens the exec's time, and does not lengthen it.
        let (instant, now) = (self.inner.clock.instant(), self.inner.now_ms());
        // What was paused since, as far as the clocks below will not notice it themselves.
        let before = sandbox.pauses_ms.saturating_sub(self.exec.inserted().pauses_before_ms);
        let paused = before + sandbox.paused_ms.map_or(0, |since| now.saturating_sub(since));
        self.still.mark_unchanged();
        self.stood_still = self.sandbox.freezer.stood_still();
        // A timeout counts from the start, also over a restart of the server, but for pauses.
        self.timeout_at = spec.timeout_ms.map(|timeout| {
            let left = began_ms.saturating_add(timeout).saturating_add(paused).saturating_sub(now);
            instant + Duration::from_millis(left)
        });
        self.reset_idle();
    }

    fn reset_idle(&mut self) {
        let idle = self.exec.inserted().spec.idle_timeout_ms;
        self.idle_at = idle.map(|idle| self.inner.clock.instant() + Duration::from_millis(idle));
    }

    /// Moves the clocks by the time in which the sandbox stood still.
    fn notice_stillness(&mut self) {
        let total = self.still.borrow_and_update().total;
        let stood = total.saturating_sub(self.stood_still);
        self.stood_still = total;
        for clock in [&mut self.timeout_at, &mut self.idle_at, &mut self.killing_since].into_iter().flatten()
        {
            *clock += stood;
        }
    }

    // === life ===

    async fn run(mut self, mut stream: ExecStream) {
        loop {
            let pid = stream.pid;
            self.exec.progress.send_if_modified(|progress| progress.pid.replace(pid) != Some(pid));
            match self.serve(&mut stream).await {
                Ok(end) => return self.end(end).await,
                Err(error) => {
                    tracing::debug!(exec = %self.exec.id(), error = chain(&error), "an exec's stream broke");
                }
            }
            // A guest that breaks every stream at once must not keep the host busy.
            if !std::mem::take(&mut self.progressed) {
                tokio::time::sleep(ATTACH_PAUSE).await;
            }
            match self.attach_next_link().await {
                Ok(Some(next)) => stream = next,
                Ok(None) => return self.end(End::BootEnded).await,
                Err(end) => return self.end(end).await,
            }
        }
    }

    /// Serves one stream until the exec ends (`Ok`) or the stream breaks (`Err`).
    async fn serve(&mut self, stream: &mut ExecStream) -> Result<End, GuestError> {
        if stream.offset != self.end_offset() {
            return Err(GuestError::Protocol("the guest resumed at another offset"));
        }
        // To attach at an offset acknowledges all before it.
        self.acknowledged = stream.offset;
        loop {
            match self.next(stream).await {
                Next::Event(event) => match event? {
                    Some(ExecEvent::Output { stderr, bytes }) => {
                        if let Some(exited) = self.take_output(stream, stderr, bytes).await? {
                            return Ok(End::Exited(exited));
                        }
                    }
                    Some(ExecEvent::Exited(exited)) => return Ok(End::Exited(exited)),
                    None => return Err(GuestError::Closed),
                },
                Next::Kill => self.kill().await,
                Next::TimedOut => {
                    self.timeout_at = None;
                    self.exec.ask_kill(ExitReason::TimedOut);
                }
                Next::IdleTimedOut => {
                    self.idle_at = None;
                    self.exec.ask_kill(ExitReason::IdleTimedOut);
                }
                Next::Froze => self.notice_stillness(),
                Next::Attachment => self.acknowledge(stream).await?,
                Next::Deserted => self.exec.ask_kill(ExitReason::Disconnected),
                Next::Dead => return Ok(End::BootEnded),
                Next::Stop => return Ok(End::ServerStops),
            }
        }
    }

    async fn next(&mut self, stream: &mut ExecStream) -> Next {
        let (clock, still) = (&self.inner.clock, self.still.borrow().since.is_some());
        let detached_end = self.exec.detached_end().filter(|_| !still && self.kill_again_at.is_none());
        tokio::select! {
            biased;
            () = self.inner.shutdown.cancelled() => Next::Stop,
            Ok(()) = self.still.changed() => Next::Froze,
            () = self.exec.kill.notified() => Next::Kill,
            () = at(self.kill_again_at), if !still => Next::Kill,
            () = clock.sleep_until(self.timeout_at), if !still => Next::TimedOut,
            event = stream.next() => Next::Event(event),
            () = clock.sleep_until(self.idle_at), if !still => Next::IdleTimedOut,
            () = clock.sleep_until(detached_end) => Next::Deserted,
            () = self.exec.attachment.notified() => Next::Attachment,
            () = self.boot.cancelled() => Next::Dead,
        }
    }

    /// Writes what has arrived to the log, then acknowledges it. Gives the exit if that came along.
    async fn take_output(
        &mut self,
        stream: &mut ExecStream,
        stderr: bool,
        bytes: Bytes,
    ) -> Result<Option<Exited>, GuestError> {
        let mut batch = vec![(stderr, bytes)];
        let mut size = batch[0].1.len();
        let mut exited = None;
        // Take along what is here already: one write and one acknowledgement for all.
        while size < BATCH_MAX_BYTES {
            match stream.next().now_or_never() {
                Some(Ok(Some(ExecEvent::Output { stderr, bytes }))) => {
                    size += bytes.len();
                    batch.push((stderr, bytes));
                }
                Some(Ok(Some(ExecEvent::Exited(end)))) => {
                    exited = Some(end);
                    break;
                }
                // Nothing there, or broken: the next call says so again.
                Some(Ok(None) | Err(_)) | None => break,
            }
        }
        self.progressed = true;
        let complete = self.append(batch).await;
        atoll_failpoint::fail_point!("engine.exec.appended");
        self.reset_idle();
        if !complete {
            // The server stops or the sandbox died: not the end of the exec, which the guest tells again.
            return Err(GuestError::Closed);
        }
        if exited.is_none() {
            self.acknowledge(stream).await?;
        }
        Ok(exited)
    }

    /// Acknowledges the output that is in the log, as far as the client allows that must miss nothing.
    async fn acknowledge(&mut self, stream: &ExecStream) -> Result<(), GuestError> {
        let upto = self.end_offset().min(self.exec.may_acknowledge());
        if upto > self.acknowledged {
            stream.ack(upto).await?;
            self.acknowledged = upto;
        }
        Ok(())
    }

    fn end_offset(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.extent().end)
    }

    /// Appends to the log. While the host's disk is full this waits, and with it the guest and the
    /// command: nothing is lost. Says whether everything is in the log: not when the wait was ended.
    async fn append(&mut self, batch: Vec<(bool, Bytes)>) -> bool {
        let Some(mut log) = self.log.take() else { return false };
        let batch = Arc::new(batch);
        let base = log.extent().end;
        let mut warned = false;
        let complete = loop {
            let pieces = Arc::clone(&batch);
            let written = blocking_with(log, move |log| append_from(log, base, &pieces)).await;
            let (back, outcome) = written;
            log = back;
            let extent = log.extent();
            self.exec.progress.send_modify(|progress| progress.extent = extent);
            match outcome {
                Ok(()) => break true,
                Err(error) => {
                    if !warned {
                        tracing::error!(exec = %self.exec.id(), %error, "output cannot be written, waiting");
                        warned = true;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(FULL_PAUSE) => {}
                        () = self.inner.shutdown.cancelled() => break false,
                        () = self.boot.cancelled() => break false,
                    }
                }
            }
        };
        self.log = Some(log);
        complete
    }

    async fn kill(&mut self) {
        if self.sandbox.freezer.is_frozen() {
            // The guest agent is frozen and does not listen. The kill is sent as soon as it does.
            self.kill_again_at = Some(Instant::now());
            return;
        }
        self.kill_again_at = Some(Instant::now() + KILL_AGAIN);
        let since = *self.killing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= HOST_KILL_AFTER && self.sandbox.is_unresponsive() {
            // A limit holds whether or not the guest agent helps: a command that stops the agent gains nothing.
            return self.sandbox.give_up("its agent does not answer, and a command had to be killed").await;
        }
        let link = self.sandbox.guest.borrow().clone();
        let Some(link) = link else { return };
        let request = SignalExec { exec_id: self.exec.id().to_string(), signal: SIGKILL, tree: true };
        if let Err(error) = link.client.signal_exec(request).await {
            tracing::debug!(exec = %self.exec.id(), error = chain(&error), "a kill did not get through");
        }
    }

    /// The first link with a number above `last`.
    async fn next_link(&self, last: u64) -> Result<(u64, GuestClient), End> {
        let mut guest = self.sandbox.guest.subscribe();
        let newer = guest.wait_for(|link| link.as_ref().is_some_and(|link| link.number > last));
        let link = tokio::select! {
            biased;
            link = newer => link.ok().and_then(|link| link.clone()),
            () = self.boot.cancelled() => return Err(End::BootEnded),
            () = self.inner.shutdown.cancelled() => return Err(End::ServerStops),
        };
        link.map(|link| (link.number, link.client)).ok_or(End::BootEnded)
    }

    /// Waits for a connection and attaches where the log ends. `None`: the guest does not know the exec.
    async fn attach_next_link(&mut self) -> Result<Option<ExecStream>, End> {
        // The link may be the one whose stream broke: then attaching again is right if it lives, and
        // fails at once if it does not.
        let mut last = 0;
        loop {
            let (number, client) = self.next_link(last).await?;
            last = number;
            self.link = number;
            let request = AttachExec { exec_id: self.exec.id().to_string(), offset: self.end_offset() };
            match client.attach_exec(request).await {
                Ok(stream) => {
                    self.kill_again_at = self.exec.ended_by().map(|_| Instant::now());
                    return Ok(Some(stream));
                }
                // The connection went, perhaps in the middle of a message.
                Err(GuestError::Closed | GuestError::Protocol(_)) => {}
                // It may still be good.
                Err(GuestError::Timeout | GuestError::StoodStill) => last = number - 1,
                // It was never told of it.
                Err(GuestError::Failure { .. }) if self.end_offset() == 0 => return Ok(None),
                Err(error @ GuestError::Failure { .. }) => {
                    tracing::error!(exec = %self.exec.id(), error = chain(&error), "the guest lost an exec");
                    return Ok(None);
                }
            }
        }
    }

    // === end ===

    async fn end(mut self, end: End) {
        match end {
            End::Exited(exited) => {
                atoll_failpoint::fail_point!("engine.exec.exited");
                self.cpu_us = exited.cpu_us;
                let killed = exited.signal == Some(SIGKILL) || exited.code == Some(128 + SIGKILL);
                let oom_killed = killed && oom_kills(&self.sandbox).await > self.oom_kills_before;
                let context = ExitContext { ended_by: self.exec.ended_by(), oom_killed };
                let exit = classify(exited.code, exited.signal, context);
                // Taken before clients hear of the end, so that it holds nothing of what they do next.
                Box::pin(crate::snapshot::after_exec(&self.inner, &self.sandbox, self.exec.id())).await;
                self.finish(exit).await;
            }
            End::BootEnded if self.boot.is_cancelled() && !self.sandbox.dead.is_cancelled() => {
                let exit = match self.exec.ended_by() {
                    Some(ExitReason::RolledBack) => Exit::rolled_back(),
                    _ => Exit::sandbox_paused(),
                };
                self.finish(exit).await;
            }
            End::BootEnded => self.finish(Exit::sandbox_died()).await,
            End::ServerStops => self.stop(),
        }
    }

    /// Records the end, then tells all clients. Until it is recorded, no client hears of it.
    async fn finish(&mut self, exit: Exit) {
        let lost = exit.reason == ExitReason::SandboxDied;
        let state = if lost { ExecState::Lost } else { ExecState::Exited };
        let id = self.exec.id().clone();
        let ended_ms = self.inner.now_ms();
        let pid = self.exec.progress.borrow().pid;
        while let Err(error) =
            self.inner.store.finish_exec(&id, &exit, pid, self.end_offset(), self.cpu_us, ended_ms).await
        {
            if matches!(error, StoreError::NotFound) {
                break; // the sandbox was removed with everything in it
            }
            tracing::error!(exec = %id, error = chain(&error), "the end of an exec cannot be recorded, trying again");
            tokio::select! {
                () = tokio::time::sleep(STORE_PAUSE) => {}
                () = self.inner.shutdown.cancelled() => return self.stop(),
            }
        }
        if let Some((by, bytes)) = self.exec.typed().end() {
            self.sandbox.trace.typed(self.exec.inserted(), by, bytes);
        }
        self.sandbox.trace.exec_ended(self.exec.inserted(), &exit, self.cpu_us);
        atoll_failpoint::fail_point!("engine.exec.finished");
        self.exec.progress.send_modify(|progress| {
            progress.state = state;
            progress.exit = Some(exit);
            progress.ended_ms = Some(ended_ms);
            progress.cpu_us = self.cpu_us;
        });
        self.sandbox.meter.count_exec_cpu(self.exec.inserted().started_by.as_ref(), self.cpu_us);
        self.leave();
        self.tidy();
    }

    /// Lets go without an end: the next process takes it up.
    fn stop(&self) {
        self.exec.progress.send_modify(|progress| progress.stopped = true);
        self.leave();
    }

    fn leave(&self) {
        self.sandbox.leave_exec(self.exec.id());
    }

    /// After the end, in a task that no client waits for: the guest may forget the exec, and old execs go.
    fn tidy(&self) {
        let link = self.sandbox.guest.borrow().clone();
        let exec = self.exec.id().clone();
        let inner = Arc::clone(&self.inner);
        let sandbox = self.sandbox.id.clone();
        // Clients look at what the template started long after it has ended.
        let start = self.sandbox.services.start_key().unwrap_or_default();
        let prunes = self.sandbox.count_ended() % PRUNE_EVERY_COUNT == PRUNE_EVERY_COUNT - 1;
        self.inner.tracker.spawn(async move {
            // A guest that stands still does not answer, and the next process tells it again.
            let forget = async { link?.client.forget_exec(exec.as_str()).await.err() };
            if let Some(Some(error)) = inner.shutdown.run_until_cancelled(forget).await {
                tracing::debug!(%exec, error = chain(&error), "the guest was not told to forget an exec");
            }
            if !prunes {
                return;
            }
            match inner.store.prune_execs(&sandbox, EXECS_KEPT_MAX_COUNT as u64, &start).await {
                Ok(pruned) => {
                    let remove = move || pruned.iter().try_for_each(|old| inner.logs.remove(&sandbox, old));
                    if let Err(error) = blocking(remove).await {
                        tracing::warn!(%error, "output of old execs could not be removed");
                    }
                }
                Err(error) => tracing::warn!(error = chain(&error), "old execs could not be pruned"),
            }
        });
    }
}

/// Sleeps until then, or for ever.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn oom_kills(sandbox: &SandboxShared) -> u64 {
    sandbox.driver().oom_kills(&sandbox.id).await.unwrap_or(0)
}
