//! A sandbox that is put to disk is copied to the object store, goes to another node, and is fetched where it has gone.
//!
//! | step of going | row says | at the next start here |
//! |---|---|---|
//! | its disk is sent while it runs, see `travel/drain.rs` | as before | as it was |
//! | put to disk, with its memory if the other node can use that | `paused`, to be woken if it ran | woken; copied if it did not run |
//! | copied | `paused`, kept, the same | the same |
//! | its journal is there, and goes on no more | `paused`, kept, the same | the same, and the journal goes on |
//! | given away | `paused`, kept, another node's; it has come there | what is left here has no row: removed |
//! | taken apart here | the same | nothing is left |
//!
//! The other node wakes it if it ran before; that is written down in the same statement, see `travel/arrive.rs`.

use atoll_core::id::NodeId;

use super::*;
use crate::sandbox::remove_logs;
use crate::travel::{AGENTS, Fetched, bound_here};

/// How long a copy may take of which a move waits for.
const COPY_MAX: Duration = Duration::from_secs(1800);
/// How long the output of its execs may take to come before the sandbox is shown without. It is not woken without.
const LOGS_MAX: Duration = Duration::from_secs(60);
/// How long a move waits for commands that are under way, while those that come wait for the move.
pub(crate) const SETTLE_MAX: Duration = Duration::from_secs(5);
/// Pause before it is looked again whether requests are under way.
const USE_LOOK: Duration = Duration::from_millis(10);
/// Pause before the store is asked again whether what was not answered was done.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Waits until the copy that is being made, if one is, is whole; gives since when.
pub(super) async fn kept(keeping: &mut Option<Keeping>) -> u64 {
    match keeping {
        Some(keeping) => keeping.kept().await,
        None => std::future::pending().await,
    }
}

impl Actor {
    pub(super) fn engine(&self) -> Engine {
        Engine::of(&self.inner)
    }

    /// When it is to be copied next while it runs, milliseconds since the epoch.
    pub(super) fn next_copy(&self) -> Option<u64> {
        let durability = self.record.spec.durability?;
        let can = self.record.state == SandboxState::Running && self.inner.travel.is_some();
        if !can || self.shared.is_copying() {
            return None;
        }
        // Its first copy, and the first after each start of the server, at once.
        let by_time = match (self.copied_ms, durability.every_ms) {
            (0, _) => Some(0),
            (last, every) => every.map(|every| last.saturating_add(every)),
        };
        let by_exec = (durability.after_exec && self.shared.is_uncopied()).then_some(0);
        [by_time, by_exec].into_iter().flatten().min()
    }

    /// Begins to copy it, if it is put to disk and not copied.
    pub(super) fn begin_keeping(&mut self) {
        let on_disk = self.record.state == SandboxState::Paused
            && self.record.paused.is_some_and(|mode| mode != PauseMode::Frozen)
            && !self.record.is_kept();
        if on_disk && !self.away && self.keeping.is_none() {
            self.keeping = Keeping::begin(&self.inner, &self.record, self.ahead.take());
        }
    }

    /// Stops that; nothing is recorded by it any more. Says whether there may be something of it in the object store.
    pub(super) async fn stop_keeping(&mut self) -> bool {
        match self.keeping.take() {
            Some(keeping) => {
                keeping.stop().await;
                true
            }
            None => self.record.is_kept(),
        }
    }

    /// The copy is whole, and that is recorded.
    pub(super) fn is_kept_since(&mut self, since_ms: u64) {
        self.keeping = None;
        self.record.kept_ms = Some(since_ms);
        self.shared.publish(self.record.clone());
    }

    /// Removes what is in the object store of a sandbox that is gone, in the background.
    pub(super) fn forget_objects(&self) {
        let Some(travel) = self.inner.travel.clone() else { return };
        let (engine, id) = (self.engine(), self.record.id.clone());
        self.inner.tracker.spawn(async move {
            let shutdown = engine.inner.shutdown.clone();
            shutdown.run_until_cancelled(travel.collect_of(&engine, &id)).await;
        });
    }

    // === where it has gone ===

