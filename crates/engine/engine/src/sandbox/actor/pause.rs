//! Pausing and resuming, and what a sandbox does by itself while nobody uses it.
//!
//! The order in which steps are done and recorded makes `kill -9` harmless at each of them:
//!
//! | step | row says | at the next start |
//! |---|---|---|
//! | frozen, not recorded | `running` | thawed: nobody was told |
//! | recorded | `paused` (frozen) | frozen again if need be, and left alone |
//! | hibernation recorded, not done | `pausing` | finished |
//! | done | `paused` (filesystem, memory) | a sandbox that is half awake is put to disk again |
//! | `running` recorded, not thawed | `running` | thawed |

use atoll_core::exec::ExitReason;
use atoll_core::sandbox::PauseMode;
use atoll_core::usage::OnExhausted;
use atoll_guest_protocol::messages::SignalExec;
use atoll_isolation::{DiskSource, IsolationError, Woken};
use atoll_recorder::What;
use futures::future::join_all;

use super::*;
use crate::travel::{Fetched, begin_copy};
use crate::usage;

/// How long execs have to end by themselves when their sandbox is put to disk.
const GRACE: Duration = Duration::from_secs(2);
/// How long killed execs may take to say so.
const KILLED_WAIT: Duration = Duration::from_secs(5);
const SIGTERM: i32 = 15;
/// Shortest and longest time between two looks at a budget. Bytes may leave as fast as the network is.
const BUDGET_LOOK_MIN_MS: u64 = 50;
const BUDGET_LOOK_MAX_MS: u64 = 30_000;
const BUDGET_LOOK_EGRESS_MS: u64 = 1000;

/// What is due next, by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Delete,
    Pause(PauseMode),
    Doze,
    Budget,
    /// To be copied to the object store while it runs.
    Copy,
}

impl Actor {
    /// When what is due, milliseconds since the epoch: the earliest.
    pub(super) fn next_due(&self) -> Option<(u64, Due)> {
        let spec = &self.record.spec;
        let running = self.record.state == SandboxState::Running;
        let idle = running && !self.shared.is_busy();
        let after_idle =
            |ms: Option<u64>| ms.filter(|_| idle).map(|ms| self.shared.last_active_ms().saturating_add(ms));
        let idle_end = match spec.idle.on_idle.pause() {
            None => Due::Delete,
            Some(mode) => Due::Pause(mode),
        };
        let paused = self.record.state == SandboxState::Paused;
        let frozen = paused && self.record.paused == Some(PauseMode::Frozen);
        let since_pause = |ms: u64| self.record.paused_ms.unwrap_or_default().saturating_add(ms);
        let hibernate = spec.idle.hibernate_after_ms.filter(|_| frozen);
        let doze = spec.idle.freeze_ms.filter(|_| !self.shared.freezer.is_frozen());
        let over = running && spec.budget.exhausted(&self.shared.meter.lifetime()).is_some();
        [
            self.record.expires_ms.and_then(|at| Some((at, self.at_end()?))),
            after_idle(spec.idle_timeout_ms).map(|at| (at, idle_end)),
            after_idle(doze).map(|at| (at, Due::Doze)),
            hibernate.map(|ms| (since_pause(ms), Due::Pause(PauseMode::Filesystem))),
            spec.idle.delete_paused_after_ms.filter(|_| paused).map(|ms| (since_pause(ms), Due::Delete)),
            (running && spec.budget.limits()).then_some((if over { 0 } else { self.budget_ms }, Due::Budget)),
            self.next_copy().map(|at| (at, Due::Copy)),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(at, _)| *at)
    }

    /// What the end of its time to live means now.
    fn at_end(&self) -> Option<Due> {
        match (self.record.spec.idle.pause_at_end, self.record.state) {
            (None, _) => Some(Due::Delete),
            (Some(mode), SandboxState::Running) => Some(Due::Pause(mode)),
            (Some(_), _) => None,
        }
    }

