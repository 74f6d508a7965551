//! The session: one task that owns a running exec.
//!
//! It begins with the exec's row ([`start`]) or with what an earlier process left of it, serves one stream of the guest after
//! another, keeps the exec's clocks and sends its kills. [`keep`] is what it does with output, [`end`] what it does once
//! the exec has ended or the server stops.

mod end;
mod keep;
pub(super) mod start;

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Result;
use atoll_core::exec::{ExecState, Exit, ExitReason};
use atoll_guest_protocol::client::{ExecEvent, ExecStream, GuestClient, GuestError};
use atoll_guest_protocol::messages::{AttachExec, Exited, SignalExec};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::errors::chain;
use crate::log::LogWriter;
use crate::sandbox::{SandboxShared, Stillness};

use super::shared::{ExecShared, Started};

pub(super) const SIGKILL: i32 = 9;
/// Pause before attaching again when a stream broke without having given anything.
const ATTACH_PAUSE: Duration = Duration::from_millis(50);
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

    fn start_clocks(&mut self) {
        let spec = &self.exec.inserted().spec;
        let began_ms = self.exec.inserted().created_ms;
        let sandbox = self.sandbox.published();
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
                Err(GuestError::Timeout | GuestError::StoodStill | GuestError::NoRoom) => last = number - 1,
                // It was never told of it.
                Err(GuestError::Failure { .. }) if self.end_offset() == 0 => return Ok(None),
                Err(error @ GuestError::Failure { .. }) => {
                    tracing::error!(exec = %self.exec.id(), error = chain(&error), "the guest lost an exec");
                    return Ok(None);
                }
            }
        }
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