    /// Fetches the output of its execs if the sandbox came from another node. Says whether it is here.
    pub(super) async fn take_up_logs(&self) -> bool {
        let Some(travel) = self.inner.travel.as_ref().filter(|_| self.away) else { return !self.away };
        let fetching = travel.fetch_logs(&self.inner, &self.record);
        match tokio::time::timeout(LOGS_MAX, fetching).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                tracing::error!(sandbox = %self.record.id, %error, "the output of its execs is not here yet");
            }
            Err(late) => {
                tracing::error!(sandbox = %self.record.id, %late, "the output of its execs is not here yet");
            }
        }
        false
    }

    /// Fetches everything that it needs, and says how it is made.
    pub(super) async fn fetch(&mut self) -> Result<Fetched> {
        let engine = self.engine();
        // The registry is not ours, and may let the sandbox wait.
        self.shared.unless_unwanted(engine.obtain_images(&self.record)).await?;
        // Awake without it, its next copy would be without it, too, and the one that has it would go.
        if let Some(travel) = &self.inner.travel {
            travel.fetch_logs(&self.inner, &self.record).await?;
        }
        if self.unentered {
            drop(exec::enter_open(&self.inner, &self.shared).await?);
            self.unentered = false;
        }
        // A part of an earlier attempt.
        destroy(self.shared.driver().as_ref(), &self.record.id).await?;
        engine.fetch_asleep(&self.record).await
    }

    // === where it goes from ===

    /// Gives it to another node. When that fails it is here as it was, but for what ran in it if it goes without its memory.
    pub(super) async fn leave(&mut self, to: &NodeId) -> Result<()> {
        self.shared.set_leaving(true);
        self.let_commands_end(self.engine().keeps_memory_at(&self.record, to)).await;
        let ran = self.record.state == SandboxState::Running;
        let given = self.give(to, ran).await;
        if let Err(error) = given {
            self.shared.trace.begin(&self.record, false);
            if ran && let Err(error) = self.stay_awake().await {
                // That it is to be woken is written down: it is tried again.
                tracing::error!(sandbox = %self.record.id, %error, "a sandbox that did not go is not awake again yet");
            }
            self.shared.set_leaving(false);
            return Err(error);
        }
        atoll_failpoint::fail_point!("engine.move.given");
        self.go().await;
        Ok(())
    }

    /// What was sent ahead, and is of no use because it did not come to a copy, belongs to nothing from now on.
    pub(super) async fn give_ahead_up(&mut self) {
        if let (Some(travel), Some(upload)) = (&self.inner.travel, self.ahead.take()) {
            travel.give_up(&self.inner, &self.record.id, &upload).await;
        }
    }

    /// Waits, not for long, for the commands that run in it, unless they go along `with_memory`, and for requests that may still
    /// begin some. What comes now waits already.
    async fn let_commands_end(&self, with_memory: bool) {
        let all_ended = async {
            loop {
                let command = if with_memory { None } else { self.shared.commands().pop() };
                if let Some(exec) = command {
                    exec.over().await;
                } else if self.shared.is_used() {
                    tokio::time::sleep(USE_LOOK).await;
                } else {
                    return;
                }
            }
        };
        let _ended = self.inner.clock.timeout(SETTLE_MAX, all_ended).await;
    }

    /// It did not go: it runs on here.
    async fn stay_awake(&mut self) -> Result<()> {
        if self.record.state != SandboxState::Running {
            self.resume().await?;
        }
        self.inner.store.arrived(&self.record.id).await.map_err(store_error)
    }

    async fn give(&mut self, to: &NodeId, ran: bool) -> Result<()> {
        if let Some(why) = bound_here(&self.record) {
            return Err(Error::new(Code::InvalidState, why));
        }
        // One may have come to live in it while it was sent ahead.
        if self.inner.agents.are_in(&self.record.id) {
            return Err(Error::new(Code::InvalidState, AGENTS));
        }
        let mode = match self.record.paused {
            Some(mode) if mode != PauseMode::Frozen => mode,
            _ if self.engine().keeps_memory_at(&self.record, to) => PauseMode::Memory,
            _ => PauseMode::Filesystem,
        };
        if ran {
            self.inner.store.expect_wake(&self.record.id).await.map_err(store_error)?;
        }
        self.pause(mode, None).await?;
        atoll_failpoint::fail_point!("engine.move.paused");
        if !self.record.is_kept() {
            self.begin_keeping();
            let Some(keeping) = &mut self.keeping else {
                return Err(Error::new(Code::InvalidState, "it cannot be copied to the object store"));
            };
            match tokio::time::timeout(COPY_MAX, keeping.tried()).await {
                Ok(Ok(since)) => self.is_kept_since(since),
                Ok(Err(why)) => {
                    return Err(Error::new(Code::ObjectsUnavailable, format!("it is not copied: {why}")));
                }
                Err(_late) => return Err(Error::new(Code::Timeout, "copying it takes too long")),
            }
        }
        atoll_failpoint::fail_point!("engine.move.kept");
        // Down to its last event: the other node goes on behind that.
        Box::pin(self.engine().part_with_journal(&self.record.id)).await?;
        atoll_failpoint::fail_point!("engine.move.recorded");
        let refused = || Error::new(Code::NodeUnavailable, "the other node does not take it any more");
        if self.hand_over(to, ran).await? { Ok(()) } else { Err(refused()) }
    }

    /// Says whether it is the other node's now, which must be known before anything else may happen to it.
    async fn hand_over(&mut self, to: &NodeId, wake: bool) -> Result<bool> {
        let (id, generation) = (self.record.id.clone(), self.record.generation);
        let error = match self.inner.store.hand_over(&id, generation, to, wake).await {
            Ok(given) => return Ok(given),
            Err(error) => error,
        };
        tracing::warn!(sandbox = %id, %error, "whether it is the other node's is not known yet");
        loop {
            match self.inner.store.hold(&id, generation).await {
                Ok(None) => return Ok(true),
                Ok(Some(held)) => {
                    self.record.generation = held;
                    return Ok(false);
                }
                Err(error) => tracing::warn!(sandbox = %id, %error, "nor is it now"),
            }
            tokio::select! {
                () = tokio::time::sleep(STORE_PAUSE) => {}
                () = self.inner.shutdown.cancelled() => {
                    return Err(Error::new(Code::ShuttingDown, "the server is shutting down"));
                }
            }
        }
    }

    /// Nothing of it is this node's any more.
    async fn go(&mut self) {
        let id = self.record.id.clone();
        self.shared.set_left();
        self.inner.leave(&id);
        self.shared.dead.cancel();
        // Sessions of execs that go on with their memory let go of these, and of their logs.
        exec::wait_ended(&self.shared).await;
        for message in self.inbox.close() {
            message.refuse(Err(SandboxShared::has_gone()));
        }
        // Requests that waited look it up anew.
        self.shared.set_leaving(false);
        self.engine().forget_journal(&id).await;
        self.remove_remains().await;
        if let Err(error) = remove_logs(&self.inner, &id).await {
            tracing::error!(sandbox = %id, %error, "the output of its execs stays here until the next start");
        }
        atoll_failpoint::fail_point!("engine.move.gone");
    }
}