    /// When it ends, once it is paused.
    fn end_while_paused(&self) -> Option<u64> {
        self.record.expires_ms.filter(|_| self.record.spec.idle.pause_at_end.is_none())
    }

    /// Does what is due. Says whether the sandbox is gone.
    pub(super) async fn do_due(&mut self, due: Due) -> bool {
        let id = self.record.id.clone();
        let outcome = match due {
            Due::Delete => {
                tracing::info!(sandbox = %id, "its time has come");
                match self.delete().await {
                    Ok(()) => return true,
                    Err(error) => Err(error),
                }
            }
            Due::Pause(mode) => self.pause(mode, None).await.map(drop),
            Due::Doze => self.shared.doze().await.map(drop),
            Due::Copy => {
                self.copied_ms = self.inner.now_ms();
                begin_copy(&self.inner, &self.shared);
                Ok(())
            }
            Due::Budget => match self.look_at_budget().await {
                Ok(true) => return true,
                other => other.map(drop),
            },
        };
        if let Err(error) = outcome {
            tracing::error!(sandbox = %id, %error, ?due, "could not be done, trying again later");
            self.not_before_ms = self.inner.now_ms().saturating_add(DELETE_AGAIN_MS);
        }
        false
    }

    // === pausing ===

    pub(super) async fn pause(&mut self, mode: PauseMode, why: Option<&str>) -> Result<SandboxRecord> {
        admit(self.record.state, Wish::Pause, self.record.reason.as_deref())?;
        match (self.record.state, self.record.paused) {
            // As deep as asked, or deeper, already.
            (SandboxState::Paused, Some(now)) if now >= mode => return Ok(self.shared.record()),
            _ => {}
        }
        match mode {
            PauseMode::Frozen => self.freeze(why).await?,
            PauseMode::Memory | PauseMode::Filesystem => self.hibernate(mode, why).await?,
        }
        Ok(self.shared.record())
    }

    async fn freeze(&mut self, why: Option<&str>) -> Result<()> {
        // Shown first, so that no use that comes from now on takes the frozen sandbox for one that dozes.
        self.show(SandboxState::Pausing);
        let frozen = self.shared.freeze().await;
        atoll_failpoint::fail_point!("engine.pause.frozen");
        if let Err(error) = frozen {
            self.show(SandboxState::Running);
            return Err(error);
        }
        usage::settle(&self.inner, &self.shared).await;
        let next = SandboxRecord {
            state: SandboxState::Paused,
            reason: why.map(str::to_owned),
            paused: Some(PauseMode::Frozen),
            paused_ms: Some(self.inner.now_ms()),
            expires_ms: self.end_while_paused(),
            ..self.record.clone()
        };
        if let Err(error) = self.record_pause(next, &[SandboxState::Running]).await {
            self.show(SandboxState::Running);
            self.shared.thaw().await?;
            return Err(error);
        }
        atoll_failpoint::fail_point!("engine.pause.recorded");
        Ok(())
    }

    async fn hibernate(&mut self, mode: PauseMode, why: Option<&str>) -> Result<()> {
        // What runs must be asked to end, or its memory be written.
        self.inner.disk.check()?;
        if mode == PauseMode::Memory {
            // Nothing may change before it is known to be possible.
            self.shared.driver().memory_pause().map_err(|error| isolation_error(&error))?;
        }
        // A copy that is made of its memory and its disk is none of its disk alone.
        self.stop_keeping().await;
        if self.away {
            return self.give_memory_up(why).await;
        }
        let was_paused = self.record.state == SandboxState::Paused;
        usage::settle(&self.inner, &self.shared).await;
        let next = SandboxRecord {
            state: SandboxState::Pausing,
            // Why it was paused before, and not what was said of its wake.
            reason: why.map(str::to_owned).or_else(|| self.record.reason.clone().filter(|_| was_paused)),
            paused: Some(mode),
            paused_ms: self.record.paused_ms.or_else(|| Some(self.inner.now_ms())),
            expires_ms: self.end_while_paused(),
            kept_ms: None,
            ..self.record.clone()
        };
        let from = [SandboxState::Running, SandboxState::Pausing, SandboxState::Paused];
        if let Err(error) = self.record_pause(next, &from).await {
            self.begin_keeping();
            return Err(error);
        }
        atoll_failpoint::fail_point!("engine.hibernate.marked");
        if mode == PauseMode::Memory {
            return match self.put_to_sleep().await {
                Ok(()) => {
                    self.begin_keeping();
                    Ok(())
                }
                // It is as it was, but for the connection.
                Err(error) => self.go_on_with_new_link().await.and(Err(error)),
            };
        }
        if !was_paused {
            self.shared.thaw().await?;
            self.end_execs_gently().await;
        }
        self.put_to_disk(mode).await
    }

