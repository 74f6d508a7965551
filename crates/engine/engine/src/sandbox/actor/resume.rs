//! Resuming: a frozen sandbox goes on, one that was put to disk is woken. The table in [`super::pause`] has the order of the
//! steps.

use atoll_core::sandbox::PauseMode;
use atoll_isolation::{DiskSource, IsolationError, Woken};

use super::*;
use crate::travel::{Fetched, MEMORY_USED, TO_BE, WITHOUT_MEMORY};
use crate::usage;

impl Actor {
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
            memory_used: false,
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
    pub(super) async fn go_on_with_new_link(&mut self) -> Result<()> {
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
            Ok(()) => self.sleeps_again().await,
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

    /// A wake failed, and it is put to disk again. It may have run: nobody may go on from an older moment as if it had not, so
    /// it is copied anew.
    async fn sleeps_again(&mut self) {
        let next = SandboxRecord {
            state: SandboxState::Paused,
            kept_ms: None,
            memory_used: false,
            ..self.record.clone()
        };
        // That it runs may have been recorded, without an answer.
        if let Err(error) = self.store_pause(&next, &[SandboxState::Paused, SandboxState::Running]).await {
            // Until the new copy is, too, the one before counts for no more than its disk.
            tracing::warn!(sandbox = %self.record.id, %error, "that a sandbox sleeps again is not recorded");
        }
        self.publish_pause(next);
        self.begin_keeping();
    }

    async fn start_again(&mut self) -> Result<()> {
        // The copy to the object store must not read the disk any more, which is about to change.
        let copied = self.stop_keeping().await;
        if !self.away {
            let plan = self.inner.plan_of(&self.record)?;
            return self.start_with(plan, copied).await;
        }
        if self.record.memory_used {
            self.give_copied_memory_up(Some(MEMORY_USED)).await?;
        }
        let Fetched { artifact, plan, without_memory } = self.fetch().await?;
        let started = self.start_fetched(plan, without_memory).await;
        self.engine().undo_snapshot(&artifact).await;
        started
    }

    /// On what was fetched. That its memory cannot be used here is recorded first: no other node goes on with it after what runs
    /// here has begun.
    async fn start_fetched(&mut self, plan: Plan, without_memory: Option<String>) -> Result<()> {
        if let Some(why) = without_memory {
            tracing::warn!(sandbox = %self.record.id, why, "a sandbox is woken without its memory");
            let reason = format!("{TO_BE}{WITHOUT_MEMORY}, which cannot be used here: {why}");
            self.give_copied_memory_up(Some(&reason)).await?;
        }
        Box::pin(self.start_with(plan, true)).await
    }

    /// On what is here, or on what was fetched. It may be `copied` to the object store.
    async fn start_with(&mut self, plan: Plan, copied: bool) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let stopping = || Error::new(Code::ShuttingDown, "the server is shutting down");
        let _turn = inner.creates.acquire().await.or(Err(stopping()))?;
        let came = self.away;
        if copied && self.record.paused == Some(PauseMode::Memory) {
            self.use_memory().await?;
        }
        let woken = self.start(&plan).await?;
        atoll_failpoint::fail_point!("engine.wake.started");
        let with_memory = woken == Woken::Memory;
        self.note_lost_memory(woken).await?;
        inner.open_network(&self.shared).await?;
        let met = async {
            let client = tokio::select! {
                client = link::connect(self.shared.driver().as_ref(), &self.record.id) => client?,
                () = inner.shutdown.cancelled() => return Err(stopping()),
            };
            if !with_memory {
                self.introduce(&client, &plan).await?;
            } else if came {
                // It trusts the gateway of the node that it came from.
                inner.install_trust(&client, &self.record.spec.egress).await?;
            }
            Ok(client)
        };
        let client = inner.disk.unless_full(met).await?;
        let reason = self.lost_memory.clone().or_else(|| memory_given_up(self.record.reason.as_deref()));
        let mut next = SandboxRecord { reason, ..self.awake() };
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

    /// Written down, as long as it is this node's, before a machine goes on that may be copied with its memory: should this server
    /// end before it is recorded what became of that, nobody goes on from the copy once more.
    async fn use_memory(&mut self) -> Result<()> {
        self.inner.store.mark_memory_used(&self.record.id).await.map_err(store_error)?;
        self.record.memory_used = true;
        atoll_failpoint::fail_point!("engine.wake.marked");
        Ok(())
    }

    async fn start(&mut self, plan: &Plan) -> Result<Woken> {
        let driver = Arc::clone(self.shared.driver());
        let started = match plan.disk {
            DiskSource::Empty => driver.wake(plan).await,
            DiskSource::Asleep(_) => self.go_on_from_copy(plan).await.map(|()| Woken::Memory),
            DiskSource::Artifact(_) | DiskSource::Moved(_) | DiskSource::WithMemory(..) => {
                driver.create(plan).await.map(|()| Woken::Disk)
            }
        };
        started.map_err(|error| isolation_error(&error))
    }

    /// Makes a machine of a copy with its memory. When that fails, the driver knows whether the machine went on. If it did, it is
    /// here, and the copy is of an earlier moment; if it did not, the copy is as good as before.
    async fn go_on_from_copy(&mut self, plan: &Plan) -> Result<(), IsolationError> {
        let driver = Arc::clone(self.shared.driver());
        let Err(error) = driver.create(plan).await else {
            self.away = false;
            return Ok(());
        };
        match driver.hibernate(&self.record.id, PauseMode::Memory).await {
            Err(IsolationError::Gone) => self.memory_is_unused().await,
            Ok(()) | Err(_) => self.away = false,
        }
        Err(error)
    }

    async fn memory_is_unused(&mut self) {
        self.record.memory_used = false;
        if let Err(error) = self.inner.store.mark_memory_unused(&self.record.id).await {
            // The next process here, or another node, will do without.
            tracing::warn!(sandbox = %self.record.id, %error, "that the memory of a sandbox was not used is not recorded");
        }
    }

    /// Ends what ran in a sandbox that was put to disk here with its memory and goes on without, and notes why: that is recorded
    /// when it runs.
    async fn note_lost_memory(&mut self, woken: Woken) -> Result<()> {
        if woken == Woken::Memory || self.record.paused != Some(PauseMode::Memory) {
            return Ok(());
        }
        let why = match woken {
            Woken::DiskInstead(why) => why,
            Woken::Disk | Woken::Memory => "it is not there any more".to_owned(),
        };
        tracing::warn!(sandbox = %self.record.id, why, "a sandbox is woken without its memory");
        self.end_execs_with_memory().await?;
        self.lost_memory = Some(format!("{WITHOUT_MEMORY}, which cannot be used here: {why}"));
        // Should the wake fail from here on, there is only its disk.
        self.record.paused = Some(PauseMode::Filesystem);
        Ok(())
    }
}

/// The reason of a sandbox that is awake, if the one that it had while it was paused says that its memory could not be used.
fn memory_given_up(paused: Option<&str>) -> Option<String> {
    let said = paused?.strip_prefix(TO_BE)?;
    said.starts_with(WITHOUT_MEMORY).then(|| said.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_of_lost_memory_is_said_of_the_wake() {
        let used = memory_given_up(Some(MEMORY_USED)).unwrap();
        assert!(used.starts_with(WITHOUT_MEMORY), "{used}");
        let foreign = format!("{TO_BE}{WITHOUT_MEMORY}, which cannot be used here: it is older");
        let said = memory_given_up(Some(&foreign)).unwrap();
        assert_eq!(said, "woken without its memory, which cannot be used here: it is older");
        for paused in [None, Some("idle for 10s"), Some("to be sure"), Some(said.as_str())] {
            assert_eq!(memory_given_up(paused), None, "{paused:?}");
        }
    }
}
