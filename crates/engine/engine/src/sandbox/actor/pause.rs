//! Pausing, and how every change between paused and running is recorded.
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
//! | a machine that is copied is to go on, not recorded what became of that | `paused` (memory), used | put to disk again, and copied anew; what is not here is woken without its memory |

use atoll_core::exec::ExitReason;
use atoll_core::sandbox::PauseMode;
use atoll_guest_protocol::messages::SignalExec;
use atoll_isolation::IsolationError;
use futures::future::join_all;

use super::*;
use crate::travel::MEMORY_USED;
use crate::usage;

/// How long execs have to end by themselves when their sandbox is put to disk.
const GRACE: Duration = Duration::from_secs(2);
/// How long killed execs may take to say so.
const KILLED_WAIT: Duration = Duration::from_secs(5);
const SIGTERM: i32 = 15;

impl Actor {
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
            let reason = why.map(str::to_owned).or_else(|| self.record.reason.clone());
            return self.give_copied_memory_up(reason.as_deref()).await;
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
            memory_used: false,
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
            Err(IsolationError::Gone) if self.record.is_kept() => {
                self.away = true;
                if self.record.memory_used {
                    self.inner.gateway.detach(&id);
                    self.give_copied_memory_up(Some(MEMORY_USED)).await?;
                    self.show(SandboxState::Paused);
                    return Ok(());
                }
            }
            asleep => asleep.map_err(|error| isolation_error(&error))?,
        }
        self.inner.gateway.detach(&id);
        atoll_failpoint::fail_point!("engine.hibernate.done");
        let next = SandboxRecord {
            state: SandboxState::Paused,
            // What may have gone on may be newer here than in the copy.
            kept_ms: self.record.kept_ms.filter(|_| !self.record.memory_used),
            memory_used: false,
            ..self.record.clone()
        };
        self.record_pause(next, &[SandboxState::Pausing, SandboxState::Paused]).await
    }

    /// From now on only the disk counts of a sandbox that is in the object store with its memory. It is woken from the same copy.
    pub(super) async fn give_copied_memory_up(&mut self, reason: Option<&str>) -> Result<()> {
        self.end_execs_with_memory().await?;
        let next = SandboxRecord {
            reason: reason.map(str::to_owned),
            paused: Some(PauseMode::Filesystem),
            memory_used: false,
            ..self.record.clone()
        };
        let given_up = self.inner.store.give_memory_up(&next.id, reason).await;
        self.record.generation = given_up.map_err(store_error)?;
        self.publish_pause(next);
        Ok(())
    }

    /// What ran in it does not go on: its memory is not used.
    pub(super) async fn end_execs_with_memory(&mut self) -> Result<()> {
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
    pub(super) async fn kill_execs(&self, why: ExitReason) {
        let live = self.shared.live_execs();
        for exec in &live {
            exec.ask_kill(why);
        }
        let all = join_all(live.iter().map(|exec| exec.over()));
        if tokio::time::timeout(KILLED_WAIT, all).await.is_err() {
            tracing::warn!(sandbox = %self.record.id, "killed execs do not end; going on without");
        }
    }

    /// When it ends, once it is paused.
    fn end_while_paused(&self) -> Option<u64> {
        self.record.expires_ms.filter(|_| self.record.spec.idle.pause_at_end.is_none())
    }

    // === the record ===

    /// Publishes a state that is passing and not recorded.
    pub(super) fn show(&mut self, state: SandboxState) {
        debug_assert!(may_follow(self.record.state, state) || self.record.state == state);
        self.record.state = state;
        self.shared.publish(self.record.clone());
    }

    pub(super) async fn store_pause(&mut self, next: &SandboxRecord, from: &[SandboxState]) -> Result<()> {
        self.record.generation = self.inner.store.set_pause(next, from).await.map_err(store_error)?;
        Ok(())
    }

    pub(super) fn publish_pause(&mut self, next: SandboxRecord) {
        self.record = SandboxRecord { generation: self.record.generation, ..next };
        self.shared.publish(self.record.clone());
    }

    async fn record_pause(&mut self, next: SandboxRecord, from: &[SandboxState]) -> Result<()> {
        self.store_pause(&next, from).await?;
        self.publish_pause(next);
        Ok(())
    }
}