    /// The second half: also how a start finishes what a crash interrupted.
    pub(super) async fn put_to_disk(&mut self, mode: PauseMode) -> Result<()> {
        let ended = self.shared.end_boot();
        join_all(ended.iter().map(|exec| exec.over())).await;
        let id = self.record.id.clone();
        usage::measure(&self.inner, &self.shared).await;
        self.inner.gateway.detach(&id);
        match self.shared.driver().hibernate(&id, mode).await {
            // It came from another node, or what is here was not whole: it is fetched when it is woken.
            Err(IsolationError::Gone) if self.record.is_kept() => self.away = true,
            put => put.map_err(|error| isolation_error(&error))?,
        }
        atoll_failpoint::fail_point!("engine.hibernate.done");
        self.unlinked = false;
        self.shared.set_frozen(false);
        let next = SandboxRecord { state: SandboxState::Paused, ..self.record.clone() };
        self.record_pause(next, &[SandboxState::Pausing, SandboxState::Paused]).await?;
        atoll_failpoint::fail_point!("engine.hibernate.recorded");
        self.begin_keeping();
        Ok(())
    }

    /// The second half, with its memory: what runs inside does not notice, and sessions wait for the connection that
    /// the wake makes.
    pub(super) async fn put_to_sleep(&mut self) -> Result<()> {
        let id = self.record.id.clone();
        self.shared.end_link();
        self.shared.set_frozen(true);
        self.unlinked = true;
        match self.shared.driver().hibernate(&id, PauseMode::Memory).await {
            // It came from another node, or what is here was not whole: it is fetched when it is woken.
            Err(IsolationError::Gone) if self.record.is_kept() => self.away = true,
            asleep => asleep.map_err(|error| isolation_error(&error))?,
        }
        self.inner.gateway.detach(&id);
        atoll_failpoint::fail_point!("engine.hibernate.done");
        let next = SandboxRecord { state: SandboxState::Paused, ..self.record.clone() };
        self.record_pause(next, &[SandboxState::Pausing, SandboxState::Paused]).await
    }

    /// From now on only the disk counts of a sandbox that came with its memory and was not woken since. It is woken from the
    /// same copy.
    async fn give_memory_up(&mut self, why: Option<&str>) -> Result<()> {
        self.end_execs_with_memory().await?;
        let next = SandboxRecord {
            reason: why.map(str::to_owned).or_else(|| self.record.reason.clone()),
            paused: Some(PauseMode::Filesystem),
            ..self.record.clone()
        };
        self.record_pause(next, &[SandboxState::Paused]).await
    }

    /// What ran in it does not go on: its memory is not used.
    async fn end_execs_with_memory(&mut self) -> Result<()> {
        let ended = self.shared.end_boot();
        join_all(ended.iter().map(|exec| exec.over())).await;
        if std::mem::take(&mut self.unentered) {
            let (id, now) = (&self.record.id, self.inner.now_ms());
            let exit = Exit::sandbox_paused();
            self.inner.store.end_execs(id, &exit, now).await.map_err(store_error)?;
        }
        self.unlinked = false;
        self.shared.set_frozen(false);
        Ok(())
    }

    /// SIGTERM to everything that runs, and after a while SIGKILL.
    async fn end_execs_gently(&self) {
        let live = self.shared.live_execs();
        if live.is_empty() {
            return;
        }
        let link = self.shared.guest.borrow().clone();
        for exec in &live {
            exec.blame(ExitReason::SandboxPaused);
        }
        let all = join_all(live.iter().map(|exec| exec.over()));
        let gently = async {
            if let Some(link) = &link {
                let told = live.iter().map(|exec| {
                    let exec_id = exec.id().to_string();
                    link.client.signal_exec(SignalExec { exec_id, signal: SIGTERM, tree: true })
                });
                // Those that have ended meanwhile say so; it makes no difference.
                drop(join_all(told).await);
            }
            all.await;
        };
        if tokio::time::timeout(GRACE, gently).await.is_err() {
            self.kill_execs(ExitReason::SandboxPaused).await;
        }
    }

    /// SIGKILL to everything that runs; waits a while for the ends to be known.
    async fn kill_execs(&self, why: ExitReason) {
        let live = self.shared.live_execs();
        for exec in &live {
            exec.ask_kill(why);
        }
        let all = join_all(live.iter().map(|exec| exec.over()));
        if tokio::time::timeout(KILLED_WAIT, all).await.is_err() {
            tracing::warn!(sandbox = %self.record.id, "killed execs do not end; going on without");
        }
    }

    // === resuming ===

    pub(super) async fn resume(&mut self) -> Result<SandboxRecord> {
        admit(self.record.state, Wish::Resume, self.record.reason.as_deref())?;
        self.inner.disk.check()?;
        match (self.record.state, self.record.paused) {
            (SandboxState::Running, _) => drop(self.shared.rouse().await?),
            (_, Some(mode)) => {
                if let Some(why) = self.record.spec.budget.exhausted(&self.shared.meter.lifetime()) {
                    return Err(Error::new(Code::BudgetExhausted, why)
                        .hint("raise the budget: 'atoll update' or PATCH with a larger 'budget'"));
                }
                if mode == PauseMode::Frozen {
                    self.go_on().await?;
                } else {
                    self.inner.store.check_wake(&self.record).await.map_err(store_error)?;
                    match (self.record.state, mode) {
                        (SandboxState::Pausing, PauseMode::Memory) => self.put_to_sleep().await?,
                        (SandboxState::Pausing, _) => self.put_to_disk(mode).await?,
                        _ => {}
                    }
                    self.wake().await?;
                }
                self.budget_ms = 0;
            }
            (state, None) => {
                tracing::error!(sandbox = %self.record.id, %state, "nobody knows how it is paused");
                return Err(Error::new(Code::Internal, "the sandbox's record does not say how it is paused"));
            }
        }
        Ok(self.shared.record())
    }

    fn awake(&self) -> SandboxRecord {
        let pause = self.record.paused_ms.map_or(0, |since| self.inner.now_ms().saturating_sub(since));
        SandboxRecord {
            state: SandboxState::Running,
            reason: None,
            paused: None,
            paused_ms: None,
            pauses_ms: self.record.pauses_ms.saturating_add(pause),
            kept_ms: None,
            ..self.record.clone()
        }
    }

    /// From `frozen`. Recorded before anything moves: what has gone on once never stands as paused.
    async fn go_on(&mut self) -> Result<()> {
        usage::measure(&self.inner, &self.shared).await;
        if self.unlinked {
            return self.go_on_with_new_link().await;
        }
        let next = self.awake();
        self.store_pause(&next, &[SandboxState::Paused]).await?;
        atoll_failpoint::fail_point!("engine.resume.recorded");
        let thawed = self.shared.thaw().await;
        self.publish_pause(next);
        if let Err(error) = thawed {
            self.fail(&error.message).await;
            return Err(error);
        }
        self.shared.touch();
        Ok(())
    }

    /// The same when an earlier process froze it: there is no connection to its guest yet.
    async fn go_on_with_new_link(&mut self) -> Result<()> {
        self.show(SandboxState::Resuming);
        let next = self.awake();
        if let Err(error) = self.store_pause(&next, &[SandboxState::Paused, SandboxState::Pausing]).await {
            self.show(SandboxState::Paused);
            return Err(error);
        }
        atoll_failpoint::fail_point!("engine.resume.recorded");
        let linked = async {
            self.shared.thaw().await?;
            let client = link::connect_awake(&self.shared).await?;
            self.start_link(client);
            exec::tidy_up(&self.inner, &self.shared).await
        };
        let linked = linked.await;
        self.publish_pause(next);
        if let Err(error) = linked {
            self.fail(&error.message).await;
            return Err(error);
        }
        self.unlinked = false;
        self.shared.touch();
        Ok(())
    }

    /// From disk.
    async fn wake(&mut self) -> Result<()> {
        self.show(SandboxState::Resuming);
        let woken = self.start_again().await;
        let error = match woken {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        tracing::warn!(sandbox = %self.record.id, %error, "a sandbox could not be woken");
        self.inner.gateway.detach(&self.record.id);
        if self.away {
            // The part of it that is here may not be whole; the copy in the object store is.
            self.remove_remains().await;
            self.show(SandboxState::Paused);
            return Err(error);
        }
        let mode = self.record.paused.unwrap_or(PauseMode::Filesystem);
        if mode == PauseMode::Memory {
            self.shared.end_link();
            self.shared.set_frozen(true);
            self.unlinked = true;
        }
        match self.shared.driver().hibernate(&self.record.id, mode).await {
            Ok(()) => {
                // It may have run. Nobody may go on from an older moment as if it had not: it is copied anew.
                self.record.kept_ms = None;
                self.show(SandboxState::Paused);
                self.begin_keeping();
            }
            Err(IsolationError::Gone) => {
                self.show(SandboxState::Paused);
                self.fail("its disk is gone").await;
            }
            Err(again) => {
                tracing::error!(sandbox = %self.record.id, error = crate::errors::chain(&again),
                    "nor could it be put to disk again");
                // The next resume begins with that.
                self.show(SandboxState::Pausing);
            }
        }
        Err(error)
    }

    async fn start_again(&mut self) -> Result<()> {
        // The copy to the object store must not read the disk any more, which is about to change.
        self.stop_keeping().await;
        if !self.away {
            let plan = self.inner.plan_of(&self.record)?;
            return self.start_with(plan, None).await;
        }
        let Fetched { artifact, plan, without_memory } = self.fetch().await?;
        let started = self.start_with(plan, without_memory).await;
        self.engine().undo_snapshot(&artifact).await;
        started
    }

    /// On what is here, or on what was fetched, which may be without its memory for a reason.
    async fn start_with(&mut self, plan: Plan, without_memory: Option<String>) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let stopping = || Error::new(Code::ShuttingDown, "the server is shutting down");
        let _turn = inner.creates.acquire().await.or(Err(stopping()))?;
        let driver = self.shared.driver();
        let started = match plan.disk {
            DiskSource::Empty => driver.wake(&plan).await,
            DiskSource::Asleep(_) => driver.create(&plan).await.map(|()| Woken::Memory),
            DiskSource::Artifact(_) | DiskSource::WithMemory(..) => {
                driver.create(&plan).await.map(|()| Woken::Disk)
            }
        };
        let woken = started.map_err(|error| isolation_error(&error))?;
        atoll_failpoint::fail_point!("engine.wake.started");
        let with_memory = woken == Woken::Memory;
        self.note_lost_memory(woken, without_memory).await?;
        inner.open_network(&self.shared).await?;
        let met = async {
            let client = tokio::select! {
                client = link::connect(self.shared.driver().as_ref(), &self.record.id) => client?,
                () = inner.shutdown.cancelled() => return Err(stopping()),
            };
            if !with_memory {
                self.introduce(&client, &plan).await?;
            } else if self.away {
                // It trusts the gateway of the node that it came from.
                inner.install_trust(&client, &self.record.spec.egress).await?;
            }
            Ok(client)
        };
        let client = inner.disk.unless_full(met).await?;
        let mut next = SandboxRecord { reason: self.lost_memory.clone(), ..self.awake() };
        if !with_memory {
            next.boot_id = Inner::new_boot_id()?;
        }
        // Whole, and from here on, whether that is recorded or not, what is newer than the copy.
        self.away = false;
        self.store_pause(&next, &[SandboxState::Paused]).await?;
        self.lost_memory = None;
        atoll_failpoint::fail_point!("engine.wake.recorded");
        usage::measure(&self.inner, &self.shared).await;
        self.shared.set_woken();
        self.start_link(client);
        self.unlinked = false;
        self.shared.set_frozen(false);
        if with_memory {
            exec::tidy_up(&self.inner, &self.shared).await?;
        }
        self.publish_pause(next);
        self.shared.touch();
        Ok(())
    }

    /// Ends what ran in a sandbox that was put to disk with its memory and goes on without, and notes why: that is recorded
    /// when it runs.
    async fn note_lost_memory(&mut self, woken: Woken, without_memory: Option<String>) -> Result<()> {
        if woken == Woken::Memory || self.record.paused != Some(PauseMode::Memory) {
            return Ok(());
        }
        let why = match woken {
            Woken::DiskInstead(why) => why,
            Woken::Disk | Woken::Memory => {
                without_memory.unwrap_or_else(|| "it is not there any more".to_owned())
            }
        };
        tracing::warn!(sandbox = %self.record.id, why, "a sandbox is woken without its memory");
        self.end_execs_with_memory().await?;
        self.lost_memory = Some(format!("woken without its memory, which cannot be used here: {why}"));
        if !self.away {
            // Should the wake fail from here on, there is only its disk.
            self.record.paused = Some(PauseMode::Filesystem);
        }
        Ok(())
    }

    // === budgets ===

    /// Measures, and stops the sandbox when a budget is used up. Says whether it is gone.
    async fn look_at_budget(&mut self) -> Result<bool> {
        let used = usage::measure(&self.inner, &self.shared).await;
        let spec = &self.record.spec;
        let Some(why) = spec.budget.exhausted(&used) else {
            let soonest = spec.budget.check_again_ms(&used, spec.resources.cpu_millis);
            let longest = match spec.budget.egress_bytes {
                Some(_) => BUDGET_LOOK_EGRESS_MS,
                None => BUDGET_LOOK_MAX_MS,
            };
            let pause = soonest.unwrap_or(longest).clamp(BUDGET_LOOK_MIN_MS, longest);
            self.budget_ms = self.inner.now_ms().saturating_add(pause);
            return Ok(false);
        };
        tracing::info!(sandbox = %self.record.id, why, "a budget is used up");
        self.shared.trace.note(&self.record.id, What::BudgetExhausted { reason: why.clone() });
        let on_exhausted = spec.budget.on_exhausted;
        self.kill_execs(ExitReason::BudgetExhausted).await;
        match on_exhausted {
            OnExhausted::Delete => self.delete().await.map(|()| true),
            OnExhausted::Pause => self.pause(PauseMode::Frozen, Some(&why)).await.map(|_| false),
        }
    }

    // === the record ===

    /// Publishes a state that is passing and not recorded.
    fn show(&mut self, state: SandboxState) {
        debug_assert!(may_follow(self.record.state, state) || self.record.state == state);
        self.record.state = state;
        self.shared.publish(self.record.clone());
    }

    async fn store_pause(&mut self, next: &SandboxRecord, from: &[SandboxState]) -> Result<()> {
        self.record.generation = self.inner.store.set_pause(next, from).await.map_err(store_error)?;
        Ok(())
    }

    fn publish_pause(&mut self, next: SandboxRecord) {
        self.record = SandboxRecord { generation: self.record.generation, ..next };
        self.shared.publish(self.record.clone());
    }

    async fn record_pause(&mut self, next: SandboxRecord, from: &[SandboxState]) -> Result<()> {
        self.store_pause(&next, from).await?;
        self.publish_pause(next);
        Ok(())
    }
}
